"""What a candidate pays once per step for its replicas: gradient traffic and optimizer, from parameters per rank."""

from collections.abc import Iterator

import numpy as np

from primus_search.cost.laws.collectives import Group, all_reduce_s
from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.memo import in_order
from primus_search.cost.memory.parameters import layer_dense_params, layer_expert_params
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.optimizer import host_update_s, optimizer_s
from primus_search.cost.state_formats import state_bytes
from primus_search.cost.traffic.gradient_traffic import REDUCE_LEAST, REDUCE_MOST, gradient_traffic
from primus_search.schedule import ranks_of
from primus_search.values.candidates import Candidates, Floats, Ints, Sharding
from primus_search.values.job import Job
from primus_search.values.layout import StageLayers, dealt_layers
from primus_search.values.model import Model

UPDATE, REPLICA_TERMS = 4, 5
"""Columns of `replica_terms`, all in seconds: those of `gradient_traffic`, then the optimizer."""


def replica_terms(job: Job, c: Candidates, measured: MeasuredLayers | None) -> Floats:
    """(rows, 5) seconds per step: gradient and weight traffic at most and at least, and the optimizer."""
    cluster = job.cluster
    dense, expert = params_per_rank(job, c)
    traffic_s = gradient_traffic(job, c, dense, expert)
    traffic_s[[REDUCE_MOST, REDUCE_LEAST]] += tied_gradient_s(job, c)
    d = job.degrees(c)
    replicas = d.dp * c.cp
    group = c.shard_ranks(replicas)
    is_sharded = c.sharding != Sharding.NONE
    owned = dense / np.where(is_sharded, group, 1)
    owned = owned + expert / np.where(is_sharded, np.maximum(d.edp * group / replicas, 1.0), 1)
    hosted = c.optimizer_offload / 100.0
    update_s = optimizer_s(cluster.accelerator, cluster.stack, owned * (1.0 - hosted), c.state_format)
    if measured is not None and measured.optimizer_s_per_param > 0:
        update_s = owned * measured.optimizer_s_per_param
    if hosted.any():
        update_s = update_s + host_update_s(cluster.network, owned * hosted)
    is_zero1 = c.sharding == Sharding.DISTRIBUTED_OPTIMIZER
    update_s = update_s + is_zero1 * group * cluster.stack.sharding.broadcast_s
    return np.stack([*traffic_s, update_s], axis=1)


def tied_gradient_s(job: Job, c: Candidates) -> Floats:
    """Seconds per step to sum the gradients of a tied embedding over the two pipeline ranks that hold it.

    Formula: one all-reduce over 2 ranks of V H / tp main gradients behind the last backward pass, nothing to hide
        behind; 0 where one rank holds both ends (no pipeline, or stages dealt as a V) and under FSDP.
    Source: NVIDIA/Megatron-LM core/distributed/finalize_model_grads.py `_allreduce_word_embedding_grads`.
    """
    network, stack, pp = job.network, job.stack, np.maximum(c.pp, 1)
    if not job.model.is_tied or not np.any(c.pp > 1):
        return np.zeros(len(c))
    ends = [ranks_of(c.placement(i))[[0, c.pp[i] * c.vpp[i] - 1]] for i in range(len(c))]
    first, last = np.array(ends).T
    is_apart = (first != last) & (c.sharding < Sharding.FSDP2)
    device = np.maximum(first, last) * (job.cluster.world // pp)
    stride = np.where(device >= network.domain_size, network.domain_size, 1)
    element_bytes = state_bytes(stack, "gradient_bytes", c.state_format)
    message = job.model.vocab_size * job.model.hidden / c.tp * element_bytes
    summed_s = all_reduce_s(network, message, Group(np.full_like(stride, 2), stride))
    return np.where(is_apart, summed_s / stack.efficiencies.network_efficiency, 0.0)


def params_per_rank(job: Job, c: Candidates) -> tuple[Floats, Floats]:
    """Parameters, experts apart, on the pipeline rank that holds most; before sharding over replicas."""
    model, cluster = job.model, job.cluster
    s = Share(model, job.workload, cluster.stack, c, cluster.world)
    dense_of = np.array([layer_dense_params(model, kind, s) for kind in model.kinds])
    expert_of = np.array([layer_expert_params(model, s) if k.is_moe else 0.0 * s.tp for k in model.kinds])
    mtp = dense_of[model.kinds.index(model.layers[-1])] + 2.0 * model.hidden**2 / s.tp
    mtp_expert = expert_of[model.kinds.index(model.layers[-1])]
    out = np.zeros((2, len(c)))
    for members in _groups(np.stack([c.pp, c.vpp, c.pipeline_layout, c.schedule])):
        i = int(members[0])
        stages, pp = dealt_of(model, c, i), int(c.pp[i])
        has_matrix = stages.has_head * (0.0 if model.is_tied and pp == 1 else 1.0)
        ends = stages.has_embedding * model.input_params + has_matrix * model.head_params
        layers = range(len(model.kinds))
        dense = in_order(stages.counts[:, [k]] * dense_of[k, members] for k in layers)
        dense = dense + stages.mtp[:, None] * mtp[members] + ends[:, None] / c.tp[members]
        expert = in_order(stages.counts[:, [k]] * expert_of[k, members] for k in layers)
        expert = expert + stages.mtp[:, None] * mtp_expert[members]
        ranks = ranks_of(c.placement(i))[: len(ends)]
        on_rank = [np.flatnonzero(ranks == rank) for rank in range(pp)]
        dense = np.array([in_order(dense[stage]) for stage in on_rank])
        expert = np.array([in_order(expert[stage]) for stage in on_rank])
        heaviest = (dense + expert).argmax(axis=0)
        column = np.arange(len(members))
        out[:, members] = dense[heaviest, column], expert[heaviest, column]
    return out[0], out[1]


def dealt_of(model: Model, c: Candidates, i: int) -> StageLayers:
    """The layers of every virtual stage of row i."""
    return dealt_layers(model, int(c.pp[i] * c.vpp[i]), c.layouts[int(c.pipeline_layout[i])])


def _groups(keys: Ints) -> Iterator[Ints]:
    """Positions of the columns of `keys` that are alike, group by group."""
    if keys.shape[1] == 0:
        return
    order = np.lexsort(keys[::-1])
    changes = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    yield from np.split(order, np.flatnonzero(changes) + 1)
