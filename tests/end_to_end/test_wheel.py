"""The wheel, installed with its plain dependencies into an empty environment, searches a shipped space anywhere.

No torch, no Ray, no checkout. Needs PyPI (some 200 MB) and compiles the kernels: part of the published workflow.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
NARROW = ("tp=1", "cp=1", "micro_batch_size=1", "sharding=distributed_optimizer")
pytestmark = pytest.mark.full


def run(*words: str | Path, cwd: Path, expected: int = 0) -> "subprocess.CompletedProcess[str]":
    """A command that inherits neither this checkout nor its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    probe = [sys.executable, *PIP, "download", "--no-deps", "--dest", str(folder / "probe"), "setuptools"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("no package index can be reached")
    run(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("primus_search-*.whl")
    run(sys.executable, "-m", "venv", folder / "empty", cwd=folder)
    python = folder / "empty" / "bin" / "python"
    run(python, *PIP, "install", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return python.parent


def test_an_installed_wheel_searches_a_shipped_space(installed: Path, tmp_path: Path) -> None:
    for absent in ("torch", "ray", "optuna"):
        run(installed / "python", "-c", f"import {absent}", cwd=tmp_path, expected=1)
    sets = [word for one in NARROW for word in ("--set", one)]
    command = (installed / "primus-search", "run", "llama3_8b_mi300x", *sets)
    first = run(*command, "--out", tmp_path / "first", cwd=tmp_path)
    assert "compiling kernels" in first.stderr
    assert "torch is not installed: no row was re-validated" in " ".join(first.stdout.split())
    again = run(*command, "--out", tmp_path / "again", cwd=tmp_path)
    assert "compiling" not in again.stderr
    assert json.loads((tmp_path / "first" / "run.json").read_text())["exact"]
    tables = [(tmp_path / name / "ranking.csv").read_text() for name in ("first", "again")]
    assert tables[0] == tables[1]
    assert len(list(csv.DictReader(tables[0].splitlines()))) > 1
    assert (tmp_path / "first" / "report.html").stat().st_size > 0
    run(installed / "primus-search", "export", tmp_path / "first", "1", "--out", tmp_path / "job", cwd=tmp_path)
