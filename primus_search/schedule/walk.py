# mypy: allow-untyped-defs
"""The order that a repeating path implies: each rank takes the pass that is next in the path's time.

While the order forms, a rank puts weight gradients where it would idle or needs the memory, and postpones a forward
that does not fit.
"""

import numpy as np
from numba import njit

F, B, W = 0, 1, 2


@njit(cache=True)
def walk(p, m, path, period, duration, hops, weight, limit, patience, kind, stage, micro, write):
    """Makespan and span of a path's order; infinite when it exceeds `limit` or deadlocks.

    `path[s]`: time of F(s) of micro-batch 0; `path[4p - 1 - s]`: of B(s). With `write` the columns are filled, 6m rows
    per rank. `patience[rank]`: the share of a W that must fit into a gap before it runs there; negative: at once.
    """
    stages = 2 * p
    end = np.full((2, stages, m), -1.0)
    nxt = np.zeros((p, 4), np.int64)
    free, first, held = np.zeros(p), np.full(p, -1.0), np.zeros(p)
    queue_stage, queue_micro = np.empty((p, 2 * m), np.int64), np.empty((p, 2 * m), np.int64)
    head, tail = np.zeros(p, np.int64), np.zeros(p, np.int64)
    out = np.arange(p) * 6 * m
    left = 4 * p * m
    moved = True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            up = stages - 1 - r
            while nxt[r, 0] + nxt[r, 1] + nxt[r, 2] + nxt[r, 3] < 4 * m:
                chosen, due, blocked = -1, np.inf, False
                for leg in range(4):
                    i = nxt[r, leg]
                    if i >= m or (leg == 1 and i >= nxt[r, 0]) or (leg == 2 and i >= nxt[r, 1]):
                        continue
                    if leg == 3 and i >= nxt[r, 2]:
                        continue
                    s = r if leg == 0 or leg == 3 else up
                    at = path[s] if leg < 2 else path[2 * stages - 1 - s]
                    at += i * period
                    if at < due - 1e-9 * period:
                        if leg < 2 and held[r] + weight[s] > limit + 1e-9 and head[r] == tail[r]:
                            blocked = True
                            continue
                        chosen, due = leg, at
                if chosen < 0:
                    if blocked:
                        return np.inf, np.inf
                    break
                i = nxt[r, chosen]
                s = r if chosen == 0 or chosen == 3 else up
                ready, known = 0.0, True
                if chosen < 2 and s > 0:
                    known = end[F, s - 1, i] >= 0.0
                    ready = end[F, s - 1, i] + hops[s - 1]
                elif chosen >= 2 and s < stages - 1:
                    known = end[B, s + 1, i] >= 0.0
                    ready = end[B, s + 1, i] + hops[s]
                run_weight = False
                if head[r] < tail[r]:
                    w = duration[W, queue_stage[r, head[r]]]
                    if (chosen < 2 and held[r] + weight[s] > limit + 1e-9) or patience[r] < 0.0:
                        run_weight = True
                    elif not known:
                        break
                    elif ready - free[r] >= patience[r] * w and ready > free[r]:
                        run_weight = True
                if run_weight:
                    q = head[r]
                    head[r] += 1
                    free[r] += duration[W, queue_stage[r, q]]
                    held[r] -= weight[queue_stage[r, q]]
                    if write:
                        kind[out[r]], stage[out[r]], micro[out[r]] = W, queue_stage[r, q], queue_micro[r, q]
                        out[r] += 1
                    continue
                if not known:
                    break
                k = F if chosen < 2 else B
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
                nxt[r, chosen] += 1
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
