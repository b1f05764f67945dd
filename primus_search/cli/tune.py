"""`primus-search tune SPACE --launch CMD`: search, run what tells most, learn from its log, and again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.interrupts import Interrupted
from primus_search.cli import overrides
from primus_search.cli.output import must_be_folder, print_json

if TYPE_CHECKING:
    from primus_search.exploration.run_folder.saved_run import SavedRun
    from primus_search.learning.tuning import TrialRows, Tuned


def tune(
    space: str, launch: str, out: Path, through: str = "", trials: int = 10, until: str = "1%", parallel: int = 1,
    limit: float = 3600.0, quiet: float = 900.0, sets: list[str] | None = None, stack: str = "",
    nodes: int | None = None, framework: str = "", format_name: str = "", seed: int = 0, as_json: bool = False,
) -> None:  # fmt: skip
    """Find the best configuration by running few: choose, launch, read the log, learn, choose again."""
    changed = dict(locals())
    from primus_search.launch.write.launch_files import SLURM
    from primus_search.learning.trial import Limits
    from primus_search.learning.tuning import TrialRows, launch_words, tune

    share, _ = _share(until), launch_words(launch)  # before the search: a mistake is said at once
    if through:
        from primus_search.learning import submitted

        launch = submitted.through(through, launch)
    if format_name not in ("", SLURM):
        raise InputError([Problem(f"--format {format_name}", f"is unknown; leave it out or use {SLURM}")])
    must_be_folder(out, "--out")
    saved = _searched(space, [*(sets or []), *overrides("tune", changed)], out)
    rows = TrialRows.of(saved)
    found = tune(
        rows,
        out,
        _prepared(saved, format_name),
        launch=launch,
        trials=trials,
        until=share,
        limits=Limits(seconds=limit, quiet_s=quiet),
        parallel=parallel,
        seed=seed,
        say=lambda text: typer.echo(text, err=True),
    )
    _write_runs(rows, found, out)
    _print(found, out, as_json)
    if found.best is None:
        raise typer.Exit(1)


def _searched(space: str, overrides: list[str], out: Path) -> "SavedRun":
    """The search whose rows are tried: the one of the folder where it finished, else a new one."""
    from primus_search.declare import load_space
    from primus_search.exploration.funnel import Options
    from primus_search.exploration.run_folder.saved_run import SavedRun
    from primus_search.learning.tuning import SEARCH
    from primus_search.session.complete_search import search

    folder = out / SEARCH
    if not (folder / "run.json").is_file():
        loaded = load_space(space, overrides=[*overrides, '--bench benchmark.device="off"'])
        found = search(loaded, Options(is_last_run=False), out=folder)
        if found.interrupted_by:
            raise Interrupted(found.interrupted_by)
    return SavedRun.open(folder)


def _prepared(saved: "SavedRun", format_name: str) -> "Callable[[int, Path], str]":
    """What writes the launch files of a rank into a trial's folder and returns the name of its script."""

    def prepare(rank: int, folder: Path) -> str:
        from primus_search.analysis.exported_rows import chosen_rows, files_of
        from primus_search.launch.write.launch_files import SLURM, SLURM_FILE, write_all

        framework = saved.cluster(rank).framework
        if framework.is_any:
            return ""
        files = files_of(saved, chosen_rows(saved, str(rank), None), format_name)
        write_all(folder, {".": next(iter(files.values()))})
        return SLURM_FILE if format_name == SLURM else f"{framework.launcher}.sh"

    return prepare


def _share(text: str) -> float:
    """`1%` or `0.01` as a share. Raises `InputError` for anything else."""
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 <= share < 1.0:
        raise InputError([Problem(f"--until {text}", "is no share; write 1% or 0.01")])
    return share


def _write_runs(rows: "TrialRows", found: "Tuned", out: Path) -> None:
    from primus_search.learning.site_files import write_runs
    from primus_search.learning.tuning import RUNS, runs_of

    ran = [one for one in found.outcomes if one.tokens_per_s_per_gpu]
    if ran:
        write_runs(runs_of(rows, ran), out / RUNS)


def _print(found: "Tuned", out: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from primus_search.base.html_templates import rendered

    if not as_json:
        typer.echo(rendered("trials.txt", found=found, out=out), nl=False)
        return
    figures = {"expected_regret": found.regret, "trials": [asdict(one) for one in found.outcomes]}
    figures["best"] = asdict(found.best) if found.best else None
    figures["stopped"] = found.stopped
    print_json(figures)
