"""Seconds of one micro-batch in every virtual stage: layers, ends, recompute, launches and exposed traffic.

Two tables are enough for any number of candidates. Pieces: one row per distinct layer key, with the seconds of
one layer of each kind, of the embedding, the head and an MTP module. `piece_counts`: how many of those pieces each
virtual stage of a layout holds. A stage's time is linear in the pieces it holds, so both are sums and gathers.

`MeasuredLayers`: seconds measured on a device, in place of the kernel laws, for the layers of a few candidates.
One physics for every rung of evidence: what was measured replaces the compute of a piece (a layer of each kind, the
embedding, the head), everything else - collectives, pipeline, gradient traffic - is the same code. Measured seconds
contain no communication. A piece that was not measured keeps its law.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.parts.embedding_and_head import embedding_operations, head_operations, mtp_operations
from primus_search.cost.parts.layer import layer_operations, recompute_shares
from primus_search.cost.parts.operations import Module, Operation, Part, Pass, Work, tallied
from primus_search.cost.parts.tower_operations import tower_work
from primus_search.cost.traffic.expert_parallel import exchange_overlap_share
from primus_search.cost.traffic.layer_traffic import add_beside, add_exposed, add_inside, end_traffic_s, sharded_ends
from primus_search.space.memo import KeyNumbers, distinct, in_order
from primus_search.values.candidates import COLUMN_NAMES, Bools, Candidates, CudaGraph, Floats, Fp8, Ints, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import Enters, Recompute, Scope, reading
from primus_search.values.layout import StageLayers
from primus_search.values.model import LayerKind, Model

KEY_COLUMNS = tuple(name for name in COLUMN_NAMES if name in reading(Enters.KERNELS | Enters.REPEATS))
"""Columns that change what one device computes in a layer."""

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSeconds:
    """One piece of the model for one micro-batch on one device, compute only; `recompute` is its extra backward time.

    None where nothing was measured.
    """

    forward: float
    input_grad: float
    weight_grad: float
    recompute: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """Measured pieces by candidate key: (layer kinds, embedding, head) in the order of `stage.pieces`.

    optimizer_s_per_param  seconds to update one parameter, 0 where not measured
    """

    pieces: Mapping[Key, tuple[PieceSeconds | None, ...]] = field(default_factory=dict)
    optimizer_s_per_param: float = 0.0

    def of(self, c: Candidates, row: int, piece: int) -> PieceSeconds | None:
        """What was measured of one piece of one row."""
        found = self.pieces.get(key_of(c, row))
        return found[piece] if found is not None and piece < len(found) else None


def key_of(c: Candidates, row: int) -> Key:
    """What a measurement of a layer depends on, of one row."""
    columns = c.columns()
    return tuple(int(columns[name][row]) for name in KEY_COLUMNS)


def keys_of(c: Candidates) -> list[Key]:
    """`key_of` of every row."""
    columns = c.columns()
    return [tuple(key) for key in np.stack([columns[name].astype(np.int64) for name in KEY_COLUMNS], axis=1).tolist()]


def put_measured(work: Work, measured: MeasuredLayers, piece: int, c: Candidates) -> None:
    """Scale the compute of a piece, part by part, so that each pass adds up to what was measured; traffic comes later.

    Launches are inside the measurement, so none are counted again.
    """
    for row in range(len(c)) if measured.pieces else ():
        seconds = measured.of(c, row, piece)
        if seconds is None:
            continue
        targets = (seconds.forward, seconds.input_grad, seconds.weight_grad)
        for which, target in zip(Pass, targets, strict=True):
            modelled = float(work.seconds[which, :, row].sum())
            if modelled == 0.0:  # the laws book this work under another pass: the piece's main part takes it
                work.seconds[which, int(work.seconds[:, :, row].sum(axis=0).argmax()), row] = target
                continue
            scale = target / modelled
            work.seconds[which, :, row] *= scale
            if which is Pass.FORWARD:
                work.forward_module_s[:, row] *= scale
            elif which is Pass.INPUT_GRAD:
                work.core_backward_s[row] *= scale
        work.kernels[..., row] = 0.0


def put_recompute(seconds: Floats, measured: MeasuredLayers, piece: int, c: Candidates) -> Floats:
    """Recompute seconds per row of one layer kind, measured where they were."""
    if not measured.pieces:
        return seconds
    found = [measured.of(c, row, piece) for row in range(len(c))]
    given = [np.nan if one is None or one.recompute is None else one.recompute for one in found]
    return np.where(np.isnan(given), seconds, np.nan_to_num(given))


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

    @property
    def shared(self) -> list[tuple[int, Floats, Ints]]:
        """What `LayerArrays` have of these rows, as `memo.SharedRows` takes it."""
        seconds = [(0, np.concatenate([one.pass_s, one.part_s], axis=1), one.number) for one in self.pieces]
        return seconds + [(1, one.recompute_s, one.again) for one in self.pieces[: self.num_kinds]]


class LayerArrays(NamedTuple):
    """Layer keys for compiled loops: keys that agree on a piece share its seconds.

    number    (keys, pieces + kinds) rows of `seconds`, then of `repeated` of each layer kind
    seconds   (priced pieces, passes + parts)
    repeated  (priced repeats) see `Piece.recompute_s`
    """

    number: NDArray[np.int32]
    seconds: Floats
    repeated: Floats


def pieces(job: Job, c: Candidates, measured: MeasuredLayers | None = None, *, shares_rows: bool = True) -> Pieces:
    """Seconds of every piece for every candidate of a table of distinct layer keys.

    A piece is priced once for the rows that agree in what it reads, and behind the exchange of sharded weights once
    for those that also agree in sharding; `shares_rows=False` prices every row by itself. `measured` replaces the
    compute of the pieces it knows; their traffic is added as for any other.
    """
    pricing = _Pricing(job, measured or MeasuredLayers(), shares_rows and not (measured and measured.pieces))
    found = []
    for piece in range(len(job.model.kinds) + NUM_ENDS):
        number, first = pricing.numbered(pricing.columns(piece, c))
        distinct_rows = c.take(first)
        operations = piece_operations(job, piece, distinct_rows)
        work = tallied(job, operations, distinct_rows, shares_rows=pricing.shares_rows)
        work = _with_traffic_inside(pricing, piece, work, distinct_rows)
        found.append(_piece(pricing, piece, work, number, first, c))
    return Pieces(pieces=tuple(found), num_kinds=len(job.model.kinds))


NUM_ENDS = 3
"""Embedding, head and MTP module: the pieces after the layer kinds, in this order."""


def scope_of(model: Model, piece: int) -> Scope:
    """What a piece has that knobs of a narrower scope change: experts, the head."""
    if piece < len(model.kinds):
        return Scope.OTHERS | Scope.EXPERTS if model.kinds[piece].is_moe else Scope.OTHERS
    return (Scope.OTHERS, Scope.OTHERS | Scope.HEAD, Scope.ALL)[piece - len(model.kinds)]


@dataclass(frozen=True, slots=True)
class _Pricing:
    """What pieces are priced for, and how."""

    job: Job
    measured: MeasuredLayers
    shares_rows: bool

    def kind(self, piece: int) -> LayerKind | None:
        """The layer kind of a piece; None of an end."""
        return self.job.model.kinds[piece] if piece < len(self.job.model.kinds) else None

    def columns(self, piece: int, c: Candidates) -> list[Ints | Bools]:
        """Columns that the kernels of a piece and the traffic inside it depend on."""
        kind, inside = self.kind(piece), reading(Enters.INSIDE, scope_of(self.job.model, piece))
        exchanges = c.exchange_overlap * (kind is not None and kind.is_moe)
        return [*c.key_columns(inside), *(column * exchanges for column in c.key_columns(reading(Enters.STEADY)))]

    def numbered(self, columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
        """Number of every row by these columns, and one row per number."""
        return distinct(columns) if self.shares_rows else KeyNumbers().number(len(columns[0]))


def _piece(pricing: _Pricing, piece: int, work: Work, number: Ints, first: Ints, c: Candidates) -> Piece:
    """One piece of every candidate from the work of distinct rows: what runs beside it, launches and recompute added.

    number, first  the distinct row of every candidate, and one candidate of each
    """
    is_sharded = pricing.job.gathers_weights(c)
    has_beside = is_sharded | c.offloads_inputs
    if has_beside.any():
        columns = [column * is_sharded for column in c.key_columns(reading(Enters.GATHERS))]
        columns += [column * has_beside for column in c.key_columns(reading(Enters.REPEATS))]
        beside, first = pricing.numbered([number, *columns])
        work, number = work.take(number[first]), beside
        _add_beside(pricing, piece, work, c.take(first))
    kind, power = pricing.kind(piece), pricing.job.stack.host.host_race_power
    host = _launches(pricing, kind, work, c.take(first))
    for which in _HOST_PASSES:
        host_s, device_s = _racers(work, host, which)
        work.seconds[which, Part.LAUNCH] += race_s(host_s, device_s, power) - device_s
    again, repeated_s = np.zeros_like(number), np.zeros(1)
    if kind is not None:
        again, first = pricing.numbered([number * (c.recompute > 0), c.recompute])
        at = number[first]
        repeated_s = _repeated_s(work.take(at), _Launches(*(own[at] for own in host)), c.recompute[first], power)
        repeated_s = put_recompute(repeated_s, pricing.measured, piece, c.take(first))
    return Piece(
        pass_s=np.stack([work.pass_s(p) for p in Pass], axis=1),
        part_s=np.ascontiguousarray(in_order(work.seconds).T),
        number=number,
        recompute_s=repeated_s,
        again=again,
    )


def piece_operations(job: Job, piece: int, c: Candidates) -> list[Operation]:
    """Kernels of a piece, collectives and launches apart."""
    end = piece - len(job.model.kinds)
    if end < 0:
        return layer_operations(job, job.model.kinds[piece], c)
    return list((embedding_operations, head_operations, mtp_operations)[end](job, c))


def _with_traffic_inside(pricing: _Pricing, piece: int, work: Work, c: Candidates) -> Work:
    """The work of a piece with the model's towers, measured times in place of laws, and the traffic inside it.

    Of rows that are not computed to their end, in proportion to what is.
    """
    job, kind = pricing.job, pricing.kind(piece)
    computed = job.workload.filling(c.micro_batch_size).computed
    if piece == len(job.model.kinds) and job.model.towers:
        work = work.plus(tower_work(job, c, shares_rows=pricing.shares_rows))
    put_measured(work, pricing.measured, piece, c)
    if kind is not None:
        add_inside(work, kind, job, c)
        computed = computed * np.where(c.offload_layers > 0, 1.0 / job.stack.efficiencies.offload_efficiency, 1.0)
    else:
        work.seconds[[Pass.FORWARD, Pass.INPUT_GRAD], Part.TENSOR_COMM] += end_traffic_s(job, c)
    return work.slowed(computed)


def _add_beside(pricing: _Pricing, piece: int, work: Work, c: Candidates) -> None:
    """What shows of host copies and sharded weights: of a layer behind its compute, of an end all of it."""
    job, kind, end = pricing.job, pricing.kind(piece), piece - len(pricing.job.model.kinds)
    if kind is not None:
        add_beside(work, kind, job, c)
        return
    for traffic in sharded_ends(job, c)[end : end + 1]:
        add_exposed(work, Part.SHARD_COMM, traffic)


PARAMS_PER_EXPERT = 2
"""Matrices of an expert that Transformer Engine keeps as parameters of their own: gate with up projection, and down.
MXFP8 has a second copy of each for backward: Megatron-FSDP, `transpose_weight_buffer`."""
REPEATED_HOOKS = 0.5
"""Share of a forward's hooks that a recomputed layer runs again: the one that gathers, of two; the one that releases
returns at once (`_pre_forward_param_unshard`, `_post_forward` of NVIDIA/Megatron-LM fsdp/src/megatron_fsdp)."""


class _Launches(NamedTuple):
    """Seconds of the host in one direction of a piece, per row.

    per_kernel_s   of a launch; one that a graph replays takes the device's own gap between kernels
    bookkeeping_s  of router, dispatcher and experts; hooks_s: of the sharded parameters of its experts
    wait_s         that a forward waits for the device (token counts), which hides behind nothing
    """

    per_kernel_s: Floats
    bookkeeping_s: Floats
    hooks_s: Floats
    wait_s: Floats


def _launches(pricing: _Pricing, kind: LayerKind | None, work: Work, c: Candidates) -> _Launches:
    """What the host takes for a piece, before its waits are added to the work."""
    acc, stack, moe = pricing.job.accelerator, pricing.job.stack, pricing.job.model.moe
    num_experts = moe.num_experts if moe and kind is not None and kind.is_moe else 0
    shares = {
        CudaGraph.NONE: 0.0,
        CudaGraph.ROUTER: stack.host.router_graph_share,
        CudaGraph.PARTIAL: stack.host.partial_graph_share,
        CudaGraph.FULL: 1.0,
    }
    graphed = np.choose(c.graph_scope(stack.host.cuda_graph), [shares[scope] for scope in CudaGraph])
    ungraphed = (1.0 - graphed) * acc.launch.host_factor
    launch_s = stack.host.host_launch_s * np.where(c.tp > 1, stack.host.sharded_launch_factor, 1.0)
    dispatcher = np.where(c.has_fused_dispatch, stack.host.host_dispatch_factor, 1.0)
    enters_fp8 = (exchange_overlap_share(stack, c) > 0.0) & (c.fp8 != Fp8.NONE)
    dispatcher = dispatcher * np.where(enters_fp8, stack.host.host_overlap_factor, 1.0) * (num_experts > 0)
    hooks_s = np.where(pricing.job.runs_sharding(c) >= Sharding.HSDP, stack.host.host_expert_shard_s, 0.0)
    is_doubled = (c.fp8 == Fp8.MXFP8) & stack.precision.has_fp8_param_gather
    hooks_s = hooks_s * (PARAMS_PER_EXPERT * num_experts / c.ep) * np.where(is_doubled, 2.0, 1.0)
    return _Launches(
        per_kernel_s=graphed * acc.launch.graph_s + ungraphed * launch_s,
        bookkeeping_s=ungraphed * stack.host.host_moe_s * dispatcher,
        hooks_s=ungraphed * hooks_s,
        wait_s=work.seconds[Pass.FORWARD, Part.LAUNCH].copy(),
    )


def _racers(work: Work, host: _Launches, which: Pass) -> tuple[Floats, Floats]:
    """Seconds of host and device in one direction."""
    moments = _HOST_PASSES[which]
    device_s = in_order(work.pass_s(p) for p in moments) - work.seconds[which, Part.LAUNCH]
    kernels = in_order(in_order(work.kernels[p]) for p in moments)
    return kernels * host.per_kernel_s + host.bookkeeping_s + host.hooks_s, device_s


def _repeated_s(work: Work, host: _Launches, recompute: Ints, power: float) -> Floats:
    """Seconds one recomputed layer adds to its backward: what is repeated is launched again, bookkeeping of experts
    where the router is, and races with the host beside both gradients."""
    shares = recompute_shares(work.forward_module_s, recompute)
    kernels, seconds = (in_order(shares * own) for own in (work.kernels[Pass.FORWARD], work.forward_module_s))
    hooks_s = REPEATED_HOOKS * host.hooks_s * ((recompute & int(Recompute.FULL)) > 0)
    launched_s = kernels * host.per_kernel_s + shares[Module.ROUTER] * host.bookkeeping_s + hooks_s
    host_s, alone_s = _racers(work, host, Pass.INPUT_GRAD)
    device_s = alone_s + seconds - shares[Module.ROUTER] * host.wait_s
    more_s = race_s(host_s + launched_s, device_s, power) - device_s
    return np.asarray(seconds + more_s - (race_s(host_s, alone_s, power) - alone_s))


def race_s(host_s: Floats, device_s: Floats, power: float) -> Floats:
    """Seconds of a pass that the host launches while the device computes: (host^p + device^p)^(1/p); p = 0: the longer.

    Small kernels wait for the host where large ones let it run ahead, so a pass takes longer than the slower of both.
    """
    if power == 0.0:
        return np.maximum(host_s, device_s)
    most = np.maximum(np.maximum(host_s, device_s), np.finfo(np.float64).tiny)
    shares = (host_s / most) ** power + (device_s / most) ** power
    return most * shares ** (1.0 / power)


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
