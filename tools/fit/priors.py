"""Hierarchical Gaussian priors of fitted numbers, and the MAP fit (Gauss-Newton, soft-L1 loss, box bounds).

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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.base.bounded import bounded_minimum
from primus_search.runs.learn.hypotheses import BoundedNumber
from primus_search.values.candidates import Floats

RESIDUAL_SCALE = 0.05
"""Residuals beyond this (noise between identical runs) count linearly."""

MEAN_SPREAD = 1.5
"""How far a family's mean may lie from its prior, in sigmas of one member."""

PINNED = 1e-3
"""Share of its sigma within which a parameter the runs do not identify stays at its family's mean."""

_ROUNDS, _SETTLED = 15, 3e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorParameter(BoundedNumber):
    """One number to fit: `stack:NAME:field` or `hardware:NAME:field`."""

    owner: str
    name: str
    prior: float
    sigma: float
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
        fresh = bounded_minimum(curvature, pull, z, prior.low, prior.high)
        if np.abs(fresh - z).max(initial=0.0) < _SETTLED:
            return fresh
        z = fresh
    return z


def loss_weights(errors: Floats, weights: Floats) -> Floats:
    """Square roots of the weights that make squares of residuals behave like soft-L1."""
    return np.sqrt(weights / np.sqrt(1.0 + (errors / RESIDUAL_SCALE) ** 2)) / RESIDUAL_SCALE


def standard_errors(prior: Priors, errors: Floats, slopes: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Standard errors of the coordinates, and of how far each lies from its family's mean (its prior without one)."""
    scaled = slopes * loss_weights(errors, weights)[:, None]
    information = prior.precision.copy()
    num = slopes.shape[1]
    information[:num, :num] += scaled.T @ scaled
    covariance = np.linalg.inv(information)
    own, apart = np.diag(covariance)[:num], np.diag(covariance)[:num].copy()
    for j, mean in enumerate(prior.mean_of):
        if mean >= 0:
            apart[j] += covariance[mean, mean] - 2.0 * covariance[j, mean]
    return np.sqrt(own), np.sqrt(np.maximum(apart, 0.0))
