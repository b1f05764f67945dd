"""`primus-search nightly`: run a sweep, compare with its baseline, exit 1 on a regression."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_search.cli.output import print_json

if TYPE_CHECKING:
    from primus_search.nightly.night_run import Night


def nightly(
    sweep: Path, update_baseline: bool = False, reason: str = "", out: Path | None = None, json: bool = False
) -> None:
    """Run a set of spaces and compare with the committed baselines; exit code 1 when a figure moved too far."""
    from primus_search.base.errors import InputError, Problem
    from primus_search.files.search_path import FileKind, find
    from primus_search.nightly import observed
    from primus_search.nightly.night_folder import default_folder, write_night
    from primus_search.nightly.night_run import run_nightly
    from primus_search.nightly.sweep import load_sweep

    if update_baseline != bool(reason.strip()):
        what = "say why today's figures are right: --reason TEXT" if update_baseline else "needs --update-baseline"
        raise InputError([Problem("--update-baseline" if update_baseline else "--reason", what)])
    place = find(FileKind.SWEEP, str(sweep))
    if isinstance(place, str):
        raise InputError([Problem("SWEEP", place)])
    loaded = load_sweep(place)
    if update_baseline:
        observed.update_baseline(loaded, reason.strip(), partial(typer.echo, err=True))
        typer.echo(f"baseline: {loaded.baseline}", err=True)
        return
    folder = out or default_folder(loaded.name)
    night = run_nightly(loaded, folder, partial(typer.echo, err=True))
    write_night(folder, night)
    _print(night, folder, as_json=json)
    if not night.passed:
        raise typer.Exit(1)


def _print(night: "Night", folder: Path, *, as_json: bool) -> None:
    """The verdict, what failed and why; the files hold the rest."""

    from primus_search.base.html_templates import rendered
    from primus_search.nightly import night_folder

    if as_json:
        print_json(night_folder.summary(night))
        return
    each = list({check.where: check for check in reversed(night.failed)}.values())[::-1]
    typer.echo(rendered("night.txt", night=night, first_of_each=each, of=night_folder, folder=folder), nl=False)
