"""V-shaped schedules: ZBV, V-Half, V-Min, the adaptive V-auto and 1F1B-V (Qi et al. 2024, arXiv:2405.15362).

Each rank holds one chunk of the way down and one of the way up, so the last stage is on rank 0 and all ranks can hold
equally much. The three differ in that memory: p, about p/2, about p/3 micro-batches. The published orders are built
for F = B = W and lose 11 % and 32 % of the bound at 10, 14, 6; here each is the fastest order that is found within the
published memory at the costs that are given.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from primus_search.schedule.optimise.portfolio import own_limit
from primus_search.schedule.optimise.v_search import fastest_v
from primus_search.schedule.registry import Request, register
from primus_search.schedule.simulation.pass_kernels import BW, B, F, W
from primus_search.schedule.table import PassKind, Placement, Table


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


@register("v-auto", summary="fastest V order within the memory limit", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True)  # fmt: skip
def v_auto(request: Request) -> Table:
    """V placement, any memory limit, aware of the costs."""
    return fastest_v(request, request.memory_limit, published_zbv)


@register("1f1b-v", summary="V placement, fused backward, two thirds of the memory of 1F1B", placement=Placement.V,
          virtual_stages=(2,), cost_aware=True)  # fmt: skip
def one_f_one_b_v(request: Request) -> Table:
    """Peak 2p // 3 + 1, that of the published building block; at least 2."""
    units = max(2, 2 * request.stages // 3 + 1)
    costs = request.costs
    fused = replace(request, costs=replace(costs, backward=costs.fused, weight=np.zeros_like(costs.weight)))
    return _fuse(fastest_v(fused, own_limit(request, units)))


def _fuse(table: Table) -> Table:
    """A table whose W passes take no time, with each one back in its B."""
    kept = table.kind != PassKind.W
    kind = np.where(table.kind == PassKind.B, np.int8(PassKind.BW), table.kind)[kept]
    sizes = np.add.reduceat(kept.astype(np.int64), table.offsets[:-1])
    return replace(
        table,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        kind=kind,
        stage=table.stage[kept],
        micro_batch=table.micro_batch[kept],
        overlaps_next=table.overlaps_next[kept],
    )


def published_zbv(request: Request) -> Iterator[Table]:
    """ZBV as drawn in the paper, W left to be placed: the only order without a bubble on any rank at F=B=W."""
    if request.microbatches >= 2 * request.stages:
        yield _of_legs(request, fused=True)


@register("zbv", summary="ZBV as drawn in the paper, as AMD Primus runs it (zbv-formatted)", launchers=("primus",),
          placement=Placement.V, virtual_stages=(2,), splits_weight=True, serves=lambda p, m: m >= 2 * p - 1,
          needs="Primus runs at least 2 * stages - 1 micro-batches, however many there are")  # fmt: skip
@register("zbv", summary="ZBV as drawn in the paper, as torch runs it", launchers=("torchtitan",),
          placement=Placement.V, virtual_stages=(2,), splits_weight=True)  # fmt: skip
def drawn_zbv(request: Request) -> Table:
    """Every W behind its B but in the cool-down. With few micro-batches torch leaves out the passes of others.

    Source: torch.distributed.pipelining ScheduleZBVZeroBubble and, from it, Primus' zbv_formatted.py.
    """
    return _of_legs(request, fused=False)


F0, F1, B0, B1, W0, W1 = range(6)
"""Legs of a rank: forward, input gradient, weight gradient of its chunk on the way down (0) and up (1)."""


def _of_legs(request: Request, *, fused: bool) -> Table:
    """ZBV with both gradients fused, or apart as its authors draw it."""
    p, m = request.stages, request.microbatches
    n = max(m, 2 * p - 1)
    ranks = []
    for r in range(p):
        ahead = p - r
        runs = (([F0], 2 * ahead - 1), ([F1, F0], r), ([F1, B1, W1], ahead),
                ([F0, B0, W0, F1, B1, W1], n - p - ahead + 1), ([B0, W0, F1, B1, W1], ahead - 1),
                ([B0, B1], r), ([B0, W0], ahead), ([W1], r), ([W0], r))  # fmt: skip
        leg = np.concatenate([np.tile(run, times) for run, times in runs])
        micro = np.empty_like(leg)
        for each in range(6):
            rows = np.flatnonzero(leg == each)
            micro[rows] = np.arange(len(rows))
        kept = (micro < m) & ~(fused & (leg >= W0))
        leg, micro = leg[kept], micro[kept]
        ranks.append((np.array([F, BW if fused else B, W])[leg // 2], np.where(leg % 2, 2 * p - 1 - r, r), micro))
    kind, stage, micro = (np.concatenate(column) for column in zip(*ranks, strict=True))
    return request.table(kind.astype(np.int8), stage.astype(np.int16), micro.astype(np.int32))
