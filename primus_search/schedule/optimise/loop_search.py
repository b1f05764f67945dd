"""The fastest order of the loop placement within a memory limit.

Candidates are published patterns with their weight gradients placed in the gaps, the same with each W a fixed number
of gradients late, the zero-bubble paper's own search, and orders dispatched in time under several policies. Patterns
win where costs are even, the others where they are not.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from primus_search.schedule.optimise.list_scheduling import POLICIES, Policy
from primus_search.schedule.optimise.portfolio import CandidateOrder, Rules, dispatched, fastest, weights_placed
from primus_search.schedule.optimise.split_backward import split_backward
from primus_search.schedule.optimise.zb_heuristic import CHOICES, heuristic
from primus_search.schedule.registry import Request
from primus_search.schedule.table import Table

Patterns = Callable[[Request], Iterable[Table]]
"""Fused orders for the number of micro-batches of a request."""

SHORT = 4
"""Micro-batches of the short run, in units of the pipeline's ranks; its periods can be as long as two such units."""

CHUNKED_ROWS, CHUNKED_ROWS_PER_PASS = 90_000, 2
"""Passes that candidates may place where ranks hold several chunks: two thirds of the usual, for 0.06 % of time."""


def fastest_loop(request: Request, limit: float, patterns: Patterns) -> Table:
    """The best order found whose activations stay within `limit`; "best" is the request's objective.

    The paper's own search is fast enough to run in full, so that no public ZB order can be better. Raises
    `ScheduleError` when not even one micro-batch fits.
    """
    rules = Rules(portfolio=partial(_portfolio, patterns), short=SHORT, step=2 * request.stages, in_full=_published)
    if request.virtual_stages > 1:
        rules = replace(rules, rows=CHUNKED_ROWS, rows_per_pass=CHUNKED_ROWS_PER_PASS)
    return fastest(request, limit, rules)


def _portfolio(patterns: Patterns, request: Request, limit: float) -> Iterator[CandidateOrder]:
    """Orders within the limit, roughly in the order of what they add to the ones before them."""
    fused = list(patterns(request))
    policies = _policies(request)
    has_chunks = request.virtual_stages > 1
    first = weights_placed(request, limit, fused[:1])
    yield from islice(first, 1)
    if has_chunks:
        yield from _lagging(request, limit, fused)
    yield from first
    yield from _published(request, limit)
    yield from dispatched(request, limit, policies[:1])
    if not has_chunks:
        yield from _lagging(request, limit, fused)
    yield from weights_placed(request, limit, fused[1:])
    yield from dispatched(request, limit, policies[1:])


def _lagging(request: Request, limit: float, patterns: list[Table]) -> Iterator[CandidateOrder]:
    """Each W a fixed number of gradients behind its own, as interleaved ZB1P of PyTorch places them.

    With a lag of r on rank r the ranks that hold fewer micro-batches use the rest of their memory to give their
    gradients on early.
    """
    never = np.full(request.stages, np.inf)
    for pattern in patterns:
        order = split_backward(request, pattern, limit, never, lag=np.arange(request.stages))
        if order is not None:
            yield CandidateOrder(makespan=order.makespan, span=order.span, cost=1, table=order.table)


def _published(request: Request, limit: float) -> Iterator[CandidateOrder]:
    for choices in CHOICES if request.virtual_stages == 1 else ():
        order = heuristic(request, choices, limit, half_at_b=False)
        if order is not None:
            yield order


def _policies(request: Request) -> list[Policy]:
    """The policies that make sense here; where patterns lose it is to one that never waits."""
    usable = [policy for policy in POLICIES if request.virtual_stages > 1 or not policy.trusts_drain]
    return sorted(usable, key=lambda policy: policy.delay_limit)
