"""Orders of forwards and backwards in V placement, from the path one micro-batch takes through the ranks.

Micro-batch i starts every pass at the path's time of it plus i periods; each rank runs its passes in that order. On
each of the four legs (F down, F up, B down, B up) a hop takes at least the pass and the communication, plus a number
of sixths of a period: short legs keep few activations alive, long ones fill the warm-up. Between the legs the path
waits so long that the passes of different micro-batches get out of each other's way on all ranks. At F = B = W these
are the building blocks of arXiv:2405.15362; each is also built for the costs as they are.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import Request
from primus_search.schedule.table import Kind, Placement, RankOrder, Table

Legs = tuple[int, int, int, int]

LEGS_LONG: tuple[Legs, ...] = ((1, 3, 1, 3), (2, 2, 2, 2), (3, 1, 3, 1), (1, 3, 0, 3), (0, 3, 0, 3))
LEGS_HALF: tuple[Legs, ...] = ((1, 0, 1, 0), (0, 1, 0, 1), (1, 0, 0, 1), (0, 1, 1, 0), (1, 2, 0, 2), (1, 1, 0, 1))
LEGS_MIN: tuple[Legs, ...] = ((0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0))
"""Sixths of a period that a hop waits on each leg. Long: p activations, half, a third."""

TURN_STEPS = 6
"""How many waits are tried at each of the three turns, a sixth of a period apart."""


def patterns(request: Request, legs: tuple[Legs, ...]) -> Iterator[Table]:
    """Fused tables: for every entry of `legs` one for equal passes, then one for the costs as they are."""
    costs, p = request.costs, request.stages
    uneven = float(np.ptp(np.concatenate([costs.forward, costs.backward, costs.weight]))) > 0.0 or costs.comm.any()
    for waits in legs:
        yield from_path(request, *_equal_path(p, waits), 6.0)
        if uneven:
            yield from_path(request, *_equal_path(p, waits, turn=1), 6.0)
            period = float((costs.forward + costs.backward + costs.weight).sum()) / p
            yield from_path(request, *_path(p, costs.forward, costs.backward, costs.comm, period, waits), period)


@lru_cache(maxsize=1024)
def _equal_path(p: int, waits: Legs, turn: int | None = None) -> tuple[Floats, Floats]:
    """The path where every pass takes one slot of six; all turns wait `turn` slots if given."""
    one = np.ones(2 * p)
    return _path(p, one, one, np.zeros(2 * p), 6.0, waits, turn)


def _path(p: int, f: Floats, b: Floats, comm: Floats, period: float, waits: Legs,
          turn: int | None = None) -> tuple[Floats, Floats]:  # fmt: skip
    """Start of F and of B of micro-batch 0, per virtual stage, with the turns that overlap least."""
    sixth = period / 6.0
    legs = np.repeat(np.array(waits, dtype=np.float64) * sixth, p)
    f_hop = f[:-1] + comm[:-1] + legs[1 : 2 * p]
    b_hop = (b[1:] + comm[:-1])[::-1] + legs[2 * p + 1 :]
    f_hop[p - 1], b_hop[p - 1] = f[p - 1], b[p]
    forward = np.concatenate([[0.0], np.cumsum(f_hop)])
    backward = (forward[-1] + f[-1] + np.concatenate([[0.0], np.cumsum(b_hop)]))[::-1]
    steps = np.arange(TURN_STEPS) * sixth
    turns = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    if turn is not None:
        best = np.full(3, turn * sixth)
    else:
        clash = _overlap(p, f, b, forward, backward, turns, period)
        best = turns[np.lexsort((turns.sum(axis=1), np.round(clash / sixth, 6)))[0]]
    forward = forward + np.repeat([0.0, best[0]], p)
    backward = backward + best[0] + best[1] + np.repeat([best[2], 0.0], p)
    return forward, backward


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


def from_path(request: Request, forward: Floats, backward: Floats, period: float) -> Table:
    """The fused table of a path repeated every `period`."""
    p, m = request.stages, request.microbatches
    repeat = np.arange(m) * period
    micro = np.tile(np.arange(m, dtype=np.int32), 4)
    kind = np.repeat(np.array([Kind.F, Kind.F, Kind.BW, Kind.BW], dtype=np.int8), m)
    ranks = []
    for r in range(p):
        down, up = r, 2 * p - 1 - r
        starts = np.concatenate([t + repeat for t in (forward[down], forward[up], backward[down], backward[up])])
        order = np.argsort(np.round(starts / period, 9), kind="stable")
        stage = np.repeat(np.array([down, up, down, up], dtype=np.int16), m)
        ranks.append(RankOrder(kind[order], stage[order], micro[order]))
    return Table.from_ranks(request.name, ranks, microbatches=m, virtual_stages=2, placement=Placement.V)
