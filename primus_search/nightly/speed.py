"""How fast candidates are projected, as a ratio to a fixed NumPy workload timed in the same run.

Machines differ and share their cores; the ratio of two processor times taken turn by turn moves far less.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from primus_search.cost.project import Projector
from primus_search.nightly.sweep import SpeedCheck
from primus_search.space import Enumerator
from primus_search.values.candidates import Candidates

TURNS = 3
REFERENCE_VALUES = 400_000


def speed_ratio(check: SpeedCheck) -> float:
    """Projections per processor second over passes of the reference workload per processor second; median of turns."""
    space = check.space
    enumerator = Enumerator(space, space.clusters[0])
    size = min(enumerator.size, check.rows)
    stride = max(enumerator.size // size, 1)
    candidates = enumerator.rows(np.arange(size, dtype=np.int64) * stride)
    values = np.random.default_rng(0).random(REFERENCE_VALUES)
    project, reference = _projection(check, candidates), _reference(values)
    project()  # the first call compiles and fills caches that every later one finds
    return statistics.median(len(candidates) * _seconds(reference) / _seconds(project) for _ in range(TURNS))


def _projection(check: SpeedCheck, candidates: Candidates) -> Callable[[], object]:
    space = check.space
    return lambda: Projector(space.job_on(space.clusters[0])).project(candidates)


def _reference(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Callable[[], object]:
    """Sorting, arithmetic, gathering and summing: what the cost model itself is made of."""

    def once() -> float:
        order = np.argsort(values)
        scaled = np.exp(-values) * np.sqrt(values) + np.maximum(values, 0.5)
        return float(np.cumsum(scaled[order])[-1])

    return once


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return max(time.process_time() - started, 1e-6)
