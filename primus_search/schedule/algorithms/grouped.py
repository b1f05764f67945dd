"""Zero-bubble orders of interleaved chunks: interleaved ZB1P and grouped interleaved (GIS).

Interleaved ZB1P splits the backward of interleaved 1F1B and keeps the memory at p micro-batches (the schedule of that
name in PyTorch). GIS lets smaller groups of micro-batches walk through the chunks together, which saves activations:
a group of g needs g + (p - g)/v (PipeOffload, arXiv:2503.01328, without the offloading).
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from primus_search.schedule.algorithms.interleaved import balanced, in_groups, published_cut
from primus_search.schedule.optimise.loop_search import fastest_loop
from primus_search.schedule.optimise.portfolio import own_limit
from primus_search.schedule.registry import TOLERANCE, Request, register
from primus_search.schedule.table import Placement, Table


@register("interleaved-zb", summary="interleaved 1F1B with W in the gaps, memory of 1F1B", placement=Placement.LOOP,
          virtual_stages=None, splits_weight=True, cost_aware=True)  # fmt: skip
def interleaved_zb(request: Request) -> Table:
    """Bubble (p-1)(F+B-W)/v at F=B=W, peak p; a little more where m is no multiple of p."""
    p, m = request.stages, request.microbatches
    largest = -(-m // max(1, m // p))
    return fastest_loop(request, own_limit(request, max(p, largest)), partial(_patterns, group=p))


@register("gis", summary="interleaved in small groups, less memory", placement=Placement.LOOP, virtual_stages=None,
          splits_weight=True, cost_aware=True)  # fmt: skip
def gis(request: Request) -> Table:
    """Peak g + (p - g)/v; without a group, the largest that fits the memory limit."""
    p, v = request.stages, request.virtual_stages
    if request.group is not None and not 1 <= request.group <= p:
        raise request.refuse(f"group={request.group}; a group has 1 to stages = {p} micro-batches")
    sizes = [request.group] if request.group is not None else range(p, 0, -1)
    fitting = [g for g in sizes if memory(g, p, v) <= request.memory_limit + TOLERANCE]
    group = fitting[0] if fitting else sizes[-1]
    return fastest_loop(request, own_limit(request, memory(group, p, v)), partial(_patterns, group=group))


def memory(group: int, stages: int, virtual_stages: int) -> float:
    """Activations of a group size, in micro-batches through one full rank."""
    return group + (stages - group) / virtual_stages


def _patterns(request: Request, group: int) -> Iterator[Table]:
    """Interleaved orders with the warm-up of ZB-H1 and shorter, in groups of this size.

    What is left over goes last as a small group, or as a full one with empty places, or is shared among the groups.
    """
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    behind = p - 1 - np.arange(p)
    whole, rest = divmod(m, group)
    cuts = [published_cut(m, group)]
    if rest and v > 1:
        cuts += [(group,) * (whole + 1), balanced(m, max(1, whole))]
    for slope in (1, 2) if v > 1 else (1, 2, 3):
        for sizes in cuts:
            table = in_groups(request, sizes, (v - 1) * sizes[0] + slope * behind)
            if table.is_finite:
                yield table
