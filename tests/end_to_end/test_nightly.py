"""The nightly sweep: quiet while nothing changes; every change of an input or of the code is caught and named."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import primus_search
from primus_search.cli import app

PACKAGE = Path(primus_search.__file__).parent
SWEEP = """
name: small
baseline: accepted
sweep:
  - name: llama3-8b
    space: llama3_8b_mi300x
    set: {tp: [1, 2], pp: [1, 2, 3], vpp: [1, 2], cp: 1, micro_batch_size: [1, 2], schedule: [1f1b, interleaved],
          recompute: none, fp8: none, sharding: distributed_optimizer, overlap_grad_reduce: true, loss_fusion: true}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small sweep and its accepted baseline."""
    folder = tmp_path_factory.mktemp("nightly")
    (folder / "small.yaml").write_text(SWEEP)
    done = night(folder, "--update-baseline", "--reason", "first baseline")
    assert done.exit_code == 0, done.output
    return folder


def night(folder: Path, *options: str) -> Any:
    """One `primus-search nightly` in this process, run in the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app, ["nightly", "small.yaml", "--out", "out", *options])
    finally:
        os.chdir(before)


def found(folder: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((folder / "out/nightly.json").read_text())
    return written


def failed(report: dict[str, Any]) -> set[str]:
    return {check["name"] for check in report["checks"] if not check["passed"]}


@pytest.fixture
def other_night(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The same sweep and baseline in a folder of its own."""
    shutil.copy(home / "small.yaml", tmp_path / "small.yaml")
    shutil.copytree(home / "accepted", tmp_path / "accepted")
    return tmp_path


def test_two_nights_without_a_change_pass_and_show_the_same_figures(other_night: Path) -> None:
    first, second = night(other_night), night(other_night)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    report = found(other_night)
    assert [check["move"] for check in report["checks"]] == [0.0] * 5
    assert report["changes"] == []
    junit = ElementTree.parse(other_night / "out/junit.xml").getroot()
    assert (junit.get("tests"), junit.get("failures")) == ("5", "0")
    trend = (other_night / "out/trend.html").read_text()
    assert "2 nights" in trend and trend.count('class="band"') == trend.count("<svg")
    day = report["started"][:10]
    assert f">{day}</text>" in trend, "the axis has dates"


def scaled(text: str, key: str, factor: float) -> str:
    """A hardware file with its first number of that key multiplied."""
    found = re.search(rf"\b{key}: \{{value: ([0-9.]+)", text)
    assert found, key
    return f"{text[: found.start(1)]}{float(found.group(1)) * factor:.6g}{text[found.end(1) :]}"


def with_hardware(folder: Path, text: str) -> None:
    """An edited MI300X in the current folder hides the shipped one."""
    (folder / "hardware").mkdir()
    (folder / "hardware/mi300x.yaml").write_text(text)


MI300X = (PACKAGE.parent / "hardware/mi300x.yaml").read_text()


def test_three_per_cent_of_one_rate_is_caught_and_named(other_night: Path) -> None:
    with_hardware(other_night, scaled(MI300X, "bf16_efficiency", 1.03))
    done = night(other_night)
    assert done.exit_code == 1, done.output
    report = found(other_night)
    assert "tokens_per_s" in failed(report)
    move = next(check["move"] for check in report["checks"] if check["name"] == "tokens_per_s")
    assert 0.005 < move < 0.03, "three per cent of the GEMMs are a part of the step"
    (cause,) = report["causes"]  # nothing is left for code or versions
    assert cause["kind"] == "accelerator" and cause["what"].startswith("gemm.bf16_efficiency ")
    assert cause["move"] == pytest.approx(move), "one change explains the whole move"
    assert "REGRESSION" in (other_night / "out/summary.md").read_text()
    assert "gemm.bf16_efficiency" in (other_night / "out/report.html").read_text()
    told = f"1 cause, {len(failed(report))} check"
    assert all(told in (other_night / "out" / name).read_text() for name in ("summary.md", "report.html", "trend.html"))


def test_of_two_changes_the_one_that_moved_the_figure_is_named_first(other_night: Path) -> None:
    with_hardware(other_night, scaled(scaled(MI300X, "bf16_efficiency", 0.9), "nic_latency_us", 1.03))
    assert night(other_night).exit_code == 1
    first, second = found(other_night)["causes"]
    assert first["what"].startswith("gemm.bf16_efficiency ") and first["move"] < -0.02
    assert second["kind"] == "network" and second["move"] == 0, "on one node its latency moves nothing"


def changed_package(folder: Path, module: str, lines: str) -> subprocess.CompletedProcess[str]:
    """A night with a copy of the package in which lines were added to one module."""
    for name in ("hardware", "spaces"):
        shutil.copytree(PACKAGE.parent / name, folder / "copy" / name)
    shutil.copytree(PACKAGE, folder / "copy" / "primus_search", ignore=shutil.ignore_patterns("*.tmp*"))
    with (folder / "copy" / "primus_search" / module).open("a") as file:
        file.write(lines)
    command = [sys.executable, "-m", "primus_search", "nightly", "small.yaml", "--out", "out"]
    environment = os.environ | {"PYTHONPATH": str(folder / "copy")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.in_turn
def test_a_deleted_legality_rule_is_caught_and_named(other_night: Path) -> None:
    name = next(rule for rule, rows in removed(other_night).items() if rows)
    done = changed_package(
        other_night, "space/rules.py", f"\nRULES = tuple(rule for rule in RULES if rule.name != {name!r})\n"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = found(other_night)
    note = next(check["note"] for check in report["checks"] if check["name"] == "legality")
    assert f"rule {name} is gone" in note
    code = next(cause for cause in report["causes"] if cause["kind"] == "code")
    assert "space/rules.py" in code["what"].split(", ")


def removed(folder: Path) -> dict[str, int]:
    (run,) = folder.glob("accepted/*/run.json")
    rows = {one["rule"]: one["rows"] for one in json.loads(run.read_text())["removed"]}
    return dict(sorted(rows.items(), key=lambda item: item[1]))


@pytest.mark.in_turn
def test_a_slowed_kernel_model_is_caught_and_named(other_night: Path) -> None:
    lines = "\n_before = gemm_s\n\n\ndef gemm_s(*args, **kwargs):\n    return 1.1 * _before(*args, **kwargs)\n"
    done = changed_package(other_night, "cost/laws/gemm.py", lines)
    assert done.returncode == 1, done.stdout + done.stderr
    report = found(other_night)
    assert "tokens_per_s" in failed(report)
    code = next(cause for cause in report["causes"] if cause["kind"] == "code")
    assert "cost/laws/gemm.py" in code["what"].split(", ")
    assert code["move"] < -0.02
    largest = re.search(r"moved: step.mlp \+([0-9.]+)%", code["note"])
    assert largest and 8 < float(largest[1]) <= 10, "GEMMs but for the activation between them, slower by a tenth"
    assert "FAILED" in done.stdout and "cost/laws/gemm.py" in done.stdout


def test_a_baseline_needs_a_reason_and_keeps_all_of_them(other_night: Path) -> None:
    assert "say why" in str(night(other_night, "--update-baseline").exception)
    assert night(other_night, "--update-baseline", "--reason", "rates measured again").exit_code == 0
    reasons = json.loads((other_night / "accepted/state.json").read_text())["reasons"]
    assert [one["text"] for one in reasons] == ["first baseline", "rates measured again"]


def test_a_sweep_without_a_baseline_says_how_to_make_one(other_night: Path) -> None:
    for damaged in ("[]", '{"format": 0}', "{"):
        (other_night / "accepted/state.json").write_text(damaged)
        assert "is no baseline of this version" in str(night(other_night).exception)
    shutil.rmtree(other_night / "accepted")
    done = night(other_night)
    assert done.exception and "--update-baseline" in str(done.exception)
    (other_night / "accepted").write_text('{"format": 3}')
    assert "keeps run folders in a folder" in str(night(other_night).exception), "a file of an earlier version"
    assert night(other_night, "--update-baseline", "--reason", "first").exit_code == 0
    assert (other_night / "accepted/state.json").is_file()


def test_every_problem_of_a_sweep_file_is_said_at_once(other_night: Path) -> None:
    text = SWEEP.replace("tp: [1, 2]", "tp: [0]").replace("name: small", "nmae: small\ntolerances: {memory: -1}")
    (other_night / "small.yaml").write_text(text + "  - {space: llama3_8b_mi30x}\n")
    error = str(night(other_night).exception)
    for said in ("small.yaml:2 @ $.nmae: unknown key; did you mean 'name'?", "tolerance is at least 0",
                 "$.sweep[0]: --set tp=[0] @ $.space.tp[0]", "did you mean 'llama3_8b_mi300x'?"):  # fmt: skip
        assert said in error


def test_runs_of_two_nights_are_what_compare_takes(other_night: Path) -> None:
    with_hardware(other_night, scaled(MI300X, "bf16_efficiency", 1.03))
    night(other_night)
    (before,), (after,) = other_night.glob("accepted/0*"), other_night.glob("out/runs/0*")
    done = CliRunner().invoke(app, ["compare", str(before), str(after), "--json"])
    found, (cause,) = json.loads(done.stdout), found_causes(other_night)
    moved = {one["group"]: one["after"] / one["before"] - 1.0 for one in found["moved"]}
    assert moved["accelerator"] == pytest.approx(cause["move"])


def test_a_night_on_which_nothing_fits_is_a_regression(other_night: Path) -> None:
    with_hardware(other_night, scaled(MI300X, "hbm_GiB", 0.05))
    assert night(other_night).exit_code == 1
    (check,) = found(other_night)["checks"]
    assert check["name"] == "best" and "fits" in check["after"]
    assert [cause["kind"] for cause in found_causes(other_night)] == ["data"]


def found_causes(folder: Path) -> list[dict[str, Any]]:
    causes: list[dict[str, Any]] = found(folder)["causes"]
    return causes


def test_reports_show_hostile_names_as_text(other_night: Path) -> None:
    name = "<script>alert(1)</script>|`x`"
    (other_night / "small.yaml").write_text(SWEEP.replace("name: llama3-8b", f"name: '{name}'"))
    assert night(other_night).exit_code == 1, "an entry the baseline does not know is a regression"
    for page in ("report.html", "trend.html", "summary.md"):
        assert "<script>" not in (other_night / "out" / page).read_text()
    ElementTree.parse(other_night / "out/junit.xml")
