# mypy: allow-untyped-defs
"""Compiled loops over candidates, whose rows are a range of moments and two rows of prices, and over orders.

Loaded only by `table` and `live`, when the first row is asked for.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit


@njit(cache=True, nogil=True)
def worst(keys, first, units, state_price, batch_price, room):
    """Bytes at the worst moment of every row, with tight and with loose allocation, and which moment that is.

    keys: row numbers into `first` (moments of a pipeline: first[p] .. first[p + 1]) and into the bytes per unit (keys,
    units, 2), tight and loose side by side. `units` has the columns of the state's prices, then those of the batch's.
    The moment is the worst of loose allocation where that fits into `room`, else of tight allocation.
    """
    rows = len(keys.pipeline)
    tight, loose, moment = np.empty(rows), np.empty(rows), np.empty(rows, np.int64)
    num_state, num_batch = state_price.shape[1], batch_price.shape[1]
    for i in range(rows):
        p, s, b = keys.pipeline[i], keys.state[i], keys.batch[i]
        most_tight, most_loose, at_tight, at_loose = -1.0, -1.0, 0, 0
        for j in range(first[p], first[p + 1]):
            little, much = 0.0, 0.0
            for d in range(num_state):
                little += units[j, d] * state_price[s, d, 0]
                much += units[j, d] * state_price[s, d, 1]
            for d in range(num_batch):
                little += units[j, num_state + d] * batch_price[b, d, 0]
                much += units[j, num_state + d] * batch_price[b, d, 1]
            if little > most_tight:
                most_tight, at_tight = little, j
            if much > most_loose:
                most_loose, at_loose = much, j
        tight[i], loose[i] = most_tight, most_loose
        moment[i] = at_loose if most_loose <= room[i] else at_tight
    return tight, loose, moment


@njit(cache=True, nogil=True)
def split(moment, key, units, part, unit, price, out):
    """Add to `out` (parts, rows) the bytes of every row by part, at its moment. `price` is (keys, entries)."""
    for i in range(len(moment)):
        j, k = moment[i], key[i]
        for e in range(len(part)):
            out[part[e], i] += units[j, unit[e]] * price[k, e]


@njit(cache=True, nogil=True)
def _put(row, rows, at):
    """Write one of the rows. A slice assignment compiles to at least 90 KB, which every search loads; this to 18 KB."""
    for d in range(len(row)):
        rows[at, d] = row[d]


@njit(cache=True, nogil=True)
def _with_room(rows, size):
    """The same rows in an array of so many."""
    grown = np.empty((size, rows.shape[1]), rows.dtype)
    for i in range(len(rows)):
        _put(rows[i], grown, i)
    return grown


@njit(cache=True, nogil=True)
def highest(kind, chunk, chunks):
    """What a rank holds at the passes of its order that no other pass exceeds, by first appearance.

    kind    0 forward, 1 input gradient, 2 weight gradient, 3 both gradients in one
    Returns (moments, 2 * chunks + 1): micro-batches live and waiting per chunk, and the chunk whose backward runs (-1:
    none). While it runs, a backward still holds its micro-batch and a weight gradient its inputs. A pass covers another
    that holds no more of anything and runs the same backward or none.
    """
    width = 2 * chunks
    kept = np.empty((16, width + 1), np.int64)
    count = 0
    now = np.zeros(width + 1, np.int64)
    for i in range(len(kind)):
        k, c = kind[i], chunk[i]
        if k == 0:
            now[c] += 1
        now[width] = c if k == 1 or k == 3 else -1
        is_covered = False
        for j in range(count):
            if kept[j, width] == now[width] or now[width] < 0:
                is_covered = True
                for d in range(width):
                    if kept[j, d] < now[d]:
                        is_covered = False
                        break
                if is_covered:
                    break
        if not is_covered:
            left = 0
            for j in range(count):
                covers = now[width] == kept[j, width] or kept[j, width] < 0
                for d in range(width):
                    if now[d] < kept[j, d]:
                        covers = False
                        break
                if not covers:
                    _put(kept[j], kept, left)
                    left += 1
            count = left
            if count == len(kept):
                kept = _with_room(kept, 2 * count)
            _put(now, kept, count)
            count += 1
        if k == 1:
            now[c] -= 1
            now[chunks + c] += 1
        elif k == 3:
            now[c] -= 1
        elif k == 2:
            now[chunks + c] -= 1
    return kept[:count]


@njit(cache=True, nogil=True)
def highest_of_ranks(offsets, kind, stage, rank_of_stage):
    """`highest` of every rank, one after the other: where each begins, (ranks, chunks) stages, and its rows."""
    ranks = len(offsets) - 1
    chunks = len(rank_of_stage) // ranks
    stages, chunk_of = np.empty((ranks, chunks), np.int64), np.empty(len(rank_of_stage), np.int64)
    held = np.zeros(ranks, np.int64)
    for s in range(len(rank_of_stage)):
        r = rank_of_stage[s]
        stages[r, held[r]], chunk_of[s] = s, held[r]
        held[r] += 1
    first, found = np.zeros(ranks + 1, np.int64), np.empty((8 * ranks, 2 * chunks + 1), np.int64)
    for r in range(ranks):
        chunk = np.empty(offsets[r + 1] - offsets[r], np.int64)
        for i in range(len(chunk)):
            chunk[i] = chunk_of[stage[offsets[r] + i]]
        own = highest(kind[offsets[r] : offsets[r + 1]], chunk, chunks)
        first[r + 1] = first[r] + len(own)
        if first[r + 1] > len(found):
            found = _with_room(found, 2 * first[r + 1])
        for i in range(len(own)):
            _put(own[i], found, first[r] + i)
    return first, stages, found[: first[ranks]]


@njit(cache=True, nogil=True)
def _covers(row, other):
    """Whether a row is at least another everywhere but in its last column."""
    covers = True
    for d in range(len(row) - 1):
        covers = covers and row[d] >= other[d]
    return covers


@njit(cache=True, nogil=True)
def _kept_with(rows, begin, count, row):
    """Rows begin .. count with one more, unless one of them covers it; those that it covers go."""
    for j in range(begin, count):
        if _covers(rows[j], row):
            return rows, count
    left = begin
    for j in range(begin, count):
        if not _covers(row, rows[j]):
            _put(rows[j], rows, left)
            left += 1
    if left == len(rows):
        rows = _with_room(rows, 2 * left)
    _put(row, rows, left)
    return rows, left + 1


@njit(cache=True, nogil=True)
def _may_run(what, every, recomputed, has_head):
    """Whether a chunk has a kept layer (`what` even), a recomputed one (odd) of kind what // 2, or the head (last).

    A chunk that holds nothing runs too: its head, that is nothing.
    """
    kinds = len(every)
    if what == 2 * kinds:
        layers = 0.0
        for k in range(kinds):
            layers += every[k]
        return has_head or layers == 0.0
    if what % 2 == 1:
        return recomputed[what // 2] > 0.0
    return every[what // 2] > recomputed[what // 2]


@njit(cache=True, nogil=True)
def uncovered(
    first, live, waiting, backward, kept, recomputed, every, inputs, has_head, group, resident, at, across
):  # fmt: skip
    """Units and, last, rank of moments that no other exceeds: of its rank or, `across`, of any; of equals the first.

    first, live, waiting, backward   moments of the ranks, one rank after the other
    kept, recomputed, every          (ranks, chunks, kinds) layers; inputs, has_head (ranks, chunks)
    at                               columns: gathers, live, waiting, working and again of the first kind, then inputs,
                                     head_live, head_waiting, head_runs, head_gathers
    A moment is what stays (`resident`), what its micro-batches hold, and the thing that runs: in the chunk whose
    backward runs a kept layer of some kind, a recomputed one, or the head. Backward goes from the last layer to the
    first, so when recomputed layers (the first ones) run, the kept ones of the same micro-batch are released, and when
    any layer of the head's chunk runs, so is what the head held of that micro-batch.
    """
    kinds, chunks = every.shape[2], every.shape[1]
    width = resident.shape[1]
    rows, base = np.empty((16, width + 1)), np.empty(width + 1)
    count = np.int64(0)  # a literal 0 would compile `_kept_with` once more
    for r in range(len(first) - 1):
        begin, base[width] = np.int64(0) if across else count, r
        # What runs: first nothing, then chunk by chunk for every kind a kept layer, a recomputed one, last the head.
        for runs in range(-1, chunks * (2 * kinds + 1)):
            number, what = runs // (2 * kinds + 1), runs % (2 * kinds + 1)
            k, is_head, is_again = what // 2, what == 2 * kinds, what % 2 == 1
            if runs >= 0 and not _may_run(what, every[r, number], recomputed[r, number], has_head[r, number]):
                continue
            for i in range(first[r], first[r + 1]):
                if backward[i] != number:
                    continue
                for d in range(width):
                    base[d] = resident[r, d]
                for c in range(chunks):
                    for q in range(kinds):
                        base[at[1] + q] += live[i, c] * kept[r, c, q]
                        base[at[2] + q] += waiting[i, c] * every[r, c, q]
                    base[at[5]] += live[i, c] * inputs[r, c]
                    if has_head[r, c]:
                        base[at[6]] += live[i, c] - (1.0 if c == number and not is_head else 0.0)
                        base[at[7]] += waiting[i, c]
                if number >= 0 and not is_head:
                    base[at[0] + k] = 1.0
                    base[at[3] + k] = 1.0
                    if is_again:
                        for q in range(kinds):
                            base[at[1] + q] -= kept[r, number, q]
                        base[at[4] + k] = min(group, recomputed[r, number, k])
                elif number >= 0 and has_head[r, number]:
                    base[at[8]] = 1.0
                    base[at[9]] = 1.0
                rows, count = _kept_with(rows, begin, count, base)
    return rows[:count]


@njit(cache=True, nogil=True)
def _of_first(count, decoder, begin, before, out):
    """Layers of each kind among the first `count` of a stage with so many decoder layers, MTP modules last."""
    layers = len(before) - 1
    for q in range(len(out)):
        own = before[begin + min(count, decoder), q] - before[begin, q]
        out[q] = own + max(count - decoder, 0) * (before[layers, q] - before[layers - 1, q])


@njit(cache=True, nogil=True)
def uncovered_of_each(
    first, live, waiting, backward, stages, decoder, number, before, has_head, resident, at, again, group, offload,
    across,
):  # fmt: skip
    """`uncovered` of one pipeline for every setting of recompute and offloading: where each begins, its rows.

    stages                   (ranks, chunks) stage of the model     decoder, number  (stages,) layers without and with
                             MTP modules
    before                   (layers + 2, kinds) layers of each kind before each decoder layer, in all, with one module
    again, group, offload    (settings,) as in `ranks.Relief`
    """
    ranks, chunks, kinds = stages.shape[0], stages.shape[1], before.shape[1]
    begin = np.zeros(len(decoder), np.int64)
    for s in range(1, len(decoder)):
        begin[s] = begin[s - 1] + decoder[s - 1]
    kept, recomputed = np.empty((ranks, chunks, kinds)), np.empty((ranks, chunks, kinds))
    every, away = np.empty((ranks, chunks, kinds)), np.empty(kinds)
    inputs, with_head = np.zeros((ranks, chunks)), np.empty((ranks, chunks), np.bool_)
    starts = np.zeros(len(again) + 1, np.int64)
    units = np.empty((4 * len(again) + 16, resident.shape[1] + 1))
    for i in range(len(again)):
        for r in range(ranks):
            for c in range(chunks):
                s = stages[r, c]
                repeated = min(again[i], number[s])
                _of_first(number[s], decoder[s], begin[s], before, every[r, c])
                _of_first(repeated, decoder[s], begin[s], before, recomputed[r, c])
                _of_first(min(repeated + offload[i], number[s]), decoder[s], begin[s], before, away)
                for q in range(kinds):
                    kept[r, c, q] = every[r, c, q] - away[q]
                inputs[r, c] = -(-repeated // group[i]) if group[i] > 0 else 0.0
                with_head[r, c] = has_head[s]
        found = uncovered(
            first, live, waiting, backward, kept, recomputed, every, inputs, with_head, group[i], resident, at, across
        )
        starts[i + 1] = starts[i] + len(found)
        if starts[i + 1] > len(units):
            units = _with_room(units, 2 * starts[i + 1])
        for j in range(len(found)):
            _put(found[j], units, starts[i] + j)
    return starts, units[: starts[len(again)]]
