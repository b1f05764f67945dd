"""`primus-search bench`: measure the top candidates of a run with real torch layers on this machine."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from primus_search.cli.output.opened_runs import Run

Device = Annotated[str, typer.Option(metavar="auto|trace|cpu|cuda", help="Where to measure.")]
Top = Annotated[int, typer.Option(min=1, help="Candidates whose layers are measured whatever their chance to win.")]
Seconds = Annotated[float, typer.Option(min=0.0, help="Seconds for measuring, all candidates together.")]
Save = Annotated[Path | None, typer.Option(help="Write the measurements used to this file.")]
Load = Annotated[Path | None, typer.Option(help="Use the measurements of this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the new ranking's first rows and the notes as JSON.")]


def bench(
    run: Run = None,
    device: Device = "auto",
    top: Top = 4,
    seconds: Seconds = 60.0,
    save_benchmark: Save = None,
    load_benchmark: Load = None,
    as_json: AsJson = False,
) -> None:
    """Measure the top candidates of a run with real torch layers on this machine, and rank them again."""
    from json import dumps

    from primus_search.analysis.labels import short
    from primus_search.base.errors import InputError, Problem
    from primus_search.base.units import GB
    from primus_search.cli.output.written_files import must_exist
    from primus_search.exploration.expected import RATE
    from primus_search.exploration.revalidation import top_up
    from primus_search.exploration.run_folder.last_run import last_run
    from primus_search.exploration.run_folder.saved_run import SavedRun
    from primus_search.measure.revalidate import MODES
    from primus_search.report.html import write_report

    if device not in MODES or device == "off":
        raise InputError([Problem("--device", f"{device!r} is not one of auto, trace, cpu, cuda")])
    must_exist(load_benchmark, "--load-benchmark")
    folder = run or last_run()
    table, notes = top_up(folder, device=device, top_k=top, seconds=seconds, load=load_benchmark, save=save_benchmark)
    write_report(SavedRun.open(folder))
    rows = list(islice(table.rows(), top))
    if as_json:
        typer.echo(dumps({"ranking": rows, "notes": notes}, indent=2))
        return
    names = [short(row) for row in rows]
    for rank, (name, row) in enumerate(zip(names, rows, strict=True), start=1):
        figures = f"{row[RATE]:10,.0f} tokens/s/GPU {row['memory_bytes'] / GB:8.2f} GB"
        evidence = f"time {row['time_evidence']}, memory {row['memory_evidence']}"
        typer.echo(f"{rank:3d}  {name:{max(map(len, names))}s} {figures}  {evidence}")
    for note in notes:
        typer.echo(note)
