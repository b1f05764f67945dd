# mypy: allow-untyped-defs
"""Compiled loops over pipeline keys. Loaded only when the first key is estimated."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def estimate(
    shape, layer, microbatches, hops, layers, first, counts, recomputed, is_far, ranks, facts,
    pieces, parts, recompute, out,
):  # fmt: skip
    """Fill `out` per key: parts of the busiest rank, bubble (left), backward and forward windows, makespan bound.

    hops      near and far seconds, share of a hop that blocks the sender, seconds of a pass besides its kernels
    layers    rows of seconds: [piece, pass], then [piece, part], then recompute per kind
    first     first row of a shape's stages in `counts`, `recomputed`, `is_far` and `ranks` (both copies' ranks)
    facts     per shape: ranks, copies of the model, whether W runs apart from B

    The bound is the largest over ranks of: forwards before its first stage, all its work, and, where backward is one
    pass, the way of its last gradient to stage 0.
    """
    kinds = recomputed.shape[1]
    at_part = 3 * pieces
    at_recompute = at_part + pieces * parts
    most = 0
    for n in range(len(first) - 1):
        most = max(most, first[n + 1] - first[n])
    forward, backward, weight, again, hop = (
        np.empty(most), np.empty(most), np.empty(most), np.empty(most), np.empty(most),
    )  # fmt: skip
    busy, begin = np.empty(facts[:, 0].max()), np.empty(facts[:, 0].max(), np.int64)
    for i in range(len(shape)):
        n, row, m = shape[i], layers[layer[i]], microbatches[i]
        near_s, far_s, blocking = hops[i, 0], hops[i, 1], hops[i, 2]
        pass_s = hops[i, 3] if facts[n, 0] > 1 else 0.0
        s0, stages = first[n], first[n + 1] - first[n]
        num_ranks, copies = facts[n, 0], facts[n, 1]
        busy[:num_ranks] = 0.0
        begin[:num_ranks] = -1
        for s in range(stages):
            f = b = w = r = 0.0
            for p in range(pieces):
                many = counts[s0 + s, p]
                if many != 0.0:
                    f += many * row[3 * p]
                    b += many * row[3 * p + 1]
                    w += many * row[3 * p + 2]
            for k in range(kinds):
                r += recomputed[s0 + s, k] * row[at_recompute + k]
            hop[s] = 0.0
            if s + 1 < stages and ranks[s0 + s, 0] != ranks[s0 + s + 1, 0]:
                hop[s] = far_s if is_far[s0 + s] else near_s
            f += pass_s + blocking * hop[s]
            b += pass_s
            if s > 0:
                b += blocking * hop[s - 1]
            forward[s], backward[s], weight[s], again[s] = f, b + r, w, r
            for copy in range(copies):
                rank = ranks[s0 + s, copy]
                busy[rank] += m * (f + b + r + w) / copies
                if begin[rank] < 0:
                    begin[rank] = s
        busiest = 0
        for rank in range(1, num_ranks):
            if busy[rank] > busy[busiest]:
                busiest = rank
        out[i, :] = 0.0
        window_b = window_f = 0.0
        for s in range(stages):
            share = 0.0
            for copy in range(copies):
                if ranks[s0 + s, copy] == busiest:
                    share += 1.0 / copies
            if share == 0.0:
                continue
            for p in range(pieces):
                many = counts[s0 + s, p] * share
                if many != 0.0:
                    for q in range(parts):
                        out[i, q] += m * many * row[at_part + p * parts + q]
                    window_f += many * row[3 * p]
                    window_b += many * (row[3 * p + 1] + row[3 * p + 2])
            out[i, recompute] += m * share * again[s]
            window_b += share * again[s]
        bound = busy[busiest]
        if copies == 1:
            ahead = 0.0
            way_back = 0.0
            for s in range(stages):
                rank = ranks[s0 + s, 0]
                if begin[rank] == s:
                    after = 0.0 if facts[n, 2] else way_back
                    bound = max(bound, ahead + busy[rank] + after)
                travel = (1.0 - blocking) * hop[s]
                ahead += forward[s] + travel
                way_back += backward[s] + weight[s] + travel
        out[i, parts + 1], out[i, parts + 2], out[i, parts + 3] = window_b, window_f, bound


# The multiplier of Fibonacci hashing (2^64 over the golden ratio), Knuth, The Art of Computer Programming 3, 6.4.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _mixed(h, value):
    """A hash with one more value in it."""
    h = (h ^ np.uint64(value)) * _GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def number_rows(columns, keys, table, size, codes, first):
    """Number of every row by its columns; combinations not in `keys` are added to it and counted on from `size`.

    `table` holds numbers at their hashed places, -1 elsewhere; its length is a power of two and it never fills up.
    Returns how many are new, with the first row of each in `first`.
    """
    mask = np.uint64(len(table) - 1)
    fresh = 0
    for i in range(len(codes)):
        h = np.uint64(0)
        for k in range(len(columns)):
            h = _mixed(h, columns[k][i])
        slot = h & mask
        while True:
            number = table[slot]
            if number < 0:
                number = size + fresh
                table[slot] = number
                for k in range(len(columns)):
                    keys[number, k] = columns[k][i]
                first[fresh] = i
                fresh += 1
                break
            is_same = True
            for k in range(len(columns)):
                if keys[number, k] != columns[k][i]:
                    is_same = False
                    break
            if is_same:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = number
    return fresh


@njit(cache=True, nogil=True)
def place(keys, size, table):
    """Put the first `size` keys into an empty table."""
    mask = np.uint64(len(table) - 1)
    for number in range(size):
        h = np.uint64(0)
        for k in range(keys.shape[1]):
            h = _mixed(h, keys[number, k])
        slot = h & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number
