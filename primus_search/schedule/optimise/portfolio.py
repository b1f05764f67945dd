"""The best of several orders within a memory limit, in milliseconds however long the pipeline runs.

Whoever knows the placement says which orders compete; the first one to reach the lower bound ends the portfolio. A long
run is decided on a short one: warm-up, steady pace and cool-down all show within a few times p micro-batches, and the
best orders are then run with as many more of their own periods as it takes (`extended`). Small pipelines get a local
search on single passes at the end.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from primus_search.schedule.bounds import bound
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.optimise.anneal import CLOSE, anneal
from primus_search.schedule.optimise.fill_gaps import delay_limits, split_backward
from primus_search.schedule.optimise.list_scheduling import dispatch
from primus_search.schedule.registry import TOLERANCE, Objective, Request
from primus_search.schedule.simulation.timeline import run
from primus_search.schedule.table import Table

PORTFOLIO_ROWS = 150_000
"""Passes that all candidates together may place, plus `ROWS_PER_PASS` for every pass of the pipeline; about 5 ms."""

ROWS_PER_PASS = 3

FINALISTS = 2
"""Orders of the short run that are run in full."""

POLISH_WORK = 1_000_000
"""Row evaluations that the local search at the end may spend, about 10 ms; only small pipelines have one."""

DISPATCH_WEIGHT = 8
"""How much longer dispatching a pass takes than placing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOrder:
    """An order's times and how to write it down; `cost`: the time to find it, in placements of its passes."""

    makespan: float
    span: float
    cost: int
    table: Callable[[], Table]

    def score(self, request: Request) -> tuple[int, int]:
        """What decides, rounded so that float noise does not."""
        grain = request.grain
        times = (round(self.makespan / grain), round(self.span / grain))
        return times if request.objective is Objective.MAKESPAN else times[::-1]


Portfolio = Callable[[Request, float], Iterator[CandidateOrder]]
"""Orders within a limit on activations, roughly in the order of what they add to the ones before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a portfolio goes.

    `short`: micro-batches of the short run, in units of the pipeline's ranks; `step`: of how many micro-batches what
    is left is to be a multiple, so that whole periods fill it; `in_full`: candidates that enter at full length, beside
    the finalists of the short run, as far as they may beat given times; `rows`, `rows_per_pass`: passes that candidates
    may place, in all and for every pass of the pipeline; `polish`: row evaluations of the local search.
    """

    portfolio: Portfolio
    short: int
    step: int
    in_full: Callable[..., Iterator[CandidateOrder]] | None = None
    rows: int = PORTFOLIO_ROWS
    rows_per_pass: int = ROWS_PER_PASS
    polish: int = POLISH_WORK


def fastest(request: Request, limit: float, rules: Rules) -> Table:
    """The best order found whose activations stay within `limit`; "best" is the request's objective.

    Raises `ScheduleError` when not even one micro-batch fits.
    """
    short = replace(request, microbatches=_short_run(request, rules))
    best = _best(short, limit, rules)
    if not best:
        raise request.refuse(_why_none(request, limit))
    if short.microbatches == request.microbatches:
        return _polished(request, best[0], limit, rules.polish)
    longer = [extended(each.table(), request.microbatches) for each in best]
    finalists = [as_run(request, table, cost=2) for table in longer if table is not None]
    pace = best[0].makespan / short.microbatches * (1.0 + CLOSE)
    if not any(each.makespan <= pace * request.microbatches for each in finalists):  # its periods do not fit together
        finalists += _best(request, limit, rules)
    if rules.in_full is not None:
        beaten = [(each.makespan, each.span) for each in sorted(finalists, key=by_score(request))[:1]]
        finalists += rules.in_full(request, limit, *beaten)
    return min(finalists, key=by_score(request)).table()


def _why_none(request: Request, limit: float) -> str:
    """Why no order fits: the rank that cannot hold one micro-batch, where there is one."""
    needs = np.bincount(request.ranks, weights=request.costs.activation)
    worst = int(needs.argmax())
    if needs[worst] > limit + TOLERANCE:
        return (
            f"rank {worst} needs {needs[worst]:g} micro-batches of activations for a single one to pass, "
            f"the memory limit is {limit:g}"
        )
    return f"every order tried holds more than {limit:g} micro-batches of activations on some rank"


def _short_run(request: Request, rules: Rules) -> int:
    """Micro-batches of the portfolio: enough to show all phases, the rest a whole number of steps."""
    base = rules.short * request.stages
    return min(request.microbatches, base + (request.microbatches - base) % rules.step)


def by_score(request: Request) -> Callable[[CandidateOrder], tuple[int, int]]:
    """Sorts candidates, best first."""
    return lambda candidate: candidate.score(request)


def _best(request: Request, limit: float, rules: Rules) -> list[CandidateOrder]:
    """The finalists, best first; only the winner where it reaches the lower bound."""
    floor = bound(request, limit) if request.objective is Objective.MAKESPAN else _least_span(request)
    rows = 3 * request.stages * request.virtual_stages * request.microbatches
    left = rules.rows + rules.rows_per_pass * rows
    found: list[CandidateOrder] = []
    for each in rules.portfolio(request, limit):
        found.append(each)
        reached = each.makespan if request.objective is Objective.MAKESPAN else each.span
        if reached <= floor * (1.0 + CLOSE):
            return [each]
        left -= each.cost * rows
        if left <= 0:
            break
    return sorted(found, key=by_score(request))[:FINALISTS]


def _least_span(request: Request) -> float:
    """A span no order can beat: the work of the busiest rank."""
    work = request.costs.duration[:3].sum(axis=0)
    return request.microbatches * float(max(work[stages].sum() for stages in request.stages_of_rank))


def weights_placed(request: Request, limit: float, patterns: Iterable[Table]) -> Iterator[CandidateOrder]:
    """Fused orders with their weight gradients placed more and less patiently."""
    for pattern in patterns:
        for delay_limit in delay_limits(request.stages):
            order = split_backward(request, pattern, limit, delay_limit)
            if order is None:
                break
            yield CandidateOrder(makespan=order.makespan, span=order.span, cost=1, table=order.table)


def dispatched(request: Request, limit: float) -> Iterator[CandidateOrder]:
    """The order formed in time, which fits wherever a micro-batch does."""
    table = dispatch(request, limit)
    if table is not None:
        yield as_run(request, table, cost=DISPATCH_WEIGHT)


def as_run(request: Request, table: Table, cost: int) -> CandidateOrder:
    """An order as it is."""
    timeline = run(table, request.costs)
    return CandidateOrder(makespan=timeline.makespan, span=timeline.span, cost=cost, table=lambda: table)


def _polished(request: Request, winner: CandidateOrder, limit: float, work: int) -> Table:
    """The order after local search on single passes, where the pipeline is small enough for it."""
    table = winner.table()
    if request.objective is Objective.SPAN:
        return table
    return anneal(request, table, winner.makespan, limit, bound(request, limit), work)


# --- longer runs of an order: more of the periods that it repeats, everything else as it is ---------------------------


def extended(table: Table, microbatches: int) -> Table | None:
    """The order for more micro-batches; None where it does not repeat in a way that gives this number."""
    more = microbatches - table.microbatches
    if more == 0:
        return table
    rows = len(table) // table.stages
    per_micro = rows // table.microbatches
    if table.has_pairs or per_micro * table.microbatches * table.stages != len(table):
        return None
    for shift in _shifts(more, table.microbatches // 2):
        cuts = _cuts(table.kind, table.stage, table.micro_batch, table.stages, shift * per_micro, shift)
        if cuts[-1] < 0:
            continue
        longer = _longer(table, cuts, shift, shift * per_micro, more // shift, microbatches)
        if longer.is_finite:
            return longer
    return None


def _shifts(more: int, most: int) -> list[int]:
    """Micro-batches per period that divide what is missing, few first."""
    return [shift for shift in range(1, min(more, most) + 1) if more % shift == 0]


def _longer(table: Table, cuts: np.ndarray, shift: int, step: int, times: int, microbatches: int) -> Table:
    """The order with the period at each rank's cut run `times` more often."""
    own = np.arange(len(table)).reshape(table.stages, -1)
    rows, turns = [], []
    for mine, cut in zip(own, cuts, strict=False):
        rows += [mine[:cut], np.tile(mine[cut : cut + step], times), mine[cut:]]
        turns += [np.zeros(cut), np.repeat(np.arange(times), step), np.full(len(mine) - cut, times)]
    at = np.concatenate(rows)
    return replace(
        table,
        microbatches=microbatches,
        offsets=np.arange(table.stages + 1, dtype=np.int64) * (len(at) // table.stages),
        kind=table.kind[at],
        stage=table.stage[at],
        micro_batch=(table.micro_batch[at] + shift * np.concatenate(turns)).astype(np.int32),
        overlaps_next=np.zeros(len(at), dtype=np.bool_),
    )


@njit(cache=True)
def _cuts(kind, stage, micro, p, step, shift):  # type: ignore[no-untyped-def]
    """Per rank the first row of a period that can be repeated; the last entry is -1 if there is none.

    Row i repeats when row i + step is the same pass, `shift` micro-batches later. The period begins on every rank with
    the forward of the same micro-batch, so that what is put in fits together: the middle one of the longest stretch of
    micro-batches from which all ranks repeat.
    """
    rows = len(kind) // p
    m = micro.max() + 1
    cuts, repeats, begins = np.full(p + 1, -1, np.int64), np.zeros(m, np.int64), np.empty((p, m), np.int64)
    for r in range(p):
        low, run = r * rows, 0
        for i in range(low + rows - step - 1, low - 1, -1):
            j = i + step
            same = kind[i] == kind[j] and stage[i] == stage[j] and micro[i] + shift == micro[j]
            run = run + 1 if same else 0
            if kind[i] == 0 and stage[i] == stage[low]:
                begins[r, micro[i]] = i - low
                repeats[micro[i]] += run >= step
    longest, stretch, best = 0, 0, -1
    for j in range(m):
        stretch = stretch + 1 if repeats[j] == p else 0
        if stretch > longest:
            longest, best = stretch, j - stretch // 2
    if best >= 0:
        cuts[:p] = begins[:, best]
        cuts[p] = 0
    return cuts
