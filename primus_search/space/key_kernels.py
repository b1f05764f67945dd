# mypy: allow-untyped-defs
"""Compiled loops over distinct keys of candidates. Loaded only when the first ones are numbered."""

import numpy as np

from primus_search.schedule.kernel_cache import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def _mixed(h, value):
    """A hash with one more value in it."""
    h = h ^ value
    h = (h ^ (h >> np.uint64(32))) * _GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def widened(columns, fields):
    """Fields for the values of `columns` beside those that `fields` hold, if any, and the words that they need.

    A field is the least value of a column, the mask of what a value is above it, and its shift and word in a key.
    """
    out = np.zeros((len(columns), 4), np.uint64)
    word = shift = 0
    for k in range(len(columns)):
        low, high = columns[k].min(), columns[k].max()
        if len(fields):
            low, high = min(low, np.int64(fields[k, 0])), max(high, np.int64(fields[k, 0] + fields[k, 1]))
        bits = 0
        while bits < 64 and (np.uint64(high) - np.uint64(low)) >> np.uint64(bits):
            bits += 1
        mask = _ALL >> np.uint64(64 - bits) if bits else np.uint64(0)
        if bits == 64 or np.int64(np.uint64(low) + mask) < low:  # above the largest integer: all of them
            low, bits, mask = np.iinfo(np.int64).min, 64, _ALL
        if shift + bits > 64:
            word, shift = word + 1, 0
        out[k, 0], out[k, 1], out[k, 2], out[k, 3] = np.uint64(low), mask, shift if bits else 0, word
        shift += bits
    return out, word + 1


@njit(cache=True, nogil=True)
def pack(columns, fields, packed):
    """Put rows of `columns` into words, (words, rows), and return whether every value is in its field."""
    packed[:] = 0
    beyond = np.uint64(0)
    for k in range(len(fields)):
        low, mask, shift, of, to = fields[k, 0], fields[k, 1], fields[k, 2], columns[k], packed[np.int64(fields[k, 3])]
        for i in range(len(of)):
            value = np.uint64(of[i]) - low
            beyond |= value & ~mask
            to[i] |= value << shift
    return beyond == 0


@njit(cache=True, nogil=True)
def repack(keys, size, fields, wider, out):
    """The first `size` keys of `fields` in other fields, into `out`."""
    out[:size] = 0
    for k in range(len(fields)):
        word, to = np.int64(fields[k, 3]), np.int64(wider[k, 3])
        for i in range(size):
            value = ((keys[i, word] >> fields[k, 2]) & fields[k, 1]) + fields[k, 0] - wider[k, 0]
            out[i, to] |= value << wider[k, 2]


@njit(cache=True, nogil=True)
def number_rows(packed, keys, table, size, codes, first, fresh, begin):
    """Number of every row of `packed`, (words, rows); what is not in `keys` is added and counted on from `size`.

    `table` holds numbers at their hashed places, -1 elsewhere; its length is a power of two and it never fills up.
    Starts at row `begin` with `fresh` new numbers so far. Returns how many are new, with the first row of each in
    `first`, and the row it stopped at, which is the end or the first row that `keys` has no room for.
    """
    mask = np.uint64(len(table) - 1)
    for i in range(begin, len(codes)):
        h = np.uint64(0)
        for k in range(len(packed)):
            h = _mixed(h, packed[k, i])
        slot = h & mask
        while True:
            number = table[slot]
            if number < 0:
                number = size + fresh
                if number == len(keys):
                    return fresh, i
                table[slot] = number
                for k in range(len(packed)):
                    keys[number, k] = packed[k, i]
                first[fresh] = i
                fresh += 1
                break
            is_same = True
            for k in range(len(packed)):
                is_same &= keys[number, k] == packed[k, i]
            if is_same:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = number
    return fresh, len(codes)


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
