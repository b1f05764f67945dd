"""Fit what only whole training runs can tell: efficiencies and overheads of a software stack, and how far below its
kernel laws a device runs when compute, memory and links are busy together.

Parameters are named fields of `Stack` and `Accelerator`, each with physical bounds, a prior and, most of them, a
family of siblings in other stacks or devices. Errors of a run are log(predicted / measured); their
slopes come from one vectorised projection per run, in which every row moves one parameter. Near-duplicate runs share
one weight.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.field_paths import with_column
from primus_search.cost.project import Projector
from primus_search.evidence.published.run_machine import stack_file
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import GROUP_OF, number_of
from primus_search.values.measured_run import MeasuredRun
from tools.fit.training_parameters import TRAINING_RATE, PriorParameter, Priors, die, loss_weights, priors, solve

STEP = 0.03
"""Relative step of the finite differences, and the absolute one of shares."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitState:
    """A point of the fit: coordinates with family means behind them, errors of all runs there and their slopes."""

    prior: Priors
    z: Floats
    errors: Floats
    slopes: Floats

    @property
    def x(self) -> Floats:
        """The parameters' coordinates."""
        return self.z[: self.slopes.shape[1]]

    def standard_errors(self, weights: Floats) -> tuple[Floats, Floats]:
        """Those of the coordinates, and of how far each lies from its family's mean (its prior without one)."""
        scaled = self.slopes * loss_weights(self.errors, weights)[:, None]
        information = self.prior.precision.copy()
        num = self.slopes.shape[1]
        information[:num, :num] += scaled.T @ scaled
        covariance = np.linalg.inv(information)
        own, apart = np.diag(covariance)[:num], np.diag(covariance)[:num].copy()
        for j, mean in enumerate(self.prior.mean_of):
            if mean >= 0:
                apart[j] += covariance[mean, mean] - 2.0 * covariance[j, mean]
        return np.sqrt(own), np.sqrt(np.maximum(apart, 0.0))


def touches(parameter: PriorParameter, case: MeasuredRun) -> bool:
    """Whether a run depends on a parameter."""
    if parameter.owner == "stack":
        return parameter.name == case.cluster.stack.name
    return parameter.name == die(case.cluster.accelerator.name) and not _has_own(case, parameter.field)


def _has_own(case: MeasuredRun, field: str) -> bool:
    """Whether a run has its own value of a number of its hardware file."""
    return any(one.key == f"hardware.{field}" for one in case.overrides)


def with_values(case: MeasuredRun, values: Mapping[str, ArrayLike]) -> MeasuredRun:
    """The case with the values of the parameters that touch it; arrays are one value per row of a table."""
    stack, acc = case.cluster.stack, case.cluster.accelerator
    for path, value in values.items():
        owner, name, field = path.split(":")
        if owner == "stack" and name == stack.name:
            stack = with_column(stack, (GROUP_OF[field], field), value)
        elif owner == "hardware" and name == die(acc.name) and not _has_own(case, field):
            acc = with_column(acc, (field,), value)
    return replace(case, cluster=replace(case.cluster, stack=stack, accelerator=acc))


def log_rates(case: MeasuredRun, values: Mapping[str, ArrayLike], rows: int) -> Floats:
    """log(tokens/s/GPU) of one run's configuration, for `rows` settings of the parameters at once."""
    moved = with_values(case, values)
    table = moved.candidates.take(np.zeros(rows, dtype=np.int64))
    step = Projector(moved.job, shares_rows=False).step(table)
    rate = moved.workload.tokens_per_step / step.total / moved.cluster.world
    return np.asarray(np.log(rate))


def errors_and_slopes(
    cases: Sequence[MeasuredRun], parameters: Sequence[PriorParameter], x: Floats
) -> tuple[Floats, Floats]:
    """log(predicted / measured), and its derivative by every coordinate (one-sided differences, inside the bounds).

    Runs of one configuration (releases, repeats) are projected once.
    """
    errors, slopes = np.empty(len(cases)), np.zeros((len(cases), len(parameters)))
    first: dict[tuple[object, ...], int] = {}
    for i, case in enumerate(cases):
        measured = np.log(case.tokens_per_s_per_gpu)
        twin = first.setdefault((*case.machine_key, case.model, case.workload, case.candidate_key), i)
        if twin != i:
            errors[i] = errors[twin] + np.log(cases[twin].tokens_per_s_per_gpu) - measured
            slopes[i] = slopes[twin]
            continue
        own = [j for j, p in enumerate(parameters) if touches(p, case)]
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
        found = log_rates(case, values, len(own) + 1)
        errors[i] = found[0] - measured
        slopes[i, own] = (found[1:] - found[0]) / deltas
    return errors, slopes


def start(cases: Sequence[MeasuredRun], parameters: Sequence[PriorParameter]) -> FitState:
    """Every parameter and every family mean at its prior."""
    return _state(cases, parameters, np.array([p.coordinate(p.prior) for p in parameters]))


def start_as_shipped(cases: Sequence[MeasuredRun], parameters: Sequence[PriorParameter]) -> FitState:
    """Every parameter as it stands in the hardware and stack files, every family mean at its prior."""
    usual = [case.cluster.accelerator for case in cases if not _has_own(case, TRAINING_RATE.field)]
    dies = {die(accelerator.name): accelerator for accelerator in usual}
    values = [
        float(number_of(stack_file(p.name), p.field) if p.owner == "stack" else dies[p.name].__getattribute__(p.field))
        for p in parameters
    ]
    pairs = zip(parameters, values, strict=True)
    return _state(cases, parameters, np.array([p.coordinate(float(np.clip(v, p.low, p.high))) for p, v in pairs]))


def _state(cases: Sequence[MeasuredRun], parameters: Sequence[PriorParameter], x: Floats) -> FitState:
    prior = priors(parameters)
    means = [next(p for p in parameters if p.family == family) for family in prior.families]
    errors, slopes = errors_and_slopes(cases, parameters, x)
    z = np.concatenate([x, [p.coordinate(p.prior) for p in means]])
    return FitState(prior=prior, z=z, errors=errors, slopes=slopes)


def improve(
    state: FitState,
    cases: Sequence[MeasuredRun],
    parameters: Sequence[PriorParameter],
    weights: Floats,
    iterations: int,
    pinned: frozenset[str] = frozenset(),
) -> FitState:
    """Gauss-Newton steps from a state, the parameters at `pinned` paths held at their family's mean."""
    prior = priors(parameters, pinned)
    for _ in range(iterations):
        z = solve(prior, state.z, state.errors, state.slopes, weights)
        errors, slopes = errors_and_slopes(cases, parameters, z[: len(parameters)])
        state = FitState(prior=prior, z=z, errors=errors, slopes=slopes)
    return state


Solved = dict[bytes, Floats]
"""Solutions of a linearised problem, by the runs left out; groups of several splits are often the same runs."""


def linearised(state: FitState, weights: Floats, groups: Sequence[Hashable], solved: Solved) -> Floats:
    """log(predicted / measured) of every run with its group left out, to first order; new solutions go to `solved`."""
    errors = state.errors.copy()
    for group in dict.fromkeys(groups):
        out = np.array([one == group for one in groups])
        key = out.tobytes()
        if key not in solved:
            solved[key] = solve(state.prior, state.z, state.errors, state.slopes, np.where(out, 0.0, weights))
        errors[out] += state.slopes[out] @ (solved[key][: state.slopes.shape[1]] - state.x)
    return errors
