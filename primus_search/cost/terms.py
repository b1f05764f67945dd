"""Terms that candidates share: layers, pipeline shapes, hops, replicas, and the pipelines made of them.

Each is a memo over the columns that `knobs.Enters` says it reads. `Projector` asks for whole tables of candidates; a
search over a grid keeps the codes per pair of outer cell and inner combination (`exploration.exhaustive.pair_codes`).
"""

from functools import partial

import numpy as np

from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.memo import Canonical, Memo, WordNumbers, by_columns
from primus_search.cost.pipeline import (
    HOP_FACTS,
    PipelineKeys,
    PipelineRows,
    PipelineShapes,
    Shape,
    estimate,
    far_hops,
    hop_facts,
)
from primus_search.cost.replicas import REPLICA_TERMS, dealt_of, replica_terms
from primus_search.cost.stage import layer_width, piece_counts, pieces
from primus_search.values.candidates import Candidates, Floats, Ints, Recompute, RecomputeMethod, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import Enters, Scope, reading

SHAPE_READS, HOP_READS, REPLICA_READS = reading(Enters.SHAPE), reading(Enters.HOPS), reading(Enters.REPLICA)
LAYER_READS = reading(Enters.LAYER)
"""Axes that each term depends on."""
ONLY_GATHERS_READ = reading(Enters.GATHERS) - reading(Enters.INSIDE | Enters.REPEATS)
ONLY_EXPERTS_READ = LAYER_READS - reading(Enters.LAYER, ~Scope.EXPERTS)
"""Of those of layers, axes without effect where weights are not gathered, and in a model without experts."""


class Terms:
    """The terms of a step of one job.

    layers     seconds of every piece by pass, then by part, then of recompute by kind: see `stage.Pieces.rows`
    shapes     layers of the virtual stages, by number in `shape_list`
    hops       see `pipeline.hop_facts`      replicas   see `replicas.replica_terms`
    pipelines  of rows of the above and micro-batches, by number in `pipeline_rows`
    """

    def __init__(self, job: Job, measured: MeasuredLayers | None, shares_rows: bool) -> None:
        self.job, self.words = job, WordNumbers()
        self.shape_list, self.pipeline_rows = PipelineShapes(), PipelineRows()
        memo = partial(by_columns, shares=shares_rows)
        self.layers = memo(
            reads=LAYER_READS,
            canonical=self._layer_columns,
            compute=lambda c: (pieces(job, c, measured, shares_rows=shares_rows).rows,),
            width=layer_width(job.model),
        )
        self.shapes = by_columns(
            reads=SHAPE_READS, canonical=self._shape_columns, compute=self._shapes, tables=(self.shape_list,)
        )
        self.hops = memo(
            reads=HOP_READS,
            compute=lambda c: (hop_facts(job, c),),
            width=HOP_FACTS,
        )
        self.replicas = memo(
            reads=REPLICA_READS,
            canonical=self.words.columns,
            compute=lambda c: (replica_terms(job, c, measured),),
            width=REPLICA_TERMS,
        )
        self.pipelines = Memo[PipelineKeys](
            key=list,
            compute=lambda keys: ((self.estimate(keys), keys),),
            tables=(self.pipeline_rows,),
            after=(self.layers, self.shapes, self.hops),
            shares=shares_rows,
        )

    def refresh(self) -> None:
        """Start afresh with what has grown too large."""
        for memo in (self.layers, self.shapes, self.hops, self.replicas):
            memo.refresh()
        self.pipelines.refresh()

    def pipeline_codes(self, c: Candidates) -> Ints:
        """Number of the pipeline of every candidate."""
        microbatches = self.job.degrees(c).microbatches
        keys = PipelineKeys(self.shapes.codes(c), self.layers.codes(c), self.hops.codes(c), microbatches)
        return self.pipelines.codes(keys)

    def estimate(self, keys: PipelineKeys) -> Floats:
        """Rows of pipelines whose bubble is not known yet."""
        return estimate(self.shape_list.arrays, keys, self.layers.data, self.hops.data)

    # --- columns that a key holds in place of a candidate's --------------------------------------------------------

    def _layer_columns(self, c: Candidates) -> Canonical:
        gathers = c.sharding >= Sharding.FSDP2
        gathered = {name: c.__getattribute__(name) * gathers for name in sorted(ONLY_GATHERS_READ)}
        return gathered | (dict.fromkeys(ONLY_EXPERTS_READ) if not self.job.model.is_moe else {})

    def _shape_columns(self, c: Candidates) -> Canonical:
        words = self.words.columns(c)
        words["schedule"] *= c.pp > 1
        return {**words, "recompute_num_layers": _block_layers(c), "recompute": None, "recompute_method": None}

    def _shapes(self, c: Candidates) -> tuple[list[Shape]]:
        """The pipeline shape of every row."""
        block_layers = _block_layers(c).tolist()
        return ([self._shape(c, i, layers) for i, layers in enumerate(block_layers)],)

    def _shape(self, c: Candidates, i: int, block_layers: int) -> Shape:
        order = c.order(i, self.job.launcher)
        counts, recomputed = piece_counts(dealt_of(self.job.model, c, i), block_layers)
        return Shape(order=order, counts=counts, recomputed=recomputed, is_far=far_hops(self.job.cluster, order))


def _block_layers(c: Candidates) -> Ints:
    """Layers that FULL recompute with the block method repeats; 0 of every other row."""
    is_block = (c.recompute_method == RecomputeMethod.BLOCK) & ((c.recompute & Recompute.FULL) > 0)
    return np.where(is_block, c.recompute_num_layers, 0)
