"""Row numbers for combinations of columns, in one compiled pass: `cost.factor.Vocabulary` for tables of 10^7 rows.

Values of a column get small numbers the first time they are seen, the small numbers are packed into one integer by
shifts, and packed integers get row numbers. Combinations of too many values fall back on `Vocabulary`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Ints
from primus_search.cost.factor import Vocabulary

DENSE_BITS = 22
"""Packed keys of more bits than this would need too large a table."""
LARGEST_VALUE = 1 << 14


class Keys:
    """Numbers combinations in order of first appearance; the numbers stay the same from chunk to chunk."""

    def __init__(self, columns: int) -> None:
        self._small = np.full((columns, 64), -1, dtype=np.int64)
        self._known = np.zeros(columns, dtype=np.int64)
        self._shift = np.zeros(columns, dtype=np.int64)
        self._rows = np.full(1, -1, dtype=np.int64)
        self._seen: list[NDArray[np.int64]] = []
        self._slow: Vocabulary | None = None
        self.size = 0

    def encode(self, columns: Sequence[NDArray[np.int64]]) -> tuple[Ints, Ints]:
        """The number of every row, and the position of the first row of each NEW number."""
        if self._slow is not None:
            return self._slowly(columns)
        from primus_search.cost.memory.kernels import number_rows

        typed = tuple(_frozen(column) for column in columns)
        codes = np.empty(len(typed[0]), dtype=np.int64)
        first = np.empty(len(typed[0]), dtype=np.int64)
        while True:
            fresh = number_rows(typed, self._small, self._shift, self._rows, self.size, codes, first)
            if fresh >= 0:
                break
            if not self._learn(typed):
                return self._slowly(columns)
        first = first[:fresh]
        if fresh:
            self._seen.append(np.stack([column[first] for column in typed]))
            self.size += fresh
        return codes, first

    def _learn(self, columns: tuple[NDArray[np.int64], ...]) -> bool:
        """Give numbers to new values; False where the table would become too large."""
        for i, column in enumerate(columns):
            values = np.unique(column)
            if values[-1] >= LARGEST_VALUE:
                return False
            if values[-1] >= self._small.shape[1]:
                grown = np.full((len(columns), 2 * int(values[-1])), -1, dtype=np.int64)
                grown[:, : self._small.shape[1]] = self._small
                self._small = grown
            new = values[self._small[i, values] < 0]
            self._small[i, new] = self._known[i] + np.arange(len(new))
            self._known[i] += len(new)
        bits = [int(n - 1).bit_length() for n in self._known]
        self._shift = np.concatenate([[0], np.cumsum(bits)[:-1]]).astype(np.int64)
        if sum(bits) > DENSE_BITS:
            return False
        self._rows = np.full(1 << sum(bits), -1, dtype=np.int64)
        if self._seen:
            known = np.concatenate(self._seen, axis=1)
            packed = np.zeros(known.shape[1], dtype=np.int64)
            for i, values in enumerate(known):
                packed += self._small[i, values] << self._shift[i]
            self._rows[packed] = np.arange(len(packed))
        return True

    def _slowly(self, columns: Sequence[NDArray[np.int64]]) -> tuple[Ints, Ints]:
        """Number by `Vocabulary`, which first sees what was numbered here, in the same order."""
        if self._slow is None:
            self._slow = Vocabulary()
            for seen in self._seen:
                self._slow.encode(list(seen))
            self._seen, self._rows = [], self._rows[:1]
        codes, first = self._slow.encode([np.asarray(column, dtype=np.int64) for column in columns])
        self.size = self._slow.size
        return codes, first


def _frozen(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column as a contiguous read-only view: compiled code is compiled for one kind of array."""
    view = np.ascontiguousarray(column, dtype=np.int64).view()
    view.setflags(write=False)
    return view
