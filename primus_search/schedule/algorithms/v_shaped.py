"""V-shaped schedules: ZBV, V-Half, V-Min (Qi et al. 2024, arXiv:2405.15362).

Each rank holds one chunk of the way down and one of the way up, so the last stage is on rank 0 and all ranks can hold
equally much. The three differ in that memory: p, about p/2, about p/3 micro-batches. The published orders are built
for F = B = W and lose 11 % and 32 % of the bound at 10, 14, 6; here each is the fastest order that is found within the
published memory at the costs that are given.
"""

from collections.abc import Iterator

import numpy as np

from primus_search.schedule.contest import own_limit
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Kind, Placement, RankOrder, Table
from primus_search.schedule.v_search import fastest_v


@register("zbv", summary="V placement, zero bubble, memory of 1F1B", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def zbv(request: Request) -> Table:
    """Span bubble 0 at F=B=W, peak p."""
    return fastest_v(request, own_limit(request, request.stages), published_zbv)


@register("v-half", summary="V placement in about half the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def v_half(request: Request) -> Table:
    """Peak (p + 2) // 2."""
    return fastest_v(request, own_limit(request, (request.stages + 2) // 2))


@register("v-min", summary="V placement in about a third of the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def v_min(request: Request) -> Table:
    """Peak (p + 4) // 3."""
    return fastest_v(request, own_limit(request, (request.stages + 4) // 3))


def published_zbv(request: Request) -> Iterator[Table]:
    """ZBV as drawn in the paper, W left to be woven in: the only order without a bubble on any rank at F=B=W."""
    p, m = request.stages, request.microbatches
    if m < 2 * p:
        return
    ranks = []
    for r in range(p):
        ahead = p - r
        middle = m - (2 * ahead - 1) - r
        tokens = np.concatenate(
            [
                np.full(2 * ahead - 1, 0),
                np.tile([1, 0], r),
                np.tile([1, 2], ahead),
                np.tile([0, 3, 1, 2], middle),
                np.tile([3, 1, 2], ahead - 1),
                np.tile([3, 2], r),
                np.full(ahead, 3),
            ]
        )
        micro = np.empty(len(tokens), dtype=np.int32)
        for token in range(4):
            rows = np.flatnonzero(tokens == token)
            micro[rows] = np.arange(len(rows))
        kind = np.where(tokens < 2, np.int8(Kind.F), np.int8(Kind.BW))
        stage = np.where((tokens == 0) | (tokens == 3), r, 2 * p - 1 - r).astype(np.int16)
        ranks.append(RankOrder(kind, stage, micro))
    yield Table.from_ranks(request.name, ranks, microbatches=m, virtual_stages=2, placement=Placement.V)
