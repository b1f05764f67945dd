"""Makespans of one order at many rows of costs, from columns per virtual stage: the test face of `run_columns`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.errors import ScheduleError
from primus_search.schedule.costs import Floats
from primus_search.schedule.simulation.batch import run_columns
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


def simulate_many(table: Table, costs: CostColumns, *, skip_periods: bool = True) -> tuple[Floats, Floats]:
    """Makespan and span of one order for every row of costs; what `simulate` returns, row by row."""
    num_rows = max(np.shape(column)[0] for column in (costs.forward, costs.backward, costs.weight, costs.comm))
    f, b, w = (
        _per_stage(name, column, num_rows, table.model_stages, table.copies)
        for name, column in (("forward", costs.forward), ("backward", costs.backward), ("weight", costs.weight))
    )
    hops = _per_hop(table, costs.comm, num_rows)
    return run_columns(table, np.stack([f, b, w, b + w]), hops, skip_periods=skip_periods)


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
