"""Compute a term once per distinct key and gather it: what makes a table of 10^5 rows cheap.

A term depends on few columns. `Vocabulary` turns those columns into one row number per combination, the same for the
life of the vocabulary: combinations are hashed into an open table and compared with the key they are taken for, so
numbers are exact whatever the values.

    >>> codes, first = Vocabulary().encode([np.array([8, 8, 4]), np.array([1, 1, 1])])
    >>> codes, first
    (array([0, 0, 1]), array([0, 2]))
"""

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_FEWEST_KEYS = 1024
"""Keys a vocabulary has room for at first; its table has two places per key."""


def in_order(terms: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sum of columns, one addition after another in the order given.

    numpy and BLAS choose the order of a reduction by the shape of its operands, so the last bit of a row would depend
    on how many rows are computed with it, and rankings on how work is dealt to workers.
    """
    total: NDArray[np.float64] = reduce(np.add, terms)
    return total


class Vocabulary:
    """Dense row numbers for combinations of columns, in order of first sight, the same across chunks."""

    def __init__(self) -> None:
        self._keys = np.zeros((0, 0), dtype=np.int64)
        self._table = np.full(0, -1, dtype=np.int64)
        self.size = 0

    def encode(self, columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
        """Row number of every row, and the positions (in these columns) of the first row of each NEW number."""
        from primus_search.cost.kernels import number_rows

        rows = len(columns[0])
        # One array of one type, so that one compiled function serves any number of columns.
        typed = np.empty((len(columns), rows), dtype=np.int64)
        for row, column in zip(typed, columns, strict=True):
            row[:] = column
        codes, first = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        fresh, done = 0, 0
        while done < rows:
            if self.size + fresh == len(self._keys):
                self._grow(len(typed), self.size + fresh)
            fresh, done = number_rows(typed, self._keys, self._table, self.size, codes, first, fresh, done)
        self.size += fresh
        return codes, first[:fresh].copy()

    def _grow(self, width: int, size: int) -> None:
        """Room for four times as many keys."""
        from primus_search.cost.kernels import place

        keys = np.empty((max(4 * size, _FEWEST_KEYS), width), dtype=np.int64)
        if size:
            keys[:size] = self._keys[:size]
        self._keys = keys
        self._table = np.full(1 << (2 * len(keys) - 1).bit_length(), -1, dtype=np.int64)
        place(self._keys, size, self._table)

    def number(self, rows: int) -> tuple[Ints, Ints]:
        """New numbers for so many rows, shared with nobody."""
        codes = np.arange(self.size, self.size + rows, dtype=np.int64)
        self.size += rows
        return codes, np.arange(rows, dtype=np.int64)


class Rows:
    """A table of float rows that grows; what a vocabulary's numbers index."""

    def __init__(self, width: int) -> None:
        self._data = np.zeros((256, width))
        self.size = 0

    def append(self, rows: NDArray[np.float64]) -> None:
        """Add rows of shape (n, width)."""
        self.room(len(rows))[:] = rows

    def room(self, rows: int) -> NDArray[np.float64]:
        """So many more rows, to be filled in by the caller."""
        begin, self.size = self.size, self.size + rows
        if self.size > len(self._data):
            # Room that nobody touches takes no memory, and fewer steps mean fewer copies.
            grown = np.empty((max(self.size, 4 * len(self._data)), self._data.shape[1]))
            grown[:begin] = self._data[:begin]
            self._data = grown
        return self._data[begin : self.size]

    @property
    def data(self) -> NDArray[np.float64]:
        """(size, width)"""
        return self._data[: self.size]
