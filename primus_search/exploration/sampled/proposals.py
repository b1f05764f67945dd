"""Proposals around what is known to be good: one axis changed, two or three axes changed, or a row from anywhere.

A row of positions is one value per axis. What is proposed need not be legal; it is settled to the nearest candidate
that is. Everything is drawn from the generator that is passed in, so that a search repeats itself exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from primus_search.values.candidates import Columns, Ints

SHORT_AXIS = 12
"""Values of an axis that are all tried; of a longer one, those 1, 2, 4, 8, ... positions away."""

MOST_CHANGED = 3
"""Axes changed at once: a better pipeline often needs another micro-batch and another recomputation with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals(Columns):
    """Rows of positions (one column per axis), and the row of the elite each came from (-1: none)."""

    positions: Ints
    parents: Ints


class Moves:
    """The axes of a space with more than one value, by name, and what may be tried along them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.names = tuple(sizes)
        self._sizes = np.array(list(sizes.values()), dtype=np.int64)
        steps = [(axis, offset) for axis, size in enumerate(self._sizes) for offset in _offsets(int(size))]
        self._axis, self._offset = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))

    def single(self, elite: Ints) -> Proposals:
        """Every row of the elite with one axis changed."""
        parents = np.repeat(np.arange(len(elite)), len(self._axis))
        positions = np.repeat(elite, len(self._axis), axis=0)
        axis, offset = np.tile(self._axis, len(elite)), np.tile(self._offset, len(elite))
        changed = positions[np.arange(len(positions)), axis] + offset
        inside = (changed >= 0) & (changed < self._sizes[axis])
        positions[np.arange(len(positions)), axis] = changed
        return Proposals(positions=positions, parents=parents).take(inside)

    def several(self, elite: Ints, count: int, rng: np.random.Generator) -> Proposals:
        """Rows of the elite with two or three axes changed at random."""
        parents = rng.integers(len(elite), size=count)
        num_changed = rng.integers(2, MOST_CHANGED + 1, size=count)
        rank = np.argsort(rng.random((count, len(self._sizes))), axis=1)
        drawn = rng.integers(self._sizes, size=(count, len(self._sizes)))
        return Proposals(positions=np.where(rank < num_changed[:, None], drawn, elite[parents]), parents=parents)

    def anywhere(self, count: int, rng: np.random.Generator) -> Proposals:
        """Rows from the whole grid."""
        drawn = rng.integers(self._sizes, size=(count, len(self._sizes)))
        return Proposals(positions=drawn, parents=np.full(count, -1))


def _offsets(size: int) -> list[int]:
    if size <= SHORT_AXIS:
        return [offset for offset in range(1 - size, size) if offset]
    powers = [1 << bit for bit in range(size.bit_length()) if 1 << bit < size]
    return [*powers, *(-power for power in powers)]
