# mypy: allow-untyped-defs
"""Compiled loops over candidates, whose rows are a range of moments and two rows of prices, and over orders.

Loaded only by `table` and `live`, when the first row is asked for.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def worst(
    pipeline, state, batch, first, units, tight_state, tight_batch, loose_state, loose_batch, room, tight, loose, moment
):
    """Bytes at the worst moment of every row, with tight and with loose allocation, and which moment that is.

    pipeline, state, batch: row numbers into `first` (moments of a pipeline: first[p] .. first[p + 1]) and into the
    bytes per unit. `units` has the columns of the state's prices, then those of the batch's. `moment` is the worst of
    loose allocation where that fits into `room`, else of tight allocation.
    """
    num_state, num_batch = tight_state.shape[1], tight_batch.shape[1]
    for i in range(len(pipeline)):
        s, b = state[i], batch[i]
        most_tight, most_loose, at_tight, at_loose = -1.0, -1.0, 0, 0
        for j in range(first[pipeline[i]], first[pipeline[i] + 1]):
            little, much = 0.0, 0.0
            for d in range(num_state):
                little += units[j, d] * tight_state[s, d]
                much += units[j, d] * loose_state[s, d]
            for d in range(num_batch):
                little += units[j, num_state + d] * tight_batch[b, d]
                much += units[j, num_state + d] * loose_batch[b, d]
            if little > most_tight:
                most_tight, at_tight = little, j
            if much > most_loose:
                most_loose, at_loose = much, j
        tight[i], loose[i] = most_tight, most_loose
        moment[i] = at_loose if most_loose <= room[i] else at_tight


@njit(cache=True, nogil=True)
def split(moment, key, units, part, unit, price, out):
    """Add to `out` (parts, rows) the bytes of every row by part, at its moment. `price` is (keys, entries)."""
    for i in range(len(moment)):
        j, k = moment[i], key[i]
        for e in range(len(part)):
            out[part[e], i] += units[j, unit[e]] * price[k, e]


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
                    kept[left] = kept[j]
                    left += 1
            count = left
            if count == len(kept):
                grown = np.empty((2 * count, width + 1), np.int64)
                grown[:count] = kept
                kept = grown
            kept[count] = now
            count += 1
        if k == 1:
            now[c] -= 1
            now[chunks + c] += 1
        elif k == 3:
            now[c] -= 1
        elif k == 2:
            now[chunks + c] -= 1
    return kept[:count].copy()
