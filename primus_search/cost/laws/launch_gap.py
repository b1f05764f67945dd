"""Seconds a stream waits for its next kernel: the gap that stays even when every kernel is short.

Launches overlap with running kernels, so this is a lower bound on the time of a run of short kernels
(`max(kernel time, launch time)`), never an addition to long ones; `stage` and `layer` apply it that way.
"""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.accelerator import Accelerator
from primus_search.candidates import Floats


def launch_s(acc: Accelerator, num_kernels: ArrayLike, is_graphed: ArrayLike = False) -> Floats:
    """Seconds the device needs to start `num_kernels` one after another, from a stream or from a graph.

    Source: back-to-back kernel throughput, gpu-benches (see hardware/*.yaml). Host time per operation of an eager
    framework is larger and belongs to the software stack.
    """
    gap_s = np.where(np.asarray(is_graphed, np.bool_), acc.launch.graph_s, acc.launch.stream_s)
    return np.asarray(num_kernels, np.float64) * gap_s
