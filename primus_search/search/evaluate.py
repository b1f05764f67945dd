"""One range of candidates through the funnel: legality -> memory -> bound -> full projection. Runs in every worker.

Each stage sees only what the stage before left over, and a row is dropped by its bound only when rows already found
exclude it from the top list and from the frontier.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from primus_search.candidates import Floats, Ints
from primus_search.cost.project import Projector
from primus_search.search.findings import NO_MISS, Findings, Miss
from primus_search.search.shortlist import NO_ROWS, OPEN, Collector, Cut, Rows, without_noise
from primus_search.space import Enumerator, Space
from primus_search.space.enumerate import INNER, Lines

CHUNK_ROWS = 65536
"""Rows evaluated at once: large enough that NumPy's cost per call vanishes, small enough to stay in cache."""

BOUND_SLACK = 1e-9
"""The bound adds the same terms in another order; this covers the rounding, so that pruning stays provable."""

MEMORY_IGNORES = frozenset({"overlap_grad_reduce", "grouped_gemm", "sync_free_stage"})
"""Inner axes that the memory of a device does not depend on; a test flips them and compares."""

MEMORY_READS = frozenset(INNER) - MEMORY_IGNORES


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A range of candidate numbers on one of the space's clusters."""

    number: int
    cluster: int
    start: int
    stop: int


@dataclass(frozen=True)
class Funnel:
    """A space ready to be evaluated; each worker builds one and keeps it, with the projectors' tables of terms."""

    space: Space
    keep: int

    @cached_property
    def enumerators(self) -> tuple[Enumerator, ...]:
        return tuple(Enumerator(self.space, choice) for choice in self.space.clusters)

    @cached_property
    def projectors(self) -> tuple[Projector, ...]:
        return tuple(self.fresh_projector(cluster) for cluster in range(len(self.space.clusters)))

    def fresh_projector(self, cluster: int) -> Projector:
        """A projector that has seen no row yet."""
        space = self.space
        choice, margin = space.clusters[cluster], space.search.memory_margin
        return Projector(space.model, choice.cluster, space.workload, memory_margin=margin)

    def evaluate(self, task: Task, cut: Cut) -> Findings:
        """What the rows of a task contribute beyond the cut."""
        tally, collector = _Tally(), Collector(self.keep, cut)
        for start in range(task.start, task.stop, CHUNK_ROWS):
            self._chunk(task.cluster, start, min(start + CHUNK_ROWS, task.stop), collector, tally)
        return tally.findings(collector)

    def look_at(self, cluster: int, numbers: Ints) -> "LookedAt":
        """The candidates with these numbers, one by one: what a sampler asks for."""
        tally, collector = _Tally(), Collector(self.keep, OPEN)
        with tally.stage("enumerate", len(numbers)):
            lines = self.enumerators[cluster].lines_at(numbers)
        memory_bytes, missing_bytes, rows = self._through(cluster, lines, collector, tally)
        step_of = dict(zip(rows.indices.tolist(), rows.step_s.tolist(), strict=True))
        return LookedAt(
            per_row=tuple(
                (number, step_of.get(number, np.inf), memory, missing)
                for number, memory, missing in zip(
                    lines.indices.tolist(), memory_bytes.tolist(), missing_bytes.tolist(), strict=True
                )
            ),
            findings=tally.findings(collector),
        )

    def _chunk(self, cluster: int, start: int, stop: int, collector: Collector, tally: "_Tally") -> None:
        with tally.stage("enumerate", stop - start):
            lines = self.enumerators[cluster].lines(start, stop)
        self._through(cluster, lines, collector, tally)

    def _through(
        self, cluster: int, lines: Lines, collector: Collector, tally: "_Tally"
    ) -> tuple[Floats, Floats, Rows]:
        """Memory, bound and projection of some lines; memory and missing bytes of all, and the rows projected."""
        enumerator, projector = self.enumerators[cluster], self.projectors[cluster]
        with tally.stage("memory", len(lines)):
            memory_bytes, missing_bytes = self._memory(cluster, lines)
            fits = missing_bytes <= 0.0
            alive, alive_bytes = lines.take(fits), memory_bytes[fits]
        tally.note(lines, missing_bytes)
        if not len(alive):
            return memory_bytes, missing_bytes, NO_ROWS
        with tally.stage("bound", len(alive)):
            candidates = enumerator.table(alive)
            bound_s = projector.bound(candidates) * (1.0 - BOUND_SLACK)
            admitted = collector.cut.admits(bound_s, without_noise(alive_bytes))
        with tally.stage("project", int(np.count_nonzero(admitted))):
            step_s = projector.step(candidates.take(admitted)).total if admitted.any() else np.zeros(0)
            rows = Rows(
                indices=alive.indices[admitted],
                step_s=without_noise(step_s),
                memory_bytes=without_noise(alive_bytes[admitted]),
            )
            collector.add(rows)
        return memory_bytes, missing_bytes, rows

    def _memory(self, cluster: int, lines: Lines) -> tuple[Floats, Floats]:
        """Memory of every line, and the bytes it lacks (negative: headroom); computed once per distinct memory."""
        if not len(lines):
            return np.zeros(0), np.zeros(0)
        enumerator, projector = self.enumerators[cluster], self.projectors[cluster]
        distinct, number = enumerator.distinct(lines, MEMORY_READS)
        total = projector.memory_bytes(enumerator.table(distinct))
        accelerator = self.space.clusters[cluster].cluster.accelerator
        missing = total - accelerator.hbm_bytes * (1.0 - self.space.search.memory_margin)
        return total[number], missing[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """Number, step seconds (infinite: does not fit), memory bytes and missing bytes of single candidates."""

    per_row: tuple[tuple[int, float, float, float], ...]
    findings: Findings


class _Tally:
    """Processor seconds and rows per stage, rows that late rules removed, and the nearest miss, of one task."""

    def __init__(self) -> None:
        self.rows = dict.fromkeys(("enumerate", "memory", "bound", "project"), 0)
        self.seconds = dict.fromkeys(self.rows, 0.0)
        self.removed: dict[str, int] = {}
        self.miss = NO_MISS

    @contextmanager
    def stage(self, name: str, rows: int) -> Iterator[None]:
        started = time.process_time()
        yield
        self.rows[name] += rows
        self.seconds[name] += time.process_time() - started

    def note(self, lines: Lines, missing_bytes: Floats) -> None:
        for name, count in lines.removed.items():
            self.removed[name] = self.removed.get(name, 0) + count
        if len(lines) and missing_bytes.max() > 0.0:
            lacks = np.where(missing_bytes > 0.0, missing_bytes, np.inf)
            nearest = int(np.argmin(lacks))
            self.miss = self.miss.plus(Miss(index=int(lines.indices[nearest]), missing_bytes=float(lacks[nearest])))

    def findings(self, collector: Collector) -> Findings:
        return Findings(
            shortlist=collector.shortlist,
            legal=self.rows["memory"],
            feasible=self.rows["bound"],
            removed=self.removed,
            rows=self.rows,
            seconds=self.seconds,
            miss=self.miss,
        )
