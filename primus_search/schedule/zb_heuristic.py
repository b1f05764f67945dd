"""The zero-bubble paper's automatic scheduling: one forward, one input gradient in turn, W where a rank would idle.

Rounds instead of events: round i runs one forward on the ranks that want one, then input gradient i on every rank
from the last to the first. Three yes-or-no choices (`Habits`) make eight orders; the best of them, by the objective,
is the paper's ZB-1p or ZB-2p. Source: Qi et al. 2023 (arXiv:2401.10241), section 3.1.
Valid: one stage per rank. Table 5 of the paper follows to four decimals.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numba import njit

from primus_search.schedule.dispatch import Dispatched, as_table
from primus_search.schedule.registry import TOLERANCE, Objective, Request
from primus_search.schedule.table import Table

F, B, W = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What the paper's grid search chooses.

    eager     warm-up: one more forward even where it delays the first input gradient
    yields    a rank two forwards ahead of the next one may skip a forward that would make that one's gradient late
    spares    a gap shorter than a W stays empty while this rank idled less than the one that idled most
    """

    eager: bool
    yields: bool
    spares: bool


HABITS = tuple(Habits(eager=e, yields=y, spares=s) for e, y, s in product((False, True), repeat=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(Dispatched):
    """An order with its span."""

    span: float


def heuristic(request: Request, habits: Habits, limit: float, half_at_b: bool) -> Ordered | None:
    """The order of one choice of habits within `limit` activations per rank; None where it does not fit."""
    costs = request.costs
    released = 0.5 if half_at_b else 0.0
    makespan, span, kind, stage, micro_batch = _rounds(
        request.stages, request.microbatches, costs.duration[:3], costs.comm, costs.activation,
        np.array([1.0, -released, released - 1.0]), min(limit, 1e18) + TOLERANCE,
        habits.eager, habits.yields, habits.spares,
    )  # fmt: skip
    if not np.isfinite(makespan):
        return None
    return Ordered(makespan=makespan, span=span, kind=kind, stage=stage, micro_batch=micro_batch)


def best_of_the_grid(request: Request, limit: float, half_at_b: bool) -> Table:
    """The order of the habits that serve the request's objective best. Raises `ScheduleError` when none fits."""
    found = [heuristic(request, habits, limit, half_at_b) for habits in HABITS]
    fitting = [order for order in found if order is not None]
    if not fitting:
        raise request.refuse(f"one micro-batch does not fit a memory limit of {limit:g} micro-batches of activations")
    best = min(fitting, key=lambda order: _score(order, request.objective))
    return as_table(request, best.kind, best.stage, best.micro_batch)


def _score(order: Ordered, objective: Objective) -> tuple[float, float]:
    times = (order.makespan, order.span)
    return times if objective is Objective.MAKESPAN else times[::-1]


@njit(cache=True)
def _arrival(k, r, done, end, comm):  # type: ignore[no-untyped-def]
    """When the input of the next F or B of rank r is there; 0 where it comes from this rank itself."""
    j = done[k, r]
    if k == F and r > 0:
        return end[F, r - 1, j] + comm[r - 1]
    if k == B and r + 1 < done.shape[1]:
        return end[B, r + 1, j] + comm[r]
    return 0.0


@njit(cache=True)
def _put(k, r, done, end, clock, idle, held, change, duration, comm, kind, micro):  # type: ignore[no-untyped-def]
    """Run the next pass of a kind on a rank."""
    m = end.shape[2]
    j = done[k, r]
    start = clock[r]
    if k != W:
        start = max(start, _arrival(k, r, done, end, comm))
    if done[F, r] > 0:
        idle[r] += start - clock[r]
    clock[r] = start + duration[k, r]
    if k != W:
        end[k, r, j] = clock[r]
    held[r] += change[k, r]
    row = 3 * m * r + done[0, r] + done[1, r] + done[2, r]
    kind[row], micro[row] = k, j
    done[k, r] = j + 1


@njit(cache=True)
def _forwards_first(p, m, end, clock, held, change, duration, comm, limit, eager):  # type: ignore[no-untyped-def]
    """Forwards each rank runs after its first one and before its first input gradient."""
    more = np.zeros(p, np.int64)
    first_b = end[F, p - 1, 0] + duration[B, p - 1]
    for r in range(p - 2, -1, -1):
        at, full = clock[r], held[r]
        first_b += comm[r]
        while 1 + more[r] < m and full + change[F, r] <= limit:
            if (at >= first_b) if eager else (at + duration[F, r] > first_b):
                break
            full += change[F, r]
            at += duration[F, r]
            more[r] += 1
        first_b = max(at, first_b) + duration[B, r]
    for r in range(1, p):
        # At least one forward fewer than the rank before, so that its forwards never wait.
        more[r] = max(0, min(more[r], more[r - 1] - 1)) if 1 + more[r] < m else more[r]
    return more


@njit(cache=True)
def _skips(r, done, clock, idle, held, change, duration, comm, limit):  # type: ignore[no-untyped-def]
    """Whether rank r leaves out a forward because the next rank's gradient would come before the forward ends."""
    if done[F, r] < done[F, r + 1] + 2:
        return False
    back = clock[r + 1] + duration[F, r + 1] + duration[B, r + 1] + comm[r]
    if clock[r] >= back:
        return True
    full, at = held[r] + change[F, r], clock[r]
    weights = done[B, r] - done[W, r]
    while full > limit and weights > 0:
        at += duration[W, r]
        full += change[W, r]
        weights -= 1
    return at + duration[F, r] > back and back - clock[r] <= idle.max() - idle[r]


@njit(cache=True)
def _rounds(p, m, duration, comm, weight, share, limit, eager, yields, spares):  # type: ignore[no-untyped-def]
    """Makespan, span and columns of the order; infinite times where it does not fit the memory."""
    kind, micro = np.empty(3 * p * m, np.int8), np.empty(3 * p * m, np.int32)
    stage = np.repeat(np.arange(p), 3 * m).astype(np.int16)
    change = share.reshape(3, 1) * weight.reshape(1, p)
    done, end = np.zeros((3, p), np.int64), np.zeros((2, p, m))
    clock, idle, held = np.zeros(p), np.zeros(p), np.zeros(p)
    wanted = np.zeros(p, np.bool_)
    for r in range(p):
        _put(F, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
        if held[r] > limit:
            return np.inf, np.inf, kind, stage, micro
    more = _forwards_first(p, m, end, clock, held, change, duration, comm, limit, eager)
    for r in range(p):
        for _ in range(more[r]):
            _put(F, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
    for i in range(m):
        for r in range(p):
            wanted[r] = i > 0 and done[F, r] < m
            if wanted[r] and yields and r + 1 < p:
                wanted[r] = not _skips(r, done, clock, idle, held, change, duration, comm, limit)
        for r in range(p - 2, -1, -1):
            wanted[r] = wanted[r] and wanted[r + 1]
        for turn in range(2 * p):
            k, r = (F, turn) if turn < p else (B, 2 * p - 1 - turn)
            if k == F and not wanted[r]:
                continue
            while held[r] + change[k, r] > limit and done[W, r] < done[B, r]:
                _put(W, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
            if held[r] + change[k, r] > limit:
                return np.inf, np.inf, kind, stage, micro
            ready = _arrival(k, r, done, end, comm) if i > 0 else 0.0
            while done[W, r] < done[B, r] and clock[r] + duration[W, r] <= ready:
                _put(W, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
            gap = ready - clock[r]
            if done[W, r] < done[B, r] and gap > 0.0 and not (spares and gap <= idle.max() - idle[r]):
                _put(W, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
            if k == B and r == 0 and done[F, r] == m:
                while done[W, r] < done[B, r]:
                    _put(W, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
            _put(k, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
    span = 0.0
    for r in range(p):
        while done[W, r] < m:
            _put(W, r, done, end, clock, idle, held, change, duration, comm, kind, micro)
        span = max(span, clock[r] - end[F, r, 0] + duration[F, r])
    return clock.max(), span, kind, stage, micro
