"""`run --baseline FILE`: the present configuration with its rank, its distance, and what makes most of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.exploration import funnel
from primus_search.exploration.run_folder.saved_run import SavedRun

SPACE = [
    *("llama3_8b_mi300x", "--bench", "off", "--set", "tp=[1,2]", "--set", "pp=[1,2]", "--set", "cp=1"),
    *("--set", "recompute=none", "--set", "sharding=distributed_optimizer", "--set", "vpp=1"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baseline") / "run"
    assert CliRunner().invoke(app, ["run", *SPACE, "--out", str(folder)]).exit_code == 0
    assert CliRunner().invoke(app, ["export", str(folder), "1-60"]).exit_code == 0
    return folder


def answer(run: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["run", *SPACE, "--out", str(run.parent / "again"), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_row_of_the_ranking_is_found_at_its_rank(run: Path) -> None:
    ranking = SavedRun.open(run).ranking
    rates = [row["expected_tokens_per_s_per_gpu"] for row in ranking]
    rank = next(i for i in range(30, 60) if rates[i] < rates[i - 1])
    found = json.loads(answer(run, "--json", "--baseline", str(run / "exports" / str(rank + 1) / "primus.yaml")))
    yours = found["baseline"]
    again = SavedRun.open(run.parent / "again")
    assert again.facts["baseline"] == yours and again.inputs is not None
    assert yours["path"] in again.inputs.texts
    assert (yours["rank"], yours["is_rank_exact"], yours["of"]) == (rank + 1, True, found["feasible"])
    assert yours["behind"] == pytest.approx(1 - rates[rank] / rates[0])
    assert yours["figures"]["expected_tokens_per_s_per_gpu"] == pytest.approx(rates[rank])
    assert rates[rank] < yours["pair_figures"]["expected_tokens_per_s_per_gpu"] <= rates[0] * (1 + 1e-9)
    assert all(yours["values"][name] != value for name, value in yours["pair"].items())


@pytest.mark.in_turn
def test_one_beyond_the_ranked_rows_has_about_its_rank(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(funnel, "LEAST_RANKED", 0)
    ranking = SavedRun.open(run).ranking
    text = answer(run, "--keep", "8", "--baseline", str(run / "exports" / "60" / "primus.yaml"))
    assert "rank about" in " ".join(text.split()) and "behind" in text and len(ranking) > 60


def test_a_baseline_that_cannot_be_read_is_refused_before_the_search(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", *SPACE, "--baseline", str(tmp_path / "none.yaml")])
    assert done.exit_code != 0 and "no such file" in str(done.exception)
