"""How surely a candidate fits: projections of memory have an error, and near the limit it decides.

FITS      runs with probability 0.9 or more: what it needs is 6.8 % below the device's memory at a spread of 5.5 %
AT RISK   the projection fits, but the usual error of projections is more than what is left
OOM       the projection alone is more than the device has, cached blocks given back
"""

from math import erfc

import numpy as np

from primus_search.accelerator import Accelerator
from primus_search.candidates import Floats
from primus_search.cost.result import Memory

_ERFC = np.frompyfunc(erfc, 1, 1)


def fit_probability(memory: Memory, accelerator: Accelerator, margin: float = 0.0) -> Floats:
    """Probability that a candidate runs in device memory less `margin` (a share of it).

    What has to fit is what is allocated plus the context: the allocator gives cached blocks back before it fails. Its
    true value is taken as the projected one times a log-normal factor whose spread is that of measured over projected
    memory on this device.

    Formula: Phi(ln(hbm (1 - margin) / needed) / spread); 0.5 where exactly the whole device is needed.
    Valid: residuals of the runs in docs/cost/memory.md; independent errors assumed.
    """
    needed = memory.allocated + memory.context
    room = accelerator.hbm_bytes * (1.0 - margin)
    deviations = np.log(room / needed) / accelerator.footprint.spread
    # As SciPy's `ndtr`, whose import takes longer than a search of a hundred thousand candidates.
    probability: Floats = 0.5 * _ERFC(-np.sqrt(0.5) * deviations).astype(np.float64)
    return probability


FITS, AT_RISK, OUT_OF_MEMORY = "FITS", "AT RISK", "OOM"
SURELY = 0.9
"""Probability of fitting from which a candidate FITS. Of published runs that ran 3 % lie below it, of configurations
known to run out of memory none above (docs/cost/memory.md)."""


def fit_verdict(probability: float, headroom_bytes: float) -> str:
    """FITS, AT RISK or OOM. headroom_bytes: memory left of what the candidate may use, negative if it needs more."""
    if headroom_bytes < 0.0:
        return OUT_OF_MEMORY
    return FITS if probability >= SURELY else AT_RISK
