"""`primus-search learn FILES`: own runs in, a stack file of the site's software out; `next`: what to measure next."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_search.base.errors import InputError, Problem, printable
from primus_search.cli.output import must_be_folder, opened, print_json, write

if TYPE_CHECKING:
    from primus_search.learning.collected_runs import Readings
    from primus_search.learning.logged_run import SaidBeside
    from primus_search.learning.reading import LogReading
    from primus_search.learning.site_stack import SiteStack
    from primus_search.values.machine.stack import Stack
    from primus_search.values.measured_run import MeasuredRun, RunTable


SITE = "site"


def learn(
    files: list[Path] | None = None, name: str = SITE, into: Path | None = None, framework: str | None = None,
    hardware: str | None = None, model: str | None = None, base: str | None = None, dry_run: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    """Learn the stack of your own software and cluster from its training logs."""
    from primus_search.learning.collected_runs import Readings, read_files

    readings = read_files(files, framework, _table) if files else Readings(runs=(), refused=())
    from primus_search.files.search_path import sites
    from primus_search.learning.logged_run import SaidBeside
    from primus_search.learning.site_files import learn_from, needed

    beside = SaidBeside(hardware=hardware, model=model)
    if dry_run:
        missing = [str(problem) for problem in needed(readings, beside, base)]
        if as_json:
            print_json(_readings(readings) | {"needed": missing})
        else:
            _print_readings(readings, beside)
            for what in missing:
                typer.echo(f"needed: {what}", err=True)
        return
    folder = into if into is not None else sites()
    site = learn_from(readings, name, beside, base=base, folder=folder, framework=framework)
    must_be_folder(folder, "--into")
    written = _write(site, folder, name)
    from primus_search.base.html_templates import rendered

    if as_json:
        print_json(_figures(site, readings, written))
    else:
        _print_readings(readings, beside)
        typer.echo(rendered("learned.txt", site=site, written=written), nl=False)


def learner(files: list[Path], *, hardware: str, model: str, base: str | None) -> Callable[[Path], str]:
    """What writes the stack of some logs into a folder and returns its path. Raises `InputError` for unusable logs."""
    from primus_search.learning.collected_runs import read_files
    from primus_search.learning.logged_run import SaidBeside
    from primus_search.learning.site_files import learn_from, needed

    readings, beside = read_files(files, None, _table), SaidBeside(hardware=hardware, model=model)
    problems = [*readings.refused, *needed(readings, beside, base)]
    if problems:
        raise InputError(problems)
    return lambda folder: _write(learn_from(readings, SITE, beside, base=base, folder=folder), folder, SITE)["stack"]


def _table(path: Path) -> "RunTable":
    from primus_search.evidence.published.convert import (
        measured_table,  # loaded for tables alone: it takes as long as ten logs
    )

    return measured_table(path)


def _write(site: "SiteStack", folder: Path, name: str) -> dict[str, str]:
    from primus_search.learning.site_files import runs_path, write_runs
    from primus_search.learning.stack_text import stack_yaml

    stack, runs = folder / f"{name}.yaml", runs_path(folder, name)
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
        "learned": dict(site.parts),
        "warning": site.warning,
        "written": written,
    }


def _all(readings: "Readings") -> list["LogReading"]:
    from primus_search.learning.collected_runs import reading_of

    return [*readings.runs, *(reading_of(run) for run in readings.measured)]


def _readings(readings: "Readings") -> dict[str, object]:
    runs = [run.as_json() for run in _all(readings)]
    refused = [{"file": problem.where, "reason": problem.what} for problem in readings.refused]
    return {"runs": runs, "refused": refused}


def _print_readings(readings: "Readings", beside: "SaidBeside") -> None:
    """What was read and refused."""
    from primus_search.learning.logged_run import memory_notes

    for run in _all(readings):
        _print_run(run)
        for note in memory_notes(run, beside):
            typer.echo(f"  {note}")
    for problem in readings.refused:
        typer.echo(f"refused: {problem}", err=True)


def _print_run(run: "LogReading") -> None:
    """One run in a few lines: what it is, what was measured, what is assumed."""
    from primus_search.base.html_templates import rendered

    sizes = ("gpus", "tp", "pp", "cp", "ep", "vpp", "seq_length", "micro_batch_size", "global_batch_size")
    assumed: dict[str, list[str]] = {}
    for field, one in run.assumed.items():
        assumed.setdefault(one.because, []).append(f"{field} {one.value}")
    values = {"source": printable(run.source), "plain": run.as_json(), "sizes": sizes, "assumed": assumed}
    typer.echo(rendered("log_reading.txt", run=run, **values), nl=False)


def next(
    run: Path | None = None, runs: Path | None = None, framework: str | None = None, count: int = 3,
    budget: float = 0.0, out: Path | None = None, format_name: str = "", seed: int = 0, as_json: bool = False,
) -> None:  # fmt: skip
    """Which configurations of a run to measure next, and the expected regret of the choice now and after."""
    from primus_search.exploration.own_rows import rates_of
    from primus_search.learning.inference.hypotheses import FRAMEWORK_STACKS
    from primus_search.learning.next_runs import next_runs
    from primus_search.learning.tuning import TrialRows

    if framework is not None and framework not in FRAMEWORK_STACKS:
        known = ", ".join(FRAMEWORK_STACKS)
        raise InputError([Problem(f"--framework {framework}", f"is no framework of a log; known: {known}")])
    saved = opened(run)
    rows = TrialRows.of(saved, are_sure=True)
    learned = _known(runs, rows.job.stack)
    advice = next_runs(
        rows.job,
        rows.table,
        rows.step_s,
        learned,
        framework=framework,
        known=rates_of(saved.evaluator(saved.cluster(1)), rows.table, learned),
        count=count,
        budget_gpu_hours=budget or math.inf,
        seed=seed,
    )
    chosen = [rows.ranks[pick.row] for pick in advice.picks]
    files = []
    if out is not None and chosen:
        from primus_search.analysis.exported_rows import chosen_rows, files_of
        from primus_search.launch.write.launch_files import write_all

        launch = files_of(saved, chosen_rows(saved, ",".join(map(str, chosen)), None), format_name)
        files = [str(path) for path in write_all(out, launch)]
    if as_json:
        picks = [
            {"rank": rank, "candidate": saved.candidate(rank).row(0), "gpu_hours": pick.gpu_hours,
             "expected_regret_after": pick.regret}
            for rank, pick in zip(chosen, advice.picks, strict=True)
        ]  # fmt: skip
        print_json({"expected_regret": advice.regret, "picks": picks, "files": files})
        return
    typer.echo(f"expected regret of the choice now: {advice.regret:.1%}")
    for rank, pick in zip(chosen, advice.picks, strict=True):
        after = f"expected regret after it {pick.regret:.1%}"
        typer.echo(f"run rank {rank}: {pick.gpu_hours:.2f} GPU hours, {after}")
    for file in files:
        typer.echo(f"launch file: {file}")


def _known(path: Path | None, stack: "Stack") -> "tuple[MeasuredRun, ...]":
    """The runs of a table; without one those that a learned stack rests on."""
    from primus_search.declare.record_table import own_runs_of

    return own_runs_of(stack) if path is None else _table(path).runs
