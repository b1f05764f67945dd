"""A longer run of the same order: more of the periods it already repeats, everything else as it is.

An order found on few micro-batches serves any number of them: in the middle of the run every rank repeats its passes
for later micro-batches, and more such periods go in there. The warm-up, the cool-down and the activations held stay
the same. Nothing is assumed about the result: its links are resolved and its times are computed like any other's.
"""

from dataclasses import replace

import numpy as np
from numba import njit

from primus_search.schedule.table import Table


def extended(table: Table, microbatches: int) -> Table | None:
    """The order for more micro-batches; None where it does not repeat in a way that gives this number."""
    more = microbatches - table.microbatches
    if more == 0:
        return table
    rows = len(table) // table.stages
    per_micro = rows // table.microbatches
    if table.has_pairs or per_micro * table.microbatches * table.stages != len(table):
        return None
    for shift in _shifts(more, table.microbatches // 2):
        cuts = _cuts(table.kind, table.stage, table.micro_batch, table.stages, shift * per_micro, shift)
        if cuts[-1] < 0:
            continue
        longer = _longer(table, cuts, shift, shift * per_micro, more // shift, microbatches)
        if longer.is_finite:
            return longer
    return None


def _shifts(more: int, most: int) -> list[int]:
    """Micro-batches per period that divide what is missing, few first."""
    return [shift for shift in range(1, min(more, most) + 1) if more % shift == 0]


def _longer(table: Table, cuts: np.ndarray, shift: int, step: int, times: int, microbatches: int) -> Table:
    rows = len(table) // table.stages + times * step
    kind, stage, micro = _insert(table.kind, table.stage, table.micro_batch, cuts, step, shift, times, rows)
    return replace(
        table,
        microbatches=microbatches,
        offsets=np.arange(table.stages + 1, dtype=np.int64) * rows,
        kind=kind,
        stage=stage,
        micro_batch=micro,
        overlaps_next=np.zeros(len(kind), dtype=np.bool_),
    )


@njit(cache=True)
def _cuts(kind, stage, micro, p, step, shift):  # type: ignore[no-untyped-def]
    """Per rank the first row of a period that can be repeated; the last entry is -1 if there is none.

    Row i repeats when row i + step is the same pass, `shift` micro-batches later. The period begins on every rank with
    the forward of the same micro-batch, so that what is put in fits together: the middle one of the longest stretch of
    micro-batches from which all ranks repeat.
    """
    rows = len(kind) // p
    m = micro.max() + 1
    cuts, repeats, begins = np.full(p + 1, -1, np.int64), np.zeros(m, np.int64), np.empty((p, m), np.int64)
    for r in range(p):
        low, run = r * rows, 0
        for i in range(low + rows - step - 1, low - 1, -1):
            j = i + step
            same = kind[i] == kind[j] and stage[i] == stage[j] and micro[i] + shift == micro[j]
            run = run + 1 if same else 0
            if kind[i] == 0 and stage[i] == stage[low]:
                begins[r, micro[i]] = i - low
                repeats[micro[i]] += run >= step
    longest, stretch, best = 0, 0, -1
    for j in range(m):
        stretch = stretch + 1 if repeats[j] == p else 0
        if stretch > longest:
            longest, best = stretch, j - stretch // 2
    if best >= 0:
        cuts[:p] = begins[:, best]
        cuts[p] = 0
    return cuts


@njit(cache=True)
def _insert(kind, stage, micro, cuts, step, shift, times, rows):  # type: ignore[no-untyped-def]
    """Columns with the period at each cut run `times` more often."""
    p = len(cuts) - 1
    old = len(kind) // p
    new_kind, new_stage = np.empty(p * rows, np.int8), np.empty(p * rows, np.int16)
    new_micro = np.empty(p * rows, np.int32)
    for r in range(p):
        to = r * rows
        for turn in range(times + 1):
            begin = 0 if turn == 0 else cuts[r]
            end = cuts[r] + step if turn < times else old
            for i in range(begin, end):
                row = r * old + i
                new_kind[to], new_stage[to], new_micro[to] = kind[row], stage[row], micro[row] + turn * shift
                to += 1
    return new_kind, new_stage, new_micro
