"""The best rows found so far: a top list by time, and the frontier of memory against time. Both merge in any order.

A row is (number, step seconds, memory bytes). Smaller is better on both; ties go to the smaller number, so that what
is kept depends on the rows alone and not on who found them first.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistRows:
    """Rows by number, with step seconds and memory bytes; in no particular order."""

    indices: Ints
    step_s: Floats
    memory_bytes: Floats

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: Bools | Ints | slice) -> "ShortlistRows":
        return ShortlistRows(indices=self.indices[rows], step_s=self.step_s[rows], memory_bytes=self.memory_bytes[rows])

    def joined(self, *others: "ShortlistRows") -> "ShortlistRows":
        """All rows one after the other; meant for rows that have no number in common."""
        parts = [part for part in (self, *others) if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else self
        return ShortlistRows(
            indices=np.concatenate([part.indices for part in parts]),
            step_s=np.concatenate([part.step_s for part in parts]),
            memory_bytes=np.concatenate([part.memory_bytes for part in parts]),
        )

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
    rounded: Floats = ((bits + half) & mask).view(np.float64)
    return rounded


NO_ROWS = ShortlistRows(indices=np.zeros(0, dtype=np.int64), step_s=np.zeros(0), memory_bytes=np.zeros(0))


def fastest(rows: ShortlistRows, most: int) -> ShortlistRows:
    """The `most` rows with the least step time, in order."""
    if len(rows) > most:
        limit = np.partition(rows.step_s, most - 1)[most - 1]
        rows = rows.take(rows.step_s <= limit)
    return rows.take(np.lexsort((rows.indices, rows.step_s))[:most])


def frontier(rows: ShortlistRows) -> ShortlistRows:
    """The rows no other row beats on memory and time, by rising memory; of equal rows the smallest number."""
    if not len(rows):
        return rows
    ordered = rows.take(np.lexsort((rows.indices, rows.step_s, rows.memory_bytes)))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(ordered.step_s)[:-1]])
    return ordered.take(ordered.step_s < best_before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a row must reach to matter: the slowest step of a full top list, and a frontier. Safe to be out of date.

    `admits` says no only to rows that rows already found exclude from the top list and the frontier, ties included;
    an older cut admits more, never less.
    """

    step_s: float
    frontier: ShortlistRows

    def admits(self, bound_s: Floats, memory_bytes: Floats) -> Bools:
        """Whether a row whose step is at least `bound_s` and whose memory is exact can still enter."""
        admitted: Bools = (bound_s <= self.step_s) | self.may_reach_frontier(bound_s, memory_bytes)
        return admitted

    def may_reach_frontier(self, bound_s: Floats, memory_bytes: Floats) -> Bools:
        """Whether no frontier row with at most this memory is strictly faster than the bound."""
        if not len(self.frontier):
            return np.ones(len(bound_s), dtype=np.bool_)
        place = np.searchsorted(self.frontier.memory_bytes, memory_bytes, side="right") - 1
        best = np.where(place >= 0, self.frontier.step_s[np.maximum(place, 0)], np.inf)
        reachable: Bools = bound_s <= best
        return reachable


OPEN = Cut(step_s=np.inf, frontier=NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """A top list of at most `most` rows, in order, and the frontier, of all rows that were added.

    Lists that are merged must come from different rows of the space; the search hands every range out once.
    """

    most: int
    top: ShortlistRows
    frontier: ShortlistRows

    @classmethod
    def empty(cls, most: int) -> "Shortlist":
        return cls(most=most, top=NO_ROWS, frontier=NO_ROWS)

    def with_rows(self, rows: ShortlistRows) -> "Shortlist":
        """This list after some more rows."""
        return Shortlist(
            most=self.most, top=fastest(self.top.joined(rows), self.most), frontier=frontier(self.frontier.joined(rows))
        )

    def plus(self, other: "Shortlist") -> "Shortlist":
        """The list of all rows of both."""
        return Shortlist(
            most=self.most,
            top=fastest(self.top.joined(other.top), self.most) if len(other.top) else self.top,
            frontier=frontier(self.frontier.joined(other.frontier)) if len(other.frontier) else self.frontier,
        )

    @property
    def cut(self) -> Cut:
        """What a further row must reach."""
        is_full = len(self.top) >= self.most
        return Cut(step_s=float(self.top.step_s[-1]) if is_full else np.inf, frontier=self.frontier)

    @property
    def rows(self) -> ShortlistRows:
        """Every row of the top list and of the frontier, once."""
        return self.top.united(self.frontier)


class Collector:
    """Gathers rows of one task: joins them lazily, so that a chunk costs a comparison and not a sort."""

    def __init__(self, most: int, cut: Cut) -> None:
        self._most, self._pending, self._num_pending = most, [NO_ROWS], 0
        self._given = cut
        self._top, self._frontier = NO_ROWS, NO_ROWS
        self.cut = cut

    def add(self, rows: ShortlistRows) -> None:
        """Rows not seen before, in any order."""
        new = rows.take(self.cut.may_reach_frontier(rows.step_s, rows.memory_bytes))
        if len(new):
            # The given frontier only prunes; rows of others never enter this task's own result.
            self._frontier = frontier(self._frontier.joined(new))
        fast = rows.take(rows.step_s <= self.cut.step_s)
        self._pending.append(fast)
        self._num_pending += len(fast)
        if self._num_pending >= self._most:
            self._settle()
        self.cut = Cut(step_s=self.cut.step_s, frontier=frontier(self._given.frontier.joined(self._frontier)))

    def _settle(self) -> None:
        self._top = fastest(self._top.joined(*self._pending), self._most)
        self._pending, self._num_pending = [], 0
        if len(self._top) >= self._most:
            limit = min(self.cut.step_s, float(self._top.step_s[-1]))
            self.cut = Cut(step_s=limit, frontier=self.cut.frontier)

    @property
    def shortlist(self) -> Shortlist:
        """Everything worth keeping of what was added."""
        self._settle()
        return Shortlist(most=self._most, top=self._top, frontier=self._frontier)
