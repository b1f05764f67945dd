"""What unknown software may be: every shipped stack with its habits, and some habits that no shipped stack has.

A hypothesis is a stack's habits (kernels, fusions, what it keeps) and a Gaussian around its numbers. Its prior weight
comes from what names the software: a framework's own stacks before others of its kind, those before the rest; and from
the devices that the stack was measured on: software of 2021 does not run on a GPU of 2025.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.field_paths import with_column
from primus_search.cost.project import Projector
from primus_search.files.hardware_files import load_stack
from primus_search.files.search_path import FileKind, shipped
from primus_search.learning.logs import table
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.machine.stack import GROUP_OF, Stack, number_of, with_numbers
from primus_search.values.model import Model

NOT_SOFTWARE = ("host", "torch_eager")
"""Stack files of this machine's own measurements: no training framework."""

SPREAD = 1.7
"""Standard deviation of a number around its hypothesis, in those of the shipped stacks among each other: unknown
software lies further out than described one. This and the constants below: leave-one-stack-out over 21 stacks,
2026-11-22, tests/bench/learned_stacks.py."""

LEAST_SPREAD = 0.03
"""Smallest spread of a number among stacks, in coordinates: several files share one value."""

COMMON_SPREAD = 0.1
"""Standard deviation of a factor common to all rates and host times, as a logarithm. With 0.14 one run that is off
moves the others of a publisher who was met well too far (docs/dev/learning_log.md, 2026-11-28)."""

HELD = 0.1
"""Deviation of the numbers of a hypothesis of one factor, over that of the same hypothesis with free numbers: of 12
publishers the median error of the mixture after 1, 3 and 5 own runs is 11.6, 8.5 and 6.4 % with such hypotheses and
`MOE_FACTOR` against 12.3, 8.7 and 6.7 % without both, 2026-11-24; one factor alone has 12.7, 10.0 and 7.8 %. Chosen on
these publishers."""

OTHER_KIND = -2.0
"""Log-prior of a stack of the other kind: sharded weights (FSDP) where the software is Megatron-like, or not."""

SUGGESTED = 3.0
"""Log-prior of the stack that the words and the configuration of runs point to, over any other of its kind. The
mixture's log-density of a run left out, after 1, 3 and 5 others of 12 publishers (`python -m tools.fit own-runs`), is
0.35, 0.46 and 0.73 against 0.32, 0.47 and 0.72 with 1, 2026-11-24."""

OWN_FRAMEWORK = 1.0
"""Log-prior of the stacks that are a framework's own releases."""

_SOFTWARE = table("software")
INTRODUCED: Mapping[str, int] = _SOFTWARE["introduced"]
"""Year in which the vendor announced the first device of an architecture."""

OLDER_PER_YEAR, NEWER_PER_YEAR = -0.5, -0.3
"""Log-prior per year between the newest device that a stack was measured on and the newest one of the site."""

AMD, OTHER_VENDOR = "gfx", -0.75
"""How AMD's architectures begin, and the log-prior of a stack that was measured on the other vendor's devices alone."""

BEFORE_MODEL = -1.5
"""Log-prior per year that a stack, by the year in its name, is older than the first models with such parts. With this
and `OTHER_VENDOR` the mixture over stacks is 11.3 instead of 13.1 % off, mean over nine publishers' medians, in both
halves of them, 2026-11-24; -1 and -3 are within 0.3."""

NEVER_MEASURED = -2.0
"""Log-prior of a stack whose file rests on no measured rate."""

RACE_POWER = 3.0
"""`host_race_power` of every hypothesis whose stack has none: that of the stacks that give one. Without it a rate does
not depend on the host's time per launch where the device is slower, and no run could teach it."""

HOST_LAUNCH_SPREAD = 0.5
"""Standard deviation of the logarithm of the host's time per launch: most files share one value, whose spread among
files says nothing."""

SLOW_LAUNCH_S = 40e-6
"""Host time per launch of software that nobody optimised for it, three times that of the shipped files: eager PyTorch
with hooks around each module."""

UNUSUAL = -2.0
"""Log-prior of a habit that no shipped stack has."""

UNFUSED: Sequence[str] = _SOFTWARE["unfused"]
VARIED: Sequence[str] = _SOFTWARE["varied"]
"""Stacks that are considered with unusual habits as well: one or two of each kind of framework."""

REPLICATING: Sequence[str] = _SOFTWARE["replicating"]

FRAMEWORK_STACKS: Mapping[str, Sequence[str]] = _SOFTWARE["framework_stacks"]
"""Which stack files describe releases of the framework that a log names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hypothesis:
    """One kind of software: a stack, the habits in which it differs from its file, a covariance of its numbers."""

    stack: Stack
    settings: Mapping[str, Any]
    kind: str
    log_prior: float
    covariance: Floats

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.stack.name}, {self.kind}" if self.kind else self.stack.name

    def varied(self, settings: Mapping[str, Any]) -> "Hypothesis":
        """The same with other settings on top."""
        return replace(self, stack=with_numbers(self.stack, settings), settings={**self.settings, **settings})

    @property
    def held(self) -> "Hypothesis":
        """The same as its file has it but for one factor over rates and host times."""
        kind = f"{self.kind}, one factor" if self.kind else "one factor"
        return replace(self, kind=kind, covariance=HELD**2 * (self.covariance - _common()) + _common())


def _common() -> Floats:
    """Covariance of the factor common to all rates and host times."""
    factor = np.array([float(number.speed) for number in NUMBERS])
    return np.asarray(COMMON_SPREAD**2 * np.outer(factor, factor))


def shipped_hypotheses(
    framework: str | None = None,
    without: Sequence[str] = (),
    archs: Iterable[str] = (),
    only: Stack | None = None,
    suggested: str | None = None,
    models: Iterable[Model] = (),
) -> tuple[Hypothesis, ...]:
    """Every hypothesis about software of a framework.

    without: stacks that are left out, and who copies them. archs: architectures of the devices it runs on. only: a
    stack whose habits are certain, so that its numbers alone are not known. suggested: the stack that the words of
    runs point to. models: what it trains.
    """
    stacks = [stack for stack in _shipped() if stack.name not in without]
    sigma = np.maximum(np.array([coordinates(stack) for stack in stacks]).std(axis=0), LEAST_SPREAD) * SPREAD
    sigma[[number.field for number in NUMBERS].index("host_launch_s")] = HOST_LAUNCH_SPREAD
    covariance = np.diag(sigma**2) + _common()
    archs, since = set(archs), max((first_year(model) for model in models), default=0)
    return tuple(
        Hypothesis(
            stack=with_numbers(stack, settings),
            settings=settings,
            kind=kind,
            log_prior=_log_prior(stack, framework, archs, suggested, since) + (UNUSUAL if kind else 0.0),
            covariance=covariance,
        )
        for stack in ([only] if only is not None else stacks)
        for kind, settings in _kinds(stack)
    )


def _kinds(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a hypothesis of a stack is called beside its name, and its settings."""
    plain: dict[str, Any] = {} if stack.host.host_race_power else {"host_race_power": RACE_POWER}
    yield "", plain
    if stack.name in VARIED:
        yield "slow host", plain | {"host_launch_s": SLOW_LAUNCH_S}
        yield "no fused kernels", plain | dict.fromkeys(UNFUSED, False)


@lru_cache(maxsize=1)
def _shipped() -> tuple[Stack, ...]:
    """Every stack file of the package, in the order of their names."""
    return tuple(load_stack(name) for name in shipped(FileKind.STACK) if name not in NOT_SOFTWARE)


def replicates(name: str) -> bool:
    """Whether software replicates weights over data parallel ranks, by the name of its stack or framework."""
    return any(fnmatchcase(name, pattern) for pattern in REPLICATING)


def first_year(model: Model) -> int:
    """Year from which on models with such parts are trained; 0 where nothing tells."""
    parts = {
        "gated": model.is_gated,
        "grouped": model.num_kv_heads < model.num_heads,
        "gated experts": model.is_moe and model.is_gated,
    }
    return max((_SOFTWARE["trained_since"][part] for part, is_there in parts.items() if is_there), default=0)


def _log_prior(stack: Stack, framework: str | None, archs: set[str], suggested: str | None, since: int) -> float:
    written = re.search(r"_(20\d\d)$", stack.name)
    prior = BEFORE_MODEL * max(since - int(written[1]), 0) if written else 0.0
    if suggested is not None:
        prior += SUGGESTED if stack.name == suggested else 0.0
        prior += OTHER_KIND if replicates(stack.name) != replicates(suggested) else 0.0
    if framework is not None:
        prior += OWN_FRAMEWORK if stack.name in FRAMEWORK_STACKS.get(framework, ()) else 0.0
        prior += OTHER_KIND if replicates(stack.name) != replicates(framework) else 0.0
    measured = {key.split("/")[1] for key, band in stack.errors.items() if "/" in key and band.runs > 0.0}
    if not measured:
        return prior + NEVER_MEASURED
    newest, year = (
        max((INTRODUCED[arch] for arch in each if arch in INTRODUCED), default=None) for each in (measured, archs)
    )
    if year is not None and newest is not None:
        prior += OLDER_PER_YEAR * max(year - newest, 0) + NEWER_PER_YEAR * max(newest - year, 0)
    is_there = not archs or {arch.startswith(AMD) for arch in archs} & {arch.startswith(AMD) for arch in measured}
    return prior + (0.0 if is_there else OTHER_VENDOR)


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

    A coordinate is the logarithm of a rate or a time, the plain value of a share; numbers move in coordinates.

    speed   +1 where a larger value is a faster software, -1 where it is a slower one, 0: not part of the factor
    """

    speed: int = 0


NUMBERS = tuple(SiteNumber(field=field, **row) for field, row in _SOFTWARE["numbers"].items())
"""Numbers of the software alone: the device's own rates are held."""


def coordinates(stack: Stack) -> Floats:
    """The numbers of a stack as coordinates, in the order of `NUMBERS`."""
    return np.array([n.coordinate(float(number_of(stack, n.field))) for n in NUMBERS])


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
        number.field: np.repeat((value if number.is_share else np.exp(value)).reshape(-1), rows)
        for number, value in zip(NUMBERS, np.moveaxis(values, 2, 0), strict=True)
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
    return replace(at(stack, np.zeros(len(NUMBERS))), name="", errors={}, own_runs={}, is_assumed=False)
