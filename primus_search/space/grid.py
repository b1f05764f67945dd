"""Legal cells of a few axes, built axis by axis so that an illegal corner is cut before it is multiplied."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.space.context import Cells, Column, GridJob, reads
from primus_search.space.rules import Keeps, Rule
from primus_search.values.candidates import DEFAULTS, Bools, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The legal cells of some axes.

    values  column values by axis           codes  position of the value on its axis
    idents  position, or the axis' length where a conditional axis is idle: equal idents, equal meaning
    """

    axes: tuple[str, ...]
    values: dict[str, Column]
    codes: dict[str, NDArray[Any]]
    idents: dict[str, NDArray[Any]]
    length: int

    def take(self, rows: Ints | NDArray[np.bool_]) -> "Block":
        """The cells a mask or an index selects."""
        values = {name: column[rows] for name, column in self.values.items()}
        codes = {name: column[rows] for name, column in self.codes.items()}
        idents = {name: column[rows] for name, column in self.idents.items()}
        length = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return Block(axes=self.axes, values=values, codes=codes, idents=idents, length=length)

    def cells(self, job: GridJob) -> Cells:
        """The cells as rules see them."""
        return Cells(job, self.values, self.codes, self.length)


EMPTY = Block(axes=(), values={}, codes={}, idents={}, length=1)


def legal_block(
    job: GridJob,
    axes: Sequence[str],
    rules: Sequence[Rule],
    conditionals: Sequence[tuple[str, Keeps]],
    multiplier: int,
    removed: dict[str, int],
) -> Block:
    """All legal cells of `axes`; each cell a rule drops adds the raw rows behind it to `removed[rule]`.

    `multiplier` is the number of raw rows behind one complete cell.
    """
    block = EMPTY
    for position, axis in enumerate(axes):
        block = _expanded(job, block, axis)
        behind = multiplier * prod(job.sizes[later] for later in axes[position + 1 :])
        known = set(block.axes)
        for conditional, is_active in conditionals:
            if conditional == axis:
                block = _idle_once(job, block, axis, is_active(job, block.cells(job)), behind, removed)
        for rule in rules:
            wanted = reads(rule.reads)
            is_due = axis in wanted and wanted <= known
            if is_due or (position == 0 and not wanted):
                block = _masked(block, rule.keeps(job, block.cells(job)), rule.name, behind, removed)
    return block


def _expanded(job: GridJob, block: Block, axis: str) -> Block:
    """Every cell with every value of one more axis, the new axis fastest."""
    new, size = job.column_values(axis), job.sizes[axis]
    values: dict[str, Any] = {name: np.repeat(column, size) for name, column in block.values.items()}
    codes = {name: np.repeat(column, size) for name, column in block.codes.items()}
    idents = {name: np.repeat(column, size) for name, column in block.idents.items()}
    values[axis] = np.tile(new, block.length)
    codes[axis] = np.tile(np.arange(size, dtype=np.int16), block.length)
    idents[axis] = codes[axis]
    return Block(axes=(*block.axes, axis), values=values, codes=codes, idents=idents, length=block.length * size)


def _idle_once(job: GridJob, block: Block, axis: str, active: Bools, behind: int, removed: dict[str, int]) -> Block:
    block.values[axis] = np.where(active, block.values[axis], DEFAULTS[axis])
    block.idents[axis] = np.where(active, block.idents[axis], job.sizes[axis]).astype(np.int16)
    return _masked(block, active | (block.codes[axis] == 0), idle_name(axis), behind, removed)


def idle_name(axis: str) -> str:
    """The name under which the doubles of an idle axis are counted."""
    return f"{axis}_idle"


def _masked(block: Block, keep: NDArray[np.bool_], name: str, behind: int, removed: dict[str, int]) -> Block:
    dropped = block.length - int(np.count_nonzero(keep))
    if not dropped:
        return block
    removed[name] = removed.get(name, 0) + dropped * behind
    return block.take(keep)


def densified(keys: Sequence[tuple[NDArray[Any], int]], length: int) -> tuple[Ints, Ints]:
    """Number the distinct combinations of small non-negative columns: (number per row, one row per number).

    Each key is (column, its exclusive upper bound). Sort-free while the product of bounds stays moderate.
    """
    combined, bound = np.zeros(length, dtype=np.int64), 1
    for column, size in keys:
        if bound * size > DENSE_LIMIT:
            combined, bound = _renumbered(combined, bound)
        combined, bound = combined * size + column, bound * size
    number, count = _renumbered(combined, bound)
    example = np.empty(count, dtype=np.int64)
    example[number[::-1]] = np.arange(length - 1, -1, -1)
    return number, example


DENSE_LIMIT = 1 << 24


def _renumbered(combined: Ints, bound: int) -> tuple[Ints, int]:
    if bound > 4 * DENSE_LIMIT:
        distinct, inverse = np.unique(combined, return_inverse=True)
        return inverse, len(distinct)
    present = np.zeros(bound, dtype=np.bool_)
    present[combined] = True
    number = np.cumsum(present, dtype=np.int64) - 1
    return number[combined], int(number[-1]) + 1 if bound else 0
