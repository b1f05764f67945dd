"""Numbers of terms by table lookup: a term that reads some columns has one number per (outer, inner) combination.

The outer cells and the inner combinations of a space are known, so the columns a term reads are numbered once on each
floor; what is left per row is one lookup in a table of pairs. A pair that was never met before is given its number by
whoever owns the term (`encode`, which sees the columns of one example each).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Candidates, Ints
from primus_search.space.enumerate import Enumerator

MOST_PAIRS = 1 << 26
"""Pairs a table has room for (256 MB of 32-bit numbers); above, every row is encoded by its columns."""

Encode = Callable[[Candidates], Ints]


class PairCodes:
    """The number of a term for pairs of an outer cell and an inner combination.

    outer_numbers, inner_numbers  of every cell and every combination by the columns the term reads
    """

    def __init__(self, enumerator: Enumerator, columns: frozenset[str], encode: Encode) -> None:
        self._enumerator, self._encode = enumerator, encode
        self.outer_numbers, outer_example = enumerator.outer_numbers(columns)
        self.inner_numbers, inner_example = enumerator.inner_numbers(columns)
        self.num_outer, self._width = len(outer_example), len(inner_example)
        pairs = self.num_outer * self._width
        self._table: NDArray[np.int32] | None = np.full(pairs, -1, dtype=np.int32) if pairs <= MOST_PAIRS else None

    def at(self, cells: Ints, inner: Ints) -> Ints:
        """The number of every pair."""
        if self._table is None:
            return self._encode(self._enumerator.pairs(cells, inner))
        pair = self.outer_numbers[cells] * self._width + self.inner_numbers[inner]
        codes = self._table[pair]
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            _, first = np.unique(pair[unknown], return_index=True)
            example = unknown[np.sort(first)]
            self._table[pair[example]] = self._encode(self._enumerator.pairs(cells[example], inner[example]))
            codes[unknown] = self._table[pair[unknown]]
        known: Ints = codes.astype(np.int64)
        return known

    def forget(self) -> None:
        """Start afresh: the owner of the term has dropped its numbers."""
        if self._table is not None:
            self._table.fill(-1)
