# mypy: allow-untyped-defs
"""Gaps of an order filled, and its weight gradients placed anew: for any order whose B and W are apart, at any costs.

A repeating order leaves gaps in its warm-up and cool-down, where the passes that would fill them in the steady part do
not exist yet or any more. `gaps_filled` moves every pass to the earliest gap of its rank that it fits, if its input is
there and its activations do not lift the rank above the limit at any point in between; no pass begins later than
before. `split_backward` keeps the forwards and input gradients and decides anew where the weight gradients go.
Source: squeezing and reordering of arXiv:2405.15362, section 4.2, there on a grid of equal passes; here in time.

Zero-bubble variants of fused orders: split BW into B and W and run W where a rank would idle.

Every zero-bubble schedule here is an order of forwards and input gradients, which is a pattern, plus weight gradients,
which depend on the costs and on the memory. This module does the second part for all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primus_search.schedule.costs import Floats
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.table import Table

WINDOW = 48
"""How many passes of a rank are looked back at for a gap: without a limit on activations it might be all of them."""


@njit(cache=True)
def _ready(k, s, i, end, comm):
    """When the input of a pass is there; infinite as long as the pass it comes from has not begun."""
    if k == W:
        return 0.0 if end[B, s, i] < np.inf else np.inf
    if k == F:
        return end[F, s - 1, i] + comm[s - 1] if s > 0 else 0.0
    return end[B, s + 1, i] + comm[s] if s + 1 < end.shape[1] else end[F, s, i]


@njit(cache=True)
def gaps_filled(p, m, kind, stage, micro, duration, comm, weight, limit):
    """Makespan, span and columns of the order after every pass has moved to the earliest gap of its rank that it fits.

    Passes of a rank move in the order of its list, so none begins later than before. The makespan is infinite where
    the order cannot run or breaks the limit as it is.
    """
    n, num_stages = len(kind), duration.shape[1]
    rows = n // p
    new_kind, new_stage, new_micro = np.empty(n, np.int8), np.empty(n, np.int16), np.empty(n, np.int32)
    end = np.full((2, num_stages, m), np.inf)
    first, last, held = np.empty(n), np.empty(n), np.empty(n)
    row, open_until = np.arange(p) * rows, np.zeros(p)
    left, moved = n, True
    while moved:
        moved = False
        for r in range(p):
            low = r * rows
            while row[r] < low + rows:
                i = row[r]
                k, s, j = kind[i], stage[i], micro[i]
                ready = end[B, s, j] if k == W else _ready(k, s, j, end, comm)
                if ready == np.inf:
                    break
                change = weight[s] if k == F else (-weight[s] if k == W else 0.0)
                if (held[i - 1] if i > low else 0.0) + change > limit + 1e-9:
                    return np.inf, np.inf, new_kind, new_stage, new_micro
                length = duration[k, s]
                at, begin = i, ready if i == low else max(ready, last[i - 1])
                # A pass of no length gains nothing, and could come before the one of no length that it waits for.
                if length > 0.0 and ready + length <= open_until[r] * (1.0 + 1e-9):
                    at, begin = _gap(low, i, ready, length, max(0.0, change), first, last, held, limit)
                if at == i and (i == low or begin > last[i - 1]):
                    open_until[r] = begin
                for g in range(i, at, -1):
                    first[g], last[g], held[g] = first[g - 1], last[g - 1], held[g - 1] + change
                    new_kind[g], new_stage[g], new_micro[g] = new_kind[g - 1], new_stage[g - 1], new_micro[g - 1]
                new_kind[at], new_stage[at], new_micro[at] = k, s, j
                first[at], last[at] = begin, begin + length
                held[at] = change + (held[at - 1] if at > low else 0.0)
                if k != W:
                    end[k, s, j] = last[at]
                row[r] = i + 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf, np.inf, new_kind, new_stage, new_micro
    makespan, span = 0.0, 0.0
    for r in range(p):
        makespan = max(makespan, last[(r + 1) * rows - 1])
        span = max(span, last[(r + 1) * rows - 1] - first[r * rows])
    return makespan, span, new_kind, new_stage, new_micro


@njit(cache=True)
def _gap(low, high, ready, length, rise, first, last, held, limit):
    """The earliest gap of a rank for a pass, and when it begins there; rows low .. high are placed, in time order.

    `first`, `last`: begin and end of the placed passes; `held`: activations after each of them, none of which may
    exceed the limit with the `rise` of the new pass.
    """
    at, begin = high, max(ready, last[high - 1]) if high > low else ready
    for g in range(high - 1, max(low, high - WINDOW) - 1, -1):
        if first[g] < ready + length - 1e-9 * first[g] or held[g] + rise > limit + 1e-9:
            break
        after = max(ready, last[g - 1]) if g > low else ready
        if after + length <= first[g] + 1e-9 * first[g]:
            at, begin = g, after
    return at, begin


def delay_limits(p: int) -> tuple[Floats, ...]:
    """How much of a W must fit into a gap before it runs there, per rank; all are tried, the fastest is kept.

    A late input gradient delays all ranks before this one, so the first ranks can afford less delay_limit.
    """
    ramp = np.arange(p) / max(1, p - 1)
    return (np.ones(p), ramp, np.full(p, 0.5), 0.5 * ramp, np.minimum(1.0, np.arange(p)), np.zeros(p), np.full(p, -1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledOrder:
    """An order with W passes placed, not yet a table: most of them lose against another one."""

    makespan: float
    span: float
    request: Request
    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    micro_batch: NDArray[np.int32]

    def table(self) -> Table:
        """The table."""
        return self.request.table(self.kind, self.stage, self.micro_batch)


def split_backward(request: Request, pattern: Table, memory_limit: float, delay_limit: Floats,
          lag: NDArray[np.int64] | None = None) -> FilledOrder | None:  # fmt: skip
    """A fused order with its weight gradients placed; None when the pattern itself exceeds the limit.

    F and B keep their order. A rank's oldest W runs before a forward that would break the limit, as soon as more than
    `lag[rank]` of them wait (any number unless given), and before any pass whose input is late by `delay_limit[rank]`
    times that W; with a negative one at once. Gaps are known exactly: nothing on another rank ever waits for a W of
    this one, so a rank decides only once its input has a time.
    """
    links = pattern.links
    if lag is None:
        lag = np.full(request.stages, len(pattern))
    costs = request.costs
    fits, kind, row, makespan, span = _split(
        pattern.offsets, pattern.offsets + pattern.offsets // 2, pattern.kind, pattern.stage, links.source, links.hop,
        costs.duration[:3], costs.comm, costs.activation, memory_limit + TOLERANCE, delay_limit, lag,
    )  # fmt: skip
    if not fits:
        return None
    return FilledOrder(makespan=makespan, span=span, request=request, kind=kind,
                       stage=pattern.stage[row], micro_batch=pattern.micro_batch[row])  # fmt: skip


@njit(cache=True)
def _split(offsets, new_offsets, kind, stage, source, hop, duration, hops, weight, limit, delay_limit, lag):
    """Whether it fits, the new column of kinds, the old row of every new one, and the times of this run."""
    n, p = len(kind), len(offsets) - 1
    new_kind, came_from = np.empty(new_offsets[p], np.int8), np.empty(new_offsets[p], np.int32)
    end, queue = np.full(n, -1.0), np.empty(n // 2, np.int32)
    free, first, held = np.zeros(p), np.full(p, np.inf), np.zeros(p)
    following, out = offsets[:p].copy(), new_offsets[:p].copy()
    head, tail = offsets[:p] // 2, offsets[:p] // 2
    left, moved = n, True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            while following[r] < offsets[r + 1]:
                i = following[r]
                s, k, needs = stage[i], F if kind[i] == F else B, source[i]
                is_known = needs < 0 or end[needs] >= 0.0
                ready = end[needs] + hops[hop[i]] if is_known and needs >= 0 else 0.0
                is_full = k == F and held[r] + weight[s] > limit
                waiting = tail[r] - head[r]
                if is_full and waiting == 0:
                    return False, new_kind, came_from, 0.0, 0.0
                if waiting > 0:
                    row, gap = queue[head[r]], ready - free[r]
                    w = duration[W, stage[row]]
                    fills = is_known and (delay_limit[r] < 0.0 or (gap >= delay_limit[r] * w and gap > 0.0))
                    if is_full or waiting > lag[r] or fills:
                        new_kind[out[r]], came_from[out[r]] = W, row
                        out[r] += 1
                        head[r] += 1
                        free[r] += w
                        held[r] -= weight[stage[row]]
                        continue
                if not is_known:
                    break
                new_kind[out[r]], came_from[out[r]] = k, i
                out[r] += 1
                start = max(free[r], ready)
                first[r] = min(first[r], start)
                end[i] = free[r] = start + duration[k, s]
                if k == F:
                    held[r] += weight[s]
                else:
                    queue[tail[r]] = i
                    tail[r] += 1
                following[r] = i + 1
                left -= 1
                moved = True
    for r in range(p):
        for row in queue[head[r] : tail[r]]:
            new_kind[out[r]], came_from[out[r]] = W, row
            out[r] += 1
            free[r] += duration[W, stage[row]]
    return True, new_kind, came_from, free.max(), (free - first).max()
