"""`run --baseline FILE`: the present configuration with its rank, its distance, and what makes most of it."""

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import PrimusSearchError
from primus_search.cli import app
from primus_search.cost.confidence.fit import FIT_THRESHOLD
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration import funnel
from primus_search.exploration.result import SearchResult
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.launch.experiment_space import Start, space_of
from primus_search.launch.read.recipes import recipes
from primus_search.learning.started_experiment import start
from primus_search.report.first_screen import first_screen
from primus_search.session.complete_search import search
from primus_search.values.candidates import spoken
from tests.support.daily import DAY, drawn

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


FREE = (
    "tp", "pp", "vpp", "ep", "micro_batch_size", "recompute", "fp8", "sharding", "cuda_graph", "state_format",
    "tp_overlap", "deepep", "exchange_overlap", "schedule", "pipeline_layout",
)  # fmt: skip

NOISE = 1.0 - 1.0 / (1.0 - TIE)


def placed(begun: Start, values: dict[str, str]) -> SearchResult:
    """A search around an experiment, which is its baseline: values of axes, the others as the experiment has them."""
    sets = [f"{axis}={value}" for axis, value in values.items()]
    return search(space_of(begun, [*sets, "benchmark.device=off"], None, ""), baseline=begun.experiment.path)


@pytest.mark.in_turn
def test_a_faster_baseline_has_what_the_screen_names() -> None:
    """Recipes with three axes left to the search: one ahead of the winner is less sure to fit, or it is not ahead once
    what the screen names is set."""
    rng, judged, ahead = random.Random(os.environ[DAY]), 0, 0
    for name in drawn("baselines", [one for one in recipes() if "_pretrain_" in one and "gpu_" in one], 24):
        free = dict.fromkeys(rng.sample(FREE, 3), "auto")
        with suppress(PrimusSearchError):
            begun = start(Path(f"{name}_config"), "", 0)
            found = placed(begun, free)
            yours = found.baseline
            assert yours is not None
            judged += 1
            if yours.figures is None or not yours.figures.fits or yours.behind > -1e-9:
                continue
            ahead += 1
            screen = " ".join(first_screen(found.answer, "", yours)) if found.answer else ""
            assert all(f"{axis}=" in screen for axis in yours.beyond), (name, screen)
            if not yours.beyond:
                is_tie = yours.fits >= FIT_THRESHOLD and yours.behind >= NOISE
                assert ("within noise" if is_tie else "surer to fit") in screen, (name, screen)
                continue
            again = placed(begun, free | {axis: spoken(value) for axis, value in yours.beyond.items()}).baseline
            is_level = again is not None and again.behind >= (NOISE if again.fits >= FIT_THRESHOLD else -1.0)
            assert is_level, (name, yours.beyond)
    assert judged >= 8, (judged, ahead)
