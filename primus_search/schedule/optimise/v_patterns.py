# mypy: allow-untyped-defs
"""Paths of one micro-batch through a V of ranks: the orders of forwards and backwards that V schedules repeat.

Micro-batch i begins every pass at the path's time of it plus i periods; each rank runs its passes in that order. A path
is laid like this: on each of its four legs (F down, F up, B down, B up) a hop takes the pass, the communication and a
chosen wait, and longer where the pass would meet one of another micro-batch on its rank. Short waits keep few
activations alive, long ones fill the warm-up. Passes of one slot and no communication give the building blocks of
arXiv:2405.15362 (V-Half, V-Min, 1F1B-V); the costs as they are give others.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import Request

Legs = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternStart:
    """Where an order begins: its path, and how it is first walked.

    legs        sixths of a period that a hop waits on each leg
    turn        sixths of a period that the last stage waits between its forward and its gradient
    grid        the path is laid for passes that all take one slot, a fused backward two, and free communication
    stretch     period of the path, in units of the busiest rank's work per micro-batch
    walks_grid  the order is formed on that grid too, not at the costs
    delay_limit    which of `split_backward.delay_limits` decides where its weight gradients go at first
    """

    legs: Legs
    grid: bool
    delay_limit: int
    stretch: float = 1.0
    walks_grid: bool = False
    turn: int = 0


# In the order of what they add to the ones before them, over pipelines of 4 to 16 ranks at even and uneven costs.
STARTS: tuple[PatternStart, ...] = (
    PatternStart(legs=(0, 0, 0, 0), grid=True, delay_limit=6, walks_grid=True, turn=5),
    PatternStart(legs=(1, 0, 1, 0), grid=True, delay_limit=0, walks_grid=True),
    PatternStart(legs=(0, 1, 0, 0), grid=True, delay_limit=0, walks_grid=True, turn=4),
    PatternStart(legs=(0, 0, 0, 0), grid=False, delay_limit=0, turn=1),
    PatternStart(legs=(0, 0, 0, 0), grid=True, delay_limit=0, walks_grid=True),
    PatternStart(legs=(1, 0, 1, 0), grid=False, delay_limit=0),
    PatternStart(legs=(0, 3, 0, 3), grid=True, delay_limit=2),
    PatternStart(legs=(0, 0, 0, 0), grid=True, delay_limit=6, turn=1),
    PatternStart(legs=(1, 0, 0, 0), grid=True, delay_limit=0, walks_grid=True, turn=3),
    PatternStart(legs=(1, 0, 0, 1), grid=False, delay_limit=0, turn=2, stretch=1.25),
    PatternStart(legs=(1, 0, 1, 0), grid=False, delay_limit=2, stretch=1.1),
    PatternStart(legs=(0, 0, 0, 0), grid=True, delay_limit=6, walks_grid=True),
    PatternStart(legs=(1, 0, 0, 1), grid=True, delay_limit=6, walks_grid=True, turn=5),
    PatternStart(legs=(0, 1, 1, 0), grid=False, delay_limit=0, turn=1),
    PatternStart(legs=(0, 1, 0, 0), grid=False, delay_limit=6, stretch=1.25),
    PatternStart(legs=(0, 1, 0, 1), grid=False, delay_limit=2),
    PatternStart(legs=(0, 0, 0, 0), grid=False, delay_limit=0, turn=5, stretch=1.1),
    PatternStart(legs=(1, 1, 1, 1), grid=False, delay_limit=6, stretch=1.1),
    PatternStart(legs=(0, 1, 0, 0), grid=False, delay_limit=0, stretch=1.25),
    PatternStart(legs=(1, 0, 0, 0), grid=True, delay_limit=0, walks_grid=True),
    PatternStart(legs=(1, 3, 1, 3), grid=False, delay_limit=0),
    PatternStart(legs=(2, 2, 2, 2), grid=False, delay_limit=6, turn=1, stretch=1.25),
    PatternStart(legs=(1, 3, 0, 3), grid=True, delay_limit=0, walks_grid=True),
    PatternStart(legs=(0, 1, 0, 1), grid=True, delay_limit=6, walks_grid=True, turn=2),
    PatternStart(legs=(0, 0, 1, 0), grid=True, delay_limit=0, walks_grid=True, turn=3),
    PatternStart(legs=(0, 1, 0, 1), grid=False, delay_limit=6, turn=1, stretch=1.1),
    PatternStart(legs=(0, 0, 0, 0), grid=False, delay_limit=2, turn=1, stretch=1.1),
    PatternStart(legs=(0, 1, 0, 0), grid=False, delay_limit=0, stretch=1.1),
    PatternStart(legs=(1, 1, 1, 1), grid=False, delay_limit=0, stretch=1.1),
    PatternStart(legs=(0, 3, 0, 3), grid=True, delay_limit=0, walks_grid=True, turn=1),
    PatternStart(legs=(0, 1, 0, 1), grid=True, delay_limit=6, walks_grid=True, turn=4),
    PatternStart(legs=(1, 0, 0, 1), grid=True, delay_limit=0, walks_grid=True, turn=3),
    PatternStart(legs=(1, 1, 0, 1), grid=False, delay_limit=2, stretch=1.25),
    PatternStart(legs=(1, 0, 1, 0), grid=False, delay_limit=2),
    PatternStart(legs=(1, 0, 1, 0), grid=False, delay_limit=0, turn=2, stretch=1.1),
    PatternStart(legs=(0, 0, 0, 1), grid=False, delay_limit=0, stretch=1.1),
    PatternStart(legs=(0, 3, 0, 3), grid=False, delay_limit=2, turn=1, stretch=1.25),
)

SLOTS = 6.0
"""Period of a path on the grid: F, B and W of two chunks."""


def path_of(request: Request, start: PatternStart) -> tuple[Floats, float]:
    """Times of F(0) .. F(2p-1), B(2p-1) .. B(0) of micro-batch 0, and the period."""
    duration, comm, period = grid_costs(request) if start.grid else _costs(request)
    period *= start.stretch
    waits = np.array(start.legs, dtype=np.float64) * (period / SLOTS)
    path: Floats = _lay(request.stages, period, duration[0], duration[1], comm, waits, start.turn * period / SLOTS)
    return path, period


def grid_costs(request: Request) -> tuple[Floats, Floats, float]:
    """Durations [kind, stage], communication and period where every pass takes one slot."""
    duration = np.ones((3, 2 * request.stages))
    if not request.costs.weight.any():
        duration[1], duration[2] = 2.0, 0.0
    comm = np.zeros(2 * request.stages)
    comm.setflags(write=False)  # as those of `_costs`: numba compiles a kernel anew for an array of another kind
    return duration, comm, SLOTS


def _costs(request: Request) -> tuple[Floats, Floats, float]:
    duration = np.ascontiguousarray(request.costs.duration[:3])
    work = duration.sum(axis=0)
    return duration, request.costs.comm, float((work + work[::-1]).max())


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
