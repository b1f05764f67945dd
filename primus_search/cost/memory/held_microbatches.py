"""Which micro-batches a pipeline rank holds, at every moment that could be its worst: from the schedule's own order.

At each pass a rank holds, per chunk, `live` micro-batches (forward done, backward not) and `waiting` ones (input
gradient done, weight gradient not). Only moments no other moment of the rank exceeds in everything are kept; for 1F1B
that is one per rank: p - r micro-batches.

    >>> held_microbatches(PipelineOrder("1f1b", pp=4), 8).live[0]
    array([4.])
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from primus_search.values.candidates import Floats, PipelineOrder

STEADY_ROUNDS = 4
"""Micro-batches per stage after which a fixed pattern holds no more than before: it repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldMicrobatches:
    """Moments of all ranks, one rank after the other: those of rank r are first[r] .. first[r + 1].

    stages    (ranks, chunks) virtual stages of each rank      live, waiting  (moments, chunks) micro-batches
    backward  (moments,) index of the chunk that runs backward, -1 where no backward runs at that moment
    """

    first: NDArray[np.int64]
    stages: NDArray[np.int64]
    live: Floats
    waiting: Floats
    backward: NDArray[np.int64]


@lru_cache(maxsize=65536)
def telling_microbatches(order: PipelineOrder, microbatches: int) -> int:
    """The fewest micro-batches with the same peaks: what tells pipelines apart in memory.

    A fixed pattern repeats itself after a few rounds, unless it holds all micro-batches at once (GPipe). An order that
    is searched for may differ with every number, so none is left out.
    """
    from primus_search.schedule import algorithm, peak_activations_for

    few = min(microbatches, STEADY_ROUNDS * max(order.pp, order.group))
    if order.pp == 1 or few == microbatches or order.schedule == "1f1b":
        return 1 if order.pp == 1 else few
    chosen = algorithm(order.schedule, order.launcher)
    # Launchers cut other numbers than multiples of the stages into other groups.
    is_regular = not chosen.cost_aware and not (chosen.launchers and microbatches % order.pp)
    if not is_regular or float(peak_activations_for(order, few).max()) >= few:
        return microbatches
    return few


@lru_cache(maxsize=1 << 12)
def held_microbatches(order: PipelineOrder, microbatches: int) -> HeldMicrobatches:
    """The worst moments of every rank. Raises `ScheduleError` where the schedule cannot serve this shape."""
    from primus_search.schedule import order_for

    pp = order.pp
    if pp == 1 or (order.schedule == "1f1b" and order.vpp == 1):
        ranks = np.arange(pp)
        live = np.minimum(pp - ranks, microbatches).astype(np.float64)
        return HeldMicrobatches(
            first=np.arange(pp + 1), stages=ranks[:, None], live=live[:, None], waiting=np.zeros((pp, 1)),
            backward=np.zeros(pp, dtype=np.int64),
        )  # fmt: skip
    from primus_search.cost.memory.memory_kernels import highest_of_ranks

    table = order_for(order, microbatches)
    first, stages, found = highest_of_ranks(table.offsets, table.kind, table.stage, table.rank_of_stage)
    chunks = stages.shape[1]
    return HeldMicrobatches(
        first=first, stages=stages, live=found[:, :chunks].astype(np.float64),
        waiting=found[:, chunks:-1].astype(np.float64), backward=found[:, -1].copy(),
    )  # fmt: skip
