"""V-shaped schedules: ZBV, V-Half, V-Min (Qi et al. 2024, arXiv:2405.15362).

Each rank holds one chunk of the way down and one of the way up, so the last stage is on rank 0 and all ranks can hold
equally much. The three differ in that memory: p, about p/2, about p/3 micro-batches. The published orders are built
for F = B = W and lose 11 % and 32 % of the bound at 10, 14, 6; here each is the fastest order that is found within the
published memory at the costs that are given.
"""

from primus_search.schedule.contest import fastest_within, own_limit
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Placement, Table
from primus_search.schedule.v_patterns import LEGS_HALF, LEGS_LONG, LEGS_MIN


@register("zbv", summary="V placement, zero bubble, memory of 1F1B", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def zbv(request: Request) -> Table:
    """Span bubble 0 at F=B=W, peak p."""
    return fastest_within(request, own_limit(request, request.stages), legs=LEGS_LONG)


@register("v-half", summary="V placement in about half the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def v_half(request: Request) -> Table:
    """Peak (p + 2) // 2."""
    return fastest_within(request, own_limit(request, (request.stages + 2) // 2), legs=LEGS_HALF)


@register("v-min", summary="V placement in about a third of the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), splits_weight=True, cost_aware=True, memory_aware=True)  # fmt: skip
def v_min(request: Request) -> Table:
    """Peak (p + 4) // 3."""
    return fastest_within(request, own_limit(request, (request.stages + 4) // 3), legs=LEGS_MIN)
