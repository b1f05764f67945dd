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
from typing import Unpack

import numpy as np

from primus_search.schedule.activation_bound import RankPasses, reuse_bounds
from primus_search.schedule.costs import Floats, StageCosts
from primus_search.schedule.registry import TOLERANCE, Asked, Request, make_request
from primus_search.schedule.table import Ints, Placement


def lower_bound(name: str, **asked: Unpack[Asked]) -> float:
    """A makespan that no order with the placement of this algorithm can beat, in the unit of the costs.

    Takes the arguments of `build`. The bound belongs to the placement, not to the rules of the named algorithm, so
    the gap to it is what another order could still gain.
    """
    _, request = make_request(name, **asked)
    return bound(request, request.memory_limit)


def bound(request: Request, memory_limit: float) -> float:
    """`lower_bound` of a request under a limit on activations per rank (infinite for none)."""
    copies = 2 if request.placement is Placement.BIDIRECTIONAL else 1
    micro = request.microbatches // copies
    paths = _Paths.of(request.costs, request.stages * request.virtual_stages, copies)
    mine = request.stages_of_rank
    mine = np.take_along_axis(mine, np.argsort(paths.head[mine], axis=1, kind="stable"), axis=1)
    return float(_of_ranks(request.costs, paths, mine, micro, memory_limit, copies == 1).max())


def pace_of_memory(request: Request, memory_limit: float) -> float:
    """Least time per micro-batch that activations leave, in units of what the passes of the same rank take.

    Little's law: the activations of one micro-batch, each times the shortest it can live, share the limit.
    """
    costs = request.costs
    paths = _Paths.of(costs, request.stages * request.virtual_stages, 1)
    ranks = request.ranks
    work = np.bincount(ranks, weights=costs.duration[:3].sum(axis=0))
    held = np.bincount(ranks, weights=costs.activation * (costs.duration[:3].sum(axis=0) + paths.away))
    return float((held / np.where(work > 0.0, memory_limit * work, np.inf)).max())


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


def _of_ranks(costs: StageCosts, paths: _Paths, mine: Ints, m: int, limit: float, one_copy: bool) -> Floats:
    """The bound that each rank puts on the makespan; `mine[rank]`: its virtual stages, by their heads."""
    f, b, w, a = costs.forward[mine], costs.backward[mine], costs.weight[mine], costs.activation[mine]
    head, away, after = paths.head[mine], paths.away[mine], paths.after_b[mine]
    forwards, gradients = m * f.sum(axis=1), m * (b + w).sum(axis=1)
    work = forwards + gradients - costs.overlap * np.minimum(forwards, gradients)
    first_b = paths.first_b[mine].min(axis=1)
    idle = _idle_before(head, first_b, f, a, m, limit)
    bounds: Floats = np.maximum.reduce([
        idle + work,
        first_b + gradients,
        _of_chunks(head, paths.first_b[mine], after, m * f * (1.0 - costs.overlap), m * b),
        (head + m * f + away + b + after).max(axis=1),
    ])  # fmt: skip
    tight = limit < m * a.sum(axis=1) - TOLERANCE
    if not tight.any():
        return bounds
    drain = (away + b + after).min(axis=1)
    held = (a * (f + away + b + w)).sum(axis=1)
    limited = np.maximum(idle + work + np.maximum(0.0, drain - _most(b + w, a, m, limit)),
                         head[:, 0] + m * held / limit)  # fmt: skip
    if one_copy:
        back = paths.first_b[mine] - paths.first_b[mine[:, -1:]] + b
        ranks = RankPasses(f, b, w, a, head, np.ascontiguousarray(away[:, -1]), back, after[:, -1])
        again = reuse_bounds(m, ranks, limit, costs.overlap == 0.0)
        limited = np.maximum(limited, again)
    return np.where(tight, np.maximum(bounds, limited), bounds)


def _of_chunks(head: Floats, first_b: Floats, after_b: Floats, f: Floats, b: Floats) -> Floats:
    """Bound from the chunks of a rank at or behind one of them: they start no earlier than its head and end with its B.

    `f`, `b`: time of all micro-batches per chunk. Two copies (DualPipe) are looked at one by one.
    """
    best = np.zeros(len(head))
    nested = np.all(np.diff(after_b, axis=1) >= 0.0, axis=1)[:, None]
    for n in range(head.shape[1]):
        forwards, gradients = (np.where(nested, each[:, n:].cumsum(axis=1), each[:, n : n + 1]) for each in (f, b))
        latest = np.where(nested, first_b[:, n:] + gradients, first_b[:, n : n + 1] + gradients).max(axis=1)
        through = np.maximum(head[:, n] + forwards[:, -1] + gradients[:, -1], latest)
        best = np.maximum(best, through + after_b[:, n])
    return best


def _idle_before(head: Floats, first_b: Floats, f: Floats, a: Floats, m: int, limit: float) -> Floats:
    """Time each rank must idle before its first input gradient: until a later chunk begins it has only earlier ones."""
    idle = np.maximum(head[:, 0], first_b - _most(f, a, m, limit))
    for n in range(1, head.shape[1]):
        idle = np.maximum(idle, np.minimum(first_b, head[:, n]) - _most(f[:, :n], a[:, :n], m, limit))
    return idle


def _most(time: Floats, activation: Floats, m: int, limit: float) -> Floats:
    """Longest time of each rank's passes, at most m per stage, whose activations together fit the limit."""
    everything = m * time.sum(axis=1)
    rooms = np.where(activation > 0.0, activation, np.inf)
    # Equal activations: whole passes, the longest first.
    room = np.floor(np.minimum(min(limit, 1e300) / rooms[:, :1] + TOLERANCE, m * time.shape[1]))
    taken = np.clip(room - m * np.arange(time.shape[1]), 0, m)
    whole = (taken * np.sort(time, axis=1)[:, ::-1]).sum(axis=1)
    # Unequal ones: as if passes could be cut.
    free = m * (time * (activation <= 0.0)).sum(axis=1)
    cut = free + min(limit, 1e300) * (time / rooms).max(axis=1)
    unlimited = (activation.max(axis=1) <= 0.0) | (limit >= m * activation.sum(axis=1))
    result: Floats = np.where(unlimited, everything, np.where(np.ptp(activation, axis=1) < TOLERANCE, whole, cut))
    return result
