# mypy: allow-untyped-defs
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

How soon a rank with limited activations can take the next micro-batch: a lower bound on the makespan.

Look at one rank with the virtual stages s_1 < .. < s_v of every micro-batch, and a limit M on its activations. Number
the passes of each stage in the order in which they run; any order can be relabelled so. Let x(k) be the start of the
k-th forward of s_v. By then all v stages have started k + 1 forwards, so

    sum over s of  a_s * releases of s up to x(k)  >=  (k + 1) * sum of a_s - M.

The j-th release of s, the end of its j-th weight gradient, is no earlier than

    x(j) + (shortest way from the start of F(s_v) to the end of B(s)) + w_s, and than
    z(i) + (j - i + 1) * (sum of b over s .. s_v + w_s)  for every i <= j, since the rank runs these passes in between,

where z(i) is the start of the i-th input gradient of s_v. So the releases that are possible bound x(k) from below, and
these bound the next releases: micro-batches come in rounds of about M / sum of a_s. In the long run this is Little's
law (lifetimes cannot exceed M times the period); it also sees that the last round is a whole one.

A round also has to run what it frees and takes. Before z(i) each stage has released at most i times and run at most i
gradients, so forwards of at most i * sum of a_s + M have started. Hence between z(i) and x(k) the rank runs gradients
that release D = (k + 1 - i) * sum of a_s - M, input and weight gradient each, and forwards that take D - a_(s_v):

    x(k) >= z(i) + D's share of (b + w) + (D - a_(s_v))'s share of f.

With room for q whole micro-batches of two equal chunks a round is thus no shorter than the way from F(s_v) to the start
of its gradient plus f + 2 (b + w) + f: what no lifetime sees, that the rank does one thing at a time.

Valid: for every order, fused or split, of unequal stages too. Compared with proven optima in the tests.
"""

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from primus_search.schedule.costs import Floats, StageCosts
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import TOLERANCE, Asked, Request, make_request
from primus_search.schedule.table import Ints, Placement


def lower_bound(name: str, **pipeline: Unpack[Asked]) -> float:
    """A makespan that no order with the placement of this algorithm can beat, in the unit of the costs.

    Takes the arguments of `build`. The bound belongs to the placement, not to the rules of the named algorithm, so
    the gap to it is what another order could still gain.
    """
    _, request = make_request(name, **pipeline)
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
        turns = _turns(m, f, b + w, a, limit) if costs.overlap == 0.0 else np.zeros((len(f), 0))
        last = _last_gradients(m, f, b, w, a, head, np.ascontiguousarray(away[:, -1]), back, limit, turns)
        limited = np.maximum(limited, last + b[:, -1] + after[:, -1])
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


@njit(cache=True)
def last_start(m, forward, backward, weight, activation, head, away, back, limit, turn):
    """Earliest start of the last of m forwards of a rank's last stage s_v, and of its input gradient.

    Per stage of the rank, in the order a micro-batch meets them: `forward`, `backward`, `weight` times, `activation`,
    `head` (earliest start of its first forward), `back` (from the start of B(s_v) to the end of B(s)). `away`: from
    the end of F(s_v) to the start of B(s_v). `turn[d]`: least work from the start of an input gradient of s_v to that
    of its forward d - 1 micro-batches later; 0 where nothing needs to be released in between.
    """
    v = len(forward)
    total = activation.sum()
    fwd = forward.sum()
    gradient = np.empty(m)
    release = np.empty((v, m))
    used = np.zeros(v, np.int64)
    released = 0.0
    grad, grad_work = np.zeros(v), 0.0
    for c in range(v - 1, -1, -1):
        grad_work += backward[c]
        grad[c] = grad_work + weight[c]
    z, last = 0.0, 0.0
    busy = np.zeros(v)
    now = head[v - 1]
    for k in range(m):
        now = max(now, head[0] + (k + 1) * fwd - forward[v - 1])
        while released < (k + 1) * total - limit - 1e-9:
            first = -1
            for c in range(v):
                if used[c] < k and (first < 0 or release[c, used[c]] < release[first, used[first]]):
                    first = c
            if first < 0:
                return np.inf, np.inf
            now = max(now, release[first, used[first]])
            released += activation[first]
            used[first] += 1
        for d in range(2, min(k + 2, len(turn))):
            if turn[d] > 0.0:
                now = max(now, gradient[k + 1 - d] + turn[d])
        last = now
        ready = now + forward[v - 1] + away
        z = max(z + backward[v - 1], ready) if k > 0 else ready
        gradient[k] = z
        for c in range(v):
            busy[c] = max(busy[c] if k > 0 else 0.0, z) + grad[c]
            release[c, k] = max(z + back[c] + weight[c], busy[c])
        now += forward[v - 1]
    return last, z


@njit(cache=True)
def _last_gradients(m, forward, backward, weight, activation, head, away, back, limit, turns):
    """`last_start` of every rank: the start of its last input gradient of s_v."""
    gradient = np.empty(len(forward))
    for r in range(len(forward)):
        _, gradient[r] = last_start(
            m, forward[r], backward[r], weight[r], activation[r], head[r], away[r], back[r], limit, turns[r]
        )
    return gradient


ROUNDS = 3
"""How many rounds of micro-batches a turn may span; beyond that its work is all there is, which other bounds see."""


def _turns(m: int, forward: Floats, gradients: Floats, activation: Floats, limit: float) -> Floats:
    """`turn` of `last_start` per rank: what it runs to release and to take again what is above the limit.

    0 for a rank with passes that hold nothing: they need no release.
    """
    holds = (activation > 0.0).all(axis=1, keepdims=True)
    activation = np.where(holds, activation, 1.0)
    total = activation.sum(axis=1, keepdims=True)
    spans = np.arange(min(m, int(min(ROUNDS * limit / total.min(), m)) + ROUNDS) + 1)
    release = np.maximum(0.0, spans * total - limit)
    take = np.maximum(0.0, release - activation[:, -1:])
    unit, even = activation[:, :1], np.ptp(activation, axis=1, keepdims=True) < TOLERANCE
    whole_release, whole_take = (np.ceil(part / unit - TOLERANCE) * unit for part in (release, take))
    work = np.where(even, whole_release, release) * (gradients / activation).min(axis=1, keepdims=True)
    work += np.where(even, whole_take, take) * (forward / activation).min(axis=1, keepdims=True)
    return np.where(holds & (release > TOLERANCE), work, 0.0)
