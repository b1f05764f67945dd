"""A search that a budget ends says nothing that a search to the end denies, and finds a row that fits where some do.

`SEARCH_BUDGETS=300` tries so many random spaces, with `SEARCH_SEED` another draw.
"""

import os
import random
import re
from typing import Any

import pytest

from primus_search.base.errors import BudgetEnded, NothingFits
from primus_search.declare import make_space
from primus_search.exploration.exhaustive import task_plan
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult

COUNT, SEED = int(os.environ.get("SEARCH_BUDGETS", "5")), int(os.environ.get("SEARCH_SEED", "3"))
BUDGETS = (1, 10, 1000, 100_000)
OFTEN = 0.01
"""Share of rows that fit from which on one is found."""

NUMBER = r"([\d,]+)"


def random_question(rng: random.Random) -> dict[str, Any]:
    """A model that hardly fits, on a few nodes."""
    axes: dict[str, Any] = {
        "tp": [1, 2, 4, 8],
        "pp": "auto",
        "cp": 1,
        "optimizer_offload": 0,
        "offload_modules": "none",
    }
    axes |= {
        "micro_batch_size": rng.choice([[1], [1, 2], [4, 8], [8]]),
        "recompute": rng.choice([["none"], ["none", "full"], "auto"]),
        "sharding": rng.choice(["distributed_optimizer", "auto"]),
        "schedule": rng.choice(["1f1b", ["1f1b", "interleaved"]]),
        "fp8": "none",
    }
    nodes: Any = rng.choice([1, 2, 4, 8, [2, 8]])
    return {
        "model": rng.choice(["llama3.1_70b", "mixtral_8x22b", "llama3_8b"]),
        "hardware": rng.choice(["h100", "a100_40", "mi300x", ["h100", "mi300x"]]),
        "nodes": nodes,
        "workload": {"seq_length": rng.choice([4096, 32768]), "global_batch_size": rng.choice([128, 512])},
        "space": axes,
        "benchmark": {"device": "off"},
    }


def outcome(data: dict[str, Any], **search: Any) -> SearchResult | NothingFits:
    try:
        return run_search(make_space(data | {"search": search}), Options(workers=1))
    except NothingFits as error:
        return error


def counts_of(error: NothingFits) -> tuple[int, int]:
    """Candidates looked at and legal ones, as a message has them."""
    first = str(error).splitlines()[0]
    if found := re.search(f"none of the {NUMBER} candidates looked at, of {NUMBER} legal ones", first):
        looked_at, legal = found.groups()
    else:
        (legal,) = (looked_at,) = re.findall(f"{NUMBER} legal candidates", first)
    return int(looked_at.replace(",", "")), int(legal.replace(",", ""))


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("number", range(COUNT))
def test_nothing_false_is_said_of_a_search_that_a_budget_ends(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_plan, "FIRST_SHARE", 1024)  # tasks of 64 candidates: small spaces end early as well
    data = random_question(random.Random(SEED * 100_003 + number))
    truth = outcome(data)
    if isinstance(truth, SearchResult):
        legal, fitting, best = truth.legal, truth.feasible, truth.best.best_tokens_per_s_per_gpu
        assert truth.exact and truth.looked_at == legal
    else:
        assert type(truth) is NothingFits
        (_, legal), fitting, best = counts_of(truth), 0, 0.0
    for budget in BUDGETS:
        for method in ("auto", "exhaustive"):
            found = outcome(data, method=method, budget={"candidates": budget})
            if isinstance(found, SearchResult):
                assert fitting and found.legal == legal and 0 < found.looked_at <= legal, data
                assert 0 < found.feasible <= min(fitting, found.looked_at)
                assert found.exact <= (found.looked_at == legal)
                rates = [one.ranking.expected_rate.max(initial=0.0) for one in found.clusters]
                limits = [one.ranking.expected_rate.max(initial=0.0) for one in truth.clusters]  # type: ignore[union-attr]
                assert all(rate <= limit * (1 + 1e-9) for rate, limit in zip(rates, limits, strict=True)), data
                assert best > 0.0
            else:
                looked_at, said = counts_of(found)
                assert said == legal and looked_at <= legal, data
                if isinstance(found, BudgetEnded):
                    assert looked_at < legal and found.exit_code == 5
                    assert fitting < OFTEN * legal, (data, budget, method)
                else:
                    assert not fitting and looked_at == legal, data


def test_a_budget_that_ends_before_a_task_says_that_nothing_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_question(random.Random(1)) | {"hardware": "h100", "model": "llama3_8b", "nodes": 1}
    found = outcome(data, method="exhaustive", budget={"seconds": 1e-9})
    assert isinstance(found, BudgetEnded) and "before any of" in str(found)
