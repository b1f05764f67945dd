"""Orders that are made of a warm-up of forwards, a steady part that alternates, and a cool-down of backwards."""

import numpy as np
from numba import njit

from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.pass_kernels import BW, B, F, W
from primus_search.schedule.table import Ints, Table

FUSED = -1
"""Both gradients in one pass, instead of a delay of the weight gradients."""


def warm_steady_cool(
    request: Request, chunk: Ints, micro_batch: Ints, warm_up: Ints, delay: Ints | int = FUSED
) -> Table:
    """`warm_up[rank]` forwards, then one forward and one backward in turn, then the backwards that are left.

    Every rank runs its forwards in the order of `chunk` and `micro_batch` and its backwards in the same order with
    the chunks from behind (loop placement). Micro-batches beyond those of the request are left out; the passes after
    them keep their turns. `delay[rank]`: input gradients that run before the first weight gradient does; then one
    follows each, and the others come last.
    """
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    wait = np.broadcast_to(np.asarray(delay, dtype=np.int64), p)
    kind, stage, micro = _alternate(chunk, micro_batch, np.asarray(warm_up, dtype=np.int64), wait, p, m, v)
    return request.table(kind, stage, micro)


@njit(cache=True)
def _alternate(chunk, micro, warm_up, delay, p, m, v):  # type: ignore[no-untyped-def]
    n, most = len(chunk), 3 * p * m * v
    new_kind, new_stage, new_micro = np.empty(most, np.int8), np.empty(most, np.int16), np.empty(most, np.int32)
    to = 0
    for r in range(p):
        forwards, backwards, weights = 0, 0, 0
        while backwards < n or (weights < n and delay[r] >= 0):
            if delay[r] >= 0 and (backwards == n or weights < backwards - delay[r]):
                at, k, s = weights, W, (v - 1 - chunk[weights]) * p + r
                weights += 1
            elif forwards < n and forwards - backwards <= max(0, warm_up[r]):
                at, k, s = forwards, F, chunk[forwards] * p + r
                forwards += 1
            else:
                at, k, s = backwards, BW if delay[r] < 0 else B, (v - 1 - chunk[backwards]) * p + r
                backwards += 1
            if micro[at] < m:
                new_kind[to], new_stage[to], new_micro[to] = k, s, micro[at]
                to += 1
    return new_kind[:to], new_stage[:to], new_micro[:to]


def times_of(request: Request, chunk: Ints, micro_batch: Ints, warm_up: Ints) -> tuple[float, float, float]:
    """Makespan, span and peak activations of the order of `warm_steady_cool` without writing it down.

    Infinite makespan and span when the ranks wait for each other for ever.
    """
    costs, warm_up = request.costs, np.asarray(warm_up, dtype=np.int64)
    makespan, span, peak = _times(chunk, micro_batch, warm_up, request.stages, request.microbatches,
                                  request.virtual_stages, costs.duration, costs.comm, costs.activation)  # fmt: skip
    return float(makespan), float(span), float(peak)


@njit(cache=True)
def _times(chunk, micro, warm_up, p, m, v, duration, comm, weight):  # type: ignore[no-untyped-def]
    n, last, left = len(chunk), p * v - 1, 2 * p * len(chunk)
    end = np.full((2, p * v, m), -1.0)
    done = np.zeros((2, p), np.int64)
    free, first, held, peak = np.zeros(p), np.full(p, np.inf), np.zeros(p), 0.0
    moved = True
    while moved and left > 0:
        moved = False
        for r in range(p):
            while done[B, r] < n:
                runs_forward = done[F, r] < n and done[F, r] - done[B, r] <= max(0, warm_up[r])
                k = F if runs_forward else B
                at = done[k, r]
                j, s, ready = micro[at], (chunk[at] if runs_forward else v - 1 - chunk[at]) * p + r, 0.0
                if j < m:
                    if k == F and s > 0:
                        ready = end[F, s - 1, j] + comm[s - 1] if end[F, s - 1, j] >= 0.0 else -1.0
                    elif k == B and s < last:
                        ready = end[B, s + 1, j] + comm[s] if end[B, s + 1, j] >= 0.0 else -1.0
                    if ready < 0.0 or (k == B and end[F, s, j] < 0.0):
                        break
                    start = max(free[r], ready)
                    first[r] = min(first[r], start)
                    end[k, s, j] = free[r] = start + duration[F if runs_forward else BW, s]
                    held[r] += weight[s] if runs_forward else -weight[s]
                    peak = max(peak, held[r])
                done[k, r] = at + 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf, np.inf, peak
    return free.max(), (free - first).max(), peak
