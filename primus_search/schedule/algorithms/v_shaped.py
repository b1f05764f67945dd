"""V-shaped schedules: ZBV, V-Half, V-Min (Qi et al. 2024, arXiv:2405.15362).

Each rank holds one chunk of the way down and one of the way up, so the last stage is on rank 0 and all ranks can hold
equally much. The three differ in that memory: p, about p/2, about p/3 micro-batches. The published orders are built
for F = B = W and lose 11 % and 32 % of the bound at 10, 14, 6; here each is the fastest order that is found within the
published memory at the costs that are given.
"""

from collections.abc import Iterator

import numpy as np
from numba import njit

from primus_search.schedule.optimise.portfolio import own_limit
from primus_search.schedule.optimise.v_search import fastest_v
from primus_search.schedule.registry import Request, register
from primus_search.schedule.simulation.pass_kernels import BW, F
from primus_search.schedule.table import Placement, Table


@register("zbv", summary="V placement, zero bubble, memory of 1F1B", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True)  # fmt: skip
def zbv(request: Request) -> Table:
    """Span bubble 0 at F=B=W, peak p."""
    return fastest_v(request, own_limit(request, request.stages), published_zbv)


@register("v-half", summary="V placement in about half the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True)  # fmt: skip
def v_half(request: Request) -> Table:
    """Peak (p + 2) // 2."""
    return fastest_v(request, own_limit(request, (request.stages + 2) // 2))


@register("v-min", summary="V placement in about a third of the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True)  # fmt: skip
def v_min(request: Request) -> Table:
    """Peak (p + 4) // 3."""
    return fastest_v(request, own_limit(request, (request.stages + 4) // 3))


def published_zbv(request: Request) -> Iterator[Table]:
    """ZBV as drawn in the paper, W left to be woven in: the only order without a bubble on any rank at F=B=W."""
    p, m = request.stages, request.microbatches
    if m < 2 * p:
        return
    yield request.table(*_zbv(p, m))


RUNS = np.array([[0, -1, -1, -1], [1, 0, -1, -1], [1, 2, -1, -1], [0, 3, 1, 2], [3, 1, 2, -1], [3, 2, -1, -1],
                 [3, -1, -1, -1]])  # fmt: skip
"""What ZBV repeats, one run after the other: 0 forward down, 1 forward up, 2 gradient down, 3 gradient up the V."""


@njit(cache=True)
def _zbv(p, m):  # type: ignore[no-untyped-def]
    """Columns of the fused order, 4m rows per rank."""
    kind, stage, micro = np.empty(4 * p * m, np.int8), np.empty(4 * p * m, np.int16), np.empty(4 * p * m, np.int32)
    row = 0
    for r in range(p):
        ahead, done = p - r, np.zeros(4, np.int32)
        times = (2 * ahead - 1, r, ahead, m - (2 * ahead - 1) - r, ahead - 1, r, ahead)
        for run in range(len(times)):
            for _ in range(times[run]):
                for leg in RUNS[run]:
                    if leg >= 0:
                        kind[row] = F if leg < 2 else BW
                        stage[row] = r if leg == 0 or leg == 3 else 2 * p - 1 - r
                        micro[row] = done[leg]
                        done[leg] += 1
                        row += 1
    return kind, stage, micro
