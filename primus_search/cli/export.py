"""`primus-search export`: the launch file of one candidate of a run."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Rank = Annotated[int, typer.Argument(metavar="RANK", help="Rank in the run's ranking, from 1.")]
FormatName = Annotated[
    str, typer.Option("--format", metavar="primus|megatron|torchtitan|env", help="Whose launch file.")
]
Out = Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the text and what it cannot express as JSON.")]


def export(
    run: Run, rank: Rank = 1, format_name: FormatName = "primus", out: Out = None, as_json: AsJson = False
) -> None:
    """Write a candidate as launch files of Primus, Megatron, torchtitan or environment variables."""
    from json import dumps

    from primus_search.cli._files import write
    from primus_search.export import write_launch
    from primus_search.export.job import Job
    from primus_search.search.saved import SavedRun

    saved = SavedRun.open(run)
    job = Job(
        candidate=saved.candidate(rank),
        model=saved.space.model,
        cluster=saved.cluster(rank).cluster,
        workload=saved.space.workload,
    )
    launch = write_launch(job, format_name)
    if out is not None:
        write(out, launch.text, "--out")
        typer.echo(f"launch file: {out}", err=True)
    if as_json:
        typer.echo(dumps({"format": format_name, "text": launch.text, "unsaid": dict(launch.unsaid)}, indent=2))
    elif out is None:
        typer.echo(launch.text, nl=False)
    for name, value in launch.unsaid.items():
        typer.echo(f"{format_name} cannot express {name}={value}; the file says so in a comment", err=True)
