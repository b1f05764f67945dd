"""What a candidate pays once per step for its replicas: gradient traffic and optimizer, from parameters per rank."""

from collections.abc import Iterator

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.imbalance import waited_share
from primus_search.cost.laws.collectives import Group, all_gather_s, all_reduce_s
from primus_search.cost.laws.optimizer import IS_ORTHOGONAL, MATRIX_MOMENTS, host_update_s, newton_schulz_s, optimizer_s
from primus_search.cost.memory.parameters import trained_shares
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.operations import GroupedLinear, LinearOp
from primus_search.cost.stage import MeasuredLayers
from primus_search.cost.traffic.data_parallel import REDUCE_LEAST, REDUCE_MOST, gradient_traffic
from primus_search.schedule import ranks_of
from primus_search.space.memo import alike, in_order
from primus_search.values.candidates import Candidates, Floats, Ints, Optimizer, Sharding
from primus_search.values.job import Job
from primus_search.values.layout import StageLayers, dealt_layers
from primus_search.values.machine.state_formats import state_bytes
from primus_search.values.model import Model

UPDATE, WAIT, REPLICA_TERMS = 4, 5, 6
"""Columns of `replica_terms`: in seconds those of `gradient_traffic` and the optimizer; the share that ranks wait."""


def replica_terms(job: Job, c: Candidates, measured: MeasuredLayers | None) -> Floats:
    """(rows, 6): seconds per step of gradient and weight traffic at most and at least and of the optimizer, and the
    share of a pipeline's seconds that replicas wait for each other's rows."""
    cluster = job.cluster
    dense, expert = params_per_rank(job, c)
    traffic_s = gradient_traffic(job, c, dense, expert)
    traffic_s[[REDUCE_MOST, REDUCE_LEAST]] += tied_gradient_s(job, c)
    s, is_zero1 = Share.of(job, c), c.sharding == Sharding.DISTRIBUTED_OPTIMIZER
    is_sharded = (c.sharding != Sharding.NONE) | (c.optimizer == Optimizer.DIST_MUON)
    owned = dense / np.where(is_sharded, s.shards * s.optimizer_groups, 1.0)
    owned = owned + expert / np.where(is_sharded, s.expert_shards * s.optimizer_groups, 1.0)
    hosted = c.optimizer_offload / 100.0
    moments = MATRIX_MOMENTS[c.optimizer]
    update_s = optimizer_s(cluster.accelerator, cluster.stack, owned * (1.0 - hosted), c.state_format, c.fp8, moments)
    if measured is not None and measured.optimizer_s_per_param > 0:
        update_s = owned * (1.0 - hosted) * measured.optimizer_s_per_param
    if hosted.any():
        update_s = update_s + host_update_s(cluster.network, owned * hosted)
    if np.any(IS_ORTHOGONAL[c.optimizer]):
        update_s = update_s + muon_s(job, c, dense, expert)
    update_s = update_s + is_zero1 * s.shards * cluster.stack.sharding.broadcast_s
    return np.stack([*traffic_s, update_s, waited_share(job, c)], axis=1)


def muon_s(job: Job, c: Candidates, dense: Floats, expert: Floats) -> Floats:
    """Seconds per step that Muon takes beyond reading and writing state: matrices made orthogonal, weights gathered.

    Each rank orthogonalises its matrices whole (`muon_tp_mode: duplicated`), all of them or, dealt to the replicas, its
    share, at least the largest. Replicas then gather the updated weights with nothing to hide behind.
    Source: Megatron-Core optimizer/emerging_optimizers.py and layer_wise_optimizer.py.
    """
    d, network = job.degrees(c), job.network
    replicas, is_dealt = d.dp * c.cp, (c.optimizer == Optimizer.DIST_MUON) | (c.sharding != Sharding.NONE)
    whole = Candidates.table(ep=c.ep)
    work_s, least_s = np.zeros((2, len(job.model.kinds), len(c))), np.zeros(len(c))
    for k, kind in enumerate(job.model.kinds):
        for o in layer_operations(job, kind, whole):
            if not isinstance(o, LinearOp | GroupedLinear) or not o.is_trained:
                continue
            one_s = newton_schulz_s(job.accelerator, o.n, o.k)
            experts = np.asarray(o.groups) if isinstance(o, GroupedLinear) else np.ones(1)
            work_s[int(isinstance(o, GroupedLinear)), k] += one_s * experts
            least_s = np.maximum(least_s, one_s)
    owners = np.where(is_dealt, [replicas, d.edp], 1.0)
    shared_s = in_order(_on_busiest(job.model, c, of_kind) / many for of_kind, many in zip(work_s, owners, strict=True))
    gathered = [(dense, replicas, c.tp), (expert, d.edp, c.etp * c.ep)]
    gather_s = in_order(all_gather_s(network, BF16_BYTES * n, Group(ranks, stride)) for n, ranks, stride in gathered)
    gather_s = gather_s / job.stack.efficiencies.network_efficiency * (c.optimizer == Optimizer.DIST_MUON)
    return np.where(IS_ORTHOGONAL[c.optimizer], np.maximum(shared_s, least_s) + gather_s, 0.0)


def _on_busiest(model: Model, c: Candidates, of_kind: Floats) -> Floats:
    """Of something that layers of each kind have, (kinds, rows), the most that any pipeline rank holds."""
    out = np.zeros(len(c))
    for members, stages, ranks in _placements(model, c):
        held = np.zeros((int(c.pp[members[0]]), len(model.kinds)))
        np.add.at(held, ranks, stages.counts)
        out[members] = in_order(held[:, [k]] * of_kind[k, members] for k in range(len(of_kind))).max(axis=0)
    return out


def tied_gradient_s(job: Job, c: Candidates) -> Floats:
    """Seconds per step to sum the gradients of a tied embedding over the two pipeline ranks that hold it.

    Formula: one all-reduce over 2 ranks of V H / tp main gradients behind the last backward pass, nothing to hide
        behind; 0 where one rank holds both ends (no pipeline, or stages dealt as a V) and under FSDP.
    Source: NVIDIA/Megatron-LM core/distributed/finalize_model_grads.py `_allreduce_word_embedding_grads`.
    """
    network, stack, pp = job.network, job.stack, np.maximum(c.pp, 1)
    if not job.model.is_tied or job.model.adapters or not np.any(c.pp > 1):
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
    """Trained parameters, experts apart, on the pipeline rank that holds most; before sharding over replicas."""
    model, s = job.model, Share.of(job, c)
    is_trained = model.adapters is None
    of_kinds = [trained_shares(model, kind, s) for kind in model.kinds]
    dense_of, expert_of = (np.array(many) for many in zip(*of_kinds, strict=True))
    predicting = [model.kinds.index(kind) for kind in model.mtp_kinds]
    mtp = in_order(dense_of[predicting]) + is_trained * 2.0 * model.hidden**2 / s.tp
    mtp_expert = in_order(expert_of[predicting])
    out = np.zeros((2, len(c)))
    for members, stages, ranks in _placements(model, c):
        pp = int(c.pp[members[0]])
        on_rank = [np.flatnonzero(ranks == rank) for rank in range(pp)]
        shares = [model.is_tied and bool(stages.has_embedding[stage].any()) for stage in on_rank]
        has_matrix = stages.has_head * ~np.array(shares)[ranks]
        ends = is_trained * (stages.num_embeddings * model.input_params + has_matrix * model.head_params)
        layers = range(len(model.kinds))
        dense = in_order(stages.counts[:, [k]] * dense_of[k, members] for k in layers)
        dense = dense + stages.mtp[:, None] * mtp[members] + ends[:, None] / c.tp[members]
        expert = in_order(stages.counts[:, [k]] * expert_of[k, members] for k in layers)
        expert = expert + stages.mtp[:, None] * mtp_expert[members]
        dense = np.array([in_order(dense[stage]) for stage in on_rank])
        expert = np.array([in_order(expert[stage]) for stage in on_rank])
        heaviest = (dense + expert).argmax(axis=0)
        column = np.arange(len(members))
        out[:, members] = dense[heaviest, column], expert[heaviest, column]
    return out[0], out[1]


def dealt_of(model: Model, c: Candidates, i: int) -> StageLayers:
    """The layers of every virtual stage of row i."""
    return dealt_layers(model, int(c.pp[i] * c.vpp[i]), c.layouts[int(c.pipeline_layout[i])])


def _placements(model: Model, c: Candidates) -> Iterator[tuple[Ints, StageLayers, Ints]]:
    """Rows that deal layers to pipeline ranks alike, with the layers and the rank of every virtual stage.

    A schedule that holds the model twice (DualPipe) has the stages of both copies.
    """
    for members in alike(np.stack([c.pp, c.vpp, c.pipeline_layout, c.schedule])):
        stages, ranks = dealt_of(model, c, int(members[0])), ranks_of(c.placement(int(members[0])))
        yield members, stages.repeated(len(ranks) // len(stages.counts)), ranks
