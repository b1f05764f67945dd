"""The numbers of a software stack that runs of a site may move, and vectorised projections that move them.

A coordinate is the logarithm of a rate or a time, the plain value of a share; numbers move in coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.field_paths import with_column
from primus_search.cost.project import Projector
from primus_search.runs.learn import logs
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.machine.stack import GROUP_OF, Stack, number_of, with_numbers

STEP = 0.03
"""Step of the one-sided differences, in coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedNumber:
    """One number of a stack or device by its field, with its bounds; a share is moved as it is, not its logarithm."""

    field: str
    low: float
    high: float
    is_share: bool = False

    def coordinate(self, value: float) -> float:
        """The value as it is moved; a time of 0 from its lower bound, whose logarithm exists."""
        return value if self.is_share else float(np.log(max(value, self.low)))

    def value(self, coordinate: float) -> float:
        """The value at a coordinate, inside the bounds."""
        raw = coordinate if self.is_share else float(np.exp(coordinate))
        return float(np.clip(raw, self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNumber(BoundedNumber):
    """One number that runs of a site may move, and whether all such numbers share a common factor.

    speed   +1 where a larger value is a faster software, -1 where it is a slower one, 0: not part of the factor
    """

    speed: int = 0


def _site_number(field: str, low: float, high: float, share: bool = False, speed: int = 0) -> SiteNumber:
    return SiteNumber(field=field, low=low, high=high, is_share=share, speed=speed)


NUMBERS = tuple(_site_number(field, **row) for field, row in logs.table("software")["numbers"].items())
"""Numbers of the software alone: the device's own rates are held."""


def coordinates(stack: Stack) -> Floats:
    """The numbers of a stack as coordinates, in the order of `NUMBERS`."""
    return np.array([n.coordinate(float(number_of(stack, n.field))) for n in NUMBERS])


def bounds() -> tuple[Floats, Floats]:
    """Lowest and highest coordinate of every number."""
    return np.array([n.coordinate(n.low) for n in NUMBERS]), np.array([n.coordinate(n.high) for n in NUMBERS])


def at(stack: Stack, x: Floats) -> Stack:
    """The stack with its numbers at coordinates, inside their bounds."""
    return with_numbers(stack, {n.field: n.value(float(c)) for n, c in zip(NUMBERS, x, strict=True)})


def rates_and_slopes(job: Job, stacks: Sequence[Stack], table: Candidates) -> list[tuple[Floats, Floats]]:
    """log(tokens/s/GPU) of every candidate of a job and its slope by every number, (rows,) and (rows, numbers), per
    stack; the stacks differ in numbers alone.

    One projection: every candidate stands in it for each stack, once as it is and once per number moved by `STEP`.
    """
    num, rows = len(NUMBERS), len(table)
    x = np.array([coordinates(stack) for stack in stacks])
    values = np.repeat(x[:, None, :], num + 1, axis=1)
    for j, number in enumerate(NUMBERS):
        fits = (x[:, j] + STEP <= number.high) | (not number.is_share)
        values[:, j + 1, j] += np.where(fits, STEP, -STEP)
    deltas = (values[:, 1:] - x[:, None, :]).diagonal(axis1=1, axis2=2)
    columns: dict[str, ArrayLike] = {
        number.field: np.repeat(_raw(number, values[:, :, j]).reshape(-1), rows) for j, number in enumerate(NUMBERS)
    }
    every = table.take(np.tile(np.arange(rows), len(stacks) * (num + 1)))
    stack = stacks[0]
    for field, column in columns.items():
        stack = with_column(stack, (GROUP_OF[field], field), column)
    cluster = replace(job.cluster, stack=stack)
    step = Projector(replace(job, cluster=cluster), shares_rows=False).step(every)
    logs = np.log(job.workload.tokens_per_step / np.asarray(step.total) / job.cluster.world)
    logs = logs.reshape(len(stacks), num + 1, rows)
    slopes = (logs[:, 1:] - logs[:, :1]) / deltas[:, :, None]
    return [(log[0], slope.T) for log, slope in zip(logs, slopes, strict=True)]


def without_numbers(stack: Stack) -> Stack:
    """What a stack is apart from its numbers: equal for stacks that differ in numbers, name and bands alone."""
    return replace(at(stack, np.zeros(len(NUMBERS))), name="", errors={}, is_assumed=False)


def _raw(number: SiteNumber, coordinates: Floats) -> Floats:
    return coordinates if number.is_share else np.exp(coordinates)
