# mypy: allow-untyped-defs
"""Paths of one micro-batch through a V of ranks: the orders of forwards and backwards that V schedules repeat.

Micro-batch i begins every pass at the path's time of it plus i periods; each rank runs its passes in that order. A path
is laid like this: on each of its four legs (F down, F up, B down, B up) a hop takes the pass, the communication and a
chosen wait, and longer where the pass would meet one of another micro-batch on its rank. Short waits keep few
activations alive, long ones fill the warm-up. Passes of one slot and no communication give the building blocks of
arXiv:2405.15362 (V-Half, V-Min, 1F1B-V); the costs as they are give others.
"""

from dataclasses import dataclass, replace

import numpy as np

from primus_search.base.guards.files import table_beside
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.pass_kernels import BW, F
from primus_search.schedule.table import Table

Legs = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternStart:
    """Where an order begins: its path, and how it is first walked.

    legs        sixths of a period that a hop waits on each leg
    turn        sixths of a period that the last stage waits between its forward and its gradient
    grid        the path is laid for passes that all take one slot, a fused backward two, and free communication
    stretch     period of the path, in units of the busiest rank's work per micro-batch
    walks_grid  the order is formed on that grid too, not at the costs
    delay_limit    which of `fill_gaps.delay_limits` decides where its weight gradients go at first
    """

    legs: Legs
    grid: bool
    delay_limit: int
    stretch: float = 1.0
    walks_grid: bool = False
    turn: int = 0


STARTS = tuple(PatternStart(**row | {"legs": tuple(row["legs"])}) for row in table_beside(__file__)["starts"])
"""The most useful first."""

SLOTS = 6.0
"""Period of a path on the grid: F, B and W of two chunks."""


def path_order(request: Request, start: PatternStart) -> Table:
    """The fused order in which every rank meets the passes of a path that repeats."""
    p, m, costs = request.stages, request.microbatches, (on_grid(request) if start.grid else request).costs
    work = costs.duration[:3].sum(axis=0)
    slot = float((work + work[::-1]).max()) * start.stretch / SLOTS
    path = _lay(p, SLOTS * slot, costs.forward, costs.backward, costs.comm, np.array(start.legs) * slot,
                start.turn * slot)  # fmt: skip
    rank, leg, micro = (column.ravel() for column in np.indices((p, 4, m)))
    stage = np.where((leg == 0) | (leg == 3), rank, 2 * p - 1 - rank)
    periods = path[np.where(leg < 2, stage, 4 * p - 1 - stage)] / (SLOTS * slot) + micro
    order = np.lexsort((leg, np.rint(periods * 1e8), rank))
    kind = np.where(leg < 2, F, BW)
    return request.table(kind[order].astype(np.int8), stage[order].astype(np.int16), micro[order].astype(np.int32))


def on_grid(request: Request) -> Request:
    """The request with passes that all take one slot, fused backwards two, and free communication."""
    costs, slots = request.costs, np.ones(2 * request.stages)
    has_weights = bool(costs.weight.any())
    backward, weight = (slots, slots) if has_weights else (2.0 * slots, 0.0 * slots)
    even = replace(costs, forward=slots, backward=backward, weight=weight, comm=0.0 * slots)
    for values in (even.forward, even.backward, even.weight, even.comm):
        values.setflags(write=False)  # numba compiles a kernel anew for an array of another kind
    return replace(request, costs=even)


@njit(cache=True)
def _lay(p, period, forward, backward, comm, waits, turn):
    """The path; a hop that finds no free time within a period meets other passes."""
    stages = 2 * p
    path = np.empty(2 * stages)
    begin, length, placed = np.empty((p, 4)), np.empty((p, 4)), np.zeros(p, np.int64)
    t, fuzz = 0.0, 1e-9 * period
    for step in range(2 * stages):
        s = step if step < stages else 2 * stages - 1 - step
        r = s if s < p else stages - 1 - s
        d = forward[s] if step < stages else backward[s]
        t += waits[step // p] if step > 0 else 0.0
        t += turn if step == stages else 0.0
        latest, moved = t + period, True
        while moved and t <= latest:
            moved = False
            for j in range(placed[r]):
                ahead = (t - begin[r, j]) % period
                if ahead > period - fuzz:
                    ahead = 0.0
                if ahead < length[r, j] - fuzz:
                    t, moved = t + length[r, j] - ahead, True
                elif ahead > period - d + fuzz:
                    t, moved = t + period - ahead + length[r, j], True
        begin[r, placed[r]], length[r, placed[r]] = t, d
        placed[r] += 1
        path[step] = t
        t += d
        if step < stages - 1:
            t += comm[s]
        elif stages - 1 < step < 2 * stages - 1:
            t += comm[s - 1]
    return path
