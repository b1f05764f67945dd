# mypy: allow-untyped-defs
"""The order that a repeating path implies: each rank takes the pass that is next in the path's time.

While the order forms, a rank puts weight gradients where it would idle or needs the memory, and postpones a forward
that does not fit.
"""

import numpy as np
from numba import njit

from primus_search.schedule.simulation.pass_kernels import B, F, W

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
