"""Context-parallel traffic of a layer by its mixer: keys and values of attention, or states of a scan."""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.units import FP32_BYTES
from primus_search.cost.laws.collectives import Group, send_s
from primus_search.cost.traffic.comm_table import LayerTraffic, comm
from primus_search.cost.traffic.context_parallel import context_parallel
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.model import Attention, CompressedAttention, LatentMixer, LayerKind


def mixer_context(
    job: Job, kind: LayerKind, c: Candidates, *, forward_s: ArrayLike, backward_s: ArrayLike
) -> LayerTraffic:
    """Context-parallel traffic of one layer and micro-batch, given the seconds of attention it may hide behind.

    A scan passes its state from rank to rank in order, cp - 1 sends of H K V FP32 numbers per sequence, and back in
    backward; the ranks wait for it. Attention of every form passes keys and values.
    Source: sequence-parallel Mamba-2 (arXiv:2405.21060) section 8.2; the same for linear attention (arXiv:2404.02882).
    """
    if kind.mixer is None or isinstance(kind.mixer, Attention | LatentMixer | CompressedAttention):
        seen, _ = job.layer(kind)
        return context_parallel(seen, c, forward_s=forward_s, backward_s=backward_s)
    state = c.micro_batch_size * FP32_BYTES * kind.mixer.core(job.model.hidden).state / c.tp
    steps = (c.cp - 1.0) * (state > 0)
    one = send_s(job.network, state, Group(c.cp, c.tp)) / job.stack.efficiencies.network_efficiency
    waiting = np.asarray(steps * one)
    return LayerTraffic(
        forward=comm("states of scans forward", state, steps, waiting, waiting),
        backward=comm("states of scans backward", state, steps, waiting, waiting),
    )
