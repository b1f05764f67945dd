"""One range of candidates through the funnel: legality -> memory -> bound -> full projection. Runs in every worker.

Candidates of a whole outer cell come in bundles that memory cannot tell apart: memory and a first bound are computed
once per bundle. Bundles that may matter are taken up in the order of their bounds, candidate by candidate: a sharper
bound, then the exact step. A row is dropped only when rows already found exclude it from the top list, from the best
of its group and from the frontier, so that the order in which rows are looked at never changes the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np

from primus_search.cost.project import HOP_READS, SHAPE_READS, Projector
from primus_search.exploration.exhaustive.bounds_and_steps import GridCosts, Pipelines
from primus_search.exploration.exhaustive.shortlist import (
    OPEN,
    PER_GROUP,
    UNGROUPED,
    Collector,
    Cut,
    Expect,
    Shortlist,
    ShortlistRows,
    lengths_of,
    starts_of,
    without_noise,
)
from primus_search.exploration.expected import expected_step_s
from primus_search.exploration.findings import Findings, Tally
from primus_search.space import Enumerator, Space
from primus_search.space.enumerate import OUTER, GridRows
from primus_search.values.candidates import Bools, Floats, Ints

SMALL_ROWS = 400_000
"""Rows up to which a space costs its orders and hardly its layers; a second process hardly pays."""

CELL_READS = HOP_READS
"""The outer axes that a layer's seconds depend on; `pp`, which decides what FSDP gathers, sees each layer once."""


PIPELINE_READS = (SHAPE_READS - {"pipeline_layout"}).intersection(OUTER)
"""What an order depends on, besides micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """The outer cells of one cluster in the order of the search, and the candidates before each.

    A large space pays for its layers, so cells that share layers (hence tp * cp / micro_batch_size, hence the number of
    micro-batches at every depth of pipeline) stand together: two tasks hardly have a layer or an order in common. A
    small space pays for its orders: it is walked as it is numbered, pipeline by pipeline.

    cells   outer cells                               starts  candidates before each of them, and the size
    first   number of the first candidate of each     marks   where tasks like to begin, the most wanted last
    """

    cells: Ints
    starts: Ints
    first: Ints
    marks: tuple[Ints, ...]

    @classmethod
    def of(cls, enumerator: Enumerator) -> Self:
        """The order of a cluster's candidates; it depends on the space alone."""
        if enumerator.size <= SMALL_ROWS:
            cells = np.arange(len(enumerator.starts) - 1)
            pipelines, _ = enumerator.outer_numbers(PIPELINE_READS)
            return cls._ordered(enumerator, cells, [pipelines])
        layers, _ = enumerator.outer_numbers(CELL_READS)
        ratio = enumerator.microbatches / enumerator.blocks[0].values["pp"]
        return cls._ordered(enumerator, np.lexsort((layers, ratio)), [layers, ratio])

    @classmethod
    def _ordered(cls, enumerator: Enumerator, cells: Ints, kinds: list[np.ndarray]) -> Self:
        lengths = np.diff(enumerator.starts)[cells]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        changes = [np.flatnonzero(np.diff(kind[cells])) + 1 for kind in kinds]
        marks = [starts, *(starts[np.concatenate([[0], change, [len(cells)]])] for change in changes)]
        return cls(cells=cells, starts=starts, first=enumerator.starts[cells], marks=tuple(marks))

    @property
    def is_small(self) -> bool:
        """Whether all tasks of the cluster are as good as each other to begin with."""
        return bool(self.starts[-1] <= SMALL_ROWS)

    def numbers(self, places: Ints) -> Ints:
        """The numbers of the candidates that stand at these places of the order."""
        at = np.searchsorted(self.starts, places, side="right") - 1
        return self.first[at] + places - self.starts[at]

    def group_of(self, start: int) -> int:
        """The stretch between two of the most wanted marks in which a task begins; inside one, orders are the same."""
        return int(np.searchsorted(self.marks[-1], start, side="right")) - 1

    def cuts(self, rows: int) -> Ints:
        """Where tasks of about `rows` begin and end: at the most wanted mark nearby, else where a cell begins."""
        size = int(self.starts[-1])
        cuts = np.arange(rows, size, rows)
        for marks in self.marks:
            after = np.searchsorted(marks, cuts).clip(1, len(marks) - 1)
            near = np.where(cuts - marks[after - 1] < marks[after] - cuts, marks[after - 1], marks[after])
            cuts = np.where(np.abs(near - cuts) <= rows // 4, near, cuts)
        return np.unique(np.concatenate([[0], cuts, [size]]))


CHUNK_ROWS = 65536
"""Rows evaluated at once: large enough that NumPy's cost per call vanishes, small enough to stay in cache."""

SIFTED_CHUNKS = 4
"""Chunks whose bundles are sifted at once: the cut stays as it is meanwhile, and few of the terms of each are new."""

BOUND_SLACK = 1e-9
"""The bound adds the same terms in another order; this covers the rounding, so that pruning stays provable."""


TALLIED = ("enumerate", "memory", "bound", "pipeline", "project")
"""Stages of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A range of candidates on one of the space's clusters, in the order of the search (`task_orders`).

    group  tasks of a cluster with the same one share orders; a worker that has done one does the others for less
    """

    number: int
    cluster: int
    start: int
    stop: int
    group: int = 0


@dataclass(frozen=True)
class Funnel:
    """A space ready to be evaluated; each worker builds one and keeps it, with the projectors' tables of terms."""

    space: Space
    keep: int

    @cached_property
    def enumerators(self) -> tuple[Enumerator, ...]:
        return tuple(Enumerator(self.space, choice) for choice in self.space.clusters)

    @cached_property
    def task_orders(self) -> tuple[TaskOrder, ...]:
        return tuple(map(TaskOrder.of, self.enumerators))

    @cached_property
    def projectors(self) -> tuple[Projector, ...]:
        return tuple(self.fresh_projector(cluster) for cluster in range(len(self.space.clusters)))

    @cached_property
    def grid_costs(self) -> tuple[GridCosts, ...]:
        return tuple(map(GridCosts, self.enumerators, self.projectors))

    def fresh_projector(self, cluster: int) -> Projector:
        """A projector that has seen no row yet."""
        space = self.space
        choice, margin = space.clusters[cluster], space.search.memory_margin
        return Projector(space.job_on(choice), memory_margin=margin)

    def expect(self, cluster: int) -> Expect:
        """Expected steps of a cluster's candidates: what its frontier is of."""
        return partial(expected_step_s, self.projectors[cluster], self.enumerators[cluster])

    def evaluate(self, task: Task, cut: Cut) -> Findings:
        """What the rows of a task contribute beyond the cut."""
        tally, collector = Tally(*TALLIED), Collector(self.keep, cut, self.expect(task.cluster))
        costs, order = self.grid_costs[task.cluster], self.task_orders[task.cluster]
        costs.projector.refresh()
        first, last = np.searchsorted(order.starts, [task.start, task.stop], side="left")
        last -= int(order.starts[last] > task.stop)
        if costs.enumerator.has_late_rules or first >= last:
            self._rows(costs, order, task.start, task.stop, collector, tally)
        else:
            alive = [_sift(costs, some, collector.cut, tally) for some in _chunks(costs, order.cells[first:last])]
            _take_up(costs, _Bundles.joined(alive), collector, tally)
            self._rows(costs, order, task.start, int(order.starts[first]), collector, tally)
            self._rows(costs, order, int(order.starts[last]), task.stop, collector, tally)
        return tally.findings(collector.shortlist)

    def best_of_cells(self, cluster: int, cells: Ints) -> Shortlist:
        """The best candidates of some outer cells, of a cluster without late rules."""
        costs, collector = self.grid_costs[cluster], Collector(self.keep, OPEN, self.expect(cluster))
        tally = Tally(*TALLIED)
        alive = [_sift(costs, some, collector.cut, tally) for some in _chunks(costs, cells)]
        _take_up(costs, _Bundles.joined(alive), collector, tally)
        return collector.shortlist

    def _rows(
        self, costs: GridCosts, order: TaskOrder, start: int, stop: int, collector: Collector, tally: Tally
    ) -> None:
        """Candidates one by one: parts of cells, and spaces with rules that are evaluated row by row."""
        for begin in range(start, stop, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, stop)
            with tally.stage("enumerate", end - begin):
                lines = costs.enumerator.lines_at(order.numbers(np.arange(begin, end)))
            _evaluate_lines(costs, lines, collector, tally)


class _Bundles(NamedTuple):
    """Bundles that fit, with their group, the seconds that no member can beat and the bytes of each, freed of noise."""

    cells: Ints
    bundle: Ints
    group: Ints
    bound_s: Floats
    memory_bytes: Floats

    @classmethod
    def joined(cls, parts: Sequence["_Bundles"]) -> "_Bundles":
        none = cls(*np.zeros((3, 0), dtype=np.int64), *np.zeros((2, 0)))
        return cls._make(map(np.concatenate, zip(none, *parts, strict=True)))

    def admitted(self, cut: Cut) -> Bools:
        """Which of them may hold a row of the top list, of the frontier or of the best of its group."""
        return cut.admits(self.bound_s, self.memory_bytes) | cut.groups.admits(self.bound_s, self.group)

    def take(self, rows: Ints | Bools | slice) -> "_Bundles":
        return _Bundles._make(column[rows] for column in self)


def _chunks(costs: GridCosts, cells: Ints) -> Iterator[Ints]:
    """Outer cells in portions of a few chunks of bundles."""
    return (cells[begin:end] for begin, end in _portions(costs.bundles.count(cells), SIFTED_CHUNKS * CHUNK_ROWS))


def _sift(costs: GridCosts, outer: Ints, cut: Cut, tally: Tally) -> _Bundles:
    """The bundles of some outer cells that fit and that the cut admits."""
    bundles, starts = costs.bundles, costs.enumerator.starts
    rows = int((starts[outer + 1] - starts[outer]).sum())
    with tally.stage("enumerate", rows):
        cells, bundle = bundles.of(outer)
    with tally.stage("memory", rows):
        memory_bytes = costs.memory_bytes(cells, bundles.example[bundle])
        missing_bytes = costs.missing_bytes(memory_bytes)
        fits = missing_bytes <= 0.0
        tally.note(missing_bytes, lambda at: bundles.first_number(cells[at], bundle[at]))
        cells, bundle, memory_bytes = cells[fits], bundle[fits], without_noise(memory_bytes[fits])
    with tally.stage("bound", int(bundles.size[bundle].sum())):
        if not len(cells):
            return _Bundles.joined([])
        layers = costs.layer_sets.at(cells, bundle)
        bound_s = costs.bound_s(cells, bundle, layers) * (1.0 - BOUND_SLACK)
        group = costs.groups.of(cells, bundles.example[bundle])
        every = _Bundles(cells, bundle, group, bound_s, memory_bytes)
        return every.take(every.admitted(cut))


def _take_up(costs: GridCosts, alive: _Bundles, collector: Collector, tally: Tally) -> None:
    """Project the members of bundles, the most promising first, in two waves: what leads its group, then the rest."""
    size, alive = costs.bundles.size, alive.take(np.argsort(alive.bound_s, kind="stable"))
    leads = _leads_group(alive.group, size[alive.bundle])
    for wave in (alive.take(leads), alive.take(~leads)):
        for begin, end in _portions(size[wave.bundle], CHUNK_ROWS):
            some = wave.take(slice(begin, end))
            some = some.take(some.admitted(collector.cut))
            with tally.stage("enumerate", 0):
                spread = costs.bundles.lines(some.cells, some.bundle)
            _project(costs, spread.lines, some.memory_bytes[spread.owner], collector, tally)


def _evaluate_lines(costs: GridCosts, lines: GridRows, collector: Collector, tally: Tally) -> None:
    """Lines one by one: those that fit are projected."""
    with tally.stage("memory", len(lines)):
        memory_bytes = costs.memory_bytes(lines.cells, lines.inner)
        missing_bytes = costs.missing_bytes(memory_bytes)
        fits = missing_bytes <= 0.0
    tally.removed.update(lines.removed)
    tally.note(missing_bytes, lambda at: lines.indices[at])
    with tally.stage("bound", int(np.count_nonzero(fits))):
        alive = lines.take(fits)
    _project(costs, alive, without_noise(memory_bytes[fits]), collector, tally)


def _project(costs: GridCosts, lines: GridRows, memory_bytes: Floats, collector: Collector, tally: Tally) -> None:
    """The exact steps of those lines that the collector's cut admits, handed to it.

    In two waves: what leads its group by its bound tells how many of the others may.
    """
    if not len(lines):
        return
    with tally.stage("bound", 0):
        pipelines = costs.pipelines(lines)
        bound_s = pipelines.bound_s() * (1.0 - BOUND_SLACK)
        group = costs.groups.of(lines.cells, lines.inner)
        admitted = collector.cut.admits(bound_s, memory_bytes)
        others = np.flatnonzero(~admitted & collector.cut.groups.admits(bound_s, group))
        others = others[np.argsort(bound_s[others], kind="stable")]
        leads = _leads_group(group[others], np.ones(len(others), dtype=np.int64))
        admitted[others[leads]] = True
    rows = _Lines(pipelines=pipelines, indices=lines.indices, memory_bytes=memory_bytes, group=group)
    rows.settle(admitted, collector, tally)
    others = others[~leads]
    late = np.zeros(len(lines), dtype=np.bool_)
    late[others] = collector.cut.groups.admits(bound_s[others], group[others])
    rows.settle(late, collector, tally)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Candidates with the pipelines they share."""

    pipelines: Pipelines
    indices: Ints
    memory_bytes: Floats
    group: Ints

    def settle(self, admitted: Bools, collector: Collector, tally: Tally) -> None:
        """Simulate the pipelines of some candidates and hand their steps to the collector."""
        if not admitted.any():
            return
        with tally.stage("pipeline", 0):
            simulated = self.pipelines.simulated(admitted)
        tally.rows["pipeline"] += len(simulated)
        with tally.stage("project", int(np.count_nonzero(admitted))):
            rows = ShortlistRows(
                indices=self.indices[admitted],
                step_s=without_noise(self.pipelines.step_s(admitted, simulated)),
                memory_bytes=self.memory_bytes[admitted],
                expected_s=np.full(np.count_nonzero(admitted), np.inf),
            )
            collector.add(rows, self.group[admitted])


def _leads_group(group: Ints, sizes: Ints) -> Bools:
    """Which entries, the best of all first, come first in their group until these hold `PER_GROUP` candidates."""
    order = np.argsort(group, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    before -= np.repeat(before[starts_of(group[order])], lengths_of(group[order]))
    leads = np.empty(len(group), dtype=np.bool_)
    leads[order] = (before < PER_GROUP) & (group[order] > UNGROUPED)
    return leads


def _portions(sizes: Ints, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive positions whose sizes sum to about `most`, at least one position each."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + most, side="right")), begin + 1)
        yield begin, end
        begin = end
