"""V-Half and V-Min as AMD Primus runs them: a pattern for equal passes, squeezed, whatever the passes really take.

Time is a grid of unit passes. Every micro-batch repeats one path 6 units later; weight gradients take the free units
behind their input gradients; then passes move to the earliest free unit, first everywhere within the highest memory of
the pattern, then once more behind the last forward, where memory only falls.
Source: Qi et al. 2024 (arXiv:2405.15362), section 4; primus/core/pipeline_parallel/scheduler/algorithms/zbv_greedy.py.
"""

import numpy as np
from numba import njit

from primus_search.schedule.registry import Request, register
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.table import Ints, Placement, Table

PERIOD = 6
"""Units of grid time between two micro-batches: as many as one of them has passes on a rank."""

FREE = -1


@register("v-half", summary="V-Half for equal passes, as AMD Primus runs it", launchers=("primus",),
          placement=Placement.V, virtual_stages=(2,), splits_weight=True)  # fmt: skip
def v_half(request: Request) -> Table:
    """Peak (p + 2) // 2: forwards and gradients on the way down take two units a rank."""
    p, rank = request.stages, np.arange(request.stages)
    wait = 0 if p % 2 else 3
    return _squeezed(request, 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + wait + 2 * rank, 6 * p - 2 + wait - rank)


@register("v-min", summary="V-Min for equal passes, as AMD Primus runs it", launchers=("primus",),
          placement=Placement.V, virtual_stages=(2,), splits_weight=True)  # fmt: skip
def v_min(request: Request) -> Table:
    """Peak (p + 4) // 3: one unit a rank both ways."""
    p, rank = request.stages, np.arange(request.stages)
    wait = 0 if p % 3 else 2
    return _squeezed(request, rank, 2 * p - 1 - rank, 2 * p + wait + rank, 4 * p - 1 + wait - rank)


def _squeezed(request: Request, *legs: Ints) -> Table:
    """The order whose micro-batch 0 has F down, F up, B down and B up the V at these units of every rank."""
    kind, stage, micro = _generated(request.stages, request.microbatches, np.stack(legs, axis=1))
    return request.table(kind, stage, micro)


@njit(cache=True)
def _generated(p, m, start):  # type: ignore[no-untyped-def]
    """Columns of the order; `start[rank, leg]` of micro-batch 0."""
    length = PERIOD * (m + p) + 2 * start.max() + 4
    # Passes by grid time: (kind * 2p + stage) * m + micro-batch.
    grid, is_last = np.full((p, length), FREE), np.zeros((p, length), np.bool_)
    time = np.zeros(6 * p * m, np.int64)
    for r in range(p):
        for j in range(m):
            for leg in range(4):
                kind, stage = (F if leg < 2 else B), (r if leg == 0 or leg == 3 else 2 * p - 1 - r)
                number, at = (kind * 2 * p + stage) * m + j, start[r, leg] + PERIOD * j
                grid[r, at], time[number] = number, at
    held = np.zeros((p, length), np.int64)
    for r in range(p):
        _weights_behind(grid[r], is_last[r], held[r], time, 2 * p, m)
    most, end = held.max(), 0
    for t in range(length):
        if grid[:, t].max() > FREE:
            end = t
    for t in range(end + 1):
        for r in range(p):
            if grid[r, t] > FREE:
                _earlier(grid[r], is_last[r], held[r], time, t, 2 * p, m, most)
    _behind_last_forwards(grid, is_last, time, 2 * p, m)
    kinds, stages, micros = np.empty(6 * p * m, np.int8), np.empty(6 * p * m, np.int16), np.empty(6 * p * m, np.int32)
    row = 0
    for r in range(p):
        for number in grid[r]:
            if number > FREE:
                kinds[row], stages[row], micros[row] = number // (2 * p * m), number // m % (2 * p), number % m
                row += 1
    return kinds, stages, micros


@njit(cache=True)
def _weights_behind(grid, is_last, held, time, stages, m):  # type: ignore[no-untyped-def]
    """Put the weight gradients of a rank into free units; tell which passes come behind its last forward."""
    waiting = np.empty(2 * m, np.int64)
    first, count, over, now = 0, 0, False, 0
    for t in range(len(grid)):
        number = grid[t]
        is_last[t] = over
        if number > FREE:
            if number // (stages * m) == B:
                waiting[count] = number + stages * m
                count += 1
                over &= number % m > 0 or number // m % stages >= stages // 2
            else:
                now += 1
                over |= number % m == m - 1 and number // m >= stages // 2
        elif first < count:
            grid[t], time[waiting[first]] = waiting[first], t
            first += 1
            now -= 1
        held[t] = now


@njit(cache=True)
def _ready(number, time, stages, m):  # type: ignore[no-untyped-def]
    """First unit in which a pass may run, as far as its inputs and the micro-batch before it say."""
    kind, stage, j = number // (stages * m), number // m % stages, number % m
    at = time[number - 1] if j > 0 else 0
    if kind == W:
        return max(at, time[number - stages * m])
    if kind == F and stage > 0:
        at = max(at, time[number - m])
    elif kind == B:
        at = max(at, time[number + m] if stage < stages - 1 else time[number - stages * m])
    return at + 1


@njit(cache=True)
def _earlier(grid, is_last, held, time, t, stages, m, most):  # type: ignore[no-untyped-def]
    """Move the pass at t to its earliest free unit within the memory `most`."""
    number = grid[t]
    kind = number // (stages * m)
    change = 1 if kind == F else -1 if kind == W else 0
    for to in range(_ready(number, time, stages, m), t):
        if grid[to] == FREE and held[to:t].max() + change <= most:
            held[to:t] += change
            grid[to], is_last[to], time[number] = number, is_last[t], to
            grid[t] = FREE
            return


@njit(cache=True)
def _behind_last_forwards(grid, is_last, time, stages, m):  # type: ignore[no-untyped-def]
    """Move input gradients behind the last forward as early as they go; their weight gradients take what is left."""
    p, length = grid.shape
    waiting, count = np.empty((p, 2 * m), np.int64), np.zeros(p, np.int64)
    for t in range(length):
        for r in range(p):
            number = grid[r, t]
            if number == FREE or not is_last[r, t]:
                continue
            grid[r, t] = FREE
            if number // (stages * m) == W:
                waiting[r, count[r]] = number
                count[r] += 1
                continue
            to = _ready(number, time, stages, m)
            while to < t and grid[r, to] > FREE:
                to += 1
            to = min(to, t)
            grid[r, to], time[number] = number, to
    for r in range(p):
        for number in waiting[r, : count[r]]:
            to = _ready(number, time, stages, m)
            while grid[r, to] > FREE:
                to += 1
            grid[r, to], time[number] = number, to
