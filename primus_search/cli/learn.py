"""`primus-search learn FILES`: own runs in, a stack file of the site's software out; `next`: what to measure next."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.cli.output import Run, opened

if TYPE_CHECKING:
    from primus_search.runs.learn.logged_run import Readings
    from primus_search.runs.learn.reading import LogReading
    from primus_search.runs.learn.site_stack import SiteStack
    from primus_search.values.machine.stack import Stack
    from primus_search.values.measured_run import MeasuredRun, RunTable


def learn(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Training logs, TensorBoard event files, run folders, tables; none: before the first run."),
    ] = None,
    name: Annotated[str, typer.Option("--as", help="Name of the site's own stack file.")] = "site",
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder to write to; default: sites/ of your configuration folder.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--framework", help="Read the files as this log format instead of recognising it.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", help="The GPU of the runs, by hardware file, where logs do not print it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The model of the runs, by preset or file, where logs do not print it."),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Start from this stack file alone, not from all shipped ones.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what was read; fit and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Learn the stack of your own software and cluster from its training logs."""
    from primus_search.runs.learn.logged_run import Readings, read_files

    readings = read_files(files, framework, _table) if files else Readings(runs=(), refused=())
    from primus_search.cli.output import must_be_folder
    from primus_search.declare.search_path import sites
    from primus_search.runs.learn.logged_run import SaidBeside
    from primus_search.runs.learn.site_files import learn_from, needed

    said = SaidBeside(hardware=hardware, model=model)
    if dry_run:
        _print_readings(readings, as_json, [str(problem) for problem in needed(readings, said, base)])
        return
    folder = into if into is not None else sites()
    site = learn_from(readings, name, said, base=base, folder=folder, framework=framework)
    must_be_folder(folder, "--into")
    written = _write(site, folder, name)
    if as_json:
        typer.echo(json.dumps(_figures(site, readings, written), indent=2))
    else:
        _print_readings(readings, as_json=False)
        _print_site(site, written)


def _table(path: Path) -> "RunTable":
    from primus_search.runs.published import measured_table  # loaded for tables alone: it takes as long as ten logs

    return measured_table(path)


def _write(site: "SiteStack", folder: Path, name: str) -> dict[str, str]:
    from primus_search.cli.output import write
    from primus_search.runs.learn.site_files import runs_path, stack_path, write_runs
    from primus_search.runs.learn.site_stack import stack_yaml

    stack, runs = stack_path(folder, name), runs_path(folder, name)
    write(stack, stack_yaml(site, f"{datetime.now(UTC):%Y-%m-%d}"), "--into")
    if not site.runs:
        return {"stack": str(stack)}
    write_runs(site.runs, runs)
    return {"stack": str(stack), "runs": str(runs)}


def _figures(site: "SiteStack", readings: "Readings", written: dict[str, str]) -> dict[str, object]:
    bands = {key: {"low": band.low, "high": band.high} for key, band in site.stack.errors.items()}
    return {
        **_readings(readings),
        "used": len(site.runs),
        "chosen": site.chosen.name,
        "hypotheses": dict(site.leading),
        "bands": bands,
        "warning": site.warning,
        "written": written,
    }


def _print_site(site: "SiteStack", written: dict[str, str]) -> None:
    typer.echo(f"learned from {len(site.runs)} runs; rates of {site.chosen.name}, then corrected by these runs")
    typer.echo("probability of each shipped stack given the runs, the first five:")
    for hypothesis, weight in site.leading:
        typer.echo(f"  {weight:>6.1%}  {hypothesis}")
    for family, band in site.stack.errors.items():
        typer.echo(f"  90 % of {family}: {band.low:.2f} to {band.high:.2f} of the projection")
    if site.warning:
        typer.echo(f"warning: {site.warning}")
    typer.echo(f"written: {', '.join(written.values())}")
    typer.echo(f"use it: primus-search run SPACE --stack {written['stack']}")


def _all(readings: "Readings") -> list["LogReading"]:
    from primus_search.runs.learn.logged_run import reading_of

    return [*readings.runs, *(reading_of(run) for run in readings.measured)]


def _readings(readings: "Readings") -> dict[str, object]:
    runs = [run.as_json() for run in _all(readings)]
    refused = [{"file": problem.where, "reason": problem.what} for problem in readings.refused]
    return {"runs": runs, "refused": refused}


def _print_readings(readings: "Readings", as_json: bool, needed: Sequence[str] = ()) -> None:
    """What was read and refused; needed: what a fit asks for beside it."""
    if as_json:
        typer.echo(json.dumps(_readings(readings) | {"needed": list(needed)}, indent=2))
        return
    for run in _all(readings):
        _print_run(run)
    for problem in readings.refused:
        typer.echo(f"refused: {problem}", err=True)
    for what in needed:
        typer.echo(f"needed: {what}", err=True)


def _print_run(run: "LogReading") -> None:
    """One run in a few lines: what it is, what was measured, what is assumed."""
    from primus_search.base.errors import printable

    sizes = ("gpus", "tp", "pp", "cp", "ep", "vpp", "seq_length", "micro_batch_size", "global_batch_size")
    plain = run.as_json()
    typer.echo(f"{printable(run.source)}: {run.framework}" + (f" on {run.device}" if run.device else ""))
    typer.echo("  " + ", ".join(f"{size} {'?' if plain[size] is None else plain[size]}" for size in sizes))
    if run.step_s is not None:
        rate = run.tokens_per_s_per_gpu
        typer.echo(
            f"  step {run.step_s:.4g} s over {run.steps} log lines, spread {run.noise or 0.0:.1%}"
            + (f"; {rate:,.0f} tokens/s/GPU" if rate else "")
        )
    if run.peak_memory_bytes is not None:
        typer.echo(f"  peak memory {run.peak_memory_bytes / 2**30:.2f} GiB ({run.memory_kind})")
    if run.died is not None:
        typer.echo(f"  ended early: {run.died}")
    for because in dict.fromkeys(one.because for one in run.assumed.values()):
        of = [f"{field} {one.value}" for field, one in run.assumed.items() if one.because == because]
        typer.echo(f"  assumed: {', '.join(of)} ({because})")
    for note in run.not_modelled:
        typer.echo(f"  not modelled: {note}")


def next(
    run: Run = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Runs that are known: of `learn`, or a table; default: the stack's.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--framework", help="Framework of the software, as logs name it.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many configurations.")] = 3,
    budget: Annotated[
        float, typer.Option("--budget-gpu-hours", min=0.0, help="GPU hours of all trials together; 0: no limit.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option("--out", help="Also write a launch file per configuration here.")] = None,
    format_name: Annotated[
        str, typer.Option("--format", help="Whose launch files; default: the run's framework.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Which configurations of a run to measure next, and the expected regret of the choice now and after."""
    import numpy as np

    from primus_search.cost.projection import FITS
    from primus_search.exploration.expected import RATE
    from primus_search.runs.learn.hypotheses import FRAMEWORK_STACKS
    from primus_search.runs.learn.next_runs import MOST_ROWS, next_runs
    from primus_search.values.candidates import joined

    if framework is not None and framework not in FRAMEWORK_STACKS:
        known = ", ".join(FRAMEWORK_STACKS)
        raise InputError([Problem(f"--framework {framework}", f"is no framework of a log; known: {known}")])
    saved = opened(run)
    cluster = saved.cluster(1)
    world = cluster.cluster.world
    ranks = [rank for rank in range(1, len(saved.ranking) + 1) if saved.cluster(rank) == cluster]
    surely = [rank for rank in ranks if saved.row(rank).get("memory_verdict") == FITS]
    ranks = (surely or ranks)[:MOST_ROWS]
    advice = next_runs(
        saved.space.job_on(cluster),
        joined([saved.candidate(rank) for rank in ranks]),
        np.array([saved.space.workload.tokens_per_step / world / float(saved.row(rank)[RATE]) for rank in ranks]),
        _known(runs, cluster.cluster.stack),
        framework=framework,
        count=count,
        budget_gpu_hours=budget or math.inf,
        seed=seed,
    )
    picks = [
        {
            "rank": ranks[pick.row],
            "candidate": saved.candidate(ranks[pick.row]).row(0),
            "gpu_hours": pick.gpu_hours,
            "expected_regret_after": pick.regret,
        }
        for pick in advice.picks
    ]
    chosen = [ranks[pick.row] for pick in advice.picks]
    files = _launch(saved, chosen, format_name, out) if out is not None and chosen else []
    if as_json:
        typer.echo(json.dumps({"expected_regret": advice.regret, "picks": picks, "files": files}, indent=2))
        return
    typer.echo(f"expected regret of the choice now: {advice.regret:.1%}")
    for pick in picks:
        typer.echo(
            f"run rank {pick['rank']}: {pick['gpu_hours']:.2f} GPU hours, expected regret after it "
            f"{pick['expected_regret_after']:.1%}"
        )
    for file in files:
        typer.echo(f"launch file: {file}")


def _known(path: Path | None, stack: "Stack") -> "tuple[MeasuredRun, ...]":
    """The runs of a table; without one those that a learned stack rests on."""
    from primus_search.declare.record_table import own_runs_of

    return own_runs_of(stack) if path is None else _table(path).runs


def _launch(saved: Any, ranks: list[int], format_name: str, folder: Path) -> list[str]:
    """Launch files of the picks, written as `export` writes them."""
    from primus_search.export.ranks import chosen_rows, files_of, write_all

    files = files_of(saved, chosen_rows(saved, ",".join(map(str, ranks)), None), format_name)
    return [str(path) for path in write_all(folder, files)]
