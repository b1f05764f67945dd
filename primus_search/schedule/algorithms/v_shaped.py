"""V-shaped schedules: ZBV, V-Half, V-Min, the adaptive V-auto and 1F1B-V (Qi et al. 2024, arXiv:2405.15362).

Each rank holds one chunk of the way down and one of the way up, so the last stage is on rank 0 and all ranks can hold
equally much. The three differ in that memory: p, about p/2, about p/3 micro-batches. The published orders are built
for F = B = W and lose 11 % and 32 % of the bound at 10, 14, 6; here each is the fastest order that is found within the
published memory at the costs that are given.

V-Half and V-Min as AMD Primus runs them: a pattern for equal passes, squeezed, whatever the passes really take.

Time is a grid of unit passes. Every micro-batch repeats one path 6 units later; weight gradients take the free units
behind their input gradients; then passes move to the earliest free unit, first everywhere within the highest memory of
the pattern, then once more behind the last forward, where memory only falls.
Source: Qi et al. 2024 (arXiv:2405.15362), section 4; primus/core/pipeline_parallel/scheduler/algorithms/zbv_greedy.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from primus_search.schedule import optimise
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import Request, register
from primus_search.schedule.simulation.pass_kernels import BW, B, F, W
from primus_search.schedule.table import Ints, PassKind, Placement, Table

_v = partial(register, placement=Placement.V, virtual_stages=(2,))


@_v("zbv", summary="V placement, zero bubble, memory of 1F1B", splits_weight=True, cost_aware=True)
def zbv(request: Request) -> Table:
    """Span bubble 0 at F=B=W, peak p."""
    return optimise.fastest_v(request, request.own_limit(request.stages), published_zbv)


@_v("v-half", summary="V placement in about half the memory of 1F1B", splits_weight=True, cost_aware=True)
def v_half(request: Request) -> Table:
    """Peak (p + 2) // 2."""
    return optimise.fastest_v(request, request.own_limit((request.stages + 2) // 2))


@_v("v-min", summary="V placement in about a third of the memory of 1F1B", splits_weight=True, cost_aware=True)
def v_min(request: Request) -> Table:
    """Peak (p + 4) // 3."""
    return optimise.fastest_v(request, request.own_limit((request.stages + 4) // 3))


@_v("v-auto", summary="fastest V order within the memory limit", splits_weight=True, cost_aware=True)
def v_auto(request: Request) -> Table:
    """V placement, any memory limit, aware of the costs."""
    return optimise.fastest_v(request, request.memory_limit, published_zbv)


@_v("1f1b-v", summary="V placement, fused backward, two thirds of the memory of 1F1B", cost_aware=True)
def one_f_one_b_v(request: Request) -> Table:
    """Peak 2p // 3 + 1, that of the published building block; at least 2."""
    units = max(2, 2 * request.stages // 3 + 1)
    costs = request.costs
    fused = replace(request, costs=replace(costs, backward=costs.fused, weight=np.zeros_like(costs.weight)))
    return _fuse(optimise.fastest_v(fused, request.own_limit(units)))


def _fuse(table: Table) -> Table:
    """A table whose W passes take no time, with each one back in its B."""
    kept = table.kind != PassKind.W
    kind = np.where(table.kind == PassKind.B, np.int8(PassKind.BW), table.kind)[kept]
    sizes = np.add.reduceat(kept.astype(np.int64), table.offsets[:-1])
    return replace(
        table,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        kind=kind,
        stage=table.stage[kept],
        micro_batch=table.micro_batch[kept],
        overlaps_next=table.overlaps_next[kept],
    )


def published_zbv(request: Request) -> Iterator[Table]:
    """ZBV as drawn in the paper, W left to be placed: the only order without a bubble on any rank at F=B=W."""
    if request.microbatches >= 2 * request.stages:
        yield _of_legs(request, fused=True)


@_v("zbv", summary="ZBV as drawn in the paper, as AMD Primus runs it (zbv-formatted)", launchers=("primus",),
    splits_weight=True, serves=lambda p, m: m >= 2 * p - 1,
    needs="Primus runs at least 2 * stages - 1 micro-batches, however many there are")  # fmt: skip
@_v("zbv", summary="ZBV as drawn in the paper, as torch runs it", launchers=("torchtitan",), splits_weight=True)
def drawn_zbv(request: Request) -> Table:
    """Every W behind its B but in the cool-down. With few micro-batches torch leaves out the passes of others.

    Source: torch.distributed.pipelining ScheduleZBVZeroBubble and, from it, Primus' zbv_formatted.py.
    """
    return _of_legs(request, fused=False)


F0, F1, B0, B1, W0, W1 = range(6)
"""Legs of a rank: forward, input gradient, weight gradient of its chunk on the way down (0) and up (1)."""


def _of_legs(request: Request, *, fused: bool) -> Table:
    """ZBV with both gradients fused, or apart as its authors draw it."""
    p, m = request.stages, request.microbatches
    n = max(m, 2 * p - 1)
    ranks = []
    for r in range(p):
        ahead = p - r
        runs = (([F0], 2 * ahead - 1), ([F1, F0], r), ([F1, B1, W1], ahead),
                ([F0, B0, W0, F1, B1, W1], n - p - ahead + 1), ([B0, W0, F1, B1, W1], ahead - 1),
                ([B0, B1], r), ([B0, W0], ahead), ([W1], r), ([W0], r))  # fmt: skip
        leg = np.concatenate([np.tile(run, times) for run, times in runs])
        micro = np.empty_like(leg)
        for each in range(6):
            rows = np.flatnonzero(leg == each)
            micro[rows] = np.arange(len(rows))
        kept = (micro < m) & ~(fused & (leg >= W0))
        leg, micro = leg[kept], micro[kept]
        ranks.append((np.array([F, BW if fused else B, W])[leg // 2], np.where(leg % 2, 2 * p - 1 - r, r), micro))
    kind, stage, micro = (np.concatenate(column) for column in zip(*ranks, strict=True))
    return request.table(kind.astype(np.int8), stage.astype(np.int16), micro.astype(np.int32))


PERIOD = 6
"""Units of grid time between two micro-batches: as many as one of them has passes on a rank."""

FREE = -1


@_v("v-half", summary="V-Half for equal passes, as AMD Primus runs it", launchers=("primus",), splits_weight=True)
def v_half_of_primus(request: Request) -> Table:
    """Peak (p + 2) // 2: forwards and gradients on the way down take two units a rank."""
    p, rank = request.stages, np.arange(request.stages)
    wait = 0 if p % 2 else 3
    return _squeezed(request, 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + wait + 2 * rank, 6 * p - 2 + wait - rank)


@_v("v-min", summary="V-Min for equal passes, as AMD Primus runs it", launchers=("primus",), splits_weight=True)
def v_min_of_primus(request: Request) -> Table:
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
            for at in range(to, t):
                held[at] += change
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
