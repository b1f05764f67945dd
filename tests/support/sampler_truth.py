"""How far what a sampler found is from the truth of a space that was walked entirely."""

import numpy as np

from primus_search.exploration.exhaustive.shortlist import ShortlistRows, dominated_area
from primus_search.values.candidates import Floats

NADIR_MARGIN = 0.1
"""The reference point of a hypervolume lies this share of the frontier's range beyond its worst ends."""


def regret(found: ShortlistRows, truth: ShortlistRows) -> float:
    """Share of throughput that the best row found misses; 1 when nothing was found."""
    if not len(found) or not len(truth):
        return 0.0 if not len(truth) else 1.0
    return 1.0 - float(truth.step_s.min() / found.step_s.min())


def hypervolume_share(found: ShortlistRows, truth: ShortlistRows) -> float:
    """Area of (memory, throughput) that the found frontier dominates over that of the true one."""
    if not len(truth):
        return 1.0
    worst_memory = _beyond(truth.memory_bytes, 1.0)
    worst_speed = _beyond(1.0 / truth.step_s, -1.0)
    found_area, whole = (
        dominated_area(rows.memory_bytes, np.maximum(1.0 / rows.step_s - worst_speed, 0.0), worst_memory)
        for rows in (found, truth)
    )
    return found_area / whole if whole > 0 else 1.0


def _beyond(figures: Floats, sign: float) -> float:
    low, high = float(figures.min()), float(figures.max())
    end = high if sign > 0 else low
    return end + sign * max(NADIR_MARGIN * (high - low), 1e-3 * abs(end))
