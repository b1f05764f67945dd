"""`primus-search truth`: train small models for real on this machine and compare with the projection."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer


def truth(
    only: Annotated[str, typer.Option(help="Only configurations whose name contains this text.")] = "",
    seconds: Annotated[float, typer.Option(help="Seconds for measuring layers, all configurations together.")] = 120.0,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each configuration.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the comparison as JSON to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON, nothing else.")] = False,
) -> None:
    """Train a small GPT and a small MoE with torch.distributed here; compare with what is projected for the host."""
    from primus_search.declare.hardware import load_cluster
    from primus_search.errors import InputError, Problem
    from primus_search.measure.revalidate import Benchmark
    from primus_search.measure.truth import cases, prove

    chosen = [case for case in cases() if only in case.name]
    if not chosen:
        names = ", ".join(case.name for case in cases())
        raise InputError([Problem("--only", f"no configuration contains {only!r}; there are: {names}")])
    cluster = load_cluster("host", 1)
    how = Benchmark(seconds=seconds)
    report = prove(cluster, how, chosen=chosen, steps=steps, say=lambda text: typer.echo(text, err=True))
    text = dumps(report.as_json(), indent=2)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
    if json:
        typer.echo(text)
        return
    typer.echo(
        f"{'configuration':24s} {'trained s':>10s} {'projected':>10s} {'measured':>10s} {'GB':>7s} {'projected':>10s}"
    )
    for row in sorted(report.rows, key=lambda row: row.trained_s):
        figures = f"{row.trained_s:10.3f} {row.projected_s:10.3f} {row.measured_s:10.3f}"
        memory = f"{row.trained_bytes / 1e9:7.3f} {row.projected_bytes / 1e9:10.3f}"
        typer.echo(f"{row.name:24s} {row.failure or figures + ' ' + memory}")
    if report.complete:
        typer.echo(
            f"{len(report.complete)} configurations: Kendall {report.kendall():.2f} "
            f"(projected {report.kendall('projected_s'):.2f}), the true best in place {report.place()}, "
            f"step median error {report.step_error():.1%} (projected {report.step_error('projected_s'):.1%}), "
            f"memory median error {report.memory_error:.1%}"
        )
    for note in report.notes:
        typer.echo(note)
