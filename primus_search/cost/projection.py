"""Projections of a table of candidates: named parts whose total is a property, so they always sum."""

from dataclasses import dataclass, fields
from enum import IntEnum

from primus_search.space.memo import in_order
from primus_search.values.candidates import Bools, Columns, Floats, Ints
from primus_search.values.measured_run import PeakKind


class Verdict(IntEnum):
    """Why a row is feasible or not."""

    FITS = 0
    HBM = 1  # the worst pipeline rank needs more than the device has, less the margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Columns):
    """Bytes on the worst pipeline rank at the worst moment of the step, per candidate, by what holds them.

    weights, gradients, optimizer  as sharded, in the number formats the framework keeps
    activations          what waits for backward, over all micro-batches in flight on the rank
    recompute_workspace  what one recomputed layer (or group of layers) brings back while its backward runs
    logits               logits, their upcasts and gradients while head and loss run
    workspace            gradients of activations and of weights in flight, gathered sequences, GEMM workspaces
    expert_buffers       DeepEP communication buffers
    collective_buffers   gathered weights and unreduced gradients of FSDP, pipeline and context-parallel buffers
    allocator_slack      reserved by the caching allocator but not allocated at the worst moment
    context              device context, communicators: what the driver sees and the allocator does not

    Three views that published figures mix up: `allocated` (torch max_memory_allocated), `reserved`
    (max_memory_reserved) and `driver` (what rocm-smi or nvidia-smi show), which is the total and what has to fit.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    recompute_workspace: Floats
    logits: Floats
    workspace: Floats
    expert_buffers: Floats
    collective_buffers: Floats
    context: Floats
    allocator_slack: Floats

    @property
    def total(self) -> Floats:
        return _sum(self)

    @property
    def reserved(self) -> Floats:
        """What the framework's allocator has taken from the driver (torch max_memory_reserved)."""
        return self.total - self.context

    @property
    def allocated(self) -> Floats:
        """What tensors occupy at the worst moment (torch max_memory_allocated)."""
        return self.reserved - self.allocator_slack

    @property
    def needed(self) -> Floats:
        """What has to fit: the allocator gives cached blocks back before it fails."""
        return self.allocated + self.context

    @property
    def driver(self) -> Floats:
        """What the driver reports in use: everything."""
        return self.total

    def counted(self, kind: PeakKind) -> Floats:
        """Bytes as peaks of a kind count them.

        Buffers of DeepEP are no allocator's: it takes them from the driver (deepseek-ai/DeepEP csrc/deep_ep.cpp).
        """
        if kind == "driver":
            return self.driver
        return (self.reserved if kind == "reserved" else self.allocated) - self.expert_buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Columns):
    """Seconds of one optimizer step on the critical path, per candidate, by what takes them.

    Compute parts are those of the busiest pipeline rank over all micro-batches; `bubble` is the rest of the exact
    pipeline makespan, hops between stages included. Communication parts count only what no compute hides.
    `imbalance` is what replicas and stages wait for longer rows of others, where lengths of documents differ.
    `log_probs` are passes without training, `critic` is all that a second trained model takes, `rollout` as given.
    `overhead` is the stack's fixed time per step; `stragglers` is what waiting for the slowest of many nodes adds.
    """

    attention: Floats
    mlp: Floats
    experts: Floats
    routing: Floats
    norms: Floats
    embedding_and_head: Floats
    tower: Floats
    recompute: Floats
    launch: Floats
    tensor_comm: Floats
    context_comm: Floats
    expert_comm: Floats
    shard_comm: Floats
    host_copies: Floats
    bubble: Floats
    imbalance: Floats
    log_probs: Floats
    critic: Floats
    rollout: Floats
    gradient_comm: Floats
    optimizer: Floats
    overhead: Floats
    stragglers: Floats

    @property
    def total(self) -> Floats:
        return _sum(self)


def _sum(parts: Memory | Step) -> Floats:
    return in_order(parts.__getattribute__(f.name) for f in fields(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Columns):
    """Memory and step of every candidate, and whether it fits. A row that does not fit is still a row.

    microbatches   per pipeline and step           world             devices
    tokens_per_step, flops_per_token, peak_flops_per_s  scalars that turn seconds into rates
    """

    memory: Memory
    step: Step
    verdict: Ints
    headroom_bytes: Floats
    microbatches: Ints
    dp: Ints
    world: int
    tokens_per_step: float
    flops_per_token: float
    peak_flops_per_s: float

    @property
    def fits(self) -> Bools:
        mask: Bools = self.verdict == Verdict.FITS
        return mask

    @property
    def tokens_per_s(self) -> Floats:
        return self.tokens_per_step / self.step.total

    @property
    def tokens_per_s_per_gpu(self) -> Floats:
        return self.tokens_per_s / self.world

    @property
    def mfu(self) -> Floats:
        """Model FLOPs (causal, no recompute) over the BF16 dense peak, whatever the precision of the candidate."""
        return self.tokens_per_s_per_gpu * self.flops_per_token / self.peak_flops_per_s

    @property
    def bubble_ratio(self) -> Floats:
        """Pipeline bubble over pipeline makespan (the step without optimizer and exposed gradient traffic)."""
        after = self.step.optimizer + self.step.gradient_comm + self.step.overhead + self.step.stragglers
        pipeline = self.step.total - after
        return self.step.bubble / pipeline
