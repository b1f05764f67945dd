"""What is trained per step: sequence length, global batch, and how evenly tokens reach the experts."""

from dataclasses import dataclass

from primus_search.values.model.adapters import Adapters, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step of the job.

    seq_length         tokens per sample
    global_batch_size  samples per optimizer step, over the whole cluster
    routing_imbalance  tokens of the busiest expert-parallel rank over the mean (1.0 = forced balance; natural
                       routing is above 1; source of a default: the software stack)
    routing_spread     standard deviation of the logarithm of experts' loads; that of a rank follows from its experts
    document_length    tokens of the documents that a sample is packed from and that attention keeps to, as the mean
                       token sees them; 0: a sample is one document
    experts_in_turn    a benchmark's gate deals experts to tokens in turn, so that those of a token are neighbours and
                       mostly on one rank; forced balance otherwise, and real routing, draw them evenly
    pads_to_capacity   an expert takes as many tokens as its capacity, `routing_imbalance` times its share: those beyond
                       are dropped, missing ones padded, and every rank sends equal pieces
    image_tokens       tokens of a sample that towers make from its images; 0: text alone, no tower is held
    tokens_per_image   of one image; 0: what the model's configuration says, else all image tokens are one image
    trains_towers      false: towers and their projectors are frozen
    task               pretrain or sft: all weights are trained; lora or qlora: `adapters` alone, beside frozen weights
    """

    seq_length: int
    global_batch_size: int
    routing_imbalance: float = 1.0
    routing_spread: float = 0.0
    experts_in_turn: bool = False
    document_length: float = 0.0
    pads_to_capacity: bool = False
    image_tokens: int = 0
    tokens_per_image: int = 0
    trains_towers: bool = True
    task: Task = "pretrain"
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if self.seq_length < 1 or self.global_batch_size < 1:
            raise ValueError("seq_length and global_batch_size must be at least 1")
        if self.routing_imbalance < 1.0:
            raise ValueError("routing_imbalance is a maximum over a mean and cannot be below 1")
        if self.routing_spread < 0.0:
            raise ValueError("routing_spread is a standard deviation and cannot be negative")
        if not 0 <= self.tokens_per_image <= self.image_tokens <= self.seq_length:
            raise ValueError("tokens_per_image is at most image_tokens, and these at most seq_length")
        if (self.adapters is not None) != self.task.endswith("lora"):
            raise ValueError("adapters are of the tasks lora and qlora, which need them")

    @property
    def attended_length(self) -> float:
        """Tokens of a sequence that attention works on: a document, or the whole sample."""
        whole = float(self.seq_length)
        return min(self.document_length, whole) if self.document_length > 0.0 else whole

    @property
    def tokens_per_step(self) -> float:
        """Tokens one optimizer step consumes, over the whole cluster."""
        return float(self.seq_length) * float(self.global_batch_size)
