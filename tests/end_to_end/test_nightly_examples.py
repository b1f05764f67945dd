"""The shipped ways to run nights: the sweep reads, the workflow, the cron line and the timer start what exists."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from primus_search.files import search_path
from primus_search.files.search_path import FileKind, find, shipped
from primus_search.nightly.sweep import load_sweep

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"


def test_the_shipped_sweep_spans_vendors_and_models() -> None:
    sweep = load_sweep(ROOT / "sweeps/nightly.yaml")
    vendors = {space.cluster.accelerator.vendor for space in sweep.entries.values()}
    models = {space.model.name for space in sweep.entries.values()}
    assert vendors == {"amd", "nvidia"} and len(models) >= 6
    assert sweep.runs and sweep.speed and sweep.baseline == Path("results/baselines/nightly")


def test_the_sweep_ships_and_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip user has no checkout: the sweep comes with the package, its baseline is written into the working folder."""
    monkeypatch.chdir(tmp_path)
    for text in ("nightly", "sweeps/nightly.yaml"):
        assert find(FileKind.SWEEP, text) in shipped(FileKind.SWEEP).values()
    assert '"sweeps"' in (ROOT / "setup.py").read_text()
    copy = tmp_path / "data/sweeps/nightly.yaml"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((ROOT / "sweeps/nightly.yaml").read_bytes())
    monkeypatch.setattr(search_path, "_PACKAGE", tmp_path)
    monkeypatch.setenv("PRIMUS_SEARCH_HOME", str(ROOT))
    assert load_sweep(copy).runs is None, "tables of measured runs stay in the checkout"


def test_the_workflow_runs_the_shipped_sweep_and_keeps_its_reports() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    steps = {step.get("name", step.get("uses")): step for step in workflow["jobs"]["sweep"]["steps"]}
    assert steps["Sweep"]["run"] == ".venv/bin/primus-search nightly sweeps/nightly.yaml"
    assert steps["Reports"]["if"] == "always()", "a failed night is the one whose reports are wanted"
    assert steps["Reports"]["with"]["path"] == "results/runs/nightly/nightly"
    target = steps["Install"]["run"].split()[1]
    assert "READY := $(VENV)/.ready" in (ROOT / "Makefile").read_text() and target == ".venv/.ready"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a checkout, with the examples in it and a sweep that is small."""
    shutil.copytree(EXAMPLES, tmp_path / "docs/examples")
    (tmp_path / "small.yaml").write_text("baseline: small.json\nsweep:\n  - {space: tiny, set: {}}\n")
    (tmp_path / "spaces").mkdir()
    space = "model: tiny\nhardware: mi300x\nworkload: {seq_length: 256, global_batch_size: 16}\n"
    space += "space: {tp: 1, pp: [1, 2], cp: 1, micro_batch_size: 1, schedule: 1f1b, recompute: none, fp8: none}\n"
    (tmp_path / "spaces/tiny.yaml").write_text(space)
    return tmp_path


def script(checkout: Path) -> subprocess.CompletedProcess[str]:
    """nightly.sh, with the command of the environment the tests run in."""
    command = checkout / "primus-search"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m primus_search "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PRIMUS_SEARCH": str(command), "PYTHONPATH": str(ROOT)}
    arguments = [str(checkout / "docs/examples/nightly.sh"), str(checkout), "small.yaml"]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.in_turn
def test_the_script_is_silent_on_a_good_night_and_prints_the_summary_of_a_bad_one(checkout: Path) -> None:
    missing = script(checkout)
    assert missing.returncode == 2 and "--update-baseline" in missing.stdout, "cron mails what is printed"
    command = [sys.executable, "-m", "primus_search", "nightly", "small.yaml", "--update-baseline", "--reason", "first"]
    subprocess.run(command, cwd=checkout, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    good = script(checkout)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    space = checkout / "spaces/tiny.yaml"
    space.write_text(space.read_text().replace("pp: [1, 2]", "pp: 2"))
    bad = script(checkout)
    assert bad.returncode == 1 and "REGRESSION" in bad.stdout and "axis: pp [1, 2] -> [2]" in bad.stdout


def test_the_cron_line_and_the_unit_start_the_script(checkout: Path) -> None:
    line = (EXAMPLES / "nightly.cron").read_text().splitlines()[-1]
    assert line == '17 2 * * * "$PRIMUS_CHECKOUT/docs/examples/nightly.sh" "$PRIMUS_CHECKOUT"'
    service = (EXAMPLES / "primus-search-nightly.service").read_text()
    assert "ExecStart=%h/primus-search/docs/examples/nightly.sh %h/primus-search\n" in service
    assert os.access(EXAMPLES / "nightly.sh", os.X_OK)


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze checks the units where it is installed"
)
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in ("primus-search-nightly.service", "primus-search-nightly.timer"):
        text = (EXAMPLES / unit).read_text().replace("%h/primus-search", str(ROOT))
        (tmp_path / unit).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "primus-search-nightly.timer")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "primus-search-nightly" not in done.stderr, done.stderr
