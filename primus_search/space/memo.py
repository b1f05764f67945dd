"""Compute a term once per distinct key and gather it: what makes a table of 10^5 rows cheap.

A term depends on few columns. A `Memo` numbers the distinct combinations of those columns (`codes`), computes the rows
of new combinations and keeps them in tables until they are dropped (`forget`). Combinations are hashed into an open
table and compared with the key they are taken for, so numbers are exact whatever the values.

    >>> KeyNumbers().encode([np.array([8, 8, 4]), np.array([1, 1, 1])])
    (array([0, 0, 1]), array([0, 2]))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from primus_search.values.candidates import Candidates
from primus_search.values.layout import Layout

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_FEWEST_KEYS = 1024
"""Keys that numbering has room for at first; its table has two places per key."""

_FEWEST_ROWS = 256

MOST_ROWS = 1_000_000
"""Rows of a term that are kept unless it says otherwise; beyond this it starts afresh."""


def in_order(terms: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sum of columns, one addition after another in the order given.

    numpy and BLAS choose the order of a reduction by the shape of its operands, so the last bit of a row would depend
    on how many rows are computed with it, and rankings on how work is dealt to workers.
    """
    return reduce(np.add, terms)


class KeyNumbers:
    """Dense numbers for combinations of columns, in order of first sight, the same across tables.

    A key is a few words: every column has as many bits as the values seen of it need, none where there is but one.
    """

    def __init__(self) -> None:
        self._fields = np.zeros((0, 4), dtype=np.uint64)
        self._keys = np.zeros((0, 0), dtype=np.uint64)
        self._table = np.full(0, -1, dtype=np.int64)
        self.size = 0

    def encode(self, columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
        """Number of every row, and the positions (in these columns) of the first row of each NEW number."""
        from primus_search.space.key_kernels import number_rows

        rows = len(columns[0])
        codes, first = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        if not rows:
            return codes, first
        # One array of one type, so that one compiled function serves any number of columns.
        packed = self._packed(np.concatenate(columns, dtype=np.int64).reshape(-1, rows))
        fresh = done = 0
        while done < rows:
            if self.size + fresh == len(self._keys):
                self._grow(self.size + fresh)
            fresh, done = number_rows(packed, self._keys, self._table, self.size, codes, first, fresh, done)
        self.size += fresh
        return codes, first[:fresh].copy()

    def _packed(self, columns: Ints) -> NDArray[np.uint64]:
        """(words, rows) of columns; where values need more bits than they have, so do the keys from now on."""
        from primus_search.space.key_kernels import pack, repack, widened

        packed = np.empty((self._keys.shape[1], columns.shape[1]), dtype=np.uint64)
        if not self.size or not pack(columns, self._fields, packed):
            fields, words = widened(columns, self._fields)
            keys = np.empty((len(self._keys) or _FEWEST_KEYS, words), dtype=np.uint64)
            repack(self._keys, self.size, self._fields, fields, keys)
            self._fields, self._keys = fields, keys
            self._fill_table(self.size)
            packed = np.empty((words, columns.shape[1]), dtype=np.uint64)
            pack(columns, fields, packed)
        return packed

    def _grow(self, size: int) -> None:
        """Room for four times as many keys."""
        keys = np.empty((4 * size, self._keys.shape[1]), dtype=np.uint64)
        keys[:size] = self._keys[:size]
        self._keys = keys
        self._fill_table(size)

    def _fill_table(self, size: int) -> None:
        """Every key at its place in a new table."""
        from primus_search.space.key_kernels import place

        self._table = np.full(1 << (2 * len(self._keys) - 1).bit_length(), -1, dtype=np.int64)
        place(self._keys, size, self._table)

    def number(self, rows: int) -> tuple[Ints, Ints]:
        """New numbers for so many rows, whether or not they are alike."""
        codes = np.arange(self.size, self.size + rows, dtype=np.int64)
        self.size += rows
        return codes, np.arange(rows, dtype=np.int64)


def distinct(columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
    """Number of every row among the distinct rows of these columns, and the position of the first row of each."""
    return KeyNumbers().encode(columns)


def alike(keys: Ints) -> Iterator[Ints]:
    """Positions of the columns of `keys` that are alike, group by group."""
    if keys.shape[1] == 0:
        return
    order = np.lexsort(keys[::-1])
    changes = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    yield from np.split(order, np.flatnonzero(changes) + 1)


def in_codes(column: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """`np.unique(column, return_inverse=True)` of numbers by hashing: a fifth of the time where few are distinct."""
    codes, first = distinct([column.view(f"i{column.itemsize}") if column.dtype.kind == "f" else column])
    order = np.argsort(column[first], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return column[first][order], place[codes]


class MemoTable(Protocol):
    """What a memo keeps of its term: something for every number, in their order."""

    def append(self, rows: Any, /) -> None: ...
    def clear(self) -> None: ...


class Rows:
    """An array that grows along its first axis; `shape` is that of a row."""

    def __init__(self, *shape: int, dtype: type = np.float64) -> None:
        self._shape, self._dtype = shape, dtype
        self.clear()

    def clear(self) -> None:
        """Drop every row."""
        self._data: NDArray[Any] = np.zeros((0, *self._shape), self._dtype)
        self.size = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows of shape (n, ...)."""
        begin, self.size = self.size, self.size + len(rows)
        if self.size > len(self._data):
            # Room that nothing touches takes no memory, and fewer steps mean fewer copies.
            room = max(self.size, 4 * begin, _FEWEST_ROWS)
            grown: NDArray[Any] = np.empty((room, *self._shape), self._dtype)
            grown[:begin] = self._data[:begin]
            self._data = grown
        self._data[begin : self.size] = rows

    @property
    def data(self) -> NDArray[Any]:
        """(size, ...)"""
        return self._data[: self.size]


Shared = TypeVar("Shared")


class SharedRows(Generic[Shared]):
    """Rows made of parts that many of them share: numbers of parts, and tables of parts of some shapes."""

    def __init__(self, arrays: Callable[..., Shared], *shapes: tuple[int, ...]) -> None:
        """`arrays` joins the numbers of every row and the tables of parts."""
        self._joined, self._parts = arrays, [Rows(*shape) for shape in shapes]
        self._numbers = Rows(0, dtype=np.int32)

    def clear(self) -> None:
        """Drop every row."""
        for table in (*self._parts, self._numbers):
            table.clear()

    def append(self, parts: Sequence[tuple[int, NDArray[Any], Ints]]) -> None:
        """Add rows: of each of their parts, its table, what to add to this, and which of what is added a row has."""
        if not self._numbers.size:
            self._numbers = Rows(len(parts), dtype=np.int32)
        numbers = []
        for table, rows, number in parts:
            numbers.append(number + self._parts[table].size)
            self._parts[table].append(rows)
        self._numbers.append(np.stack(numbers, axis=1))

    @property
    def arrays(self) -> Shared:
        """(rows, parts) numbers and every table, joined."""
        return self._joined(self._numbers.data, *(table.data for table in self._parts))


class Subject(Protocol):
    """Rows that a term is computed of: a table of candidates, or of numbers of other terms."""

    def take(self, rows: Ints, /) -> Self: ...


S = TypeVar("S", bound=Subject)


class Memo(Generic[S]):
    """A term, computed once per distinct key and kept.

    reads    columns of candidates that the term depends on
    key      of the rows of a subject: columns, equal where the term is
    compute  what `tables` are to hold of new rows, one value per table
    width    of the rows of a term without tables of its own, which is one array
    after    memos whose numbers this one's keys hold: when one of them forgets, so does this one
    limit    rows kept; `refresh` starts afresh beyond it
    shares   False: every row by itself, also where keys are equal
    """

    def __init__(
        self,
        *,
        key: Callable[[S], Sequence[Ints | Bools]],
        compute: Callable[[S], Sequence[Any]],
        tables: Sequence[MemoTable] = (),
        width: int = 0,
        reads: frozenset[str] = frozenset(),
        after: Sequence["Memo[Any]"] = (),
        limit: int = MOST_ROWS,
        shares: bool = True,
    ) -> None:
        self.reads, self.generation = reads, 0
        self._rows = Rows(width)
        self._tables: Sequence[MemoTable] = tables or (self._rows,)
        self._key, self._compute, self._limit, self._shares = key, compute, limit, shares
        self._after, self._seen = after, [one.generation for one in after]
        self._numbers = KeyNumbers()

    def codes(self, subject: S) -> Ints:
        """The number of every row; rows with a new key are computed."""
        columns = self._key(subject)
        codes, first = self._numbers.encode(columns) if self._shares else self._numbers.number(len(columns[0]))
        if len(first):
            for table, rows in zip(self._tables, self._compute(subject.take(first)), strict=True):
                table.append(rows)
        return codes

    @property
    def size(self) -> int:
        """Rows kept."""
        return self._numbers.size

    @property
    def data(self) -> NDArray[Any]:
        """(size, ...) of a term that is one array."""
        return self._rows.data

    def refresh(self) -> None:
        """Start afresh where there are too many rows, or where a memo that this one builds on has."""
        generations = [one.generation for one in self._after]
        if self.size > self._limit or generations != self._seen:
            self._seen = generations
            self.forget()

    def forget(self) -> None:
        """Drop every row; numbers given before mean nothing afterwards, which a new `generation` tells."""
        self._numbers = KeyNumbers()
        for table in self._tables:
            table.clear()
        self.generation += 1


Canonical = Mapping[str, Ints | Bools | None]
"""What a key holds in place of some columns; see `Candidates.key_columns`."""


def by_columns(
    *, reads: frozenset[str], canonical: Callable[[Candidates], Canonical] = lambda c: {}, **rest: Any
) -> Memo[Candidates]:
    """A term of candidates, whose key is the columns that it reads: a key and `reads` cannot disagree."""
    return Memo(reads=reads, key=lambda c: c.key_columns(reads, **canonical(c)), **rest)


class WordNumbers:
    """Numbers of schedules and layouts that stay the same from table to table of candidates."""

    def __init__(self) -> None:
        self._numbers: dict[str | Layout, int] = {}

    def columns(self, c: Candidates) -> dict[str, Ints]:
        """The columns `schedule` and `pipeline_layout` of a key."""
        return {"schedule": self._coded(c.schedules)[c.schedule], "pipeline_layout": self.layouts(c)}

    def layouts(self, c: Candidates) -> Ints:
        """The column `pipeline_layout` of a key."""
        return self._coded(c.layouts)[c.pipeline_layout]

    def _coded(self, words: Sequence[str] | Sequence[Layout]) -> Ints:
        return np.array([self._numbers.setdefault(word, len(self._numbers)) for word in words], dtype=np.int64)
