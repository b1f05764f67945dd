"""Memory and step time of a table of candidates: the one place where all cost terms meet.

    Projector(Job(model, cluster, workload)).project(candidates) -> Projection

A Projector keeps what it computed: the shared terms of candidates (`Terms`), memory by key, pipelines per
distinct pipeline. Rows are gathered from those tables, so a chunk of 10^5 candidates costs what its new keys cost.

`Terms` are what candidates share: layers, pipeline shapes, hops, replicas, and the pipelines made of them.

Each is a memo over the columns that `knobs.Enters` says it reads. `Projector` asks for whole tables of candidates; a
search over a grid keeps the codes per pair of outer cell and inner combination (`exhaustive.bounds_and_steps`).
"""

from dataclasses import fields
from functools import partial

import numpy as np

from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.cost.parts.operations import Part, Pass
from primus_search.cost.parts.tower_operations import flops_per_token
from primus_search.cost.pipeline import (
    BOUND,
    BUBBLE,
    HOP_FACTS,
    WINDOW_B,
    WINDOW_F,
    PipelineKeys,
    PipelineRows,
    PipelineShapes,
    Shape,
    estimate,
    far_hops,
    hop_facts,
)
from primus_search.cost.projection import Memory, Projection, Step, Verdict
from primus_search.cost.replicas import REPLICA_TERMS, UPDATE, WAIT, dealt_of, replica_terms
from primus_search.cost.stage import LayerArrays, MeasuredLayers, piece_counts, pieces
from primus_search.cost.traffic.data_parallel import exposed_gradient_s
from primus_search.space.memo import Canonical, Memo, SharedRows, WordNumbers, by_columns, in_order
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, Recompute, RecomputeMethod
from primus_search.values.job import Job
from primus_search.values.knobs import Enters, Scope, reading
from primus_search.values.machine.cluster import Cluster
from primus_search.values.model import Model
from primus_search.values.workload import Workload

SHAPE_READS, HOP_READS, REPLICA_READS = reading(Enters.SHAPE), reading(Enters.HOPS), reading(Enters.REPLICA)
LAYER_READS = reading(Enters.LAYER)
"""Axes that each term depends on."""
SELDOM_READ = reading(Enters.GATHERS | Enters.STEADY) - reading(Enters.INSIDE | Enters.REPEATS)
ONLY_EXPERTS_READ = LAYER_READS - reading(Enters.LAYER, ~Scope.EXPERTS)
"""Of those of layers, axes without effect where weights are not gathered and exchange is not overlapped, and in a model
without experts."""


class Terms:
    """The terms of a step of one job.

    layers     seconds of every piece and of recompute, by number in `layer_table`
    shapes     layers of the virtual stages, by number in `shape_list`
    hops       see `pipeline.hop_facts`      replicas   see `replicas.replica_terms`
    pipelines  of rows of the above and micro-batches, by number in `pipeline_rows`
    """

    def __init__(self, job: Job, measured: MeasuredLayers | None, shares_rows: bool) -> None:
        self.job, self.words = job, WordNumbers()
        self.shape_list, self.pipeline_rows = PipelineShapes(), PipelineRows()
        self.layer_table = SharedRows(LayerArrays, (len(Pass) + len(Part),), ())
        memo = partial(by_columns, shares=shares_rows)
        self.layers = memo(
            reads=LAYER_READS,
            canonical=self._layer_columns,
            compute=lambda c: (pieces(job, c, measured, shares_rows=shares_rows).shared,),
            tables=(self.layer_table,),
        )
        self.shapes = by_columns(
            reads=SHAPE_READS, canonical=self._shape_columns, compute=self._shapes, tables=(self.shape_list,)
        )
        self.hops = memo(reads=HOP_READS, compute=lambda c: (hop_facts(job, c),), width=HOP_FACTS)
        self.replicas = memo(
            reads=REPLICA_READS,
            canonical=self._replica_columns,
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
        return estimate(self.shape_list.arrays, keys, self.layer_table.arrays, self.hops.data)

    # --- columns that a key holds in place of a candidate's --------------------------------------------------------

    def _layer_columns(self, c: Candidates) -> Canonical:
        has = {Enters.GATHERS: self.job.gathers_weights(c), Enters.STEADY: c.exchange_overlap}
        reads = {name: [has[term] for term in has if name in reading(term)] for name in sorted(SELDOM_READ)}
        seldom = {name: c.__getattribute__(name) * np.any(is_read, axis=0) for name, is_read in reads.items()}
        seldom |= {"offload_layers": c.offload_layers > 0}
        return seldom | (dict.fromkeys(ONLY_EXPERTS_READ) if not self.job.model.is_moe else {})

    def _replica_columns(self, c: Candidates) -> Canonical:
        return {**self.words.columns(c), **({} if self.job.workload.has_uneven_rows else {"micro_batch_size": None})}

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


_PART_OF_STEP = {f.name: Part[f.name.upper()] for f in fields(Step) if f.name.upper() in Part.__members__}


class Projector:
    """Projects candidates of one job."""

    def __init__(
        self, job: Job, *, memory_margin: float = 0.0, measured: MeasuredLayers | None = None, shares_rows: bool = True
    ) -> None:
        """`measured` replaces the kernel laws of the pieces it knows. `shares_rows=False` computes every row by itself,
        so that numbers of the stack or the accelerator may be columns too (one value per row): a fit moves all its
        parameters at once that way."""
        self.job = job
        self.memory_margin, self.measured = memory_margin, measured
        self.table = MemoryTable(job, memory_margin)
        self._shares_rows = shares_rows
        self.terms = Terms(job, measured, shares_rows)

    def refresh(self) -> None:
        """Start afresh with tables that have grown too large."""
        self.terms.refresh()
        self.table.refresh()

    def forget(self) -> None:
        """Forget every table: figures then depend on the rows at hand and not on those seen before."""
        self.table, self.terms = (
            MemoryTable(self.job, self.memory_margin),
            Terms(self.job, self.measured, self._shares_rows),
        )

    # --- the public face ------------------------------------------------------------------------------------------

    def project(self, c: Candidates) -> Projection:
        """Memory, step and verdict of every row; a row that does not fit is still a row."""
        return self.assemble(c, self.memory(c), self.step(c))

    def memory(self, c: Candidates) -> Memory:
        """Bytes on the worst pipeline rank."""
        return self.table.memory(c)

    def memory_bytes(self, c: Candidates) -> Floats:
        """`memory(c).total`, without the parts: all that rejection needs."""
        return self.table.total(c)

    def step(self, c: Candidates) -> Step:
        """Seconds of one optimizer step."""
        rows = self._pipeline_rows(c, exact=True)
        return self.step_of(rows, *self._after(c, rows[WINDOW_F], rows[WINDOW_B]))

    def bound(self, c: Candidates) -> Floats:
        """Seconds no schedule can beat, at most `step(c).total`: same terms, the bubble replaced by its lower bound."""
        rows = self._pipeline_rows(c, exact=False)
        return self.total_of(rows[BOUND], *self._after(c, rows[WINDOW_F], rows[WINDOW_B]))

    def assemble(self, c: Candidates, memory: Memory, step: Step) -> Projection:
        """Join memory and step into a projection with its verdict."""
        headroom = self.job.room_bytes(self.memory_margin) - memory.total
        d = self.job.degrees(c)
        return Projection(
            memory=memory,
            step=step,
            verdict=np.where(headroom >= 0, int(Verdict.FITS), int(Verdict.HBM)),
            headroom_bytes=headroom,
            microbatches=d.microbatches,
            dp=d.dp,
            world=self.job.cluster.world,
            tokens_per_step=self.job.workload.tokens_per_step,
            flops_per_token=flops_per_token(self.job),
            peak_flops_per_s=self.job.accelerator.bf16_peak_flops_per_s,
        )

    # --- from terms to a step -------------------------------------------------------------------------------------

    def total_of(
        self, pipeline_s: Floats, wait: Floats, forwards: Floats, gradient_s: Floats, optimizer_s: Floats
    ) -> Floats:
        """Seconds of a step whose pipeline takes `pipeline_s` where all micro-batches are alike."""
        beside = self._beside(pipeline_s, wait, forwards, gradient_s, optimizer_s)
        whole = pipeline_s + in_order(beside.values()) + gradient_s + optimizer_s + self.job.stack.host.step_s
        return whole * (1.0 + self._straggle())

    def _beside(
        self, pipeline_s: Floats, wait: Floats, forwards: Floats, gradient_s: Floats, optimizer_s: Floats
    ) -> dict[str, Floats]:
        """Seconds that a step takes beside the training of one model on even rows, by parts of `Step`."""
        workload = self.job.workload
        uneven_s = pipeline_s + pipeline_s * wait
        critics = workload.trained_models - 1
        rollout_s = workload.policy.rollout_s if workload.policy else 0.0
        return {
            "imbalance": pipeline_s * wait,
            "log_probs": uneven_s * forwards,
            "critic": (uneven_s + gradient_s + optimizer_s) * critics,
            "rollout": np.full_like(uneven_s, rollout_s),
        }

    def step_of(self, rows: Floats, wait: Floats, forwards: Floats, gradient_s: Floats, optimizer_s: Floats) -> Step:
        """The step of pipelines whose bubble is known, (WIDTH, rows)."""
        stack = self.job.stack
        overhead = np.broadcast_to(np.asarray(stack.host.step_s, np.float64), rows.shape[1:])
        pipeline_s = in_order(rows[: BUBBLE + 1])
        beside = self._beside(pipeline_s, wait, forwards, gradient_s, optimizer_s)
        subtotal = pipeline_s + in_order(beside.values()) + gradient_s + optimizer_s + overhead
        parts = {name: rows[part] for name, part in _PART_OF_STEP.items()}
        return Step(
            **parts,
            bubble=rows[BUBBLE],
            **beside,
            gradient_comm=gradient_s,
            optimizer=optimizer_s,
            overhead=overhead,
            stragglers=subtotal * self._straggle(),
        )

    def after_of(
        self, replicas: Floats, overlaps: Bools, forward_s: Floats, backward_s: Floats, *, is_least: bool = False
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Share of the pipeline that is waited and that passes without training take, exposed gradient traffic and
        optimizer seconds, from (rows, terms) of `replica_terms` and the windows.

        is_least: the windows are the largest of several candidates, whose share of such passes may be any.
        """
        exposed_s = exposed_gradient_s(self.job.cluster, overlaps, replicas.T, forward_s, backward_s)
        share = forward_s / np.maximum(forward_s + backward_s, np.finfo(np.float64).tiny)
        passes = 0.0 if is_least else self.job.workload.forward_passes
        return replicas[:, WAIT], share * passes, exposed_s, replicas[:, UPDATE]

    def _straggle(self) -> float:  # share of the step that waiting for the slowest node adds
        return self.job.stack.host.straggler_per_doubling * float(np.log2(self.job.cluster.num_nodes))

    def _after(self, c: Candidates, forward_s: Floats, backward_s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        codes = self.terms.replicas.codes(c)
        return self.after_of(self.terms.replicas.data.take(codes, axis=0), c.overlap_grad_reduce, forward_s, backward_s)

    def _pipeline_rows(self, c: Candidates, *, exact: bool) -> Floats:
        """(width, rows) of the pipeline table, gathered; the bubble is simulated only where `exact`."""
        terms = self.terms
        terms.refresh()
        codes = terms.pipeline_codes(c)
        if exact:
            terms.pipeline_rows.simulate(codes, terms.shape_list, terms.layer_table.arrays, terms.hops.data)
        return terms.pipeline_rows.gather(codes)


def project(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Projection:
    """Memory (bytes) and step (s) of every candidate, columns of the candidates' length; many tables: a `Projector`.

    model, cluster   of `load_model` and `load_cluster`       workload   sequence length and global batch, in samples
    c                `Candidates`, for instance `Candidates.from_words({"tp": 2, "pp": 4, ...})`

    A candidate that does not fit is a row with a verdict and negative `headroom_bytes`, not an error.
    """
    return Projector(Job(model, cluster, workload)).project(c)
