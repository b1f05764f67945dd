"""GPipe: all forwards, then all backwards, in the order of the micro-batches (Huang et al. 2019, arXiv:1811.06965)."""

import numpy as np

from primus_search.schedule.patterns import warm_steady_cool
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Placement, Table


@register("gpipe", summary="all forwards, then all backwards", placement=Placement.LOOP)
def gpipe(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak m."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), np.full(p, m))
