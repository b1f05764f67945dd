# mypy: allow-untyped-defs
"""Compiled loops over the passes of a table: link, run once, run many rows, count activations.

Everything here works on plain arrays so that numba compiles it once and keeps the machine code on disk. The public
functions that call these kernels, and say what the arrays mean, are in `table`, `simulate` and `batch`.
"""

import numpy as np
from numba import njit

F, B, W, BW = 0, 1, 2, 3
LANES = 32
"""Cost rows that are evaluated side by side; fills the vector units and still fits the cache."""

GOOD, MISSING, OUT_OF_RANGE, WRONG_RANK, DUPLICATE, BAD_PAIR, OWN_LATER, DEADLOCK = range(8)


@njit(cache=True)
def link(offsets, kind, stage, micro_batch, pair, rank_of_stage, model_stages, num_micro):
    """Resolve what every row waits for, and find an order in which all rows can run.

    Returns verdict, three integers that explain a bad verdict, and per row: source row, hop, rank; and the order.
    One source per row is enough: W and the last stage's B wait for a pass of their own rank, and any other B waits
    for its own F through the stages behind it.
    """
    n, p = len(kind), len(offsets) - 1
    source = np.full(n, -1, np.int32)
    hop = np.zeros(n, np.int16)
    rank = np.empty(n, np.int16)
    order = np.empty(n, np.int32)
    for r in range(p):
        rank[offsets[r] : offsets[r + 1]] = r
    at = np.full((3, len(rank_of_stage), num_micro), -1, np.int32)
    verdict, a, b, c = _place(offsets, kind, stage, micro_batch, pair, rank_of_stage, at)
    if verdict == GOOD:
        verdict, a, b, c = _find_sources(at, model_stages, source, hop)
    if verdict == GOOD:
        verdict, a, b, c = _sequence(offsets, pair, source, order)
    return verdict, a, b, c, source, hop, rank, order


@njit(cache=True)
def _place(offsets, kind, stage, micro_batch, pair, rank_of_stage, at):
    """Write down in `at[kind, stage, micro-batch]` which row is that pass; BW is both B and W."""
    _, num_stages, num_micro = at.shape
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            k, s, j = kind[i], stage[i], micro_batch[i]
            if k < 0 or k > 3 or s < 0 or s >= num_stages or j < 0 or j >= num_micro:
                return OUT_OF_RANGE, i, 0, 0
            if rank_of_stage[s] != r:
                return WRONG_RANK, i, 0, 0
            for slot in range(B if k == BW else k, (W if k == BW else k) + 1):
                if at[slot, s, j] >= 0:
                    return DUPLICATE, i, at[slot, s, j], 0
                at[slot, s, j] = i
            if pair[i] and (k != F or i + 1 >= offsets[r + 1] or (kind[i + 1] != B and kind[i + 1] != BW)):
                return BAD_PAIR, i, 0, 0
    return GOOD, 0, 0, 0


@njit(cache=True)
def _find_sources(at, model_stages, source, hop):
    """Check that every pass is there and after those of its own rank, and find what it needs from other stages."""
    _, num_stages, num_micro = at.shape
    for s in range(num_stages):
        inside = s % model_stages
        for j in range(num_micro):
            for slot in range(3):
                if at[slot, s, j] < 0:
                    return MISSING, slot, s, j
            f, b, w = at[F, s, j], at[B, s, j], at[W, s, j]
            if f > b:
                return OWN_LATER, b, f, 0
            if b > w:
                return OWN_LATER, w, b, 0
            if inside > 0:
                source[f] = at[F, s - 1, j]
                hop[f] = s - 1
            if inside < model_stages - 1:
                source[b] = at[B, s + 1, j]
                hop[b] = s
    return GOOD, 0, 0, 0


@njit(cache=True)
def _sequence(offsets, pair, source, order):
    """Write down an order in which every row comes after its source: rank after rank, as far as each one gets."""
    n, p = len(source), len(offsets) - 1
    done = np.zeros(n, np.bool_)
    following = offsets[:p].copy()
    count = 0
    moved = True
    while moved and count < n:
        moved = False
        for r in range(p):
            i = following[r]
            while i < offsets[r + 1]:
                if source[i] >= 0 and not done[source[i]]:
                    break
                if pair[i] and source[i + 1] >= 0 and not done[source[i + 1]]:
                    break
                order[count] = i
                done[i] = True
                count += 1
                i += 1
                moved = True
            following[r] = i
    for r in range(p):
        i = following[r]
        if i < offsets[r + 1]:
            late = i if source[i] >= 0 and not done[source[i]] else i + 1
            return DEADLOCK, late, source[late], 0
    return GOOD, 0, 0, 0


@njit(cache=True)
def run_once(kind, stage, pair, source, hop, rank, order, p, duration, hops, sends, hidden, atomic, blocking):
    """Start and end of every row, from `duration[kind, stage]`, `hops[stage]` and `sends[kind, stage]`.

    `atomic`: an overlapped pair starts when both inputs are there, and both outputs leave at its end; it takes the
    sum less `hidden` times the shorter of the two. `blocking`: a rank waits until what it sends has arrived.
    """
    n = len(kind)
    start, end = np.empty(n), np.empty(n)
    free = np.zeros(p)
    skip = False
    for i in order:
        if skip:
            skip = False
            continue
        r = rank[i]
        t = free[r]
        if source[i] >= 0:
            t = max(t, end[source[i]] + hops[hop[i]])
        d = duration[kind[i], stage[i]]
        start[i] = t
        if atomic and pair[i]:
            if source[i + 1] >= 0:
                t = max(t, end[source[i + 1]] + hops[hop[i + 1]])
            d2 = duration[kind[i + 1], stage[i + 1]]
            start[i], start[i + 1] = t, t
            end[i] = t + d + d2 - hidden * min(d, d2)
            end[i + 1] = end[i]
            free[r] = end[i]
            if blocking:
                free[r] += max(sends[kind[i], stage[i]], sends[kind[i + 1], stage[i + 1]])
            skip = True
            continue
        end[i] = t + d
        free[r] = end[i]
        if blocking:
            free[r] += sends[kind[i], stage[i]]
    return start, end


@njit(cache=True)
def count_peaks(offsets, kind, stage, weight):
    """Highest held activations per rank, from the order alone: released after W, and half after B and half after W."""
    p = len(offsets) - 1
    peak, peak_half = np.zeros(p), np.zeros(p)
    for r in range(p):
        held, held_half = 0.0, 0.0
        for i in range(offsets[r], offsets[r + 1]):
            a = weight[stage[i]]
            if kind[i] == F:
                held += a
                held_half += a
                peak[r] = max(peak[r], held)
                peak_half[r] = max(peak_half[r], held_half)
            elif kind[i] == B:
                held_half -= 0.5 * a
            elif kind[i] == W:
                held -= a
                held_half -= 0.5 * a
            else:
                held -= a
                held_half -= a
    return peak, peak_half


@njit(cache=True)
def _places(offsets, kind, stage, source, hop, num_stages):
    """Where `_advance` finds, per row of an order: the pass before it, its input, the way of that, its own time.

    Row n of the end times is all zero, and so is the last row of ways: they stand for the time before a rank's first
    pass and for an input that is there from the start, so that no pass needs a branch.
    """
    n, p = len(kind), len(offsets) - 1
    before, from_, way = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint64)
    for i in range(n):
        has_input = source[i] >= 0
        before[i] = (i - 1) * LANES
        from_[i] = (source[i] if has_input else n) * LANES
        way[i] = (hop[i] if has_input else num_stages) * LANES
    before[offsets[:p][offsets[:p] < n]] = n * LANES
    own = ((kind.astype(np.int64) * num_stages + stage) * LANES).astype(np.uint64)
    return before, from_, way, own


@njit(cache=True, inline="always")
def _advance(i, places, end, time, wire):
    """Run row i for all lanes.

    Flat arrays, unsigned offsets and no branch: with anything else the compiler does not vectorise, or asks at every
    pass whether it may; either costs a factor of 7.
    """
    before, from_, way, own = places
    to, behind, came, over, at = np.uint64(i * LANES), before[i], from_[i], way[i], own[i]
    for b in range(LANES):
        ready = end[np.uint64(came + b)] + wire[np.uint64(over + b)]
        free = end[np.uint64(behind + b)]
        end[np.uint64(to + b)] = (ready if ready > free else free) + time[np.uint64(at + b)]


@njit(cache=True, inline="always")
def _advance_pair(i, places, end, time, wire, hidden):
    """Run rows i and i + 1 of all lanes as one; row i has run already, as if alone."""
    _, from_, way, own = places
    for b in range(LANES):
        first_s, second_s = time[own[i] + b], time[own[i + 1] + b]
        start = max(end[i * LANES + b] - first_s, end[from_[i + 1] + b] + wire[way[i + 1] + b])
        both = first_s + second_s - hidden * min(first_s, second_s)
        end[i * LANES + b] = start + both
        end[(i + 1) * LANES + b] = start + both


@njit(cache=True, inline="always")
def _repeats(b, k, c, back, j, pace, stride, end):
    """Whether in lane b pass j, `back` periods before the last of k, ends `pace` later than c periods earlier."""
    size = stride[j]
    at = (j + (k - 1 - back) * size) * LANES + b
    return not abs(end[at] - end[at - c * size * LANES] - pace) > 1e-12 * end[at]


@njit(cache=True)
def _cycle(b, k, oldest, most, lookback, period, stride, end, witness):
    """Smallest c such that in lane b the last `lookback` of k periods are those c earlier plus one time; or 0.

    witness  (lanes, 2) how far back and which pass did not repeat the last time; it is asked first, for what has not
             settled under one c has not under the next
    """
    size = stride[period[0]]
    at = (period[0] + (k - 1) * size) * LANES + b
    for c in range(1, most + 1):
        if k - c - lookback < oldest:
            return 0
        pace = end[at] - end[at - c * size * LANES]
        if not _repeats(b, k, c, witness[b, 0], witness[b, 1], pace, stride, end):
            continue
        same = True
        for back in range(lookback):
            for j in period:
                if not _repeats(b, k, c, back, j, pace, stride, end):
                    same = False
                    witness[b, 0], witness[b, 1] = back, j
                    break
            if not same:
                break
        if same:
            return c
    return 0


@njit(cache=True)
def run_rows(offsets, kind, stage, pair, source, hop, rank, prefix, period, suffix, step, count, lookback, settled,
             duration, hops, hidden, atomic):  # fmt: skip
    """Makespan and span of one order for many rows of costs: `duration[kind, stage, row]`, `hops[stage, row]`.

    Walks the prefix and as many periods as it takes until every lane repeats itself, each with its own cycle; then
    writes down the last periods of the steady part and walks the suffix. Also returns how many periods were walked,
    summed over blocks of lanes.
    """
    n, p, num_stages, num_rows = len(kind), len(offsets) - 1, hops.shape[0], hops.shape[1]
    makespan, span = np.empty(num_rows), np.empty(num_rows)
    end, time, wire = np.zeros((n + 1) * LANES), np.empty(4 * num_stages * LANES), np.zeros((num_stages + 1) * LANES)
    places, stride = _places(offsets, kind, stage, source, hop, num_stages), step[rank]
    walked = 0
    cycle, steady_at = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    witness = np.zeros((LANES, 2), np.int64)
    witness[:, 1] = period[0] if len(period) else 0
    for low in range(0, num_rows, LANES):
        used = min(LANES, num_rows - low)
        _load(low, used, duration, hops, time, wire)
        skip = _walk(prefix, 0, stride, -1, places, pair, end, time, wire, hidden, atomic)
        k, look, steady_lanes = 0, settled + lookback + 2, 0
        cycle[:] = 0
        while k < count and steady_lanes < LANES:
            skip = _walk(period, k, stride, skip, places, pair, end, time, wire, hidden, atomic)
            k += 1
            walked += 1
            if k == look and k + lookback < count:
                look += max(2, look // 3)
                for b in range(LANES):
                    if cycle[b] == 0:
                        cycle[b] = _cycle(b, k, settled, 2 * p, lookback, period, stride, end, witness)
                        if cycle[b] > 0:
                            steady_at[b] = k
                            steady_lanes += 1
        # A lane that repeats itself takes its last periods from its own cycle even where another lane had to be walked
        # to the end: a row does not depend on the rows it is simulated with.
        for b in range(LANES):
            if cycle[b] > 0:
                _skip_ahead(b, cycle[b], steady_at[b], count, lookback, period, stride, end)
        _walk(suffix, 0, stride, skip, places, pair, end, time, wire, hidden, atomic)
        for b in range(used):
            makespan[low + b], span[low + b] = _ends(b, offsets, places, pair, end, time, atomic)
    return makespan, span, walked


@njit(cache=True)
def _load(low, used, duration, hops, time, wire):
    """The costs of a block of rows, lane by lane; lanes beyond the last row repeat it."""
    num_stages = hops.shape[0]
    for b in range(LANES):
        row = low + min(b, used - 1)
        for s in range(num_stages):
            wire[s * LANES + b] = hops[s, row]
            for k in range(4):
                time[(k * num_stages + s) * LANES + b] = duration[k, s, row]


@njit(cache=True)
def _walk(rows, turn, stride, skip, places, pair, end, time, wire, hidden, atomic):
    """Run a list of rows, each `turn` times its stride further down; returns the row that the last one ran with it."""
    for j in rows:
        i = j + turn * stride[j]
        if i != skip:
            _advance(i, places, end, time, wire)
            skip = -1
            if atomic and pair[i]:
                _advance_pair(i, places, end, time, wire, hidden)
                skip = i + 1
    return skip


@njit(cache=True)
def _skip_ahead(b, cycle, steady_at, count, lookback, period, stride, end):
    """Write down the last periods of lane b, which repeats itself every `cycle` periods up to period `steady_at`."""
    size = stride[period[0]]
    lead = (period[0] + (steady_at - 1) * size) * LANES + b
    pace = end[lead] - end[lead - cycle * size * LANES]
    for back in range(lookback):
        ahead = count - steady_at - back
        turns = (ahead + cycle - 1) // cycle
        known = count - 1 - back - turns * cycle
        for j in period:
            size = stride[j]
            end[(j + (count - 1 - back) * size) * LANES + b] = end[(j + known * size) * LANES + b] + turns * pace


@njit(cache=True)
def _ends(b, offsets, places, pair, end, time, atomic):
    """Makespan and span of lane b."""
    last, longest, own = 0.0, 0.0, places[3]
    for r in range(len(offsets) - 1):
        i, j = offsets[r], offsets[r + 1] - 1
        begun = end[i * LANES + b] - time[own[i] + b]
        if atomic and pair[i]:
            both = time[own[i] + b] + time[own[i + 1] + b]
            begun = end[i * LANES + b] - both
        last = max(last, end[j * LANES + b])
        longest = max(longest, end[j * LANES + b] - begun)
    return last, longest
