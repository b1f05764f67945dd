"""`primus-search next RUN`: which configurations of a run to measure next."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.cli.output.opened_runs import Run, opened

if TYPE_CHECKING:
    from primus_search.values.measured_run import MeasuredRun


Known = Annotated[
    Path | None,
    typer.Option("--runs", help="Runs that are known: of `learn`, or a table; default: the stack's."),
]
FrameworkName = Annotated[str | None, typer.Option("--framework", help="Framework of the software, as logs name it.")]
Count = Annotated[int, typer.Option("--count", min=1, help="How many configurations.")]
Budget = Annotated[
    float, typer.Option("--budget-gpu-hours", min=0.0, help="GPU hours of all trials together; 0: no limit.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Also write a launch file per configuration here.")]
FormatName = Annotated[str, typer.Option("--format", help="Whose launch files; default: the run's framework.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the samples.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


def next(
    run: Run = None,
    runs: Known = None,
    framework: FrameworkName = None,
    count: Count = 3,
    budget: Budget = 0.0,
    out: Out = None,
    format_name: FormatName = "",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Which configurations of a run to measure next, and the expected regret of the choice now and after."""
    import numpy as np

    from primus_search.cost.projection import FITS
    from primus_search.declare.record_table import own_runs_of
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
    measured = _known(runs) if runs is not None else own_runs_of(cluster.cluster.stack)
    ranks = (surely or ranks)[:MOST_ROWS]
    advice = next_runs(
        saved.space.job_on(cluster),
        joined([saved.candidate(rank) for rank in ranks]),
        np.array([saved.space.workload.tokens_per_step / world / float(saved.row(rank)[RATE]) for rank in ranks]),
        measured,
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


def _known(path: Path) -> "tuple[MeasuredRun, ...]":
    from primus_search.runs.published import measured_table

    return measured_table(path).runs


def _launch(saved: Any, ranks: list[int], format_name: str, folder: Path) -> list[str]:
    """Launch files of the picks, written as `export` writes them."""
    from primus_search.export.ranks import chosen_rows, files_of, write_all

    files = files_of(saved, chosen_rows(saved, ",".join(map(str, ranks)), None), format_name)
    return [str(path) for path in write_all(folder, files)]
