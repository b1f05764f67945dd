"""Exact times of one order at one set of costs.

Semantics: every rank runs its list in order, one pass at a time, as soon as it is free and the inputs are there.
F(s, i) needs F(s-1, i) + comm; B(s, i) needs B(s+1, i) + comm, on the last stage its own F; W needs its B. A fused BW
takes B + W and its input gradient leaves at its end. Communication blocks nobody.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import ScheduleError
from primus_search.schedule.costs import Costs, Floats, StageCosts
from primus_search.schedule.simulation import pass_kernels
from primus_search.schedule.table import PassKind, Table

Pairs = Literal["sequential", "atomic"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """When every pass of a table ran, in the unit of the costs; row i is row i of the table."""

    table: Table
    start: Floats
    end: Floats
    busy: Floats
    peak_activations: Floats
    peak_activations_half_at_b: Floats

    @property
    def makespan(self) -> float:
        """End of the last pass; rank 0 starts at 0."""
        return float(self.end.max())

    @property
    def span(self) -> float:
        """Longest time of a rank from its first start to its last end: the zero-bubble papers' cost."""
        first, last = self.table.offsets[:-1], self.table.offsets[1:] - 1
        return float((self.end[last] - self.start[first]).max())

    @property
    def bubble_ratio(self) -> float:
        """Share of all ranks' time up to the makespan in which they run nothing."""
        return float(1.0 - self.busy.sum() / (self.table.stages * self.makespan)) if self.makespan > 0 else 0.0


def simulate(table: Table, costs: Costs, *, pairs: Pairs = "sequential") -> Timeline:
    """Run an order. Raises `ScheduleError` when it is incomplete or can never finish.

    `pairs`: how an overlapped F&B pair (DualPipe) runs: one after the other, or as one pass that waits for both
    inputs and ends both at once. `costs.overlap` > 0 credits the overlap and always means the latter.
    """
    return run(table, costs.per_stage(table.placement, table.stages, table.virtual_stages), pairs)


def run(table: Table, costs: StageCosts, pairs: Pairs = "sequential") -> Timeline:
    """`simulate` for costs that are already expanded per virtual stage."""
    links, ranks = table.links, table.rank_of_stage
    if len(costs.forward) != len(ranks):
        raise ScheduleError(f"costs have {len(costs.forward)} virtual stages, the table has {len(ranks)}")
    duration = costs.duration
    start, end = pass_kernels.run_once(
        table.kind, table.stage, table.overlaps_next, links.source, links.hop, links.rank, links.order,
        table.stages, duration, costs.comm, costs.overlap, pairs == "atomic" or costs.overlap > 0.0,
    )  # fmt: skip
    peak, peak_half = pass_kernels.count_peaks(table.offsets, table.kind, table.stage, costs.activation)
    for values in (start, end, peak, peak_half):
        values.setflags(write=False)
    return Timeline(
        table=table,
        start=start,
        end=end,
        busy=busy_per_rank(table, duration, costs.overlap),
        peak_activations=peak,
        peak_activations_half_at_b=peak_half,
    )


def busy_per_rank(table: Table, duration: Floats, overlap: float) -> Floats:
    """Time each rank computes; every micro-batch runs every stage once, fused or not. Hidden time counts once."""
    per_stage = (duration[PassKind.F] + duration[PassKind.B] + duration[PassKind.W]) * table.microbatches_per_copy
    busy = np.bincount(table.rank_of_stage, weights=per_stage, minlength=table.stages).astype(np.float64)
    if overlap > 0.0:
        first = np.flatnonzero(table.overlaps_next)
        time = duration[table.kind, table.stage]
        hidden = overlap * np.minimum(time[first], time[first + 1])
        busy = busy - np.bincount(table.links.rank[first], weights=hidden, minlength=table.stages)
    return busy


def peak_activations(table: Table, activation: NDArray[np.float64] | None = None) -> Floats:
    """Highest activations held per rank, released at W, in units of one micro-batch through one full rank.

    Order only: no costs needed. `activation` overrides the 1/vpp that each virtual stage keeps.
    """
    even = np.full(len(table.rank_of_stage), 1.0 / table.virtual_stages)
    weight = (even if activation is None else activation).view()
    weight.setflags(write=False)  # as those of costs: numba compiles a kernel anew for an array of another kind
    result: Floats = pass_kernels.count_peaks(table.offsets, table.kind, table.stage, weight)[0]
    return result
