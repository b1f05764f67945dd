"""Seconds of kernels that only move bytes: elementwise, norms, softmax, permutation, casts, optimizer.

    time = latency + bytes / (efficiency(kind) * data-sheet bandwidth)

`bytes_moved` counts every read and write of the kernel as it is written, so a fused kernel moves fewer bytes and an
eager one more: the software stack decides that, not this law. Errors and sources: docs/cost/memory_bound.md.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from primus_search.values.candidates import Floats
from primus_search.values.machine.accelerator import Accelerator


class Stream(IntEnum):
    """Kinds of bandwidth-bound kernels that reach different shares of the bandwidth."""

    ELEMENTWISE = 0
    NORM = 1
    NORM_BACKWARD = 2
    SOFTMAX = 3
    PERMUTE = 4
    CAST = 5
    OPTIMIZER = 6
    GATHER = 7
    LIBRARY_CAST = 8


def stream_s(acc: Accelerator, bytes_moved: ArrayLike, kind: Stream) -> Floats:
    """Seconds of one bandwidth-bound kernel; 0 where it moves nothing."""
    moved = np.asarray(bytes_moved, np.float64)
    return np.where(moved > 0, acc.memory.latency_s + moved / bandwidth_bytes_per_s(acc, kind), 0.0)


def bandwidth_bytes_per_s(acc: Accelerator, kind: Stream) -> float:
    """Achieved bytes per second of one kind of kernel on large data."""
    law = acc.memory
    share = (
        law.stream_efficiency,
        law.norm_efficiency,
        law.norm_backward_efficiency,
        law.softmax_efficiency,
        law.permute_efficiency,
        law.cast_efficiency,
        law.optimizer_efficiency,
        law.gather_efficiency or law.permute_efficiency,
        law.library_cast_efficiency or law.cast_efficiency,
    )[kind]
    return acc.hbm_bytes_per_s * share
