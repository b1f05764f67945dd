# mypy: allow-untyped-defs
"""Compiled: one order walked for many rows of costs side by side, its steady part only until it repeats itself.

An end time is needed as long as a later pass may ask for it, so it has a place for just that long, and all that one
walk touches stays in the nearest cache: passes before and after the steady part take places from a common stock
(`stock`), those of the last few periods stand in a ring. `lay_out` writes the order down that way, once; `run_rows`
walks it. What the arrays of an order mean is in `table` and `periods`; who calls this is `batch`.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit

LANES = 32
"""Cost rows that are evaluated side by side; with fewer the compiler does not use the vector units."""

SNAPSHOTS = 2
"""Moments that later ones are compared with, the newest ones; each is half as late as the next one."""

ALIKE = 1e-12
"""Share of an end time that may be rounding."""


@njit(cache=True)
def lay_out(offsets, kind, stage, source, hop, rank, order, cut, step, count, lookback, settled, num_stages):
    """An order as blocks of passes: what comes before its periods, some periods, what comes after them.

    Returns per pass (rows, 5) the places of its own end, of the end of the pass before it on its rank, of that of its
    input, the number of the hop in between and of its own time; where each block begins; the number of the first period
    that stands for later ones, and how many do; the first place of the ring and the passes of a period; places of the
    first and the last pass of every rank; which ends of periods are `_asked` for; how many places there are.
    Place 0 is the beginning of time; a pass without input gets it over hop `num_stages`, which takes no time.
    """
    p, n = len(offsets) - 1, len(kind)
    length = step.sum() if count > 0 else 0
    ring = max(lookback, settled) + 1
    lead = settled + lookback
    periods = min(count, lead + ring)
    part = np.empty(n, np.int64)
    for i in range(n):
        at = i - cut[rank[i]]
        if count == 0 or at < 0:
            part[i] = -1
        else:
            part[i] = min(at // step[rank[i]], count)
    place, stock = _places(offsets, source, order, part, count)
    within = np.cumsum(step) - step
    for i in range(n):
        if 0 <= part[i] < count:
            r = rank[i]
            place[i] = stock + (part[i] % ring) * length + within[r] + (i - cut[r]) % step[r]
    begin = np.zeros(periods + 3, np.int64)
    for i in range(n):
        block = part[i] + 1 if part[i] < count else periods + 1
        if block <= periods or part[i] == count:
            begin[block + 1] += 1
    begin = np.cumsum(begin)
    following = begin[:-1].copy()
    rows = np.empty((begin[-1], 5), np.uint32)
    for i in order:
        block = part[i] + 1 if part[i] < count else periods + 1
        if block > periods and part[i] < count:
            continue
        to = following[block]
        following[block] += 1
        has_input = source[i] >= 0
        rows[to, 0] = place[i] * LANES
        rows[to, 1] = place[i - 1] * LANES if i > offsets[rank[i]] else 0
        rows[to, 2] = place[source[i]] * LANES if has_input else 0
        rows[to, 3] = (hop[i] if has_input else num_stages) * LANES
        rows[to, 4] = (kind[i] * num_stages + stage[i]) * LANES
    needed = _needed(offsets, source, rank, part, cut, step, within, length, count, lead, lookback)
    first, last = np.zeros((p, 2), np.int64), np.zeros(p, np.int64)
    for r in range(p):
        i = offsets[r]
        first[r, 0], last[r] = place[i] * LANES, place[offsets[r + 1] - 1] * LANES
        first[r, 1] = (kind[i] * num_stages + stage[i]) * LANES
    return rows, begin, lead, ring, stock, length, first, last, needed, stock + ring * length


@njit(cache=True)
def _places(offsets, source, order, part, count):
    """Places of the passes outside of the periods, each taken while somebody may ask for it, and how many there are."""
    n = len(source)
    # When a pass runs: before the periods by its turn, in them at `middle`, after them by its turn again.
    middle = np.int64(n)
    when = np.empty(n, np.int64)
    for turn, i in enumerate(order):
        when[i] = turn if part[i] < 0 else middle if part[i] < count else middle + turn
    until = np.full(n, 4 * n, np.int64)
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1] - 1):
            until[i] = when[i + 1]
        until[offsets[r]] = max(until[offsets[r]], middle)
    for i in range(n):
        if source[i] >= 0:
            until[source[i]] = max(until[source[i]], when[i])
    place, stock = np.zeros(n, np.int64), 1
    free, num_free, is_over = np.empty(n + 1, np.int64), 0, count == 0
    for i in order:
        if 0 <= part[i] < count:
            continue
        if part[i] == count and not is_over:
            is_over = True
            for j in range(n):
                if part[j] < 0 and until[j] == middle:
                    free[num_free] = place[j]
                    num_free += 1
        if num_free > 0:
            num_free -= 1
            place[i] = free[num_free]
        else:
            place[i] = stock
            stock += 1
        for used in (np.int64(i) - 1, np.int64(source[i])):
            if used >= 0 and until[used] == when[i] and (part[used] < 0 or part[used] == count):
                until[used] = -1
                free[num_free] = place[used]
                num_free += 1
    return place, stock


@njit(cache=True)
def _needed(offsets, source, rank, part, cut, step, within, length, count, lead, lookback):
    """Passes of the last periods whose ends a later pass needs, between two periods or behind the last one.

    (periods back from the last one, offset within a period)
    """
    needed = np.zeros((lookback, length), np.bool_)
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            if part[i] != lead and part[i] != count:
                continue
            for j in (np.int64(i) - 1 if i > offsets[r] else np.int64(-1), np.int64(source[i])):
                if j >= 0 and 0 <= part[j] < part[i]:
                    q = rank[j]
                    furthest = part[i] - 1 - part[j]
                    for back in range(furthest if part[i] == count else 0, furthest + 1):
                        needed[back, within[q] + (j - cut[q]) % step[q]] = True
        if 0 <= part[offsets[r + 1] - 1] < count:
            needed[0, within[r] + step[r] - 1] = True
    return needed


@njit(cache=True, inline="always")
def _advance(n, rows, end, time, wire):
    """Run a pass for all lanes.

    Flat arrays, unsigned offsets and no branch: with anything else the compiler does not vectorise, or asks at every
    pass whether it may; either costs a factor of 7.
    """
    to, behind, came = np.uint64(rows[n, 0]), np.uint64(rows[n, 1]), np.uint64(rows[n, 2])
    over, at = np.uint64(rows[n, 3]), np.uint64(rows[n, 4])
    for b in range(LANES):
        ready = end[np.uint64(came + b)] + wire[np.uint64(over + b)]
        free = end[np.uint64(behind + b)]
        end[np.uint64(to + b)] = (ready if ready > free else free) + time[np.uint64(at + b)]


@njit(cache=True)
def _walk(begin, stop, rows, end, time, wire):
    """Run a block of passes."""
    for n in range(begin, stop):
        _advance(n, rows, end, time, wire)


@njit(cache=True)
def _stand(k, ring, stock, length, live, at):
    """Where the live ends of the last periods before period k stand."""
    for e in range(len(live)):
        at[e] = (stock + (k - 1 - live[e, 0]) % ring * length) * LANES + live[e, 1]


@njit(cache=True)
def _load(rows_of_lanes, duration, hops, time, wire):
    """The costs of a block of rows, lane by lane; lanes beyond the last row repeat it."""
    num_stages, used = hops.shape[0], len(rows_of_lanes)
    for b in range(LANES):
        row = rows_of_lanes[min(b, used - 1)]
        for s in range(num_stages):
            wire[s * LANES + b] = hops[s, row]
            for k in range(4):
                time[(k * num_stages + s) * LANES + b] = duration[k, s, row]


@njit(cache=True)
def _begin(first, end, time, begun):
    """When every rank's first pass began, by lane."""
    for r in range(len(first)):
        for b in range(LANES):
            begun[r, b] = end[first[r, 0] + b] - time[first[r, 1] + b]


@njit(cache=True)
def _alike(now, then, end, witness, pace, same, was):
    """Of the lanes with `same`, those whose ends at `now` are those at `then`, one `pace` later; how many they are.

    witness  per lane what told them apart the last time: it is asked first, for it is likely to do so again
    """
    left = 0
    for b in range(LANES):
        pace[b] = end[now[0] + b] - end[then[0] + b]
        if same[b] > 0:
            at = end[now[witness[b]] + b]
            same[b] = 0 if abs(at - end[then[witness[b]] + b] - pace[b]) > ALIKE * at else 1
            left += same[b]
    for e in range(len(now)):
        if left == 0:
            return 0
        at, before, now_left = now[e], then[e], 0
        for b in range(LANES):
            off = abs(end[at + b] - end[before + b] - pace[b])
            was[b] = same[b]
            same[b] = 0 if off > ALIKE * end[at + b] else same[b]
            now_left += same[b]
        if now_left < left:
            left = now_left
            for b in range(LANES):
                if was[b] > same[b]:
                    witness[b] = e
    return left


@njit(cache=True)
def _find_period(k, at, then, end, taken, witness, cycle, pace, same, was, found_pace):
    """Fill in the cycle of lanes that repeat themselves, and the time it takes: by the period before, by snapshots."""
    for s in range(SNAPSHOTS + 1):
        if s < SNAPSHOTS and taken[s] < 0:
            continue
        for b in range(LANES):
            same[b] = 1 if cycle[b] == 0 else 0
        if _alike(at, then[s], end, witness[s], found_pace, same, was) > 0:
            for b in range(LANES):
                if same[b] > 0:
                    cycle[b], pace[b] = (k - taken[s] if s < SNAPSHOTS else 1), found_pace[b]


@njit(cache=True)
def _periods(begin, lead, ring, stock, length, first, live, places, count, rows, end, time, wire, begun):
    """Simulate periods until every lane repeats itself or all are over, and write the last ones down.

    A lane is over when it repeats itself and as many periods are left as a multiple of its cycle: its last periods are
    then those it just ran, so much later. So it does not depend on the lanes it is walked with.
    """
    cycle, over_at = np.zeros(LANES, np.int64), np.full(LANES, -1, np.int64)
    pace, found_pace = np.zeros(LANES), np.zeros(LANES)
    same, was = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    taken, witness = np.full(SNAPSHOTS, -1, np.int64), np.zeros((SNAPSHOTS + 1, LANES), np.int64)
    at, then, final = np.empty(len(live), np.int64), np.empty((SNAPSHOTS + 1, len(live)), np.int64), places * LANES
    for s in range(SNAPSHOTS):
        for e in range(len(live)):
            then[s, e] = (places + len(live) * (s + 1) + e) * LANES
    k, left, next_search, next_snapshot, newest = 0, LANES, lead + 1, lead, -1
    while k < count and left > 0:
        block = 1 + (k if k < lead else lead + (k - lead) % ring)
        _walk(begin[block], begin[block + 1], rows, end, time, wire)
        k += 1
        if k == 1:
            _begin(first, end, time, begun)
        if k < lead:
            continue
        _stand(k, ring, stock, length, live, at)
        if k == next_search:
            next_search += max(1, LANES // length)
            _stand(k - 1, ring, stock, length, live, then[SNAPSHOTS])
            _find_period(k, at, then, end, taken, witness, cycle, pace, same, was, found_pace)
            for b in range(LANES):
                if cycle[b] > 0 and over_at[b] < 0:
                    over_at[b] = k + (count - k) % cycle[b]
        for b in range(LANES):
            if over_at[b] == k:
                left -= 1
                for e in range(len(live)):
                    end[final + e * LANES + b] = end[at[e] + b]
        if k == next_snapshot:
            newest, next_snapshot = (newest + 1) % SNAPSHOTS, 2 * next_snapshot
            taken[newest] = k
            for e in range(len(live)):
                for b in range(LANES):
                    end[then[newest, e] + b] = end[at[e] + b]
    _stand(count, ring, stock, length, live, at)
    for b in range(LANES):
        if 0 <= over_at[b] <= k:
            later = (count - over_at[b]) // cycle[b] * pace[b]
            for e in range(len(live)):
                end[at[e] + b] = end[final + e * LANES + b] + later


@njit(cache=True)
def run_rows(rows, begin, lead, ring, stock, length, first, last, live, places, count, duration, hops, order):
    """Makespan and span of one order for many rows of costs: `duration[kind, stage, row]`, `hops[stage, row]`.

    A block of lanes takes rows as they stand in `order`.
    """
    num_rows, num_stages, ranks = hops.shape[1], hops.shape[0], len(first)
    makespan, span = np.zeros(num_rows), np.zeros(num_rows)
    end = np.zeros((places + (SNAPSHOTS + 1) * len(live)) * LANES)
    begun = np.empty((ranks, LANES))
    time, wire = np.empty(4 * num_stages * LANES), np.zeros((num_stages + 1) * LANES)
    blocks = len(begin) - 1
    for low in range(0, num_rows, LANES):
        block = order[low : low + LANES]
        _load(block, duration, hops, time, wire)
        _walk(begin[0], begin[1], rows, end, time, wire)
        if count > 0:
            _periods(begin, lead, ring, stock, length, first, live, places, count, rows, end, time, wire, begun)
        else:
            _begin(first, end, time, begun)
        _walk(begin[blocks - 1], begin[blocks], rows, end, time, wire)
        for b, row in enumerate(block):
            for r in range(ranks):
                over = end[last[r] + b]
                makespan[row] = max(makespan[row], over)
                span[row] = max(span[row], over - begun[r, b])
    return makespan, span
