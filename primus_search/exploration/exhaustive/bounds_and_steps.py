"""What the funnel asks of the candidates of one cluster: their memory, a bound on their step, their step.

Answers come for bundles (candidates of one outer cell that memory cannot tell apart) or for single candidates. Terms
are found by lookup of (outer cell, inner combination), so that a bundle costs a few gathers and one compiled loop.

Rows of terms by table lookup: a term that reads some columns has one row per (outer, inner) combination.

The outer cells and the inner combinations of a space are known, so the columns a term reads are numbered once on each
floor; what is left per candidate is one lookup in a table of pairs. The memo of the term is called for pairs that are
not in the table yet, with one example each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.memo import Memo, Rows, distinct
from primus_search.cost.memory.chunk_memory import MemoryKeys
from primus_search.cost.parts.operations import Part, Pass
from primus_search.cost.pipeline import BOUND, WINDOW_B, WINDOW_F, PipelineKeys, enclose, simulate
from primus_search.cost.project import ONLY_GATHERS_READ, Projector
from primus_search.cost.replicas import REPLICA_TERMS
from primus_search.cost.stage import NUM_ENDS
from primus_search.exploration.exhaustive.shortlist import PRECISIONS, UNGROUPED
from primus_search.space.enumerate import INNER, Enumerator, GridRows, densified
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, Sharding
from primus_search.values.knobs import KNOB, KNOBS, Enters, Kind, reading
from primus_search.values.model import Model

MOST_PAIRS = 1 << 26
"""Pairs a table has room for (256 MB of 32-bit numbers); above, every row is encoded by its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Lines of some bundles, and which of the bundles each belongs to."""

    lines: GridRows
    owner: Ints


class Bundles:
    """The bundles of every class of outer cells: candidates that most of the funnel cannot tell apart.

    Inner combinations of a cell that agree on some columns (what memory reads) form a bundle: memory is decided once
    for all of them, and so is a bound on their step. (cell, bundle) stands for a handful of candidates.

    size      candidates in a bundle        example  its first inner combination
    members   inner combinations, bundle by bundle from `first[bundle]`; `place`: where each stands in its class' list
    """

    def __init__(self, enumerator: Enumerator, columns: frozenset[str], told_from: Mapping[str, int]) -> None:
        kinds = enumerator.inner_numbers(columns, told_from)[0]
        members, places, sizes, per_class = [], [], [], []
        for rows in enumerator.inner_lists:
            order = np.argsort(kinds[rows], kind="stable")
            edges = np.flatnonzero(np.diff(kinds[rows][order], prepend=-1))
            members.append(rows[order])
            places.append(order)
            sizes.append(np.diff(edges, append=len(rows)))
            per_class.append(len(edges))
        self._enumerator = enumerator
        self._first_of_class = np.concatenate([[0], np.cumsum(per_class)]).astype(np.int64)
        self.size: Ints = np.concatenate([*sizes, np.zeros(0, dtype=np.int64)])
        self.first: Ints = np.concatenate([[0], np.cumsum(self.size)]).astype(np.int64)
        self.members: Ints = np.concatenate([*members, np.zeros(0, dtype=np.int64)])
        self.place: Ints = np.concatenate([*places, np.zeros(0, dtype=np.int64)])
        self.example: Ints = self.members[self.first[:-1]]

    def __len__(self) -> int:
        return len(self.size)

    def count(self, cells: Ints) -> Ints:
        """Bundles of each of these cells."""
        number = self._enumerator.class_of_cell[cells]
        return self._first_of_class[number + 1] - self._first_of_class[number]

    def of(self, cells: Ints) -> tuple[Ints, Ints]:
        """Cell and bundle of every bundle of these cells."""
        count = self.count(cells)
        return np.repeat(cells, count), _runs(self._first_of_class[self._enumerator.class_of_cell[cells]], count)

    def first_number(self, cells: Ints, bundle: Ints) -> Ints:
        """The smallest candidate number in each bundle."""
        return self._enumerator.starts[cells] + self.place[self.first[bundle]]

    def lines(self, cells: Ints, bundle: Ints) -> Spread:
        """All candidates of some bundles."""
        size = self.size[bundle]
        at = _runs(self.first[bundle], size)
        cell = np.repeat(cells, size)
        lines = GridRows(
            cells=cell, inner=self.members[at], indices=self._enumerator.starts[cell] + self.place[at], removed={}
        )
        return Spread(lines=lines, owner=np.repeat(np.arange(len(bundle)), size))


def _runs(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, ... count[0] of them, then from start[1], ..."""
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(int(count.sum()))


class PairCodes:
    """The codes of a memo for pairs of an outer cell and an inner combination; dropped when the memo forgets.

    outer_numbers, inner_numbers  of every cell and every combination by the columns the term reads
    seldom  columns that it reads with some inner combinations alone: `of`. They tell apart cells that such a one meets
    """

    def __init__(
        self,
        enumerator: Enumerator,
        memo: Memo[Candidates],
        seldom: frozenset[str] = frozenset(),
        of: Bools | None = None,
    ) -> None:
        self._enumerator, self.memo, self._generation = enumerator, memo, memo.generation
        self.outer_numbers, outer_example = enumerator.outer_numbers(memo.reads - seldom)
        if of is not None:
            meets = np.array([of[rows].any() for rows in enumerator.inner_lists])[enumerator.class_of_cell]
            closer, example = enumerator.outer_numbers(memo.reads)
            keys = [(self.outer_numbers, len(outer_example)), ((closer + 1) * meets, len(example) + 1)]
            self.outer_numbers, outer_example = densified(keys, len(meets))
        self.inner_numbers, inner_example = enumerator.inner_numbers(memo.reads)
        self.num_outer, self._width = len(outer_example), len(inner_example)
        pairs = self.num_outer * self._width
        self._table: NDArray[np.int32] | None = np.full(pairs, -1, dtype=np.int32) if pairs <= MOST_PAIRS else None

    def at(self, cells: Ints, inner: Ints) -> Ints:
        """The code of every pair."""
        if self._table is None:
            return self.memo.codes(self._enumerator.pairs(cells, inner))
        if self._generation != self.memo.generation:
            self._table.fill(-1)
            self._generation = self.memo.generation
        pair = self.outer_numbers[cells] * self._width + self.inner_numbers[inner]
        codes = self._table[pair]
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            _, first = np.unique(pair[unknown], return_index=True)
            example = unknown[np.sort(first)]
            self._table[pair[example]] = self.memo.codes(self._enumerator.pairs(cells[example], inner[example]))
            codes[unknown] = self._table[pair[unknown]]
        known: Ints = codes.astype(np.int64)
        return known

    def rows(self, cells: Ints, inner: Ints) -> Floats:
        """The row of every pair, of a term that is one array."""
        codes = self.at(cells, inner)
        return self.memo.data[codes]


Reduce = Callable[[Ints, Ints, Ints], Sequence[Floats]]
"""One row per table of some sets, from the codes and the inner combinations of their members and where each begins."""


class SetRows:
    """Rows for the sets of a term's codes that the members of a bundle take in an outer cell, by table lookup.

    Bundles whose members agree on the columns of the term are one set, whatever their class.
    """

    def __init__(self, bundles: Bundles, codes: PairCodes, reduce: Reduce) -> None:
        self._codes, self._reduce = codes, reduce
        kinds = codes.inner_numbers[bundles.members]
        known: dict[bytes, int] = {}
        numbers: list[int] = []
        self._members: list[Ints] = []
        for start, stop in zip(bundles.first[:-1].tolist(), bundles.first[1:].tolist(), strict=True):
            distinct, first = np.unique(kinds[start:stop], return_index=True)
            number = known.setdefault(distinct.tobytes(), len(known))
            numbers.append(number)
            if number == len(self._members):
                self._members.append(bundles.members[start:stop][first])
        self._set_of_bundle = np.array(numbers, dtype=np.int64)
        self._table = np.full(codes.num_outer * max(len(known), 1), -1, dtype=np.int32)
        self._generation = codes.memo.generation
        self.tables: list[Rows] = []

    def at(self, cells: Ints, bundle: Ints) -> Ints:
        """The row of every set in `tables`."""
        if self._generation != self._codes.memo.generation:
            self._table.fill(-1)
            self._generation, self.tables = self._codes.memo.generation, []
        sets = self._set_of_bundle[bundle]
        pair = self._codes.outer_numbers[cells] * len(self._members) + sets
        numbers = self._table[pair]
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            distinct, first = np.unique(pair[unknown], return_index=True)
            cells, sets = cells[unknown[first]], sets[unknown[first]]
            members = [self._members[one] for one in sets.tolist()]
            sizes = np.array([len(one) for one in members])
            inner = np.concatenate(members)
            found = self._reduce(self._codes.at(np.repeat(cells, sizes), inner), inner, np.cumsum(sizes) - sizes)
            self.tables = self.tables or [Rows(*rows.shape[1:]) for rows in found]
            self._table[distinct] = self.tables[0].size + np.arange(len(sets))
            for table, rows in zip(self.tables, found, strict=True):
                table.append(rows)
            numbers[unknown] = self._table[pair[unknown]]
        known: Ints = numbers.astype(np.int64)
        return known


MEMORY_READS = reading(Enters.MEMORY) & set(INNER)
"""Inner axes that the memory of a device depends on."""
MEMORY_TOLD_FROM = {name: KNOB[name].memory_from for name in MEMORY_READS if KNOB[name].memory_from}
"""Of those it depends on, the axes whose values it tells apart on one edge alone."""


class GridCosts:
    """Memory, bounds and steps of one cluster's candidates, with everything computed so far."""

    def __init__(self, enumerator: Enumerator, projector: Projector) -> None:
        self.enumerator, self.projector = enumerator, projector
        self.bundles, self.groups = Bundles(enumerator, MEMORY_READS, MEMORY_TOLD_FROM), Groups(enumerator)
        terms, table = projector.terms, projector.table
        self._memory = [PairCodes(enumerator, memo) for memo in (table.moments, table.states, table.batches)]
        gathers = enumerator.blocks[1].values["sharding"] >= Sharding.FSDP2
        self._layer = PairCodes(enumerator, terms.layers, ONLY_GATHERS_READ, gathers)
        self._shape, self._hop, self._replica = (
            PairCodes(enumerator, memo) for memo in (terms.shapes, terms.hops, terms.replicas)
        )
        self._overlaps = enumerator.blocks[1].values["overlap_grad_reduce"].astype(np.bool_)
        self.layer_sets = SetRows(self.bundles, self._layer, self._layer_range)
        self._replica_sets = SetRows(self.bundles, self._replica, self._least_replicas)

    # --- memory ----------------------------------------------------------------------------------------------------

    def memory_bytes(self, cells: Ints, inner: Ints) -> Floats:
        """Bytes on the worst pipeline rank."""
        return self.projector.table.total_of(MemoryKeys(*(codes.at(cells, inner) for codes in self._memory)))[0]

    def missing_bytes(self, memory_bytes: Floats) -> Floats:
        """Bytes that are lacking; negative where there is headroom."""
        return memory_bytes - self.projector.job.room_bytes(self.projector.memory_margin)

    # --- time ------------------------------------------------------------------------------------------------------

    def bound_s(self, cells: Ints, bundle: Ints, layers: Ints) -> Floats:
        """Seconds that no candidate of a bundle can beat; `layers` are the rows of the bundles in `layer_sets`.

        Bundles differ in what their layers cost and hide: the least seconds of each piece give a makespan that no
        member beats, the most give the largest window that gradient traffic could hide behind, and the least traffic
        of any member is what it must at least pay.

            step >= (bound(least layers) + exposed(least traffic, most windows) + least optimizer) * stragglers
        """
        projector, terms = self.projector, self.projector.terms
        keys = self._keys(cells, self.bundles.example[bundle], layers)
        low, high = (rows.data for rows in self.layer_sets.tables)
        pipeline_s, forward_s, backward_s = enclose(terms.shape_list.arrays, keys, low, high, terms.hops.data)
        replica_sets = self._replica_sets.at(cells, bundle)
        replicas = self._replica_sets.tables[0].data[replica_sets]
        overlaps = replicas[:, REPLICA_TERMS] > 0.0
        return projector.total_of(pipeline_s, *projector.after_of(replicas, overlaps, forward_s, backward_s))

    def pipelines(self, lines: GridRows) -> "Pipelines":
        """The pipelines of single candidates, estimated; candidates that share one are costed once."""
        cells, inner = lines.cells, lines.inner
        keys = self._keys(cells, inner, self._layer.at(cells, inner))
        number, first = distinct([cells, keys.layer, keys.shape])
        return Pipelines(
            self.projector,
            keys=keys.take(first),
            number=number,
            replicas=self._replica.rows(cells, inner),
            overlaps=self._overlaps[inner],
        )

    def _keys(self, cells: Ints, inner: Ints, layer: Ints) -> PipelineKeys:
        shape, hop = self._shape.at(cells, inner), self._hop.at(cells, inner)
        return PipelineKeys(shape, layer, hop, self.enumerator.microbatches[cells])

    def _layer_range(self, codes: Ints, inner: Ints, first: Ints) -> tuple[Floats, Floats]:
        """The least and the most seconds that the layers of each set take, by piece and pass, and recompute by kind."""
        members = self.projector.terms.layers.data[codes][:, _makespan_columns(self.projector.job.model)]
        return np.minimum.reduceat(members, first, axis=0), np.maximum.reduceat(members, first, axis=0)

    def _least_replicas(self, codes: Ints, inner: Ints, first: Ints) -> tuple[Floats]:
        """The least replica terms of each set, and whether any member overlaps its traffic with compute."""
        members = self.projector.terms.replicas.data[codes]
        helps = np.maximum.reduceat(self._overlaps[inner].astype(np.float64), first)
        return (np.column_stack([np.minimum.reduceat(members, first, axis=0), helps]),)


def _makespan_columns(model: Model) -> Ints:
    """Of a layer row, what a makespan is made of: passes and recompute; the split into parts is not."""
    kinds = len(model.kinds)
    pieces = kinds + NUM_ENDS
    passes, parts = pieces * len(Pass), pieces * len(Part)
    return np.concatenate([np.arange(passes), np.arange(passes + parts, passes + parts + kinds)])


class Pipelines:
    """Candidates with the estimated rows of their pipelines."""

    def __init__(
        self, projector: Projector, *, keys: PipelineKeys, number: Ints, replicas: Floats, overlaps: Bools
    ) -> None:
        self._projector, self._keys, self._number = projector, keys, number
        self._rows = projector.terms.estimate(keys)
        self._replicas, self._overlaps = replicas, overlaps

    def bound_s(self) -> Floats:
        """Seconds that each candidate cannot beat."""
        rows = self._rows[self._number]
        after = self._projector.after_of(self._replicas, self._overlaps, rows[:, WINDOW_F], rows[:, WINDOW_B])
        return self._projector.total_of(rows[:, BOUND], *after)

    def simulated(self, chosen: Bools) -> Floats:
        """(pipelines, WIDTH) rows of the pipelines that some candidates share, their bubbles known."""
        numbers = self._numbers(chosen)
        rows, terms = self._rows[numbers], self._projector.terms
        simulate(terms.shape_list, self._keys.take(numbers), terms.layers.data, terms.hops.data, rows)
        return rows

    def step_s(self, chosen: Bools, simulated: Floats) -> Floats:
        """Seconds of the step of some candidates, from what `simulated` says of their pipelines."""
        rows = simulated[np.searchsorted(self._numbers(chosen), self._number[chosen])].T
        after = self._projector.after_of(self._replicas[chosen], self._overlaps[chosen], rows[WINDOW_F], rows[WINDOW_B])
        return self._projector.step_of(rows, *after).total

    def _numbers(self, chosen: Bools) -> Ints:
        return np.flatnonzero(np.bincount(self._number[chosen], minlength=len(self._rows)))


LAYOUT = frozenset(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)
"""Degrees of parallelism: how ranks share the work."""
PRECISION = "fp8"


class Groups:
    """Number of the group of every candidate of a cluster, see `shortlist.PRECISIONS`.

    Candidates whose pipeline order depends on costs are in no group: finding their order takes longer than a slow
    layout deserves.
    """

    def __init__(self, enumerator: Enumerator) -> None:
        layout, _ = enumerator.outer_numbers(LAYOUT)
        self._first = np.where(enumerator.is_quick, layout * PRECISIONS, UNGROUPED - PRECISIONS)
        self._precision = enumerator.blocks[1].values[PRECISION].astype(np.int64)

    def of(self, cells: Ints, inner: Ints) -> Ints:
        """Group of each pair of an outer cell and an inner combination, below 0 for none."""
        return self._first[cells] + self._precision[inner]
