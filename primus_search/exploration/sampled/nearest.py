"""From wanted values to the nearest legal candidates: how a sampler that knows nothing of rules always lands inside.

Axes are settled one after the other, outer ones first: of the values still legal after the choices so far, the one
whose position on its axis is nearest to what was wanted (the smaller of two). Every legal candidate is reachable by
asking for exactly its own values. Many are settled at once: legal cells are in the order of their positions, so that
those with the same first choices are neighbours, and each axis narrows a range by two binary searches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from primus_search.space.enumerate import INNER, OUTER, Block, Enumerator, columns_of
from primus_search.space.types import AXES
from primus_search.values.candidates import Ints

Wanted = Mapping[str, Ints]
"""Positions on the axes, one column per axis; axes left out count as 0."""


@dataclass
class Nearest:
    """The legal candidates of an enumerator, ready to be found by position."""

    enumerator: Enumerator
    _inner: dict[int, "_Ordered"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outer, _ = self.enumerator.blocks
        self._outer = _Ordered(outer, OUTER, self.enumerator.job.sizes, np.arange(outer.length))

    def numbers(self, wanted: Wanted) -> Ints:
        """The number of the candidate nearest to each row of wanted positions."""
        length = len(next(iter(wanted.values())))
        columns = {name: np.asarray(wanted.get(name, np.zeros(length)), dtype=np.int64) for name in AXES}
        cells = self._outer.nearest({name: columns[name] for name in OUTER})
        found = np.empty(length, dtype=np.int64)
        kinds = self.enumerator.class_of_cell[cells]
        for kind in np.unique(kinds):
            of_kind = np.flatnonzero(kinds == kind)
            ordered = self._inner_of(int(kind))
            rank = ordered.nearest({name: columns[name][of_kind] for name in INNER}, as_rank=True)
            found[of_kind] = self.enumerator.starts[cells[of_kind]] + rank
        return found

    def positions(self, numbers: Ints) -> dict[str, Ints]:
        """The position of each candidate's value on every axis."""
        lines = self.enumerator.lines_at(numbers)
        outer, inner = self.enumerator.blocks
        return {n: codes.astype(np.int64) for n, codes in columns_of(lines, outer.codes, inner.codes).items()}

    def _inner_of(self, kind: int) -> "_Ordered":
        if kind not in self._inner:
            _, inner = self.enumerator.blocks
            rows = self.enumerator.inner_lists[kind]
            self._inner[kind] = _Ordered(inner, INNER, self.enumerator.job.sizes, rows)
        return self._inner[kind]


class _Ordered:
    """Some rows of a block, as one rising number each: their positions as digits, the first axis highest."""

    def __init__(self, block: Block, axes: tuple[str, ...], sizes: Mapping[str, int], rows: Ints) -> None:
        self._axes, self._sizes, self._rows = axes, sizes, rows
        self._codes = {name: block.codes[name][rows].astype(np.int64) for name in axes}
        self._keys = np.zeros(len(rows), dtype=np.int64)
        for name in axes:
            self._keys = self._keys * sizes[name] + self._codes[name]

    def nearest(self, wanted: Wanted, *, as_rank: bool = False) -> Ints:
        """The row nearest to each of the wanted positions, or its rank among these rows."""
        length = len(wanted[self._axes[0]])
        low, high = np.zeros(length, dtype=np.int64), np.full(length, len(self._keys))
        prefix = np.zeros(length, dtype=np.int64)
        behind = prod(self._sizes[name] for name in self._axes)
        for name in self._axes:
            size, codes = self._sizes[name], self._codes[name]
            behind //= size
            target = np.clip(wanted[name], 0, size - 1)
            at = np.searchsorted(self._keys, (prefix * size + target) * behind)
            above = codes[np.minimum(at, high - 1)]  # the least code that is not below what was wanted
            below = codes[np.maximum(at - 1, low)]
            is_above = (at < high) & ((at <= low) | (above - target < target - below))
            chosen = np.where(is_above, above, below)
            prefix = prefix * size + chosen
            low = np.searchsorted(self._keys, prefix * behind)
            high = np.searchsorted(self._keys, (prefix + 1) * behind)
        return low if as_rank else self._rows[low]
