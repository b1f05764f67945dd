"""`primus-search schedules`: which pipeline schedule, at which memory, for any pipeline."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from primus_search.base.errors import InputError, NothingFits, Problem, ScheduleError
from primus_search.cli.output import write
from primus_search.report.plain_tables import Plain, table

if TYPE_CHECKING:
    from primus_search.schedule.side_by_side import Compared

MOST_PASSES = 1 << 18  # forward passes of a pipeline that is compared: 64 stages, 2 chunks each, 2,048 micro-batches


def schedules(
    stages: int | None = None, microbatches: int | None = None, costs: str = "1,1,1", comm: float = 0.0,
    vpp: int | None = None, memory_limit: float | None = None, head_extra: float = 0.0, run: Path | None = None,
    rank: int = 1, schedule: str | None = None, gantt: Path | None = None, draw: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Every pipeline schedule side by side, with its gap to the lower bound.

    Either --stages, --microbatches and --costs say what the pipeline is, or --run and --rank: a candidate of a finished
    search, with the time of each of its stages, its hops, and the memory its device has left for activations.
    """
    from primus_search.schedule.side_by_side import best_within

    if run is not None:
        request = _of_run(run, rank, vpp, memory_limit, [stages, microbatches, costs != "1,1,1", comm, head_extra])
    else:
        request = _of_costs(stages, microbatches, vpp, memory_limit, costs, comm, head_extra)
    built = [row for row in request.rows if row.timeline is not None]
    if not built:
        raise NothingFits("no schedule fits:\n" + "\n".join(f"  {row.reason}" for row in request.rows))
    best = best_within(request.rows, request.memory_limit)
    chosen = best if schedule is None else next((row for row in built if row.name == schedule), None)
    if chosen is None or best is None:
        raise InputError([Problem("--schedule", _why_not(schedule, {row.name: row.reason for row in request.rows}))])
    if gantt is not None:
        _write_svg(gantt, chosen)
    if json:
        typer.echo(json_module.dumps([_as_json(row) for row in built], indent=2))
        return
    console = Plain()
    _print(console, request, best)
    if draw:
        from primus_search.report.gantt import terminal

        assert chosen.timeline is not None
        console.print(terminal(chosen.timeline, max(40, console.width - 24)), soft_wrap=True)


class _Asked(NamedTuple):
    """A comparison with its title, its memory limit, and what a run's candidate has: schedule, makespan."""

    title: str
    rows: "list[Compared]"
    memory_limit: float | None
    own: tuple[str, float] | None = None


def _of_costs(stages: int | None, microbatches: int | None, vpp: int | None, memory_limit: float | None, costs: str,
              comm: float, head_extra: float) -> _Asked:  # fmt: skip
    from primus_search.schedule import Costs
    from primus_search.schedule.side_by_side import compare

    if stages is None or microbatches is None:
        missing = "--stages" if stages is None else "--microbatches"
        raise InputError([Problem(missing, "say the pipeline with --stages and --microbatches, or name a --run")])
    if stages * microbatches * (vpp or 2) > MOST_PASSES:
        what = f"stages * micro-batches * chunks is more than {MOST_PASSES:,}, the largest pipeline that is compared"
        raise InputError([Problem("--stages, --microbatches, --vpp", what)])
    forward, backward, weight = _three(costs)
    try:
        given = Costs(forward=forward, backward=backward, weight=weight, comm=comm, last_head_extra=head_extra)
    except ScheduleError as error:
        raise InputError([Problem("--costs, --comm or --head-extra", str(error))]) from None
    rows = compare(stages=stages, microbatches=microbatches, virtual_stages=2 if vpp is None else vpp, costs=given,
                   memory_limit=memory_limit)  # fmt: skip
    title = f"{stages} ranks, {microbatches} micro-batches, F,B,W = {forward:g},{backward:g},{weight:g}, comm {comm:g}"
    return _Asked(title, rows, memory_limit)


def _of_run(run: Path, rank: int, vpp: int | None, memory_limit: float | None, given: list[object]) -> _Asked:
    """The candidate of that rank; `given` are the options that describe a pipeline without a run."""
    from primus_search.analysis.pipelines import RunPipeline
    from primus_search.cli.output import opened

    if any(given):
        raise InputError([Problem("--run", "a run says its own pipeline; leave out --stages, --costs and the like")])
    pipeline = RunPipeline.of(opened(run), rank)
    chunks = max(2, pipeline.virtual_stages) if vpp is None else vpp
    rows = pipeline.compared(virtual_stages=chunks, memory_limit=memory_limit)
    title = f"rank {rank} of {run}: {pipeline.stages} ranks, {pipeline.microbatches} micro-batches; times in ms"
    limit = pipeline.room if memory_limit is None else memory_limit
    return _Asked(title, rows, limit, pipeline.own)


def _three(costs: str) -> tuple[float, float, float]:
    try:
        values = [float(part) for part in costs.split(",")]
    except ValueError:
        values = []
    if len(values) != 3 or not all(0.0 <= value < float("inf") for value in values) or sum(values) == 0.0:
        raise InputError([Problem("--costs", f"{costs!r}; give three times that are not negative: F,B,W")])
    return values[0], values[1], values[2]


def _why_not(name: str | None, reasons: dict[str, str]) -> str:
    return reasons.get(name or "", f"no schedule is called {name!r}; known: {', '.join(sorted(reasons))}")


def _write_svg(path: Path, row: "Compared") -> None:
    from primus_search.report.gantt import svg

    assert row.timeline is not None
    title = f"{row.name}: makespan {row.makespan:g}, bubble {100 * row.timeline.bubble_ratio:.2f} %, peak {row.peak:g}"
    write(path, svg(row.timeline, title), "--gantt")


def _as_json(row: "Compared") -> dict[str, object]:
    assert row.timeline is not None
    return {
        "name": row.name,
        "makespan": row.makespan,
        "span": row.timeline.span,
        "bubble_ratio": row.timeline.bubble_ratio,
        "peak_activations": row.peak,
        "peak_activations_half_at_b": float(row.timeline.peak_activations_half_at_b.max()),
        "peak_activations_per_rank": row.timeline.peak_activations.tolist(),
        "gap_to_bound": row.gap_to_bound,
        "on_frontier": row.on_frontier,
        "seconds": row.seconds,
    }


def _print(console: Plain, request: _Asked, best: "Compared") -> None:
    columns = ("schedule", "makespan", "span", "bubble %", "peak", "½ at B", "gap %", "ms", "")
    found = table(*columns, left=("schedule", ""), wrapped=())
    found.title, found.title_justify = request.title, "left"
    for row in request.rows:
        if row.timeline is None:
            continue
        found.add_row(
            row.name, f"{row.makespan:,.6g}", f"{row.timeline.span:,.6g}", f"{100 * row.timeline.bubble_ratio:.2f}",
            f"{row.peak:.4g}", f"{float(row.timeline.peak_activations_half_at_b.max()):.4g}",
            f"{round(100 * row.gap_to_bound, 2) + 0.0:.2f}", f"{1e3 * row.seconds:.1f}",
            "best" if row is best else "frontier" if row.on_frontier else "",
            style="bold green" if row is best else None,
        )  # fmt: skip
    console.print(found)
    limit = request.memory_limit
    within = "" if limit is None else f" within {limit:.4g} micro-batches of activations"
    console.print(f"Best{within}: {best.name}, makespan {best.makespan:g}, peak {best.peak:g}.")
    if request.own is not None:
        name, makespan = request.own
        console.print(f"The run has {name}: {100 * (makespan / best.makespan - 1):.2f} % above the best.")
    console.print(
        "peak: micro-batches of activations on the fullest rank, released at W (½ at B: half of each already at B); "
        "gap: over the lower bound of its placement and memory limit; frontier: no faster schedule needs less."
    )
    for row in request.rows:
        if row.timeline is None:
            console.print(f"  not available: {row.reason}")
