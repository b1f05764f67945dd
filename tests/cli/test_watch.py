"""`explain --log` and `watch`: a log beside the row of a run; exit 6 says that a job left its band."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.small_runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("watched"))


def log_of(path: Path, run: Path, factor: float, stall_s: float = 0.0) -> Path:
    """A log of Megatron-LM whose steps take a factor of those of the first row, every twentieth some seconds more."""
    row = SavedRun.open(run).row(1)
    expected_s = row["step_s"] * row["tokens_per_s_per_gpu"] / row["expected_tokens_per_s_per_gpu"]
    seconds = np.full(100, factor * expected_s) + 0.001 * expected_s * np.random.default_rng(3).standard_normal(100)
    seconds[19::20] += stall_s
    lines = [f"  world_size {'.' * 38} 16", f"  seq_length {'.' * 38} 1024"]
    lines += [
        f" iteration {number:8d}/     100 | elapsed time per iteration (ms): {1e3 * one:.4f} | learning rate: 1.0E-05 |"
        f" global batch size:    64 | lm loss: 9.9E+00 |"
        for number, one in enumerate(seconds, start=1)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_healthy_log_ends_with_0_and_a_slow_one_with_6(run: Path, tmp_path: Path) -> None:
    for name, factor, code in (("good", 1.0, 0), ("slow", 9.0, 6)):
        log = log_of(tmp_path / f"{name}.log", run, factor)
        done = CliRunner().invoke(app, ["watch", str(log), "--run", str(run), "--once"])
        assert done.exit_code == code, done.output
        assert done.stdout.startswith("LOG ")


def test_a_stall_in_a_rhythm_is_named_while_the_rate_is_in_its_band(run: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path / "save.log", run, 1.0, stall_s=3.0)
    done = CliRunner().invoke(app, ["explain", str(run), "A", "--log", str(log)])
    assert done.exit_code == 0, done.output
    assert "every 20 iterations one takes 3 s more" in " ".join(done.stdout.split())
    found = json.loads(CliRunner().invoke(app, ["explain", str(run), "A", "--log", str(log), "--json"]).stdout)["log"]
    assert found["causes"][0]["name"] == "checkpoint" and not found["is_slow"]


def test_a_log_that_prices_no_job_is_answered_with_the_way_round(run: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path / "bare.log", run, 1.0)
    done = CliRunner().invoke(app, ["explain", "--log", str(log), "--hardware", "mi355x"])
    assert done.exit_code != 0
    assert "explain RUN A --log FILE" in str(done.exception) + done.output
