"""An order built in time: whichever rank can act next picks among the passes it could start, by due date.

This is list scheduling of a re-entrant flow shop whose activations are a bounded resource. Each rank keeps, per
virtual stage, the next forward, input gradient and weight gradient (micro-batches run in order within each). Of the
passes that could start before the first of them would end, the one with the earliest due date runs; `Policy` says how
due dates are made. A forward must leave room for the forwards of its own micro-batch that this rank still owes, or
the V placement could fill up with halves of micro-batches and stop for ever.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.pass_kernels import B, F, W
from primus_search.schedule.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How due dates are made; times are in units of the busiest rank's work per micro-batch.

    pace        due dates of micro-batch j are j * pace later: 0 favours passes near their micro-batch's start,
                a large value favours older micro-batches whatever the pass
    slack       a weight gradient is due that much after its input gradient
    delay_limit    0: never idle while a pass is there; towards 1: idle for an earlier-due pass that arrives before the
                first other one would have ended
    """

    pace: float
    slack: float
    delay_limit: float


# In the order of what they add to the ones before them, over the shapes and costs of the public tables; where patterns
# lose it is to one that never waits.
POLICIES: tuple[Policy, ...] = (
    Policy(pace=1.0, slack=np.inf, delay_limit=0.0),
    Policy(pace=0.5, slack=np.inf, delay_limit=0.5),
    Policy(pace=0.5, slack=1.0, delay_limit=0.5),
    Policy(pace=2.0, slack=0.0, delay_limit=0.5),
    Policy(pace=0.5, slack=np.inf, delay_limit=0.999),
    Policy(pace=0.5, slack=0.0, delay_limit=0.999),
    Policy(pace=0.5, slack=1.0, delay_limit=0.999),
    Policy(pace=1.5, slack=np.inf, delay_limit=0.999),
)


def dispatch(request: Request, policy: Policy, limit: float) -> Table | None:
    """The order one policy gives under a limit on activations; None when even one micro-batch does not fit.

    `limit` is in micro-batches through one full rank, released at W.
    """
    costs = request.costs
    of_rank = request.stages_of_rank
    durations = costs.duration[:3]
    unit = float(durations.sum(axis=0)[of_rank].sum(axis=1).max())
    owed = np.zeros(len(costs.activation))
    for stages in of_rank:
        weights = costs.activation[stages]
        owed[stages] = np.cumsum(weights[::-1])[::-1] - weights
    makespan, *columns = _dispatch(
        request.microbatches, request.ranks, of_rank, durations, costs.comm, costs.activation, owed, min(limit, 1e18),
        policy.pace * unit, np.clip(policy.slack, -1e9, 1e9) * unit, policy.delay_limit,
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
        t += duration[F, s]
        if s < num_stages - 1:
            t += comm[s]
    for s in range(num_stages - 1, -1, -1):
        depth[B, s] = t
        depth[W, s] = t
        t += duration[B, s]
        if s > 0:
            t += comm[s - 1]
    return depth


@njit(cache=True)
def _pick(  # type: ignore[no-untyped-def]
    r, m, of_rank, duration, comm, weight, owed, limit, pace, slack, delay_limit, depth, end, count,
    free, held, ready_of, due_of, op_of,
):  # fmt: skip
    """The pass a rank would run next and when it can start; start is infinite when nothing is known to come."""
    laps = of_rank.shape[1]
    last = duration.shape[1] - 1
    room = limit - held[r] + 1e-9
    n = 0
    first_start, first_end = np.inf, np.inf
    for lap in range(laps):
        s = of_rank[r, lap]
        j = count[F, s]
        if j < m and weight[s] + owed[s] <= room:
            ready = -1.0
            if s == 0:
                ready = 0.0
            elif j < count[F, s - 1]:
                ready = end[F, s - 1, j] + comm[s - 1]
            if ready >= 0.0:
                start = max(free[r], ready)
                first_start, first_end = min(first_start, start), min(first_end, start + duration[F, s])
                ready_of[n], due_of[n], op_of[n] = start, j * pace + depth[F, s], 3 * s + F
                n += 1
        i = count[B, s]
        if i < j:
            ready = -1.0
            if s == last:
                ready = end[F, s, i]
            elif i < count[B, s + 1]:
                ready = end[B, s + 1, i] + comm[s]
            if ready >= 0.0:
                start = max(free[r], ready)
                first_start, first_end = min(first_start, start), min(first_end, start + duration[B, s])
                ready_of[n], due_of[n], op_of[n] = start, i * pace + depth[B, s], 3 * s + B
                n += 1
        w = count[W, s]
        if w < i:
            first_start, first_end = min(first_start, free[r]), min(first_end, free[r] + duration[W, s])
            ready_of[n], due_of[n], op_of[n] = free[r], w * pace + depth[W, s] + slack, 3 * s + W
            n += 1
    best, chosen = np.inf, -1
    latest = first_start + delay_limit * (first_end - first_start) + 1e-12
    for i in range(n):
        if ready_of[i] <= latest and due_of[i] < best:
            best, chosen = due_of[i], i
    if chosen < 0:
        return np.inf, -1
    return ready_of[chosen], op_of[chosen]


@njit(cache=True)
def _dispatch(  # type: ignore[no-untyped-def]
    m, rank_of, of_rank, duration, comm, weight, owed, limit, pace, slack, delay_limit
):
    """Makespan and columns of the order; an infinite makespan when the ranks block each other."""
    p, laps = of_rank.shape
    num_stages = len(rank_of)
    rows = 3 * laps * m
    kind, stage = np.empty(p * rows, np.int8), np.empty(p * rows, np.int16)
    micro = np.empty(p * rows, np.int32)
    depth = _depths(duration, comm)
    end = np.empty((2, num_stages, m))
    count = np.zeros((3, num_stages), np.int64)
    free, held = np.zeros(p), np.zeros(p)
    ready_of, due_of, op_of = np.empty(3 * laps), np.empty(3 * laps), np.empty(3 * laps, np.int64)
    when, op = np.empty(p), np.empty(p, np.int64)
    for r in range(p):
        when[r], op[r] = _pick(r, m, of_rank, duration, comm, weight, owed, limit, pace, slack, delay_limit,
                               depth, end, count, free, held, ready_of, due_of, op_of)  # fmt: skip
    out = np.arange(p) * rows
    for _ in range(p * rows):
        r = 0
        for q in range(1, p):
            if when[q] < when[r]:
                r = q
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
        when[r], op[r] = _pick(r, m, of_rank, duration, comm, weight, owed, limit, pace, slack, delay_limit,
                               depth, end, count, free, held, ready_of, due_of, op_of)  # fmt: skip
        if other != r:
            when[other], op[other] = _pick(other, m, of_rank, duration, comm, weight, owed, limit, pace,
                                           slack, delay_limit, depth, end, count, free, held, ready_of, due_of,
                                           op_of)  # fmt: skip
    return free.max(), kind, stage, micro
