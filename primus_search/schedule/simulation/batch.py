"""One order at thousands of rows of costs: what the search asks for every candidate that shares a schedule."""

from functools import lru_cache
from typing import Any

from primus_search.schedule.costs import Floats
from primus_search.schedule.simulation import batch_kernels
from primus_search.schedule.simulation.periods import Periods, find
from primus_search.schedule.table import Table


def run_columns(table: Table, duration: Floats, hops: Floats, *, skip_periods: bool = True) -> tuple[Floats, Floats]:
    """Makespan and span of one order for rows of costs: `duration[kind, stage of both copies, row]`, `hops` likewise.

    Overlapped pairs run one after the other. `skip_periods=False` walks every pass. A hop is 0 behind the last stage of
    a copy and between stages of one rank.
    """
    cut = find(table) if skip_periods else Periods.none(table)
    makespan, span, _ = batch_kernels.run_rows(*_laid_out(table, skip_periods), cut.count, duration, hops)
    return makespan, span


@lru_cache(maxsize=256)
def _laid_out(table: Table, skip_periods: bool) -> tuple[Any, ...]:
    """The order as it is walked; see `batch_kernels.lay_out`."""
    cut, links = find(table) if skip_periods else Periods.none(table), table.links
    result: tuple[Any, ...] = batch_kernels.lay_out(
        table.offsets, table.kind, table.stage, links.source, links.hop, links.rank, links.order,
        cut.cut, cut.step, cut.count, cut.lookback, cut.settled, len(table.rank_of_stage),
    )  # fmt: skip
    return result
