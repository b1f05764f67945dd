"""`ilp`: the least makespan there is, with one stage per rank; `ilp-v` the same in the V placement."""

from primus_search.schedule.optimise.constraint_solver import solve
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Placement, Table


@register("ilp", summary="exact, or best found with proof (small pipelines)", placement=Placement.LOOP,
          splits_weight=True, cost_aware=True, in_comparison=False)  # fmt: skip
def ilp(request: Request) -> Table:
    """Constraint programming; `schedule.optimise.constraint_solver.solve` also returns the proven bound."""
    return solve(request).table


@register("ilp-v", summary="exact in the V placement (small pipelines)", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, cost_aware=True, in_comparison=False)  # fmt: skip
def ilp_v(request: Request) -> Table:
    """Constraint programming; `schedule.optimise.constraint_solver.solve` also returns the proven bound."""
    return solve(request).table
