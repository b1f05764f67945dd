"""What the documentation tells people to type works: every marked example is run, every other one is parsed.

Above a fence of commands stands `<!-- run -->`, `<!-- run: exit 2 -->` or `<!-- not run: why -->`; above a file that
the examples use, `<!-- file: name -->`. Examples of a page run in order, in one folder that has the repository's data.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from primus_search.base.errors import PrimusSearchError
from primus_search.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if path.exists())
LONG = ("commands", "cookbook", "tutorial")
"""Pages of many examples: one of them a day, and all under `full`."""
FENCE = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.S | re.M)


@dataclass(frozen=True)
class Example:
    """One fence: commands to run or parse, or a file to write. `exits` are the exit codes that are right."""

    line: int
    mark: str
    body: str

    @property
    def file(self) -> str:
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""

    @property
    def is_run(self) -> bool:
        return self.mark == "run" or self.mark.startswith("run: ")

    @property
    def exits(self) -> set[int]:
        return {int(word) for word in re.findall(r"\d+", self.mark)} or {0}

    @property
    def commands(self) -> list[list[str]]:
        joined = self.body.replace("\\\n", " ")
        lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("primus-search ")]


def examples(page: Path) -> Iterator[Example]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text[: found.start("body")].count("\n") + 1
        yield Example(line, (found["mark"] or "").strip(), found["body"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A current folder with the repository's data, as a user in a checkout has it."""
    for name in ("spaces", "sweeps", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "hardware", tmp_path / "hardware")  # examples write into it
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def run(words: list[str]) -> tuple[int, str]:
    """Exit code and output of one command, as `main` would end it; `> file` as a shell has it."""
    target = Path(words[words.index(">") + 1]) if ">" in words else None
    done = CliRunner().invoke(app, words[: words.index(">")] if target else words)
    if isinstance(done.exception, PrimusSearchError):
        return done.exception.exit_code, str(done.exception)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    if target:
        target.write_text(done.stdout)
    return done.exit_code, done.output


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in LONG], ids=lambda page: page.stem)
def test_marked_examples_of_a_long_page_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples_run(page, folder, monkeypatch)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in LONG], ids=lambda page: page.stem)
def test_marked_examples_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples_run(page, folder, monkeypatch)


def examples_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE", "PRIMUS_SEARCH_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for example in examples(page):
        if example.file:
            target = folder / example.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(example.body)
        if example.is_run:
            assert example.commands, f"{page.name}:{example.line} is marked and has no command"
            for words in example.commands:
                code, output = run(words)
                assert code in example.exits, f"{page.name}:{example.line} {shlex.join(words)} exits {code}\n{output}"
                assert "Traceback" not in output


def all_commands() -> list[tuple[str, list[str]]]:
    return [
        (f"{page.name}:{example.line}", words)
        for page in PAGES
        for example in examples(page)
        for words in example.commands
    ]


def test_every_command_and_option_in_the_documentation_exists() -> None:
    group = typer.main.get_command(app)
    for where, words in all_commands():
        words = words[: words.index(">")] if ">" in words else words
        words = words[: words.index("|")] if "|" in words else words
        if words[0].startswith("-"):
            names = {name for parameter in group.params for name in parameter.opts}
            assert words[0] in names | {"--help"}, f"{where}: {words[0]}"
            continue
        assert words[0] in COMMANDS, f"{where}: there is no command {words[0]}"
        command = group.get_command(group.make_context("primus-search", [], resilient_parsing=True), words[0])
        assert command is not None
        with contextlib.redirect_stderr(io.StringIO()):
            command.make_context(words[0], words[1:])


def test_every_command_has_an_example() -> None:
    shown = {words[0] for _, words in all_commands()}
    assert shown >= set(COMMANDS)
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/commands.md").read_text(), re.M)
    assert headings[: len(COMMANDS)] == list(dict.fromkeys(headings)) and set(COMMANDS) <= set(headings)


MARKED = ("commands", "cookbook", "nightly", "tutorial")
"""Pages on which every example is marked; elsewhere one without a mark is parsed."""


def test_an_example_that_is_not_run_says_why() -> None:
    for page in PAGES:
        if page.stem in MARKED:
            for example in examples(page):
                reason = example.mark.removeprefix("not run: ")
                assert not example.commands or example.is_run or (reason != example.mark and reason), (
                    f"{page.name}:{example.line} is neither marked to run nor says why not"
                )


@pytest.mark.in_turn
@pytest.mark.slow
def test_the_screen_in_readme_is_what_the_main_job_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_SEARCH_HOME", str(folder / "home"))
    shown = list(examples(ROOT / "README.md"))
    words, screen = shown[0].commands[0], shown[1].body
    code, output = run([*words, "--out", "RUN"])
    assert (code, output[: len(screen)]) == (0, screen)
