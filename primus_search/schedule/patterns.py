"""Orders that are made of a warm-up of forwards, a steady part that alternates, and a cool-down of backwards."""

import numpy as np
from numba import njit

from primus_search.schedule.kernels import BW, F
from primus_search.schedule.registry import Request
from primus_search.schedule.table import Ints, Table


def warm_steady_cool(request: Request, chunk: Ints, micro_batch: Ints, warm_up: Ints) -> Table:
    """`warm_up[rank]` forwards, then one forward and one fused backward in turn, then the backwards that are left.

    Every rank runs its forwards in the order of `chunk` and `micro_batch` and its backwards in the same order with
    the chunks from behind (loop placement). Micro-batches beyond those of the request are left out; the passes after
    them keep their turns.
    """
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    kind, stage, micro = _alternate(chunk, micro_batch, np.asarray(warm_up, dtype=np.int64), p, m, v)
    return Table(
        name=request.name,
        stages=p,
        microbatches=m,
        virtual_stages=v,
        placement=request.placement,
        offsets=np.arange(p + 1, dtype=np.int64) * (2 * v * m),
        kind=kind,
        stage=stage,
        micro_batch=micro,
        overlaps_next=np.zeros(len(kind), dtype=np.bool_),
    )


@njit(cache=True)
def _alternate(chunk, micro, warm_up, p, m, v):  # type: ignore[no-untyped-def]
    n, rows = len(chunk), 2 * p * m * v
    new_kind, new_stage, new_micro = np.empty(rows, np.int8), np.empty(rows, np.int16), np.empty(rows, np.int32)
    to = 0
    for r in range(p):
        forwards, backwards = 0, 0
        while backwards < n:
            runs_forward = forwards < n and forwards - backwards <= max(0, warm_up[r])
            if runs_forward:
                at, k, s = forwards, F, chunk[forwards] * p + r
                forwards += 1
            else:
                at, k, s = backwards, BW, (v - 1 - chunk[backwards]) * p + r
                backwards += 1
            if micro[at] < m:
                new_kind[to], new_stage[to], new_micro[to] = k, s, micro[at]
                to += 1
    return new_kind, new_stage, new_micro
