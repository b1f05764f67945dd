"""Goals: tokens, a date, a budget and an objective choose among machines and sizes; a price or watts change no rate."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from primus_search.analysis.answer import answered
from primus_search.analysis.goals import assumptions
from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.exploration.scaling_table import chance_of
from primus_search.report.scaling_text import scaling_lines

NARROW = {
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "micro_batch_size": [1, 2],
    "recompute": "none",
    "fp8": "none",
    "sharding": "fsdp2",
}
BASE: dict[str, Any] = {
    "model": "llama3_8b",
    "hardware": ["h200", "gb300"],
    "gpus": [8, 16, 32],
    "workload": {"seq_length": 4096, "global_batch_size": 96},
    "space": NARROW,
    "benchmark": {"device": "off"},
    "goal": {"tokens": "100B"},
}


def searched(**changes: Any) -> SearchResult:
    space = make_space({**BASE, **changes}, environ={})
    return answered(run_search(space, Options(workers=1)))


@pytest.fixture(scope="module")
def plain() -> SearchResult:
    return searched()


def test_one_size_in_gpus_is_the_same_on_nodes_of_four_and_of_eight(plain: SearchResult) -> None:
    assert [(rung.device, rung.world, rung.nodes) for rung in plain.rungs] == [
        ("H200", 8, 1), ("H200", 16, 2), ("H200", 32, 4), ("GB300", 8, 2), ("GB300", 16, 4), ("GB300", 32, 8),
    ]  # fmt: skip
    assert all(rung.efficiency == 1.0 for rung in plain.rungs if rung.world == 8)


def test_devices_that_fill_no_node_are_a_part_of_one() -> None:
    data = {"model": "llama3_8b", "hardware": ["h100", "mi300x"], "gpus": [1, 2, 8, 16],
            "workload": {"seq_length": 2048, "global_batch_size": 16}, "space": {"tp": [1, 2]}}  # fmt: skip
    clusters = make_space(data, environ={}).clusters
    sizes = [(one.cluster.num_nodes, one.cluster.network.gpus_per_node, one.cluster.world) for one in clusters]
    assert sizes == 2 * [(1, 1, 1), (1, 2, 2), (1, 8, 8), (2, 8, 16)]
    assert len({one.labels for one in clusters}) == len(clusters)
    networks = [one.cluster.network for one in clusters[4:7]]
    assert [one.domain_size for one in networks] == [1, 2, 8]
    alone = make_space(data | {"hardware": "h100", "gpus": [2]}, environ={}).cluster
    other = {name: one for name, one in data.items() if name != "gpus"}
    assert alone == make_space(other | {"hardware": "h100", "nodes": 1, "gpus_per_node": 2}, environ={}).cluster


def test_no_whole_nodes_are_refused_with_the_sizes_beside() -> None:
    with pytest.raises(
        InputError, match=r"12 devices are no whole nodes of 8 H200; use 8 or 16, or give gpus_per_node"
    ):
        searched(gpus=[12])


def test_the_recommendation_meets_the_date_and_is_the_cheapest_that_does(plain: SearchResult) -> None:
    latest = sorted(rung.days for rung in plain.rungs)[2]
    found = searched(goal={"tokens": 1e11, "within_days": 1.2 * latest}, price={"h200": 2.0, "gb300": 6.0})
    best = found.rung_of(found.best.choice)
    meeting = [rung for rung in found.rungs if rung.chance >= 0.8]
    assert best.chance >= 0.8 and best.cost_USD == min(rung.cost_USD for rung in meeting)
    assert found.answer is not None
    assert f"{best.days:,.1f} days" in found.answer.goal[0]


def test_where_no_cluster_meets_the_date_the_likeliest_is_named_and_that_it_does_not() -> None:
    found = searched(goal={"tokens": 1e13, "within_days": 1})
    assert found.answer is not None
    assert found.answer.goal[-1].startswith("No cluster of this search meets 1 days with 80%")


def test_a_budget_alone_takes_the_earliest_that_it_pays() -> None:
    price = {"h200": 2.0, "gb300": 2.0}
    dear = searched(price=price)
    budget = sorted(rung.cost_USD for rung in dear.rungs)[-1] * 2.0
    found = searched(price=price, goal={"tokens": 1e11, "budget_USD": budget})
    assert found.rung_of(found.best.choice).days == min(rung.days for rung in found.rungs)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("objective", "best"),
    [
        ("tokens_per_dollar", lambda rung: -rung.cost_USD),
        ("tokens_per_joule", lambda rung: -rung.joules_per_token),
        ("days", lambda rung: -rung.days),
        ("tokens_per_s", lambda rung: rung.tokens_per_s),
    ],
)
def test_every_objective_recommends_the_cluster_that_is_best_by_it(objective: str, best: Callable[..., float]) -> None:
    found = searched(search={"objective": objective}, price={"h200": 2.0, "gb300": 9.0})
    assert found.rung_of(found.best.choice) is max(found.rungs, key=best)


def test_a_price_and_watts_change_neither_rate_nor_evidence(plain: SearchResult) -> None:
    found = searched(price={"h200": 2.5}, space={**NARROW, "hardware.busy_W": 1000})
    for before, after in zip(plain.clusters, found.clusters, strict=True):
        for name in ("expected_rate", "time_evidence", "memory_evidence"):
            assert (getattr(before.ranking, name) == getattr(after.ranking, name)).all()
        assert (before.ranking.confidence.low == after.ranking.confidence.low).all()
    assert [rung.days for rung in found.rungs] == [rung.days for rung in plain.rungs]


def test_days_cost_and_energy_add_up(plain: SearchResult) -> None:
    found = searched(price={"h200": 2.5, "gb300": 5.0})
    for rung, one in zip(found.rungs, found.clusters, strict=False):
        seconds = 1e11 / rung.tokens_per_s / rung.goodput
        assert rung.days == pytest.approx(seconds / 86400)
        assert rung.gpu_hours == pytest.approx(rung.world * seconds / 3600)
        assert rung.energy_MWh == pytest.approx(rung.joules_per_token * 1e11 / 3.6e9)
        assert rung.energy_MWh * 1e6 == pytest.approx(rung.gpu_hours * one.choice.power.busy_w)


def test_a_batch_that_does_not_divide_is_named_with_those_that_do() -> None:
    found = searched(hardware="h200", gpus=[8, 16, 24, 32], workload={"seq_length": 4096, "global_batch_size": 128})
    (note,) = [text for text in assumptions(found) if text.startswith("24 H200")]
    assert "nothing is legal" in note and "120 or 144 would" in note


def test_the_table_fits_the_screen_and_marks_the_recommendation(plain: SearchResult) -> None:
    lines = scaling_lines(plain)
    assert max(map(len, lines)) <= 80
    (marked,) = [line for line in lines if line.startswith(">")]
    best = plain.rung_of(plain.best.choice)
    assert marked.split()[1:3] == [best.device, f"{best.world:,}"]
    assert any("no failure rate of H200, GB300 is published" in line for line in lines)


def test_the_chance_is_that_of_the_interval() -> None:
    assert chance_of(0.0, 100.0, 70.0, 120.0) == 1.0
    assert chance_of(1.0, 100.0, 70.0, 120.0) == pytest.approx(0.5)
    assert chance_of(0.7, 100.0, 70.0, 120.0) == pytest.approx(0.95, abs=1e-3)
    assert chance_of(1.2, 100.0, 70.0, 120.0) == pytest.approx(0.05, abs=1e-3)
    assert chance_of(math.inf, 100.0, 70.0, 120.0) == 0.0
    times = [0.1 * step for step in range(1, 30)]
    chances = [chance_of(one, 100.0, 70.0, 120.0) for one in times]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": {"within_days": 60}}, "needs the tokens to train on"),
        ({"goal": {"tokens": "15T", "budget_USD": "30M"}}, "no price of H200 or GB300: --price h200=USD_PER_GPU_HOUR"),
        ({"search": {"objective": "tokens_per_joule"}, "hardware": "mi455x", "gpus": [8]}, "no watts of MI455X"),
        ({"price": {"h20": 2.0}}, "is no device of this space; did you mean 'h200'?"),
        ({"goal": {"tokens": "15 parsecs"}}, "is not a number such as 15T"),
        ({"goal": {"tokens": "1T", "within_days": "60 moons"}}, "is not a time such as 60d"),
        ({"nodes": 2}, "nodes are given as well; keep one of them"),
        ({"space": {**NARROW, "hardware.price_per_gpu_hour_USD": 2.0}}, "--price NAME=2.5"),
    ],
)
def test_a_goal_that_cannot_be_computed_is_refused_with_its_cure(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_space({**BASE, **changes}, environ={})
    assert words in str(caught.value)
