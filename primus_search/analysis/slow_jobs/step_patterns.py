"""Patterns in the step times of a log: stalls, periodic or not, a drift, a change of level, a wide spread.

A line is a stall where it takes longer than the median of its neighbours by more than `STALL_SIGMAS` robust deviations
and by more than `STALL`; the first lines behind the warm-up and a single stall are none. Without stalls, a rise over
the log is a drift or a change of level, whichever leaves the smaller squares; both are larger than `RISE` and than
`RISE_SIGMAS` errors of the medians compared. What is left is noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from primus_search.learning.reading import MAD_TO_SIGMA, StepLine, after_warm_up
from primus_search.values.candidates import Bools, Floats, Ints

FEWEST_LINES = 12
"""Lines behind the warm-up below which nothing is said of patterns."""
NEIGHBOURS = 15
"""Lines whose median a line is compared with."""
LATE_WARM_UP = 5
"""Lines behind the warm-up whose stalls still belong to it."""
STALL, STALL_SIGMAS = 0.12, 6.0
RISE, RISE_SIGMAS = 0.03, 4.0
NOISE = 0.03
"""Robust relative deviation from which on step times are noisy: identical runs of one job differ by 0.02."""
LEAST_COST = 0.01
"""Share of the time from which on a pattern is a cause."""
PERIOD_SLACK, FEWEST_STALLS, REGULAR = 0.15, 3, 0.75
"""Stalls are periodic where this share of their distances, of at least so many stalls, is a multiple of the median one
within the slack."""


class PatternKind(StrEnum):
    """What step times show."""

    PERIODIC = "periodic stall"
    STALLS = "irregular stalls"
    DRIFT = "drift"
    SHIFT = "change of level"
    NOISE = "wide spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One pattern: the share of the time that it costs, where it begins, its period if any, seconds of one stall."""

    kind: PatternKind
    cost: float
    iteration: int
    period: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """In words: `every 50 iterations one takes 3.1 s more: 4.2% of the time`."""
        cost = f"{self.cost:.1%} of the time"
        return {
            PatternKind.PERIODIC: f"every {self.period:,} iterations one takes {self.seconds:.3g} s more: {cost}",
            PatternKind.STALLS: f"single iterations take {self.seconds:.3g} s more, in no rhythm: {cost}",
            PatternKind.DRIFT: f"iterations get slower from the first to the last: {cost}",
            PatternKind.SHIFT: f"from iteration {self.iteration:,} on all take {self.seconds:.3g} s more: {cost}",
            PatternKind.NOISE: f"iterations differ by {self.cost:.1%} from one to the next",
        }[self.kind]


def patterns(lines: Sequence[StepLine]) -> tuple[Pattern, ...]:
    """The patterns of a log's step times, the dearest first; () where there is none, or too few lines."""
    kept = after_warm_up([line for line in lines if line.seconds > 0.0])
    kept = [line for line in kept if line.shape == kept[-1].shape]
    if len(kept) < FEWEST_LINES:
        return ()
    seconds = np.array([line.seconds for line in kept])
    iterations = np.array([line.iteration for line in kept], dtype=np.int64)
    near = _near(seconds)
    excess = seconds / near - 1.0
    sigma = float(MAD_TO_SIGMA * np.median(np.abs(excess - np.median(excess))))
    is_stall = excess > max(STALL, STALL_SIGMAS * sigma)
    is_counted = is_stall & (np.arange(len(seconds)) >= LATE_WARM_UP)
    found = [_stalls(seconds, near, iterations, is_counted)] if is_counted.sum() > 1 else []
    rise = _rise(seconds[~is_stall], iterations[~is_stall], sigma)
    found += [] if rise is None else [rise]
    known = [one for one in found if one.cost >= LEAST_COST]
    if sigma > NOISE:
        known.append(Pattern(kind=PatternKind.NOISE, cost=sigma, iteration=int(iterations[0])))
    return tuple(sorted(known, key=lambda one: -one.cost))


def _near(seconds: Floats) -> Floats:
    """The median of the neighbours of every line."""
    half = min(NEIGHBOURS, len(seconds)) // 2
    places = range(len(seconds))
    return np.array([np.median(seconds[max(0, p - half) : p + half + 1]) for p in places])


def _stalls(seconds: Floats, near: Floats, iterations: Ints, where: Bools) -> Pattern:
    """What the stalls cost, and whether they come in a rhythm."""
    more, at = (seconds - near)[where], iterations[where]
    steps = np.diff(at)
    period = int(np.median(steps)) if len(at) >= FEWEST_STALLS else 0
    multiples = steps / period if period else np.zeros(0)
    is_regular = np.abs(multiples - np.round(multiples)) <= PERIOD_SLACK * np.maximum(multiples, 1.0)
    is_periodic = period > 1 and bool((is_regular & (multiples > 0.5)).mean() >= REGULAR) and _is_even(steps, period)
    return Pattern(
        kind=PatternKind.PERIODIC if is_periodic else PatternKind.STALLS,
        cost=float(more.sum() / seconds.sum()),
        iteration=int(at[0]),
        period=period if is_periodic else 0,
        seconds=float(np.median(more)),
    )


def _is_even(steps: Ints, period: int) -> bool:
    """Whether most distances are the period itself, within its slack: multiples of a short one always fit."""
    return bool((np.abs(steps - period) <= max(1.0, PERIOD_SLACK * period)).mean() >= 0.6)


def _rise(seconds: Floats, iterations: Ints, sigma: float) -> Pattern | None:
    """A drift or a change of level of the lines without stalls; None where they keep their level."""
    size = len(seconds)
    if size < FEWEST_LINES:
        return None
    least = max(3, size // 10)
    splits = range(least, size - least + 1)
    squares = [float(np.var(seconds[:p]) * p + np.var(seconds[p:]) * (size - p)) for p in splits]
    place = splits[int(np.argmin(squares))]
    before, after = float(np.median(seconds[:place])), float(np.median(seconds[place:]))
    ends = [float(np.median(part)) for part in (seconds[: size // 4], seconds[-(size // 4) :])]
    rise = max(after - before, ends[1] - ends[0])
    least_rise = max(RISE, RISE_SIGMAS * sigma / np.sqrt(size / 4.0)) * before
    if rise < least_rise:
        return None
    positions = np.arange(size, dtype=np.float64)
    line = np.polyfit(positions, seconds, 1)
    is_drift = float(((seconds - np.polyval(line, positions)) ** 2).sum()) < min(squares)
    base = min(ends[0], before)
    return Pattern(
        kind=PatternKind.DRIFT if is_drift else PatternKind.SHIFT,
        cost=float((seconds - base).sum() / seconds.sum()),
        iteration=int(iterations[0 if is_drift else place]),
        seconds=rise,
    )
