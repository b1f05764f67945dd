"""A run folder that a command looks at, opened with a word on inputs that have changed; the last run by default."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from primus_search.exploration.run_folder.saved_run import SavedRun


Run = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run folder; left out: the last run made here.")]
RunAndRows = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [ROWS]...", help="A run folder, by default the last run made here, and rows: A, 1, 1-120."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]

ROWS = re.compile(r"([A-Za-z]|\d+(-\d+)?)(,([A-Za-z]|\d+(-\d+)?))*|pareto")
"""A word that names rows of a run: letters of its choices, ranks, ranges of ranks."""


def opened(path: Path | None) -> "SavedRun":
    """The run in a folder; one line on standard error where originals of its inputs have changed since."""
    from primus_search.exploration.run_folder.last_run import last_run
    from primus_search.exploration.run_folder.saved_run import SavedRun

    path = path or last_run()
    saved = SavedRun.open(path)
    if saved.note:
        typer.echo(f"{path}: {saved.note}", err=True)
    return saved


def run_and_rows(words: Sequence[str] | None) -> "tuple[SavedRun, list[str]]":
    """The run and the words that name its rows: the first word is the run unless it names rows."""
    words = list(words or [])
    if not words or (ROWS.fullmatch(words[0]) and not (Path(words[0]) / "run.json").exists()):
        return opened(None), words
    return opened(Path(words[0])), words[1:]
