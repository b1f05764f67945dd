"""All schedules side by side for one pipeline: time, memory, distance to the bound, and which ones are worth having."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from primus_search.errors import ScheduleError
from primus_search.schedule.bounds import lower_bound
from primus_search.schedule.costs import Costs
from primus_search.schedule.registry import TOLERANCE, build, registered
from primus_search.schedule.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One schedule at the pipeline asked for, or the reason why there is none.

    `seconds`: to build and simulate. `gap_to_bound`: makespan over the bound of its placement and memory limit, less 1.
    `on_frontier`: no other schedule has less memory and is as fast, or is faster and has no more memory.
    """

    name: str
    summary: str
    timeline: Timeline | None
    bound: float
    seconds: float
    reason: str
    on_frontier: bool = False

    @property
    def peak(self) -> float:
        """Highest activations of any rank; infinite where there is no order."""
        return float("inf") if self.timeline is None else float(self.timeline.peak_activations.max())

    @property
    def makespan(self) -> float:
        """Makespan; infinite where there is no order."""
        return float("inf") if self.timeline is None else self.timeline.makespan

    @property
    def gap_to_bound(self) -> float:
        """How much longer than the bound, as a fraction."""
        return self.makespan / self.bound - 1.0 if self.bound > 0.0 else 0.0


def compare(
    *, stages: int, microbatches: int, virtual_stages: int, costs: Costs, memory_limit: float | None = None
) -> list[Compared]:
    """Every registered schedule, fastest first, those without an order last.

    `virtual_stages` is for schedules that take any number of chunks; the others use the number they are defined for.
    """
    rows = [
        _one(algorithm.name, algorithm.summary, stages, microbatches,
             virtual_stages if algorithm.virtual_stages is None else 1, costs, memory_limit)
        for algorithm in registered() if algorithm.in_comparison
    ]  # fmt: skip
    rows.sort(key=lambda row: (row.makespan, row.peak, row.name))
    return _with_frontier(rows)


def best_within(rows: Sequence[Compared], memory_limit: float | None) -> Compared | None:
    """The fastest schedule whose activations fit; of equally fast ones the leanest."""
    limit = float("inf") if memory_limit is None else memory_limit
    fitting = [row for row in rows if row.timeline is not None and row.peak <= limit + TOLERANCE]
    return min(fitting, key=lambda row: (round(row.makespan, 9), row.peak, row.name), default=None)


def _one(name: str, summary: str, stages: int, microbatches: int, virtual_stages: int, costs: Costs,
         memory_limit: float | None) -> Compared:  # fmt: skip
    begin = time.perf_counter()
    try:
        table = build(name, stages=stages, microbatches=microbatches, virtual_stages=virtual_stages, costs=costs,
                      memory_limit=memory_limit)  # fmt: skip
        timeline = simulate(table, costs)
    except ScheduleError as error:
        return Compared(name=name, summary=summary, timeline=None, bound=0.0, seconds=time.perf_counter() - begin,
                        reason=str(error))  # fmt: skip
    seconds = time.perf_counter() - begin
    bound = lower_bound(name, stages=stages, microbatches=microbatches, virtual_stages=virtual_stages, costs=costs,
                        memory_limit=memory_limit)  # fmt: skip
    return Compared(name=name, summary=summary, timeline=timeline, bound=bound, seconds=seconds, reason="")


def _with_frontier(rows: list[Compared]) -> list[Compared]:
    """Mark, in rows sorted by makespan, those that need less memory than all faster ones."""
    marked, least = [], float("inf")
    for row in rows:
        better = row.timeline is not None and row.peak < least - TOLERANCE
        least = min(least, row.peak)
        marked.append(replace(row, on_frontier=better))
    return marked
