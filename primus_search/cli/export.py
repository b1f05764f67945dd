"""`primus-search export`: the files that start candidates of a run."""

from pathlib import Path
from typing import Annotated

import typer

from primus_search.cli.output.opened_runs import RunAndRows, run_and_rows

FormatName = Annotated[
    str,
    typer.Option(
        "--format", metavar="primus|megatron|torchtitan|nemo|slurm", help="Whose files; slurm adds a batch file."
    ),
]
FrameworkName = Annotated[
    str, typer.Option("--framework", metavar="NAME", help="What starts the job; default: what the run searched for.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for one folder a rank; default RUN/exports.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the files as JSON and write nothing.")]


def export(
    words: RunAndRows = None,
    format_name: FormatName = "",
    framework: FrameworkName = "",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Write files that start candidates of a run; exit 4 where the framework cannot start one of them."""
    from json import dumps

    from primus_search.base.errors import InputError, Problem
    from primus_search.declare.framework_files import load_framework
    from primus_search.export import FORMATS
    from primus_search.export.ranks import SLURM, chosen_rows, files_of, write_all

    if format_name and format_name not in FORMATS:
        raise InputError([Problem("--format", f"{format_name!r} is unknown; use one of {', '.join(FORMATS)}")])
    if framework and format_name not in ("", SLURM, framework):
        what = f"{format_name} files do not start {framework} jobs; give one of the two"
        raise InputError([Problem("--format", what)])
    saved, rows = run_and_rows(words)
    named = framework or ("" if format_name == SLURM else format_name)
    contract = load_framework(named, where="--framework") if named else None
    files = files_of(saved, chosen_rows(saved, ",".join(rows) or "1", contract), format_name)
    if as_json:
        typer.echo(dumps({name: dict(launch.texts) for name, launch in files.items()}, indent=2))
        return
    for path in write_all(out or saved.path / "exports", files):
        typer.echo(str(path))
