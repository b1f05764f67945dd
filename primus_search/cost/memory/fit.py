"""How surely a candidate fits: projections of memory have an error, and near the limit it decides."""

import numpy as np

from primus_search.accelerator import Accelerator
from primus_search.candidates import Floats
from primus_search.cost.result import Memory


def fit_probability(memory: Memory, accelerator: Accelerator, margin: float = 0.0) -> Floats:
    """Probability that a candidate runs in device memory less `margin` (a share of it).

    What has to fit is what is allocated plus the context: the allocator gives cached blocks back before it fails. Its
    true value is taken as the projected one times a log-normal factor whose spread is that of measured over projected
    memory on this device.

    Formula: Phi(ln(hbm (1 - margin) / needed) / spread); 0.5 where exactly the whole device is needed.
    Valid: residuals of the runs in docs/cost/memory.md; independent errors assumed.
    """
    from scipy.special import ndtr

    needed = memory.allocated + memory.context
    room = accelerator.hbm_bytes * (1.0 - margin)
    probability: Floats = ndtr(np.log(room / needed) / accelerator.footprint.spread)
    return probability
