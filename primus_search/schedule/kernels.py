"""Compiled loops over the passes of a table: link, run once, run many rows, count activations.

Everything here works on plain arrays so that numba compiles it once and keeps the machine code on disk. The public
functions that call these kernels, and say what the arrays mean, are in `table`, `simulate` and `batch`.
"""

import numpy as np
from numba import njit

F, B, W, BW = 0, 1, 2, 3
GOOD, MISSING, OUT_OF_RANGE, WRONG_RANK, DUPLICATE, BAD_PAIR, OWN_LATER, DEADLOCK = range(8)


@njit(cache=True)
def link(offsets, kind, stage, micro_batch, pair, rank_of_stage, model_stages, num_micro):  # type: ignore[no-untyped-def]
    """Resolve what every row waits for, and find an order in which all rows can run.

    Returns verdict, three integers that explain a bad verdict, and per row: source row, hop, rank; and the order.
    One source per row is enough: W and the last stage's B wait for a pass of their own rank, and any other B waits
    for its own F through the stages behind it.
    """
    n, p, num_stages = len(kind), len(offsets) - 1, len(rank_of_stage)
    source = np.full(n, -1, np.int32)
    hop = np.zeros(n, np.int16)
    rank = np.empty(n, np.int16)
    order = np.empty(n, np.int32)
    at = np.full((3, num_stages, num_micro), -1, np.int32)
    for r in range(p):
        for i in range(offsets[r], offsets[r + 1]):
            rank[i] = r
            k, s, j = kind[i], stage[i], micro_batch[i]
            if k < 0 or k > 3 or s < 0 or s >= num_stages or j < 0 or j >= num_micro:
                return OUT_OF_RANGE, i, 0, 0, source, hop, rank, order
            if rank_of_stage[s] != r:
                return WRONG_RANK, i, 0, 0, source, hop, rank, order
            first = 1 if k == BW else k
            last = 2 if k == BW else k
            for slot in range(first, last + 1):
                if at[slot, s, j] >= 0:
                    return DUPLICATE, i, at[slot, s, j], 0, source, hop, rank, order
                at[slot, s, j] = i
            if pair[i] and (k != F or i + 1 >= offsets[r + 1] or (kind[i + 1] != B and kind[i + 1] != BW)):
                return BAD_PAIR, i, 0, 0, source, hop, rank, order
    for s in range(num_stages):
        for j in range(num_micro):
            for slot in range(3):
                if at[slot, s, j] < 0:
                    return MISSING, slot, s, j, source, hop, rank, order
            if at[F, s, j] > at[B, s, j]:
                return OWN_LATER, at[B, s, j], at[F, s, j], 0, source, hop, rank, order
            if at[B, s, j] > at[W, s, j]:
                return OWN_LATER, at[W, s, j], at[B, s, j], 0, source, hop, rank, order
            inside = s % model_stages
            if inside > 0:
                source[at[F, s, j]] = at[F, s - 1, j]
                hop[at[F, s, j]] = s - 1
            if inside < model_stages - 1:
                source[at[B, s, j]] = at[B, s + 1, j]
                hop[at[B, s, j]] = s
    done = np.zeros(n, np.bool_)
    nxt = offsets[:p].copy()
    count = 0
    moved = True
    while moved and count < n:
        moved = False
        for r in range(p):
            i = nxt[r]
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
            nxt[r] = i
    if count < n:
        for r in range(p):
            i = nxt[r]
            if i < offsets[r + 1]:
                if source[i] >= 0 and not done[source[i]]:
                    return DEADLOCK, i, source[i], 0, source, hop, rank, order
                return DEADLOCK, i + 1, source[i + 1], 0, source, hop, rank, order
    return GOOD, 0, 0, 0, source, hop, rank, order


@njit(cache=True)
def run_once(kind, stage, pair, source, hop, rank, order, p, duration, hops, sends, hidden, atomic, blocking):  # type: ignore[no-untyped-def]
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
def count_peaks(offsets, kind, stage, weight):  # type: ignore[no-untyped-def]
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
def weave(offsets, kind, stage, micro_batch, source, hop, p, duration, hops, weight, limit, patience):  # type: ignore[no-untyped-def]
    """Split every BW of an order into B and W, and put each W where its rank would idle or needs the memory.

    F and B keep their order. Before a forward that would break `limit` (activations per rank, `weight[stage]` each)
    the oldest W runs; before any pass whose input is late by `patience[rank]` times the next W, that W runs. Gaps
    are known exactly: nothing on another rank ever waits for a W of this one, so a rank decides only once its input
    has a time. Returns verdict, the row at fault, the new columns, and the makespan and span of this run.
    """
    n = len(kind)
    new_offsets = np.zeros(p + 1, np.int64)
    for r in range(p):
        new_offsets[r + 1] = new_offsets[r] + 3 * (offsets[r + 1] - offsets[r]) // 2
    total = new_offsets[p]
    new_kind, new_stage, new_micro = np.empty(total, np.int8), np.empty(total, np.int16), np.empty(total, np.int32)
    end = np.full(n, -1.0)
    free, first, held = np.zeros(p), np.full(p, -1.0), np.zeros(p)
    nxt, out = offsets[:p].copy(), new_offsets[:p].copy()
    queue = np.empty(n // 2, np.int32)
    head, tail = offsets[:p] // 2, offsets[:p] // 2
    left = n
    moved = True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            while nxt[r] < offsets[r + 1]:
                i = nxt[r]
                s = stage[i]
                ready = 0.0
                known = source[i] < 0 or end[source[i]] >= 0.0
                if known and source[i] >= 0:
                    ready = end[source[i]] + hops[hop[i]]
                run_weight = False
                if head[r] < tail[r]:
                    w = duration[W, stage[queue[head[r]]]]
                    if kind[i] == F and held[r] + weight[s] > limit + 1e-9:
                        run_weight = True
                    elif not known:
                        break
                    elif ready - free[r] >= patience[r] * w and ready > free[r]:
                        run_weight = True
                elif kind[i] == F and held[r] + weight[s] > limit + 1e-9:
                    return DEADLOCK, i, new_offsets, new_kind, new_stage, new_micro, 0.0, 0.0
                if run_weight:
                    row = queue[head[r]]
                    head[r] += 1
                    free[r] += duration[W, stage[row]]
                    held[r] -= weight[stage[row]]
                    new_kind[out[r]], new_stage[out[r]], new_micro[out[r]] = W, stage[row], micro_batch[row]
                    out[r] += 1
                    continue
                if not known:
                    break
                start = max(free[r], ready)
                if first[r] < 0.0:
                    first[r] = start
                k = F if kind[i] == F else B
                end[i] = start + duration[k, s]
                free[r] = end[i]
                new_kind[out[r]], new_stage[out[r]], new_micro[out[r]] = k, s, micro_batch[i]
                out[r] += 1
                if k == F:
                    held[r] += weight[s]
                else:
                    queue[tail[r]] = i
                    tail[r] += 1
                nxt[r] = i + 1
                left -= 1
                moved = True
    makespan, span = 0.0, 0.0
    for r in range(p):
        while head[r] < tail[r]:
            row = queue[head[r]]
            head[r] += 1
            free[r] += duration[W, stage[row]]
            new_kind[out[r]], new_stage[out[r]], new_micro[out[r]] = W, stage[row], micro_batch[row]
            out[r] += 1
        makespan = max(makespan, free[r])
        span = max(span, free[r] - first[r])
    return GOOD, 0, new_offsets, new_kind, new_stage, new_micro, makespan, span
