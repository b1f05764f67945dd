"""Which numbers of a stack and of an accelerator may be fitted to training runs, by which runs, bounds and priors.

A prior is what is assumed without the runs: 1 for an efficiency (the kernel laws are right), typical host times of a
PyTorch framework, nearly full overlap where a framework prefetches. Its sigma says how far one stack or device may lie
from its siblings: the logarithm of a rate or a time, the plain value of a share. The same number of all stacks on
one vendor's devices is one family, and so are their training rates. A parameter is offered only where runs can speak
about it and its file does not quote it: a switch that is off by default is no matter of fitting.

Hierarchical Gaussian priors of fitted numbers, and the MAP fit (Gauss-Newton, soft-L1 loss, box bounds).

Numbers of one kind (the GEMM efficiency of every stack, the training rate of every device of a vendor) form a family:
each lies near the family's mean, and the mean is found together with them. So a stack or a device with few runs, or
none, takes what its siblings show, and a stack with many runs is free to differ. With x the coordinates of the
parameters (a logarithm of a rate or a time, the plain value of a share) and mu those of the means,

    minimise   sum over runs of w * rho((e + J (x - x0)) / scale)
             + sum over parameters of ((x - mu) / sigma)^2
             + sum over families of ((mu - prior) / (MEAN_SPREAD * sigma))^2

by Gauss-Newton, re-weighted so that rho is soft-L1, with bounds as an active set. A parameter without a family has its
prior in the place of mu.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.units import to_base
from primus_search.files.search_path import FileKind, names
from primus_search.files.source import parse, read
from primus_search.learning.inference.hypotheses import BoundedNumber
from primus_search.measure.calibrate.hardware_edits import leaves
from primus_search.values.candidates import Floats, Sharding
from primus_search.values.measured_run import MeasuredRun

RESIDUAL_SCALE = 0.05
"""Residuals beyond this (noise between identical runs) count linearly."""

MEAN_SPREAD = 1.5
"""How far a family's mean may lie from its prior, in sigmas of one member."""

PINNED = 1e-3
"""Share of its sigma within which a parameter the runs do not identify stays at its family's mean."""

_ROUNDS, _SETTLED = 15, 3e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(BoundedNumber):
    """A number of stacks or accelerators that may be fitted, and which runs can say something about it."""

    prior: float
    sigma: float
    speaks: Callable[[MeasuredRun], bool] = lambda case: True

    def of(self, owner: str, name: str, family: str) -> "PriorParameter":
        """That number of one stack or accelerator."""
        numbers = {one.name: self.__getattribute__(one.name) for one in fields(self)}
        return PriorParameter(**numbers, owner=owner, name=name, family=family)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorParameter(Offer):
    """One number to fit: `stack:NAME:field` or `hardware:NAME:field`."""

    owner: str
    name: str
    family: str = ""

    @property
    def path(self) -> str:
        return f"{self.owner}:{self.name}:{self.field}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priors:
    """Quadratic form over coordinates and family means: 0.5 z' precision z - pull' z, the coordinates first.

    mean_of     place of a parameter's family mean in z, -1 without a family
    """

    families: tuple[str, ...]
    mean_of: tuple[int, ...]
    precision: Floats
    pull: Floats
    low: Floats
    high: Floats


def priors(parameters: Sequence[PriorParameter], pinned: frozenset[str] = frozenset()) -> Priors:
    """Priors of the parameters; those whose paths are `pinned` stay at their family's mean or their prior."""
    families = tuple(dict.fromkeys(p.family for p in parameters if p.family))
    size = len(parameters)
    precision = np.zeros((size + len(families),) * 2)
    pull = np.zeros(size + len(families))
    for family, at in zip(families, range(size, len(pull)), strict=True):
        first = next(p for p in parameters if p.family == family)
        precision[at, at] = 1.0 / (MEAN_SPREAD * first.sigma) ** 2
        pull[at] = first.coordinate(first.prior) * precision[at, at]
    for j, p in enumerate(parameters):
        weight = 1.0 / (p.sigma * (PINNED if p.path in pinned else 1.0)) ** 2
        precision[j, j] += weight
        if p.family:
            at = size + families.index(p.family)
            precision[at, at] += weight
            precision[j, at] -= weight
            precision[at, j] -= weight
        else:
            pull[j] += weight * p.coordinate(p.prior)
    free = np.full(len(families), np.inf)
    return Priors(
        families=families,
        mean_of=tuple(size + families.index(p.family) if p.family else -1 for p in parameters),
        precision=precision,
        pull=pull,
        low=np.concatenate([[p.coordinate(p.low) for p in parameters], -free]),
        high=np.concatenate([[p.coordinate(p.high) for p in parameters], free]),
    )


def solve(prior: Priors, x: Floats, errors: Floats, slopes: Floats, weights: Floats) -> Floats:
    """Coordinates and family means at the minimum of the problem linearised around x, given x and the means there."""
    runs = weights > 0
    slopes, weights = slopes[runs], weights[runs]
    num = slopes.shape[1]
    at_zero = errors[runs] - slopes @ x[:num]
    z = x.copy()
    for _ in range(_ROUNDS):
        scale = loss_weights(at_zero + slopes @ z[:num], weights)
        scaled = slopes * scale[:, None]
        curvature, pull = prior.precision.copy(), prior.pull.copy()
        curvature[:num, :num] += scaled.T @ scaled
        pull[:num] -= scaled.T @ (at_zero * scale)
        fresh = _bounded_minimum(curvature, pull, z, prior.low, prior.high)
        if np.abs(fresh - z).max(initial=0.0) < _SETTLED:
            return fresh
        z = fresh
    return z


def _bounded_minimum(curvature: Floats, pull: Floats, start: Floats, low: Floats, high: Floats) -> Floats:
    """The point inside the bounds that minimises x'Cx/2 - p'x: what leaves them is held, the rest solved again."""
    free = np.ones(len(start), dtype=np.bool_)
    x = start.copy()
    while free.any():
        held = pull[free] - curvature[np.ix_(free, ~free)] @ x[~free]
        x[free] = np.linalg.solve(curvature[np.ix_(free, free)], held)
        outside = free & ((x < low) | (x > high))
        x = np.clip(x, low, high)
        if not outside.any():
            break
        free &= ~outside
    return x


def loss_weights(errors: Floats, weights: Floats) -> Floats:
    """Square roots of the weights that make squares of residuals behave like soft-L1."""
    return np.sqrt(weights / np.sqrt(1.0 + (errors / RESIDUAL_SCALE) ** 2)) / RESIDUAL_SCALE


MAX_FITTED = 12
"""Numbers fitted per stack, and per accelerator."""

IDENTIFIED = 0.98
"""A parameter counts as fitted when the runs bring its standard error below this share of its sigma."""


def _is_sharded(case: MeasuredRun) -> bool:
    return bool(np.any(case.candidates.sharding >= Sharding.FSDP2))


_SPEAKS: dict[str, Callable[[MeasuredRun], bool]] = {
    "all": lambda case: True,
    "moe": lambda case: case.model.is_moe,
    "wide": lambda case: case.cluster.num_nodes > 4,
    "sharded": _is_sharded,
    "replicates": lambda case: case.cluster.world > 1 and not _is_sharded(case),
}


def _offer(field: str, where: Any = "all", **numbers: Any) -> Offer:
    speaks = _SPEAKS[where] if isinstance(where, str) else partial(_has, *next(iter(where.items())))
    return Offer(field=field, speaks=speaks, **numbers)


def _has(column: str, above: int, case: MeasuredRun) -> bool:
    return bool(np.any(case.candidates.columns()[column] > above))


_TABLE = read(Path(__file__).with_name("offers.yaml")).data
OFFERS, _MORE = (
    {field: _offer(field, **row) for field, row in _TABLE[part].items()} for part in ("every_stack", "some_stacks")
)
EXTRA = {stack: tuple(_MORE[field] for field in names_of) for stack, names_of in _TABLE["stacks"].items()}

TRAINING_RATE = Offer(field="training_rate", low=0.5, high=1.3, prior=1.0, sigma=0.12)

SAME_DIE = re.compile(rf'{TRAINING_RATE.field}: .*"same die as (.+?)"')


def is_informative(case: MeasuredRun) -> bool:
    """Whether a fit may learn from a run: only where its software is known, not where it was guessed."""
    return not case.cluster.stack.is_assumed


def parameters(cases: Sequence[MeasuredRun]) -> list[PriorParameter]:
    """Every parameter that some run of its stack or accelerator speaks about; a family has at least two members."""
    found: list[PriorParameter] = []
    for name in dict.fromkeys(case.cluster.stack.name for case in cases):
        own = [case for case in cases if case.cluster.stack.name == name]
        told = quoted(name)
        offers = [o for o in (*OFFERS.values(), *EXTRA.get(name, ())) if o.field not in told]
        spoken = (o for o in offers if any(o.speaks(case) for case in own))
        found += [o.of("stack", name, stack_family(o.field, own)) for o in spoken]
    vendors = {die(acc.name): acc.vendor for acc in (case.cluster.accelerator for case in cases)}
    found += [TRAINING_RATE.of("hardware", name, rate_family(vendor)) for name, vendor in vendors.items()]
    members = Counter(p.family for p in found)
    return [p if members[p.family] > 1 else replace(p, family="") for p in found]


def stack_family(field: str, own: Sequence[MeasuredRun]) -> str:
    """The family of a number of a stack with these runs: stacks that run on AMD's devices are siblings of each other.

    A number is relative to the kernel laws of the devices below it, whose kernels are other people's code there.
    """
    [(vendor, _)] = Counter(run.cluster.accelerator.vendor for run in own).most_common(1)
    return field if vendor == "nvidia" else f"{field} on {vendor}"


def quoted(stack: str) -> frozenset[str]:
    """Fields that a stack's file has from a document or another stack (`as NAME`), not from a fit or a family."""
    path = names(FileKind.STACK).get(stack)
    found = leaves(path.read_text(encoding="utf-8")) if path else []
    keys = {leaf.key for leaf in found if not leaf.source.startswith(_NOT_QUOTED)}
    return frozenset(field for field in {**OFFERS, **_MORE} if yaml_key(field)[0] in keys)


def yaml_key(field: str) -> tuple[str, float]:
    """The key of a field in a stack or hardware file, and its units per unit of the field."""
    key = _KEYS.get(field, field)
    return key, 1.0 / to_base(key, 1.0)[1]


_NOT_QUOTED = ("fitted", "mean of", "prior", "no training runs")
_KEYS = {to_base(key, 0.0)[0]: key for key in _TABLE["keys"]}


def die(accelerator: str) -> str:
    """The accelerator whose training rate one has: its own, or that of the file that its own calls the same die.

    An export version differs in links, not in compute, and its runs speak about the same number.
    """
    return _dies().get(accelerator, accelerator)


@lru_cache(maxsize=1)
def _dies() -> dict[str, str]:
    texts = [path.read_text(encoding="utf-8") for path in names(FileKind.HARDWARE).values()]
    found = [(parse(text, "").data["name"], SAME_DIE.search(text)) for text in texts]
    return {name: twin[1] for name, twin in found if twin}


def rate_family(vendor: str) -> str:
    """The family of the training rates of one vendor's devices."""
    return f"{TRAINING_RATE.field} of {vendor}"
