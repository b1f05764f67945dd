"""Each weight gradient a fixed number of gradients behind its own: the W placement of interleaved ZB1P in PyTorch."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from primus_search.schedule.kernels import BW, B, W
from primus_search.schedule.table import Table


def lagged(pattern: Table, lag: NDArray[np.int64]) -> Table:
    """A fused order split into B and W, the W of a gradient right after the gradient `lag[rank]` places later.

    With a lag of r on rank r the ranks that hold fewer micro-batches use the rest of their memory to give their
    gradients on early.
    """
    offsets, kind, stage, micro_batch = _lagged(
        pattern.offsets, pattern.kind, pattern.stage, pattern.micro_batch, np.asarray(lag, dtype=np.int64)
    )
    return Table(
        name=pattern.name,
        stages=pattern.stages,
        microbatches=pattern.microbatches,
        virtual_stages=pattern.virtual_stages,
        placement=pattern.placement,
        offsets=offsets,
        kind=kind,
        stage=stage,
        micro_batch=micro_batch,
        overlaps_next=np.zeros(len(kind), dtype=np.bool_),
    )


@njit(cache=True)
def _lagged(offsets, kind, stage, micro, lag):  # type: ignore[no-untyped-def]
    p = len(offsets) - 1
    new_offsets = np.zeros(p + 1, np.int64)
    for r in range(p):
        new_offsets[r + 1] = new_offsets[r] + 3 * (offsets[r + 1] - offsets[r]) // 2
    total = new_offsets[p]
    new_kind, new_stage, new_micro = np.empty(total, np.int8), np.empty(total, np.int16), np.empty(total, np.int32)
    waiting = np.empty(len(kind), np.int64)
    for r in range(p):
        to, head, tail = new_offsets[r], 0, 0
        for i in range(offsets[r], offsets[r + 1] + len(kind)):
            if i < offsets[r + 1]:
                k = kind[i]
                new_kind[to], new_stage[to], new_micro[to] = B if k == BW else k, stage[i], micro[i]
                to += 1
                if k == BW:
                    waiting[tail] = i
                    tail += 1
            if head == tail and i >= offsets[r + 1]:
                break
            if tail - head > lag[r] or i >= offsets[r + 1]:
                row = waiting[head]
                head += 1
                new_kind[to], new_stage[to], new_micro[to] = W, stage[row], micro[row]
                to += 1
    return new_offsets, new_kind, new_stage, new_micro
