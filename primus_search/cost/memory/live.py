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
    """Walk the order of one rank and keep the moments that no other exceeds."""
    from primus_search.cost.memory.kernels import highest

    v = len(stages)
    table = highest(kind, chunk, v)
    return RankMoments(
        stages=stages, live=table[:, :v].astype(np.float64), waiting=table[:, v:-1].astype(np.float64),
        backward=table[:, -1].copy(),
    )  # fmt: skip
