"""Rows of a ranking that the site has run: they carry their measured rate and stand by it among the others.

`learn` writes the runs of a stack beside its file. A run belongs to a row where job, degrees, batch, precision,
recomputation and sharding are the same and the projection cannot tell both apart. The projections of such a stack are
made from these runs, so a measured rate and the projected ones of other rows do compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

import numpy as np

from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection, Step
from primus_search.cost.state_formats import is_stacks_own
from primus_search.declare.record_table import own_runs_of
from primus_search.exploration.frontier import frontier_after
from primus_search.exploration.result import RUN, RankingTable, SearchResult
from primus_search.values.candidates import Bools, Candidates, Floats, Ints
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, StateFormat
from primus_search.values.measured_run import MeasuredRun

SAME = tuple(knob.name for knob in KNOBS if knob.is_printed)
"""Columns that agree between a run and its row, whatever they change in the projection."""

EQUAL = 1e-9
"""Relative difference of two projections below which they are the same."""


def with_own_runs(result: SearchResult) -> SearchResult:
    """The result with the rates of the runs that the stacks' own files hold. Raises `InputError` for a bad file."""
    notes: list[str] = []
    for found in result.clusters:
        ranking, note = with_own_rates(found.ranking)
        if note:
            frontier = frontier_after(found.frontier, ranking)
            result = result.with_cluster(replace(found, ranking=ranking, frontier=frontier))
            notes.append(note)
    return replace(result, notes=(*result.notes, *dict.fromkeys(notes)))


def with_own_rates(table: RankingTable) -> tuple[RankingTable, str]:
    """A ranking with the rates of the runs of its stack's own file, and a note; unchanged and "" without such rows.

    Raises `InputError` for a bad file.
    """
    stack = table.choice.cluster.stack
    rates = own_rates(table.job, table.candidates, own_runs_of(stack), table.projection)
    if not rates:
        return table, ""
    note = f"{len(rates)} rows were run before ({Path(stack.runs_file).name}): their rate is that of the run"
    return ranked_again(table, rates), note


def own_rates(
    job: Job, table: Candidates, runs: Sequence[MeasuredRun], projection: Projection | None = None
) -> dict[int, float]:
    """Measured tokens/s/GPU of the rows that were run; the median where one was run several times."""
    rates: dict[int, list[float]] = {}
    mine = [run for run in runs if run.has_rate and not run.ran_out and _is_same_job(run, job)]
    if mine:
        projection = projection or Projector(job).project(table)
        for run in mine:
            for row in _rows_of(job, table, projection, run).tolist():
                rates.setdefault(row, []).append(run.tokens_per_s_per_gpu)
    return {row: median(found) for row, found in sorted(rates.items())}


def _is_same_job(run: MeasuredRun, job: Job) -> bool:
    """Whether model, devices and tokens of a step are the same; names of models may differ."""
    tokens = (run.workload.seq_length, run.workload.global_batch_size)
    return (
        replace(run.model, name=job.model.name, source=job.model.source) == job.model
        and run.cluster.accelerator.name == job.accelerator.name
        and run.cluster.world == job.cluster.world
        and run.cluster.network.gpus_per_node == job.network.gpus_per_node
        and tokens == (job.workload.seq_length, job.workload.global_batch_size)
    )


def _rows_of(job: Job, table: Candidates, projection: Projection, run: MeasuredRun) -> Ints:
    """Rows of a table that are the configuration of a run."""
    is_same: Bools = np.ones(len(table), np.bool_)
    for name in SAME:
        its = run.candidates.columns()[name][0]
        if name == "state_format" and is_stacks_own(job.stack, StateFormat(its).name):
            its = StateFormat.STACK
        is_same &= table.columns()[name] == its
    if not is_same.any():
        return np.flatnonzero(is_same)
    one = Projector(job).project(run.candidates)
    own = {"step": projection.step.total, "memory": projection.memory.total}
    theirs = {"step": one.step.total[0], "memory": one.memory.total[0]}
    for name, column in own.items():
        is_same &= np.abs(column / theirs[name] - 1.0) < EQUAL
    return np.flatnonzero(is_same)


def ranked_again(table: RankingTable, rates: Mapping[int, float]) -> RankingTable:
    """The table with the measured rates of some rows, in its new order: rows timed on a device stay first."""
    factor: Floats = np.ones(len(table))
    evidence = list(table.time_evidence)
    for row, rate in rates.items():
        factor[row] = float(table.projection.tokens_per_s_per_gpu[row]) / rate
        evidence[row] = RUN
    step = table.projection.step
    scaled = {f.name: step.__getattribute__(f.name) * factor for f in fields(Step)}
    shares = np.where([one == RUN for one in evidence], 1.0, table.expected_shares)
    changed = replace(
        table,
        projection=replace(table.projection, step=Step(**scaled)),
        time_evidence=tuple(evidence),
        expected_shares=shares,
    )
    return changed.take(changed.order)
