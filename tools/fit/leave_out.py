"""Errors of runs that a fit did not see: every group left out in turn, and the rest fitted again.

`linearised` re-solves the linearised problem without a group, which costs nothing and is exact to first order.
`refitted` then moves to that solution, projects again every run whose numbers moved, and solves once more, until
`passes` are used up: a whole fit that starts near its end.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from primus_search.values.candidates import Bools, Floats
from primus_search.values.measured_run import MeasuredRun
from tools.fit.priors import PriorParameter, solve
from tools.fit.training import FitState, errors_and_slopes, touches

MOVED = 0.02
"""A run is projected again when one of its numbers moved by more than this in the fit's coordinates."""


Solved = dict[bytes, Floats]
"""Solutions of a linearised problem, by the runs left out; groups of several splits are often the same runs."""


def linearised(state: FitState, weights: Floats, groups: Sequence[Hashable], solved: Solved) -> Floats:
    """log(predicted / measured) of every run with its group left out, to first order; new solutions go to `solved`."""
    errors = state.errors.copy()
    for out in _masks(groups):
        key = out.tobytes()
        if key not in solved:
            solved[key] = solve(state.believed, state.z, state.errors, state.slopes, np.where(out, 0.0, weights))
        errors[out] += state.slopes[out] @ (solved[key][: state.slopes.shape[1]] - state.x)
    return errors


def refitted(
    state: FitState,
    cases: Sequence[MeasuredRun],
    parameters: Sequence[PriorParameter],
    weights: Floats,
    groups: Sequence[Hashable],
    passes: int = 2,
) -> Floats:
    """log(predicted / measured) of every run by a fit without its group."""
    own = [np.flatnonzero([touches(p, case) for p in parameters]) for case in cases]
    errors = state.errors.copy()
    for out in _masks(groups):
        errors[out] = _without(state, cases, parameters, weights, out, own, passes)[out]
    return errors


def _without(
    state: FitState,
    cases: Sequence[MeasuredRun],
    parameters: Sequence[PriorParameter],
    weights: Floats,
    out: Bools,
    own: Sequence[np.ndarray],
    passes: int,
) -> Floats:
    """Errors of all runs after a fit that gives the runs of `out` no weight."""
    kept = np.where(out, 0.0, weights)
    errors, slopes = state.errors.copy(), state.slopes.copy()
    where = np.tile(state.x, (len(cases), 1))  # the point at which each run was projected last
    z = solve(state.believed, state.z, errors, slopes, kept)
    x = z[: slopes.shape[1]]
    for turn in range(passes):
        moved = [np.abs(x[mine] - where[i, mine]).max(initial=0.0) > MOVED for i, mine in enumerate(own)]
        again = np.flatnonzero(out | np.array(moved))
        errors[again], slopes[again] = errors_and_slopes([cases[int(i)] for i in again], parameters, x)
        where[again] = x
        if turn + 1 < passes:
            about = errors - np.einsum("ij,ij->i", slopes, where - state.x)
            z = solve(state.believed, np.concatenate([state.x, z[len(x) :]]), about, slopes, kept)
            x = z[: slopes.shape[1]]
    last: Floats = errors + np.einsum("ij,ij->i", slopes, x - where)
    return last


def _masks(groups: Sequence[Hashable]) -> list[Bools]:
    """The runs of every group."""
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    masks = []
    for rows in members.values():
        mask = np.zeros(len(groups), dtype=bool)
        mask[rows] = True
        masks.append(mask)
    return masks
