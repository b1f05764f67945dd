"""Pipeline rows: what a candidate's pipeline costs, estimated for every distinct key and simulated where it matters.

A row has the parts of the busiest rank, the backward and forward windows that gradient traffic can hide behind, and a
makespan no order can beat; all of that is sums over stages and needs no simulation (`estimate`). The bubble, which
does, is filled in by `simulate` for the rows that are asked for exactly, grouped by order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from primus_search.base.errors import ScheduleError
from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.collectives import Group, send_s
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.operations import Part
from primus_search.cost.stage import LayerArrays
from primus_search.schedule import algorithm, order_for, ranks_of
from primus_search.schedule.simulation.batch import run_columns
from primus_search.space.memo import Rows, alike, in_order
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, PipelineOrder
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster

PARTS = len(Part)
# Columns of a row: the parts, then these.
BUBBLE, WINDOW_B, WINDOW_F, BOUND = PARTS, PARTS + 1, PARTS + 2, PARTS + 3
WIDTH = PARTS + 4

NEAR_S, FAR_S, BLOCKING, PASS_S = range(4)
HOP_FACTS = 4

ROUNDING = 1e-9
"""A bound is lowered by this share, so that a sum in another order cannot lift it above the makespan."""

WINDOW_SLACK = 1e-9
"""Windows of several pipelines together are widened by this share: they are summed in another order than one's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """One way to lay a model out over a pipeline: what the rows that share it have in common.

    counts      (stages, pieces) how many of each piece a virtual stage holds
    recomputed  (stages, kinds) how many layers of each kind are recomputed
    is_far      (stages - 1,) hops whose two ends lie in different fast domains
    """

    order: PipelineOrder
    counts: Floats
    recomputed: Floats
    is_far: np.ndarray

    @property
    def splits_weight(self) -> bool:
        return self.order.pp > 1 and algorithm(self.order.schedule, self.order.launcher).splits_weight


class PipelineKeys(NamedTuple):
    """Pipelines to be costed: which shape, which rows of the tables of layers and hops, and micro-batches."""

    shape: Ints
    layer: Ints
    hop: Ints
    microbatches: Ints

    def take(self, rows: Ints | Bools) -> "PipelineKeys":
        """Some of the pipelines."""
        return PipelineKeys(*(column[rows] for column in self))


class ShapeArrays(NamedTuple):
    """All shapes of a table, laid out for compiled loops: stages that hold the same pieces are one kind of stage.

    first       first stage of a shape     facts  of a shape: ranks, copies of the model, whether W is apart from B
    kind        of a stage's pieces        is_far, ranks  of a stage: its hop, the ranks of both copies
    first_kind  first kind of a shape             counts, recomputed  pieces and recomputed layers of a kind of stage
    """

    first: Ints
    kind: Ints
    is_far: Bools
    ranks: Ints
    facts: Ints
    first_kind: Ints
    counts: Floats
    recomputed: Floats


class PipelineShapes:
    """The shapes of a memo by number."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop every shape."""
        self._shapes: list[Shape] = []
        self._parts: list[ShapeArrays] = []
        self._arrays: ShapeArrays | None = None

    def append(self, shapes: Sequence[Shape]) -> None:
        """Register shapes under the next numbers."""
        self._shapes += shapes
        self._parts += map(_laid_out, shapes)
        self._arrays = None

    def __getitem__(self, number: int) -> Shape:
        return self._shapes[number]

    @property
    def arrays(self) -> ShapeArrays:
        """All of them for compiled loops."""
        if self._arrays is None:
            every = ShapeArrays._make(map(np.concatenate, zip(*self._parts, strict=True)))
            first, first_kind = (np.cumsum([0, *numbers]) for numbers in (every.first, every.first_kind))
            self._arrays = every._replace(first=first, first_kind=first_kind)
        return self._arrays


def _laid_out(shape: Shape) -> ShapeArrays:
    """The part of one shape: how many stages and kinds of stage it has where the whole has the first of them."""
    stages, pieces = shape.counts.shape
    on = ranks_of(shape.order)
    layers = np.concatenate([shape.counts, shape.recomputed], axis=1)
    distinct, number = _kinds_of_stages(layers.tobytes(), layers.shape[1])
    return ShapeArrays(
        first=np.array([stages]),
        kind=number,
        is_far=np.append(shape.is_far, False),
        ranks=np.stack([on[:stages], on[-stages:]], axis=1),
        facts=np.array([(max(shape.order.pp, 1), len(on) // stages, int(shape.splits_weight))]),
        first_kind=np.array([len(distinct)]),
        counts=distinct[:, :pieces],
        recomputed=distinct[:, pieces:],
    )


@lru_cache(maxsize=1024)
def _kinds_of_stages(layers: bytes, width: int) -> tuple[Floats, Ints]:
    """The distinct rows of float64, and the number of every row among them: orders of one layout share them."""
    distinct, number = np.unique(np.frombuffer(layers).reshape(-1, width), axis=0, return_inverse=True)
    return distinct, number.reshape(-1)


def estimate(shapes: ShapeArrays, keys: PipelineKeys, layers: LayerArrays, hops: Floats) -> Floats:
    """(rows, WIDTH) of every pipeline; the bubble stays unknown (not a number) until it is simulated."""
    from primus_search.cost import pipeline_kernels

    out = np.empty((len(keys.shape), WIDTH))
    pipeline_kernels.estimate(keys, layers, hops, shapes, PARTS, int(Part.RECOMPUTE), out)
    out[:, BOUND] *= 1.0 - ROUNDING
    out[:, BUBBLE] = np.nan
    return out


def enclose(
    shapes: ShapeArrays, keys: PipelineKeys, sets: tuple[Ints, Ints], layers: LayerArrays, hops: Floats
) -> tuple[Floats, Floats, Floats]:
    """Least makespan, largest forward and largest backward window of pipelines that differ in their layers only.

    sets  codes of `layers`, and which of these codes each set has, from and to; `keys.layer` are numbers of sets
    Every second of a layer only lengthens a pipeline, so no member beats the makespan of the least seconds that any
    layer of its set takes of each piece and pass, and of recompute.
    """
    from primus_search.cost import pipeline_kernels

    out = np.empty((len(keys.shape), 3))
    pipeline_kernels.enclose(keys, *sets, layers, hops, shapes, out)
    return out[:, 0] * (1.0 - ROUNDING), out[:, 2] * (1.0 + WINDOW_SLACK), out[:, 1] * (1.0 + WINDOW_SLACK)


def simulate(shapes: PipelineShapes, keys: PipelineKeys, layers: LayerArrays, hops: Floats, rows: Floats) -> None:
    """Fill in the bubble of estimated rows: what is left of the exact makespan, simulated order by order."""
    for members in alike(np.stack([keys.shape, keys.microbatches])):
        some = keys.take(members)
        makespan = _makespan(shapes, some, layers, hops[some.hop])
        rows[members, BUBBLE] = makespan - in_order(rows[members, :PARTS].T)


class PipelineRows:
    """Pipelines of a memo by number: estimated rows, with the bubbles that were simulated so far."""

    def __init__(self) -> None:
        self._rows, self._keys = Rows(WIDTH), Rows(len(PipelineKeys._fields), dtype=np.int64)

    def clear(self) -> None:
        """Drop every pipeline."""
        self._rows.clear()
        self._keys.clear()

    def append(self, new: tuple[Floats, PipelineKeys]) -> None:
        """Add pipelines with their estimated rows."""
        rows, keys = new
        self._rows.append(rows)
        self._keys.append(np.stack(keys, axis=1))

    def gather(self, codes: Ints) -> Floats:
        """(WIDTH, rows)"""
        return np.ascontiguousarray(self._rows.data.take(codes, axis=0).T)

    def simulate(self, codes: Ints, shapes: PipelineShapes, layers: LayerArrays, hops: Floats) -> None:
        """Fill in the bubble of these rows where it is still unknown."""
        is_wanted = np.zeros(self._rows.size, dtype=np.bool_)
        is_wanted[codes] = True
        wanted = np.flatnonzero(is_wanted)
        wanted = wanted[np.isnan(self._rows.data[wanted, BUBBLE])]
        if len(wanted) == 0:
            return
        rows = self._rows.data[wanted]
        simulate(shapes, PipelineKeys(*self._keys.data[wanted].T), layers, hops, rows)
        self._rows.data[wanted] = rows


def _makespan(shapes: PipelineShapes, keys: PipelineKeys, layers: LayerArrays, hops: Floats) -> Floats:
    """Exact makespans of pipelines of one shape and so many micro-batches."""
    from primus_search.cost import pipeline_kernels

    number, microbatches = int(keys.shape[0]), int(keys.microbatches[0])
    order = shapes[number].order
    stages = len(ranks_of(order))
    duration, travel = np.empty((4, stages, len(keys.layer))), np.empty((stages, len(keys.layer)))
    facts = hops if order.pp > 1 else np.zeros_like(hops)
    pipeline_kernels.passes(number, keys.layer, facts, layers, shapes.arrays, duration, travel)
    if order.pp == 1:
        forward, backward, weight, _ = duration
        return microbatches * in_order(forward + backward + weight)
    table = order_for(order, microbatches)
    if table.virtual_stages != order.vpp:
        raise ScheduleError(f"{order.schedule}: vpp={order.vpp}; this schedule is defined for {table.virtual_stages}")
    return run_columns(table, duration, travel)[0]


def hop_facts(job: Job, c: Candidates) -> Floats:
    """(rows, 4) what a hop between pipeline ranks costs: near, far, share that blocks the sender, cost of a pass.

    Every hop carries one activation (or its gradient), split as the stack splits it.
    """
    cluster = job.cluster
    s = Share.of(job, c)
    message = s.split_tokens * job.model.hidden * BF16_BYTES
    near = send_s(cluster.network, message, Group(2, 1))
    far = send_s(cluster.network, message, Group(2, cluster.network.domain_size))
    efficiency = np.asarray(cluster.stack.efficiencies.network_efficiency, np.float64)
    facts = [
        near / efficiency,
        far / efficiency,
        cluster.stack.communication.pipeline_blocking,
        cluster.stack.host.pass_s,
    ]
    return np.stack([np.broadcast_to(np.asarray(fact, np.float64), (len(c),)) for fact in facts], axis=1)


def far_hops(cluster: Cluster, order: PipelineOrder) -> np.ndarray:
    """(stages - 1,) whether any two devices that a hop joins lie in different fast domains; the slowest pair counts.

    Pipeline ranks are the outermost: device i of rank r is r world / pp + i, and sends to device i of another rank.
    """
    ranks, size = ranks_of(order)[: order.pp * order.vpp], cluster.world // order.pp
    low, high = np.minimum(ranks[:-1], ranks[1:]) * size, (np.maximum(ranks[:-1], ranks[1:]) + 1) * size - 1
    domain = cluster.network.domain_size
    result: np.ndarray = (ranks[:-1] != ranks[1:]) & (low // domain != high // domain)
    return result
