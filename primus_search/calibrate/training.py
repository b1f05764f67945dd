"""Fit what only whole training runs can tell: efficiencies and overheads of a software stack, and how far below its
kernel laws a device runs when compute, memory and links are busy together.

Parameters are named fields of `Stack` and `Accelerator`, each with physical bounds and a prior (the value a
microbenchmark or the sources suggest, and how far to trust it). The fit minimises

    sum over runs of w * rho(log(predicted / measured) / scale) + sum over parameters of ((x - prior) / sigma)^2

by Gauss-Newton with re-weighting (rho soft-L1), x being the logarithm of a rate or the plain value of a share.
Near-duplicate runs share one weight. Errors are reported for runs left out: all runs of one source and model at a
time, by re-solving the linearised problem without them, which is exact to first order.
"""

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from primus_search.candidates import Floats
from primus_search.cost.project import Projector
from primus_search.validate.cases import Case

Record = TypeVar("Record")

RESIDUAL_SCALE = 0.05
"""Residuals beyond this (noise between identical runs) count linearly."""

STEP = 0.03
"""Relative step of the finite differences, and the absolute one of shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number to fit: `stack:NAME:field` or `hardware:NAME:field`; a share is fitted as it is, not its logarithm."""

    owner: str
    name: str
    field: str
    low: float
    high: float
    prior: float
    sigma: float
    is_share: bool = False

    @property
    def path(self) -> str:
        return f"{self.owner}:{self.name}:{self.field}"

    def coordinate(self, value: float) -> float:
        """The value as the fit moves it."""
        return value if self.is_share else float(np.log(value))

    def value(self, coordinate: float) -> float:
        """Back again, inside the bounds."""
        raw = coordinate if self.is_share else float(np.exp(coordinate))
        return float(np.clip(raw, self.low, self.high))

    def touches(self, case: Case) -> bool:
        """Whether a run depends on it."""
        owner = case.cluster.stack if self.owner == "stack" else case.cluster.accelerator
        return owner.name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted values, their standard errors in the fit's own coordinates, and residuals with every group left out.

    residuals   log(predicted / measured), all runs fitted together; left_out: their group's runs not used
    """

    values: dict[str, float]
    standard_errors: dict[str, float]
    residuals: Floats
    left_out: Floats


def with_values(case: Case, values: Mapping[str, ArrayLike]) -> Case:
    """The case with the values of the parameters that touch it; arrays are one value per row of a table.

    What a run switched on (an overlap) carries the switched value in the active field, and follows it.
    """
    stack, acc = case.cluster.stack, case.cluster.accelerator
    changes: dict[str, ArrayLike] = {}
    for path, value in values.items():
        owner, name, field = path.split(":")
        if owner == "stack" and name == stack.name:
            changes[field] = value
            active = _SWITCHED.get(field)
            if active and stack.__getattribute__(active) == stack.__getattribute__(field):
                changes[active] = value
        elif owner == "hardware" and name == acc.name:
            acc = _put(acc, {field: value})
    return replace(case, cluster=replace(case.cluster, stack=_put(stack, changes), accelerator=acc))


_SWITCHED = {"switched_tensor_overlap": "tensor_overlap", "batch_expert_overlap": "expert_overlap"}


def _put(record: Record, changes: Mapping[str, ArrayLike]) -> Record:
    """A copy with fields replaced; unlike `replace` it lets a field be a column, which validation would refuse."""
    changed = copy(record)
    for name, value in changes.items():
        changed.__getattribute__(name)
        object.__setattr__(changed, name, value)
    return changed


def log_errors(case: Case, values: Mapping[str, ArrayLike], rows: int) -> Floats:
    """log(predicted / measured) of one run, for `rows` settings of the parameters at once."""
    moved = with_values(case, values)
    table = moved.candidates.take(np.zeros(rows, dtype=np.int64))
    step = Projector(moved.model, moved.cluster, moved.workload, shares_rows=False).step(table)
    rate = moved.workload.tokens_per_step / step.total / moved.cluster.world
    return np.asarray(np.log(rate / moved.tokens_per_s_per_gpu))


def errors_and_slopes(cases: Sequence[Case], parameters: Sequence[Parameter], x: Floats) -> tuple[Floats, Floats]:
    """log(predicted / measured), and its derivative by every coordinate (one-sided differences, inside the bounds)."""
    errors, slopes = np.empty(len(cases)), np.zeros((len(cases), len(parameters)))
    for i, case in enumerate(cases):
        own = [j for j, p in enumerate(parameters) if p.touches(case)]
        values: dict[str, ArrayLike] = {}
        deltas = np.empty(len(own))
        for row, j in enumerate(own, start=1):
            p = parameters[j]
            moved = p.value(x[j] + STEP)
            if p.coordinate(moved) - x[j] < 0.5 * STEP:
                moved = p.value(x[j] - STEP)
            deltas[row - 1] = p.coordinate(moved) - x[j]
            column = np.full(len(own) + 1, p.value(x[j]))
            column[row] = moved
            values[p.path] = column
        found = log_errors(case, values, len(own) + 1)
        errors[i] = found[0]
        slopes[i, own] = (found[1:] - found[0]) / deltas
    return errors, slopes


def fit(
    cases: Sequence[Case],
    parameters: Sequence[Parameter],
    weights: Floats,
    groups: Sequence[Hashable],
    *,
    start: Mapping[str, float] | None = None,
    iterations: int = 4,
) -> Fit:
    """Gauss-Newton with bounds, priors and soft-L1 re-weighting; then every group left out in turn."""
    begin = start or {}
    x = np.array([p.coordinate(begin.get(p.path, p.prior)) for p in parameters])
    prior = np.array([p.coordinate(p.prior) for p in parameters])
    precision = np.array([1.0 / p.sigma for p in parameters])
    for _ in range(iterations):
        errors, slopes = errors_and_slopes(cases, parameters, x)
        x = _solve(parameters, x, prior, precision, errors, slopes, weights)
    errors, slopes = errors_and_slopes(cases, parameters, x)
    left_out = errors.copy()
    labels = np.array([hash(g) for g in groups])
    for label in np.unique(labels):
        out = labels == label
        without = _solve(parameters, x, prior, precision, errors, slopes, np.where(out, 0.0, weights))
        left_out[out] = errors[out] + slopes[out] @ (without - x)
    return Fit(
        values=_values(parameters, x),
        standard_errors=_standard_errors(parameters, precision, errors, slopes, weights),
        residuals=errors,
        left_out=left_out,
    )


def _values(parameters: Sequence[Parameter], x: Floats) -> dict[str, float]:
    return {p.path: p.value(v) for p, v in zip(parameters, x, strict=True)}


def _loss_weights(errors: Floats, weights: Floats) -> Floats:
    """Square roots of the weights that make squares of residuals behave like soft-L1."""
    return np.sqrt(weights / np.sqrt(1.0 + (errors / RESIDUAL_SCALE) ** 2)) / RESIDUAL_SCALE


def _solve(
    parameters: Sequence[Parameter],
    x: Floats,
    prior: Floats,
    precision: Floats,
    errors: Floats,
    slopes: Floats,
    weights: Floats,
    rounds: int = 12,
) -> Floats:
    """The bounded minimum of the linearised problem around x, re-weighted until the weights settle."""
    low = np.array([p.coordinate(p.low) for p in parameters])
    high = np.array([p.coordinate(p.high) for p in parameters])
    y = x.copy()
    for _ in range(rounds):
        now = errors + slopes @ (y - x)
        scale = _loss_weights(now, weights)
        a = np.concatenate([slopes * scale[:, None], np.diag(precision)])
        b = np.concatenate([-(errors - slopes @ x) * scale, prior * precision])
        free = np.ones(len(x), dtype=bool)
        fresh = y.copy()
        for _ in range(len(x)):
            target = b - a[:, ~free] @ fresh[~free]
            fresh[free] = np.linalg.lstsq(a[:, free], target, rcond=None)[0]
            outside = free & ((fresh < low) | (fresh > high))
            if not outside.any():
                break
            fresh = np.clip(fresh, low, high)
            free &= ~outside
        if np.abs(fresh - y).max(initial=0.0) < 1e-5:
            return fresh
        y = fresh
    return y


def _standard_errors(
    parameters: Sequence[Parameter], precision: Floats, errors: Floats, slopes: Floats, weights: Floats
) -> dict[str, float]:
    scaled = slopes * _loss_weights(errors, weights)[:, None]
    information = scaled.T @ scaled + np.diag(precision**2)
    spread = np.sqrt(np.diag(np.linalg.inv(information)))
    return {p.path: float(s) for p, s in zip(parameters, spread, strict=True)}
