"""How good a sampler is: run it where the truth is known, a part of the same space that can be walked entirely."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from primus_search.exploration.exhaustive.collect import Budget, Collected
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import OPEN, ShortlistRows, dominated_area
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.result import SamplerCheck
from primus_search.space import Axis, Enumerator, Space
from primus_search.space.nearest import Nearest
from primus_search.values.candidates import Floats
from primus_search.values.knobs import KNOBS

CHECK_ROWS = 30_000
"""Legal rows of the part that is walked; about a second."""

CHECK_SHARE = 10
"""The sampler may look at one in this many of them."""

FREED_FIRST = tuple(knob.name for knob in sorted(KNOBS, key=lambda knob: knob.freed) if knob.freed)
NADIR_MARGIN = 0.1
"""The reference point of a hypervolume lies this share of the frontier's range beyond its worst ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Collected):
    """What a sampler found, and the best (cluster, number).

    evaluations  candidates projected, each once     legal  of the whole space
    """

    evaluations: int
    legal: int
    best: tuple[int, int] | None


RunSampler = Callable[[Funnel, str, Budget, int], Sampled]


def check_sampler(funnel: Funnel, best: tuple[int, int], method: str, seed: int, run: RunSampler) -> SamplerCheck:
    """Regret and hypervolume of the sampler on the largest part around `best` that is small enough to walk."""
    part = Funnel(sub_space(funnel, best), funnel.keep)
    size = part.enumerators[0].size
    truth = part.evaluate(Task(number=0, cluster=0, start=0, stop=size), OPEN).shortlist
    sampled = run(part, method, Budget(candidates=max(size // CHECK_SHARE, 1)), seed)
    found = sampled.findings[0].shortlist
    return SamplerCheck(
        rows=size,
        evaluations=sampled.evaluations,
        regret=regret(_expected(part, found.top), _expected(part, truth.top)),
        hypervolume=hypervolume_share(found.frontier, truth.frontier),
    )


def _expected(funnel: Funnel, rows: ShortlistRows) -> ShortlistRows:
    """Rows with their expected step in place of the projected one."""
    if not len(rows):
        return rows
    shares = expected_shares(funnel.projectors[0], funnel.enumerators[0].rows(rows.indices), rows.step_s)
    return replace(rows, step_s=rows.step_s / shares)


def sub_space(funnel: Funnel, best: tuple[int, int]) -> Space:
    """The space with every axis fixed at the best row's value, axes freed one by one while it stays small."""
    space, (cluster, number) = funnel.space, best
    at = Nearest(funnel.enumerators[cluster]).positions(np.array([number]))
    fixed = {axis.name: Axis(name=axis.name, values=(axis.values[int(at[axis.name][0])],)) for axis in space.axes}
    part = replace(space.on(space.clusters[cluster]), axes=tuple(fixed[axis.name] for axis in space.axes))
    order = [*FREED_FIRST, *(axis.name for axis in space.axes if axis.name not in FREED_FIRST)]
    for name in order:
        freed = replace(part, axes=tuple(space.axis(name) if axis.name == name else axis for axis in part.axes))
        if Enumerator(freed).size <= CHECK_ROWS:
            part = freed
    return part


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
        dominated_area(rows.memory_bytes, 1.0 / rows.step_s, worst_memory, worst_speed) for rows in (found, truth)
    )
    return found_area / whole if whole > 0 else 1.0


def _beyond(figures: Floats, sign: float) -> float:
    low, high = float(figures.min()), float(figures.max())
    end = high if sign > 0 else low
    return end + sign * max(NADIR_MARGIN * (high - low), 1e-3 * abs(end))
