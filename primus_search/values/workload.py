"""What is trained per step: sequence length, global batch, and how evenly tokens reach the experts."""

from dataclasses import dataclass

import numpy as np

from primus_search.values.candidates import Ints
from primus_search.values.lengths import Filling, GroupShares, Lengths, Packing, filling, group_shares
from primus_search.values.model.adapters import Adapters
from primus_search.values.tasks import TASKS, Policy, Task, TaskParts


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
    lengths            their distribution, of which a token sees `document_length` on average; None: all are as long
    packing            how rows of `seq_length` are filled from documents
    balanced_packing   rows of a step are dealt to ranks and micro-batches by their work
    experts_in_turn    a benchmark's gate deals experts to tokens in turn, so that those of a token are neighbours and
                       mostly on one rank; forced balance otherwise, and real routing, draw them evenly
    pads_to_capacity   an expert takes as many tokens as its capacity, `routing_imbalance` times its share: those beyond
                       are dropped, missing ones padded, and every rank sends equal pieces
    image_tokens       tokens of a sample that towers make from its images; 0: text alone, no tower is held
    tokens_per_image   of one image; 0: what the model's configuration says, else all image tokens are one image
    trains_towers      false: towers and their projectors are frozen
    task               a row of `tasks.TASKS`; with `adapters` these alone are trained, beside frozen weights
    policy             how the tasks dpo, grpo and ppo train
    """

    seq_length: int
    global_batch_size: int
    routing_imbalance: float = 1.0
    routing_spread: float = 0.0
    experts_in_turn: bool = False
    document_length: float = 0.0
    lengths: Lengths | None = None
    packing: Packing = "cut"
    balanced_packing: bool = False
    pads_to_capacity: bool = False
    image_tokens: int = 0
    tokens_per_image: int = 0
    trains_towers: bool = True
    task: Task = "pretrain"
    adapters: Adapters | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.seq_length < 1 or self.global_batch_size < 1:
            raise ValueError("seq_length and global_batch_size must be at least 1")
        if self.routing_imbalance < 1.0:
            raise ValueError("routing_imbalance is a maximum over a mean and cannot be below 1")
        if self.routing_spread < 0.0:
            raise ValueError("routing_spread is a standard deviation and cannot be negative")
        if not 0 <= self.tokens_per_image <= self.image_tokens <= self.seq_length:
            raise ValueError("tokens_per_image is at most image_tokens, and these at most seq_length")
        if self.parts.adapters != "given" and (self.adapters is not None) != (self.parts.adapters == "always"):
            raise ValueError(f"adapters are of the tasks lora and qlora, which need them; task is {self.task}")
        if (self.policy is not None) != self.parts.has_reference:
            raise ValueError(f"a policy is of the tasks dpo, grpo and ppo, which need one; task is {self.task}")

    @property
    def parts(self) -> TaskParts:
        """What the task needs beside the weights that it trains."""
        return TASKS[self.task]

    @property
    def forward_passes(self) -> float:
        """Passes over each row beside its training: log-probabilities and, with a critic, values."""
        if self.policy is None:
            return 0.0
        rollouts = self.parts.has_rollouts * (self.policy.old_log_probs + self.parts.has_critic)
        return ((self.policy.reference != "none") + rollouts) / self.policy.epochs

    @property
    def trained_models(self) -> int:
        """Models of the policy's size that are trained: the policy, and a critic."""
        return 1 + self.parts.has_critic

    @property
    def held_models(self) -> int:
        """Models of the policy's size whose weights the devices hold; adapters have their reference below them."""
        is_held = self.policy is not None and self.policy.reference == "resident" and self.adapters is None
        return self.trained_models + is_held

    @property
    def reserved_share(self) -> float:
        """Share of device memory that is not for training: an engine of rollouts holds it."""
        return self.policy.gpu_memory_utilization if self.policy else 0.0

    @property
    def documents(self) -> Lengths | None:
        """Lengths of the documents; None where a sample is one document of its length."""
        return self.lengths or (Lengths((self.document_length,), (1.0,)) if self.document_length >= 1.0 else None)

    @property
    def has_uneven_rows(self) -> bool:
        """Whether rows differ in what they take to compute."""
        return self.lengths is not None and not self.lengths.is_one and self.packing != "pad_to_window"

    def filling(self, micro_batch_size: Ints) -> Filling:
        """What rows hold on average, of micro-batches of these sizes; whole ones where there are no documents."""
        if self.documents is None:
            ones = np.ones(len(micro_batch_size))
            return Filling(1.0, ones, ones * self.seq_length)
        return filling(self.documents, self.packing, self.seq_length, micro_batch_size)

    def group_shares(self, cp: int) -> GroupShares:
        """Shares of documents on fewer context-parallel ranks than cp, by their number."""
        whole = Lengths((float(self.seq_length),), (1.0,))
        return group_shares(self.documents or whole, self.seq_length, cp)

    @property
    def counted_share(self) -> float:
        """Share of the tokens of full rows that are of documents; the rest is padding or left out."""
        return self.filling(np.ones(1, np.int64)).counted

    @property
    def tokens_per_step(self) -> float:
        """Tokens of documents that one optimizer step consumes, over the whole cluster; padding does not count."""
        return float(self.seq_length) * float(self.global_batch_size) * self.counted_share
