"""Every legal candidate of a space by number: `chunk(start, stop)` builds any range without walking the others.

The grid has two floors. Outer axes decide where layers and ranks go; their legal cells are listed once. Inner axes
are switches; their legal combinations are listed once per class of outer cells that the rules between the floors treat
alike. A candidate is (outer cell, position in the list of its class), so that a raw grid of 10^12 with 10^7 legal rows
costs what its legal rows cost. The order depends on the space alone, hence so do ties.

    enumerator = Enumerator(space)
    for start in range(0, enumerator.size, 65536):
        chunk = enumerator.chunk(start, start + 65536)

Legal cells of a few axes, built axis by axis so that an illegal corner is cut before it is multiplied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.space.context import Cells, Column, GridJob, reads
from primus_search.space.rules import Keeps, Rule, conditionals_of, rules_of
from primus_search.space.types import ClusterChoice, Space
from primus_search.values.candidates import DEFAULTS, Bools, Candidates, Columns, Ints, compact, gathered
from primus_search.values.knobs import KNOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The legal cells of some axes.

    values  column values by axis           codes  position of the value on its axis
    idents  position, or the axis' length where a conditional axis is idle: equal idents, equal meaning
    """

    axes: tuple[str, ...]
    values: dict[str, Column]
    codes: dict[str, NDArray[Any]]
    idents: dict[str, NDArray[Any]]
    length: int

    def take(self, rows: Ints | NDArray[np.bool_]) -> "Block":
        """The cells a mask or an index selects."""
        values = {name: column[rows] for name, column in self.values.items()}
        codes = {name: column[rows] for name, column in self.codes.items()}
        idents = {name: column[rows] for name, column in self.idents.items()}
        length = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return Block(axes=self.axes, values=values, codes=codes, idents=idents, length=length)

    def cells(self, job: GridJob) -> Cells:
        """The cells as rules see them."""
        return Cells(job, self.values, self.codes, self.length)


EMPTY = Block(axes=(), values={}, codes={}, idents={}, length=1)


def legal_block(
    job: GridJob,
    axes: Sequence[str],
    rules: Sequence[Rule],
    conditionals: Sequence[tuple[str, Keeps]],
    multiplier: int,
    removed: dict[str, int],
) -> Block:
    """All legal cells of `axes`; each cell a rule drops adds the raw rows behind it to `removed[rule]`.

    `multiplier` is the number of raw rows behind one complete cell.
    """
    block = EMPTY
    for position, axis in enumerate(axes):
        block = _expanded(job, block, axis)
        behind = multiplier * prod(job.sizes[later] for later in axes[position + 1 :])
        known = set(block.axes)
        for conditional, is_active in conditionals:
            if conditional == axis:
                block = _idle_once(job, block, axis, is_active(job, block.cells(job)), behind, removed)
        for rule in rules:
            wanted = reads(rule.reads)
            is_due = axis in wanted and wanted <= known
            if is_due or (position == 0 and not wanted):
                block = _masked(block, rule.keeps(job, block.cells(job)), rule.name, behind, removed)
    return block


def _expanded(job: GridJob, block: Block, axis: str) -> Block:
    """Every cell with every value of one more axis, the new axis fastest."""
    new, size = job.column_values(axis), job.sizes[axis]
    values, codes, idents = (
        {name: np.repeat(column, size) if size > 1 else column for name, column in columns.items()}
        for columns in (block.values, block.codes, block.idents)
    )
    values[axis] = np.tile(new, block.length)
    codes[axis] = np.tile(np.arange(size, dtype=np.int16), block.length)
    idents[axis] = codes[axis]
    return Block(axes=(*block.axes, axis), values=values, codes=codes, idents=idents, length=block.length * size)


def _idle_once(job: GridJob, block: Block, axis: str, active: Bools, behind: int, removed: dict[str, int]) -> Block:
    block.values[axis] = np.where(active, block.values[axis], DEFAULTS[axis])
    block.idents[axis] = np.where(active, block.idents[axis], job.sizes[axis]).astype(np.int16)
    return _masked(block, active | (block.codes[axis] == 0), idle_name(axis), behind, removed)


def idle_name(axis: str) -> str:
    """The name under which the doubles of an idle axis are counted."""
    return f"{axis}_idle"


def _masked(block: Block, keep: NDArray[np.bool_], name: str, behind: int, removed: dict[str, int]) -> Block:
    dropped = block.length - int(np.count_nonzero(keep))
    if not dropped:
        return block
    removed[name] = removed.get(name, 0) + dropped * behind
    return block.take(keep)


def densified(keys: Sequence[tuple[NDArray[Any], int]], length: int) -> tuple[Ints, Ints]:
    """Number the distinct combinations of small non-negative columns: (number per row, one row per number).

    Each key is (column, its exclusive upper bound). Sort-free while there are few numbers per row.
    """
    combined, bound = np.zeros(length, dtype=np.int64), 1
    for column, size in keys:
        if bound * size > DENSE_LIMIT:
            combined, bound = _renumbered(combined, bound)
        combined, bound = combined * size + column.astype(np.int64), bound * size
    number, count = _renumbered(combined, bound)
    example = np.empty(count, dtype=np.int64)
    example[number[::-1]] = np.arange(length - 1, -1, -1)
    return number, example


DENSE_LIMIT = 1 << 24
DENSE_SHARE = 16
"""Numbers per row up to which walking all of them takes less than sorting the rows."""


def _renumbered(combined: Ints, bound: int) -> tuple[Ints, int]:
    if bound > DENSE_SHARE * len(combined):
        distinct, inverse = np.unique(combined, return_inverse=True)
        return inverse, len(distinct)
    present = np.zeros(bound, dtype=np.bool_)
    present[combined] = True
    number = np.cumsum(present, dtype=np.int32)
    return number[combined].astype(np.int64) - 1, int(number[-1]) if bound else 0


OUTER: tuple[str, ...] = tuple(knob.name for knob in KNOBS if knob.is_outer)
"""Slowest first. Candidates that share a pipeline are neighbours: a task meets few orders, and simulates each for many
rows at once."""

INNER: tuple[str, ...] = tuple(knob.name for knob in KNOBS if not knob.is_outer)

CROSS_LIMIT = 20_000_000  # cells one rule between the floors may be tabulated on; above, it filters rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRows(Columns):
    """Legal candidates before their columns are built: outer cell, inner row and number of each.

    `removed` counts rows that late rules took out of the range.
    """

    cells: Ints
    inner: Ints
    indices: Ints
    removed: dict[str, int]


def columns_of(lines: GridRows, outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Columns of some lines, from those of the outer cells and of the inner combinations."""
    found = {name: gathered(column, lines.cells) for name, column in outer.items()}
    return found | {name: gathered(column, lines.inner) for name, column in inner.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Legal candidates of one range of numbers; `removed` counts rows that late rules took out of the range."""

    candidates: Candidates
    indices: Ints
    removed: dict[str, int]


class Enumerator:
    """Legal candidates of one cluster of a space, in a fixed order.

    size     rows that chunks walk over             raw_size  rows of the whole grid, legal or not
    removed  raw rows per rule, known at once; late rules are counted by `chunk` as it goes
    doubles  names of rules that of rows that mean the same run leave one
    starts   number of the first candidate of every outer cell, and the size
    class_of_cell, inner_lists  class of every outer cell, and the inner combinations legal in each class
    """

    def __init__(self, space: Space, choice: ClusterChoice | None = None) -> None:
        choice = choice or space.clusters[0]
        self.job = GridJob.on(choice, space, choice.axes)
        rules = rules_of(choice.framework, space.constraints)
        self._conditionals = conditionals_of(choice.framework)
        self.reasons = {rule.name: rule.reason for rule in rules} | {
            idle_name(axis): f"{axis} has no effect there; one row stands for all" for axis, _ in self._conditionals
        }
        self.doubles = {idle_name(axis) for axis, _ in self._conditionals} | {
            rule.name for rule in rules if rule.drops_doubles
        }
        self.raw_size = prod(self.job.sizes.values())
        self.removed: dict[str, int] = {}
        self._build(rules)

    def _build(self, rules: Sequence[Rule]) -> None:
        outer_names, inner_names = set(OUTER), set(INNER)
        outer_rules = [r for r in rules if reads(r.reads) <= outer_names]
        inner_rules = [r for r in rules if reads(r.reads) and reads(r.reads) <= inner_names]
        between = [r for r in rules if reads(r.reads) & outer_names and reads(r.reads) & inner_names]
        raw_inner = prod(self.job.sizes[name] for name in INNER)
        self._outer = legal_block(self.job, OUTER, outer_rules, self._conditionals, raw_inner, self.removed)
        self._inner = legal_block(self.job, INNER, inner_rules, self._conditionals, self._outer.length, self.removed)
        self._classify(between)

    def _classify(self, between: Sequence[Rule]) -> None:
        """Group outer cells that see the same inner combinations, list these per class, and number the rows."""
        patterns: list[tuple[Rule, NDArray[np.bool_]]] = []
        keys: list[tuple[Ints, int]] = []
        self._late: list[Rule] = []
        for rule in between:
            tabulated = self._tabulated(rule)
            if tabulated is None:
                self._late.append(rule)
                continue
            table, pattern_of_cell = tabulated
            patterns.append((rule, table))
            keys.append((pattern_of_cell, len(table)))
        class_of_cell, example = densified(keys, self._outer.length)
        cells_in_class = np.bincount(class_of_cell, minlength=len(example))
        lists: list[Ints] = []
        for number, cell in enumerate(example):
            alive = np.ones(self._inner.length, dtype=np.bool_)
            for (rule, table), (pattern_of_cell, _) in zip(patterns, keys, strict=True):
                kept = alive & table[pattern_of_cell[cell]]
                dropped = int(np.count_nonzero(alive)) - int(np.count_nonzero(kept))
                if dropped:
                    removed = self.removed.get(rule.name, 0)
                    self.removed[rule.name] = removed + dropped * int(cells_in_class[number])
                alive = kept
            lists.append(np.flatnonzero(alive))
        self._number_rows(class_of_cell, lists)

    def _number_rows(self, class_of_cell: Ints, lists: list[Ints]) -> None:
        lengths = np.array([len(inner_rows) for inner_rows in lists], dtype=np.int64)
        has_rows = lengths[class_of_cell] > 0
        self._outer = self._outer.take(has_rows)
        class_of_cell = class_of_cell[has_rows]
        ends = np.cumsum(lengths[class_of_cell])
        self.size = int(ends[-1]) if len(ends) else 0
        self.starts: Ints = np.concatenate([[0], ends]).astype(np.int64)
        self.class_of_cell, self.inner_lists = class_of_cell, tuple(lists)
        self._rows_of_classes: Ints = np.concatenate([*lists, np.zeros(0, dtype=np.int64)])
        self._offset_of_cell: Ints = np.concatenate([[0], np.cumsum(lengths)])[class_of_cell]

    def _tabulated(self, rule: Rule) -> tuple[NDArray[np.bool_], Ints] | None:
        """One row of inner legality per way the rule treats outer cells, and that way per outer cell.

        None when the rule reads so many combinations that it is cheaper to filter rows.
        """
        wanted = reads(rule.reads)
        outer_number, outer_example = self._distinct(self._outer, wanted)
        inner_number, inner_example = self._distinct(self._inner, wanted)
        shape = (len(outer_example), len(inner_example))
        if shape[0] * shape[1] > CROSS_LIMIT:
            return None
        left = self._outer.take(np.repeat(outer_example, shape[1]))
        right = self._inner.take(np.tile(inner_example, shape[0]))
        cells = Cells(self.job, left.values | right.values, left.codes | right.codes, left.length)
        mask = rule.keeps(self.job, cells).reshape(shape)
        ways, way_of_outer = np.unique(mask, axis=0, return_inverse=True)
        return ways[:, inner_number], way_of_outer.reshape(-1)[outer_number]

    def _distinct(self, block: Block, wanted: frozenset[str]) -> tuple[Ints, Ints]:
        return densified(self._keys(block, wanted, {}), block.length)

    def _keys(self, block: Block, wanted: frozenset[str], edges: Mapping[str, int]) -> list[tuple[Ints, int]]:
        sides = [(block.values[name] >= least, 2) for name, least in edges.items() if name in block.values]
        whole = wanted.difference(edges)
        return [*((block.idents[name], self.job.sizes[name] + 1) for name in block.axes if name in whole), *sides]

    # --- rows by number --------------------------------------------------------------------------------------------

    def chunk(self, start: int, stop: int) -> Chunk:
        """The legal candidates numbered from `start` up to `stop` (exclusive, clipped to `size`)."""
        lines = self.lines(start, stop)
        return Chunk(candidates=self.table(lines), indices=lines.indices, removed=lines.removed)

    def rows(self, indices: Ints) -> Candidates:
        """The candidates with these numbers, in this order; numbers must come from a chunk."""
        return self.table(self._located(np.asarray(indices, dtype=np.int64)))

    def lines(self, start: int, stop: int) -> GridRows:
        """As `chunk`, without building columns."""
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return GridRows(cells=_NONE, inner=_NONE, indices=_NONE, removed={})
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        edges = np.clip(self.starts[first : last + 1], start, stop)
        return self._filtered(self._placed(np.repeat(np.arange(first, last), np.diff(edges)), np.arange(start, stop)))

    def lines_at(self, indices: Ints) -> GridRows:
        """The lines with these numbers, less those that late rules take out."""
        return self._filtered(self._located(np.asarray(indices, dtype=np.int64)))

    def table(self, lines: GridRows) -> Candidates:
        """The columns of some lines."""
        columns = columns_of(lines, *self._columns)
        for column in columns.values():
            column.setflags(write=False)
        frozen: dict[str, Any] = dict(columns)
        return Candidates(schedules=self.job.schedules, layouts=self.job.layouts, **frozen)

    @cached_property
    def _columns(self) -> tuple[dict[str, Column], dict[str, Column]]:
        """Columns of the outer cells and of the inner combinations."""
        outer, inner = ({name: compact(column) for name, column in block.values.items()} for block in self.blocks)
        return outer, inner

    @property
    def blocks(self) -> tuple[Block, Block]:
        """The legal cells of the outer axes, and the legal combinations of the inner ones."""
        return self._outer, self._inner

    @property
    def has_late_rules(self) -> bool:
        """Whether rules remain that are evaluated row by row."""
        return bool(self._late)

    def outer_numbers(self, columns: frozenset[str], thresholds: Mapping[str, int] | None = None) -> tuple[Ints, Ints]:
        """Number of every outer cell by some of its columns, and one cell per number; `microbatches` counts as one.

        thresholds  columns of which all that counts is whether the value is at least this
        """
        keys = self._keys(self._outer, columns, thresholds or {})
        if "microbatches" in columns:
            distinct, number = np.unique(self.microbatches, return_inverse=True)
            keys.append((number.reshape(-1), len(distinct)))
        return densified(keys, self._outer.length)

    def inner_numbers(self, columns: frozenset[str], sides: Mapping[str, Column] | None = None) -> tuple[Ints, Ints]:
        """Number of every inner combination by some of its columns, and one combination per number.

        sides: what counts of some columns: on which side of an edge each combination is, or numbers from 0.
        """
        told = {name: side for name, side in (sides or {}).items() if name in columns}
        keys = [
            *self._keys(self._inner, columns.difference(told), {}),
            *((side, int(side.max(initial=0)) + 1) for side in told.values()),
        ]
        return densified(keys, self._inner.length)

    @cached_property
    def microbatches(self) -> Ints:
        """Micro-batches per pipeline and step of every outer cell."""
        return self._outer.cells(self.job).degrees.microbatches

    @cached_property
    def is_quick(self) -> Bools:
        """Outer cells whose pipeline order needs no search."""
        is_quick = np.array([not algorithm.cost_aware for algorithm in self.job.algorithms], dtype=np.bool_)
        return is_quick[self._outer.values["schedule"]]

    def pairs(self, cells: Ints, inner: Ints) -> Candidates:
        """The columns of outer cells with inner combinations, legal together or not."""
        return self.table(GridRows(cells=cells, inner=inner, indices=cells, removed={}))

    def _filtered(self, lines: GridRows) -> GridRows:
        removed: dict[str, int] = {}
        for rule in self._late:
            keep: Bools = rule.keeps(self.job, self._row_cells(lines))
            dropped = len(lines) - int(np.count_nonzero(keep))
            if dropped:
                removed[rule.name] = dropped
                lines = lines.take(keep)
        return GridRows(cells=lines.cells, inner=lines.inner, indices=lines.indices, removed=removed)

    def _row_cells(self, lines: GridRows) -> Cells:
        outer, inner = self.blocks
        values, codes = columns_of(lines, outer.values, inner.values), columns_of(lines, outer.codes, inner.codes)
        return Cells(self.job, values, codes, len(lines))

    def _located(self, indices: Ints) -> GridRows:
        return self._placed(np.searchsorted(self.starts, indices, side="right") - 1, indices)

    def _placed(self, cells: Ints, indices: Ints) -> GridRows:
        inner = self._rows_of_classes[self._offset_of_cell[cells] + (indices - self.starts[cells])]
        return GridRows(cells=cells, inner=inner, indices=indices, removed={})


_NONE: Ints = np.zeros(0, dtype=np.int64)
