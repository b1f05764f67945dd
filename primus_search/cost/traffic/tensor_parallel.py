"""Tensor-parallel traffic of one layer: what moves between the ranks that share every matrix of it.

With sequence parallelism activations are split by tokens outside the matrices, so each block gathers its input and
scatters its output; without it each block all-reduces its output. A dense layer has two such blocks (attention and
MLP); a MoE layer has attention, and the shared experts where there are any (routed experts: `expert_parallel`).

Backward mirrors forward (the gradient of a gather is a scatter). Frameworks then run one half of it beside a GEMM:
the scatter of the input gradient beside the weight-gradient GEMM, and, with sequence parallelism, the second gather of
the input (it was not kept) beside the input-gradient GEMM.

Source: Megatron-LM, Korthikanti et al. 2022 (arXiv:2205.05198) section 4 for the collectives and the second gather;
the asynchronous halves are in Megatron-LM core/tensor_parallel/layers.py (linear layer with asynchronous
communication).
"""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, all_reduce_s, reduce_scatter_s
from primus_search.cost.laws.gemm import GATHERS_LOW
from primus_search.cost.traffic.comm_table import LayerTraffic, comm, exposed_s
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.model import LayerKind, Model, NoFeedForward, NoMixer, Split, adapted_matrices


def num_split_blocks(model: Model, kind: LayerKind) -> int:
    """Blocks of a layer whose matrices tensor parallelism splits: its mixer, and a dense MLP or shared experts."""
    has_mixer = not isinstance(kind.mixer, NoMixer)
    if isinstance(kind.feed_forward, NoFeedForward):
        return 1
    return has_mixer + (not kind.is_moe or model.beside_experts_hidden > 0)


def tensor_parallel(job: Job, kind: LayerKind, c: Candidates, gemms_s: ArrayLike) -> LayerTraffic:
    """Tensor-parallel traffic of one layer per micro-batch, given the seconds of GEMMs it may hide behind, per pass.

    Formula, per block of `num_split_blocks`, x = tokens * H * 2 bytes, AG x halved where activations travel as FP8:
        sequence parallel   forward AG + RS;  backward AG + RS + AG, of which RS + AG run beside a GEMM
        otherwise           forward AR;       backward AR, which runs beside a GEMM
        hidden forward = tensor_overlap * min(comm, GEMM); hidden backward adds the asynchronous half
    Chunks that overlap with a GEMM go through memory that the devices of one fast domain share; over NICs only the
    asynchronous halves are hidden. Source: NVIDIA/TransformerEngine#1071, and #1470 for domains of several nodes.
    """
    model, network, stack = job.model, job.network, job.stack
    blocks = num_split_blocks(model, kind)
    group = Group(c.tp, np.ones_like(c.tp))
    tokens = c.micro_batch_size * (job.workload.seq_length / c.cp)
    full = tokens * model.hidden * BF16_BYTES
    gathered = full * np.where(GATHERS_LOW[c.fp8] & stack.precision.has_fp8_tensor_gather, 0.5, 1.0)
    gather = blocks * all_gather_s(network, gathered, group)
    scatter = blocks * reduce_scatter_s(network, full, group)
    reduce = blocks * all_reduce_s(network, full, group)
    sp = c.sequence_parallel
    scale = 1.0 / stack.efficiencies.network_efficiency
    overlap = np.where(c.tp_overlap, stack.communication.switched_tensor_overlap, stack.communication.tensor_overlap)
    overlap = overlap * (c.tp <= network.domain_size)
    blocking = scale * np.where(sp, gather + scatter, reduce)
    beside_weight_grad = scale * np.where(sp, scatter, reduce)
    beside_input_grad = scale * np.where(sp, gather, 0.0)
    # Each GEMM hides one stream of traffic only.
    async_overlap = stack.communication.tensor_async_overlap
    gemms_left = np.maximum(np.asarray(gemms_s) - async_overlap * beside_input_grad, 0.0)
    backward_left = exposed_s(beside_input_grad, gemms_s, overlap=async_overlap)
    backward_left = backward_left + exposed_s(beside_weight_grad, gemms_s, overlap=async_overlap)
    backward_left = backward_left + exposed_s(beside_input_grad, gemms_left, overlap=overlap)
    is_split, forward_left = c.tp > 1, exposed_s(blocking, gemms_s, overlap=overlap)
    backward_s = beside_weight_grad + beside_input_grad + beside_input_grad
    sent, back = np.where(sp, 2 * blocks, blocks) * is_split, np.where(sp, 3 * blocks, blocks) * is_split
    return LayerTraffic(
        forward=comm("tensor-parallel forward", full, sent, blocking, forward_left),
        backward=comm("tensor-parallel backward", full, back, backward_s, backward_left),
    )


def adapter_exchange(job: Job, kind: LayerKind, c: Candidates) -> LayerTraffic:
    """Tensor-parallel traffic that the adapters of one layer add per micro-batch, with nothing to hide behind.

    Formula, x = tokens * H * 2 bytes, z = tokens * r * 2 bytes, per adapted matrix:
        split by output   forward AG z;         backward AR z, and RS x (without sequence parallelism AR x)
        split by input    forward AR z + AG x;  backward AR z, and AG x where sequence parallelism splits tokens
    Source: NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/peft/utils.py, ParallelLinearAdapter: `linear_in` gathers
    its output or sums it, `linear_out` of a matrix split by input gathers its output and scatters its tokens.
    """
    model, network, group = job.model, job.network, Group(c.tp, np.ones_like(c.tp))
    adapters, tokens = model.adapters, c.micro_batch_size * (job.workload.seq_length / c.cp)
    assert adapters is not None
    low = tokens * adapters.rank * BF16_BYTES
    forward, backward, sent = (np.zeros(len(c)) for _ in range(3))
    for one in adapted_matrices(model, kind):
        if one.of_experts or one.matrix.split is Split.WHOLE:
            continue
        is_row = one.matrix.split is Split.ROW
        full = tokens * (one.matrix.n if is_row else one.matrix.k) * BF16_BYTES
        gather, reduce = all_gather_s(network, full, group), all_reduce_s(network, full, group)
        scatter, summed = reduce_scatter_s(network, full, group), all_reduce_s(network, low, group)
        forward = forward + (summed + gather if is_row else all_gather_s(network, low, group))
        split, unsplit = (gather, 0.0) if is_row else (scatter, reduce)
        backward = backward + summed + np.where(c.sequence_parallel, split, unsplit)
        sent = sent + 2.0
    scale = (c.tp > 1) / job.stack.efficiencies.network_efficiency
    message = tokens * model.hidden * BF16_BYTES
    return LayerTraffic(
        forward=comm("adapters forward", message, sent * (c.tp > 1), forward * scale, forward * scale),
        backward=comm("adapters backward", message, sent * (c.tp > 1), backward * scale, backward * scale),
    )
