"""The event simulator against orders that fit on the back of an envelope, and its refusals word for word."""

import time
from typing import Any

import numpy as np
import pytest

from primus_search.base.errors import ScheduleError
from primus_search.schedule import (
    Costs,
    PassKind,
    Placement,
    RankOrder,
    Table,
    build,
    names,
    peak_activations,
    side_by_side,
    simulate,
)

F, B, W, BW = PassKind.F, PassKind.B, PassKind.W, PassKind.BW


def table(
    *ranks: list[tuple[PassKind, int, int]], vpp: int = 1, m: int = 1, placement: Placement = Placement.LOOP
) -> Table:
    orders = [
        RankOrder(
            np.array([k for k, _, _ in rank], dtype=np.int8),
            np.array([s for _, s, _ in rank], dtype=np.int16),
            np.array([i for _, _, i in rank], dtype=np.int32),
        )
        for rank in ranks
    ]
    return Table.from_ranks("hand-made", orders, microbatches=m, virtual_stages=vpp, placement=placement)


ONE_TRIP = table([(F, 0, 0), (B, 0, 0), (W, 0, 0)], [(F, 1, 0), (B, 1, 0), (W, 1, 0)])


def test_one_micro_batch_goes_down_and_up() -> None:
    run = simulate(ONE_TRIP, Costs(forward=10, backward=14, weight=6, comm=1))
    assert run.start.tolist() == [0, 36, 50, 11, 21, 35]
    assert run.end.tolist() == [10, 50, 56, 21, 35, 41]
    assert (run.makespan, run.span) == (56, 56)
    assert run.bubble_ratio == pytest.approx(1 - 60 / 112)


def test_every_stage_and_hop_has_its_own_cost() -> None:
    run = simulate(ONE_TRIP, Costs(forward=[1, 2], backward=[4, 8], weight=[16, 32], comm=[0.5]))
    assert run.end.tolist() == [1, 16, 32, 3.5, 11.5, 43.5]
    assert run.span == 42.0


def test_a_fused_backward_sends_its_gradient_at_its_end() -> None:
    fused = table([(F, 0, 0), (BW, 0, 0)], [(F, 1, 0), (BW, 1, 0)])
    assert simulate(fused, Costs(forward=10, backward=14, weight=6)).makespan == 60
    assert simulate(ONE_TRIP, Costs(forward=10, backward=14, weight=6)).makespan == 54


def test_communication_is_free_inside_a_rank() -> None:
    v = table([(F, 0, 0), (F, 3, 0), (BW, 3, 0), (BW, 0, 0)], [(F, 1, 0), (F, 2, 0), (BW, 2, 0), (BW, 1, 0)],
              vpp=2, placement=Placement.V)  # fmt: skip
    assert simulate(v, Costs(comm=0.25)).makespan == 6.0 + 4 * 0.25


def test_an_overlapped_pair_runs_as_one_and_can_be_credited() -> None:
    dual = build("dualpipev", stages=2, microbatches=8)
    apart = simulate(dual, Costs())
    together = simulate(dual, Costs(), pairs="atomic")
    credited = simulate(dual, Costs(overlap=1.0))
    pair = int(np.flatnonzero(dual.overlaps_next)[0])
    assert apart.start[pair + 1] >= apart.end[pair]
    assert together.start[pair] == together.start[pair + 1] and together.end[pair] == together.end[pair + 1]
    assert together.end[pair] - together.start[pair] == 1.5
    assert credited.end[pair] - credited.start[pair] == 1.0
    assert credited.makespan < together.makespan


def test_activations_are_counted_in_both_release_models() -> None:
    order = table(
        [(F, 0, 0), (F, 0, 1), (B, 0, 0), (F, 0, 2), (W, 0, 0), (B, 0, 1), (W, 0, 1), (B, 0, 2), (W, 0, 2)], m=3
    )
    run = simulate(order, Costs())
    assert run.peak_activations.tolist() == [3.0]
    assert run.peak_activations_half_at_b.tolist() == [2.5]
    assert peak_activations(order, np.array([2.0])).tolist() == [6.0]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            ([(F, 0, 0), (BW, 0, 0)], [(F, 1, 0), (B, 1, 0)]),
            "rank 1 never runs W(stage 1, micro-batch 0); every micro-batch needs F, B and W of every virtual stage",
        ),
        (
            ([(F, 0, 0), (F, 0, 0), (BW, 0, 0)], [(F, 1, 0), (BW, 1, 0)]),
            "rank 0, F(stage 0, micro-batch 0) is a duplicate of work already listed as F(stage 0, micro-batch 0)",
        ),
        (
            ([(BW, 0, 0), (F, 0, 0)], [(F, 1, 0), (BW, 1, 0)]),
            "rank 0, BW(stage 0, micro-batch 0) waits for F(stage 0, micro-batch 0), "
            "which the same rank runs only later",
        ),
        (
            ([(F, 0, 0), (W, 0, 0), (B, 0, 0)], [(F, 1, 0), (BW, 1, 0)]),
            "rank 0, W(stage 0, micro-batch 0) waits for B(stage 0, micro-batch 0), "
            "which the same rank runs only later",
        ),
        (
            ([(F, 1, 0), (BW, 0, 0)], [(F, 1, 0), (BW, 1, 0)]),
            "rank 0, F(stage 1, micro-batch 0) belongs to rank 1",
        ),
        (
            ([(F, 0, 7), (BW, 0, 0)], [(F, 1, 0), (BW, 1, 0)]),
            "rank 0, F(stage 0, micro-batch 7) does not exist; virtual stages are 0..1, micro-batches 0..0",
        ),
    ],
)
def test_an_impossible_order_is_refused_with_rank_pass_and_reason(ranks: tuple, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        simulate(table(*ranks), Costs())
    assert str(caught.value) == f"hand-made p=2 m=1: {message}"


def test_a_deadlock_names_what_is_waited_for() -> None:
    crossed = table([(F, 0, 0), (F, 0, 1), (BW, 0, 0), (BW, 0, 1)], [(F, 1, 1), (F, 1, 0), (BW, 1, 1), (BW, 1, 0)], m=2)
    assert simulate(crossed, Costs()).makespan == 12.0
    stuck = table([(F, 0, 0), (BW, 0, 0), (F, 0, 1), (BW, 0, 1)], [(F, 1, 0), (F, 1, 1), (BW, 1, 0), (BW, 1, 1)], m=2)
    with pytest.raises(ScheduleError) as caught:
        simulate(stuck, Costs())
    assert str(caught.value) == (
        "hand-made p=2 m=2: rank 0, BW(stage 0, micro-batch 0) waits for BW(stage 1, micro-batch 0) of rank 1, "
        "which can never run: the order is deadlocked"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "1f1bb"}, "no schedule is called '1f1bb'; did you mean '1f1b'? - known: " + ", ".join(names())),
        ({"microbatches": 0}, "1f1b: microbatches=0; a count is a whole number of at least 1"),
        ({"virtual_stages": 2}, "1f1b: virtual_stages=2; this schedule is defined for 1"),
        (
            {"memory_limit": 3},
            "1f1b (stages=4, microbatches=8, virtual_stages=1): rank 0 holds 4 micro-batches of activations, "
            "the memory limit is 3",
        ),
        (
            {"name": "dualpipe", "microbatches": 6},
            "dualpipe (stages=4, microbatches=6, virtual_stages=1): the two directions meet in the middle and run "
            "equally many micro-batches, at least as many as there are stages: stages and micro-batches must be even, "
            "micro-batches at least 2 * stages",
        ),
    ],
)
def test_what_cannot_be_built_says_why(call: dict, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        build(**{"name": "1f1b", "stages": 4, "microbatches": 8, **call})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"forward": -1}, "costs.forward: -1; times are at least 0 and at most 1e+30"),
        ({"comm": 1e308}, "costs.comm: 1e+308; times are at least 0 and at most 1e+30"),
        ({"forward": [1.0, 2.0, 3.0]}, "costs.forward: 3 entries; give a scalar or 2, one per virtual stage"),
        ({"comm": [1.0, 2.0]}, "costs.comm: 2 entries; give a scalar or 1, one per hop between virtual stages"),
        ({"overlap": 2.0}, "costs.overlap: 2.0; the hidden share lies in 0..1"),
    ],
)
def test_costs_of_the_wrong_shape_or_sign_are_refused(costs: dict, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        simulate(ONE_TRIP, Costs(**costs))
    assert str(caught.value) == message


@pytest.mark.parametrize("limit", [8, 12, 20])
def test_the_papers_search_serves_any_limit_on_activations_held_to_their_w(limit: float) -> None:
    """Half released at B, its 2p keep up to 31 of them to W at p = 8: then the limit counts at W."""
    run = simulate(build("zb-2p", stages=8, microbatches=64, memory_limit=limit), Costs())
    assert run.peak_activations.max() <= limit
    assert run.peak_activations_half_at_b.max() <= 16


def test_interleaved_takes_the_group_size_of_megatron() -> None:
    costs = Costs(forward=3, backward=4, weight=1, comm=2.4)
    published = simulate(build("interleaved", stages=6, microbatches=20, virtual_stages=3, costs=costs), costs)
    wider = simulate(build("interleaved", stages=6, microbatches=20, virtual_stages=3, costs=costs, group=10), costs)
    assert wider.makespan < published.makespan
    assert wider.peak_activations.max() > published.peak_activations.max()
    with pytest.raises(ScheduleError) as caught:
        build("interleaved", stages=6, microbatches=20, virtual_stages=3, group=0)
    assert str(caught.value) == (
        "interleaved (stages=6, microbatches=20, virtual_stages=3): group=0; a group has at least 1 micro-batch"
    )


def test_primus_names_mean_schedules_of_ours() -> None:
    for primus, ours in {"zerobubble": "zb-h1", "zbv-formatted": "zbv", "zbv-greedy-half": "v-half"}.items():
        assert build(primus, stages=4, microbatches=8).name == ours
    fastest = build("auto", stages=4, microbatches=8, memory_limit=4)
    assert simulate(fastest, Costs()).makespan == 25.5


def test_the_first_use_of_an_algorithm_is_not_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled by the first that builds with them: 7 to 18 s, where building takes some ms."""
    real, seen = side_by_side.build, set[str]()

    def slow_at_first(name: str, **asked: Any) -> Any:
        if name not in seen:
            seen.add(name)
            time.sleep(0.2)
        return real(name, **asked)

    monkeypatch.setattr(side_by_side, "build", slow_at_first)
    rows = side_by_side.compare(stages=4, microbatches=8, virtual_stages=2, costs=Costs())
    built = [row for row in rows if row.timeline is not None and "searched" not in row.summary]
    assert len(built) > 4 and min(row.seconds for row in built) < 0.1
    assert sum(row.seconds >= 0.2 for row in built) <= len(built) // 3
