"""From wanted values to the nearest legal candidate: how a sampler that knows nothing of rules always lands inside.

Axes are settled one after the other, outer ones first: of the values still legal after the choices so far, the one
whose position on its axis is nearest to what was wanted (the smaller of two). Every legal candidate is reachable by
asking for exactly its own values.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Ints
from primus_search.space.enumerate import INNER, OUTER, Enumerator
from primus_search.space.grid import Block


def nearest_legal(enumerator: Enumerator, wanted: Mapping[str, int]) -> int:
    """The number of the candidate nearest to the wanted positions on the axes; axes left out count as 0."""
    outer, inner = enumerator.blocks
    cell = int(_settled(outer, OUTER, np.arange(outer.length), wanted)[0])
    return enumerator.number_of(cell, int(_settled(inner, INNER, enumerator.inner_rows_of(cell), wanted)[0]))


def positions(enumerator: Enumerator, index: int) -> dict[str, int]:
    """The position of a candidate's value on every axis."""
    lines = enumerator.lines_at(np.array([index]))
    outer, inner = enumerator.blocks
    cell, row = int(lines.cells[0]), int(lines.inner[0])
    return {name: int(outer.codes[name][cell]) for name in OUTER} | {
        name: int(inner.codes[name][row]) for name in INNER
    }


def _settled(block: Block, axes: tuple[str, ...], rows: Ints, wanted: Mapping[str, int]) -> Ints:
    for axis in axes:
        if len(rows) == 1:
            break
        codes: NDArray[Any] = block.codes[axis][rows].astype(np.int64)
        distance = np.abs(codes - wanted.get(axis, 0)) * 2 + (codes > wanted.get(axis, 0))
        rows = rows[distance == distance.min()]
    return rows
