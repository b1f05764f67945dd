"""What unknown software may be: every shipped stack with its habits, and some habits that no shipped stack has.

A hypothesis is a stack's habits (kernels, fusions, what it keeps) and a Gaussian around its numbers. Its prior weight
comes from what names the software: a framework's own stacks before others of its kind, those before the rest; and from
the devices that the stack was measured on: software of 2021 does not run on a GPU of 2025.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from primus_search.declare.hardware_files import load_stack
from primus_search.declare.search_path import FileKind, shipped
from primus_search.runs.learn.logs import table
from primus_search.runs.learn.site_numbers import NUMBERS, coordinates
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import Stack, with_numbers

NOT_SOFTWARE = ("host", "torch_eager")
"""Stack files of this machine's own measurements: no training framework."""

SPREAD = 1.7
"""Standard deviation of a number around its hypothesis, in those of the shipped stacks among each other: unknown
software lies further out than described one. This and the constants below: leave-one-stack-out over 21 stacks,
2026-11-22, tests/bench/learned_stacks.py."""

LEAST_SPREAD = 0.03
"""Smallest spread of a number among stacks, in coordinates: several files share one value."""

COMMON_SPREAD = 0.14
"""Standard deviation of a factor common to all rates and host times, as a logarithm."""

OTHER_KIND = -2.0
"""Log-prior of a stack of the other kind: sharded weights (FSDP) where the software is Megatron-like, or not."""

OWN_FRAMEWORK = 1.0
"""Log-prior of the stacks that are a framework's own releases."""

_SOFTWARE = table("software")
INTRODUCED: Mapping[str, int] = _SOFTWARE["introduced"]
"""Year in which the vendor announced the first device of an architecture."""

OLDER_PER_YEAR, NEWER_PER_YEAR = -0.5, -0.3
"""Log-prior per year between the newest device that a stack was measured on and the newest one of the site."""

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

MEGATRON_LIKE = ("megatron", "nemo")
FRAMEWORK_STACKS: Mapping[str, Sequence[str]] = _SOFTWARE["framework_stacks"]
"""Which stack files describe releases of the framework that a log names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hypothesis:
    """One kind of software: a stack, the habits in which it differs from its file, a covariance of its numbers."""

    stack: Stack
    habits: Mapping[str, Any]
    kind: str
    log_prior: float
    covariance: Floats

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.stack.name}, {self.kind}" if self.kind else self.stack.name


def shipped_hypotheses(
    framework: str | None = None, without: Sequence[str] = (), archs: Iterable[str] = (), only: Stack | None = None
) -> tuple[Hypothesis, ...]:
    """Every hypothesis about software of a framework.

    without: stacks that are left out, and who copies them. archs: architectures of the devices it runs on. only: a
    stack whose habits are certain, so that its numbers alone are not known.
    """
    stacks = [stack for stack in _shipped() if stack.name not in without]
    sigma = np.maximum(np.array([coordinates(stack) for stack in stacks]).std(axis=0), LEAST_SPREAD) * SPREAD
    sigma[[number.field for number in NUMBERS].index("host_launch_s")] = HOST_LAUNCH_SPREAD
    factor = np.array([float(number.speed) for number in NUMBERS])
    covariance = np.diag(sigma**2) + COMMON_SPREAD**2 * np.outer(factor, factor)
    year = max((INTRODUCED[arch] for arch in archs if arch in INTRODUCED), default=None)
    return tuple(
        Hypothesis(
            stack=with_numbers(stack, habits),
            habits=habits,
            kind=kind,
            log_prior=_log_prior(stack, framework, year) + (UNUSUAL if kind else 0.0),
            covariance=covariance,
        )
        for stack in ([only] if only is not None else stacks)
        for kind, habits in _kinds(stack)
    )


def _kinds(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a hypothesis of a stack is called beside its name, and its habits."""
    plain: dict[str, Any] = {} if stack.host.host_race_power else {"host_race_power": RACE_POWER}
    yield "", plain
    if stack.name in VARIED:
        yield "slow host", plain | {"host_launch_s": SLOW_LAUNCH_S}
        yield "no fused kernels", plain | dict.fromkeys(UNFUSED, False)


@lru_cache(maxsize=1)
def _shipped() -> tuple[Stack, ...]:
    """Every stack file of the package, in the order of their names."""
    return tuple(load_stack(name) for name in shipped(FileKind.STACK) if name not in NOT_SOFTWARE)


def is_megatron_like(name: str) -> bool:
    """Whether a stack or framework is of Megatron's kind, by its name; Megatron's FSDP is of the other."""
    return name.replace("-", "_").startswith((*MEGATRON_LIKE, "primus")) and not name.endswith(
        ("megatron_fsdp_2026", "torchtitan")
    )


def _log_prior(stack: Stack, framework: str | None, year: int | None) -> float:
    prior = 0.0
    if framework is not None:
        prior += OWN_FRAMEWORK if stack.name in FRAMEWORK_STACKS.get(framework, ()) else 0.0
        prior += OTHER_KIND if is_megatron_like(stack.name) != is_megatron_like(framework) else 0.0
    newest = _newest_device(stack)
    if newest is None:
        return prior + NEVER_MEASURED
    if year is not None:
        prior += OLDER_PER_YEAR * max(year - newest, 0) + NEWER_PER_YEAR * max(newest - year, 0)
    return prior


def _newest_device(stack: Stack) -> int | None:
    """Year of the newest device that runs of a stack's error bands were measured on; None where there are none."""
    measured = [key.split("/")[1] for key, band in stack.errors.items() if "/" in key and band.runs > 0.0]
    return max((INTRODUCED[arch] for arch in measured if arch in INTRODUCED), default=None)
