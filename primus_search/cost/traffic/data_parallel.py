"""Gradient and weight traffic between replicas, once per step: what is reduced, what is gathered, what backward hides.

Dense parameters are replicated over dp * cp ranks (context-parallel ranks hold the same weights), experts over edp;
the two go over different groups and add up. Without a distributed optimizer gradients are all-reduced; with it (and
with ZeRO-2) each rank receives the sum of its shard only and gathers updated weights after the optimizer.
FSDP and HSDP exchange per layer (`sharded_weights`).

Frameworks send gradients in buckets as backward produces them, so all but the last bucket can hide behind the backward
of the last micro-batch; weights are gathered in buckets too, and hide behind the next forward but for the first.

Source: Megatron-LM core/distributed (DistributedDataParallel, bucket size max(40e6, 1e6 * dp) parameters);
Rajbhandari et al. 2020 (arXiv:1910.02054) for the volumes of ZeRO-1 and -2.

`gradient_traffic` is the table for many candidates: the exposed seconds fall linearly with the compute they hide behind
until only the last bucket is left; both ends are computed once per distinct key.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from primus_search.base.units import BF16_BYTES, FP8_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, all_reduce_s, reduce_scatter_s
from primus_search.cost.traffic.comm_table import Comm, comm, exposed_s
from primus_search.cost.traffic.sharded_weights import travels_low
from primus_search.values.candidates import Bools, Candidates, Degrees, Floats, Ints, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import state_bytes

Collective = Callable[[Network, Floats, Group], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Traffic of one step. gradients: reduction; weights: gather of what the optimizer updated, where it is sharded."""

    dense_gradients: Comm
    expert_gradients: Comm
    dense_weights: Comm
    expert_weights: Comm


def data_parallel(
    job: Job,
    c: Candidates,
    d: Degrees,
    *,
    dense_params: Floats,
    expert_params: Floats,
    backward_s: Floats | float,
    forward_s: Floats | float,
) -> DataParallel:
    """Gradient traffic of one step for the parameters one rank holds, given the compute it may hide behind.

    dense_params, expert_params  of one rank after tensor, expert and pipeline parallelism
    backward_s, forward_s        of one micro-batch on that rank: the last backward and the next first forward

    Optimizer state sharded inside groups of ranks only (a published run may have it, no space lists it): gradients are
    all-reduced over all replicas, weights gathered inside the group. Under copies of the optimizer (`optimizer_copies`)
    a gradient is scattered inside each, and its shard reduced across them: Megatron-LM core/distributed/
    param_and_grad_buffer.py start_grad_sync, `inter_distributed_optimizer_instance_group`.

    Formula: exposed = max(total - overlap * min(total, compute), one bucket) where the candidate overlaps, else the
    total. A second of compute hides one second of traffic: experts and weights get what the dense traffic left.
    """
    stack = job.stack
    replicates = ~job.gathers_weights(c)
    is_sharded = replicates & (c.sharding > Sharding.NONE)
    weight_bytes = np.where(travels_low(stack, c), FP8_BYTES, BF16_BYTES)
    dense, experts = Group(d.dp * c.cp, c.tp), Group(d.edp, c.etp * c.ep)
    shard = c.shard_ranks(d.dp * c.cp)
    scatters = is_sharded & (shard == d.dp * c.cp)
    sent_bytes = state_bytes(stack, "gradient_comm_bytes", c.state_format)
    most = bucket_params(stack, d.dp * c.cp, dense_params + expert_params)
    reduced = [
        _reduce(job, f"{of} gradients", most, group, params * replicates, scatters, sent_bytes, _inside(job, c, group))
        for of, group, params in (("dense", dense, dense_params), ("expert", experts, expert_params))
    ]
    gathered = [
        _buckets(job, f"{of} weights", all_gather_s, most, group, params * is_sharded, weight_bytes)
        for of, group, params in (
            ("dense", _inside(job, c, Group(shard, c.tp)), dense_params),
            ("expert", _inside(job, c, experts), expert_params),
        )
    ]
    overlap = np.where(c.overlap_grad_reduce, stack.sharding.gradient_overlap, 0.0)
    gather_overlap = np.where(c.overlap_grad_reduce, stack.sharding.param_gather_overlap, 0.0)
    backward_left = np.maximum(backward_s - overlap * reduced[0].seconds, 0.0)
    forward_left = np.maximum(forward_s - gather_overlap * gathered[0].seconds, 0.0)
    return DataParallel(
        dense_gradients=_behind(reduced[0], backward_s, overlap),
        expert_gradients=_behind(reduced[1], backward_left, overlap),
        dense_weights=_behind(gathered[0], forward_s, gather_overlap),
        expert_weights=_behind(gathered[1], forward_left, gather_overlap),
    )


def bucket_params(stack: Stack, replicas: Ints, held: Floats) -> Floats:
    """Parameters of a bucket: of those that a rank holds an equal part where their number is given, else so many, which
    grow with the number of data-parallel replicas (context ranks among them)."""
    numbers = stack.sharding
    if numbers.gradient_buckets:
        return np.maximum(held // numbers.gradient_buckets, 1.0)
    params: Floats = np.maximum(numbers.gradient_bucket_params, numbers.bucket_params_per_rank * replicas)
    return params


def _buckets(
    job: Job,
    operation: str,
    collective: Collective,
    most: Floats,
    group: Group,
    params: Floats,
    element_bytes: Floats | float,
) -> Comm:
    """All parameters in equal buckets of at most so many, one collective each."""
    count = np.maximum(np.ceil(params / most), 1.0)
    message = params / count * element_bytes
    sent_s = (message > 0) * count * collective(job.network, message, group)
    seconds = sent_s / job.stack.efficiencies.network_efficiency
    return comm(operation, message, count * (seconds > 0), seconds)


def _inside(job: Job, c: Candidates, group: Group) -> Group:
    """Ranks of a group that share one copy of the optimizer."""
    copies = c.optimizer_copies(job.stack.sharding.optimizer_copies).astype(np.int64)
    return Group(np.maximum(group.size // copies, 1), group.stride)


def _reduce(
    job: Job, operation: str, most: Floats, group: Group, params: Floats, is_sharded: Bools, sent_bytes: Floats,
    inside: Group,
) -> Comm:  # fmt: skip
    across = Group(group.size // inside.size, group.stride * inside.size)

    def reduce_s(network: Network, message_bytes: Floats, members: Group) -> Floats:
        scattered = reduce_scatter_s(network, message_bytes, inside)
        if np.any(across.size > 1):
            scattered = scattered + all_reduce_s(network, message_bytes / inside.size, across)
        return np.where(is_sharded, scattered, all_reduce_s(network, message_bytes, members))

    return _buckets(job, operation, reduce_s, most, group, params, sent_bytes)


def _behind(sent: Comm, compute_s: Floats | float, overlap: Floats) -> Comm:
    """What compute leaves of some traffic: at least the last collective."""
    left = exposed_s(sent.seconds, compute_s, overlap=overlap)
    return replace(sent, exposed_s=np.maximum(left, sent.seconds / np.maximum(sent.count, 1.0)))


ENDLESS_S = 1e9
"""A window no traffic fills."""

REDUCE_MOST, REDUCE_LEAST, GATHER_MOST, GATHER_LEAST = range(4)
"""Rows of `gradient_traffic`: gradients and weights, with nothing to hide behind (most) and endless compute (least)."""


def gradient_traffic(job: Job, c: Candidates, dense_params: Floats, expert_params: Floats) -> Floats:
    """(4, rows) seconds per step, of the parameters one rank holds after tensor, expert and pipeline parallelism."""
    window = np.stack([np.zeros(len(c)), np.full(len(c), ENDLESS_S)])
    found = data_parallel(
        job,
        c,
        job.degrees(c),
        dense_params=dense_params,
        expert_params=expert_params,
        backward_s=window,
        forward_s=window,
    )
    reduce_s = found.dense_gradients.exposed_s + found.expert_gradients.exposed_s
    gather_s = found.dense_weights.exposed_s + found.expert_weights.exposed_s
    return np.concatenate([reduce_s, gather_s])


def exposed_gradient_s(
    cluster: Cluster, overlaps: Bools, traffic_s: Floats, forward_s: Floats, backward_s: Floats
) -> Floats:
    """What is left of both behind one micro-batch's backward (gradients) and forward (weights) on the rank.

    overlaps  whether a candidate hides them at all     traffic_s  rows of `gradient_traffic`, perhaps more behind them
    """
    stack = cluster.stack
    helps = np.where(overlaps, 1.0, 0.0)
    reduce_s = traffic_s[REDUCE_MOST] - helps * stack.sharding.gradient_overlap * backward_s
    gather_s = traffic_s[GATHER_MOST] - helps * stack.sharding.param_gather_overlap * forward_s
    result: Floats = np.maximum(reduce_s, traffic_s[REDUCE_LEAST]) + np.maximum(gather_s, traffic_s[GATHER_LEAST])
    return result
