"""Orders that are made of a warm-up of forwards, a steady part that alternates, and a cool-down of backwards."""

import numpy as np
from numpy.typing import NDArray

from primus_search.schedule.table import Kind, RankOrder


def warm_steady_cool(
    forward_stage: NDArray[np.int64],
    forward_micro: NDArray[np.int64],
    backward_stage: NDArray[np.int64],
    backward_micro: NDArray[np.int64],
    warm_up: int,
) -> RankOrder:
    """`warm_up` forwards, then one forward and one fused backward in turn, then the backwards that are left."""
    n = len(forward_stage)
    warm = min(max(warm_up, 0), n)
    steady = n - warm
    f_at = np.concatenate([np.arange(warm), warm + 2 * np.arange(steady)])
    b_at = np.concatenate([warm + 2 * np.arange(steady) + 1, warm + 2 * steady + np.arange(warm)])
    kind = np.empty(2 * n, dtype=np.int8)
    stage = np.empty(2 * n, dtype=np.int16)
    micro = np.empty(2 * n, dtype=np.int32)
    kind[f_at], kind[b_at] = Kind.F, Kind.BW
    stage[f_at], stage[b_at] = forward_stage, backward_stage
    micro[f_at], micro[b_at] = forward_micro, backward_micro
    return RankOrder(kind, stage, micro)
