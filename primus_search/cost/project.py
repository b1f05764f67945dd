"""Memory and step time of a table of candidates: the one place where all cost terms meet.

    Projector(Job(model, cluster, workload)).project(candidates) -> Projection

A Projector keeps what it computed: the shared terms of candidates (`cost/terms.py`), memory by key, pipelines per
distinct pipeline. Rows are gathered from those tables, so a chunk of 10^5 candidates costs what its new keys cost.
"""

from dataclasses import fields

import numpy as np

from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.memo import in_order
from primus_search.cost.memory import MemoryTable
from primus_search.cost.parts.operations import Part
from primus_search.cost.parts.tower_operations import flops_per_token
from primus_search.cost.pipeline import BOUND, BUBBLE, WINDOW_B, WINDOW_F
from primus_search.cost.projection import Memory, Projection, Step, Verdict
from primus_search.cost.replicas import UPDATE
from primus_search.cost.terms import Terms
from primus_search.cost.traffic.data_parallel import exposed_gradient_s
from primus_search.values.candidates import Bools, Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.model import Model
from primus_search.values.workload import Workload

_PART_OF_STEP = {f.name: Part[f.name.upper()] for f in fields(Step) if f.name.upper() in Part.__members__}


class Projector:
    """Projects candidates of one job."""

    def __init__(
        self,
        job: Job,
        *,
        memory_margin: float = 0.0,
        measured: MeasuredLayers | None = None,
        shares_rows: bool = True,
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
        """Forget every table: figures then depend on the rows that are asked for and not on those seen before."""
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

    def total_of(self, pipeline_s: Floats, gradient_s: Floats, optimizer_s: Floats) -> Floats:
        """Seconds of a step whose pipeline takes `pipeline_s`."""
        stack = self.job.stack
        return (pipeline_s + gradient_s + optimizer_s + stack.host.step_s) * (1.0 + self._straggle())

    def step_of(self, rows: Floats, gradient_s: Floats, optimizer_s: Floats) -> Step:
        """The step of pipelines whose bubble is known, (WIDTH, rows)."""
        stack = self.job.stack
        overhead = np.broadcast_to(np.asarray(stack.host.step_s, np.float64), rows.shape[1:])
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
        return exposed_gradient_s(self.job.cluster, overlaps, replicas.T, forward_s, backward_s), replicas[:, UPDATE]

    def _straggle(self) -> float:  # share of the step that waiting for the slowest node adds
        stack = self.job.stack
        return stack.host.straggler_per_doubling * float(np.log2(self.job.cluster.num_nodes))

    def _after(self, c: Candidates, forward_s: Floats, backward_s: Floats) -> tuple[Floats, Floats]:
        codes = self.terms.replicas.codes(c)
        return self.after_of(self.terms.replicas.data[codes], c.overlap_grad_reduce, forward_s, backward_s)

    def _pipeline_rows(self, c: Candidates, *, exact: bool) -> Floats:
        """(width, rows) of the pipeline table, gathered; the bubble is simulated only where `exact`."""
        terms = self.terms
        terms.refresh()
        codes = terms.pipeline_codes(c)
        if exact:
            terms.pipeline_rows.simulate(codes, terms.shape_list, terms.layers.data, terms.hops.data)
        return terms.pipeline_rows.gather(codes)


def project(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Projection:
    """Memory (bytes) and step (s) of every candidate, columns of the candidates' length; many tables: a `Projector`.

    model, cluster   of `load_model` and `load_cluster`       workload   sequence length and global batch, in samples
    c                `Candidates`, for instance `Candidates.from_words({"tp": 2, "pp": 4, ...})`

    A candidate that does not fit is a row with a verdict and negative `headroom_bytes`, not an error.
    """
    return Projector(Job(model, cluster, workload)).project(c)
