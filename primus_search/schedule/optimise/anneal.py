"""Local search on the order itself, for pipelines small enough to try many orders.

A move takes one pass out of its rank's list and puts it a few places away; it stands if activations stay within the
limit and the makespan does not get worse, or by chance (simulated annealing). The random numbers are our own
xorshift, seeded by the restart's number, so that an answer never depends on anything else.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.table import Table

MOST_ROWS = 1200
"""Above this many passes a move costs more time than it gains: the neighbourhood grows with the square."""

CLOSE = 1e-9
"""Relative difference of makespans that counts as none."""

RESTARTS = 12
TEMPERATURES = (0.02, 0.05, 0.1)
"""Starting temperatures of successive restarts, in units of the busiest rank's work per micro-batch."""


def anneal(request: Request, start: Table, makespan: float, limit: float, target: float, work: int) -> Table:
    """The best order found from `start`, `start` itself where nothing is better; at most `work` row evaluations.

    Stops early at a makespan of `target`.
    """
    n = len(start)
    if n > MOST_ROWS or makespan <= target + TOLERANCE:
        return start
    m, costs = request.microbatches, request.costs
    ranks = request.ranks
    num_stages = len(ranks)
    sequence = (start.kind.astype(np.int64) * num_stages + start.stage) * m + start.micro_batch
    unit = np.bincount(ranks, weights=costs.duration[:3].sum(axis=0)).max()
    moves = min(150_000, work // (RESTARTS * n))
    best, order, stale = makespan, sequence, 0
    for restart in range(RESTARTS):
        temperature = TEMPERATURES[restart % len(TEMPERATURES)] * float(unit)
        found, candidate = _anneal(
            order if restart % 4 == 3 else sequence, start.offsets, m,
            costs.duration[:3], costs.comm, costs.activation, limit, moves,
            temperature, restart + 1, target,
        )  # fmt: skip
        stale = 0 if found < best - TOLERANCE else stale + 1
        if found < best - TOLERANCE:
            best, order = float(found), candidate
        if best <= target + TOLERANCE or stale >= 6:
            break
    if best >= makespan * (1.0 - CLOSE):
        return start
    kind, stage, micro = order // (num_stages * m), (order // m) % num_stages, order % m
    return request.table(kind.astype(np.int8), stage.astype(np.int16), micro.astype(np.int32))


@njit(cache=True)
def _makespan(order, offsets, m, duration, comm, end, following, free):  # type: ignore[no-untyped-def]
    """Makespan of an order of pass numbers (kind * stages + stage) * m + micro-batch; infinite when it blocks."""
    p, num_stages = len(offsets) - 1, duration.shape[1]
    end[:] = -1.0
    following[:] = offsets[:p]
    free[:] = 0.0
    left = len(order)
    moved = True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            i = following[r]
            while i < offsets[r + 1]:
                op = order[i]
                k, s, j = op // (num_stages * m), (op // m) % num_stages, op % m
                t = free[r]
                if k == F and s > 0:
                    e = end[(s - 1) * m + j]
                    if e < 0.0:
                        break
                    t = max(t, e + comm[s - 1])
                elif k == B and s < num_stages - 1:
                    e = end[(num_stages + s + 1) * m + j]
                    if e < 0.0:
                        break
                    t = max(t, e + comm[s])
                t += duration[k, s]
                end[op] = t
                free[r] = t
                i += 1
                left -= 1
                moved = True
            following[r] = i
    return free.max() if left == 0 else np.inf


@njit(cache=True)
def _shift(order, a, b):  # type: ignore[no-untyped-def]
    """Take the entry at a out and put it in at b."""
    op = order[a]
    step = 1 if b > a else -1
    for i in range(a, b, step):
        order[i] = order[i + step]
    order[b] = op


@njit(cache=True)
def _keeps_chunk_order(order, a, b, per_kind):  # type: ignore[no-untyped-def]
    """Whether moving a to b leaves F, B and W of one chunk in their order."""
    chunk = order[a] % per_kind
    lo, hi = (a + 1, b + 1) if b > a else (b, a)
    for i in range(lo, hi):  # noqa: SIM110 - compiled code has no generators
        if order[i] % per_kind == chunk:
            return False
    return True


@njit(cache=True)
def _fits(order, lo, hi, m, num_stages, weight, limit):  # type: ignore[no-untyped-def]
    """Whether one rank's list stays within the limit on activations."""
    held = 0.0
    for i in range(lo, hi):
        k, s = order[i] // (num_stages * m), (order[i] // m) % num_stages
        if k == F:
            held += weight[s]
            if held > limit + 1e-9:
                return False
        elif k == W:
            held -= weight[s]
    return True


@njit(cache=True)
def _next_random(state):  # type: ignore[no-untyped-def]
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@njit(cache=True)
def _anneal(sequence, offsets, m, duration, comm, weight, limit, moves, temperature, seed, target):  # type: ignore[no-untyped-def]
    """Best makespan and order of one run with a linear cooling; steps of up to 3 or up to 12 places."""
    p, num_stages, n = len(offsets) - 1, duration.shape[1], len(sequence)
    end, following, free = np.empty(n), np.empty(p, np.int64), np.empty(p)
    order, best_order = sequence.copy(), sequence.copy()
    current = _makespan(order, offsets, m, duration, comm, end, following, free)
    best = current
    state = np.uint64(seed * 2654435761 + 88172645463325252)
    for move in range(moves):
        heat = temperature * (1.0 - move / moves)
        state = _next_random(state)
        a = np.int64(state >> np.uint64(33)) % n
        state = _next_random(state)
        x = np.int64(state >> np.uint64(33))
        step = 1 + (x % 3 if (x >> 4) % 2 else x % 12)
        r = np.searchsorted(offsets, a, side="right") - 1
        b = a - step if (x >> 10) % 2 else a + step
        b = min(max(b, offsets[r]), offsets[r + 1] - 1)
        if a == b or not _keeps_chunk_order(order, a, b, num_stages * m):
            continue
        _shift(order, a, b)
        value = np.inf
        if _fits(order, offsets[r], offsets[r + 1], m, num_stages, weight, limit):
            value = _makespan(order, offsets, m, duration, comm, end, following, free)
        state = _next_random(state)
        chance = (np.int64(state >> np.uint64(33)) % 1000003) / 1000003.0
        if value <= current or (value < np.inf and heat > 0.0 and chance < np.exp((current - value) / heat)):
            current = value
            if value < best - 1e-12:
                best = value
                best_order[:] = order
                if best <= target + 1e-9:
                    break
        else:
            _shift(order, b, a)
    return best, best_order
