"""Pipeline rows: what a candidate's pipeline costs, estimated for every distinct key and simulated where it matters.

A row has the parts of the busiest rank, the backward and forward windows that gradient traffic can hide behind, and a
makespan no order can beat; all of that is sums over stages and needs no simulation (`kernels.estimate`). The bubble,
which does, is filled in by `simulate` for the rows that are asked for exactly, grouped by order.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Candidates, Floats, Ints
from primus_search.cluster import Cluster
from primus_search.cost.collectives import Group, send_s
from primus_search.cost.factor import Rows, in_order
from primus_search.cost.layer import BF16_BYTES, shapes
from primus_search.cost.work import Part, Pass
from primus_search.model import Model
from primus_search.schedule import algorithm, order_for
from primus_search.schedule.batch import CostColumns, simulate_many
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
    """New keys: which shape, which row of the layer table, micro-batches, and what a hop costs.

    hops  (rows, 4) seconds of a hop inside the fast domain and between two, the share of a hop that keeps the sending
          rank busy, and what every pass costs besides its kernels; see `hop_facts`
    """

    shape: Ints
    layer: Ints
    microbatches: Ints
    hops: Floats


class PipelineRows:
    """The growing table of pipeline rows, numbered as the vocabulary numbers their keys."""

    def __init__(self, num_pieces: int, num_kinds: int) -> None:
        self._num_pieces, self._num_kinds = num_pieces, num_kinds
        self._rows = Rows(WIDTH)
        self._codes = Rows(3)  # shape, layer, micro-batches
        self._hops = Rows(HOP_FACTS)
        self._shapes: list[Shape] = []
        self._first = np.zeros(1, dtype=np.int64)
        self._counts = np.zeros((0, num_pieces))
        self._recomputed = np.zeros((0, num_kinds))
        self._is_far = np.zeros(0, dtype=np.bool_)
        self._ranks = np.zeros((0, 2), dtype=np.int64)
        self._ranks_copies_splits = np.zeros((0, 3), dtype=np.int64)

    def add_shape(self, shape: Shape) -> None:
        """Register a shape under the next number."""
        self._shapes.append(shape)
        stages, ranks = len(shape.counts), shape.ranks
        copies = len(ranks) // stages
        self._first = np.append(self._first, self._first[-1] + stages)
        self._counts = np.concatenate([self._counts, shape.counts])
        self._recomputed = np.concatenate([self._recomputed, shape.recomputed])
        self._is_far = np.concatenate([self._is_far, shape.is_far, [False]])
        self._ranks = np.concatenate([self._ranks, np.stack([ranks[:stages], ranks[-stages:]], axis=1)])
        facts = [[max(shape.pp, 1), copies, int(shape.splits_weight)]]
        self._ranks_copies_splits = np.concatenate([self._ranks_copies_splits, facts])

    def append(self, keys: Keys, layers: Floats) -> None:
        """Estimate new keys; their bubble stays unknown (not a number) until it is simulated."""
        from primus_search.cost import kernels

        out = np.empty((len(keys.shape), WIDTH))
        kernels.estimate(
            keys.shape, keys.layer, keys.microbatches, keys.hops, layers,
            self._first, self._counts, self._recomputed, self._is_far, self._ranks, self._ranks_copies_splits,
            self._num_pieces, PARTS, int(Part.RECOMPUTE), out,
        )  # fmt: skip
        out[:, BOUND] *= 1.0 - ROUNDING
        out[:, BUBBLE] = np.nan
        self._rows.append(out)
        self._codes.append(np.stack([keys.shape, keys.layer, keys.microbatches], axis=1).astype(np.float64))
        self._hops.append(keys.hops)

    def gather(self, codes: Ints) -> Floats:
        """(WIDTH, rows) of the table."""
        return np.ascontiguousarray(self._rows.data[codes].T)

    def simulate(self, codes: Ints, layers: Floats) -> None:
        """Fill in the bubble of these rows where it is still unknown."""
        wanted = np.unique(codes[np.isnan(self._rows.data[codes, BUBBLE])])
        if len(wanted) == 0:
            return
        facts = self._codes.data[wanted].astype(np.int64)
        order = np.lexsort((facts[:, 2], facts[:, 0]))
        facts, wanted = facts[order], wanted[order]
        changes = np.flatnonzero((np.diff(facts[:, 0]) != 0) | (np.diff(facts[:, 2]) != 0)) + 1
        for members in np.split(np.arange(len(wanted)), changes):
            shape = self._shapes[facts[members[0], 0]]
            rows = wanted[members]
            makespan = self._makespan(
                shape, int(facts[members[0], 2]), layers[facts[members, 1]], self._hops.data[rows]
            )
            data = self._rows.data
            data[rows, BUBBLE] = makespan - in_order(data[rows, :PARTS].T)

    def _makespan(self, shape: Shape, microbatches: int, layers: Floats, hops: Floats) -> Floats:
        pieces, kinds = self._num_pieces, self._num_kinds
        by_pass = layers[:, : pieces * len(Pass)].reshape(-1, pieces, len(Pass))
        forward, backward, weight = (_counted(by_pass[:, :, which], shape.counts) for which in Pass)
        backward = backward + _counted(layers[:, len(layers[0]) - kinds :], shape.recomputed)
        if shape.pp == 1:
            return microbatches * in_order((forward + backward + weight).T)
        stages = len(shape.counts)
        ranks = shape.ranks[:stages]
        crosses = ranks[:-1] != ranks[1:]
        hop_s = crosses * np.where(shape.is_far, hops[:, [FAR_S]], hops[:, [NEAR_S]])
        held = hops[:, [BLOCKING]] * hop_s
        none = np.zeros((len(held), 1))
        costs = CostColumns(
            forward=forward + hops[:, [PASS_S]] + np.concatenate([held, none], axis=1),
            backward=backward + hops[:, [PASS_S]] + np.concatenate([none, held], axis=1),
            weight=weight,
            comm=hop_s - held,
        )
        times = simulate_many(order_for(shape.schedule, shape.pp, microbatches, shape.vpp), costs)
        return times.makespan


def _counted(pieces_s: Floats, counts: Floats) -> Floats:
    """(rows, stages) seconds of stages from (rows, pieces) seconds and (stages, pieces) counts."""
    return in_order(pieces_s[:, [k]] * counts[:, k] for k in range(counts.shape[1]))


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
