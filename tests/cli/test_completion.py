"""Shells complete commands and options, without loading what a command loads."""

import pytest
from typer.testing import CliRunner

from primus_search.cli import COMMANDS, app


def completed(shell: str, line: str) -> list[str]:
    """What a shell is offered behind a line; a blank at its end begins a new word."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    asked |= {"_PRIMUS_SEARCH_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = CliRunner().invoke(app, [], prog_name="primus-search", env=asked)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_bash_is_offered_every_command() -> None:
    assert completed("bash", "primus-search ") == list(COMMANDS)
    assert completed("bash", "primus-search sch") == ["schedules", "schema"]


@pytest.mark.parametrize(
    ("command", "option"),
    [("run", "--framework"), ("export", "--format"), ("explain", "--why-not"), ("tune", "--through")],
)
def test_bash_is_offered_the_options_of_a_command(command: str, option: str) -> None:
    assert option in completed("bash", f"primus-search {command} {option[:4]}")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_what_a_command_does(shell: str) -> None:
    offered = " ".join(completed(shell, "primus-search comp"))
    assert "compare" in offered and "Two runs" in offered
