"""The order of least makespan, or the best found with a proven bound: constraint programming over start times.

Needs OR-Tools. Micro-batches are alike, so each stage may take them in order
without loss: any order can be relabelled so, pass by pass. The solver starts from the order of V-auto or ZB-auto and
stops at a deterministic amount of work, not at a wall-clock time, so that the same question has the same answer.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from primus_search.schedule.algorithms.v_shaped import v_auto
from primus_search.schedule.algorithms.zero_bubble import zb_auto
from primus_search.schedule.bounds import bound
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulation.timeline import run
from primus_search.schedule.table import PassKind, Placement, Table

EFFORT = 30.0
"""Deterministic seconds the solver may spend; about as many wall seconds on one core."""

MOST_PASSES = 3000
"""Beyond this the solver does not get past the order it starts from."""

FINEST = 10_000
"""Times are exact multiples of a unit where a common denominator up to this exists; else they are rounded to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best order found, its makespan, and what no order can beat."""

    table: Table
    makespan: float
    bound: float


def solve(request: Request, *, effort: float = EFFORT) -> Solved:
    """Least makespan within the request's memory limit. Raises `ScheduleError` when too large."""
    start = (v_auto if request.placement is Placement.V else zb_auto)(request)
    makespan = run(start, request.costs).makespan
    if len(start) > MOST_PASSES:
        raise request.refuse(f"{len(start)} passes are more than the exact solver can improve on ({MOST_PASSES})")
    if makespan <= bound(request, request.memory_limit) + TOLERANCE:
        return Solved(table=start, makespan=makespan, bound=makespan)
    starts, proven = _search(request, start, effort)
    table = start if starts is None else _by_start(request, starts)
    found = run(table, request.costs).makespan
    if found > makespan:
        table, found = start, makespan
    return Solved(table=table, makespan=found, bound=min(proven, found))


def _grid(request: Request) -> int:
    """How many integer ticks a unit of time has: the least that makes all times whole, at most `FINEST`."""
    times = np.unique(np.concatenate([request.costs.duration[:3].ravel(), request.costs.comm]))
    denominator = 1
    for t in times:
        denominator = lcm(denominator, Fraction(float(t)).limit_denominator(FINEST).denominator)
        if denominator > FINEST:
            return FINEST
    return denominator


def _search(request: Request, hint: Table, effort: float) -> tuple[np.ndarray | None, float]:
    """Start times by [kind, stage, micro-batch] in ticks, or None; and the proven bound in the unit of the costs."""
    from ortools.sat.python import cp_model

    ticks = _grid(request)
    m, costs = request.microbatches, request.costs
    duration = np.rint(costs.duration[:3] * ticks).astype(int)
    comm = np.rint(costs.comm * ticks).astype(int)
    timeline = run(hint, costs)
    horizon = int(np.ceil(timeline.makespan * ticks)) + len(hint)
    model: Any = cp_model.CpModel()
    num_stages = duration.shape[1]
    start = {
        (k, s, j): model.new_int_var(0, horizon, "") for k in range(3) for s in range(num_stages) for j in range(m)
    }
    makespan = model.new_int_var(0, horizon, "makespan")
    for (k, s, j), var in start.items():
        if j:
            model.add(var >= start[k, s, j - 1] + duration[k, s])
        if k == PassKind.F and s:
            model.add(var >= start[PassKind.F, s - 1, j] + duration[PassKind.F, s - 1] + comm[s - 1])
        if k == PassKind.B:
            before = (PassKind.B, s + 1, j) if s + 1 < num_stages else (PassKind.F, s, j)
            hop = comm[s] if s + 1 < num_stages else 0
            model.add(var >= start[before] + duration[before[0], before[1]] + hop)
        if k == PassKind.W:
            model.add(var >= start[PassKind.B, s, j] + duration[PassKind.B, s])
            model.add(makespan >= var + duration[PassKind.W, s])
    _ranks(model, request, start, duration, horizon)
    for row in range(len(hint)):
        key = (int(hint.kind[row]), int(hint.stage[row]), int(hint.micro_batch[row]))
        model.add_hint(start[key], int(np.rint(timeline.start[row] * ticks)))
    model.minimize(makespan)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.num_workers = 8
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    bound = solver.best_objective_bound / ticks
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    found = np.empty((3, num_stages, m))
    for key, var in start.items():
        found[key] = solver.value(var)
    return found, bound


def _ranks(model: Any, request: Request, start: dict[tuple[int, int, int], Any], duration: np.ndarray,
           horizon: int) -> None:  # fmt: skip
    """One pass at a time on each rank, and activations within the limit."""
    m, weights = request.microbatches, request.costs.activation
    # Whole activation units, rounded up: an order that fits in them fits.
    unit = 1_000_000
    limit = None if np.isinf(request.memory_limit) else int((request.memory_limit + TOLERANCE) * unit)
    for stages in request.stages_of_rank:
        passes = [
            model.new_fixed_size_interval_var(start[k, s, j], duration[k, s], "")
            for k in range(3) for s in stages for j in range(m)
        ]  # fmt: skip
        model.add_no_overlap(passes)
        if limit is None:
            continue
        held, demand = [], []
        for s in stages:
            for j in range(m):
                until = start[PassKind.W, s, j] + duration[PassKind.W, s]
                length = model.new_int_var(0, horizon, "")
                held.append(model.new_interval_var(start[PassKind.F, s, j], length, until, ""))
                demand.append(int(np.floor(weights[s] * unit)))
        model.add_cumulative(held, demand, limit)


def _by_start(request: Request, starts: np.ndarray) -> Table:
    """The order in which passes start, rank by rank; of passes that start at once the shorter one comes first."""
    kinds, stages, micros = [], [], []
    for mine in request.stages_of_rank:
        k, s, j = (a.ravel() for a in np.meshgrid(np.arange(3), mine, np.arange(request.microbatches), indexing="ij"))
        order = np.lexsort((request.costs.duration[k, s], starts[k, s, j]))
        kinds.append(k[order])
        stages.append(s[order])
        micros.append(j[order])
    return request.table(
        np.concatenate(kinds).astype(np.int8),
        np.concatenate(stages).astype(np.int16),
        np.concatenate(micros).astype(np.int32),
    )
