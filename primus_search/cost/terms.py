"""Tables of terms that candidates share: layers, pipeline shapes, hops, replicas; each computed once per key.

A method `..._codes(c)` says which row of its table every candidate of `c` takes, and computes the rows that are new.
`Projector` asks for whole tables of candidates; a search over a grid remembers the codes per pair of outer cell and
inner combination (`space.pairs`) and asks here only for pairs it never met.
"""

from collections.abc import Sequence

import numpy as np

from primus_search.candidates import Bools, Candidates, Ints, Recompute, RecomputeMethod, Sharding
from primus_search.cluster import Cluster
from primus_search.cost.factor import Rows, Vocabulary
from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.pipeline import HOP_FACTS, Shape, Shapes, far_hops, hop_facts
from primus_search.cost.replicas import REPLICA_TERMS, replica_terms, stages_of
from primus_search.cost.stage import piece_counts, pieces
from primus_search.cost.work import Part, Pass
from primus_search.layout import Layout
from primus_search.model import Model
from primus_search.workload import Workload

LAYER_READS = frozenset(
    {"tp", "cp", "micro_batch_size", "fp8", "sequence_parallel", "recompute", "loss_fusion", "sharding", "shard_group",
     "ep", "etp", "grouped_gemm", "deepep", "sync_free_stage"}
)  # fmt: skip
SHAPE_READS = frozenset(
    {"pp", "vpp", "schedule", "pipeline_layout", "recompute", "recompute_method", "recompute_num_layers"}
)
HOP_READS = frozenset({"tp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel"})
REPLICA_READS = frozenset(
    {"tp", "pp", "vpp", "ep", "etp", "cp", "sharding", "shard_group", "fp8", "overlap_grad_reduce", "schedule",
     "pipeline_layout"}
)  # fmt: skip
"""Axes that each kind of code depends on. Weights that FSDP gathers are sharded over dp, which pp decides as well."""

LAYER_LIMIT = 1_000_000
"""Layer rows kept; beyond this the tables start afresh."""


class Terms:
    """Tables of terms of one model on one cluster for one workload.

    layers    a row per layer key: seconds of every piece by pass, then by part, then of recompute by kind
    replicas  a row per replica key: see `replicas.replica_terms`
    """

    def __init__(
        self, model: Model, cluster: Cluster, workload: Workload, measured: MeasuredLayers | None, shares_rows: bool
    ) -> None:
        self.model, self.cluster, self.workload, self.measured = model, cluster, workload, measured
        self._shares_rows = shares_rows
        self.num_pieces, self.num_kinds = len(model.kinds) + 3, len(model.kinds)
        self.generation = 0
        self._start()

    def _start(self) -> None:
        self._layer_keys, self._shape_keys = Vocabulary(), Vocabulary()
        self._hop_keys, self._replica_keys = Vocabulary(), Vocabulary()
        self.layers = Rows(self.num_pieces * (len(Pass) + len(Part)) + self.num_kinds)
        self.hops, self.replicas = Rows(HOP_FACTS), Rows(REPLICA_TERMS)
        self.shapes = Shapes(self.num_pieces)
        self._layouts: dict[Layout, int] = {}
        self._schedules: dict[str, int] = {}

    def forget(self) -> None:
        """Drop every table; numbers given before mean nothing afterwards, which a new `generation` tells."""
        self._start()
        self.generation += 1

    @property
    def is_full(self) -> bool:
        """Whether the tables hold more than they should."""
        return self.layers.size > LAYER_LIMIT

    def layer_codes(self, c: Candidates) -> Ints:
        """Row of `layers` of every candidate."""
        is_fsdp = _gathers_weights(c)
        columns: list[Ints | Bools] = [c.tp, c.cp, c.micro_batch_size, c.fp8, c.sequence_parallel, c.recompute]
        columns += [c.loss_fusion, np.where(is_fsdp, c.sharding, 0), np.where(is_fsdp, c.shard_group, 0)]
        columns += [np.where(is_fsdp, c.pp, 0)]
        if self.model.is_moe:
            columns += [c.ep, c.etp, c.grouped_gemm, c.deepep, c.sync_free_stage]
        codes, first = self._encode(self._layer_keys, columns)
        if len(first):
            job = (self.model, self.cluster, self.workload, c.take(first), self.measured)
            priced = pieces(*job, shares_rows=self._shares_rows)
            priced.write(self.layers.room(len(priced)))
        return codes

    def shape_codes(self, c: Candidates) -> Ints:
        """Number of the pipeline shape of every candidate in `shapes`."""
        has_pipeline = c.pp > 1
        is_block = (c.recompute_method == RecomputeMethod.BLOCK) & ((c.recompute & Recompute.FULL) > 0)
        block_layers = np.where(is_block, c.recompute_num_layers, 0)
        columns = [c.pp, c.vpp, self.schedule_codes(c) * has_pipeline, self.layout_codes(c), block_layers]
        codes, first = self._shape_keys.encode(columns)
        for i in first.tolist():
            self.shapes.add(self._shape(c, i, int(block_layers[i])))
        return codes

    def hop_codes(self, c: Candidates) -> Ints:
        """Row of `hops` of every candidate."""
        columns: list[Ints | Bools] = [c.tp, c.cp, c.ep, c.etp, c.micro_batch_size, c.sequence_parallel]
        codes, first = self._encode(self._hop_keys, columns)
        if len(first):
            self.hops.append(hop_facts(self.model, self.cluster, self.workload, c.take(first)))
        return codes

    def replica_codes(self, c: Candidates) -> Ints:
        """Row of `replicas` of every candidate."""
        columns: list[Ints | Bools] = [c.tp, c.pp, c.vpp, c.ep, c.etp, c.cp, c.sharding]
        columns += [c.shard_group * (c.sharding != Sharding.NONE), c.fp8, c.overlap_grad_reduce]
        columns += [self.layout_codes(c), self.schedule_codes(c)]
        codes, first = self._encode(self._replica_keys, columns)
        if len(first):
            taken = c.take(first)
            self.replicas.append(replica_terms(self.model, self.cluster, self.workload, taken, self.measured))
        return codes

    def layout_codes(self, c: Candidates) -> Ints:
        """Numbers of layouts that stay the same from table to table."""
        return np.array([self._layouts.setdefault(x, len(self._layouts)) for x in c.layouts])[c.pipeline_layout]

    def schedule_codes(self, c: Candidates) -> Ints:
        """Numbers of schedules that stay the same from table to table."""
        return np.array([self._schedules.setdefault(x, len(self._schedules)) for x in c.schedules])[c.schedule]

    def _encode(self, vocabulary: Vocabulary, columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
        return vocabulary.encode(columns) if self._shares_rows else vocabulary.number(len(columns[0]))

    def _shape(self, c: Candidates, i: int, block_layers: int) -> Shape:
        """The pipeline shape of row i."""
        pp, vpp, schedule = int(c.pp[i]), int(c.vpp[i]), c.schedules[int(c.schedule[i])]
        counts, recomputed = piece_counts(stages_of(self.model, c, i), block_layers)
        is_far = far_hops(self.cluster, schedule, pp, vpp)
        return Shape(schedule=schedule, pp=pp, vpp=vpp, counts=counts, recomputed=recomputed, is_far=is_far)


def _gathers_weights(c: Candidates) -> np.ndarray:
    gathers: np.ndarray = (c.sharding == Sharding.FSDP2) | (c.sharding == Sharding.HSDP)
    return gathers
