"""Rows of terms by table lookup: a term that reads some columns has one row per (outer, inner) combination.

The outer cells and the inner combinations of a space are known, so the columns a term reads are numbered once on each
floor; what is left per candidate is one lookup in a table of pairs. The memo of the term is called for pairs that are
not in the table yet, with one example each.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from primus_search.exploration.exhaustive.bundles import Bundles, runs
from primus_search.space.context import Column
from primus_search.space.enumerate import Enumerator, densified
from primus_search.space.memo import Memo, Rows
from primus_search.values.candidates import Bools, Candidates, Floats, Ints

MOST_PAIRS = 1 << 26
"""Pairs a table has room for (256 MB of 32-bit numbers); above, every row is encoded by its columns."""


class PairCodes:
    """The codes of a memo for pairs of an outer cell and an inner combination; dropped when the memo forgets.

    outer_numbers, inner_numbers  of every cell and every combination by the columns the term reads
    seldom  columns of cells that it reads with some inner combinations alone, `of`: with others, all that counts is
            whether the value is at least this. They tell apart cells that such a combination meets
    sides   of columns whose value alone tells nothing: see `Enumerator.inner_numbers`
    """

    def __init__(
        self,
        enumerator: Enumerator,
        memo: Memo[Candidates],
        seldom: Mapping[str, int] | None = None,
        of: Bools | None = None,
        sides: Mapping[str, Column] | None = None,
    ) -> None:
        self._enumerator, self.memo, self._generation = enumerator, memo, memo.generation
        self.outer_numbers, outer_example = enumerator.outer_numbers(memo.reads, seldom)
        self.inner_numbers, inner_example = enumerator.inner_numbers(memo.reads, sides)
        self._of, self._plain_numbers = of, self.outer_numbers
        if of is not None:
            plain, of_plain = self.outer_numbers, outer_example
            meets = np.array([of[rows].any() for rows in enumerator.inner_lists])[enumerator.class_of_cell]
            closer, example = enumerator.outer_numbers(memo.reads)
            keys = [(plain, len(of_plain)), ((closer + 1) * meets, len(example) + 1)]
            self.outer_numbers, outer_example = densified(keys, len(meets))
            self._plain_numbers = self.outer_numbers[of_plain][plain]
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
        outer = self.outer_numbers[cells]
        if self._of is not None:
            outer = np.where(self._of[inner], outer, self._plain_numbers[cells])
        pair = outer * self._width + self.inner_numbers[inner]
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
        return self.memo.data.take(codes, axis=0)


_NONE = np.zeros(0, dtype=np.int64)

Reduce = Callable[[Ints, Ints, Ints], Sequence[Floats | Ints]]
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
        members: list[Ints] = []
        for start, stop in zip(bundles.first[:-1].tolist(), bundles.first[1:].tolist(), strict=True):
            distinct, first = np.unique(kinds[start:stop], return_index=True)
            number = known.setdefault(distinct.tobytes(), len(known))
            numbers.append(number)
            if number == len(members):
                members.append(bundles.members[start:stop][first])
        self._set_of_bundle, self._size = (np.array(of, dtype=np.int64) for of in (numbers, [*map(len, members)]))
        self._members, self._first = np.concatenate([*members, _NONE]), np.cumsum(self._size) - self._size
        self._table = np.full(codes.num_outer * max(len(known), 1), -1, dtype=np.int32)
        self._generation = codes.memo.generation
        self.tables: list[Rows] = []

    def at(self, cells: Ints, bundle: Ints) -> Ints:
        """The row of every set in `tables`."""
        if self._generation != self._codes.memo.generation:
            self._table.fill(-1)
            self._generation, self.tables = self._codes.memo.generation, []
        sets = self._set_of_bundle[bundle]
        pair = self._codes.outer_numbers[cells] * len(self._size) + sets
        numbers = self._table[pair]
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            distinct, first = np.unique(pair[unknown], return_index=True)
            cells, sets = cells[unknown[first]], sets[unknown[first]]
            sizes = self._size[sets]
            inner = self._members[runs(self._first[sets], sizes)]
            found = self._reduce(self._codes.at(np.repeat(cells, sizes), inner), inner, np.cumsum(sizes) - sizes)
            self.tables = self.tables or [Rows(*rows.shape[1:], dtype=rows.dtype.type) for rows in found]
            self._table[distinct] = self.tables[0].size + np.arange(len(sets))
            for table, rows in zip(self.tables, found, strict=True):
                table.append(rows)
            numbers[unknown] = self._table[pair[unknown]]
        known: Ints = numbers.astype(np.int64)
        return known
