"""The best rows found so far: a top list by time, the best of each group of rows, and the frontier of memory against
expected time. All merge in any order.

A row is (number, projected step, memory, expected step). Smaller is better; ties go to the smaller number, so that what
is kept depends on the rows alone and not on who found them first. No step is expected to be shorter than projected.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from primus_search.values.candidates import Bools, Columns, Floats, Ints
from primus_search.values.knobs import Fp8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistRows(Columns):
    """Rows by number, with projected step seconds and memory bytes; in no particular order.

    expected_s  seconds of the step to expect, but for the shift of a whole site; infinite where no frontier has the row
    """

    indices: Ints
    step_s: Floats
    memory_bytes: Floats
    expected_s: Floats

    def united(self, other: "ShortlistRows") -> "ShortlistRows":
        """Both, each number once, by rising number."""
        both = self.joined(other)
        return both.take(np.unique(both.indices, return_index=True)[1])


NOISE_BITS = 10
"""Low bits of a figure that are rounded away before rows are compared: 2**-42, about 2e-13 of its value."""


def without_noise(figures: Floats) -> Floats:
    """Positive figures rounded so that equal sums stay equal when their terms were added in another order.

    NumPy adds the terms of a row in an order that depends on how many rows it adds at once; without this, rows that
    tie would be ranked by rounding, and differently for another size of chunk.
    """
    bits = np.ascontiguousarray(figures, dtype=np.float64).view(np.int64)
    half, mask = np.int64(1 << (NOISE_BITS - 1)), np.int64(-(1 << NOISE_BITS))
    return ((bits + half) & mask).view(np.float64)


NO_ROWS = ShortlistRows(
    indices=np.zeros(0, dtype=np.int64), step_s=np.zeros(0), memory_bytes=np.zeros(0), expected_s=np.zeros(0)
)


def fastest(rows: ShortlistRows, most: int) -> ShortlistRows:
    """The `most` rows with the least step time, in order."""
    if len(rows) > most:
        limit = np.partition(rows.step_s, most - 1)[most - 1]
        rows = rows.take(rows.step_s <= limit)
    return rows.take(np.lexsort((rows.indices, rows.step_s))[:most])


MOST_INSERTED = 1024
"""Rows that are inserted one by one into a list in order; more of them are merged with it."""


def with_others(ordered: ShortlistRows, others: ShortlistRows, most: int) -> ShortlistRows:
    """`fastest` of both, where the first are in order already: the driver adds a few rows to many."""
    if len(ordered) >= most:
        others = others.take(others.step_s <= ordered.step_s[-1])
    if not len(others):
        return ordered
    others = fastest(others, most)
    if len(others) > MOST_INSERTED:
        return _merged(ordered.joined(others)).take(slice(most))
    first, end = (np.searchsorted(ordered.step_s, others.step_s, side=side) for side in ("left", "right"))
    for tied in np.flatnonzero(first < end).tolist():
        same = ordered.indices[first[tied] : end[tied]]
        first[tied] += np.searchsorted(same, others.indices[tied])
    columns = ((f.name, ordered.__getattribute__(f.name), others.__getattribute__(f.name)) for f in fields(others))
    return ShortlistRows(**{name: np.insert(mine, first, new)[:most] for name, mine, new in columns})


def _merged(rows: ShortlistRows) -> ShortlistRows:
    """Two lists in order, one behind the other, as one in order.

    A stable sort merges two runs in linear time; only rows of one step that both lists have are sorted by number.
    """
    rows = rows.take(np.argsort(rows.step_s, kind="stable"))
    step_s, number = rows.step_s, rows.indices
    mixed = step_s[1:][(step_s[1:] == step_s[:-1]) & (number[1:] < number[:-1])]
    tied = np.flatnonzero(np.isin(step_s, mixed)) if len(mixed) else np.zeros(0, dtype=np.int64)
    order = np.arange(len(rows))
    order[tied] = tied[np.lexsort((number[tied], step_s[tied]))]
    return rows.take(order) if len(tied) else rows


def frontier(rows: ShortlistRows) -> ShortlistRows:
    """The rows no other beats on memory and expected time, by rising memory; of equal rows the smallest number."""
    if not len(rows):
        return rows
    ordered = rows.take(np.lexsort((rows.indices, rows.expected_s, rows.memory_bytes)))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(ordered.expected_s)[:-1]])
    return ordered.take(ordered.expected_s < best_before)


def rival_s(frontier: ShortlistRows, memory_bytes: Floats) -> Floats:
    """The least expected step of a frontier's rows with at most so much memory; infinite where it has none."""
    if not len(frontier):
        return np.full(len(memory_bytes), np.inf)
    place = np.searchsorted(frontier.memory_bytes, memory_bytes, side="right") - 1
    return np.where(place >= 0, frontier.expected_s[np.maximum(place, 0)], np.inf)


PER_GROUP = 20
"""Rows kept of each group of candidates, beside the top list."""
SLOWEST = 1.5
"""Step of a row that is kept for its group alone, at most, over the least of its precision."""
PRECISIONS = len(Fp8)
"""Group of a row: number of its parallel layout * PRECISIONS + its precision; below 0 in none."""
UNGROUPED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRows:
    """The best `PER_GROUP` rows of each group, by group and then by step; `group`: number of each row's group.

    Rows slower than `SLOWEST` times the best of their precision are left out, so that hopeless layouts cost nothing.
    """

    rows: ShortlistRows
    group: Ints

    @classmethod
    def best_of(cls, rows: ShortlistRows, group: Ints) -> "GroupedRows":
        """The best of each group among some rows; ungrouped rows are left out."""
        inside = np.flatnonzero((group > UNGROUPED) & (rows.step_s <= _floors(rows, group)[group % PRECISIONS]))
        rows, group = rows.take(inside), group[inside]
        order = np.lexsort((rows.indices, rows.step_s, group))
        order = order[_place_in_group(group[order]) < PER_GROUP]
        return cls(rows=rows.take(order), group=group[order])

    def plus(self, other: "GroupedRows") -> "GroupedRows":
        """The best of each group of both."""
        if not len(self.rows) or not len(other.rows):
            return self if len(self.rows) else other
        return GroupedRows.best_of(self.rows.joined(other.rows), np.concatenate([self.group, other.group]))

    @property
    def limits(self) -> "GroupLimits":
        """What a further row must reach."""
        found = np.full(int(self.group.max()) + 1 if len(self.group) else 0, np.inf)
        last = _place_in_group(self.group) == PER_GROUP - 1
        found[self.group[last]] = self.rows.step_s[last]
        return GroupLimits(full_s=found, precision_s=_floors(self.rows, self.group))


def _floors(rows: ShortlistRows, group: Ints) -> Floats:
    """Slowest step worth keeping of each precision; infinite where none is known."""
    floors = np.full(PRECISIONS, np.inf)
    inside = group > UNGROUPED
    np.minimum.at(floors, group[inside] % PRECISIONS, rows.step_s[inside])
    return SLOWEST * floors


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Steps that a row must not exceed to be kept for its group.

    full_s        slowest step of each full group, infinite for others; none beyond its end
    precision_s   slowest step worth keeping of each precision
    """

    full_s: Floats
    precision_s: Floats

    def admits(self, bound_s: Floats, group: Ints) -> Bools:
        """Whether a row whose step is at least `bound_s` can be among the best of its group."""
        if not len(group):
            return np.zeros(0, dtype=np.bool_)
        last = max(int(group.max()) + 1, len(self.full_s))
        limits = np.full(last + max(-int(group.min()), 0), -np.inf)  # negative numbers read its end
        limits[:last] = np.resize(self.precision_s, last)
        limits[: len(self.full_s)] = np.minimum(limits[: len(self.full_s)], self.full_s)
        return bound_s <= limits[group]

    def tighter(self, other: "GroupLimits") -> "GroupLimits":
        """The smaller of both, where both are known."""
        full_s = np.full(max(len(self.full_s), len(other.full_s)), np.inf)
        for one in (self.full_s, other.full_s):
            full_s[: len(one)] = np.minimum(full_s[: len(one)], one)
        return GroupLimits(full_s=full_s, precision_s=np.minimum(self.precision_s, other.precision_s))


def _place_in_group(group: Ints) -> Ints:
    """Place of each row among those of its group, from 0; groups stand together."""
    return np.arange(len(group)) - np.repeat(starts_of(group), lengths_of(group))


def starts_of(sorted_group: Ints) -> Ints:
    """Where each run of equal numbers begins."""
    changes = np.ones(len(sorted_group), dtype=np.bool_)
    changes[1:] = sorted_group[1:] != sorted_group[:-1]
    return np.flatnonzero(changes)


def lengths_of(sorted_group: Ints) -> Ints:
    """How long each run of equal numbers is."""
    return np.diff(starts_of(sorted_group), append=len(sorted_group))


NO_GROUPED = GroupedRows(rows=NO_ROWS, group=np.zeros(0, dtype=np.int64))
NO_LIMITS = NO_GROUPED.limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a row must reach to matter: the slowest step of a full top list, that of full groups, and a frontier.

    `admits` says no only to rows that rows already found exclude from the top list, their group and the frontier, ties
    included; an older cut admits more, never less.
    """

    step_s: float
    frontier: ShortlistRows
    groups: GroupLimits = NO_LIMITS

    def admits(self, bound_s: Floats, memory_bytes: Floats) -> Bools:
        """Whether a row whose step is at least `bound_s` and whose memory is exact can enter the list or frontier."""
        return (bound_s <= self.step_s) | self.may_reach_frontier(bound_s, memory_bytes)

    def may_reach_frontier(self, bound_s: Floats, memory_bytes: Floats) -> Bools:
        """Whether no frontier row with at most this memory is expected to be strictly faster than the bound."""
        return bound_s <= rival_s(self.frontier, memory_bytes)

    def tighter(self, other: "Cut") -> "Cut":
        """What a row must reach that neither cut excludes."""
        return Cut(
            step_s=min(self.step_s, other.step_s),
            frontier=frontier(self.frontier.joined(other.frontier)),
            groups=self.groups.tighter(other.groups),
        )


OPEN = Cut(step_s=np.inf, frontier=NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """A top list of at most `most` rows, in order, and the frontier, of all rows that were added.

    Lists that are merged must come from different rows of the space; the search hands every range out once.
    """

    most: int
    top: ShortlistRows
    frontier: ShortlistRows
    grouped: GroupedRows = NO_GROUPED

    @classmethod
    def empty(cls, most: int) -> "Shortlist":
        return cls(most=most, top=NO_ROWS, frontier=NO_ROWS)

    def with_rows(self, rows: ShortlistRows, group: Ints | None = None) -> "Shortlist":
        """This list after some more rows, of these groups."""
        return Shortlist(
            most=self.most,
            top=fastest(self.top.joined(rows), self.most),
            frontier=frontier(self.frontier.joined(rows)),
            grouped=self.grouped if group is None else self.grouped.plus(GroupedRows.best_of(rows, group)),
        )

    def plus(self, other: "Shortlist") -> "Shortlist":
        """The list of all rows of both; itself where the other is empty."""
        if not (len(other.top) or len(other.frontier) or len(other.grouped.rows)):
            return self
        return Shortlist(
            most=self.most,
            top=with_others(self.top, other.top, self.most),
            frontier=frontier(self.frontier.joined(other.frontier)) if len(other.frontier) else self.frontier,
            grouped=self.grouped.plus(other.grouped),
        )

    def united(self, other: "Shortlist") -> "Shortlist":
        """The list of all rows of both, which may have rows in common."""
        rows, group = other.rows_and_groups
        new = ~np.isin(rows.indices, self.rows.indices)
        return self.with_rows(rows.take(new), group[new])

    @property
    def cut(self) -> Cut:
        """What a further row must reach."""
        is_full = len(self.top) >= self.most
        limit = float(self.top.step_s[-1]) if is_full else np.inf
        return Cut(step_s=limit, frontier=self.frontier, groups=self.grouped.limits)

    @property
    def rows(self) -> ShortlistRows:
        """Every row of the top list, of the best of groups and of the frontier, once, by number."""
        return self.top.united(self.frontier).united(self.grouped.rows)

    @property
    def rows_and_groups(self) -> tuple[ShortlistRows, Ints]:
        """Every row once, and the group of those that are among the best of theirs."""
        rows = self.rows
        group = np.full(len(rows), UNGROUPED, dtype=np.int64)
        group[np.searchsorted(rows.indices, self.grouped.rows.indices)] = self.grouped.group
        return rows, group


Expect = Callable[[ShortlistRows], Floats]
"""Expected step seconds of rows, none below the projected ones."""


class Collector:
    """Gathers rows of one task: joins them lazily, so that a chunk costs a comparison and not a sort."""

    def __init__(self, most: int, cut: Cut, expect: Expect) -> None:
        self._most, self._pending, self._num_pending = most, [NO_ROWS], 0
        self._expect = expect
        self._given = cut
        self._top, self._frontier, self._grouped = NO_ROWS, NO_ROWS, NO_GROUPED
        self.cut = cut

    def add(self, rows: ShortlistRows, group: Ints | None = None) -> None:
        """Rows not seen before, in any order; `group`: number of each one's group, `UNGROUPED` in none."""
        rows = self._expected(rows)
        fast = rows.take(rows.step_s <= self.cut.step_s)
        self._pending.append(fast)
        self._num_pending += len(fast)
        if self._num_pending >= self._most:
            self._settle()
        groups = self.cut.groups if group is None else self._group_limits(rows, group)
        self.cut = replace(self.cut, groups=groups)

    def _expected(self, rows: ShortlistRows) -> ShortlistRows:
        """The rows with the expected step of those that may reach the frontier: of those best by projection first."""
        near = rows.take(self.cut.may_reach_frontier(rows.step_s, rows.memory_bytes))
        best = np.isin(near.indices, frontier(replace(near, expected_s=near.step_s)).indices)
        expected_s = np.full(len(rows), np.inf)
        for wave in (near.take(best), near.take(~best)):
            wave = wave.take(self.cut.may_reach_frontier(wave.step_s, wave.memory_bytes))
            if len(wave):
                wave = replace(wave, expected_s=self._expect(wave))
                expected_s[np.isin(rows.indices, wave.indices)] = wave.expected_s
                # The given frontier only prunes; rows of others never enter this task's own result.
                self._frontier = frontier(self._frontier.joined(wave))
                self.cut = replace(self.cut, frontier=frontier(self._given.frontier.joined(self._frontier)))
        return replace(rows, expected_s=expected_s)

    def _group_limits(self, rows: ShortlistRows, group: Ints) -> GroupLimits:
        """What rows must reach for their group after some more rows, others' rows considered."""
        leading = self.cut.groups.admits(rows.step_s, group)
        self._grouped = self._grouped.plus(GroupedRows.best_of(rows.take(leading), group[leading]))
        return self._grouped.limits.tighter(self._given.groups)

    def _settle(self) -> None:
        self._top = fastest(self._top.joined(*self._pending), self._most)
        self._pending, self._num_pending = [], 0
        if len(self._top) >= self._most:
            limit = min(self.cut.step_s, float(self._top.step_s[-1]))
            self.cut = replace(self.cut, step_s=limit)

    @property
    def shortlist(self) -> Shortlist:
        """Everything worth keeping of what was added."""
        self._settle()
        return Shortlist(most=self._most, top=self._top, frontier=self._frontier, grouped=self._grouped)


def dominated_area(memory: Floats, rate: Floats, most_memory: float) -> float:
    """Hypervolume of a frontier: area between its staircase and the reference point of most memory and no rate.

    Formula: over memory budgets up to `most_memory`, the best rate that a budget buys.
    """
    order = np.lexsort((-rate, memory))
    edges = np.minimum(np.append(memory[order], most_memory), most_memory)
    return float((np.maximum.accumulate(rate[order]) * np.diff(edges)).sum())
