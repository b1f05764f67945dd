# mypy: allow-untyped-defs
"""Compiled loops over pipelines. Loaded only when the first one is estimated.

Shapes come as `pipeline.ShapeArrays`, pipelines as `pipeline.PipelineKeys`, layers as `stage.LayerArrays`.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit

BLOCK = 64
"""Pipelines whose stages are written down side by side, so that neighbours in memory are written one after another."""


@njit(cache=True, nogil=True)
def _gather(layers, key, pieces, row):
    """Seconds of a layer key into `row`: [piece, pass], then recompute per kind of layer."""
    number = layers.number[key]
    for p in range(pieces):
        for q in range(3):
            row[3 * p + q] = layers.seconds[number[p], q]
    for p in range(pieces, len(number)):
        row[2 * pieces + p] = layers.repeated[number[p]]


@njit(cache=True, nogil=True)
def _kinds_of_stages(n, row, shapes, seconds):
    """Seconds of each kind of stage of shape n: forward, backward, weight, recompute into `seconds[:, kind]`.

    row  of a layer key: see `_gather`
    """
    first_kind, counts, recomputed = shapes.first_kind, shapes.counts, shapes.recomputed
    pieces, kinds = counts.shape[1], recomputed.shape[1]
    k0 = first_kind[n]
    for k in range(first_kind[n + 1] - k0):
        f = b = w = r = 0.0
        for p in range(pieces):
            many = counts[k0 + k, p]
            if many != 0.0:
                f += many * row[3 * p]
                b += many * row[3 * p + 1]
                w += many * row[3 * p + 2]
        for p in range(kinds):
            r += recomputed[k0 + k, p] * row[3 * pieces + p]
        seconds[0, k], seconds[1, k], seconds[2, k], seconds[3, k] = f, b, w, r


@njit(cache=True, nogil=True)
def _load(n, m, hop_facts, shapes, seconds, stage_s, busy, begin):
    """Work of every rank of shape n into `busy`, its first stage into `begin`; returns the busiest rank.

    stage_s  filled per stage with forward, backward, weight and the way to the next stage
    """
    first, kind, is_far, ranks = shapes.first, shapes.kind, shapes.is_far, shapes.ranks
    num_ranks, copies = shapes.facts[n, 0], shapes.facts[n, 1]
    near_s, far_s, blocking = hop_facts[0], hop_facts[1], hop_facts[2]
    pass_s = hop_facts[3] if num_ranks > 1 else 0.0
    s0, stages = first[n], first[n + 1] - first[n]
    busy[:num_ranks] = 0.0
    begin[:num_ranks] = -1
    before = 0.0
    for s in range(stages):
        k = kind[s0 + s]
        f, b, w, r = seconds[0, k], seconds[1, k], seconds[2, k], seconds[3, k]
        hop = 0.0
        if s + 1 < stages and ranks[s0 + s, 0] != ranks[s0 + s + 1, 0]:
            hop = far_s if is_far[s0 + s] else near_s
        f += pass_s + blocking * hop
        b += pass_s
        if s > 0:
            b += blocking * before
        before = hop
        stage_s[0, s], stage_s[1, s], stage_s[2, s], stage_s[3, s] = f, b + r, w, hop
        for copy in range(copies):
            rank = ranks[s0 + s, copy]
            busy[rank] += m * (f + b + r + w) / copies
            if begin[rank] < 0:
                begin[rank] = s
    busiest = 0
    for rank in range(1, num_ranks):
        if busy[rank] > busy[busiest]:
            busiest = rank
    return busiest


@njit(cache=True, nogil=True)
def _least(n, blocking, shapes, stage_s, busy, begin, busiest):
    """Makespan that no order of shape n can beat.

    The largest over ranks of: forwards before its first stage, all its work, and, where backward is one pass, the way
    of its last gradient to stage 0.
    """
    first, ranks, facts = shapes.first, shapes.ranks, shapes.facts
    bound = busy[busiest]
    if facts[n, 1] == 1:
        s0, stages = first[n], first[n + 1] - first[n]
        ahead = 0.0
        way_back = 0.0
        for s in range(stages):
            rank = ranks[s0 + s, 0]
            if begin[rank] == s:
                after = 0.0 if facts[n, 2] else way_back
                bound = max(bound, ahead + busy[rank] + after)
            travel = (1.0 - blocking) * stage_s[3, s]
            ahead += stage_s[0, s] + travel
            way_back += stage_s[1, s] + stage_s[2, s] + travel
    return bound


@njit(cache=True, nogil=True)
def _longest(first):
    return max(1, np.diff(first).max())


@njit(cache=True, nogil=True)
def estimate(keys, layers, hops, shapes, parts, recompute, out):
    """Fill `out` per pipeline: parts of the busiest rank, bubble (left), backward and forward windows, makespan bound.

    hops  near and far seconds, share of a hop that blocks the sender, seconds of a pass besides its kernels
    """
    first, kind, ranks, facts, counts = shapes.first, shapes.kind, shapes.ranks, shapes.facts, shapes.counts
    pieces = counts.shape[1]
    row = np.empty(3 * pieces + shapes.recomputed.shape[1])
    stage_s, seconds = np.empty((4, _longest(first))), np.empty((4, _longest(shapes.first_kind)))
    busy, begin = np.empty(facts[:, 0].max()), np.empty(facts[:, 0].max(), np.int64)
    for i in range(len(keys.shape)):
        n, hop, m = keys.shape[i], hops[keys.hop[i]], keys.microbatches[i]
        _gather(layers, keys.layer[i], pieces, row)
        _kinds_of_stages(n, row, shapes, seconds)
        busiest = _load(n, m, hop, shapes, seconds, stage_s, busy, begin)
        s0, copies = first[n], facts[n, 1]
        out[i, :] = 0.0
        window_b = window_f = 0.0
        for s in range(first[n + 1] - s0):
            share = 0.0
            for copy in range(copies):
                if ranks[s0 + s, copy] == busiest:
                    share += 1.0 / copies
            if share == 0.0:
                continue
            k = kind[s0 + s]
            for p in range(pieces):
                many = counts[shapes.first_kind[n] + k, p] * share
                if many != 0.0:
                    for q in range(parts):
                        out[i, q] += m * many * layers.seconds[layers.number[keys.layer[i], p], 3 + q]
                    window_f += many * row[3 * p]
                    window_b += many * (row[3 * p + 1] + row[3 * p + 2])
            out[i, recompute] += m * share * seconds[3, k]
            window_b += share * seconds[3, k]
        bound = _least(n, hop[2], shapes, stage_s, busy, begin, busiest)
        out[i, parts + 1], out[i, parts + 2], out[i, parts + 3] = window_b, window_f, bound


@njit(cache=True, nogil=True)
def enclose(keys, codes, edges, layers, hops, shapes, out):
    """Per bundle of pipelines: a makespan none of them can beat, and backward and forward windows none can exceed.

    codes, edges  of the layers of each bundle: codes[edges[i, 0] : edges[i, 1]]
    A makespan bound grows with every second of a layer, so the least of each gives a bound for all.
    """
    first, kind, ranks, facts = shapes.first, shapes.kind, shapes.ranks, shapes.facts
    pieces = shapes.counts.shape[1]
    row, low, high = np.empty((3, 3 * pieces + shapes.recomputed.shape[1]))
    stage_s, seconds = np.empty((4, _longest(first))), np.empty((4, _longest(shapes.first_kind)))
    most = facts[:, 0].max()
    busy, begin, window = np.empty(most), np.empty(most, np.int64), np.empty((2, most))
    for i in range(len(keys.shape)):
        n, hop, m = keys.shape[i], hops[keys.hop[i]], keys.microbatches[i]
        members = codes[edges[keys.layer[i], 0] : edges[keys.layer[i], 1]]
        _gather(layers, members[0], pieces, low)
        high[:] = low
        for code in members[1:]:
            _gather(layers, code, pieces, row)
            for k in range(len(row)):
                low[k], high[k] = min(low[k], row[k]), max(high[k], row[k])
        _kinds_of_stages(n, low, shapes, seconds)
        busiest = _load(n, m, hop, shapes, seconds, stage_s, busy, begin)
        out[i, 0] = _least(n, hop[2], shapes, stage_s, busy, begin, busiest)
        if len(members) > 1:
            _kinds_of_stages(n, high, shapes, seconds)
        s0, copies = first[n], facts[n, 1]
        window[:, : facts[n, 0]] = 0.0
        for s in range(first[n + 1] - s0):
            k = kind[s0 + s]
            for copy in range(copies):
                rank = ranks[s0 + s, copy]
                window[0, rank] += (seconds[1, k] + seconds[2, k] + seconds[3, k]) / copies
                window[1, rank] += seconds[0, k] / copies
        out[i, 1] = window[0, : facts[n, 0]].max()
        out[i, 2] = window[1, : facts[n, 0]].max()


@njit(cache=True, nogil=True)
def passes(n, layer, hops, layers, shapes, duration, travel):
    """Seconds of every pass of shape n per pipeline, as the simulator takes them.

    duration  filled: [F, B, W or B and W in one, stage of both copies, pipeline]   travel  filled: [stage, pipeline]
    A pass bears the cost of a pass and, of the hop it sends over, the share that blocks the sender.
    """
    first, kind, is_far, ranks = shapes.first, shapes.kind, shapes.is_far, shapes.ranks
    pieces, stages = shapes.counts.shape[1], first[n + 1] - first[n]
    num_kinds = shapes.first_kind[n + 1] - shapes.first_kind[n]
    seconds, of_kind = np.empty((4, num_kinds)), np.empty((4, num_kinds, BLOCK))
    row = np.empty(3 * pieces + shapes.recomputed.shape[1])
    for low in range(0, len(layer), BLOCK):
        high = min(low + BLOCK, len(layer))
        for i in range(low, high):
            _gather(layers, layer[i], pieces, row)
            _kinds_of_stages(n, row, shapes, seconds)
            for part in range(4):
                for k in range(num_kinds):
                    of_kind[part, k, i - low] = seconds[part, k]
        for s in range(stages):
            at = first[n] + s
            here, before = _hop_kind(s, at, stages, ranks, is_far), _hop_kind(s - 1, at - 1, stages, ranks, is_far)
            for i in range(low, high):
                held = hops[i, 2] * hops[i, here] if here >= 0 else 0.0
                held_before = hops[i, 2] * hops[i, before] if before >= 0 else 0.0
                f = of_kind[0, kind[at], i - low] + hops[i, 3] + held
                b = of_kind[1, kind[at], i - low] + of_kind[3, kind[at], i - low] + hops[i, 3] + held_before
                w = of_kind[2, kind[at], i - low]
                for copy in range(shapes.facts[n, 1]):
                    to = copy * stages + s
                    duration[0, to, i], duration[1, to, i], duration[2, to, i], duration[3, to, i] = f, b, w, b + w
                    travel[to, i] = (hops[i, here] if here >= 0 else 0.0) - held


@njit(cache=True, nogil=True)
def _hop_kind(s, at, stages, ranks, is_far):
    """Which of a pipeline's hops leads on from stage s: 0 near, 1 far, -1 none."""
    if s < 0 or s + 1 >= stages or ranks[at, 0] == ranks[at + 1, 0]:
        return -1
    return 1 if is_far[at] else 0
