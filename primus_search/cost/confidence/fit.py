"""Probability that a candidate fits in device memory, from the error of memory projections, and the verdict on it.

FITS      runs with probability 0.9 or more: what it needs is 6.8 % below the device's memory at a spread of 5.5 %
AT RISK   the projection fits, but the usual error of projections is more than what is left
OOM       the projection alone is more than the device has, cached blocks given back
"""

from math import erfc, exp, hypot, log
from statistics import NormalDist

import numpy as np

from primus_search.cost.projection import Memory
from primus_search.values.candidates import Floats
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.stack import ErrorBand

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
