"""Seconds of one micro-batch in every virtual stage: layers, ends, recompute, launches and exposed traffic.

Two tables are enough for any number of candidates. `PieceTable`: one row per distinct layer key, with the seconds of
one layer of each kind, of the embedding, the head and an MTP module. `piece_counts`: how many of those pieces each
virtual stage of a layout holds. A stage's time is linear in the pieces it holds, so both are sums and gathers.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.accelerator import Accelerator
from primus_search.candidates import Candidates, Floats
from primus_search.cluster import Cluster
from primus_search.cost.ends import embedding_operations, head_operations, mtp_operations
from primus_search.cost.factor import Vocabulary, in_order
from primus_search.cost.layer import layer_operations
from primus_search.cost.layer_comm import add_sharded_traffic, add_traffic, end_traffic_s, sharded_ends
from primus_search.cost.measured import MeasuredLayers, put_measured, put_recompute
from primus_search.cost.recompute import recompute_s
from primus_search.cost.work import Module, Part, Pass, Work, tally
from primus_search.layout import StageLayers
from primus_search.model import Model
from primus_search.stack import Stack
from primus_search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Seconds of the pieces a stage is made of, per candidate; pieces are the layer kinds, embedding, head, MTP.

    pass_s       (pieces, passes, rows) all parts together; recompute is not in it
    part_s       (pieces, parts, rows) all passes together
    recompute_s  (kinds, rows) forward seconds of one layer repeated in backward, when the layer is recomputed
    """

    pass_s: Floats
    part_s: Floats
    recompute_s: Floats


COMPUTE_IGNORES = frozenset(
    {"pp", "vpp", "schedule", "pipeline_layout", "recompute", "recompute_num_layers", "recompute_method",
     "offload_layers", "sharding", "shard_group", "overlap_grad_reduce"}
)  # fmt: skip
"""Columns that neither the kernels of a piece nor the traffic inside a layer depend on; a test flips them."""


def pieces(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    c: Candidates,
    measured: MeasuredLayers | None = None,
    *,
    shares_rows: bool = True,
) -> Pieces:
    """Seconds of every piece for every candidate of a table of distinct layer keys.

    Kernels and the traffic inside layers are computed once for the rows that differ in COMPUTE_IGNORES alone, unless
    `shares_rows` is False. `measured` replaces the compute of the pieces it knows; their traffic is added as for any
    other.
    """
    acc, stack = cluster.accelerator, cluster.stack
    measured = measured or MeasuredLayers()
    works = _works(model, cluster, workload, c, measured, shares_rows and not measured.pieces)
    for kind, work in zip(model.kinds, works, strict=False):
        add_sharded_traffic(work, kind, model, cluster, workload, c)
    for work, end in zip(works[len(model.kinds) :], sharded_ends(model, cluster, workload, c) or (), strict=False):
        work.seconds[Pass.FORWARD, Part.SHARD_COMM] += end.forward.exposed_s
        work.seconds[Pass.INPUT_GRAD, Part.SHARD_COMM] += end.backward.exposed_s
    for i, work in enumerate(works):
        is_moe = i < len(model.kinds) and model.kinds[i].is_moe
        dispatcher = np.where(c.deepep, stack.host_dispatch_factor, 1.0)
        dispatcher = dispatcher * np.where(np.asarray(stack.expert_overlap) > 0.0, stack.host_overlap_factor, 1.0)
        _add_launches(work, acc, stack, bookkeeping=dispatcher if is_moe else 0.0)
    return Pieces(
        pass_s=np.array([[work.pass_s(p) for p in Pass] for work in works]),
        part_s=np.array([in_order(work.seconds) for work in works]),
        recompute_s=np.array(
            [
                put_recompute(recompute_s(work, c.recompute), measured, i, c)
                for i, work in enumerate(works[: len(model.kinds)])
            ]
        ),
    )


def _works(
    model: Model, cluster: Cluster, workload: Workload, c: Candidates, measured: MeasuredLayers, shares_rows: bool
) -> list[Work]:
    """Kernels of every piece and the traffic inside layers; launches and sharded weights apart."""
    if shares_rows:
        columns = [column for name, column in c.columns().items() if name not in COMPUTE_IGNORES]
        number, first = Vocabulary().encode(columns)
        works = _works(model, cluster, workload, c.take(first), measured, shares_rows=False)
        return [work.take(number) for work in works]
    acc, stack = cluster.accelerator, cluster.stack
    works = []
    for kind in model.kinds:
        work = tally(layer_operations(model, kind, workload, acc, stack, c), acc=acc, stack=stack, rows=len(c))
        put_measured(work, measured, len(works), c)
        works.append(add_traffic(work, kind, model, cluster, workload, c))
    for operations in (
        embedding_operations(model, workload, stack, c),
        head_operations(model, workload, stack, c),
        list(mtp_operations(model, workload, acc, stack, c)),
    ):
        work = tally(operations, acc=acc, stack=stack, rows=len(c))
        put_measured(work, measured, len(works), c)
        works.append(work)
    ends_s = end_traffic_s(model, cluster, workload, c)
    for work in works[len(model.kinds) :]:
        work.seconds[Pass.FORWARD, Part.TENSOR_COMM] += ends_s
        work.seconds[Pass.INPUT_GRAD, Part.TENSOR_COMM] += ends_s
    return works


def _add_launches(work: Work, acc: Accelerator, stack: Stack, *, bookkeeping: Floats | float) -> None:
    """What a pass waits for its own launches: the host's time for all of them beyond the device's time.

    A replayed graph costs the device's own gap between kernels. `bookkeeping`: of a MoE layer 1, less with a fused
    dispatcher; 0 of anything else.
    """
    shares = {"none": 0.0, "router": stack.router_graph_share, "partial": stack.partial_graph_share, "full": 1.0}
    graphed = shares[stack.cuda_graph]
    per_kernel_s = graphed * acc.launch.graph_s + (1.0 - graphed) * stack.host_launch_s
    bookkeeping_s = (1.0 - graphed) * stack.host_moe_s * bookkeeping
    for which, moments in _HOST_PASSES.items():
        device_s = sum((work.pass_s(p) for p in moments), start=np.zeros(work.kernels.shape[1]))
        kernels = in_order(work.kernels[p] for p in moments)
        waiting = kernels * per_kernel_s + bookkeeping_s - device_s
        work.seconds[which, Part.LAUNCH] += np.maximum(waiting, 0.0)


# Both gradients of a layer are launched in one go, so the host has their time together.
_HOST_PASSES = {Pass.FORWARD: (Pass.FORWARD,), Pass.INPUT_GRAD: (Pass.INPUT_GRAD, Pass.WEIGHT_GRAD)}


def piece_counts(stages: StageLayers, block_layers: int = 0) -> tuple[Floats, Floats]:
    """How many of each piece a virtual stage holds, (stages, pieces), and how many layers of each kind it recomputes.

    `block_layers` > 0: only the first so many layers of a stage (FULL recompute with the block method, kinds in
    proportion); else every layer, for what a setting recomputes of a layer is in the piece's own `recompute_s`.
    """
    ends = [stages.has_embedding[:, None], stages.has_head[:, None], stages.mtp[:, None]]
    recomputed = stages.counts
    if block_layers:
        recomputed = stages.counts * np.minimum(block_layers / np.maximum(stages.layers, 1.0), 1.0)[:, None]
    return np.concatenate([stages.counts, *ends], axis=1), recomputed


__all__ = ["Module", "Pieces", "piece_counts", "pieces"]
