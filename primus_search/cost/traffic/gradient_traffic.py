"""Gradient and weight traffic of replicas as a table of candidates needs it: how much at worst, how little at best.

The exposed seconds fall linearly with the compute they hide behind until only the last bucket is left. Both ends depend
on few columns and are computed once per distinct key; the compute window is each candidate's own.
"""

import numpy as np

from primus_search.cost.traffic.data_parallel import data_parallel
from primus_search.values.candidates import Bools, Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster

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
