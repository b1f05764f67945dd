"""Zero bubble with one stage per rank: 1F1B with B and W split (Qi et al. 2023, arXiv:2401.10241).

ZB-H1 and ZB-H2 run forwards and input gradients in the 1F1B way with a longer warm-up for H2; the weight gradients fill
the gaps, held back so that no rank keeps more than p (H1) or 2p - 1 (H2) micro-batches. ZB-1p and ZB-2p are the order
of least span that the paper's heuristic finds within p and 2p micro-batches, half of an activation released at B
(`zb_heuristic`); ZB-auto goes on searching from there.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np

from primus_search.schedule import optimise
from primus_search.schedule.algorithms.interleaved import warm_steady_cool
from primus_search.schedule.registry import TOLERANCE, Objective, Request, register
from primus_search.schedule.simulation.timeline import peak_activations
from primus_search.schedule.table import Placement, Table

_zero = partial(register, placement=Placement.LOOP, splits_weight=True, cost_aware=True)


@_zero("zb-h1", summary="1F1B with W in the gaps, memory of 1F1B")
def zb_h1(request: Request) -> Table:
    """Bubble (p-1)(F+B-W), peak p."""
    p = request.stages
    return optimise.fastest_loop(request, request.own_limit(p), partial(warm_ups, depth=1))


@register("zb-h1", summary="1F1B with W delayed, as AMD Primus runs it (zero-bubble)", launchers=("primus",),
          placement=Placement.LOOP, splits_weight=True, serves=lambda p, m: m >= p - 1,
          needs="Primus runs all its warm-up forwards: at least stages - 1 micro-batches")  # fmt: skip
def of_primus(request: Request) -> Table:
    """Rank r delays r weight gradients. Source: primus/core/pipeline_parallel/scheduler/algorithms/zerobubble.py."""
    p, m = request.stages, request.microbatches
    ranks = np.arange(p)
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), p - 1 - ranks, ranks)


@_zero("zb-h2", summary="no steady bubble, twice the memory of 1F1B")
def zb_h2(request: Request) -> Table:
    """Span bubble (p-1)(F+B-2W), peak 2p - 1."""
    p = request.stages
    return optimise.fastest_loop(request, request.own_limit(2 * p - 1), partial(warm_ups, depth=2))


def warm_ups(request: Request, depth: int) -> Iterator[Table]:
    """1F1B with `depth` times the usual warm-up, as published, then a little longer.

    The longer ones help when there are few micro-batches or the hops cost time. Rank 0 stays as published: no rank
    may hold more than it.
    """
    p, m = request.stages, request.microbatches
    most, behind = depth * (p - 1), depth * (p - 1 - np.arange(p))
    shapes = [np.minimum(most, slope * behind + extra) for slope, extra in ((1, 0), (2, 0), (3, 0), (1, 1))]
    for warm_up in np.unique(np.minimum(shapes, m), axis=0):
        yield warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), warm_up)


@_zero("zb-auto", summary="fastest zero-bubble order within the memory limit")
def zb_auto(request: Request) -> Table:
    """One stage per rank, any memory limit, aware of the costs."""
    return optimise.fastest_loop(request, request.memory_limit, _any_warm_up)


def _any_warm_up(request: Request) -> Iterator[Table]:
    return chain(warm_ups(request, 1), warm_ups(request, 2))


@_zero("zb-1p", summary="the paper's search in the memory of p, half released at B", objective=Objective.SPAN)
def zb_1p(request: Request) -> Table:
    """Within p micro-batches, half of each released at B; a tighter memory limit counts as released at W."""
    return _published(request, 1)


@_zero("zb-2p", summary="the paper's search in the memory of 2p, half released at B", objective=Objective.SPAN)
def zb_2p(request: Request) -> Table:
    """Within 2p micro-batches, half of each released at B; a tighter memory limit counts as released at W."""
    return _published(request, 2)


def _published(request: Request, multiple: int) -> Table:
    """Half of an activation released at B, as in the paper, where that keeps the caller's limit on those held to W."""
    limit = float(multiple * request.stages)
    if request.memory_limit >= limit:
        table = optimise.best_of_the_grid(request, limit, half_at_b=True)
        if peak_activations(table, request.costs.activation).max() <= request.memory_limit + TOLERANCE:
            return table
    return optimise.best_of_the_grid(request, min(limit, request.memory_limit), half_at_b=False)
