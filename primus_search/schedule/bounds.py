"""What no order can beat: lower bounds on the makespan for a placement, with and without a memory limit.

All bounds look at one rank r at a time. Its passes take `work`; until its first forward can start (`head`) and until
its first input gradient can start (`first_b`) it can only idle or, in between, run forwards. With at most K
activations it cannot run more than K of them before anything is released. The same holds mirrored at the end: after
its last forward only the K activations it still holds can keep it busy while that micro-batch runs through the rest
of the pipeline and back (`drain`). Independently, every activation lives at least as long as its micro-batch needs
from that stage to the end and back, and K of them fit at a time; and micro-batches follow each other in rounds, as many
at a time as fit (`reuse`).

For v = 1 and equal stages these are the bounds of the zero-bubble papers: (p-1)(F+c) + max{ m(F+B+W),
m(F+B) + (p-1)(B+c) + W, F + (p-1)(B+c) + m(B+W) }; and for the V placement at F=B=W and k chunks 6m + 6p - 3k - 1
chunk passes. Sources: arXiv:2401.10241 and 2405.15362 for the closed forms; the argument above proves the rest.
Valid: for every order, fused or split, of unequal stages too.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.schedule.costs import Costs, Floats, StageCosts
from primus_search.schedule.registry import TOLERANCE, UNIT_COSTS, Request, make_request
from primus_search.schedule.reuse import reuse_bound
from primus_search.schedule.table import Ints, Placement, rank_of_stage


def lower_bound(
    name: str,
    *,
    stages: int,
    microbatches: int,
    virtual_stages: int = 1,
    costs: Costs = UNIT_COSTS,
    memory_limit: float | None = None,
    group: int | None = None,
) -> float:
    """A makespan that no order with the placement of this algorithm can beat, in the unit of the costs.

    Takes the arguments of `build`. The bound belongs to the placement, not to the rules of the named algorithm, so
    the gap to it is what another order could still gain.
    """
    _, request = make_request(
        name,
        stages=stages,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        costs=costs,
        memory_limit=memory_limit,
        group=group,
    )
    return bound(request, request.memory_limit)


def bound(request: Request, memory_limit: float) -> float:
    """`lower_bound` of a request under a limit on activations per rank (infinite for none)."""
    copies = 2 if request.placement is Placement.BIDIRECTIONAL else 1
    micro = request.microbatches // copies
    paths = _Paths.of(request.costs, request.stages * request.virtual_stages, copies)
    ranks = rank_of_stage(request.placement, request.stages, request.virtual_stages)
    return max(_of_rank(request.costs, paths, np.flatnonzero(ranks == r), micro, memory_limit, copies == 1)
               for r in range(request.stages))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paths:
    """Shortest times along one micro-batch, per virtual stage; comm included.

    `head`: until F(s) can start; `first_b`: until B(s) can start; `after_b`: from the end of B(s) to the end of the
    micro-batch; `away`: from the end of F(s) to the start of B(s). `copy_start[s]`: first stage of the same copy.
    """

    head: Floats
    first_b: Floats
    after_b: Floats
    away: Floats

    @classmethod
    def of(cls, costs: StageCosts, model_stages: int, copies: int) -> "_Paths":
        parts = []
        for copy in range(copies):
            at = slice(copy * model_stages, (copy + 1) * model_stages)
            f, b, c = costs.forward[at], costs.backward[at], costs.comm[at][:-1]
            head = np.concatenate([[0.0], np.cumsum(f[:-1] + c)])
            behind = np.concatenate([np.cumsum((b[1:] + c)[::-1])[::-1], [0.0]])
            turn = head[-1] + f[-1]
            first_b = turn + behind
            after_b = np.concatenate([[0.0], np.cumsum(b[:-1] + c)]) + costs.weight[at][0]
            parts.append((head, first_b, after_b, first_b - head - f))
        head, first_b, after_b, away = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(head=head, first_b=first_b, after_b=after_b, away=away)


def _of_rank(costs: StageCosts, paths: _Paths, mine: Ints, m: int, limit: float,
             one_copy: bool) -> float:  # fmt: skip
    """The bound that one rank, which holds the virtual stages `mine`, puts on the makespan."""
    f, b, w, a = costs.forward[mine], costs.backward[mine], costs.weight[mine], costs.activation[mine]
    forwards, gradients = m * f.sum(), m * (b + w).sum()
    work = forwards + gradients
    work -= costs.overlap * min(forwards, gradients)
    head, first_b = paths.head[mine].min(), paths.first_b[mine].min()
    idle = _idle_before(paths.head[mine], first_b, f, a, m, limit)
    drain = (paths.away + costs.backward + paths.after_b)[mine].min()
    bounds = [
        idle + work,
        first_b + m * (b + w).sum(),
        _of_chunks(paths, mine, m * f * (1.0 - costs.overlap), m * b),
        (paths.head[mine] + m * f + paths.away[mine] + b + paths.after_b[mine]).max(),
    ]
    if limit < m * a.sum() - TOLERANCE:
        late = _most(b + w, a, m, limit)
        bounds.append(idle + work + max(0.0, drain - late))
        held = a * (f + paths.away[mine] + b + w)
        bounds.append(head + m * held.sum() / limit)
        if one_copy:
            order = np.argsort(paths.head[mine])
            last = mine[order[-1]]
            back = (paths.first_b[mine] - paths.first_b[last] + b)[order]
            bounds.append(reuse_bound(m, f[order], b[order], w[order], a[order], paths.head[mine][order],
                                      float(paths.away[last]), back, float(paths.after_b[last]), limit,
                                      costs.overlap == 0.0))  # fmt: skip
    return float(max(bounds))


def _of_chunks(paths: _Paths, mine: Ints, f: Floats, b: Floats) -> float:
    """Bound from the chunks of a rank at or behind one of them: they start no earlier than its head and end with its B.

    `f`, `b`: time of all micro-batches per chunk. Two copies (DualPipe) are looked at one by one.
    """
    best = 0.0
    order = np.argsort(paths.head[mine])
    for n, i in enumerate(order):
        behind = order[n:] if np.all(np.diff(paths.after_b[mine][order]) >= 0.0) else order[n : n + 1]
        first, after = paths.first_b[mine][behind], paths.after_b[mine][i]
        best = max(
            best,
            paths.head[mine][i] + f[behind].sum() + b[behind].sum() + after,
            float((first + np.cumsum(b[behind])).max() + after),
        )
    return float(best)


def _idle_before(head: Floats, first_b: float, f: Floats, a: Floats, m: int, limit: float) -> float:
    """Time a rank must idle before its first input gradient: until a later chunk begins it has only earlier ones."""
    order = np.argsort(head)
    idle = [head[order[0]], first_b - _most(f, a, m, limit)]
    for n in range(1, len(order)):
        earlier = order[:n]
        idle.append(min(first_b, head[order[n]]) - _most(f[earlier], a[earlier], m, limit))
    return float(max(idle))


def _most(time: Floats, activation: Floats, m: int, limit: float) -> float:
    """Longest time of passes, at most m per stage, whose activations together fit the limit."""
    if activation.max() <= 0.0 or limit >= m * activation.sum():
        return float(m * time.sum())
    if np.ptp(activation) < TOLERANCE:
        room, total = int(limit / activation[0] + TOLERANCE), 0.0
        for each in np.sort(time)[::-1]:
            take = min(room, m)
            total += take * each
            room -= take
        return float(total)
    rate = np.where(activation > 0.0, time / np.where(activation > 0.0, activation, 1.0), 0.0)
    free = m * float(time[activation <= 0.0].sum())
    return float(free + limit * rate.max())
