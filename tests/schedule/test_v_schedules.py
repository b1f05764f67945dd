"""The V schedules under little memory: what they gain there, and what they say where nothing fits."""

import numpy as np
import pytest

from primus_search.base.errors import ScheduleError
from primus_search.schedule import Costs, PassKind, build, lower_bound, peak_activations, simulate
from primus_search.schedule.optimise.greedy_insertion import insert_greedily
from primus_search.schedule.registry import make_request


@pytest.mark.parametrize(("stages", "gap"), [(8, 0.08), (16, 0.11), (24, 0.11), (32, 0.115)])
def test_v_min_stays_close_to_the_bound_at_uneven_costs(stages: int, gap: float) -> None:
    """Paths that repeat for every micro-batch are 11 to 18 % above it."""
    costs, shape = Costs(forward=10, backward=14, weight=6, comm=1), {"stages": stages, "microbatches": 4 * stages}
    bound = lower_bound("v-min", costs=costs, memory_limit=(stages + 4) // 3, **shape)
    assert simulate(build("v-min", costs=costs, **shape), costs).makespan <= (1.0 + gap) * bound


def test_laid_orders_are_complete_run_as_laid_and_keep_their_memory() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        p, m, limit = int(rng.integers(1, 9)), int(rng.integers(1, 20)), float(rng.choice([1.0, 1.5, 2.0, 3.0]))
        costs = Costs(forward=rng.integers(1, 9, 2 * p), backward=rng.integers(1, 9, 2 * p),
                      weight=rng.integers(1, 9, 2 * p), comm=int(rng.integers(0, 3)))  # fmt: skip
        _, request = make_request("v-auto", stages=p, microbatches=m, costs=costs)
        stage = request.costs
        work = float(stage.duration[:3].sum())
        makespan, *columns = insert_greedily(p, m, np.ascontiguousarray(stage.duration[:3]), stage.comm,
                                             stage.activation, limit, work, 0.5 * work)  # fmt: skip
        table = request.table(*columns)
        assert len({*zip(table.kind, table.stage, table.micro_batch, strict=True)}) == 6 * p * m
        assert np.bincount(table.kind, minlength=len(PassKind))[: PassKind.BW].tolist() == [2 * p * m] * 3
        # Run as early as possible, the order is no slower than it was laid, and holds no more.
        assert simulate(table, costs).makespan <= makespan * (1.0 + 1e-9)
        assert peak_activations(table).max() <= limit + 1e-9


@pytest.mark.parametrize("name", ["v-auto", "v-min", "v-half", "zbv", "1f1b-v", "zb-auto", "zb-h1"])
def test_a_limit_below_one_micro_batch_is_refused_by_rank_need_and_limit(name: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        build(name, stages=4, microbatches=8, memory_limit=0.6)
    chunks = 2 if "v" in name else 1
    assert str(caught.value) == (
        f"{name} (stages=4, microbatches=8, virtual_stages={chunks}): rank 0 needs 1 micro-batches of activations for "
        "a single one to pass, the memory limit is 0.6"
    )


def test_the_rank_with_the_largest_activations_is_the_one_that_is_named() -> None:
    costs = Costs(activation=[0.5, 0.5, 0.5, 0.5, 0.5, 1.5, 0.5, 0.5])
    with pytest.raises(ScheduleError) as caught:
        build("v-auto", stages=4, microbatches=8, costs=costs, memory_limit=1.5)
    assert "rank 2 needs 2 micro-batches of activations for a single one to pass, the memory limit is 1.5" in str(
        caught.value
    )


@pytest.mark.parametrize(("name", "count"), [("zb-auto", 40), ("v-auto", 8)])
def test_a_longer_run_keeps_the_pace_of_a_shorter_one(name: str, count: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(count):
        p, (forward, backward, weight) = int(rng.choice([4, 6, 8])), rng.uniform(0.6, 1.6, 3)
        costs = Costs(forward=forward, backward=backward, weight=weight, comm=float(rng.choice([0.0, 0.1])))
        shape = {"stages": p, "costs": costs, "memory_limit": float(rng.choice([p / 2, p / 2 + 0.5, 0.7 * p]))}
        short, long = (
            simulate(build(name, microbatches=m, **shape), costs).makespan / m
            for m in (4 * p, int(rng.choice([64, 101])))
        )
        assert long <= 1.05 * short, (shape, forward, backward, weight)
