"""All schedules side by side for one pipeline: time, memory, distance to the bound, and which ones are worth having."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from primus_search.base.errors import ScheduleError
from primus_search.schedule.bounds import lower_bound
from primus_search.schedule.costs import Costs
from primus_search.schedule.registry import TOLERANCE, Algorithm, Asked, build, registered
from primus_search.schedule.simulation.timeline import Timeline, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One schedule at the requested pipeline, or the reason why there is none.

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


Conditions = Callable[[Algorithm, int], tuple[Costs, float | None]]
"""Costs and memory limit under an algorithm with that many chunks per rank. Raises `ScheduleError` where it cannot be
used at all."""


def compare(
    *, stages: int, microbatches: int, virtual_stages: int, costs: Costs, memory_limit: float | None = None
) -> list[Compared]:
    """Every registered schedule, fastest first, those without an order last.

    `virtual_stages` is for schedules that take any number of chunks; the others use the number they are defined for.
    """
    return compare_under(
        lambda *_: (costs, memory_limit), stages=stages, microbatches=microbatches, virtual_stages=virtual_stages
    )


def compare_under(conditions: Conditions, *, stages: int, microbatches: int, virtual_stages: int) -> list[Compared]:
    """`compare` where costs and memory depend on the schedule: a model is cut by the number of virtual stages."""
    rows = []
    for algorithm in registered():
        chunks = virtual_stages if algorithm.virtual_stages is None else algorithm.virtual_stages[0]
        # Kernels are compiled or loaded by the first that uses them, which is not its own time.
        _one(algorithm, 2, 4, chunks, conditions)
        rows.append(_one(algorithm, stages, microbatches, chunks, conditions))
    rows.sort(key=lambda row: (row.makespan, row.peak, row.name))
    return _with_frontier(rows)


def best_within(rows: Sequence[Compared], memory_limit: float | None) -> Compared | None:
    """The fastest schedule whose activations fit; of equally fast ones the leanest."""
    limit = float("inf") if memory_limit is None else memory_limit
    fitting = [row for row in rows if row.timeline is not None and row.peak <= limit + TOLERANCE]
    return min(fitting, key=lambda row: (round(row.makespan, 9), row.peak, row.name), default=None)


def _one(algorithm: Algorithm, stages: int, microbatches: int, chunks: int, conditions: Conditions) -> Compared:
    name, begin = algorithm.name, time.perf_counter()
    try:
        costs, memory_limit = conditions(algorithm, chunks)
        pipeline: Asked = {"stages": stages, "microbatches": microbatches, "virtual_stages": chunks, "costs": costs,
                        "memory_limit": memory_limit}  # fmt: skip
        table = build(name, **pipeline)
        timeline = simulate(table, costs)
    except ScheduleError as error:
        return Compared(name=name, summary=algorithm.summary, timeline=None, bound=0.0,
                        seconds=time.perf_counter() - begin, reason=str(error))  # fmt: skip
    seconds = time.perf_counter() - begin
    bound = lower_bound(name, **pipeline)
    return Compared(name=name, summary=algorithm.summary, timeline=timeline, bound=bound, seconds=seconds, reason="")


def _with_frontier(rows: list[Compared]) -> list[Compared]:
    """Mark, in rows sorted by makespan, those that need less memory than all faster ones."""
    marked, least = [], float("inf")
    for row in rows:
        better = row.timeline is not None and row.peak < least - TOLERANCE
        least = min(least, row.peak)
        marked.append(replace(row, on_frontier=better))
    return marked
