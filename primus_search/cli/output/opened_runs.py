"""A run folder that a command looks at, opened with a word on inputs that have changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from primus_search.exploration.run_folder.saved_run import SavedRun


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def opened(path: Path) -> "SavedRun":
    """The run in a folder; one line on standard error where originals of its inputs have changed since."""
    from primus_search.exploration.run_folder.saved_run import SavedRun

    saved = SavedRun.open(path)
    if saved.note:
        typer.echo(f"{path}: {saved.note}", err=True)
    return saved
