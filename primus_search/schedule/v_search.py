# mypy: allow-untyped-defs
"""V orders for given costs and memory: a path repeated every period, and local search over that path.

`walk` runs the order that a path implies while it forms: each rank takes the pass that is next in the path's time,
puts weight gradients where it would idle or needs the memory, and postpones a forward that does not fit. `climb`
changes one hop of the path at a time and keeps what is no slower. Everything repeats: a path found on some
micro-batches serves any number of them.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.table import Table
from primus_search.schedule.v_patterns import Legs, candidate_paths
from primus_search.schedule.weave import patiences

F, B, W = 0, 1, 2

HEAT_WORK = 100_000
"""Forward and backward passes that the heat on few micro-batches may walk in all, about 6 ms."""

FINALISTS = 4
"""Orders that go on from the heat to all micro-batches; fewer where one costs milliseconds."""

CLIMB_ROWS = 8192
"""Passes up to which a path is improved by local search; larger pipelines keep the best path of the heat."""

CLIMB_WORK = 6_000_000
"""Forward and backward passes that local search may walk in all, about 0.3 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """A path's order at a request: its times, and how to write it down."""

    makespan: float
    span: float
    path: Floats
    period: float
    patience: Floats
    heat_makespan: float

    def table(self, request: Request, limit: float) -> Table:
        """The order as a table."""
        p, m = request.stages, request.microbatches
        kind, stage = np.empty(6 * p * m, np.int8), np.empty(6 * p * m, np.int16)
        micro = np.empty(6 * p * m, np.int32)
        _walk(request, self.path, self.period, limit, self.patience, m, (kind, stage, micro))
        return Table(
            name=request.name,
            stages=p,
            microbatches=m,
            virtual_stages=2,
            placement=request.placement,
            offsets=np.arange(p + 1, dtype=np.int64) * 6 * m,
            kind=kind,
            stage=stage,
            micro_batch=micro,
            overlaps_next=np.zeros(len(kind), dtype=np.bool_),
        )


def best_walk(request: Request, limit: float, legs: tuple[Legs, ...], enough: float) -> Walked | None:
    """The fastest repeating V order found within `limit`; stops at a makespan of `enough`. None if nothing runs."""
    m = request.microbatches
    short = heat_microbatches(request)
    heat = []
    small = 6 * request.stages * m <= CLIMB_ROWS
    styles = patiences(request.stages)
    styles = styles if small else (styles[0], styles[5])
    entries = [(path, period, patience) for patience in styles for path, period in candidate_paths(request, legs)]
    entries = entries[: max(8, (5 if small else 1) * HEAT_WORK // (4 * request.stages * short))]
    for rank, (path, period, patience) in enumerate(entries):
        makespan, span = _walk(request, path, period, limit, patience, short)
        heat.append((makespan, span, rank, path, period, patience))
    heat.sort(key=lambda each: each[:3])
    finalists = FINALISTS if small else 2
    best: Walked | None = None
    sprint = heat[0][0]
    for _, _, _, path, period, patience in heat[:finalists]:
        makespan, span = _walk(request, path, period, limit, patience, m)
        best = _better(best, _walked(makespan, span, path, period, patience, sprint))
        if best is not None and best.makespan <= enough:
            return best
    if best is None or not small:
        return best
    costs, passes = request.costs, 4 * request.stages * m
    tries = min(2000, CLIMB_WORK // passes) // 2
    for path, period, patience in ((best.path, best.period, best.patience), heat[1][3:]):
        climbed, _ = climb(request.stages, m, path, period, costs.duration[:3], costs.comm, costs.activation, limit,
                           patience, tries, 1, enough)  # fmt: skip
        makespan, span = _walk(request, climbed, period, limit, patience, m)
        best = _better(best, _walked(makespan, span, climbed, period, patience, sprint))
    return best


def _walked(makespan: float, span: float, path: Floats, period: float, patience: Floats, sprint: float) -> Walked:
    return Walked(makespan=makespan, span=span, path=path, period=period, patience=patience, heat_makespan=sprint)


def heat_microbatches(request: Request) -> int:
    """Micro-batches on which orders compete before all of them are run: warm-up, cool-down and some steady pace."""
    return min(request.microbatches, 2 * request.stages + 2)


def _better(best: Walked | None, other: Walked) -> Walked | None:
    if not np.isfinite(other.makespan):
        return best
    slack = TOLERANCE * other.makespan
    if best is None or other.makespan < best.makespan - slack:
        return other
    return other if other.makespan <= best.makespan + slack and other.span < best.span - slack else best


def _walk(request: Request, path: Floats, period: float, limit: float, patience: Floats, m: int,
          columns: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None) -> tuple[float, float]:  # fmt: skip
    costs = request.costs
    none = (np.empty(0, np.int8), np.empty(0, np.int16), np.empty(0, np.int32))
    times: tuple[float, float] = walk(
        request.stages, m, path, period, costs.duration[:3], costs.comm, costs.activation, min(limit, 1e18), patience,
        *(none if columns is None else columns), columns is not None,
    )  # fmt: skip
    return times


@njit(cache=True)
def walk(p, m, path, period, duration, hops, weight, limit, patience, kind, stage, micro, write):
    """Makespan and span of a path's order; infinite when it exceeds `limit` or deadlocks.

    `path[s]`: time of F(s) of micro-batch 0; `path[4p - 1 - s]`: of B(s). With `write` the columns are filled, 6m rows
    per rank. `patience[rank]`: the share of a W that must fit into a gap before it runs there; negative: at once.
    """
    stages = 2 * p
    end = np.full((2, stages, m), -1.0)
    nxt = np.zeros((p, 4), np.int64)
    free, first, held = np.zeros(p), np.full(p, -1.0), np.zeros(p)
    queue_stage, queue_micro = np.empty((p, 2 * m), np.int64), np.empty((p, 2 * m), np.int64)
    head, tail = np.zeros(p, np.int64), np.zeros(p, np.int64)
    out = np.arange(p) * 6 * m
    left = 4 * p * m
    moved = True
    while left > 0 and moved:
        moved = False
        for r in range(p):
            up = stages - 1 - r
            while nxt[r, 0] + nxt[r, 1] + nxt[r, 2] + nxt[r, 3] < 4 * m:
                chosen, due, blocked = -1, np.inf, False
                for leg in range(4):
                    i = nxt[r, leg]
                    if i >= m or (leg == 1 and i >= nxt[r, 0]) or (leg == 2 and i >= nxt[r, 1]):
                        continue
                    if leg == 3 and i >= nxt[r, 2]:
                        continue
                    s = r if leg == 0 or leg == 3 else up
                    at = path[s] if leg < 2 else path[2 * stages - 1 - s]
                    at += i * period
                    if at < due - 1e-9 * period:
                        if leg < 2 and held[r] + weight[s] > limit + 1e-9 and head[r] == tail[r]:
                            blocked = True
                            continue
                        chosen, due = leg, at
                if chosen < 0:
                    if blocked:
                        return np.inf, np.inf
                    break
                i = nxt[r, chosen]
                s = r if chosen == 0 or chosen == 3 else up
                ready, known = 0.0, True
                if chosen < 2 and s > 0:
                    known = end[F, s - 1, i] >= 0.0
                    ready = end[F, s - 1, i] + hops[s - 1]
                elif chosen >= 2 and s < stages - 1:
                    known = end[B, s + 1, i] >= 0.0
                    ready = end[B, s + 1, i] + hops[s]
                run_weight = False
                if head[r] < tail[r]:
                    w = duration[W, queue_stage[r, head[r]]]
                    if (chosen < 2 and held[r] + weight[s] > limit + 1e-9) or patience[r] < 0.0:
                        run_weight = True
                    elif not known:
                        break
                    elif ready - free[r] >= patience[r] * w and ready > free[r]:
                        run_weight = True
                if run_weight:
                    q = head[r]
                    head[r] += 1
                    free[r] += duration[W, queue_stage[r, q]]
                    held[r] -= weight[queue_stage[r, q]]
                    if write:
                        kind[out[r]], stage[out[r]], micro[out[r]] = W, queue_stage[r, q], queue_micro[r, q]
                        out[r] += 1
                    continue
                if not known:
                    break
                k = F if chosen < 2 else B
                start = max(free[r], ready)
                if first[r] < 0.0:
                    first[r] = start
                free[r] = start + duration[k, s]
                end[k, s, i] = free[r]
                if write:
                    kind[out[r]], stage[out[r]], micro[out[r]] = k, s, i
                    out[r] += 1
                if k == F:
                    held[r] += weight[s]
                else:
                    queue_stage[r, tail[r]], queue_micro[r, tail[r]] = s, i
                    tail[r] += 1
                nxt[r, chosen] += 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf, np.inf
    makespan, span = 0.0, 0.0
    for r in range(p):
        for q in range(head[r], tail[r]):
            free[r] += duration[W, queue_stage[r, q]]
            if write:
                kind[out[r]], stage[out[r]], micro[out[r]] = W, queue_stage[r, q], queue_micro[r, q]
                out[r] += 1
        makespan, span = max(makespan, free[r]), max(span, free[r] - first[r])
    return makespan, span


@njit(cache=True)
def climb(p, m, path, period, duration, hops, weight, limit, patience, tries, seed, target):
    """The best path found from `path` in at most `tries` walks, with its makespan; stops at `target`."""
    steps = 4 * p
    none8, none16, none32 = np.empty(0, np.int8), np.empty(0, np.int16), np.empty(0, np.int32)
    best = path.copy()
    trial = path.copy()
    score, span = walk(p, m, best, period, duration, hops, weight, limit, patience, none8, none16, none32, False)
    state = np.uint64(seed * 2654435761 + 88172645463325252)
    for _ in range(tries):
        if score <= target:
            break
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        at = 1 + int((state >> np.uint64(8)) % np.uint64(steps - 1))
        size = period / 6.0 / float(1 << int((state >> np.uint64(40)) % np.uint64(3)))
        if (state >> np.uint64(50)) & np.uint64(1):
            size = -size
        alone = bool((state >> np.uint64(52)) & np.uint64(1))
        trial[:] = best
        if alone:
            trial[at] += size
        else:
            trial[at:] += size
        if trial[at] < trial[at - 1] or (at + 1 < steps and trial[at + 1] < trial[at]):
            continue
        new, new_span = walk(p, m, trial, period, duration, hops, weight, limit, patience, none8, none16, none32, False)
        if new < score - 1e-9 * period or (new <= score + 1e-9 * period and new_span <= span + 1e-9 * period):
            best[:] = trial
            score, span = new, new_span
    return best, score
