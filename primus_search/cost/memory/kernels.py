# mypy: allow-untyped-defs
"""Compiled loops over candidates: a row is a range of moments and two rows of prices. Loaded only by `table`."""

from numba import njit


@njit(cache=True, nogil=True)
def worst(
    pipeline, state, batch, first, units, state_price, batch_price, state_loose, batch_loose, total, loose, moment
):
    """Bytes at the worst moment of every row, tight and with loose allocation, and which moment that is.

    pipeline, state, batch: row numbers into `first` (moments of a pipeline: first[p] .. first[p + 1]) and into the
    bytes per unit. `units` has the columns of `state_price`, then those of `batch_price`.
    """
    num_state, num_batch = state_price.shape[1], batch_price.shape[1]
    for i in range(len(pipeline)):
        s, b = state[i], batch[i]
        best, at = -1.0, 0
        for j in range(first[pipeline[i]], first[pipeline[i] + 1]):
            here = 0.0
            for d in range(num_state):
                here += units[j, d] * state_price[s, d]
            for d in range(num_batch):
                here += units[j, num_state + d] * batch_price[b, d]
            if here > best:
                best, at = here, j
        total[i] = best
        moment[i] = at
        more = 0.0
        for d in range(num_state):
            more += units[at, d] * state_loose[s, d]
        for d in range(num_batch):
            more += units[at, num_state + d] * batch_loose[b, d]
        loose[i] = more


@njit(cache=True, nogil=True)
def split(moment, key, units, part, unit, price, out):
    """Add to `out` (parts, rows) the bytes of every row by part, at its moment. `price` is (keys, entries)."""
    for i in range(len(moment)):
        j, k = moment[i], key[i]
        for e in range(len(part)):
            out[part[e], i] += units[j, unit[e]] * price[k, e]
