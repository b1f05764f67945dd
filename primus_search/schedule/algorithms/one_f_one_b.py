"""1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473), GPipe (Huang et al. 2019, arXiv:1811.06965), and
what other orders share with them: a warm-up of forwards, a steady part that alternates, and a cool-down of backwards.
"""

import numpy as np
from numba import njit

from primus_search.schedule.registry import Request, register
from primus_search.schedule.simulation.pass_kernels import BW, B, F, W
from primus_search.schedule.table import Ints, Placement, Table

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


@register("1f1b", summary="one forward, one backward in turn", placement=Placement.LOOP)
def one_f_one_b(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak p - r on rank r (or m if that is less)."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), p - 1 - np.arange(p))


@register("gpipe", summary="all forwards, then all backwards", placement=Placement.LOOP)
def gpipe(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak m."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), np.full(p, m))
