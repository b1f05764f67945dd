"""What the cost model says of a table of candidates: named parts whose total is a property, so they always sum.

Probability that a candidate fits in device memory, from the error of memory projections.

FITS      runs with probability 0.9 or more: what it needs is 6.8 % below the device's memory at a spread of 5.5 %
AT RISK   the projection fits, but the usual error of projections is more than what is left
OOM       the projection alone is more than the device has, cached blocks given back
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from math import erfc, exp, hypot, log
from statistics import NormalDist

import numpy as np

from primus_search.cost.memo import in_order
from primus_search.values.candidates import Bools, Columns, Floats, Ints
from primus_search.values.machine.cluster import Accelerator
from primus_search.values.machine.stack import ErrorBand


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
    def driver(self) -> Floats:
        """What the driver reports in use: everything."""
        return self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Columns):
    """Seconds of one optimizer step on the critical path, per candidate, by what takes them.

    Compute parts are those of the busiest pipeline rank over all micro-batches; `bubble` is the rest of the exact
    pipeline makespan, hops between stages included. Communication parts count only what no compute hides.
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


_ERFC = np.frompyfunc(erfc, 1, 1)


DEVIATIONS_TO_END = 1.6449
"""Standard deviations of a normal distribution from its middle to where 5 % lie beyond."""


def fit_probability(
    memory: Memory, accelerator: Accelerator, margin: float = 0.0, error: ErrorBand | None = None
) -> Floats:
    """Probability that a candidate runs in device memory less `margin` (a share of it).

    error: where measured / projected peaks lie if the software had to be assumed; without it the device's own spread.

    What has to fit is what is allocated plus the context: the allocator gives cached blocks back before it fails. Its
    true value is taken as the projected one times a log-normal factor whose spread is that of measured over projected
    memory on this device.

    Formula: Phi(ln(hbm (1 - margin) / needed) / spread); 0.5 where exactly the whole device is needed. A band adds
    |ln end| / 1.645 to the spread, in squares, by its end on the side where the room lies: its upper end where there is
    room to spare, the lower one where there is too little.
    Valid: residuals of the runs in docs/cost/memory.md; independent errors assumed.
    """
    needed = memory.allocated + memory.context
    room = accelerator.room_bytes(margin)
    distance = np.log(room / needed)
    spread = np.full_like(distance, accelerator.footprint.spread)
    if error is not None:
        end = np.where(distance > 0.0, error.high, error.low)
        spread = np.hypot(spread, np.log(end) / DEVIATIONS_TO_END)
    deviations = distance / spread
    # As SciPy's `ndtr`, whose import takes longer than a search of a hundred thousand candidates.
    result: Floats = 0.5 * _ERFC(-np.sqrt(0.5) * deviations).astype(np.float64)
    return result


FITS, AT_RISK, OUT_OF_MEMORY = "FITS", "AT RISK", "OOM"
FIT_THRESHOLD = 0.9
"""Probability of fitting from which a candidate FITS. Of published runs that ran 3 % lie below it, of configurations
known to run out of memory none above (docs/cost/memory.md)."""


def room_to_fit_bytes(accelerator: Accelerator, error: ErrorBand | None = None) -> float:
    """Bytes below which what is allocated plus the context FITS: `fit_probability` is `FIT_THRESHOLD` there."""
    spread = accelerator.footprint.spread
    if error is not None:
        spread = hypot(spread, log(error.high) / DEVIATIONS_TO_END)
    return accelerator.room_bytes(0.0) * exp(-NormalDist().inv_cdf(FIT_THRESHOLD) * spread)


def fit_verdict(probability: float, headroom_bytes: float, *, is_assumed: bool = False) -> str:
    """FITS, AT RISK or OOM. headroom_bytes: memory left of what the candidate may use, negative if it needs more.

    is_assumed: the software is not known, so that a projection beyond the device is not enough to say OOM: nine in ten
    pieces of software must need more than there is.
    """
    if headroom_bytes < 0.0 and (not is_assumed or probability <= 1.0 - FIT_THRESHOLD):
        return OUT_OF_MEMORY
    return FITS if probability >= FIT_THRESHOLD else AT_RISK
