"""`primus-search doctor`: what this installation has to work with."""

import typer

from primus_search.cli.output.opened_runs import AsJson


def doctor(json: AsJson = False) -> None:
    """Versions, devices, caches and folders of this installation."""
    from json import dumps

    from primus_search.report.installation import examine

    findings = examine()
    if json:
        typer.echo(dumps([{"name": f.name, "value": f.value, "is_well": f.is_well} for f in findings], indent=2))
    else:
        width = max(len(f.name) for f in findings)
        for f in findings:
            typer.echo(f"{'ok ' if f.is_well else 'BAD'} {f.name:<{width}}  {f.value}")
    if not all(f.is_well for f in findings):
        raise typer.Exit(1)
