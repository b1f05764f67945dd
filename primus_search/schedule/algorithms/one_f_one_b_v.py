"""1F1B-V: the V placement without splitting the backward (arXiv:2405.15362, section 5)."""

from dataclasses import replace

import numpy as np

from primus_search.schedule.optimise.portfolio import own_limit
from primus_search.schedule.optimise.v_search import fastest_v
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import PassKind, Placement, Table


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
