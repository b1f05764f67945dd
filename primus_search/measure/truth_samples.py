"""What repeated steps of one configuration say of its time, on a machine whose cores have slow spells.

A core of a virtual machine shares its execution units with another guest's: in spells of a tenth of a second to minutes
everything on it takes up to 1.8 times its CPU seconds, and nothing but a longer step tells. Two witnesses do:
- a yardstick, one and the same small product, on each core right before and after the step;
- the CPU seconds of each rank in the step against the least that this rank ever needed for this configuration.

A step that both call calm counts as it is. Of these the lower quartile is taken, as of the layers' measurements: what
still disturbs a calm step only makes it longer, and the least of all is a matter of luck. Where too few steps are calm,
all of them are divided by how much slower the slower rank computed, and the configuration says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from primus_search.measure.timing import CALM_SHARE, NOTCH, SLOW_RATIO, Measurement

FEWEST_CALM = 3
SLOW_STEP = 1.10  # CPU seconds of a rank over its least, beyond which a spell fell into the step
BEST_SHARE = 0.05  # of all yardsticks; below that quantile is luck
TIGHT = 0.02  # half width of the calm steps' 95 % interval at which a configuration needs no more rounds
TIGHT_STEPS, TIGHT_VISITS = 6, 3
QUARTILE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One really trained step.

    cpus_s         of each rank: what other work does not spoil, but blind to waiting
    foreign_share  of the machine's cores, what processes that do not train used meanwhile
    yards_s        CPU seconds of the yardstick on each rank right before or after, whichever took longer
    """

    wall_s: float
    cpus_s: tuple[float, ...]
    foreign_share: float
    yards_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of an undisturbed step; half_width is that of their 95 % interval, as a share; `calm` steps of them."""

    seconds: float
    half_width: float
    calm: int

    @property
    def is_calm(self) -> bool:
        return self.calm >= FEWEST_CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSample:
    """One rank's measurement of one piece, with the yardstick of its core as in `Sample`."""

    measurement: Measurement
    yard_s: float


def best_yard(yards_s: Iterable[float]) -> float:
    """Seconds of the yardstick on a calm core."""
    return float(np.quantile(list(yards_s), BEST_SHARE))


def estimate(samples: Sequence[Sample], yard_s: float) -> Estimate:
    """What a step takes when nothing disturbs it; `yard_s` is the yardstick of a calm core."""
    walls = np.array([sample.wall_s for sample in samples])
    slowness = _slowness(samples)
    yards = np.array([max(sample.yards_s) for sample in samples])
    foreign = np.array([sample.foreign_share for sample in samples])
    is_calm = (slowness <= SLOW_STEP) & (yards <= yard_s * SLOW_RATIO) & (foreign <= CALM_SHARE)
    calm = int(is_calm.sum())
    counted = walls[is_calm] if calm >= FEWEST_CALM else walls / slowness
    low, middle, high = np.quantile(counted, (QUARTILE, 0.5, 1.0 - QUARTILE))
    half_width = NOTCH * (high - low) / np.sqrt(len(counted)) / middle
    return Estimate(seconds=float(low), half_width=float(half_width), calm=calm)


def _slowness(samples: Sequence[Sample]) -> np.ndarray:
    """CPU seconds over the same rank's least, of the rank where that is more."""
    cpus = np.array([sample.cpus_s for sample in samples])
    ratios: np.ndarray = (cpus / cpus.min(axis=0)).max(axis=1)
    return ratios


def is_tight(visits: Sequence[Sequence[Sample]], yard_s: float) -> bool:
    """Whether more visits would tell little more."""
    if len(visits) < TIGHT_VISITS:
        return False
    found = estimate([sample for visit in visits for sample in visit], yard_s)
    return found.calm >= TIGHT_STEPS and found.half_width <= TIGHT


def samples_of(values: Sequence[dict[str, Any]], cores: int) -> list[Sample]:
    """The timed steps of one job from what its ranks say: the slower one's wall seconds."""
    names = ("walls_s", "cpus_s", "machine_s", "yards_s")
    found = []
    for by_rank in zip(*(zip(*(v[name] for name in names), strict=True) for v in values), strict=True):
        walls, cpus, machine, yards = zip(*by_rank, strict=True)
        foreign_s = max(float(np.median(machine)) - sum(cpus), 0.0)
        share = foreign_s / (max(walls) * cores)
        found.append(Sample(wall_s=max(walls), cpus_s=cpus, foreign_share=share, yards_s=yards))
    return found


def undisturbed_piece(samples: Sequence[PieceSample], yard_s: float) -> dict[str, float]:
    """Seconds of each pass of a piece: the lower quartile over calm measurements, or over all where none was calm."""
    calm = [sample for sample in samples if sample.yard_s <= yard_s * SLOW_RATIO] or list(samples)
    found: dict[str, float] = lower_quartile([sample.measurement.seconds for sample in calm])
    return found


def lower_quartile(trees: Sequence[Any]) -> Any:
    """The element-wise lower quartile of equal trees of numbers."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: lower_quartile([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list):
        return [lower_quartile(list(column)) for column in zip(*trees, strict=True)]
    return float(np.quantile(trees, QUARTILE))
