"""Which micro-batches a pipeline rank holds, at every moment that could be its worst: from the schedule's own order.

At each pass a rank holds, per chunk, `live` micro-batches (forward done, backward not) and `waiting` ones (input
gradient done, weight gradient not). Only moments no other moment of the rank exceeds in everything are kept; for 1F1B
that is one per rank: p - r micro-batches.

    >>> moments("1f1b", 4, 1, 8)[0].live
    array([[4.]])
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEADY_ROUNDS = 4
"""Micro-batches per stage after which a fixed pattern holds no more than before: it repeats itself."""


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
def telling_microbatches(schedule: str, pp: int, vpp: int, microbatches: int) -> int:
    """The fewest micro-batches with the same peaks: what tells pipelines apart in memory.

    A fixed pattern repeats itself after a few rounds, unless it holds all micro-batches at once (GPipe). An order that
    is searched for may differ with every number, so none is left out.
    """
    from primus_search.schedule import algorithm, peak_activations_for

    few = min(microbatches, STEADY_ROUNDS * pp)
    if pp == 1 or few == microbatches or schedule == "1f1b":
        return 1 if pp == 1 else few
    if algorithm(schedule).cost_aware or float(peak_activations_for(schedule, pp, few, vpp).max()) >= few:
        return microbatches
    return few


@lru_cache(maxsize=65536)
def moments(schedule: str, pp: int, vpp: int, microbatches: int) -> tuple[RankMoments, ...]:
    """The worst moments of every rank. Raises `ScheduleError` where the schedule cannot serve this shape."""
    from primus_search.schedule import order_for

    if pp == 1 or (schedule == "1f1b" and vpp == 1):
        return tuple(_single(rank, min(pp - rank, microbatches)) for rank in range(pp))
    table = order_for(schedule, pp, microbatches, vpp)
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
    table = distinct_rows(np.column_stack([live, waiting, backward]).astype(np.int32)).astype(np.float64)
    table = table[~_dominated(table[:, :-1], table[:, -1])]
    v = len(stages)
    return RankMoments(
        stages=stages, live=table[:, :v], waiting=table[:, v : 2 * v], backward=table[:, -1].astype(np.int64)
    )


def distinct_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Each different row once, in order of first appearance."""
    rows = np.ascontiguousarray(rows)
    width = rows.shape[1] * rows.dtype.itemsize
    data = rows.tobytes()
    seen = dict.fromkeys(data[i : i + width] for i in range(0, len(data), width))
    return np.frombuffer(b"".join(seen), dtype=rows.dtype).reshape(len(seen), rows.shape[1])


def _dominated(rows: Floats, work: Floats) -> NDArray[np.bool_]:
    """Rows that another distinct row equals or exceeds everywhere, running the same backward or this one none."""
    covers = (rows[:, None, :] >= rows[None, :, :]).all(axis=2)
    covers &= (work[:, None] == work[None, :]) | (work[None, :] < 0)
    covers &= ~np.eye(len(rows), dtype=np.bool_)
    dominated: NDArray[np.bool_] = covers.any(axis=0)
    return dominated
