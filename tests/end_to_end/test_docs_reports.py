"""Every command of docs/reports.md runs as it is printed, in the order of the page."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


def commands(page: Path) -> list[list[str]]:
    """The words after `$ primus-search` of every console block."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line)[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.in_turn
def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands(PAGE)
    assert len(found) == 16 and {words[0] for words in found} == {"run", "explain", "export", "compare"}
    for words in found:
        # Torch is not what this page is about: re-validation stays off.
        quiet = ["--bench", "off", "--engine", "local", "--workers", "1"] if words[0] == "run" else []
        done = CliRunner().invoke(app, [*words, *quiet], catch_exceptions=False)
        assert done.exit_code == 0, (words, done.output)
        assert done.output.strip()
    assert (tmp_path / "first" / "report.html").stat().st_size < 5_000_000
