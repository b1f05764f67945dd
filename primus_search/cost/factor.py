"""Compute a term once per distinct key and gather it: what makes a table of 10^5 rows cheap.

A term depends on few columns. `Vocabulary` turns those columns into one dense integer per row without sorting: each
column's values get small numbers the first time they are seen (and keep them for the life of the vocabulary, across
chunks), the numbers are packed into one integer by mixed radix, and packed keys get row numbers of a growing table.

    >>> codes, first = Vocabulary().encode([np.array([8, 8, 4]), np.array([1, 1, 1])])
    >>> codes, first
    (array([0, 0, 1]), array([0, 2]))
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_DENSE_LIMIT = 1 << 22
"""Packed keys below this are looked up in an array; above it, keys are sorted (correct, only slower)."""


class Column:
    """Small numbers for the values of one column, given in order of first sight."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._lookup: Ints = np.full(64, -1, dtype=np.int64)
        self._index: dict[int, int] = {}

    def encode(self, column: NDArray[np.int64]) -> Ints:
        """The small number of every value; values must be at least 0."""
        if column.dtype != np.int64:
            column = column.astype(np.int64)
        top = int(column.max(initial=0))
        if top >= _DENSE_LIMIT:
            return self._encode_sparse(column)
        if top >= len(self._lookup):
            grown = np.full(2 * top + 2, -1, dtype=np.int64)
            grown[: len(self._lookup)] = self._lookup
            self._lookup = grown
        codes = self._lookup[column]
        if codes.min(initial=0) < 0:
            for value in np.unique(column[codes < 0]).tolist():
                self._lookup[value] = self._add(value)
            codes = self._lookup[column]
        return codes

    def _encode_sparse(self, column: Ints) -> Ints:
        distinct, inverse = np.unique(column, return_inverse=True)
        small = np.array([self._add(value) for value in distinct.tolist()], dtype=np.int64)
        return small[inverse.reshape(-1)]

    def _add(self, value: int) -> int:
        known = self._index.get(value)
        if known is None:
            known = self._index[value] = len(self.values)
            self.values.append(value)
        return known


class Vocabulary:
    """Dense row numbers for combinations of columns, the same across chunks."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._radix: list[int] = []
        self._rows: Ints = np.zeros(0, dtype=np.int64)
        self._sparse: dict[int, int] = {}
        self._packed: list[Ints] = []
        self.size = 0

    def encode(self, columns: Sequence[NDArray[np.int64]]) -> tuple[Ints, Ints]:
        """Row number of every row, and the positions (in these columns) of the first row of each NEW number."""
        if not self._columns:
            self._columns = [Column() for _ in columns]
            self._radix = [1] * len(columns)
        small = [vocabulary.encode(column) for vocabulary, column in zip(self._columns, columns, strict=True)]
        self._fit_radix()
        packed = small[0].copy()
        for radix, codes in zip(self._radix[1:], small[1:], strict=True):
            packed *= radix
            packed += codes
        if int(np.prod(np.array(self._radix, dtype=np.float64))) <= _DENSE_LIMIT:
            return self._dense(packed, small)
        return self._by_sorting(packed, small)

    def number(self, rows: int) -> tuple[Ints, Ints]:
        """New numbers for so many rows, shared with nobody."""
        codes = np.arange(self.size, self.size + rows, dtype=np.int64)
        self.size += rows
        return codes, np.arange(rows, dtype=np.int64)

    def _fit_radix(self) -> None:
        """Make room for every value seen; a change of radix renumbers the packed keys, never the rows."""
        needed = [len(column.values) for column in self._columns]
        if all(n <= r for n, r in zip(needed, self._radix, strict=True)):
            return
        self._radix = [max(r, 1 << (n - 1).bit_length()) for n, r in zip(needed, self._radix, strict=True)]
        known = [np.concatenate(parts) for parts in zip(*self._packed, strict=True)] if self._packed else []
        self._rows = np.zeros(0, dtype=np.int64)
        self._sparse = {}
        if not known:
            return
        packed = known[0].copy()
        for radix, codes in zip(self._radix[1:], known[1:], strict=True):
            packed = packed * radix + codes
        total = int(np.prod(np.array(self._radix, dtype=np.float64)))
        if total <= _DENSE_LIMIT:
            self._rows = np.full(total, -1, dtype=np.int64)
            self._rows[packed] = np.arange(self.size)
        self._sparse = dict(zip(packed.tolist(), range(self.size), strict=True))

    def _dense(self, packed: Ints, small: list[Ints]) -> tuple[Ints, Ints]:
        if len(self._rows) == 0:
            self._rows = np.full(int(np.prod(np.array(self._radix, dtype=np.float64))), -1, dtype=np.int64)
        codes = self._rows[packed]
        if codes.min(initial=0) >= 0:
            return codes, np.zeros(0, dtype=np.int64)
        fresh = np.flatnonzero(codes < 0)
        # The first row of each new key: writing positions backwards leaves the first one standing.
        self._rows[packed[fresh[::-1]]] = -2 - fresh[::-1]
        first = np.sort(-2 - self._rows[packed[fresh]])
        first = first[np.concatenate([[True], first[1:] != first[:-1]])]
        self._rows[packed[first]] = self.size + np.arange(len(first))
        self._remember(packed, small, first)
        return self._rows[packed], first

    def _by_sorting(self, packed: Ints, small: list[Ints]) -> tuple[Ints, Ints]:
        distinct, position, inverse = np.unique(packed, return_index=True, return_inverse=True)
        rows = np.array([self._sparse.get(key, -1) for key in distinct.tolist()], dtype=np.int64)
        fresh = np.flatnonzero(rows < 0)
        fresh = fresh[np.argsort(position[fresh], kind="stable")]
        first = position[fresh]
        rows[fresh] = self.size + np.arange(len(fresh))
        self._remember(packed, small, first)
        return rows[inverse.reshape(-1)], first

    def _remember(self, packed: Ints, small: list[Ints], first: Ints) -> None:
        self._packed.append([codes[first] for codes in small])  # type: ignore[arg-type]
        self._sparse.update(zip(packed[first].tolist(), range(self.size, self.size + len(first)), strict=True))
        self.size += len(first)


class Rows:
    """A table of float rows that grows; what a vocabulary's numbers index."""

    def __init__(self, width: int) -> None:
        self._data = np.zeros((256, width))
        self.size = 0

    def append(self, rows: NDArray[np.float64]) -> None:
        """Add rows of shape (n, width)."""
        needed = self.size + len(rows)
        if needed > len(self._data):
            grown = np.zeros((max(needed, 2 * len(self._data)), self._data.shape[1]))
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : needed] = rows
        self.size = needed

    @property
    def data(self) -> NDArray[np.float64]:
        """(size, width)"""
        return self._data[: self.size]
