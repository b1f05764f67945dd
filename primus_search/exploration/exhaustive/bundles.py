"""Candidates of one outer cell that memory cannot tell apart, as bundles: decided once for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from primus_search.space.enumerate import Enumerator, GridRows
from primus_search.values.candidates import Bools, Ints


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

    def __init__(self, enumerator: Enumerator, columns: frozenset[str], sides: Mapping[str, Bools]) -> None:
        kinds = enumerator.inner_numbers(columns, sides)[0]
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
        return np.repeat(cells, count), runs(self._first_of_class[self._enumerator.class_of_cell[cells]], count)

    def first_number(self, cells: Ints, bundle: Ints) -> Ints:
        """The smallest candidate number in each bundle."""
        return self._enumerator.starts[cells] + self.place[self.first[bundle]]

    def lines(self, cells: Ints, bundle: Ints) -> Spread:
        """All candidates of some bundles."""
        size = self.size[bundle]
        at = runs(self.first[bundle], size)
        cell = np.repeat(cells, size)
        lines = GridRows(
            cells=cell, inner=self.members[at], indices=self._enumerator.starts[cell] + self.place[at], removed={}
        )
        return Spread(lines=lines, owner=np.repeat(np.arange(len(bundle)), size))


def runs(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, ... count[0] of them, then from start[1], ..."""
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(int(count.sum()))
