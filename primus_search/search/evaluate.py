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

from primus_search.candidates import Bools, Floats
from primus_search.cost.project import Projector
from primus_search.search.findings import NO_MISS, Findings, Miss
from primus_search.search.shortlist import Collector, Cut, Rows, without_noise
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
        return Findings(
            shortlist=collector.shortlist,
            legal=tally.rows["memory"],
            feasible=tally.rows["bound"],
            removed=tally.removed,
            rows=tally.rows,
            seconds=tally.seconds,
            miss=tally.miss,
        )

    def _chunk(self, cluster: int, start: int, stop: int, collector: Collector, clock: "_Tally") -> None:
        enumerator, projector = self.enumerators[cluster], self.projectors[cluster]
        with clock.stage("enumerate", stop - start):
            lines = enumerator.lines(start, stop)
        with clock.stage("memory", len(lines)):
            memory_bytes, fits, miss = self._memory(cluster, lines)
            alive, memory_bytes = lines.take(fits), memory_bytes[fits]
        clock.note(lines.removed, miss)
        if not len(alive):
            return
        with clock.stage("bound", len(alive)):
            candidates = enumerator.table(alive)
            bound_s = projector.bound(candidates) * (1.0 - BOUND_SLACK)
            admitted = collector.cut.admits(bound_s, without_noise(memory_bytes))
        with clock.stage("project", int(np.count_nonzero(admitted))):
            step_s = projector.step(candidates.take(admitted)).total if admitted.any() else np.zeros(0)
            figures = without_noise(step_s), without_noise(memory_bytes[admitted])
            rows = Rows(indices=alive.indices[admitted], step_s=figures[0], memory_bytes=figures[1])
            collector.add(rows)

    def _memory(self, cluster: int, lines: Lines) -> tuple[Floats, Bools, Miss]:
        """Memory of every line, whether it fits, and the nearest miss; computed once per distinct memory."""
        if not len(lines):
            return np.zeros(0), np.zeros(0, dtype=np.bool_), NO_MISS
        enumerator, projector = self.enumerators[cluster], self.projectors[cluster]
        distinct, number = enumerator.distinct(lines, MEMORY_READS)
        total = projector.memory_bytes(enumerator.table(distinct))
        accelerator = self.space.clusters[cluster].cluster.accelerator
        headroom = accelerator.hbm_bytes * (1.0 - self.space.search.memory_margin) - total
        fits = headroom >= 0.0
        miss = NO_MISS
        if not fits.all():
            nearest = int(np.argmax(np.where(fits, -np.inf, headroom)))
            miss = Miss(index=int(distinct.indices[nearest]), missing_bytes=float(-headroom[nearest]))
        return total[number], fits[number], miss


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

    def note(self, removed: dict[str, int], miss: Miss) -> None:
        for name, count in removed.items():
            self.removed[name] = self.removed.get(name, 0) + count
        self.miss = self.miss.plus(miss)
