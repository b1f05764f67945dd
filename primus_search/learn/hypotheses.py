"""What unknown software may be: every shipped stack, with its own numbers or with those of the shipped mean.

A hypothesis is a stack's habits (kernels, fusions, what it keeps) and a Gaussian over its numbers. Weighted by what
names the software: a framework's own stacks before others of its kind, those before the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from primus_search.candidates import Floats
from primus_search.declare.hardware_files import load_stack
from primus_search.declare.search_path import FileKind, shipped
from primus_search.learn.site_numbers import NUMBERS, coordinates
from primus_search.stack import Stack

NOT_SOFTWARE = ("host", "torch_eager")
"""Stack files of this machine's own measurements: no training framework."""

SPREAD = 1.4
"""Standard deviation of a number around its hypothesis, in those of the shipped stacks among each other: unknown
software lies further out than described one. Leave-one-stack-out, tests/bench/learned_stacks.py."""

LEAST_SPREAD = 0.03
"""Smallest spread of a number among stacks, in coordinates: several files share one value."""

OWN_SHARE = 0.5
"""Spread around a stack's own numbers, as a share of that around the mean."""

COMMON_SPREAD = 0.1
"""Standard deviation of a factor common to all rates and host times, as a logarithm."""

OTHER_KIND = -2.0
"""Log-prior of a stack of the other kind: sharded weights (FSDP) where the software is Megatron-like, or not."""

OWN_FRAMEWORK = 1.0
"""Log-prior of the stacks that are a framework's own releases."""

MEGATRON_LIKE = ("megatron", "nemo")
FRAMEWORK_STACKS: dict[str, tuple[str, ...]] = {
    "megatron-lm": ("megatron_lm", "megatron_te", "megatron_2023", "megatron_core_2026"),
    "megatron-deepspeed": ("megatron_deepspeed", "deepspeed_2021"),
    "megatron-bridge": ("megatron_core_2026", "nemo_2024"),
    "nemo": ("nemo_2024", "nemo_mlperf"),
    "primus": ("primus_megatron",),
    "torchtitan": ("torchtitan", "primus_torchtitan"),
    "deepspeed": ("deepspeed",),
    "maxtext": ("maxtext",),
    "hf-trainer": ("fsdp_2023", "fsdp_2024", "deepspeed"),
    "mlperf": ("nemo_mlperf",),
}
"""Which stack files describe releases of the framework that a log names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hypothesis:
    """One kind of software. `shift`: coordinates of its centre less those of the stack; `covariance` around it."""

    stack: Stack
    has_own_numbers: bool
    log_prior: float
    shift: Floats
    covariance: Floats

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.stack.name}, {'its own' if self.has_own_numbers else 'mean'} numbers"


def shipped_hypotheses(framework: str | None = None, without: Sequence[str] = ()) -> tuple[Hypothesis, ...]:
    """Every hypothesis about software of a framework; `without`: stacks that are left out, and who copies them."""
    stacks = [stack for stack in _shipped() if stack.name not in without]
    x = np.array([coordinates(stack) for stack in stacks])
    mean, sigma = x.mean(axis=0), np.maximum(x.std(axis=0), LEAST_SPREAD) * SPREAD
    factor = np.array([float(number.speed) for number in NUMBERS])
    covariance = np.diag(sigma**2) + COMMON_SPREAD**2 * np.outer(factor, factor)
    found: list[Hypothesis] = []
    for stack, own in zip(stacks, x, strict=True):
        prior = _log_prior(stack.name, framework)
        found += [
            Hypothesis(
                stack=stack,
                has_own_numbers=is_own,
                log_prior=prior,
                shift=np.zeros(len(NUMBERS)) if is_own else mean - own,
                covariance=covariance * (OWN_SHARE**2 if is_own else 1.0),
            )
            for is_own in (True, False)
        ]
    return tuple(found)


@lru_cache(maxsize=1)
def _shipped() -> tuple[Stack, ...]:
    """Every stack file of the package, in the order of their names."""
    return tuple(load_stack(name) for name in shipped(FileKind.STACK) if name not in NOT_SOFTWARE)


def is_megatron_like(name: str) -> bool:
    """Whether a stack or framework is of Megatron's kind, by its name; Megatron's FSDP is of the other."""
    return name.replace("-", "_").startswith((*MEGATRON_LIKE, "primus")) and not name.endswith(
        ("megatron_fsdp_2026", "torchtitan")
    )


def _log_prior(stack: str, framework: str | None) -> float:
    if framework is None:
        return 0.0
    prior = OWN_FRAMEWORK if stack in FRAMEWORK_STACKS.get(framework, ()) else 0.0
    return prior + (OTHER_KIND if is_megatron_like(stack) != is_megatron_like(framework) else 0.0)
