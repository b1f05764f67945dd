# mypy: allow-untyped-defs
"""Compiled loops over candidates: a row is a range of moments and two rows of prices. Loaded only by `table`."""

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
