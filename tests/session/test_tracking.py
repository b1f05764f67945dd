"""Folders of run, tune and nightly as runs of MLflow and W&B."""

import json
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.session.tracking import send, tracked


def run_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    best = {"tp": 8, "schedule": "1f1b", "deepep": False, "tokens_per_s_per_gpu": 1234.5, "mfu": float("nan")}
    facts = {"space": "llama on h100", "model": "llama3_8b", "nodes": 2, "workload": {"seq_length": 8192}, "best": best,
             "notes": ["none"], "engine": "local"}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "ranking.csv").write_text("rank\n1\n")
    return folder


def tune_folder(folder: Path) -> Path:
    run_folder(folder / "search")
    for number, rate in ((1, 900.0), (2, None)):
        place = folder / "trials" / f"{number:03}"
        place.mkdir(parents=True)
        (place / "candidate.json").write_text(json.dumps({"rank": number, "candidate": {"tp": 4 * number}}))
        (place / "launch.log").write_text("step 1\n")
        result = {"rank": number, "verdict": "ran" if rate else "out_of_memory", "tokens_per_s_per_gpu": rate}
        (place / "result.json").write_text(json.dumps(result))
    (folder / "trials" / "003").mkdir()
    return folder


def test_numbers_are_metrics_and_words_are_parameters(tmp_path: Path) -> None:
    found = tracked(run_folder(tmp_path / "run"))
    assert found.metrics == {"nodes": 2, "workload.seq_length": 8192, "best.tp": 8, "best.tokens_per_s_per_gpu": 1234.5}
    assert found.params == {
        "space": "llama on h100",
        "model": "llama3_8b",
        "best.schedule": "1f1b",
        "best.deepep": "False",
    }
    assert [path.name for path in found.files] == ["ranking.csv"]


def test_trials_that_ended_are_runs_inside_of_their_loop(tmp_path: Path) -> None:
    found = tracked(tune_folder(tmp_path / "loop"))
    assert [one.name for one in found.inside] == ["001", "002"]
    assert found.inside[0].metrics["result.tokens_per_s_per_gpu"] == 900.0
    assert found.inside[1].params["result.verdict"] == "out_of_memory"
    assert found.params["model"] == "llama3_8b"


def test_a_nights_moves_are_metrics_by_place_and_figure(tmp_path: Path) -> None:
    checks = [{"where": "llama, 1 node", "name": "tokens_per_s", "move": -0.01, "passed": True}]
    (tmp_path / "nightly.json").write_text(json.dumps({"sweep": "nightly", "passed": True, "checks": checks}))
    found = tracked(tmp_path)
    assert found.metrics == {"move.llama_ 1 node/tokens_per_s": -0.01}
    assert found.params == {"sweep": "nightly", "passed": "True"}


def test_another_folder_and_a_damaged_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        tracked(tmp_path)
    assert "is no folder of run, tune or nightly" in str(caught.value)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError) as caught:
        tracked(tmp_path)
    assert "is no mapping of JSON" in str(caught.value)


def test_mlflow_holds_what_was_sent(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    uri = (tmp_path / "store").as_uri()
    parent, first, second = send(tune_folder(tmp_path / "loop"), uri, "loops")
    client = mlflow.MlflowClient(tracking_uri=uri)
    assert client.get_run(parent).data.metrics["best.tokens_per_s_per_gpu"] == 1234.5
    assert client.get_run(first).data.metrics["candidate.tp"] == 4
    assert client.get_run(second).data.tags["mlflow.parentRunId"] == parent
    assert [one.path for one in client.list_artifacts(first)] == ["launch.log"]
    (again,) = send(run_folder(tmp_path / "run"), uri, "loops")
    assert [one.path for one in client.list_artifacts(again)] == ["ranking.csv"]


def test_wandb_holds_what_was_sent_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "WANDB_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # refuses every connection
    numbers = send(tune_folder(tmp_path / "loop"), f"wandb:{tmp_path / 'store'}", "loops")
    assert len(numbers) == 3
    (records,) = (path.read_bytes() for path in (tmp_path / "store").glob(f"wandb/*/run-{numbers[0]}.wandb"))
    (trial,) = (path for path in (tmp_path / "store").glob(f"wandb/offline-run-*-{numbers[1]}/files/launch.log"))
    assert b"best.tokens_per_s_per_gpu" in records and b"1234.5" in records and b"loops" in records
    assert trial.read_text() == "step 1\n"


@pytest.mark.parametrize(("uri", "extra"), [("wandb", "wandb"), ("wandb:out", "wandb"), ("mlruns", "mlflow")])
def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, extra: str
) -> None:
    monkeypatch.setattr("primus_search.session.tracking.find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        send(run_folder(tmp_path / "run"), uri, "loops")
    assert f"primus-search[{extra}]" in str(caught.value)
