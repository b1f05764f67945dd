"""The fastest order under a memory limit, whatever it takes: known patterns, dispatching, then local search.

Patterns are given by the caller (they are best where costs are even and the pipeline is long), dispatching reacts to
uneven costs, local search finishes small pipelines. How much is tried shrinks with the number of passes, so that a
pipeline of 32 ranks and 512 micro-batches still answers within a tenth of a second.
"""

from collections.abc import Iterable

import numpy as np

from primus_search.schedule import bounds
from primus_search.schedule.anneal import anneal
from primus_search.schedule.dispatch import POLICIES, Dispatched, as_table, dispatch, rows_per_rank
from primus_search.schedule.registry import TOLERANCE, Request
from primus_search.schedule.simulate import Timeline, run
from primus_search.schedule.table import Kind, Table, rank_of_stage

DISPATCHED_ROWS = 50_000
"""Passes that all dispatching policies together may place, about 15 ms; at least two policies always run."""


def adaptive(request: Request, patterns: Iterable[Table], *, limit: float, half_at_b: bool = False) -> Table:
    """The order of least makespan within `limit`; of equal ones the first found.

    `limit` is in micro-batches through one full rank, activations released at W, or half at B with `half_at_b`.
    Raises `ScheduleError` when not even one micro-batch fits.
    """
    best: Dispatched | None = None
    tried = max(2, DISPATCHED_ROWS // (rows_per_rank(request) * request.stages))
    for policy in POLICIES[:tried]:
        if policy.trusts_drain and request.virtual_stages == 1:
            continue
        best = _better(best, dispatch(request, policy, limit, half_at_b))
    for pattern in patterns:
        best = _better(best, _split(request, pattern, limit, half_at_b))
    if best is None:
        raise request.refuse(
            f"one micro-batch needs {_least(request):g} micro-batches of activations on a rank, the limit is {limit:g}"
        )
    best = anneal(request, best, limit, half_at_b, floor(request, np.inf if half_at_b else limit))
    return as_table(request, best.kind, best.stage, best.micro_batch)


def floor(request: Request, limit: float = np.inf) -> float:
    """A makespan no order can beat: the chain of one micro-batch, and each rank's wait, work and way out."""
    costs, m = request.costs, request.microbatches
    ranks = rank_of_stage(request.placement, request.stages, request.virtual_stages)
    passes = costs.duration[:3]
    arrive = np.concatenate([[0.0], np.cumsum(costs.forward + costs.comm)[:-1]])
    leave = np.concatenate([[0.0], np.cumsum(costs.backward[:-1] + costs.comm[:-1])])
    out = leave + np.maximum.accumulate(costs.weight - leave)
    chain = costs.forward.sum() + costs.backward.sum() + 2.0 * costs.comm[:-1].sum() + costs.weight[0]
    bound = float(chain)
    for rank in range(request.stages):
        mine = ranks == rank
        work = m * float(passes[:, mine].sum())
        # The rank's last pass is a W, or an input gradient whose way to stage 0 is still ahead.
        bound = max(bound, float(arrive[mine].min()) + work, work + min(0.0, float(out[mine].min())))
    return max(bound, bounds.bound(request, limit))


def _better(best: Dispatched | None, other: Dispatched | None) -> Dispatched | None:
    if other is None or (best is not None and other.makespan >= best.makespan - TOLERANCE):
        return best
    return other


def _split(request: Request, pattern: Table, limit: float, half_at_b: bool) -> Dispatched | None:
    """A pattern as one list of passes, its fused gradients apart; None when it exceeds the limit."""
    timeline: Timeline = run(pattern, request.costs)
    peak = timeline.peak_activations_half_at_b if half_at_b else timeline.peak_activations
    if float(peak.max()) > limit + TOLERANCE or (pattern.kind == Kind.BW).any():
        return None
    return Dispatched(
        makespan=timeline.makespan, kind=pattern.kind, stage=pattern.stage, micro_batch=pattern.micro_batch
    )


def _least(request: Request) -> float:
    """Activations one micro-batch alone keeps on the fullest rank."""
    ranks = rank_of_stage(request.placement, request.stages, request.virtual_stages)
    return float(np.bincount(ranks, weights=request.costs.activation).max())
