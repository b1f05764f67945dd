"""Paths of one micro-batch through a V of ranks: the orders of forwards and backwards that V schedules repeat.

Micro-batch i starts every pass at the path's time of it plus i periods; each rank runs its passes in that order. On
each of the four legs (F down, F up, B down, B up) a hop takes at least the pass and the communication, plus a number
of sixths of a period: short legs keep few activations alive, long ones fill the warm-up. Between the legs the path
waits so long that the passes of different micro-batches get out of each other's way on all ranks. At F = B = W these
are the building blocks of arXiv:2405.15362; a few are also built for the costs as they are.
"""

from functools import lru_cache

import numpy as np

from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import Request

Legs = tuple[int, int, int, int]

LEGS_LONG: tuple[Legs, ...] = ((1, 3, 1, 3), (2, 2, 2, 2), (3, 1, 3, 1), (1, 3, 0, 3), (0, 3, 0, 3))
LEGS_HALF: tuple[Legs, ...] = ((0, 1, 0, 1), (1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 0, 1))
LEGS_MIN: tuple[Legs, ...] = ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0))
"""Sixths of a period that a hop waits on each leg. Long: p activations, half, a third."""

TURN_STEPS = 6
"""How many waits are tried at each of the three turns, a sixth of a period apart."""

KEPT = 6
"""Choices of turns kept per entry of legs, those with the least overlap."""

SLOTS = 6.0
"""Period of a path whose passes all take one slot: F, B and W of two chunks."""


def candidate_paths(request: Request, legs: tuple[Legs, ...]) -> list[tuple[Floats, float]]:
    """Paths worth trying, each with its period: times of F(0) .. F(2p-1), B(2p-1) .. B(0) of micro-batch 0."""
    costs, p = request.costs, request.stages
    fused = not costs.weight.any()
    by_legs = [_equal_paths(p, waits, 2.0 if fused else 1.0) for waits in legs]
    found = [(path, SLOTS) for same_rank in zip(*by_legs, strict=True) for path in same_rank]
    period = float((costs.forward + costs.backward + costs.weight).sum()) / p
    if period > 0.0 and (np.ptp(np.concatenate([costs.forward, costs.backward, costs.weight])) or costs.comm.any()):
        for waits in legs[:3]:
            paths = _paths(p, costs.forward, costs.backward, costs.comm, period, waits)
            found[2 * len(legs) : 2 * len(legs)] = [(path, period) for path in paths[:2]]
    return found


@lru_cache(maxsize=1024)
def _equal_paths(p: int, waits: Legs, backward_slots: float) -> list[Floats]:
    """The paths where every pass takes one slot, or a fused backward two."""
    one = np.ones(2 * p)
    return _paths(p, one, backward_slots * one, np.zeros(2 * p), SLOTS, waits)


def _paths(p: int, f: Floats, b: Floats, comm: Floats, period: float, waits: Legs) -> list[Floats]:
    """Paths of given legs with the turns that overlap least, and the one without waiting at the turns."""
    sixth = period / 6.0
    legs = np.repeat(np.array(waits, dtype=np.float64) * sixth, p)
    f_hop = f[:-1] + comm[:-1] + legs[1 : 2 * p]
    b_hop = (b[1:] + comm[:-1])[::-1] + legs[2 * p + 1 :]
    f_hop[p - 1], b_hop[p - 1] = f[p - 1], b[p]
    forward = np.concatenate([[0.0], np.cumsum(f_hop)])
    backward = (forward[-1] + f[-1] + np.concatenate([[0.0], np.cumsum(b_hop)]))[::-1]
    steps = np.arange(TURN_STEPS) * sixth
    turns = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    clash = _overlap(p, f, b, forward, backward, turns, period)
    order = np.lexsort((turns.sum(axis=1), np.round(clash / sixth, 6)))[:KEPT]
    chosen = [turns[i] for i in order]
    chosen[1:1] = [np.zeros(3), np.full(3, sixth)]
    base = np.concatenate([forward, backward[::-1]])
    return [base + np.repeat(np.concatenate([[0.0], np.cumsum(turn)]), p) for turn in chosen]


def _overlap(p: int, f: Floats, b: Floats, forward: Floats, backward: Floats, turns: Floats, period: float) -> Floats:
    """Time per period in which two passes want the same rank, summed over ranks, for every choice of turns."""
    down, up = np.arange(p), 2 * p - 1 - np.arange(p)
    late = np.cumsum(turns, axis=1)[:, :, None]
    starts = [
        np.broadcast_to(forward[down], (len(turns), p)),
        forward[up] + late[:, 0],
        backward[up] + late[:, 1],
        backward[down] + late[:, 2],
    ]
    lengths = [f[down], f[up], b[up], b[down]]
    total = np.zeros(len(turns))
    for i in range(4):
        for j in range(i):
            ahead = (starts[i] - starts[j]) % period
            clash = np.maximum(0.0, lengths[j] - ahead) + np.maximum(0.0, lengths[i] - (period - ahead))
            total += np.where(clash > 1e-9 * period, clash, 0.0).sum(axis=1)
    return total
