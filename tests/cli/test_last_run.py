"""Commands without a run folder say which one they read; the inner search of `tune` is not the last run."""

import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.declare import load_space
from primus_search.exploration.funnel import Options
from primus_search.session.complete_search import search

SPACE = {
    "model": "llama3_8b", "hardware": "h100", "nodes": 1, "workload": {"seq_length": 8192, "global_batch_size": 64},
    "space": {"tp": [1, 2], "pp": 1, "cp": 1, "fp8": "none", "recompute": "full", "vpp": 1},
    "benchmark": {"device": "off"},
}  # fmt: skip


def test_explain_names_its_folder_and_takes_no_inner_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(yaml.safe_dump(SPACE))
    space = load_space("space.yaml")
    search(space, out="first")
    search(space, Options(is_last_run=False), out=Path("study") / "search")
    shown = CliRunner().invoke(app, ["pareto", "--json"])
    assert shown.exit_code == 0, shown.exception
    assert f"run folder: first{os.linesep}" in shown.stderr
    assert json.loads(shown.stdout)
