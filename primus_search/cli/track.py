"""`primus-search track FOLDER`: a run, the trials of `tune` or a night as runs of MLflow."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URI = "mlruns"


def track(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of run, tune or nightly.")],
    uri: Annotated[
        str, typer.Option("--to", metavar="URI", help="Server, database or folder; $MLFLOW_TRACKING_URI, else mlruns.")
    ] = "",
    experiment: Annotated[str, typer.Option("--experiment", help="Experiment of the runs.")] = "primus-search",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Write a run, the trials of `tune` or a night to MLflow: numbers as metrics, words as parameters, files."""
    from primus_search.report.tracking import send

    uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "") or DEFAULT_URI
    runs = send(folder, uri, experiment)
    typer.echo(json.dumps({"uri": uri, "runs": runs}) if as_json else f"{len(runs)} runs in {uri}: {', '.join(runs)}")
