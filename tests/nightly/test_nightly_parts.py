"""Parts of the nightly sweep: values survive their plain form, only worse fails, no night is lost."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import primus_search
from primus_search.analysis.run_comparison import MovedFigure
from primus_search.analysis.run_comparison import compare as compared
from primus_search.declare import make_space
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.hardware_files import load_hardware
from primus_search.files.plain_forms import from_plain, to_plain
from primus_search.files.search_path import FileKind, names
from primus_search.nightly.causes import Pair
from primus_search.nightly.figures import Accuracy, moved_most, work_of
from primus_search.nightly.night_run import Night, compare
from primus_search.nightly.observed import (
    MOVES_NOTHING,
    Observed,
    code_hashes,
    data_hashes,
    dependency_versions,
    observe,
    opened,
)
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.values.machine.accelerator import Accelerator


def test_every_accelerator_survives_json() -> None:
    for name in names(FileKind.HARDWARE):
        accelerator = load_hardware(name).accelerator
        assert from_plain(Accelerator, json.loads(json.dumps(to_plain(accelerator)))) == accelerator


STATE = Observed(
    runs={}, unanswered={}, accuracy=None, work=100, code={}, data={}, versions=dependency_versions(), commit=""
)


def small_sweep() -> NightlySweep:
    """A sweep without entries whose speed is checked."""
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    return NightlySweep(
        name="s", source=Path("s.yaml"), baseline=Path("b"), tolerances=Tolerances(), entries={},
        speed=make_space(tiny, environ={}),
    )  # fmt: skip


ERRORS = Accuracy(
    rows={"rows": 10, "memory_rows": 5},
    errors={"median_abs_error": 0.05, "p90_abs_error": 0.2, "memory_median_abs_error": 0.01},
    predicted={"a": 100.0, "b": 200.0},
)


def with_median(error: float, rows: int = 10, memory_rows: int = 5) -> Accuracy:
    """`ERRORS` with another median error and other numbers of runs."""
    counts = {"rows": rows, "memory_rows": memory_rows}
    return replace(ERRORS, rows=counts, errors=ERRORS.errors | {"median_abs_error": error})


def failures(accuracy: Accuracy = ERRORS, work: int = 100) -> list[str]:
    """Names of the checks that fail when a night sees these after a baseline of `ERRORS` and 100."""
    before = replace(STATE, accuracy=ERRORS)
    checks = compare(small_sweep(), before, replace(before, accuracy=accuracy, work=work), {})
    return [check.name for check in checks if not check.passed]


def test_worse_fails_and_better_passes() -> None:
    assert failures() == []
    assert failures(with_median(0.01, rows=12), work=30) == []
    assert failures(with_median(0.0519)) == []
    assert failures(with_median(0.0521, memory_rows=4)) == ["memory_rows", "median_abs_error"]
    assert failures(work=109) == []
    assert failures(work=111) == ["projection work"]


def test_the_runs_that_moved_most_are_named_first() -> None:
    after = replace(ERRORS, predicted={"a": 103.0, "b": 180.0, "new": 1.0})
    assert moved_most(ERRORS, after) == ["b -10.0%", "a +3.0%"]


def test_code_that_moves_figures_is_hashed() -> None:
    assert {"values/knobs/knobs.toml", "values/model/decoder.py", "cost/laws/gemm.py", "values/candidates.py"} <= set(
        code_hashes()
    )


def test_modules_of_every_room_count_but_of_those_that_move_no_figure() -> None:
    rooms = {path.parent.name for path in Path(primus_search.__file__).parent.glob("*/__init__.py")}
    hashed = {name.partition("/")[0] for name in code_hashes()}
    assert set(MOVES_NOTHING) <= rooms
    assert rooms - set(MOVES_NOTHING) == hashed & rooms


def test_data_of_frameworks_and_evidence_count() -> None:
    found = data_hashes()
    for name in ("hardware/mi300x.yaml", "hardware/frameworks/primus.yaml", "spaces/models/llama3_8b.yaml"):
        assert name in found
    assert any(name.startswith("hardware/sites/") for name in found)


def test_work_is_the_same_every_time() -> None:
    """A speed differs from machine to machine and from hour to hour, so that an unchanged tree failed."""
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    space = make_space(tiny, environ={})
    works = [work_of(space, 200) for _ in range(3)]
    assert works[0] > 1000 and max(works) / min(works) - 1.0 < 1e-3  # caches of the interpreter


def test_figures_of_a_night_are_of_one_rate(tmp_path: Path) -> None:
    """The best one's rate, the frontier's and the one it is chosen by: a moved expectation shows in all of them."""
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    space = make_space(tiny | {"space": {"tp": [1, 2], "pp": 1, "cp": 1}}, environ={})
    sweep = replace(small_sweep(), entries={"tiny": space}, speed=None)
    runs = opened(tmp_path, observe(sweep, tmp_path, print))
    (best, *_) = checked = {check.name: check.value for check in compare(sweep, *[STATE] * 2, pairs_of(runs))}
    assert checked["tokens_per_s"] == pytest.approx(max(row[RATE] for row in runs["tiny"].frontier))
    assert best == "best"


def pairs_of(runs: Mapping[str, SavedRun]) -> dict[str, Pair]:
    return {where: Pair(before=run, after=run, found=compared(run, run)) for where, run in runs.items()}


WRITER = """
import sys
from pathlib import Path
from primus_search.nightly import night_folder
from tests.nightly.test_nightly_parts import night
folder = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
night_folder.write_night(folder, night(sys.argv[2]))
"""


def night(started: str) -> Night:
    """A night of one check."""
    sweep, state = small_sweep(), replace(STATE, commit=started)
    return Night(
        sweep=sweep, state=state, baseline=state, pairs={},
        checks=tuple(compare(sweep, state, state, {})), causes=(), changes=(),
        started="2026-01-02T03:04:05+00:00", seconds=1.0,
    )  # fmt: skip


@pytest.mark.in_turn
def test_nights_at_once_lose_none(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, f"commit{n}"], **pipes) for n in range(3)]
    for one in writers:
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        one.stdin.write("\n")
        one.stdin.flush()
    assert [one.wait(timeout=120) for one in writers] == [0] * 3
    rows = parquet.read_table(tmp_path / "history.parquet").to_pylist()
    assert sorted(row["commit"] for row in rows) == [f"commit{n}" for n in range(3)]


def test_a_step_from_or_to_what_is_not_legal_has_no_change() -> None:
    """A former best that today's rules refuse under its own inputs has no rate to divide by."""
    for before, after in ((0.0, 100.0), (100.0, None)):
        assert MovedFigure(group="model", before=before, after=after).change is None
    assert MovedFigure(group="model", before=100.0, after=101.0).change == pytest.approx(0.01)
