"""1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473) and GPipe (Huang et al. 2019, arXiv:1811.06965)."""

import numpy as np

from primus_search.schedule.patterns import warm_steady_cool
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Placement, Table


@register("1f1b", summary="one forward, one backward in turn", placement=Placement.LOOP)
def one_f_one_b(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak p - r on rank r (or m if that is less)."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), p - 1 - np.arange(p))


@register("gpipe", summary="all forwards, then all backwards", placement=Placement.LOOP)
def gpipe(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak m."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), np.full(p, m))
