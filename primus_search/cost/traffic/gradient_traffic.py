"""Gradient and weight traffic of replicas as a table of candidates needs it: how much at worst, how little at best.

The exposed seconds fall linearly with the compute they hide behind until only the last bucket is left. Both ends depend
on few columns and are computed once per distinct key; the compute window is each candidate's own.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Bools, Candidates, Floats, degrees
from primus_search.cluster import Cluster
from primus_search.cost.traffic.data_parallel import data_parallel
from primus_search.workload import Workload

ENDLESS_S = 1e9
"""A window no traffic fills."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientTraffic:
    """Seconds per step with nothing to hide behind (most) and with endless compute (least): gradients and weights."""

    reduce_most_s: Floats
    reduce_least_s: Floats
    gather_most_s: Floats
    gather_least_s: Floats


def gradient_traffic(
    cluster: Cluster, workload: Workload, c: Candidates, dense_params: Floats, expert_params: Floats
) -> GradientTraffic:
    """Traffic of the parameters one rank holds after tensor, expert and pipeline parallelism."""
    d = degrees(c, world=cluster.world, global_batch_size=workload.global_batch_size)
    window = np.stack([np.zeros(len(c)), np.full(len(c), ENDLESS_S)])
    found = data_parallel(
        cluster.network,
        cluster.stack,
        c,
        dp=d.dp,
        edp=d.edp,
        dense_params=dense_params,
        expert_params=expert_params,
        backward_s=window,
        forward_s=window,
    )
    reduce_s = found.dense_gradients.exposed_s + found.expert_gradients.exposed_s
    gather_s = found.dense_weights.exposed_s + found.expert_weights.exposed_s
    return GradientTraffic(
        reduce_most_s=reduce_s[0], reduce_least_s=reduce_s[1], gather_most_s=gather_s[0], gather_least_s=gather_s[1]
    )


def exposed_gradient_s(
    cluster: Cluster, overlaps: Bools, t: GradientTraffic, forward_s: Floats, backward_s: Floats
) -> Floats:
    """What is left of both behind one micro-batch's backward (gradients) and forward (weights) on the rank.

    overlaps  whether a candidate hides them at all
    """
    stack = cluster.stack
    helps = np.where(overlaps, 1.0, 0.0)
    reduce_s = t.reduce_most_s - helps * stack.sharding.gradient_overlap * backward_s
    gather_s = t.gather_most_s - helps * stack.sharding.param_gather_overlap * forward_s
    return np.maximum(reduce_s, t.reduce_least_s) + np.maximum(gather_s, t.gather_least_s)
