"""The fastest of several orders within a memory limit, in a bounded time.

Contestants are published patterns (with their weight gradients woven in) and orders dispatched in time under several
policies. Patterns win where costs are even, dispatching where they are not. The contest ends early when an order
reaches the lower bound. Policies first compete on fewer micro-batches: what decides among them is the warm-up, the
cool-down and the steady pace, and all three show there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from primus_search.schedule.anneal import anneal
from primus_search.schedule.bounds import bound
from primus_search.schedule.dispatch import POLICIES, Dispatched, Policy, as_table, dispatch
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulate import peak_activations, run
from primus_search.schedule.table import Table
from primus_search.schedule.v_patterns import Legs
from primus_search.schedule.v_search import best_walk, heat_microbatches
from primus_search.schedule.weave import patiences, weave

HEAT_ROWS = 60_000
"""Passes that all heats together may dispatch, about 15 ms."""

LARGE_ROWS = 12_000
"""Passes above which few policies are tried, and none where a pattern is good enough."""

GOOD = 0.03
"""Distance to the lower bound at which a large pipeline is not dispatched any more."""

POLISH_WORK = 20_000_000
"""Row evaluations that the local search at the end may spend, about 0.15 s; only small pipelines have one."""

CLOSE = 1e-9
"""Relative distance to the lower bound that counts as reaching it."""


@dataclass(slots=True)
class _Leader:
    """The best order so far: (makespan, span), and how to make its table."""

    grain: float
    score: tuple[float, float] = (np.inf, np.inf)
    table: Callable[[], Table] | None = None

    def challenge(self, makespan: float, span: float, table: Callable[[], Table]) -> None:
        score = (round(makespan / self.grain), round(span / self.grain))
        if score < self.score:
            self.score, self.table = score, table


def fastest_within(
    request: Request, limit: float, patterns: Iterable[Table] = (), legs: tuple[Legs, ...] = ()
) -> Table:
    """The order of least makespan, then span, whose activations stay within `limit` on every rank.

    `patterns` have fused gradients; `legs` are repeating paths of the V placement. Raises `ScheduleError` when not
    even one micro-batch fits.
    """
    floor = bound(request, limit)
    grain = 1e-11 * floor or 1.0
    leader = _Leader(grain)
    enough = floor * (1.0 + CLOSE) / grain
    leanest = np.inf
    for pattern in patterns:
        leanest = min(leanest, float(peak_activations(pattern, request.costs.activation).max()))
        for patience in patiences(request.stages):
            woven = weave(request, pattern, limit, patience)
            if woven is None:
                break
            leader.challenge(woven.makespan, woven.span, woven.table)
            if leader.table is not None and leader.score[0] <= enough:
                return leader.table()
    to_beat = np.inf
    if legs:
        walked = best_walk(request, limit, legs, enough * grain)
        if walked is not None:
            to_beat = walked.heat_makespan
            leader.challenge(walked.makespan, walked.span, partial(walked.table, request, limit))
            if leader.table is not None and leader.score[0] <= enough:
                return leader.table()
    if _is_large(request) and leader.score[0] <= (1.0 + GOOD) * enough and leader.table is not None:
        return leader.table()
    for policy in _finalists(request, limit, to_beat):
        found = dispatch(request, policy, limit, False)
        if found is None:
            continue
        table = as_table(request, found.kind, found.stage, found.micro_batch)
        leader.challenge(found.makespan, run(table, request.costs).span, partial(_same, table))
        if leader.score[0] <= enough:
            break
    if leader.table is None:
        raise request.refuse(
            f"the leanest order holds {leanest:g} micro-batches of activations, the memory limit is {limit:g}"
        )
    return _polished(request, leader.table(), leader.score[0] * grain, limit, enough * grain)


def _polished(request: Request, table: Table, makespan: float, limit: float, target: float) -> Table:
    """The order after local search on single passes, where the pipeline is small enough for it."""
    start = Dispatched(makespan=makespan, kind=table.kind, stage=table.stage, micro_batch=table.micro_batch)
    found = anneal(request, start, limit, False, target, POLISH_WORK)
    if found.makespan >= makespan * (1.0 - CLOSE):
        return table
    return as_table(request, found.kind, found.stage, found.micro_batch)


def _same(table: Table) -> Table:
    return table


def _is_large(request: Request) -> bool:
    """Whether dispatching once takes milliseconds."""
    return 3 * request.stages * request.virtual_stages * request.microbatches > LARGE_ROWS


def _finalists(request: Request, limit: float, to_beat: float) -> list[Policy]:
    """The policies worth dispatching in full, best first; where the pipeline is large only those that beat a heat."""
    usable = [policy for policy in POLICIES if request.virtual_stages > 1 or not policy.trusts_drain]
    per_micro = 3 * request.stages * request.virtual_stages
    whole = request.microbatches * per_micro
    if whole * len(usable) <= HEAT_ROWS:
        return usable
    if np.isfinite(to_beat):
        usable, short = usable[:3], heat_microbatches(request)
    elif _is_large(request):
        usable, short = usable[:2], heat_microbatches(request)
    else:
        short = min(request.microbatches, max(2 * request.stages, HEAT_ROWS // (per_micro * len(usable))))
    heat = replace(request, microbatches=short)
    times: list[tuple[float, int]] = []
    for rank, policy in enumerate(usable):
        found: Dispatched | None = dispatch(heat, policy, limit, False)
        if found is not None and found.makespan < to_beat:
            times.append((found.makespan, rank))
    times.sort()
    finals = 3 if not _is_large(request) and not np.isfinite(to_beat) else 1
    return [usable[rank] for _, rank in times[:finals]]


def own_limit(request: Request, units: float) -> float:
    """The memory a schedule defines for itself, or the caller's limit if that is tighter."""
    return min(request.memory_limit, units + TOLERANCE)
