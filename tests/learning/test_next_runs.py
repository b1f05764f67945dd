"""What to run next: rows whose measurement changes the choice, not rows that are known or cannot win."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.learning.next_runs import advise, regret
from tests.support.small_runs import make_run


def samples() -> np.ndarray:
    """Three rows: 0 is safe, 1 is either much better or much worse, 2 can never win and is uncertain too."""
    rng = np.random.default_rng(0)
    coin = rng.random(400) < 0.5
    rows = [np.full(400, 100.0), np.where(coin, 130.0, 60.0), 30.0 + 20.0 * rng.random(400)]
    return np.column_stack(rows) * np.exp(0.005 * rng.standard_normal((400, 3)))


def test_the_row_that_decides_is_run() -> None:
    rates = samples()
    advice = advise(rates, np.ones(3), count=1)
    assert advice.picks[0].row == 1
    assert advice.regret > 0.1
    assert advice.picks[0].regret < 0.01


def test_more_picks_never_raise_the_expected_regret() -> None:
    advice = advise(samples(), np.ones(3), count=3)
    ladder = [advice.regret, *(pick.regret for pick in advice.picks)]
    assert all(after <= before + 1e-3 for before, after in pairwise(ladder))


def test_a_budget_limits_what_is_run() -> None:
    hours = np.array([1.0, 50.0, 1.0])
    assert advise(samples(), hours, count=3, budget_gpu_hours=0.5).picks == ()
    assert 1 not in [pick.row for pick in advise(samples(), hours, count=3, budget_gpu_hours=10.0).picks]


def test_what_is_known_needs_no_run() -> None:
    rates = np.column_stack([np.full(100, 100.0), np.full(100, 90.0)])
    assert regret(rates, np.full(100, 0.01)) == 0.0


@pytest.mark.in_turn
def test_the_command_names_ranks_and_regrets(tmp_path: Path) -> None:
    make_run(tmp_path)
    done = CliRunner().invoke(app, ["next", str(tmp_path / "run"), "--count", "2", "--json"])
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert len(found["picks"]) == 2
    assert 0.0 < found["picks"][-1]["expected_regret_after"] < found["expected_regret"]


def test_a_framework_that_no_log_names_is_refused() -> None:
    done = CliRunner().invoke(app, ["next", "anywhere", "--framework", "nosuch"])
    assert isinstance(done.exception, InputError) and "--framework nosuch: is no framework" in str(done.exception)


@pytest.mark.in_turn
def test_picks_are_written_as_launch_files(tmp_path: Path) -> None:
    make_run(tmp_path, framework="primus")
    words = [
        "next",
        str(tmp_path / "run"),
        "--count",
        "2",
        "--budget-gpu-hours",
        "50",
        "--out",
        str(tmp_path / "launch"),
    ]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert len(found["picks"]) == 2
    folders = {str(pick["rank"]) for pick in found["picks"]}
    assert {path.name for path in (tmp_path / "launch").iterdir()} == folders
    assert all(Path(file).is_file() for file in found["files"])
    assert any(file.endswith(".sh") for file in found["files"])
    assert sum(pick["gpu_hours"] for pick in found["picks"]) <= 50.0
