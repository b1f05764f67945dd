"""One order at thousands of rows of costs, without walking through all of it where it repeats itself.

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
from typing import Any

import numpy as np

from primus_search.schedule.costs import Floats
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.simulation import batch_kernels
from primus_search.schedule.table import Ints, Table

GOLDEN = 0.6180339887498949
"""The golden ratio less one: its multiples, less their whole parts, are spread evenly however many there are."""

TINY = 1e-300
"""Instead of nothing, where something is divided by it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Periods:
    """`count` equal periods of an order: those of rank r begin at row cut[r], each is `step[r]` rows long.

    `lookback`: how many periods back a pass may reach for its input. `settled`: the period from which on inputs repeat
    too; those of the first ones come from what is before.
    """

    cut: Ints
    step: Ints
    count: int
    lookback: int
    settled: int

    @classmethod
    def none(cls, table: Table) -> "Periods":
        """An order that is walked from end to end."""
        return cls(cut=table.offsets[:-1].copy(), step=np.zeros(table.stages, np.int64), count=0, lookback=0, settled=0)

    @property
    def passes(self) -> int:
        """Passes of all periods together."""
        return self.count * int(self.step.sum())


@lru_cache(maxsize=512)
def find(table: Table) -> Periods:
    """The periods of an order; `count` is 0 when there are too few to be worth it."""
    links, best, least = table.links, Periods.none(table), 0
    for shift in _shifts(table):
        if least and shift % least == 0:  # the same periods, several at a time
            continue
        count, cut, step, lookback, settled = _with_shift(
            table.offsets, table.kind, table.stage, table.micro_batch, table.overlaps_next, links.source, links.rank,
            shift,
        )  # fmt: skip
        found = Periods(cut=cut, step=step, count=count, lookback=lookback, settled=settled)
        if found.passes > best.passes:
            best, least = found, shift
    return best


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


@njit(cache=True)
def _with_shift(offsets, kind, stage, micro, pair, source, rank, shift):  # type: ignore[no-untyped-def]
    """Cut the order into periods of `shift` micro-batches: how many, where each rank's begin and how long they are,
    how far they look back and from when on; 0 of them where there are too few.
    """
    p = len(offsets) - 1
    begin, end, step = np.empty(p, np.int64), np.empty(p, np.int64), np.empty(p, np.int64)
    for r in range(p):
        begin[r], end[r], step[r] = _longest_run(offsets[r], offsets[r + 1], kind, stage, micro, pair, shift)
        if step[r] == 0:
            return 0, begin, step, 0, 0
    cut = _close(offsets, source, rank, pair, begin, step)
    count = np.int64(len(kind))
    for r in range(p):
        count = min(count, (end[r] - cut[r]) // step[r])
    if count < 4:
        return 0, cut, step, 0, 0
    lookback, settled = _reach(source, rank, cut, step, count)
    if lookback < 0 or count <= lookback + settled + 2:
        return 0, cut, step, 0, 0
    return count, cut, step, lookback, settled


@njit(cache=True)
def _longest_run(low, high, kind, stage, micro, pair, shift):  # type: ignore[no-untyped-def]
    """First row, end row and length in rows of the periods of one rank, around its middle; length 0 if there are none.

    A period reaches from a forward of the rank's first stage to the one `shift` micro-batches later.
    """
    forwards = 0
    for i in range(low, high):
        forwards += kind[i] == 0 and stage[i] == stage[low]
    first, last, seen = -1, -1, 0
    for i in range(low, high):
        if kind[i] == 0 and stage[i] == stage[low]:
            if seen == forwards // 2:
                first = i
            if seen == forwards // 2 + shift:
                last = i
                break
            seen += 1
    if last < 0:
        return low, low, 0
    step, begin, end = last - first, first, first
    while end + step < high and _is_later(end, end + step, kind, stage, micro, pair, shift):
        end += 1
    if end == first:
        return low, low, 0
    while begin > low and _is_later(begin - 1, begin - 1 + step, kind, stage, micro, pair, shift):
        begin -= 1
    return begin, end + step, step


@njit(cache=True, inline="always")
def _is_later(i, j, kind, stage, micro, pair, shift):  # type: ignore[no-untyped-def]
    """Whether row j is row i of `shift` micro-batches later."""
    return kind[j] == kind[i] and stage[j] == stage[i] and micro[j] == micro[i] + shift and pair[j] == pair[i]


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


@njit(cache=True)
def _reach(source, rank, cut, step, count):  # type: ignore[no-untyped-def]
    """How many periods back inputs come from, and the first period from which on all inputs repeat; or -1 twice."""
    n = len(source)
    period = np.empty(n, np.int64)
    for i in range(n):
        period[i] = (i - cut[rank[i]]) // step[rank[i]]
    settled = 1
    for i in range(n):
        k, j = period[i], source[i]
        if k < 0 or k >= count:
            continue
        if j >= 0 and period[j] > k:
            return -1, -1
        if k >= settled:
            before = source[i - step[rank[i]]]
            if (before + step[rank[before]] if before >= 0 else -1) != j:
                settled = k + 1
    lookback = np.int64(1)
    for i in range(n):
        j = source[i]
        if period[i] >= settled and j >= 0 and period[j] >= 0:
            lookback = max(lookback, min(period[i], count) - period[j])
    return lookback, settled


def run_columns(table: Table, duration: Floats, hops: Floats, *, skip_periods: bool = True) -> tuple[Floats, Floats]:
    """Makespan and span of one order for rows of costs: `duration[kind, stage of both copies, row]`, `hops` likewise.

    Overlapped pairs run one after the other. `skip_periods=False` walks every pass. A hop is 0 behind the last stage of
    a copy and between stages of one rank.
    """
    cut = find(table) if skip_periods else Periods.none(table)
    stages, rows = hops.shape
    is_sorted = cut.count > 0 and stages > 1 and rows > batch_kernels.LANES
    order = _alike_first(duration) if is_sorted else np.arange(rows)
    result: tuple[Floats, Floats] = batch_kernels.run_rows(
        *_laid_out(table, skip_periods), cut.count, duration, hops, order
    )
    return result


def _alike_first(duration: Floats) -> Ints:
    """Rows in the order of how much slower their slowest stage is than the one after it.

    The less it is, the longer it takes until all ranks have its pace; a block of lanes takes as long as its slowest.
    """
    second, most = np.partition(duration[0] + duration[3], (-2, -1), axis=0)[-2:]
    return np.argsort(second / np.maximum(most, TINY))


@lru_cache(maxsize=512)
def _laid_out(table: Table, skip_periods: bool) -> tuple[Any, ...]:
    """The order as it is walked, as `batch_kernels.run_rows` takes it; of requested passes, (periods back, place)."""
    cut, links = find(table) if skip_periods else Periods.none(table), table.links
    *laid_out, needed, places = batch_kernels.lay_out(
        table.offsets, table.kind, table.stage, links.source, links.hop, links.rank, links.order,
        cut.cut, cut.step, cut.count, cut.lookback, cut.settled, len(table.rank_of_stage),
    )  # fmt: skip
    backs, ends = np.nonzero(needed)
    # From all over the ranks first: whoever looks for a difference finds it soon.
    order = np.argsort(np.arange(len(ends)) * GOLDEN % 1.0)
    return *laid_out, np.stack((backs[order], ends[order] * batch_kernels.LANES), axis=1), places
