"""`primus-search pareto`: the frontier of a run."""

from typing import Annotated

import typer

from primus_search.cli.output.opened_runs import Run, opened

AsCsv = Annotated[bool, typer.Option("--csv", help="Print pareto.csv as it is.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]


def pareto(run: Run = None, as_csv: AsCsv = False, as_json: AsJson = False) -> None:
    """The frontier of memory per GPU against tokens per second per GPU of a run."""
    from json import dumps

    from primus_search.report.frontier_text import print_saved_frontier

    saved = opened(run)
    if as_csv:
        typer.echo((saved.path / "pareto.csv").read_text(encoding="utf-8"), nl=False)
    elif as_json:
        typer.echo(dumps(list(saved.frontier), indent=2))
    else:
        print_saved_frontier(saved)
