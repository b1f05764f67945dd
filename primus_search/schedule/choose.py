"""Pick the best of several orders of one algorithm for the costs and the memory that were asked for."""

from collections.abc import Iterable

from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulate import Timeline, run
from primus_search.schedule.table import Table


def fastest(request: Request, candidates: Iterable[Table]) -> Table:
    """The order with the least makespan, then span, then peak, among those that fit; raises when none does."""
    best: tuple[tuple[float, float, float], Table] | None = None
    leanest = float("inf")
    # Scores are rounded to this, so that orders that differ by float noise tie and the leaner one wins.
    grain = 1e-10 * request.microbatches * float(request.costs.duration.sum())
    for table in candidates:
        timeline = run(table, request.costs)
        peak = float(timeline.peak_activations.max())
        leanest = min(leanest, peak)
        if peak > request.memory_limit + TOLERANCE:
            continue
        score = _score(timeline, grain)
        if best is None or score < best[0]:
            best = (score, table)
    if best is None:
        raise request.refuse(
            f"the leanest order holds {leanest:g} micro-batches of activations, "
            f"the memory limit is {request.memory_limit:g}"
        )
    return best[1]


def _score(timeline: Timeline, grain: float) -> tuple[float, float, float]:
    peak = float(timeline.peak_activations.max())
    if grain == 0.0:
        return (0.0, 0.0, peak)
    return (round(timeline.makespan / grain), round(timeline.span / grain), peak)
