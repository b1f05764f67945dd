# mypy: allow-untyped-defs
"""Compiled loops over distinct keys of candidates. Loaded only when the first ones are numbered."""

import numpy as np

from primus_search.schedule.kernel_cache import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _mixed(h, value):
    """A hash with one more value in it."""
    h = (h ^ np.uint64(value)) * _GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def note_varying(columns, rows, keys, size, varies):
    """How many columns hold another value than the first of `size` keys for the first time; they are noted."""
    found = 0
    for k in range(len(columns)):
        if not varies[k]:
            first, bits = keys[0, k] if size else columns[k, 0], np.int64(0)
            for i in range(rows):
                bits |= columns[k, i] ^ first
            varies[k] = bits != 0
            found += varies[k]
    return found


@njit(cache=True, nogil=True)
def number_rows(columns, varying, keys, table, size, codes, first, fresh, begin):
    """Number of every row of `columns`, (columns, rows); what is not in `keys` is added and counted on from `size`.

    `varying` are the columns that tell keys apart. `table` holds numbers at their hashed places, -1 elsewhere; its
    length is a power of two and it never fills up. Starts at row `begin` with `fresh` new numbers so far. Returns how
    many are new, with the first row of each in `first`, and the row it stopped at, which is the end or the first row
    that `keys` has no room for.
    """
    mask = np.uint64(len(table) - 1)
    for i in range(begin, len(codes)):
        h = np.uint64(0)
        for k in varying:
            h = _mixed(h, columns[k, i])
        slot = h & mask
        while True:
            number = table[slot]
            if number < 0:
                number = size + fresh
                if number == len(keys):
                    return fresh, i
                table[slot] = number
                for k in range(len(columns)):
                    keys[number, k] = columns[k, i]
                first[fresh] = i
                fresh += 1
                break
            is_same = True
            for k in varying:
                if keys[number, k] != columns[k, i]:
                    is_same = False
                    break
            if is_same:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = number
    return fresh, len(codes)


@njit(cache=True, nogil=True)
def place(keys, varying, size, table):
    """Put the first `size` keys into an empty table."""
    mask = np.uint64(len(table) - 1)
    for number in range(size):
        h = np.uint64(0)
        for k in varying:
            h = _mixed(h, keys[number, k])
        slot = h & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number
