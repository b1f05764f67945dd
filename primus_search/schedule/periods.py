"""Where an order repeats itself, so that a long run can be simulated without walking through all of it.

In the steady part of a schedule every rank repeats the same passes for later micro-batches. The end times of one
period follow from those of the L periods before it through additions and maxima only, by the same rule each time.
Such a rule commutes with adding a constant. So once all end times of L periods in a row are those of c periods
before plus one common time, this holds for every later period too, and the rest of the steady part can be skipped:
that is a proof, not an extrapolation (Baccelli et al. 1992, Synchronization and Linearity, chapter 3). The cycle c is
more than 1 where the critical loop spans several micro-batches: 1F1B with hops that take time has c = p.

`find` checks on the order itself that it repeats, dependencies included; what does not repeat is walked through.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from primus_search.schedule.table import Ints, Table

Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Periods:
    """An order cut into a prefix, `count` equal periods and a suffix; rows in the order in which they can run.

    `period` lists the rows of the first period; a row of period k is `k * step[rank]` further down. `lookback`: how
    many periods back a pass may reach for its input. `settled`: the period from which on inputs repeat too; those of
    the first ones come from the prefix.
    """

    prefix: Rows
    period: Rows
    suffix: Rows
    step: Ints
    count: int
    lookback: int
    settled: int


@lru_cache(maxsize=512)
def find(table: Table) -> Periods:
    """The periods of an order; `count` is 0 when there are too few to be worth it."""
    whole = Periods(
        prefix=table.links.order,
        period=np.zeros(0, np.int32),
        suffix=np.zeros(0, np.int32),
        step=np.zeros(table.stages, np.int64),
        count=0,
        lookback=0,
        settled=0,
    )
    found = [_with_shift(table, shift) for shift in _shifts(table)]
    return max((f for f in found if f is not None), key=lambda f: f.count * len(f.period), default=whole)


def _shifts(table: Table) -> list[int]:
    """Micro-batches per period worth trying: one at a time, or as many as travel together."""
    p = table.stages
    shifts = {1, 2, p}
    rows = table.rank(0)
    forwards = rows.micro_batch[(rows.kind == 0) & (rows.stage == rows.stage[0])]
    chunk_ends = np.flatnonzero(np.diff(rows.stage[rows.kind == 0]))
    if len(chunk_ends):
        shifts.add(int(chunk_ends[0]) + 1)
    return sorted(shift for shift in shifts if 3 * shift < len(forwards))


def _with_shift(table: Table, shift: int) -> Periods | None:
    """Cut the order into periods of `shift` micro-batches, or None."""
    runs = [_longest_run(table, rank, shift) for rank in range(table.stages)]
    if any(run is None for run in runs):
        return None
    begin, end, step = (np.array(column, dtype=np.int64) for column in zip(*(r for r in runs if r), strict=True))
    links = table.links
    cut = _close(table.offsets, links.source, links.rank, table.overlaps_next, begin, step)
    if (cut >= end).any():
        return None
    count = int(((end - cut) // step).min())
    if count < 4:
        return None
    reach = _reach(table, cut, step, count)
    if reach is None or count <= sum(reach) + 2:
        return None
    order, rank = links.order, links.rank
    position = order - cut[rank[order]]
    size = step[rank[order]]
    return Periods(
        prefix=order[position < 0],
        period=order[(position >= 0) & (position < size)],
        suffix=order[position >= count * size],
        step=step,
        count=count,
        lookback=reach[0],
        settled=reach[1],
    )


def _longest_run(table: Table, rank: int, shift: int) -> tuple[int, int, int] | None:
    """First row, end row and length in rows of the periods of one rank."""
    low, high = int(table.offsets[rank]), int(table.offsets[rank + 1])
    kind, stage, micro = table.kind[low:high], table.stage[low:high], table.micro_batch[low:high]
    row_of = np.flatnonzero((kind == 0) & (stage == stage[0]))
    middle = len(row_of) // 2
    if middle + shift >= len(row_of):
        return None
    step = int(row_of[middle + shift] - row_of[middle])
    same = (kind[step:] == kind[:-step]) & (stage[step:] == stage[:-step]) & (micro[step:] == micro[:-step] + shift)
    pair = table.overlaps_next[low:high]
    same &= pair[step:] == pair[:-step]
    if not same[row_of[middle]]:
        return None
    breaks = np.flatnonzero(~same)
    after = np.searchsorted(breaks, row_of[middle])
    first = int(breaks[after - 1]) + 1 if after else 0
    last = int(breaks[after]) if after < len(breaks) else len(same)
    return low + first, low + last + step, step


@njit(cache=True)
def _close(offsets, source, rank, pair, begin, step):  # type: ignore[no-untyped-def]
    """The smallest cut at or after `begin` that no pass before it reaches across for its input.

    No cut, this one or a later one, may part an overlapped pair.
    """
    cut, seen = begin.copy(), offsets[:-1].copy()
    for _ in range(4 * len(cut)):
        grown = cut.copy()
        for r in range(len(cut)):
            for end in (cut[r] - 1, cut[r] - 1 + step[r]):
                if offsets[r] <= end < offsets[r + 1] and pair[end]:
                    grown[r] += 1
                    break
            # Inputs of passes before an earlier cut are before it already.
            for i in range(seen[r], min(cut[r], offsets[r + 1])):
                if source[i] >= 0:
                    grown[rank[source[i]]] = max(grown[rank[source[i]]], source[i] + 1)
            seen[r] = max(seen[r], cut[r])
        if (grown == cut).all():
            return cut
        cut = grown
    return offsets[1:].copy()


def _reach(table: Table, cut: Ints, step: Ints, count: int) -> tuple[int, int] | None:
    """How many periods back inputs come from, and the first period from which on all inputs repeat; or None."""
    source, rank = table.links.source, table.links.rank
    rows = np.arange(len(table))
    period = (rows - cut[rank]) // step[rank]
    origin = rank[source]
    source_period = np.where(source >= 0, (source - cut[origin]) // step[origin], -1)
    inside = (period >= 0) & (period < count)
    if (source_period[inside] > period[inside]).any():
        return None
    later = np.flatnonzero(inside & (period >= 1))
    before = source[later - step[rank[later]]]
    repeats = np.where(before >= 0, before + step[rank[before]], -1) == source[later]
    settled = int(period[later[~repeats]].max(initial=0)) + 1
    steady = (source_period >= 0) & (period >= settled)
    back = np.minimum(period, count) - source_period
    return int(max(1, back[steady].max(initial=0))), settled
