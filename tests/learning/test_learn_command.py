"""`primus-search learn --dry-run`: its JSON, its text, its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from primus_search.analysis.answer import decide
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.declare import load_space
from primus_search.declare.record_table import read_records
from primus_search.exploration.top_up import top_up
from primus_search.session.complete_search import search
from tests.support.written_logs import LOGS, STEP_S

KEYS = [
    "framework",
    "model",
    "gpus",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "step_s",
    "tokens_per_s_per_gpu",
    "peak_memory_bytes",
    "memory_kind",
    "assumed",
    "not_modelled",
]


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.log"
    path.write_text("\n".join(LOGS[name]()) + "\n", encoding="utf-8")
    return path


def test_json_of_a_run_folder(tmp_path: Path) -> None:
    for name in LOGS:
        written(tmp_path, name)
    (tmp_path / "notes.txt").write_text("not a log\n")
    done = CliRunner().invoke(app, ["learn", str(tmp_path), "--as", "mine", "--dry-run", "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert sorted(run["framework"] for run in found["runs"]) == sorted(LOGS)
    for run in found["runs"]:
        assert set(KEYS) <= set(run)
    assert [Path(one["file"]).name for one in found["refused"]] == ["notes.txt"]


def test_text_names_what_is_assumed(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["learn", str(written(tmp_path, "megatron-deepspeed")), "--dry-run"])
    assert done.exit_code == 0
    assert "gpus 16, tp 2, pp 2, cp ?" in done.stdout
    assert "assumed: cp 1 (the log prints no argument for cp)" in done.stdout


def test_nothing_readable_is_an_error_with_every_reason(tmp_path: Path) -> None:
    files = [tmp_path / "a.log", tmp_path / "b.log"]
    files[0].write_text("words\n")
    done = CliRunner().invoke(app, ["learn", *map(str, files), "--dry-run"])
    assert isinstance(done.exception, InputError)
    problems = [str(problem) for problem in done.exception.problems]
    assert "is no training log that is known here" in problems[0]
    assert "no such file" in problems[1]


@pytest.mark.parametrize("name", ["primus", "torchtitan"])
def test_nothing_is_written_by_a_dry_run(tmp_path: Path, name: str) -> None:
    written(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    assert CliRunner().invoke(app, ["learn", str(tmp_path), "--dry-run"]).exit_code == 0
    assert sorted(tmp_path.rglob("*")) == before


def megatron_log(folder: Path, number: int = 0, micro: int = 1) -> Path:
    """A log of a Llama-2 7B on 16 GPUs that prints its sizes and its device."""
    sizes = {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 11008,
        "num_attention_heads": 32,
        "padded_vocab_size": 32000,
        "swiglu": True,
        "untie_embeddings_and_output_weights": True,
        "use_rotary_position_embeddings": True,
        "normalization": "RMSNorm",
        "use_distributed_optimizer": True,
        "sequence_parallel": True,
        "micro_batch_size": micro,
    }
    dump = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sizes.items()]
    lines = LOGS["megatron-lm"]()
    lines = [line for line in lines if "num_layers" not in line and "  micro_batch_size" not in line]
    path = folder / f"run{number}.log"
    text = ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", *dump, *lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


@pytest.mark.in_turn
def test_learn_writes_a_stack_and_its_runs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    into = tmp_path / "sites"
    log = megatron_log(tmp_path / "logs")
    done = CliRunner().invoke(app, ["learn", str(log), "--as", "mine", "--into", str(into), "--json"])
    assert done.exit_code == 0, done.exception
    assert sorted(path.name for path in into.iterdir()) == ["mine.runs.parquet", "mine.yaml"]
    figures = json.loads(done.stdout)
    assert figures["used"] == 1
    assert 0.5 < figures["bands"]["dense"]["low"] < 1.0 < figures["bands"]["dense"]["high"] < 2.0

    again = megatron_log(tmp_path / "logs", number=1, micro=2)
    words = ["learn", str(again), "--as", "mine", "--into", str(into), "--base", "megatron_te", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["used"] == 2, "runs of the file count beside the new one"
    kept = read_records(into / "mine.runs.parquet").runs
    assert len({run.model for run in kept}) == 1, "logs of one model are of one model"

    words = [
        "project",
        "--model",
        "llama3_8b",
        "--hardware",
        "h100",
        "--nodes",
        "2",
        "--stack",
        str(into / "mine.yaml"),
    ]
    projected = CliRunner().invoke(app, [*words, "--json"])
    assert projected.exit_code == 0, projected.exception
    rate = json.loads(projected.stdout)
    assert rate["tokens_per_s_per_gpu_low"] < rate["tokens_per_s_per_gpu"] < rate["tokens_per_s_per_gpu_high"]


@pytest.mark.in_turn
def test_before_the_first_run_the_stack_is_the_prior(tmp_path: Path) -> None:
    words = ["learn", "--as", "mine", "--into", str(tmp_path / "sites"), "--json"]
    refused = CliRunner().invoke(app, words)
    assert "--hardware NAME" in str(refused.exception)
    done = CliRunner().invoke(app, [*words, "--hardware", "h100", "--framework", "nemo"])
    assert done.exit_code == 0, done.exception
    figures = json.loads(done.stdout)
    assert figures["used"] == 0
    assert [path.name for path in (tmp_path / "sites").iterdir()] == ["mine.yaml"]
    assert figures["bands"]["dense"]["low"] < 0.8 and figures["bands"]["dense"]["high"] > 1.2


def test_a_missing_fact_is_asked_for_by_name(tmp_path: Path) -> None:
    log = written(tmp_path, "torchtitan")
    done = CliRunner().invoke(app, ["learn", str(log), "--as", "mine", "--into", str(tmp_path / "sites")])
    assert isinstance(done.exception, InputError)
    said = str(done.exception)
    assert "the log prints no GPU; give --hardware NAME" in said
    assert "the log prints no sizes of the model; give --model NAME" in said
    assert not (tmp_path / "sites").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--as", "megatron_lm"], "is a stack that ships with the package"),
        (["--as", "../mine"], "a name has letters"),
        (["--as", "mine", "--base", "nosuch"], "is no shipped stack; known: automodel"),
    ],
)
def test_names_that_cannot_be_used_are_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    log = megatron_log(tmp_path)
    done = CliRunner().invoke(app, ["learn", str(log), "--into", str(tmp_path / "sites"), *words])
    assert isinstance(done.exception, InputError)
    assert reason in str(done.exception)
    assert not (tmp_path / "sites").exists()


@pytest.mark.in_turn
def test_a_row_that_was_run_carries_its_rate_and_stands_by_it(tmp_path: Path) -> None:
    into, log = tmp_path / "sites", megatron_log(tmp_path)
    assert CliRunner().invoke(app, ["learn", str(log), "--as", "mine", "--into", str(into)]).exit_code == 0
    space = {
        "model": "llama2_7b",
        "hardware": "h100",
        "nodes": 2,
        "stack": str(into / "mine.yaml"),
        "workload": {"seq_length": 4096, "global_batch_size": 64},
        "space": {"tp": [1, 2], "pp": [1, 2], "vpp": 1, "cp": 1, "micro_batch_size": [1, 2], "fp8": "none",
                  "recompute": "none", "sharding": "distributed_optimizer", "schedule": "1f1b",
                  "overlap_grad_reduce": True, "pipeline_layout": "even", "cuda_graph": "none", "loss_fusion": True,
                  "tp_overlap": False},
        "benchmark": {"device": "off"},
    }  # fmt: skip
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space), encoding="utf-8")
    result = search(load_space(path, environ={}), out=tmp_path / "run")
    ranking = result.ranking
    (row,) = [i for i, one in enumerate(ranking.time_evidence) if one == "run"]
    found = ranking.row(row)
    assert (found["tp"], found["pp"], found["micro_batch_size"]) == (2, 2, 1)
    assert found["expected_tokens_per_s_per_gpu"] == pytest.approx(64 * 4096 / 16 / STEP_S, rel=0.01)
    assert found["tokens_per_s_per_gpu_high"] < 1.05 * found["expected_tokens_per_s_per_gpu"]
    assert all(np.diff(ranking.projection.step.total) >= 0.0)
    assert any(note.startswith("run before (mine.runs.parquet): rank ") for note in result.notes)

    for original in into.glob("mine.*"):  # the run folder keeps both files of the stack
        original.unlink()
    measured, notes = top_up(tmp_path / "run", device="trace", top_k=1, seconds=1.0, decide=decide)
    assert measured.row(row)["tokens_per_s_per_gpu"] == found["tokens_per_s_per_gpu"]
    assert measured.time_evidence[row] == "run", notes
