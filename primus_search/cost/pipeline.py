"""Pipeline rows: what a candidate's pipeline costs, estimated for every distinct key and simulated where it matters.

A row has the parts of the busiest rank, the backward and forward windows that gradient traffic can hide behind, and a
makespan no order can beat; all of that is sums over stages and needs no simulation (`estimate`). The bubble, which
does, is filled in by `simulate` for the rows that are asked for exactly, grouped by order.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Bools, Candidates, Floats, Ints
from primus_search.cluster import Cluster
from primus_search.cost.collectives import Group, send_s
from primus_search.cost.factor import Rows, in_order
from primus_search.cost.layer import BF16_BYTES, shapes
from primus_search.cost.work import Part
from primus_search.errors import ScheduleError
from primus_search.model import Model
from primus_search.schedule import algorithm, order_for
from primus_search.schedule.batch import run_columns
from primus_search.schedule.table import rank_of_stage
from primus_search.workload import Workload

PARTS = len(Part)
# Columns of a row: the parts, then these.
BUBBLE, WINDOW_B, WINDOW_F, BOUND = PARTS, PARTS + 1, PARTS + 2, PARTS + 3
WIDTH = PARTS + 4

NEAR_S, FAR_S, BLOCKING, PASS_S = range(4)
HOP_FACTS = 4

ROUNDING = 1e-9
"""A bound is lowered by this share, so that a sum in another order cannot lift it above the makespan."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """One way to lay a model out over a pipeline: what the rows that share it have in common.

    counts      (stages, pieces) how many of each piece a virtual stage holds
    recomputed  (stages, kinds) how many layers of each kind are recomputed
    is_far      (stages - 1,) hops whose two ends lie in different fast domains
    """

    schedule: str
    pp: int
    vpp: int
    counts: Floats
    recomputed: Floats
    is_far: np.ndarray

    @property
    def ranks(self) -> Ints:
        """Pipeline rank of every virtual stage, of both copies where the schedule holds the model twice."""
        if self.pp == 1:
            return np.zeros(len(self.counts), dtype=np.int64)
        return rank_of_stage(algorithm(self.schedule).placement, self.pp, self.vpp).astype(np.int64)

    @property
    def splits_weight(self) -> bool:
        return self.pp > 1 and algorithm(self.schedule).splits_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Pipelines to be costed: which shape, which row of the layer table, micro-batches, and what a hop costs.

    hops  (rows, 4) seconds of a hop inside the fast domain and between two, the share of a hop that keeps the sending
          rank busy, and what every pass costs besides its kernels; see `hop_facts`
    """

    shape: Ints
    layer: Ints
    microbatches: Ints
    hops: Floats

    def take(self, rows: Ints | Bools) -> "Keys":
        """Some of the pipelines."""
        return Keys(
            shape=self.shape[rows], layer=self.layer[rows], microbatches=self.microbatches[rows], hops=self.hops[rows]
        )


class Shapes:
    """All shapes met so far, laid out for compiled loops: stages that hold the same pieces are one kind of stage."""

    def __init__(self, num_pieces: int) -> None:
        self._num_pieces = num_pieces
        self._shapes: list[Shape] = []
        self._arrays: tuple[np.ndarray, ...] | None = None

    def add(self, shape: Shape) -> None:
        """Register a shape under the next number."""
        self._shapes.append(shape)
        self._arrays = None

    def __getitem__(self, number: int) -> Shape:
        return self._shapes[number]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """first, kind, far, ranks, facts of shapes and stages, then first, counts, recomputed of kinds of stages."""
        if self._arrays is None:
            self._arrays = self._laid_out()
        return self._arrays

    def _laid_out(self) -> tuple[np.ndarray, ...]:
        kind, counts, recomputed, is_far, ranks, facts = [], [], [], [], [], []
        for shape in self._shapes:
            stages, on = len(shape.counts), shape.ranks
            distinct, number = np.unique(
                np.concatenate([shape.counts, shape.recomputed], axis=1), axis=0, return_inverse=True
            )
            kind.append(number.reshape(-1))
            counts.append(distinct[:, : self._num_pieces])
            recomputed.append(distinct[:, self._num_pieces :])
            is_far.append(np.append(shape.is_far, False))
            ranks.append(np.stack([on[:stages], on[-stages:]], axis=1))
            facts.append((max(shape.pp, 1), len(on) // stages, int(shape.splits_weight)))
        return (
            np.cumsum([0, *map(len, kind)]), np.concatenate(kind), np.concatenate(is_far), np.concatenate(ranks),
            np.array(facts), np.cumsum([0, *map(len, counts)]), np.concatenate(counts), np.concatenate(recomputed),
        )  # fmt: skip


def estimate(shapes: Shapes, keys: Keys, layers: Floats) -> Floats:
    """(rows, WIDTH) of every pipeline; the bubble stays unknown (not a number) until it is simulated."""
    from primus_search.cost import kernels

    out = np.empty((len(keys.shape), WIDTH))
    kernels.estimate(
        keys.shape, keys.layer, keys.microbatches, keys.hops, layers, *shapes.arrays, PARTS, int(Part.RECOMPUTE), out
    )
    out[:, BOUND] *= 1.0 - ROUNDING
    out[:, BUBBLE] = np.nan
    return out


def simulate(shapes: Shapes, keys: Keys, layers: Floats, rows: Floats) -> None:
    """Fill in the bubble of estimated rows: what is left of the exact makespan, simulated order by order."""
    order = np.lexsort((keys.microbatches, keys.shape))
    shape, microbatches = keys.shape[order], keys.microbatches[order]
    changes = np.flatnonzero((np.diff(shape) != 0) | (np.diff(microbatches) != 0)) + 1
    for members in np.split(order, changes):
        if len(members) == 0:
            continue
        number, m = int(keys.shape[members[0]]), int(keys.microbatches[members[0]])
        makespan = _makespan(shapes, number, m, keys.layer[members], keys.hops[members], layers)
        rows[members, BUBBLE] = makespan - in_order(rows[members, :PARTS].T)


class PipelineRows:
    """A growing table of pipelines, numbered as a vocabulary numbers their keys; what was simulated stays known."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._rows = Rows(WIDTH)
        self._codes = Rows(3)  # shape, layer, micro-batches
        self._hops = Rows(HOP_FACTS)

    def append(self, keys: Keys, layers: Floats) -> None:
        """Estimate new keys."""
        self._rows.append(estimate(self._shapes, keys, layers))
        self._codes.append(np.stack([keys.shape, keys.layer, keys.microbatches], axis=1).astype(np.float64))
        self._hops.append(keys.hops)

    def gather(self, codes: Ints) -> Floats:
        """(WIDTH, rows) of the table."""
        return np.ascontiguousarray(self._rows.data[codes].T)

    def simulate(self, codes: Ints, layers: Floats) -> None:
        """Fill in the bubble of these rows where it is still unknown."""
        is_wanted = np.zeros(self._rows.size, dtype=np.bool_)
        is_wanted[codes] = True
        wanted = np.flatnonzero(is_wanted)
        wanted = wanted[np.isnan(self._rows.data[wanted, BUBBLE])]
        if len(wanted) == 0:
            return
        shape, layer, microbatches = self._codes.data[wanted].astype(np.int64).T
        keys = Keys(shape=shape, layer=layer, microbatches=microbatches, hops=self._hops.data[wanted])
        rows = self._rows.data[wanted]
        simulate(self._shapes, keys, layers, rows)
        self._rows.data[wanted] = rows


def _makespan(shapes: Shapes, number: int, microbatches: int, layer: Ints, hops: Floats, layers: Floats) -> Floats:
    """Exact makespans of pipelines of one shape and so many micro-batches."""
    from primus_search.cost import kernels

    shape = shapes[number]
    stages = len(shape.ranks)
    duration, travel = np.empty((4, stages, len(layer))), np.empty((stages, len(layer)))
    facts = hops if shape.pp > 1 else np.zeros_like(hops)
    kernels.passes(number, layer, facts, layers, PARTS, *shapes.arrays, duration, travel)
    if shape.pp == 1:
        forward, backward, weight, _ = duration
        return microbatches * in_order(forward + backward + weight)
    order = order_for(shape.schedule, shape.pp, microbatches, shape.vpp)
    if order.virtual_stages != shape.vpp:
        raise ScheduleError(f"{shape.schedule}: vpp={shape.vpp}; this schedule is defined for {order.virtual_stages}")
    return run_columns(order, duration, travel)[0]


def hop_facts(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Floats:
    """(rows, 4) what a hop between pipeline ranks costs: near, far, share that blocks the sender, cost of a pass.

    Every hop carries one activation (or its gradient), split as the stack splits it.
    """
    s = shapes(model, workload, cluster.stack, c)
    message = s.split_tokens * model.hidden * BF16_BYTES
    near = send_s(cluster.network, message, Group(2, 1))
    far = send_s(cluster.network, message, Group(2, cluster.network.domain_size))
    efficiency = np.asarray(cluster.stack.network_efficiency, np.float64)
    facts = [near / efficiency, far / efficiency, cluster.stack.pipeline_blocking, cluster.stack.pass_s]
    return np.stack([np.broadcast_to(np.asarray(fact, np.float64), (len(c),)) for fact in facts], axis=1)


def far_hops(cluster: Cluster, schedule: str, pp: int, vpp: int) -> np.ndarray:
    """(stages - 1,) whether the two ends of a hop lie in different fast domains.

    Pipeline ranks are the outermost: ranks r and r + 1 are world / pp devices apart.
    """
    if pp == 1:
        return np.zeros(max(pp * vpp - 1, 0), dtype=np.bool_)
    ranks = rank_of_stage(algorithm(schedule).placement, pp, vpp)[: pp * vpp].astype(np.int64)
    domain = ranks * (cluster.world // pp) // cluster.network.domain_size
    is_far: np.ndarray = domain[:-1] != domain[1:]
    return is_far
