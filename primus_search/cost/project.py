"""Memory and step time of a table of candidates: the one place where all cost terms meet.

    Projector(model, cluster, workload).project(candidates) -> Projection

A Projector keeps what it computed: the shared terms of candidates (`cost/terms.py`), memory by key, pipelines per
distinct pipeline. Rows are gathered from those tables, so a chunk of 10^5 candidates costs what its new keys cost.
"""

from dataclasses import fields

import numpy as np

from primus_search.candidates import Bools, Candidates, Degrees, Floats, degrees
from primus_search.cluster import Cluster
from primus_search.cost.factor import Vocabulary, in_order
from primus_search.cost.gradient import GradientTraffic, exposed_gradient_s
from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.memory import MemoryTable
from primus_search.cost.pipeline import BOUND, BUBBLE, WINDOW_B, WINDOW_F, Keys, PipelineRows
from primus_search.cost.replicas import GATHER_LEAST, GATHER_MOST, REDUCE_LEAST, REDUCE_MOST, UPDATE
from primus_search.cost.result import Memory, Projection, Step, Verdict
from primus_search.cost.terms import Terms
from primus_search.cost.work import Part
from primus_search.model import Model
from primus_search.workload import Workload

MEMO_LIMIT = 1_000_000
"""Pipeline rows kept; beyond this the tables start afresh (about 200 MB)."""


_PART_OF_STEP = {f.name: Part[f.name.upper()] for f in fields(Step) if f.name.upper() in Part.__members__}


class Projector:
    """Projects candidates of one model on one cluster for one workload."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        workload: Workload,
        *,
        memory_margin: float = 0.0,
        measured: MeasuredLayers | None = None,
        shares_rows: bool = True,
    ) -> None:
        """`measured` replaces the kernel laws of the pieces it knows. `shares_rows=False` computes every row by itself,
        so that numbers of the stack or the accelerator may be columns too (one value per row): a fit moves all its
        parameters at once that way."""
        self.model, self.cluster, self.workload = model, cluster, workload
        self.memory_margin, self.measured = memory_margin, measured
        self.table = MemoryTable(model, cluster, workload)
        self.terms = Terms(model, cluster, workload, measured, shares_rows)
        self._shares_rows = shares_rows
        self._start()

    def _start(self) -> None:
        self._pipeline_keys, self._pipelines = Vocabulary(), PipelineRows(self.terms.shapes)
        self._generation = self.terms.generation

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
        hbm = self.cluster.accelerator.hbm_bytes * (1.0 - self.memory_margin)
        headroom = hbm - memory.total
        d = self._degrees(c)
        return Projection(
            memory=memory,
            step=step,
            verdict=np.where(headroom >= 0, int(Verdict.FITS), int(Verdict.HBM)),
            headroom_bytes=headroom,
            microbatches=d.microbatches,
            dp=d.dp,
            world=self.cluster.world,
            tokens_per_step=self.workload.tokens_per_step,
            flops_per_token=self.model.flops_per_token(self.workload.seq_length),
            peak_flops_per_s=self.cluster.accelerator.bf16_peak_flops_per_s,
        )

    # --- from terms to a step -------------------------------------------------------------------------------------

    def total_of(self, pipeline_s: Floats, gradient_s: Floats, optimizer_s: Floats) -> Floats:
        """Seconds of a step whose pipeline takes `pipeline_s`."""
        stack = self.cluster.stack
        return (pipeline_s + gradient_s + optimizer_s + stack.step_s) * (1.0 + self._straggle())

    def step_of(self, rows: Floats, gradient_s: Floats, optimizer_s: Floats) -> Step:
        """The step of pipelines whose bubble is known, (WIDTH, rows)."""
        stack = self.cluster.stack
        overhead = np.broadcast_to(np.asarray(stack.step_s, np.float64), rows.shape[1:])
        subtotal = in_order(rows[: BUBBLE + 1]) + gradient_s + optimizer_s + overhead
        parts = {name: rows[part] for name, part in _PART_OF_STEP.items()}
        return Step(
            **parts,
            bubble=rows[BUBBLE],
            gradient_comm=gradient_s,
            optimizer=optimizer_s,
            overhead=overhead,
            stragglers=subtotal * self._straggle(),
        )

    def after_of(
        self, replicas: Floats, overlaps: Bools, forward_s: Floats, backward_s: Floats
    ) -> tuple[Floats, Floats]:
        """Exposed gradient traffic and optimizer seconds, from (rows, terms) of `replica_terms` and the windows."""
        traffic = GradientTraffic(
            reduce_most_s=replicas[:, REDUCE_MOST],
            reduce_least_s=replicas[:, REDUCE_LEAST],
            gather_most_s=replicas[:, GATHER_MOST],
            gather_least_s=replicas[:, GATHER_LEAST],
        )
        return exposed_gradient_s(self.cluster, overlaps, traffic, forward_s, backward_s), replicas[:, UPDATE]

    def _degrees(self, c: Candidates) -> Degrees:
        return degrees(c, world=self.cluster.world, global_batch_size=self.workload.global_batch_size)

    def _straggle(self) -> float:  # share of the step that waiting for the slowest node adds
        stack = self.cluster.stack
        return stack.straggler_per_doubling * float(np.log2(self.cluster.num_nodes))

    def _after(self, c: Candidates, forward_s: Floats, backward_s: Floats) -> tuple[Floats, Floats]:
        codes = self.terms.replica_codes(c)
        return self.after_of(self.terms.replicas.data[codes], c.overlap_grad_reduce, forward_s, backward_s)

    def _pipeline_rows(self, c: Candidates, *, exact: bool) -> Floats:
        """(width, rows) of the pipeline table, gathered; the bubble is simulated only where `exact`."""
        terms = self.terms
        if terms.is_full:
            terms.forget()
        if self._pipeline_keys.size > MEMO_LIMIT or self._generation != terms.generation:
            self._start()
        layer, shape, hop = terms.layer_codes(c), terms.shape_codes(c), terms.hop_codes(c)
        microbatches = self._degrees(c).microbatches
        keys = [layer, shape, hop, microbatches]
        codes, first = self._pipeline_keys.encode(keys) if self._shares_rows else self._pipeline_keys.number(len(layer))
        if len(first):
            new = Keys(
                shape=shape[first],
                layer=layer[first],
                microbatches=microbatches[first],
                hops=terms.hops.data[hop[first]],
            )
            self._pipelines.append(new, terms.layers.data)
        if exact:
            self._pipelines.simulate(codes, terms.layers.data)
        return self._pipelines.gather(codes)


def project(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Projection:
    """Memory and step of every candidate; for many tables keep a `Projector`."""
    return Projector(model, cluster, workload).project(c)
