"""The ten questions of the cookbook: each one command, each one screen."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
LINES, COLUMNS = 24, 80


def questions() -> list[list[str]]:
    """The words of every command of the section."""
    section = PAGE.read_text(encoding="utf-8").partition("## Ten questions")[2].partition("\n## ")[0]
    return [shlex.split(line)[1:] for line in re.findall(r"^primus-search .*$", section, re.MULTILINE)]


@pytest.mark.in_turn
@pytest.mark.slow
def test_each_of_ten_questions_is_one_command_and_one_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = questions()
    assert len(asked) == 10
    for words in asked:
        done = CliRunner().invoke(app, words, env={"COLUMNS": str(COLUMNS)})
        text = done.stdout if done.exit_code == 0 else str(done.exception)
        assert done.exit_code == 0 or type(done.exception).__name__ == "NothingFits", (words, done.output)
        assert len(text.splitlines()) <= LINES, (words, text)
        assert done.exit_code or max(map(len, text.splitlines())) <= COLUMNS, (words, text)
