"""`primus-search schedules --run`: the pipeline of a found candidate under every schedule, with its own costs."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.analysis.explanation import explain
from primus_search.analysis.pipelines import RunPipeline
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.small_runs import AXES, make_run

pytestmark = pytest.mark.in_turn("run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    axes = AXES | {"pp": [1, 2], "fp8": "none", "sharding": "distributed_optimizer", "sync_free_stage": 0}
    return make_run(tmp_path_factory.mktemp("schedules"), space=axes)


def rank_of(run: Path, **wanted: object) -> int:
    ranking = SavedRun.open(run).ranking
    return next(n for n, row in enumerate(ranking, 1) if all(row[key] == value for key, value in wanted.items()))


def ask(*words: str) -> str:
    result = CliRunner().invoke(app, ["schedules", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_the_runs_own_schedule_takes_what_the_projection_says(run: Path, schedule: str) -> None:
    rank = rank_of(run, pp=2, schedule=schedule, recompute="none")
    timeline = explain(SavedRun.open(run), rank).timeline
    rows = {row["name"]: row for row in json.loads(ask("--run", str(run), "--rank", str(rank), "--json"))}
    assert timeline is not None
    assert rows[schedule]["makespan"] == pytest.approx(1e3 * timeline.makespan, rel=1e-12)
    assert RunPipeline.of(SavedRun.open(run), rank).own[1] == pytest.approx(1e3 * timeline.makespan, rel=1e-12)
    assert rows[schedule]["peak_activations"] <= RunPipeline.of(SavedRun.open(run), rank).room
    assert {"zb-h1", "zb-auto", "zbv", "v-half", "v-auto", "interleaved-zb", "gis"} <= set(rows)
    assert all(row["gap_to_bound"] >= -1e-9 for row in rows.values())


def test_no_schedule_holds_more_than_the_limit_and_the_picture_is_of_the_best(run: Path, tmp_path: Path) -> None:
    rank, picture = rank_of(run, pp=2, schedule="1f1b", recompute="none"), tmp_path / "best.svg"
    words = ["--run", str(run), "--rank", str(rank), "--memory-limit", "1.5"]
    rows = json.loads(ask(*words, "--json"))
    assert rows and all(row["peak_activations"] <= 1.5 + 1e-9 for row in rows)
    text = ask(*words, "--draw", "--gantt", str(picture))
    best = min(rows, key=lambda row: (round(row["makespan"], 9), row["peak_activations"], row["name"]))
    assert f"Best within 1.5 micro-batches of activations: {best['name']}" in " ".join(text.split())
    assert "not available: 1f1b" in text
    assert best["name"] in picture.read_text() and "rank   1" in text


def test_activations_that_fit_are_those_the_memory_model_has_room_for(run: Path) -> None:
    saved = SavedRun.open(run)
    rank = rank_of(run, pp=2, schedule="1f1b", recompute="none")
    pipeline, memory = RunPipeline.of(saved, rank), explain(saved, rank).memory_by_rank
    hbm = saved.cluster(rank).cluster.accelerator.hbm_bytes * (1.0 - saved.space.search.memory_margin)
    # 1F1B holds 2 micro-batches on rank 0 and 1 on rank 1, each through equally many layers.
    each = np.max(memory.activations / [2.0, 1.0])
    assert pipeline.room == pytest.approx(np.min(hbm - memory.total + memory.activations) / each)
    assert pipeline.room_twice < pipeline.room


def test_a_candidate_with_recompute_has_no_split_weight_gradients(run: Path) -> None:
    rank = rank_of(run, pp=2, schedule="1f1b", recompute="full")
    text = " ".join(ask("--run", str(run), "--rank", str(rank)).split())
    assert "not available: zb-h1: schedules that split the weight gradient run without recompute" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--run", "RUN", "--rank", "FLAT"], "has pp = 1, no pipeline to schedule; choose one with stages"),
        (["--run", "RUN", "--stages", "4"], "a run says its own pipeline; leave out --stages, --costs and the like"),
        (["--stages", "4"], "--microbatches: say the pipeline with --stages and --microbatches, or name a --run"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(run: Path, words: list[str], why: str) -> None:
    known = {"RUN": str(run), "FLAT": str(rank_of(run, pp=1))}
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, ["schedules", *(known.get(w, w) for w in words)], catch_exceptions=False)
    assert why in str(caught.value)
