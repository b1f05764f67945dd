# mypy: allow-untyped-defs
"""Compiled loops over the passes of a table: link, run once, run many rows, count activations.

Everything here works on plain arrays so that numba compiles it once and keeps the machine code on disk. The public
functions that call these kernels, and say what the arrays mean, are in `table`, `simulate` and `batch`.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit

F, B, W, BW = 0, 1, 2, 3
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
    """Write down an order in which every row comes after its source: of each rank one row after the other.

    So an input is asked for soon after it was made, and rows that follow each other seldom wait for each other.
    """
    n, p = len(source), len(offsets) - 1
    done = np.zeros(n, np.bool_)
    following = offsets[:p].copy()
    count = 0
    moved = True
    while moved and count < n:
        moved = False
        for r in range(p):
            i = following[r]
            if i == offsets[r + 1] or (source[i] >= 0 and not done[source[i]]):
                continue
            if pair[i] and source[i + 1] >= 0 and not done[source[i + 1]]:
                continue
            for j in range(i, i + 2 if pair[i] else i + 1):
                order[count] = j
                done[j] = True
                count += 1
                following[r] = j + 1
            moved = True
    for r in range(p):
        i = following[r]
        if i < offsets[r + 1]:
            late = i if source[i] >= 0 and not done[source[i]] else i + 1
            return DEADLOCK, late, source[late], 0
    return GOOD, 0, 0, 0


@njit(cache=True)
def run_once(kind, stage, pair, source, hop, rank, order, p, duration, hops, hidden, atomic):
    """Start and end of every row, from `duration[kind, stage]` and `hops[stage]`.

    `atomic`: an overlapped pair starts when both inputs are there, and both outputs leave at its end; it takes the
    sum less `hidden` times the shorter of the two.
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
            skip = True
            continue
        end[i] = t + d
        free[r] = end[i]
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
