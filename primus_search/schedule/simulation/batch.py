"""One order at thousands of rows of costs: what the search asks for every candidate that shares a schedule."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from primus_search.errors import ScheduleError
from primus_search.schedule.costs import Floats
from primus_search.schedule.simulation import batch_kernels
from primus_search.schedule.simulation.periods import Periods, find
from primus_search.schedule.simulation.timeline import Pairs
from primus_search.schedule.table import Table, rank_of_stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostColumns:
    """Costs of N candidates. Times are per virtual stage as they are, NOT divided by vpp.

    `forward`, `backward`, `weight`: (N, stages * vpp), or (N,) when all virtual stages of a candidate cost the same.
    `comm`: (N, stages * vpp - 1) per hop, or (N,) for all hops; hops inside a rank cost nothing whatever is given.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    comm: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchTimes:
    """Times of one order per row of costs: (N,), and the busy time of every rank: (N, stages)."""

    makespan: Floats
    span: Floats
    busy: Floats

    @property
    def bubble_ratio(self) -> Floats:
        """Share of all ranks' time up to the makespan in which they run nothing; 0 where nothing takes time."""
        capacity = self.makespan * self.busy.shape[1]
        return np.where(capacity > 0.0, 1.0 - self.busy.sum(axis=1) / np.where(capacity > 0.0, capacity, 1.0), 0.0)


def simulate_many(table: Table, costs: CostColumns, *, overlap: float = 0.0, pairs: Pairs = "sequential",
                  skip_periods: bool = True) -> BatchTimes:  # fmt: skip
    """Makespan, span and busy time of one order for every row of costs; what `simulate` returns, row by row.

    `overlap` as in `Costs`. `skip_periods=False` walks every pass: the test of the skipping compares both.
    """
    num_rows = max(np.shape(column)[0] for column in (costs.forward, costs.backward, costs.weight, costs.comm))
    stages = table.model_stages
    f, b, w = (
        _per_stage(name, column, num_rows, stages, table.copies)
        for name, column in (("forward", costs.forward), ("backward", costs.backward), ("weight", costs.weight))
    )
    duration = np.stack([f, b, w, b + w])
    hops = _per_hop(table, costs.comm, num_rows)
    makespan, span = run_columns(table, duration, hops, overlap, pairs == "atomic", skip_periods)
    busy = _busy(table, duration, overlap)
    for values in (makespan, span, busy):
        values.setflags(write=False)
    return BatchTimes(makespan=makespan, span=span, busy=busy)


def run_columns(
    table: Table, duration: Floats, hops: Floats, overlap: float = 0.0, atomic: bool = False, skip_periods: bool = True
) -> tuple[Floats, Floats]:
    """Makespan and span of one order for ready columns: `duration[kind, stage of both copies, row]`, `hops` likewise.

    A hop is 0 behind the last stage of a copy and between stages of one rank.
    """
    cut = find(table) if skip_periods else Periods.none(table)
    makespan, span, _ = batch_kernels.run_rows(
        *_laid_out(table, skip_periods), cut.count, duration, hops, overlap, atomic or overlap > 0.0
    )
    return makespan, span


@lru_cache(maxsize=256)
def _laid_out(table: Table, skip_periods: bool) -> tuple[Any, ...]:
    """The order as it is walked; see `batch_kernels.lay_out`."""
    cut, links = find(table) if skip_periods else Periods.none(table), table.links
    laid_out: tuple[Any, ...] = batch_kernels.lay_out(
        table.offsets, table.kind, table.stage, table.overlaps_next, links.source, links.hop, links.rank, links.order,
        cut.cut, cut.step, cut.count, cut.lookback, cut.settled, len(table.rank_of_stage),
    )  # fmt: skip
    return laid_out


def _per_stage(name: str, column: ArrayLike, num_rows: int, stages: int, copies: int) -> Floats:
    """A cost column as [stage of both copies, row], contiguous along the rows."""
    values = np.asarray(column, dtype=np.float64)
    if values.ndim == 1:
        values = np.repeat(values[:, None], stages, axis=1)
    if values.shape != (num_rows, stages):
        raise ScheduleError(f"costs.{name}: shape {values.shape}; give ({num_rows},) or ({num_rows}, {stages})")
    return np.ascontiguousarray(np.tile(values.T, (copies, 1)))


def _per_hop(table: Table, comm: ArrayLike, num_rows: int) -> Floats:
    """Hop times as [stage, row]; zero behind the last stage of a copy and between stages of one rank."""
    stages = table.model_stages
    values = np.asarray(comm, dtype=np.float64)
    if values.ndim == 1:
        values = np.repeat(values[:, None], max(0, stages - 1), axis=1)
    if values.shape != (num_rows, stages - 1):
        raise ScheduleError(f"costs.comm: shape {values.shape}; give ({num_rows},) or ({num_rows}, {stages - 1})")
    ranks = rank_of_stage(table.placement, table.stages, table.virtual_stages)[:stages]
    hops = np.zeros((stages, num_rows))
    hops[:-1] = np.where((ranks[:-1] != ranks[1:])[:, None], values.T, 0.0)
    return np.ascontiguousarray(np.tile(hops, (table.copies, 1)))


def _busy(table: Table, duration: NDArray[np.float64], overlap: float) -> Floats:
    per_stage = (duration[0] + duration[1] + duration[2]) * table.microbatches_per_copy
    busy = np.zeros((duration.shape[2], table.stages))
    for stage, rank in enumerate(table.rank_of_stage):
        busy[:, rank] += per_stage[stage]
    if overlap > 0.0:
        first = np.flatnonzero(table.overlaps_next)
        for i in first:
            times = duration[table.kind[i : i + 2], table.stage[i : i + 2]]
            busy[:, table.links.rank[i]] -= overlap * times.min(axis=0)
    return busy
