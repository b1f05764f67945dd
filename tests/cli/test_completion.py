"""Shells complete commands and options, without loading what a command loads."""

from pathlib import Path

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


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("primus-search ask llama3.3", "llama3.3_70b"),
        ("primus-search ask llama3_8b h100,mi35", "h100,mi355x"),
        ("primus-search project --model qwen3_3", "qwen3_30b_a3b"),
        ("primus-search run mixtral_8x22b --framework prim", "primus"),
        ("primus-search run mixtral", "mixtral_8x22b_mi355x"),
        (
            "primus-search project --recipe llama31_405b_pretrain_1024gpu_h100_f",
            "llama31_405b_pretrain_1024gpu_h100_fp8cs",
        ),
        ("primus-search nightly ni", "nightly"),
    ],
)
def test_names_of_shipped_files_are_offered_as_values(line: str, offered: str) -> None:
    found = completed("bash", line)
    assert offered in found and all(one.startswith(line.split(" ")[-1]) for one in found)


def test_letters_of_the_last_run_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed("bash", "primus-search explain ") == [""]
    narrow = ["--set", "tp=[1,2]", "--set", "pp=1", "--set", "cp=1", "--set", "recompute=none", "--bench", "off"]
    assert CliRunner().invoke(app, ["run", "llama3_8b_mi300x", *narrow]).exit_code == 0
    assert completed("bash", "primus-search explain ")[0] == "A"
