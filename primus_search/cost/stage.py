"""Seconds of one micro-batch in every virtual stage: layers, ends, recompute, launches and exposed traffic.

Two tables are enough for any number of candidates. `PieceTable`: one row per distinct layer key, with the seconds of
one layer of each kind, of the embedding, the head and an MTP module. `piece_counts`: how many of those pieces each
virtual stage of a layout holds. A stage's time is linear in the pieces it holds, so both are sums and gathers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.accelerator import Accelerator
from primus_search.candidates import Bools, Candidates, Floats, Fp8, Ints, Sharding
from primus_search.cluster import Cluster
from primus_search.cost.ends import embedding_operations, head_operations, mtp_operations
from primus_search.cost.factor import Vocabulary, in_order
from primus_search.cost.layer import layer_operations
from primus_search.cost.layer_comm import add_sharded_traffic, add_traffic, end_traffic_s, sharded_ends
from primus_search.cost.measured import MeasuredLayers, put_measured, put_recompute
from primus_search.cost.recompute import recompute_s
from primus_search.cost.work import Module, Part, Pass, Work, tally
from primus_search.layout import StageLayers
from primus_search.model import LayerKind, Model
from primus_search.stack import Stack
from primus_search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Seconds of one piece of a stage, once per distinct key, and the key of every candidate.

    pass_s       (keys, passes) all parts together; recompute is not in it
    part_s       (keys, parts) all passes together
    number       (rows) key of every candidate
    recompute_s  forward seconds of one layer repeated in backward, when the layer is recomputed; by `again`
    """

    pass_s: Floats
    part_s: Floats
    number: Ints
    recompute_s: Floats
    again: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Seconds of the pieces a stage is made of: the layer kinds, embedding, head, MTP; the kinds come first."""

    pieces: tuple[Piece, ...]
    num_kinds: int

    @property
    def pass_s(self) -> Floats:
        """(pieces, passes, rows)"""
        return np.array([piece.pass_s[piece.number].T for piece in self.pieces])

    @property
    def part_s(self) -> Floats:
        """(pieces, parts, rows)"""
        return np.array([piece.part_s[piece.number].T for piece in self.pieces])

    @property
    def recompute_s(self) -> Floats:
        """(kinds, rows)"""
        return np.array([piece.recompute_s[piece.again] for piece in self.pieces[: self.num_kinds]])

    def __len__(self) -> int:
        return len(self.pieces[0].number)

    def write(self, out: Floats) -> None:
        """Fill (rows, pieces * passes + pieces * parts + kinds): all of it, as a table of layers holds it."""
        from primus_search.cost.kernels import spread

        passes, parts, count = len(Pass), len(Part), len(self.pieces)
        for i, piece in enumerate(self.pieces):
            spread(piece.pass_s, piece.number, out, i * passes)
            spread(piece.part_s, piece.number, out, count * passes + i * parts)
        for i, piece in enumerate(self.pieces[: self.num_kinds]):
            spread(piece.recompute_s[:, None], piece.again, out, count * (passes + parts) + i)


COMPUTE_IGNORES = frozenset(
    {"pp", "vpp", "schedule", "pipeline_layout", "recompute", "recompute_num_layers", "recompute_method",
     "offload_layers", "sharding", "shard_group", "overlap_grad_reduce"}
)  # fmt: skip
"""Columns that neither the kernels of a piece nor the traffic inside a layer depend on; a test flips them."""

ONLY_EXPERTS_READ = frozenset({"ep", "etp", "grouped_gemm", "deepep", "sync_free_stage"})
ONLY_HEADS_READ = frozenset({"loss_fusion"})


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

    A piece is priced once for the rows that agree in what it reads, and behind the exchange of sharded weights once
    for those that also agree in sharding; `shares_rows=False` prices every row by itself. `measured` replaces the
    compute of the pieces it knows; their traffic is added as for any other.
    """
    measured = measured or MeasuredLayers()
    job = _Job(model, cluster, workload, measured, shares_rows and not measured.pieces)
    found = tuple(_piece(job, number, c) for number in range(len(model.kinds) + NUM_ENDS))
    return Pieces(pieces=found, num_kinds=len(model.kinds))


NUM_ENDS = 3
"""Embedding, head and MTP module: the pieces after the layer kinds, in this order."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What pieces are priced for."""

    model: Model
    cluster: Cluster
    workload: Workload
    measured: MeasuredLayers
    shares_rows: bool

    def kind(self, piece: int) -> LayerKind | None:
        """The layer kind of a piece; None of an end."""
        return self.model.kinds[piece] if piece < len(self.model.kinds) else None

    def ignores(self, piece: int) -> frozenset[str]:
        """Columns that the kernels and the traffic inside a piece do not depend on."""
        kind, end = self.kind(piece), piece - len(self.model.kinds)
        if kind is not None:
            return COMPUTE_IGNORES | ONLY_HEADS_READ | (frozenset() if kind.is_moe else ONLY_EXPERTS_READ)
        by_end = (ONLY_EXPERTS_READ | ONLY_HEADS_READ, ONLY_EXPERTS_READ, frozenset[str]())
        return COMPUTE_IGNORES | by_end[end]

    def numbered(self, columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
        """Number of every row by these columns, and one row per number."""
        vocabulary = Vocabulary()
        return vocabulary.encode(columns) if self.shares_rows else vocabulary.number(len(columns[0]))


def _piece(job: _Job, piece: int, c: Candidates) -> Piece:
    """One piece of every candidate."""
    number, first = job.numbered([column for name, column in c.columns().items() if name not in job.ignores(piece)])
    work = _compute(job, piece, c.take(first))
    is_sharded = c.sharding >= Sharding.FSDP2
    if is_sharded.any():
        columns = [c.sharding * is_sharded, c.shard_group * is_sharded, c.pp * is_sharded, c.recompute * is_sharded]
        behind, first = job.numbered([number, *columns])
        work, number = work.take(number[first]), behind
        _add_sharded(job, piece, work, c.take(first))
    kind, acc, stack = job.kind(piece), job.cluster.accelerator, job.cluster.stack
    dispatcher = np.where(c.deepep[first], stack.host_dispatch_factor, 1.0)
    enters_fp8 = (np.asarray(stack.expert_overlap) > 0.0) & (c.fp8[first] != Fp8.NONE)
    dispatcher = dispatcher * np.where(enters_fp8, stack.host_overlap_factor, 1.0)
    _add_launches(work, acc, stack, bookkeeping=dispatcher if kind is not None and kind.is_moe else 0.0)
    again, repeated_s = np.zeros_like(number), np.zeros(1)
    if kind is not None:
        again, first = job.numbered([number, c.recompute])
        repeated_s = recompute_s(work.forward_module_s[:, number[first]], c.recompute[first])
        repeated_s = put_recompute(repeated_s, job.measured, piece, c.take(first))
    return Piece(
        pass_s=np.stack([work.pass_s(p) for p in Pass], axis=1),
        part_s=np.ascontiguousarray(in_order(work.seconds).T),
        number=number,
        recompute_s=repeated_s,
        again=again,
    )


def _compute(job: _Job, piece: int, c: Candidates) -> Work:
    """Kernels of a piece and the traffic inside it; launches and sharded weights apart."""
    model, workload, acc, stack = job.model, job.workload, job.cluster.accelerator, job.cluster.stack
    kind, end = job.kind(piece), piece - len(model.kinds)
    if kind is not None:
        operations = layer_operations(model, kind, workload, acc, stack, c)
    elif end == 0:
        operations = embedding_operations(model, workload, stack, c)
    elif end == 1:
        operations = head_operations(model, workload, stack, c)
    else:
        operations = list(mtp_operations(model, workload, acc, stack, c))
    work = tally(operations, acc=acc, stack=stack, rows=len(c), shares_rows=job.shares_rows)
    put_measured(work, job.measured, piece, c)
    if kind is not None:
        return add_traffic(work, kind, model, job.cluster, workload, c)
    ends_s = end_traffic_s(model, job.cluster, workload, c)
    work.seconds[Pass.FORWARD, Part.TENSOR_COMM] += ends_s
    work.seconds[Pass.INPUT_GRAD, Part.TENSOR_COMM] += ends_s
    return work


def _add_sharded(job: _Job, piece: int, work: Work, c: Candidates) -> None:
    """What shows of the exchange of sharded weights: of a layer behind its compute, of an end all of it."""
    kind, end = job.kind(piece), piece - len(job.model.kinds)
    if kind is not None:
        add_sharded_traffic(work, kind, job.model, job.cluster, job.workload, c)
        return
    ends = sharded_ends(job.model, job.cluster, job.workload, c) or ()
    if end < len(ends):
        work.seconds[Pass.FORWARD, Part.SHARD_COMM] += ends[end].forward.exposed_s
        work.seconds[Pass.INPUT_GRAD, Part.SHARD_COMM] += ends[end].backward.exposed_s


def _add_launches(work: Work, acc: Accelerator, stack: Stack, *, bookkeeping: Floats | float) -> None:
    """What a pass waits for its own launches: the host's time for all of them beyond the device's time.

    A replayed graph costs the device's own gap between kernels. `bookkeeping`: of a MoE layer 1, less with a fused
    dispatcher; 0 of anything else. A wait of the host for the device (token counts) hides behind neither.
    """
    shares = {"none": 0.0, "router": stack.router_graph_share, "partial": stack.partial_graph_share, "full": 1.0}
    graphed = shares[stack.cuda_graph]
    ungraphed = (1.0 - graphed) * acc.launch.host_factor
    per_kernel_s = graphed * acc.launch.graph_s + ungraphed * stack.host_launch_s
    bookkeeping_s = ungraphed * stack.host_moe_s * bookkeeping
    for which, moments in _HOST_PASSES.items():
        device_s = sum((work.pass_s(p) for p in moments), start=np.zeros(work.kernels.shape[1]))
        device_s = device_s - work.seconds[which, Part.LAUNCH]
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
