"""Parts of the nightly sweep: inputs survive their baseline, frontiers are measured right, only worse fails."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import primus_search
from primus_search.declare import load_space, make_space
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.files.hardware_files import load_hardware
from primus_search.files.plain_forms import Leaf, differences, from_plain, to_plain, with_leaf
from primus_search.files.search_path import FileKind, names
from primus_search.nightly.baseline import (
    GROUPS,
    MOVES_NOTHING,
    Baseline,
    BaselineState,
    code_hashes,
    data_hashes,
    dependency_versions,
    inputs_of,
    with_groups,
)
from primus_search.nightly.figures import Accuracy, figures_of, hypervolume, moved_most, work_of
from primus_search.nightly.night_run import Night, compare
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.values.machine.accelerator import Accelerator

SPACES = sorted(names(FileKind.SPACE).keys() - {"tiny_host"})


@pytest.mark.parametrize("name", SPACES)
def test_a_space_restored_from_its_own_baseline_is_the_same_search(name: str) -> None:
    space = load_space(name, environ={})
    kept = json.loads(json.dumps(inputs_of(space)))
    again = with_groups(space, kept, GROUPS)
    plain = replace(space, constraints=again.constraints)  # only the place a constraint was written at may differ
    assert [c.text for c in space.constraints] == [c.text for c in again.constraints]
    assert fingerprint(again) == fingerprint(plain)


def test_every_accelerator_survives_json() -> None:
    for name in names(FileKind.HARDWARE):
        accelerator = load_hardware(name).accelerator
        assert from_plain(Accelerator, json.loads(json.dumps(to_plain(accelerator)))) == accelerator


def test_a_number_added_since_the_baseline_keeps_todays_value() -> None:
    today = load_hardware("mi300x").accelerator
    before = to_plain(today)
    del before["gemm"]["occupancy_power"]
    before["gone"] = 1.0
    assert from_plain(Accelerator, before, today=today) == today


def test_one_leaf_is_set_back_and_no_other() -> None:
    before, after = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 5, "c": 2}, "d": [1, 2]}
    first, second = differences(before, after)
    assert (first, second.name) == (Leaf(path=("a", "b"), before=1, after=5), "d")
    assert with_leaf(after, first) == {"a": {"b": 1, "c": 2}, "d": [1, 2]}
    assert with_leaf(with_leaf(after, first), second) == before


def test_hypervolume_is_the_mean_rate_over_all_memory_budgets() -> None:
    # 100 from 40 to 60 bytes, 200 from 60 to 100: (20 * 100 + 40 * 200) / 100
    assert hypervolume(((40.0, 100.0), (60.0, 200.0)), 100.0) == pytest.approx(100.0)
    assert hypervolume(((40.0, 100.0), (160.0, 900.0)), 100.0) == pytest.approx(60.0), (
        "beyond the device counts nothing"
    )
    assert hypervolume((), 100.0) == 0.0


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
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    sweep = NightlySweep(
        name="s", source=Path("s.yaml"), baseline=Path("b.json"), tolerances=Tolerances(), entries={},
        speed=make_space(tiny, environ={}),
    )  # fmt: skip
    before = BaselineState(
        entries={}, inputs={}, accuracy=ERRORS, work=100, runs_sha256="", code={}, data={}, versions={}, commit=""
    )
    checks = compare(sweep, before, replace(before, accuracy=accuracy, work=work))
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


def test_figures_of_a_night_are_of_one_rate() -> None:
    """The best one's rate, the frontier's and the one it is chosen by: a moved expectation shows in all of them."""
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    (found,) = figures_of(make_space(tiny | {"space": {"tp": [1, 2], "pp": 1, "cp": 1}}, environ={}))
    best = max(rate for memory, rate in found.frontier)
    assert found.tokens_per_s_per_gpu == pytest.approx(best)
    assert found.tokens_per_s == pytest.approx(best * load_hardware("mi300x").network.gpus_per_node)


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
    state = BaselineState(
        entries={},
        inputs={},
        accuracy=None,
        work=100,
        runs_sha256="",
        code={},
        data={},
        versions=dependency_versions(),
        commit=started,
    )
    sweep = NightlySweep(
        name="s", source=Path("s.yaml"), baseline=Path("b.json"), tolerances=Tolerances(), entries={},
        speed=make_space({"model": "tiny", "hardware": "mi300x",
                          "workload": {"seq_length": 256, "global_batch_size": 16}}, environ={}),
    )  # fmt: skip
    return Night(
        sweep=sweep, state=state, baseline=Baseline(state=state, reasons=()),
        checks=tuple(compare(sweep, state, state)), causes=(), changes=(),
        started="2026-01-02T03:04:05+00:00", seconds=1.0,
    )  # fmt: skip


def test_nights_at_once_lose_none(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, f"commit{n}"], **pipes) for n in range(4)]
    for one in writers:
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        one.stdin.write("\n")
        one.stdin.flush()
    assert [one.wait(timeout=120) for one in writers] == [0] * 4
    rows = parquet.read_table(tmp_path / "history.parquet").to_pylist()
    assert sorted(row["commit"] for row in rows) == [f"commit{n}" for n in range(4)]
