"""Schedules that adapt to costs and memory: ZB-auto (any limit), ZB-1p and ZB-2p (published memory), V-auto.

The zero-bubble paper's ZB-1p and ZB-2p (arXiv:2401.10241, section 3) are the order of least span that its heuristic
finds within the memory of p and 2p micro-batches per rank, half of an activation released at B; here as published
(`zb_heuristic`). ZB-auto goes on searching from there; V-auto is the adaptive schedule of arXiv:2405.15362.
"""

from collections.abc import Iterator
from itertools import chain

from primus_search.schedule.algorithms.v_shaped import published_zbv
from primus_search.schedule.algorithms.zero_bubble import warm_ups
from primus_search.schedule.optimise.loop_search import fastest_loop
from primus_search.schedule.optimise.v_search import fastest_v
from primus_search.schedule.optimise.zb_heuristic import best_of_the_grid
from primus_search.schedule.registry import TOLERANCE, Objective, Request, register
from primus_search.schedule.simulation.timeline import peak_activations
from primus_search.schedule.table import Placement, Table


@register("zb-auto", summary="fastest zero-bubble order within the memory limit", placement=Placement.LOOP,
          splits_weight=True, cost_aware=True)  # fmt: skip
def zb_auto(request: Request) -> Table:
    """One stage per rank, any memory limit, aware of the costs."""
    return fastest_loop(request, request.memory_limit, _any_warm_up)


def _any_warm_up(request: Request) -> Iterator[Table]:
    return chain(warm_ups(request, 1), warm_ups(request, 2))


@register("zb-1p", summary="the paper's search in the memory of p, half released at B", placement=Placement.LOOP,
          splits_weight=True, cost_aware=True, objective=Objective.SPAN)  # fmt: skip
def zb_1p(request: Request) -> Table:
    """Within p micro-batches, half of each released at B; a tighter memory limit counts as released at W."""
    return _published(request, 1)


@register("zb-2p", summary="the paper's search in the memory of 2p, half released at B", placement=Placement.LOOP,
          splits_weight=True, cost_aware=True, objective=Objective.SPAN)  # fmt: skip
def zb_2p(request: Request) -> Table:
    """Within 2p micro-batches, half of each released at B; a tighter memory limit counts as released at W."""
    return _published(request, 2)


def _published(request: Request, multiple: int) -> Table:
    """Half of an activation released at B, as in the paper, where that keeps the caller's limit on those held to W."""
    limit = float(multiple * request.stages)
    if request.memory_limit >= limit:
        table = best_of_the_grid(request, limit, half_at_b=True)
        if peak_activations(table, request.costs.activation).max() <= request.memory_limit + TOLERANCE:
            return table
    return best_of_the_grid(request, min(limit, request.memory_limit), half_at_b=False)


@register("v-auto", summary="fastest V order within the memory limit", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True)  # fmt: skip
def v_auto(request: Request) -> Table:
    """V placement, any memory limit, aware of the costs."""
    return fastest_v(request, request.memory_limit, published_zbv)
