"""What commands write: standard streams that never fail, catalogue tables, files that a user names."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import writing


def must_exist(path: Path | None, flag: str) -> None:
    """Raises `InputError` at `flag` where a file that was named is not there: before anything long begins."""
    if path is not None and not path.is_file():
        raise InputError([Problem(f"{flag} {path}", "no such file")])


def must_be_folder(path: Path, flag: str) -> None:
    """Makes a folder. Raises `InputError` at `flag` with the reason where that is impossible."""
    with writing(f"{flag} {path}"):
        path.mkdir(parents=True, exist_ok=True)


def write(path: Path, content: str | bytes, flag: str) -> None:
    """Write a file. Raises `InputError` at `flag` with the reason where that is impossible."""
    with writing(f"{flag} {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def prepare() -> None:
    """Print `?` for characters that the encoding of a stream lacks, and nothing to a stream that is closed."""
    sys.stdout = _usable(sys.stdout)
    sys.stderr = _usable(sys.stderr)


def _usable(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by the caller (`>&-`)
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - stays open until the process ends
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return stream


def print_json(data: Any) -> None:
    """Print the JSON of --json; a mapping has the number of its form first (`cli/output_schema.py`)."""
    from primus_search.cli.output_schema import numbered

    typer.echo(json.dumps(numbered(data) if isinstance(data, dict) else data, indent=2))


def discard() -> None:
    """Point standard output at nothing, so that Python does not complain while closing it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> None:
    """Print a table; columns in `numbers` are right-aligned. The last column wraps on a terminal, and only there."""
    if sys.stdout.isatty():
        from primus_search.report.plain_tables import Plain, table

        words = [name for i, name in enumerate(header) if i not in numbers]
        found = table(*header, left=words, wrapped=header[-1:])
        for row in rows:
            found.add_row(*row)
        Plain().print(found)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = [
            cell.rjust(w) if i in numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


if TYPE_CHECKING:
    from primus_search.exploration.run_folder.saved_run import SavedRun


# A word that names rows of a run: letters of its choices, ranks, ranges of ranks.
ROWS = re.compile(r"(?:[A-Za-z]|\d+(?:-\d+)?)(?:,(?:[A-Za-z]|\d+(?:-\d+)?))*+|pareto")


def opened(path: Path | None) -> "SavedRun":
    """The run in a folder; one line on standard error where originals of its inputs have changed since."""
    from primus_search.exploration.run_folder.saved_run import SavedRun, last_run

    if path is None:
        path = last_run()
        typer.echo(f"run folder: {os.path.relpath(path)}", err=True)
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
