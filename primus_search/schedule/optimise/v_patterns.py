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
from primus_search.schedule.simulation.pass_kernels import B, F, W

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


FULL = -1
"""Instead of a leg: only a forward is left that does not fit, and no weight gradient that would make room."""


@njit(cache=True)
def unroll(p, m, path, period, duration, hops, weight, limit, delay_limit, kind, stage, micro, write):
    """Makespan and span of a path's order; infinite when it exceeds `limit` or deadlocks.

    `path[s]`: time of F(s) of micro-batch 0; `path[4p - 1 - s]`: of B(s). With `write` the columns are filled, 6m rows
    per rank. `delay_limit[rank]`: the share of a W that must fit into a gap before it runs there; negative: at once.
    """
    end = np.full((2, 2 * p, m), np.inf)
    nxt = np.zeros((p, 4), np.int64)
    free, first, held = np.zeros(p), np.full(p, -1.0), np.zeros(p)
    queue_stage, queue_micro = np.empty((p, 2 * m), np.int64), np.empty((p, 2 * m), np.int64)
    head, tail = np.zeros(p, np.int64), np.zeros(p, np.int64)
    out, left, moved = np.arange(p) * 6 * m, 4 * p * m, True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            while nxt[r, 0] + nxt[r, 1] + nxt[r, 2] + nxt[r, 3] < 4 * m:
                leg = _next_leg(p, m, r, path, period, nxt, held[r], weight, limit, head[r] < tail[r])
                if leg == FULL:
                    return np.inf, np.inf
                i, k = nxt[r, leg], F if leg < 2 else B
                s = r if leg == 0 or leg == 3 else 2 * p - 1 - r
                ready = _input(k, s, i, end, hops)
                if head[r] < tail[r]:
                    waiting = queue_stage[r, head[r]]
                    full = k == F and held[r] + weight[s] > limit + 1e-9
                    if full or _runs_weight(ready, free[r], delay_limit[r], duration[W, waiting]):
                        if write:
                            kind[out[r]], stage[out[r]], micro[out[r]] = W, waiting, queue_micro[r, head[r]]
                            out[r] += 1
                        head[r] += 1
                        free[r] += duration[W, waiting]
                        held[r] -= weight[waiting]
                        continue
                if ready == np.inf:
                    break
                start = max(free[r], ready)
                if first[r] < 0.0:
                    first[r] = start
                free[r] = start + duration[k, s]
                end[k, s, i] = free[r]
                if write:
                    kind[out[r]], stage[out[r]], micro[out[r]] = k, s, i
                    out[r] += 1
                if k == F:
                    held[r] += weight[s]
                else:
                    queue_stage[r, tail[r]], queue_micro[r, tail[r]] = s, i
                    tail[r] += 1
                nxt[r, leg] += 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf, np.inf
    makespan, span = 0.0, 0.0
    for r in range(p):
        for q in range(head[r], tail[r]):
            free[r] += duration[W, queue_stage[r, q]]
            if write:
                kind[out[r]], stage[out[r]], micro[out[r]] = W, queue_stage[r, q], queue_micro[r, q]
                out[r] += 1
        makespan, span = max(makespan, free[r]), max(span, free[r] - first[r])
    return makespan, span


@njit(cache=True)
def _next_leg(p, m, r, path, period, nxt, held, weight, limit, can_wait):
    """The leg whose pass is next on a rank in the path's time; a forward that does not fit can wait for a W or not."""
    chosen, due = FULL, np.inf
    for leg in range(4):
        i = nxt[r, leg]
        if i >= m or (leg > 0 and i >= nxt[r, leg - 1]):
            continue
        s = r if leg == 0 or leg == 3 else 2 * p - 1 - r
        at = (path[s] if leg < 2 else path[4 * p - 1 - s]) + i * period
        if at < due - 1e-9 * period:
            if leg < 2 and not can_wait and held + weight[s] > limit + 1e-9:
                continue
            chosen, due = leg, at
    return chosen


@njit(cache=True)
def _input(k, s, i, end, hops):
    """When the input of a pass from another stage is there; infinite as long as it is not known."""
    if k == F:
        return end[F, s - 1, i] + hops[s - 1] if s > 0 else 0.0
    return end[B, s + 1, i] + hops[s] if s + 1 < end.shape[1] else 0.0


@njit(cache=True)
def _runs_weight(ready, free, delay_limit, length):
    """Whether a W goes before a pass: always without a delay, else where enough of it fits before the known input."""
    return delay_limit < 0.0 or (ready < np.inf and ready > free and ready - free >= delay_limit * length)
