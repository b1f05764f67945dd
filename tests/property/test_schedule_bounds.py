"""The lower bound under a memory limit against the exact solver's orders: never above them."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_search.base.errors import ScheduleError
from primus_search.schedule import Costs, build, lower_bound, simulate
from primus_search.schedule.registry import make_request
from tests.oracle.exact_orders import solve

whole = st.integers(1, 9)


@pytest.mark.in_turn
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.tuples(st.sampled_from(["zb-auto", "v-auto"]), st.integers(2, 3), st.integers(2, 7)),
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


def test_a_third_of_the_memory_bounds_a_long_v_pipeline_by_what_a_round_of_micro_batches_must_run() -> None:
    costs = Costs(forward=10, backward=14, weight=6, comm=1)
    # Little's law alone (lifetimes of 462 in 12 chunks, 64 micro-batches, rank 15 starts at 90) gives 2554; rounds of
    # six lifetimes 2818; rounds with what rank 15 must run in them, F + 2 (B + W) + F, 240 for six micro-batches.
    found = {m: lower_bound("v-min", stages=16, microbatches=m, costs=costs, memory_limit=6) for m in (58, 64)}
    assert found[64] > 2930
    assert found[64] - found[58] == pytest.approx(240)


@pytest.mark.parametrize(("microbatches", "optimum"), [(6, 289.0), (8, 365.0)])
def test_the_bound_of_a_lean_v_is_close_below_its_proven_optimum(microbatches: int, optimum: float) -> None:
    """Optima proven by constraint programming over all orders of p = 4 within two micro-batches of activations."""
    costs = Costs(forward=10, backward=14, weight=6, comm=1)
    bound = lower_bound("v-min", stages=4, microbatches=microbatches, costs=costs, memory_limit=2)
    assert 0.97 * optimum < bound <= optimum


def test_no_order_that_can_be_built_beats_the_bound_at_its_own_memory() -> None:
    rng = random.Random(0)
    for _ in range(60):
        name = rng.choice(["v-auto", "zb-auto", "1f1b-v", "v-min", "interleaved-zb"])
        p, m, vpp = rng.randint(2, 8), rng.randint(1, 24), rng.choice([2, 3]) if name == "interleaved-zb" else 1
        costs = Costs(forward=rng.randint(1, 9), backward=rng.randint(1, 9), weight=rng.randint(1, 9),
                      comm=rng.randint(0, 3), last_head_extra=rng.choice([0.0, 0.4]))  # fmt: skip
        limit = rng.choice([None, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
        shape = {"stages": p, "microbatches": m, "virtual_stages": vpp, "costs": costs}
        try:
            run = simulate(build(name, memory_limit=limit, **shape), costs)
        except ScheduleError:
            continue
        bound = lower_bound(name, memory_limit=float(run.peak_activations.max()), **shape)
        assert bound <= run.makespan * (1 + 1e-9), (name, shape, limit)
