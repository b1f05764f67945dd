"""The lower bound under a memory limit against the exact solver's orders: never above them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_search.errors import ScheduleError
from primus_search.schedule import Costs, lower_bound
from primus_search.schedule.exact import solve
from primus_search.schedule.registry import make_request

whole = st.integers(1, 9)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.tuples(st.sampled_from(["ilp", "ilp-v"]), st.integers(2, 3), st.integers(2, 7)),
    times=st.tuples(whole, whole, whole, st.integers(0, 2)),
    limit=st.sampled_from([1.0, 1.5, 2.0, 2.5]),
)
def test_no_order_of_the_exact_solver_beats_the_bound(
    shape: tuple[str, int, int], times: tuple[int, int, int, int], limit: float
) -> None:
    pytest.importorskip("ortools")
    name, p, m = shape
    f, b, w, c = times
    costs = Costs(forward=f, backward=b, weight=w, comm=c)
    try:
        _, request = make_request(name, stages=p, microbatches=m, costs=costs, memory_limit=limit)
        solved = solve(request, effort=0.3)
    except ScheduleError:
        return
    bound = lower_bound(name, stages=p, microbatches=m, costs=costs, memory_limit=limit)
    assert bound <= solved.makespan * (1 + 1e-9)


def test_a_third_of_the_memory_bounds_a_long_v_pipeline_by_rounds_of_micro_batches() -> None:
    costs = Costs(forward=10, backward=14, weight=6, comm=1)
    # Little's law alone (lifetimes of 462 in 12 chunks, 64 micro-batches, rank 15 starts at 90) gives 2554.
    assert lower_bound("v-min", stages=16, microbatches=64, costs=costs, memory_limit=6) > 2800
