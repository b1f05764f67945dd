# mypy: allow-untyped-defs
"""How soon a rank with limited activations can take the next micro-batch: a lower bound on the makespan.

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

from typing import NamedTuple

import numpy as np
from numba import njit

from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import TOLERANCE


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


class RankPasses(NamedTuple):
    """Passes of every rank, a row per rank, as `last_start` takes them for one.

    after  from the end of B(s_v) to the end of the micro-batch
    """

    forward: Floats
    backward: Floats
    weight: Floats
    activation: Floats
    head: Floats
    away: Floats
    back: Floats
    after: Floats


def reuse_bounds(m: int, ranks: RankPasses, limit: float, one_at_a_time: bool) -> Floats:
    """Makespan bound of every rank, in the unit of the costs; infinite when one micro-batch does not fit.

    `one_at_a_time`: no pass hides behind another one.
    """
    turns = np.zeros((len(ranks.forward), 0))
    if one_at_a_time:
        turns = _turns(m, ranks.forward, ranks.backward + ranks.weight, ranks.activation, limit)
    gradient: Floats = _last_gradients(m, *ranks[:-1], limit, turns)
    return gradient + ranks.backward[:, -1] + ranks.after


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
