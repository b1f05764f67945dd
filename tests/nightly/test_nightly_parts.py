"""Parts of the nightly sweep: inputs survive their baseline, frontiers are measured right, only worse fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.declare import load_space, make_space
from primus_search.declare.hardware_files import load_hardware
from primus_search.declare.plain_forms import Leaf, differences, from_plain, to_plain, with_leaf
from primus_search.declare.search_path import FileKind, names
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.nightly.baseline import GROUPS, BaselineState, code_hashes, inputs_of, with_groups
from primus_search.nightly.figures import Accuracy, hypervolume, moved_most
from primus_search.nightly.night_run import compare
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.values.machine.cluster import Accelerator

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


def failures(accuracy: Accuracy = ERRORS, speed: float = 100.0) -> list[str]:
    """Names of the checks that fail when a night sees these after a baseline of `ERRORS` and 100."""
    tiny = {"model": "tiny", "hardware": "mi300x", "workload": {"seq_length": 256, "global_batch_size": 16}}
    sweep = NightlySweep(
        name="s", source=Path("s.yaml"), baseline=Path("b.json"), tolerances=Tolerances(), entries={},
        speed=make_space(tiny, environ={}),
    )  # fmt: skip
    before = BaselineState(
        entries={}, inputs={}, accuracy=ERRORS, speed=100.0, runs_sha256="", code={}, data={}, versions={}, commit=""
    )
    checks = compare(sweep, before, replace(before, accuracy=accuracy, speed=speed))
    return [check.name for check in checks if not check.passed]


def test_worse_fails_and_better_passes() -> None:
    assert failures() == []
    assert failures(with_median(0.01, rows=12), speed=300.0) == []
    assert failures(with_median(0.0519)) == []
    assert failures(with_median(0.0521, memory_rows=4)) == ["memory_rows", "median_abs_error"]
    assert failures(speed=61.0) == []
    assert failures(speed=59.0) == ["projection speed"]


def test_the_runs_that_moved_most_are_named_first() -> None:
    after = replace(ERRORS, predicted={"a": 103.0, "b": 180.0, "new": 1.0})
    assert moved_most(ERRORS, after) == ["b -10.0%", "a +3.0%"]


def test_code_that_moves_figures_is_hashed() -> None:
    assert {"values/knobs/knobs.toml", "values/model/decoder.py", "cost/laws/gemm.py", "values/candidates.py"} <= set(
        code_hashes()
    )
