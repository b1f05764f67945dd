"""Construction and improvement of pipeline orders within a memory limit; loaded when an order is searched for."""

from typing import TYPE_CHECKING

from primus_search.base.lazy import loader

if TYPE_CHECKING:
    from primus_search.schedule.optimise.loop_search import best_of_the_grid as best_of_the_grid
    from primus_search.schedule.optimise.loop_search import fastest_loop as fastest_loop
    from primus_search.schedule.optimise.v_search import fastest_v as fastest_v

_HOMES = {"best_of_the_grid": "loop_search", "fastest_loop": "loop_search", "fastest_v": "v_search"}

__getattr__ = loader(__name__, _HOMES)
