"""Candidates looked at by number: what a sampler asks for. Screening is cheap, projecting is what is counted.

Screening settles what fits in memory and gives the admissible bound on the step: a candidate that cannot enter the
best rows or the frontier, whatever its pipeline does, is never projected. It is the funnel of the exhaustive search, on
a few thousand rows at a time.

From wanted values to the nearest legal candidates: how a sampler that knows nothing of rules always lands inside.

Axes are settled one after the other, outer ones first: of the values still legal after the choices so far, the one
whose position on its axis is nearest to what was wanted (the smaller of two). Every legal candidate is reachable by
asking for exactly its own values. Many are settled at once: legal cells are in the order of their positions, so that
those with the same first choices are neighbours, and each axis narrows a range by two binary searches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from primus_search.exploration.exhaustive.evaluate import BOUND_SLACK, Funnel
from primus_search.exploration.exhaustive.shortlist import (
    NO_ROWS,
    Shortlist,
    ShortlistRows,
    fastest,
    frontier,
    without_noise,
)
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.findings import Findings, Tally
from primus_search.space.enumerate import INNER, OUTER, Block, Enumerator, columns_of
from primus_search.space.types import AXES
from primus_search.values.candidates import Bools, Columns, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened(Columns):
    """Candidates by number: memory, the bytes they lack (negative: headroom), and what their step takes at least.

    `bound_s` is infinite for what does not fit.
    """

    numbers: Ints
    memory_bytes: Floats
    missing_bytes: Floats
    bound_s: Floats


@dataclass
class ScreenedCluster:
    """One cluster of a space: what was screened and projected on it so far.

    step_s     expected step seconds by number of everything projected      bound_s  its bound
    elite      the best rows and the frontier by expected step    tally    what was screened
    """

    funnel: Funnel
    cluster: int
    most: int
    step_s: dict[int, float] = field(default_factory=dict)
    bound_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.elite, self._rows = Shortlist.empty(self.most), [NO_ROWS]
        self.tally = Tally("memory", "bound", "project")

    def screen(self, numbers: Ints) -> Screened:
        """Memory and bound of these candidates, less those a late rule takes out."""
        enumerator, projector = self.funnel.enumerators[self.cluster], self.funnel.projectors[self.cluster]
        lines = enumerator.lines_at(numbers)
        with self.tally.stage("memory", len(lines)):
            memory = projector.memory_bytes(enumerator.table(lines)) if len(lines) else np.zeros(0)
        missing = memory - projector.job.room_bytes(projector.memory_margin)
        bound, fits = np.full(len(lines), np.inf), missing <= 0.0
        with self.tally.stage("bound", int(np.count_nonzero(fits))):
            if fits.any():
                bound[fits] = projector.bound(enumerator.table(lines.take(fits))) * (1.0 - BOUND_SLACK)
        self.tally.note(missing, lambda at: lines.indices[at])
        return Screened(numbers=lines.indices, memory_bytes=without_noise(memory), missing_bytes=missing, bound_s=bound)

    def project(self, screened: Screened) -> None:
        """Project candidates that fit and were not projected before."""
        if not len(screened):
            return
        enumerator, projector = self.funnel.enumerators[self.cluster], self.funnel.projectors[self.cluster]
        with self.tally.stage("project", len(screened)):
            candidates = enumerator.rows(screened.numbers)
            step_s = without_noise(projector.step(candidates).total)
            expected_s = without_noise(step_s / expected_shares(projector, candidates, step_s))
        rows = ShortlistRows(
            indices=screened.numbers, step_s=step_s, memory_bytes=screened.memory_bytes, expected_s=expected_s
        )
        expected = replace(rows, step_s=expected_s)
        self.step_s.update(zip(screened.numbers.tolist(), expected_s.tolist(), strict=True))
        self.bound_s.update(zip(screened.numbers.tolist(), screened.bound_s.tolist(), strict=True))
        self.elite = replace(
            self.elite,
            top=fastest(self.elite.top.joined(expected), self.most),
            frontier=frontier(self.elite.frontier.joined(rows)),
        )
        self._rows.append(rows)

    def may_matter(self, screened: Screened) -> Bools:
        """Which candidates fit and may still enter the best rows or the frontier."""
        return np.isfinite(screened.bound_s) & self.elite.cut.admits(screened.bound_s, screened.memory_bytes)

    def is_projected(self, numbers: Ints) -> Bools:
        """Which of these candidates were projected before."""
        return np.array([number in self.step_s for number in numbers.tolist()], dtype=np.bool_)

    def findings(self) -> Findings:
        """What a search makes of it."""
        rows = self._rows[0].joined(*self._rows[1:])
        lines = self.funnel.enumerators[self.cluster].lines_at(rows.indices)
        group = self.funnel.grid_costs[self.cluster].groups.of(lines.cells, lines.inner)
        return self.tally.findings(Shortlist.empty(self.funnel.keep).with_rows(rows, group))


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
