"""Pipeline schedules: build an order, simulate it exactly, bound what any order could reach.

table = build("zbv", stages=8, microbatches=64, costs=Costs(forward=10, backward=14, weight=6, comm=1))
simulate(table, costs).makespan

`build` makes the best order that is known of a schedule; `build(..., launcher="primus")` makes the one that this
framework runs under the name, which candidates are priced with.

May import: values, base.
"""

from primus_search.schedule.bounds import lower_bound as lower_bound
from primus_search.schedule.costs import Costs as Costs
from primus_search.schedule.registry import Algorithm as Algorithm
from primus_search.schedule.registry import algorithm as algorithm
from primus_search.schedule.registry import build as build
from primus_search.schedule.registry import launchers as launchers
from primus_search.schedule.registry import names as names
from primus_search.schedule.registry import order_for as order_for
from primus_search.schedule.registry import peak_activations_for as peak_activations_for
from primus_search.schedule.registry import ranks_of as ranks_of
from primus_search.schedule.registry import registered as registered
from primus_search.schedule.registry import warm_up as warm_up
from primus_search.schedule.simulation.timeline import Timeline as Timeline
from primus_search.schedule.simulation.timeline import peak_activations as peak_activations
from primus_search.schedule.simulation.timeline import simulate as simulate
from primus_search.schedule.table import PassKind as PassKind
from primus_search.schedule.table import Placement as Placement
from primus_search.schedule.table import RankOrder as RankOrder
from primus_search.schedule.table import Table as Table
