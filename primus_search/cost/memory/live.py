"""Which micro-batches a pipeline rank holds, at every moment that could be its worst: from the schedule's own order.

At each pass a rank holds, per chunk, `live` micro-batches (forward done, backward not) and `waiting` ones (input
gradient done, weight gradient not). Only moments no other moment of the rank exceeds in everything are kept; for 1F1B
that is one per rank: p - r micro-batches.

    >>> moments("1f1b", 4, 1, 8)[0].live
    array([[4.]])
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEADY_ROUNDS = 4
"""Micro-batches per stage after which no order here holds more than before; longer orders repeat themselves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMoments:
    """Moments of one rank. stages: its virtual stages; live, waiting: (moments, chunks) micro-batches.

    backward: index of the chunk that runs backward, -1 where no backward runs at that moment.
    """

    stages: NDArray[np.int64]
    live: Floats
    waiting: Floats
    backward: NDArray[np.int64]


@lru_cache(maxsize=65536)
def moments(schedule: str, pp: int, vpp: int, microbatches: int) -> tuple[RankMoments, ...]:
    """The worst moments of every rank. Raises `ScheduleError` where the schedule cannot serve this shape."""
    m = min(microbatches, STEADY_ROUNDS * pp)
    if vpp == 1 and (schedule == "1f1b" or pp == 1):
        return tuple(_single(rank, min(pp - rank, m)) for rank in range(pp))
    from primus_search.schedule import order_for

    table = order_for(schedule, pp, m, vpp)
    ranks = []
    for rank in range(pp):
        rows = slice(int(table.offsets[rank]), int(table.offsets[rank + 1]))
        stages = np.flatnonzero(table.rank_of_stage == rank)
        chunk = np.searchsorted(stages, table.stage[rows])
        ranks.append(_of_order(stages.astype(np.int64), table.kind[rows], chunk))
    return tuple(ranks)


def _single(rank: int, live: int) -> RankMoments:
    return RankMoments(
        stages=np.array([rank]), live=np.array([[float(live)]]), waiting=np.zeros((1, 1)), backward=np.array([0])
    )


def _of_order(stages: NDArray[np.int64], kind: NDArray[np.int8], chunk: NDArray[np.int64]) -> RankMoments:
    """Count forwards, input gradients and weight gradients along the order; a pass holds what it works on."""
    from primus_search.schedule import Kind

    which = np.eye(len(stages))[chunk]
    forward = np.cumsum(which * (kind == Kind.F)[:, None], axis=0)
    done = which * ((kind == Kind.B) | (kind == Kind.BW))[:, None]
    split, late = which * (kind == Kind.B)[:, None], which * (kind == Kind.W)[:, None]
    # While it runs, a backward still holds its micro-batch and a weight gradient its inputs.
    live = forward - np.cumsum(done, axis=0) + done
    waiting = np.cumsum(split, axis=0) - split - np.cumsum(late, axis=0) + late
    backward = np.where((kind == Kind.B) | (kind == Kind.BW), chunk, -1)
    table = np.unique(np.column_stack([live, waiting, backward]), axis=0)
    table = table[~_dominated(table[:, :-1], table[:, -1])]
    v = len(stages)
    return RankMoments(
        stages=stages, live=table[:, :v], waiting=table[:, v : 2 * v], backward=table[:, -1].astype(np.int64)
    )


def _dominated(rows: Floats, work: Floats) -> NDArray[np.bool_]:
    """Rows that another distinct row equals or exceeds everywhere, running the same backward or this one none."""
    covers = (rows[:, None, :] >= rows[None, :, :]).all(axis=2)
    covers &= (work[:, None] == work[None, :]) | (work[None, :] < 0)
    covers &= ~np.eye(len(rows), dtype=np.bool_)
    dominated: NDArray[np.bool_] = covers.any(axis=0)
    return dominated
