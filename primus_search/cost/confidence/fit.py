"""Probability that candidates run in device memory, and the verdict on it: of searches, projections, published runs.

FITS      runs with probability 0.9 or more: what it needs is 6.8 % below the device's memory at a spread of 5.5 %
AT RISK   the usual error of projections is more than the room that is left or, of doubtful software, what is missing
OOM       the projection alone is more than the device has, cached blocks given back
"""

from math import erfc

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.confidence.uncertainty import is_doubtful, memory_error
from primus_search.cost.projection import Memory
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.knobs import CudaGraph

FITS, AT_RISK, OUT_OF_MEMORY = "FITS", "AT RISK", "OOM"

FIT_THRESHOLD = 0.9
"""Probability of fitting from which a candidate FITS. Of published runs that ran 3 % lie below it, of configurations
known to run out of memory none above (docs/cost/memory.md)."""

DEVIATIONS_TO_END = 1.6449
"""Standard deviations of a normal distribution from its middle to where 5 % lie beyond."""

WHOLE_LOGITS = 0.2
"""Probability that software which no stack file describes computes its loss on the logits of the whole vocabulary on
every tensor-parallel rank: one of eight publishers of such runs, (1 + 1) / (8 + 2), 2026-11-23."""

WHOLE_LOGIT_BYTES = 18.0
"""Bytes per logit of such a loss: BF16 logits, their gathered copy, FP32 copy, softmax and gradients. Of 257
configurations of arXiv:2311.05610 that ran out 38 would be said to fit without it; all but 33, 21 and 6 of these need
more than the device has with 10, 14 and 18 bytes, of 165 that ran all but 133, 133 and 131, 2026-11-23."""

_ERFC = np.frompyfunc(erfc, 1, 1)


def fit_probability(job: Job, c: Candidates, memory: Memory) -> Floats:
    """Probability of every candidate that it runs in device memory.

    Software that no stack file describes may keep the logits of the whole vocabulary: its probability is the mean over
    both losses.
    """
    return _of_needed(job, c, memory.needed)


def _of_needed(job: Job, c: Candidates, needed_bytes: Floats) -> Floats:
    found = _within(job, c, needed_bytes)
    if not job.stack.is_assumed:
        return found
    return (1.0 - WHOLE_LOGITS) * found + WHOLE_LOGITS * _within(job, c, needed_bytes + _whole_logits_bytes(job, c))


def graph_spread(job: Job, c: Candidates) -> Floats:
    """What a graph of the whole iteration of experts adds to the spread: the residual of the one published pair."""
    is_whole = (job.model.moe is not None) & (c.graph_scope(job.stack.host.cuda_graph) == CudaGraph.FULL)
    return np.asarray(is_whole * job.stack.memory.whole_graph_spread)


def _within(job: Job, c: Candidates, needed_bytes: Floats) -> Floats:
    """Probability that so many projected bytes are within the device's memory.

    The true value is taken as the projected one times a log-normal factor whose spread is that of measured over
    projected memory on this device.

    Formula: Phi(ln(hbm / needed) / spread); 0.5 where exactly the whole device is needed. The band of doubtful software
    adds |ln end| / 1.645 to the spread, in squares, by its end on the side where the room lies: its upper end where
    there is room to spare, the lower one where there is too little. `graph_spread` is added likewise.
    Valid: residuals of the runs in docs/cost/memory.md; independent errors assumed.
    """
    distance = np.log(job.room_bytes() / needed_bytes)
    spread = np.hypot(job.accelerator.footprint.spread, graph_spread(job, c))
    error = memory_error(job.cluster, job.model)
    if error is not None:
        end = np.where(distance > 0.0, error.high, error.low)
        spread = np.hypot(spread, np.log(end) / DEVIATIONS_TO_END)
    # As SciPy's `ndtr`, whose import takes longer than a search of a hundred thousand candidates.
    result: Floats = 0.5 * _ERFC(-np.sqrt(0.5) * distance / spread).astype(np.float64)
    return result


def _whole_logits_bytes(job: Job, c: Candidates) -> Floats:
    """Bytes of logits of the whole vocabulary beyond the share of them that is projected."""
    tokens = c.micro_batch_size * job.workload.seq_length / c.cp
    own = job.stack.memory.unfused_logit_bytes / c.tp
    return np.asarray(tokens * job.model.vocab_size * np.maximum(WHOLE_LOGIT_BYTES - own, 0.0), np.float64)


def room_to_fit_bytes(job: Job, c: Candidates, margin: float = 0.0) -> Floats:
    """Bytes up to which what a candidate needs (`Memory.needed`) FITS with a share `margin` of the device left free."""
    low, high = np.ones(len(c)), np.full(len(c), job.room_bytes(margin))
    while np.any(high - low > 1.0):
        middle = 0.5 * (low + high)
        fits = _of_needed(job, c, middle) >= FIT_THRESHOLD
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def fit_verdict(job: Job, probability: Floats, headroom_bytes: Floats) -> NDArray[np.str_]:
    """FITS, AT RISK or OOM of every candidate. headroom_bytes: memory left, negative where there is too little.

    Of doubtful software a projection beyond the device is not enough for OOM: with a probability of nine in ten it must
    need more than there is.
    """
    is_out = (headroom_bytes < 0.0) & ~(is_doubtful(job.stack, job.model) & (probability > 1.0 - FIT_THRESHOLD))
    is_fit = (headroom_bytes >= 0.0) & (probability >= FIT_THRESHOLD)
    return np.where(is_out, OUT_OF_MEMORY, np.where(is_fit, FITS, AT_RISK))
