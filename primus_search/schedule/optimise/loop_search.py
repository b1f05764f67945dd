"""The fastest order of the loop placement within a memory limit.

Candidates are published patterns with their weight gradients placed in the gaps, the same with each W a fixed number
of gradients late, the zero-bubble paper's own search, and orders dispatched in time under several policies. Patterns
win where costs are even, the others where they are not.

The zero-bubble paper's automatic scheduling: one forward, one input gradient in turn, W where a rank would idle.

Rounds instead of events: round i runs one forward on the ranks that want one, then input gradient i on every rank
from the last to the first. Three yes-or-no choices (`CHOICES`) make eight orders; the best of them, by the objective,
is the paper's ZB-1p or ZB-2p. Source: Qi et al. 2023 (arXiv:2401.10241), section 3.1.
Valid: one stage per rank. Table 5 of the paper follows to four decimals.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, product

import numpy as np

from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.optimise.fill_gaps import split_backward
from primus_search.schedule.optimise.portfolio import CandidateOrder, Rules, dispatched, fastest, weights_placed
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.simulation.timeline import peak_activations
from primus_search.schedule.table import Table

Times = tuple[float, float]
"""Makespan and span."""
UNBEATEN: Times = (np.inf, np.inf)

CHOICES = tuple(product((False, True), repeat=3))
"""What the paper's grid search chooses: eager, yields, spares.

eager     warm-up: one more forward even where it delays the first input gradient
yields    a rank two forwards ahead of the next one may skip a forward that would make that one's gradient late
spares    a gap shorter than a W stays empty while this rank idled less than the one that idled most
"""


def heuristic(
    request: Request, choices: tuple[bool, ...], limit: float, half_at_b: bool, best: Times = UNBEATEN
) -> CandidateOrder | None:
    """The order of some choices within `limit` activations per rank; None where it does not fit or is no better than
    `best`."""
    costs = request.costs
    released = 0.5 if half_at_b else 0.0
    makespan, span, *columns = _rounds(
        request.stages, request.microbatches, costs.duration[:3], costs.comm, costs.activation,
        np.array([1.0, -released, released - 1.0]), min(limit, 1e18) + TOLERANCE,
        *best, *choices,
    )  # fmt: skip
    if not np.isfinite(makespan):
        return None
    return CandidateOrder(makespan=makespan, span=span, cost=1, table=partial(request.table, *columns))


def best_of_the_grid(request: Request, limit: float, half_at_b: bool) -> Table:
    """The order of the choices that serve the request's objective best, the leanest of equals.

    Raises `ScheduleError` when none fits.
    """
    found = [heuristic(request, choices, limit, half_at_b) for choices in CHOICES]
    fitting = [order for order in found if order is not None]
    if not fitting:
        raise request.refuse(f"one micro-batch does not fit a memory limit of {limit:g} micro-batches of activations")
    tables = [(order.score(request), order.table()) for order in fitting]
    return min(tables, key=lambda found: (found[0], float(peak_activations(found[1]).max())))[1]


@njit(cache=True)
def _forwards_first(end, clock, held, gain, duration, comm, limit, eager):  # type: ignore[no-untyped-def]
    """Forwards each rank runs after its first one and before its first input gradient."""
    p, m = len(clock), end.shape[2]
    more = np.zeros(p, np.int64)
    first_b = end[F, p - 1, 0] + duration[B, p - 1]
    for r in range(p - 2, -1, -1):
        at, full = clock[r], held[r]
        first_b += comm[r]
        while 1 + more[r] < m and full + gain[F, r] <= limit:
            if (at >= first_b) if eager else (at + duration[F, r] > first_b):
                break
            full += gain[F, r]
            at += duration[F, r]
            more[r] += 1
        first_b = max(at, first_b) + duration[B, r]
    for r in range(1, p):
        # At least one forward fewer than the rank before, so that its forwards never wait, unless that one runs all.
        more[r] = max(0, min(more[r], more[r - 1] - (1 + more[r - 1] < m)))
    return more


@njit(cache=True)
def _skips(r, done, clock, spare, full, gain, duration, comm, limit):  # type: ignore[no-untyped-def]
    """Whether rank r leaves out a forward because the next rank's gradient would come before the forward ends.

    `full`: activations with that forward; `spare`: how much less this rank idled than the one that idled most.
    """
    back = clock[r + 1] + duration[F, r + 1] + duration[B, r + 1] + comm[r]
    at = clock[r]
    if at >= back:
        return True
    weights = done[B, r] - done[W, r]
    while full > limit and weights > 0:
        at += duration[W, r]
        full += gain[W, r]
        weights -= 1
    return at + duration[F, r] > back and back - clock[r] <= spare


@njit(cache=True)
def _weights_before(full, limit, released, at, ready, one, waiting, spare):  # type: ignore[no-untyped-def]
    """Weight gradients that run before a pass: to make room, and where the rank would wait for the input.

    `full`: activations with the pass, `released` by one W of time `one`; the rank is free `at`, its input `ready`. A
    gap of at most `spare` that is shorter than a W stays empty. -1 where there is no room.
    """
    n = 0
    while full > limit and n < waiting:
        at += one
        full += released
        n += 1
    if full > limit:
        return -1
    while n < waiting and at + one <= ready:
        at += one
        n += 1
    if n < waiting and ready - at > max(0.0, spare):
        n += 1
    return n


@njit(cache=True)
def _rounds(p, m, duration, comm, weight, share, limit, makespan, span, eager, yields, spares):  # type: ignore[no-untyped-def]
    """Makespan, span and columns of the order; infinite times where it does not fit the memory, or what its ranks have
    left to do takes them to a given makespan and span."""
    kind, micro = np.empty(3 * p * m, np.int8), np.empty(3 * p * m, np.int32)
    stage = np.repeat(np.arange(p), 3 * m).astype(np.int16)
    gain = share.reshape(3, 1) * weight.reshape(1, p)
    done, end, row = np.zeros((3, p), np.int64), np.zeros((2, p, m)), np.arange(p) * 3 * m
    clock, idle, held = np.zeros(p), np.zeros(p), np.zeros(p)
    least, least_span = 0.0, 0.0
    forwards, most_idle = np.ones(p, np.int64), 0.0
    # Two rounds of warm-up, each with forwards only: one on every rank, then as many as fit before the first gradient.
    for i in range(-2, m):
        if i == -1:
            forwards = _forwards_first(end, clock, held, gain, duration, comm, limit, eager)
        if i >= 0:
            for r in range(p):
                forwards[r] = 1 if i > 0 and done[F, r] < m else 0
                if forwards[r] and yields and r + 1 < p and done[F, r] >= done[F, r + 1] + 2:
                    spare, full = most_idle - idle[r], held[r] + gain[F, r]
                    if _skips(r, done, clock, spare, full, gain, duration, comm, limit):
                        forwards[r] = 0
            for r in range(p - 2, -1, -1):
                forwards[r] = min(forwards[r], forwards[r + 1])
        for turn in range(2 * p if i >= 0 else p):
            k, r = (F, turn) if turn < p else (B, 2 * p - 1 - turn)
            for _ in range(forwards[r] if k == F else 1):
                j, ready, waiting = done[k, r], 0.0, done[B, r] - done[W, r]
                if k == F and r > 0:
                    ready = end[F, r - 1, j] + comm[r - 1]
                elif k == B and r + 1 < p:
                    ready = end[B, r + 1, j] + comm[r]
                spare = most_idle - idle[r] if spares else 0.0
                weights = _weights_before(
                    held[r] + gain[k, r], limit, gain[W, r], clock[r], ready, duration[W, r], waiting, spare
                )
                if weights < 0:
                    return np.inf, np.inf, kind, stage, micro
                if k == B and r == 0 and done[F, r] == m:
                    weights = waiting
                for n in range(weights):
                    kind[row[r]], micro[row[r]] = W, done[W, r] + n
                    row[r] += 1
                    clock[r] += duration[W, r]
                done[W, r] += weights
                held[r] += weights * gain[W, r] + gain[k, r]
                start = max(clock[r], ready)
                if done[F, r] > 0:
                    idle[r] += start - clock[r]
                    most_idle = max(most_idle, idle[r])
                clock[r] = start + duration[k, r]
                end[k, r, j] = clock[r]
                kind[row[r]], micro[row[r]] = k, j
                row[r] += 1
                done[k, r] = j + 1
                over = clock[r]
                for q in range(3):
                    over += (m - done[q, r]) * duration[q, r]
                least = max(least, over)
                least_span = max(least_span, over - end[F, r, 0] + duration[F, r])
                if least >= makespan and least_span >= span:
                    return np.inf, np.inf, kind, stage, micro
    span = 0.0
    for r in range(p):
        for j in range(done[W, r], m):
            kind[row[r]], micro[row[r]] = W, j
            row[r] += 1
            clock[r] += duration[W, r]
        span = max(span, clock[r] - end[F, r, 0] + duration[F, r])
    return clock.max(), span, kind, stage, micro


Patterns = Callable[[Request], Iterable[Table]]
"""Fused orders for the number of micro-batches of a request."""

SHORT = 4
"""Micro-batches of the short run, in units of the pipeline's ranks; its periods can be as long as two such units."""


def fastest_loop(request: Request, limit: float, patterns: Patterns) -> Table:
    """The best order found whose activations stay within `limit`; "best" is the request's objective.

    The paper's own search is fast enough to run in full, so that no public ZB order can be better. Raises
    `ScheduleError` when not even one micro-batch fits.
    """
    rules = Rules(portfolio=partial(_portfolio, patterns), short=SHORT, step=2 * request.stages, in_full=_published)
    return fastest(request, limit, rules)


def _portfolio(patterns: Patterns, request: Request, limit: float) -> Iterator[CandidateOrder]:
    """Orders within the limit, roughly in the order of what they add to the ones before them."""
    fused = list(patterns(request))
    first = weights_placed(request, limit, fused[:1])
    yield from islice(first, 1)
    if request.virtual_stages > 1:
        yield from _lagging(request, limit, fused)
    yield from first
    yield from _published(request, limit)
    yield from dispatched(request, limit)
    yield from weights_placed(request, limit, fused[1:])


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


def _published(request: Request, limit: float, best: Times = UNBEATEN) -> Iterator[CandidateOrder]:
    for choices in CHOICES if request.virtual_stages == 1 else ():
        order = heuristic(request, choices, limit, half_at_b=False, best=best)
        if order is not None:
            yield order
