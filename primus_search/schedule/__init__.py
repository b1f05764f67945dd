"""Pipeline schedules: build an order, simulate it exactly, bound what any order could reach.

table = build("zbv", stages=8, microbatches=64, costs=Costs(forward=10, backward=14, weight=6, comm=1))
simulate(table, costs).makespan

`build` makes the best order that is known of a schedule; `build(..., launcher="primus")` makes the one that this
framework runs under the name, which candidates are priced with.
"""

from primus_search.schedule.bounds import lower_bound
from primus_search.schedule.costs import Costs
from primus_search.schedule.registry import (
    Algorithm,
    algorithm,
    build,
    launchers,
    names,
    order_for,
    peak_activations_for,
    ranks_of,
    registered,
    warm_up,
)
from primus_search.schedule.simulation.timeline import Timeline, peak_activations, simulate
from primus_search.schedule.table import PassKind, Placement, RankOrder, Table

__all__ = [
    "Algorithm",
    "Costs",
    "PassKind",
    "Placement",
    "RankOrder",
    "Table",
    "Timeline",
    "algorithm",
    "build",
    "launchers",
    "lower_bound",
    "names",
    "order_for",
    "peak_activations",
    "peak_activations_for",
    "ranks_of",
    "registered",
    "simulate",
    "warm_up",
]
