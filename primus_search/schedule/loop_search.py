"""The fastest order of the loop placement within a memory limit, in milliseconds however long the pipeline runs.

Contestants are published patterns with their weight gradients woven in, the same with each W a fixed number of
gradients late, the zero-bubble paper's own search, and orders dispatched in time under several policies. Patterns win
where costs are even, the others where they are not; the first to reach the lower bound ends the contest.

A long run is decided on a short one: warm-up, steady pace and cool-down all show within a few times p micro-batches,
and the best orders are then run with as many more of their own periods as it takes (`extend`). Small pipelines get a
local search on single passes at the end.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from primus_search.schedule.anneal import anneal
from primus_search.schedule.bounds import bound
from primus_search.schedule.dispatch import POLICIES, Dispatched, Policy, as_table, dispatch
from primus_search.schedule.extend import extended
from primus_search.schedule.lag import lagged
from primus_search.schedule.registry import TOLERANCE, Objective, Request
from primus_search.schedule.simulate import peak_activations, run
from primus_search.schedule.table import Table
from primus_search.schedule.weave import patiences, weave
from primus_search.schedule.zb_heuristic import HABITS, heuristic

Patterns = Callable[[Request], Iterable[Table]]
"""Fused orders for the number of micro-batches of a request."""

SHORT = 4
"""Micro-batches of the short run, in units of the pipeline's ranks."""

CONTEST_ROWS = 150_000
"""Passes that all contestants together may place, plus `ROWS_PER_PASS` for every pass of the pipeline; about 5 ms."""

ROWS_PER_PASS = 3

DISPATCH_WEIGHT = 8
"""How much longer dispatching a pass takes than weaving it."""

FINALISTS = 2
"""Orders of the short run that are run in full."""

POLISH_WORK = 1_000_000
"""Row evaluations that the local search at the end may spend, about 10 ms; only small pipelines have one."""

CLOSE = 1e-9
"""Relative distance to the lower bound that counts as reaching it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """An order's times and how to write it down."""

    makespan: float
    span: float
    cost: int
    table: Callable[[], Table]

    def score(self, objective: Objective, grain: float) -> tuple[int, int]:
        """What decides, rounded so that float noise does not."""
        times = (round(self.makespan / grain), round(self.span / grain))
        return times if objective is Objective.MAKESPAN else times[::-1]


def fastest_loop(request: Request, limit: float, patterns: Patterns) -> Table:
    """The best order found whose activations stay within `limit`; "best" is the request's objective.

    Raises `ScheduleError` when not even one micro-batch fits.
    """
    short = replace(request, microbatches=_short_run(request))
    best = _best(short, limit, patterns)
    if not best:
        raise request.refuse(f"no order holds as little as {limit:g} micro-batches of activations")
    if short.microbatches == request.microbatches:
        return _polished(request, best[0], limit)
    longer = [extended(each.table(), request.microbatches) for each in best]
    finalists = [_as_run(request, table, cost=2) for table in longer if table is not None]
    # The paper's own search is fast enough to run in full, so that no public ZB order can be better.
    finalists += _published(request, limit)
    if not finalists:
        finalists = _best(request, limit, patterns)
    return min(finalists, key=_by(request)).table()


def own_limit(request: Request, units: float) -> float:
    """The memory a schedule defines for itself, or the caller's limit if that is tighter."""
    return min(request.memory_limit, units + TOLERANCE)


def _short_run(request: Request) -> int:
    """Micro-batches of the contest: enough to show all phases, and as many modulo 2p so that periods fill the rest."""
    base, step = SHORT * request.stages, 2 * request.stages
    return min(request.microbatches, base + (request.microbatches - base) % step)


def _by(request: Request) -> Callable[[Contestant], tuple[int, int]]:
    grain = 1e-11 * request.microbatches * float(request.costs.duration[:3].sum()) or 1.0
    return lambda contestant: contestant.score(request.objective, grain)


def _best(request: Request, limit: float, patterns: Patterns) -> list[Contestant]:
    """The finalists, best first; only the winner where it reaches the lower bound."""
    floor = bound(request, limit) if request.objective is Objective.MAKESPAN else _least_span(request)
    rows = 3 * request.stages * request.virtual_stages * request.microbatches
    left = CONTEST_ROWS + ROWS_PER_PASS * rows
    found: list[Contestant] = []
    for each in _contestants(request, limit, patterns):
        found.append(each)
        reached = each.makespan if request.objective is Objective.MAKESPAN else each.span
        if reached <= floor * (1.0 + CLOSE):
            return [each]
        left -= each.cost * rows
        if left <= 0:
            break
    return sorted(found, key=_by(request))[:FINALISTS]


def _least_span(request: Request) -> float:
    """A span no order can beat: the work of the busiest rank."""
    work = request.costs.duration[:3].sum(axis=0).reshape(request.virtual_stages, request.stages).sum(axis=0)
    return request.microbatches * float(work.max())


def _contestants(request: Request, limit: float, patterns: Patterns) -> Iterator[Contestant]:
    """Orders within the limit, roughly in the order of what they add to the ones before them."""
    fused = list(patterns(request))
    policies = _policies(request)
    yield from _woven(request, limit, fused[:1])
    yield from _published(request, limit)
    yield from _dispatched(request, limit, policies[:1])
    yield from _lagged(request, limit, fused)
    yield from _woven(request, limit, fused[1:])
    yield from _dispatched(request, limit, policies[1:])


def _woven(request: Request, limit: float, patterns: list[Table]) -> Iterator[Contestant]:
    for pattern in patterns:
        for patience in patiences(request.stages):
            woven = weave(request, pattern, limit, patience)
            if woven is None:
                break
            yield Contestant(makespan=woven.makespan, span=woven.span, cost=1, table=woven.table)


def _lagged(request: Request, limit: float, patterns: list[Table]) -> Iterator[Contestant]:
    for pattern in patterns:
        table = lagged(pattern, np.arange(request.stages))
        if peak_activations(table, request.costs.activation).max() <= limit + TOLERANCE:
            yield _as_run(request, table, cost=2)


def _published(request: Request, limit: float) -> Iterator[Contestant]:
    for habits in HABITS if request.virtual_stages == 1 else ():
        order = heuristic(request, habits, limit, half_at_b=False)
        if order is not None:
            table = partial(as_table, request, order.kind, order.stage, order.micro_batch)
            yield Contestant(makespan=order.makespan, span=order.span, cost=1, table=table)


def _dispatched(request: Request, limit: float, policies: list[Policy]) -> Iterator[Contestant]:
    for policy in policies:
        order = dispatch(request, policy, limit, half_at_b=False)
        if order is not None:
            table = as_table(request, order.kind, order.stage, order.micro_batch)
            yield _as_run(request, table, cost=DISPATCH_WEIGHT)


def _policies(request: Request) -> list[Policy]:
    """The policies that make sense here; where patterns lose it is to one that never waits."""
    usable = [policy for policy in POLICIES if request.virtual_stages > 1 or not policy.trusts_drain]
    return sorted(usable, key=lambda policy: policy.patience)


def _as_run(request: Request, table: Table, cost: int) -> Contestant:
    timeline = run(table, request.costs)
    return Contestant(makespan=timeline.makespan, span=timeline.span, cost=cost, table=partial(_same, table))


def _same(table: Table) -> Table:
    return table


def _polished(request: Request, winner: Contestant, limit: float) -> Table:
    """The order after local search on single passes, where the pipeline is small enough for it."""
    table = winner.table()
    if request.objective is Objective.SPAN:
        return table
    start = Dispatched(makespan=winner.makespan, kind=table.kind, stage=table.stage, micro_batch=table.micro_batch)
    found = anneal(request, start, limit, False, bound(request, limit), POLISH_WORK)
    if found.makespan >= winner.makespan * (1.0 - CLOSE):
        return table
    return as_table(request, found.kind, found.stage, found.micro_batch)
