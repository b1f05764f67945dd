"""Sharded weights travel layer by layer: FSDP, HSDP and ZeRO-3 gather a layer before use and scatter gradients.

Per layer and micro-batch: all-gather of weights before forward, again before backward (they were freed), and a
reduce-scatter of gradients after backward. The next layer's gather runs beside this layer's compute, so what shows is,
layer by layer, what compute cannot cover; the first gather of a step, with nothing before it to hide behind, is one
layer's of many and left out. HSDP shards inside groups of ranks and all-reduces the gradient shards across them.

Source: Zhao et al. 2023 (arXiv:2304.11277) sections 3-4 for the order and the prefetch; torch FSDP2
(torch/distributed/fsdp/_fully_shard) for what is gathered when. Experts are sharded over their own replicas, in
messages of their own; where those are the replicas of the dense weights, a layer is one group and one message.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.base.units import BF16_BYTES, FP8_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, all_reduce_s, reduce_scatter_s
from primus_search.cost.laws.gemm import quantize_s
from primus_search.cost.traffic.comm_table import LayerTraffic, comm, exposed_s
from primus_search.values.candidates import Bools, Candidates, Degrees, Floats, Fp8, Ints, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import state_bytes


def sharded_layer(
    job: Job,
    c: Candidates,
    d: Degrees,
    *,
    dense_params: Floats | float,
    expert_params: Floats | float,
    trained_dense: Floats | float,
    trained_experts: Floats | float,
    forward_s: Floats | float,
    backward_s: Floats | float,
) -> LayerTraffic:
    """FSDP traffic of one layer per micro-batch, given the compute of the layer it is prefetched behind.

    Forward gathers the weights; backward gathers them again, scatters and, under HSDP, all-reduces gradients.

    dense_params, expert_params  of the layer on one rank, after tensor and expert parallelism, before sharding
    trained_dense, trained_experts  of those, parameters with gradients
    forward_s, backward_s        compute of one layer (a neighbour's, which is alike)

    Formula: forward exposed = AG - overlap * min(AG, forward); backward AG + RS (+ AR) against backward. Zero for rows
    that do not shard weights. Weights that arrive in BF16 are cast once more per pass: what is freed after a layer is
    no cache of a step (`parameters.state` counts none).
    """
    stack, is_sharded = job.stack, job.gathers_weights(c)
    is_low = travels_low(stack, c)
    packed = job.model.adapters.base.bytes_per_param if job.model.adapters else 0.0
    weight_bytes = np.where(is_low, FP8_BYTES, packed or BF16_BYTES)
    is_one_group = ((d.dp * c.cp == d.edp) & (c.tp == c.etp * c.ep)) | c.shards_whole_layers
    joined, apart = is_one_group * is_sharded, ~is_one_group * is_sharded
    whole = d.dp * c.cp
    with_dense = (
        dense_params * is_sharded + expert_params * joined,
        trained_dense * is_sharded + trained_experts * joined,
    )
    dense = _exchange(job, c, *with_dense, weight_bytes, whole, c.tp, whole)
    experts = _exchange(
        job, c, expert_params * apart, trained_experts * apart, weight_bytes, d.edp, c.etp * c.ep, whole
    )
    listed = is_sharded * stack.sharding.listed_params * (whole - 1) * stack.host.host_launch_s
    gather = (dense.gather_s + experts.gather_s) / stack.efficiencies.network_efficiency + listed
    freed = 1.0 - 0.5 * stack.sharding.reuse_params / np.maximum(dense_params + expert_params, 1.0)
    again = (c.recompute & Recompute.FULL > 0) * (stack.sharding.reuse_params > 0.0) * np.maximum(freed, 0.0)
    scatter = (dense.reduce_s + experts.reduce_s) / stack.efficiencies.network_efficiency + listed
    both = gather * (1.0 + again) + scatter
    message = dense.gathered_bytes + experts.gathered_bytes
    count = is_sharded * ((dense.gather_s > 0) * 1.0 + (experts.gather_s > 0))
    overlap = stack.sharding.shard_overlap
    forward_left = exposed_s(gather, forward_s, overlap=overlap)
    backward_left = exposed_s(both, backward_s, overlap=overlap)
    cast = (dense_params + expert_params) * (is_sharded & ~is_low & stack.precision.caches_fp8_weights)
    cast_s = quantize_s(job.accelerator, cast, c.fp8, layouts=1)
    return LayerTraffic(
        forward=comm("sharded weights forward", message, count, gather, forward_left + cast_s),
        backward=comm("sharded weights and gradients backward", message, 2.0 * count, both, backward_left + cast_s),
    )


def travels_low(stack: Stack, c: Candidates) -> Bools:
    """Whether weights are gathered in FP8.

    Layer by layer those of FP4 recipes are not: native FP4 weights are of replicas alone (NVIDIA/Megatron-LM#4005);
    Megatron-FSDP's buffer has no storage for them (NVIDIA-NeMo/Megatron-Bridge perf_recipes/nemotronh/common.py).
    """
    is_fp4 = (c.fp8 == Fp8.NVFP4) | (c.fp8 == Fp8.MXFP4)
    low: Bools = (c.fp8 != Fp8.NONE) & stack.precision.has_fp8_param_gather & ~(is_fp4 & (c.sharding >= Sharding.FSDP2))
    return low


def kept_shard(job: Job, c: Candidates, params: Floats, *, is_trained: bool) -> LayerTraffic:
    """FSDP traffic of weights that stay gathered between forward and backward, with nothing to hide behind."""
    weight_bytes = np.full(len(params), BF16_BYTES)
    replicas = job.degrees(c).dp * c.cp
    gathered = params * job.gathers_weights(c)
    one = _exchange(job, c, gathered, gathered * is_trained, weight_bytes, replicas, c.tp, replicas)
    gather, scatter = (seconds / job.stack.efficiencies.network_efficiency for seconds in (one.gather_s, one.reduce_s))
    count = (one.gather_s > 0) * 1.0
    return LayerTraffic(
        forward=comm("sharded ends forward", one.gathered_bytes, count, gather, gather),
        backward=comm("sharded ends backward", one.gathered_bytes, count, scatter, scatter),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    gathered_bytes: Floats
    gather_s: Floats
    reduce_s: Floats


def _exchange(
    job: Job, c: Candidates, params: Floats, trained: Floats, weight_bytes: Floats, replicas: Ints, stride: Ints,
    whole: Ints,
) -> _Exchange:  # fmt: skip
    """One set of parameters over its replicas: gathered inside shard groups; of those that are trained, gradients
    scattered inside them and reduced across them.

    Across them the optimizer may be sharded once more: gradients are then scattered, and updated weights gathered,
    which together move what an all-reduce does. whole: replicas of the dense part, which make the groups of HSDP.
    """
    groups = np.where(c.sharding == Sharding.HSDP, whole // c.shard_ranks(whole), 1)
    network, shard = job.network, np.maximum(replicas // groups, 1)
    inside, across = Group(shard, stride), Group(replicas // shard, stride * shard)
    gradient = trained * state_bytes(job.stack, "gradient_comm_bytes", c.state_format)
    return _Exchange(
        gathered_bytes=params * weight_bytes,
        gather_s=(params > 0) * all_gather_s(network, params * weight_bytes, inside),
        reduce_s=(trained > 0)
        * (reduce_scatter_s(network, gradient, inside) + all_reduce_s(network, gradient / shard, across)),
    )
