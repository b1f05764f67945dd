# mypy: allow-untyped-defs
"""Greedy insertion: each micro-batch of a V order takes the earliest free time of its ranks.

For pipelines whose pace is set by memory: with room for few activations every wait of a micro-batch keeps a place
occupied on all ranks it has passed. A path that repeats for every micro-batch must wait wherever it meets itself again;
laid one by one, the micro-batches settle into rounds of several whose paths cross without waiting. Each one takes the
path that ends first, and of the starts that end equally soon the latest one, so that it holds its place for short.

Every pass goes into the first free time of its rank that is long enough, the weight gradients after the path is laid.
A forward waits until its activations fit from then on, those of the micro-batches before it being known to the end.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.simulation.pass_kernels import B, F, W

TRIES = 10
"""Starts that are tried for every micro-batch, over the time of one period of work."""

HASTE = 0.1
"""How much later a micro-batch may end for every unit of time that it begins later."""


@njit(cache=True)
def insert_greedily(p, m, duration, hops, activation, limit, work, gap):
    """Makespan and columns of the order, 6m rows per rank; infinite where a micro-batch does not fit.

    `work`: of the busiest rank per micro-batch; `gap`: least time between two starts.
    """
    stages = 2 * p
    begin, end = np.empty((p, 6 * m)), np.empty((p, 6 * m))
    what, booked = np.empty((p, 6 * m), np.int64), np.zeros(p, np.int64)
    since, until, units = np.empty((p, 2 * m)), np.empty((p, 2 * m)), np.empty((p, 2 * m))
    alive = np.zeros(p, np.int64)
    first, second = np.zeros(p), np.zeros(p)
    path, best = np.empty(2 * stages), np.empty(2 * stages)
    kind, stage, micro = np.empty(6 * p * m, np.int8), np.empty(6 * p * m, np.int16), np.empty(6 * p * m, np.int32)
    earliest, fuzz = 0.0, 1e-9 * work
    for i in range(m):
        for r in range(p):
            need = activation[r] + activation[stages - 1 - r]
            if need > limit + 1e-9:
                return np.inf, kind, stage, micro
            alive[r] = _forget(since[r], until[r], units[r], alive[r], earliest)
            first[r], second[r] = _room(
                since[r], until[r], units[r], alive[r], limit - activation[r], limit - need, fuzz
            )
        start, least = max(earliest, first[0]), np.inf
        for _ in range(TRIES):
            finish = _travel(p, start, duration, hops, first, second, begin, end, booked, path, fuzz)
            cost = finish + HASTE * (finish - path[0])
            if cost < least - fuzz:
                least = cost
                best[:] = path
            start = max(start, path[0]) + work / TRIES
        for x in range(2 * stages):
            s, r, k = _step(x, p)
            _book(begin[r], end[r], what[r], booked[r], best[x], duration[k, s], (k * stages + s) * m + i)
            booked[r] += 1
        for x in range(stages, 2 * stages):
            s, r, _ = _step(x, p)
            t = _free(begin[r], end[r], booked[r], best[x] + duration[B, s], duration[W, s], fuzz)
            _book(begin[r], end[r], what[r], booked[r], t, duration[W, s], (W * stages + s) * m + i)
            booked[r] += 1
            since[r, alive[r]], until[r, alive[r]], units[r, alive[r]] = best[s], t + duration[W, s], activation[s]
            alive[r] += 1
        earliest = best[0] + gap
    for row in range(6 * p * m):
        code = what[row // (6 * m), row % (6 * m)]
        kind[row], stage[row], micro[row] = code // (stages * m), code // m % stages, code % m
    return end.max(), kind, stage, micro


@njit(cache=True)
def _step(x, p):
    """Stage, rank and kind of the x-th pass of a path: down and up the V forwards, then back the same way."""
    s = x if x < 2 * p else 4 * p - 1 - x
    return s, min(s, 2 * p - 1 - s), F if x < 2 * p else B


@njit(cache=True)
def _travel(p, start, duration, hops, first, second, begin, end, booked, path, fuzz):
    """End of the path of a micro-batch that enters at `start` and waits nowhere longer than it must.

    `first`, `second`: from when on a rank has room for its stage on the way down, and for both.
    """
    t = start
    for x in range(4 * p):
        s, r, k = _step(x, p)
        if k == F:
            t = max(t, first[r] if x < p else second[r])
        path[x] = _free(begin[r], end[r], booked[r], t, duration[k, s], fuzz)
        t = path[x] + duration[k, s]
        if k == F and s < 2 * p - 1:
            t += hops[s]
        elif k == B and s > 0:
            t += hops[s - 1]
    return t


@njit(cache=True)
def _free(begin, end, n, t, length, fuzz):
    """The earliest start from t on at which a rank with n booked passes, in time order, is free for so long."""
    i = n
    while i > 0 and end[i - 1] > t + fuzz:
        i -= 1
    while i < n and begin[i] < t + length - fuzz:
        t = max(t, end[i])
        i += 1
    return t


@njit(cache=True)
def _book(begin, end, what, n, t, length, code):
    """Put a pass where it belongs in time."""
    i = n
    while i > 0 and begin[i - 1] > t:
        begin[i], end[i], what[i] = begin[i - 1], end[i - 1], what[i - 1]
        i -= 1
    begin[i], end[i], what[i] = t, t + length, code


@njit(cache=True)
def _forget(since, until, units, n, now):
    """Drop activations that are released by now; how many stay."""
    kept = 0
    for i in range(n):
        if until[i] > now:
            since[kept], until[kept], units[kept] = since[i], until[i], units[i]
            kept += 1
    return kept


@njit(cache=True)
def _room(since, until, units, n, one, both, fuzz):
    """From when on a rank holds no more than `one`, and no more than `both`, of the activations it is known to take."""
    first, second = 0.0, 0.0
    for i in range(n - 1, -1, -1):
        t = until[i]
        if t > first:
            held = 0.0
            for j in range(n):
                if since[j] < t - fuzz and until[j] >= t - fuzz:
                    held += units[j]
            if held > both + 1e-9:
                second = max(second, t)
            if held > one + 1e-9:
                first = t
    return first, second
