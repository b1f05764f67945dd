"""An order built in time: whichever rank can act next runs, of the passes it could start first, the one due earliest.

This is list scheduling of a re-entrant flow shop whose activations are a bounded resource. Each rank keeps, per
virtual stage, the next forward, input gradient and weight gradient (micro-batches run in order within each). A pass of
micro-batch j is due when it would start in an empty pipeline that micro-batch j enters j periods late; a weight
gradient after all others. A forward must leave room for the forwards of its own micro-batch that this rank still owes,
or the V placement could fill up with halves of micro-batches and stop for ever.
"""

import numpy as np

from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.table import Table

LAST = 1e9
"""Periods by which weight gradients are due after all other passes."""


def dispatch(request: Request, limit: float) -> Table | None:
    """The order under a limit on activations; None when even one micro-batch does not fit.

    `limit` is in micro-batches through one full rank, released at W.
    """
    costs, of_rank = request.costs, request.stages_of_rank
    durations = costs.duration[:3]
    period = float(durations.sum(axis=0)[of_rank].sum(axis=1).max())
    owed = np.zeros(len(costs.activation))
    for stages in of_rank:
        weights = costs.activation[stages]
        owed[stages] = np.cumsum(weights[::-1])[::-1] - weights
    makespan, *columns = _dispatch(
        request.microbatches, request.ranks, of_rank, durations, costs.comm, costs.activation, owed, min(limit, 1e18),
        period,
    )  # fmt: skip
    return request.table(*columns) if np.isfinite(makespan) else None


@njit(cache=True)
def _depths(duration, comm):  # type: ignore[no-untyped-def]
    """When each pass of one micro-batch would start in an empty pipeline, by [kind, stage]; W with its B."""
    num_stages = duration.shape[1]
    depth = np.empty((3, num_stages))
    t = 0.0
    for s in range(num_stages):
        depth[F, s] = t
        t += duration[F, s] + (comm[s] if s < num_stages - 1 else 0.0)
    for s in range(num_stages - 1, -1, -1):
        depth[B, s], depth[W, s] = t, t
        t += duration[B, s] + (comm[s - 1] if s > 0 else 0.0)
    return depth


@njit(cache=True)
def _pick(r, m, of_rank, comm, weight, owed, room, period, depth, end, count, free):  # type: ignore[no-untyped-def]
    """The pass a rank would run next and when it can start; start is infinite when nothing is known to come."""
    last = depth.shape[1] - 1
    first, due, op = np.inf, np.inf, -1
    for s in of_rank[r]:
        for k in range(3):
            j, ready = count[k, s], -1.0
            if k == F and j < m and weight[s] + owed[s] <= room + 1e-9:
                if s == 0:
                    ready = 0.0
                elif j < count[F, s - 1]:
                    ready = end[F, s - 1, j] + comm[s - 1]
            elif k == B and j < count[F, s]:
                if s == last:
                    ready = end[F, s, j]
                elif j < count[B, s + 1]:
                    ready = end[B, s + 1, j] + comm[s]
            elif k == W and j < count[B, s]:
                ready = 0.0
            if ready < 0.0:
                continue
            start, its = max(free, ready), j * period + depth[k, s] + (LAST * period if k == W else 0.0)
            if start < first - 1e-12 or (start <= first + 1e-12 and its < due):
                first, due, op = start, its, 3 * s + k
    return first, op


@njit(cache=True)
def _dispatch(m, rank_of, of_rank, duration, comm, weight, owed, limit, period):  # type: ignore[no-untyped-def]
    """Makespan and columns of the order; an infinite makespan when the ranks block each other."""
    p, laps = of_rank.shape
    num_stages, rows = len(rank_of), 3 * laps * m
    kind, stage, micro = np.empty(p * rows, np.int8), np.empty(p * rows, np.int16), np.empty(p * rows, np.int32)
    depth = _depths(duration, comm)
    end, count = np.empty((2, num_stages, m)), np.zeros((3, num_stages), np.int64)
    free, held = np.zeros(p), np.zeros(p)
    when, op, out = np.empty(p), np.empty(p, np.int64), np.arange(p) * rows
    for r in range(p):
        when[r], op[r] = _pick(r, m, of_rank, comm, weight, owed, limit, period, depth, end, count, 0.0)
    for _ in range(p * rows):
        r = int(when.argmin())
        if when[r] == np.inf:
            return np.inf, kind, stage, micro
        s, k = op[r] // 3, op[r] % 3
        j = count[k, s]
        count[k, s] = j + 1
        free[r] = when[r] + duration[k, s]
        other = r
        if k == F:
            end[F, s, j] = free[r]
            held[r] += weight[s]
            if s + 1 < num_stages:
                other = rank_of[s + 1]
        elif k == B:
            end[B, s, j] = free[r]
            if s > 0:
                other = rank_of[s - 1]
        else:
            held[r] -= weight[s]
        kind[out[r]], stage[out[r]], micro[out[r]] = k, s, j
        out[r] += 1
        for q in (r, other):
            when[q], op[q] = _pick(q, m, of_rank, comm, weight, owed, limit - held[q], period, depth, end, count,
                                   free[q])  # fmt: skip
    return free.max(), kind, stage, micro
