"""Rows of a ranking that the site has run: they carry their measured rate and stand by it among the others.

`learn` writes the runs of a stack beside its file. A run belongs to a row where job, degrees, batch, precision,
recomputation and sharding are the same, as far as its log prints them, and the projection cannot tell both apart. A run
that no row is becomes one. The projections of such a stack are made from these runs, so a measured rate and the
projected ones of other rows do compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

import numpy as np

from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection, Step
from primus_search.declare.record_table import own_runs_of
from primus_search.exploration.rank import frontier_after
from primus_search.exploration.ranking_table import RUN, RankingTable
from primus_search.exploration.result import SearchResult
from primus_search.values.candidates import COLUMN_NAMES, Bools, Candidates, Floats, Ints, joined
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, StateFormat
from primus_search.values.machine.state_formats import is_stacks_own
from primus_search.values.measured_run import MeasuredRun

SAME = tuple(knob.name for knob in KNOBS if knob.is_printed)
"""Columns that agree between a run and its row, whatever they change in the projection."""

COST_NOTHING = ("name", "constants", "source", "vocab_size", "vocab_padding", "ignored")
"""Fields of a model that a log and a preset may have otherwise."""
PADDING = 0.02
"""Share of a vocabulary that frameworks pad at most, beside each other."""
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

    A run of the same job that is no row of the ranking becomes one: it ran. Raises `InputError` for a bad file.
    """
    stack, others = table.choice.cluster.stack, dict[tuple[object, ...], list[MeasuredRun]]()
    placed = _placed(table.job, table.candidates, own_runs_of(stack), table.projection)
    for run, rows in placed:
        if not rows:
            others.setdefault(run.candidate_key, []).append(run)
    rates = _rates(placed)
    if not rates and not others:
        return table, ""
    count, file = len(rates) + len(others), Path(stack.runs_file).name
    note = f"{count} row{'s' * (count > 1)} run before ({file}): the rate is that of the run"
    if others:
        rates |= {len(table) + row: _rate(runs) for row, runs in enumerate(others.values())}
        table = table.plus(_rows_that_ran(table, [runs[0].candidates for runs in others.values()]))
        note += f"; {len(others)} not in the space, or projected not to fit"
    return ranked_again(table, rates), note


def _rows_that_ran(table: RankingTable, runs: Sequence[Candidates]) -> RankingTable:
    """Configurations that a search did not rank, numbered below its own."""
    rows = joined(runs)
    return RankingTable(
        job=table.job,
        choice=table.choice,
        indices=np.arange(-1, -1 - len(rows), -1, dtype=np.int64) + min(0, int(table.indices.min(initial=0))),
        candidates=rows,
        projection=Projector(table.job).project(rows),
    )


def _rate(runs: Sequence[MeasuredRun]) -> float:
    """Measured tokens/s/GPU of a row; the median where it was run several times."""
    return median(run.tokens_per_s_per_gpu for run in runs)


def own_rates(job: Job, table: Candidates, runs: Sequence[MeasuredRun]) -> dict[int, float]:
    """Measured tokens/s/GPU of the rows that were run; the median where one was run several times."""
    return _rates(_placed(job, table, runs))


Placed = list[tuple[MeasuredRun, list[int]]]
"""Runs of a job that have a rate, each with the rows of a table that it is of."""


def _placed(job: Job, table: Candidates, runs: Sequence[MeasuredRun], projection: Projection | None = None) -> Placed:
    mine = [run for run in runs if run.has_rate and not run.ran_out and _is_same_job(run, job)]
    if mine and projection is None:
        projection = Projector(job).project(table)
    return [(run, _rows_of(job, table, projection, run).tolist()) for run in mine] if projection else []


def _rates(placed: Placed) -> dict[int, float]:
    found: dict[int, list[MeasuredRun]] = {}
    for run, rows in placed:
        for row in rows:
            found.setdefault(row, []).append(run)
    return {row: _rate(its) for row, its in sorted(found.items())}


def _is_same_job(run: MeasuredRun, job: Job) -> bool:
    """Whether model, devices and tokens of a step are a job's.

    Names of models and constants that cost nothing may differ, and the rows that pad a vocabulary.
    """
    tokens = (run.workload.seq_length, run.workload.global_batch_size)
    rows = run.model.vocab_size / job.model.vocab_size
    return (
        abs(rows - 1.0) <= PADDING
        and replace(run.model, **{name: job.model.__getattribute__(name) for name in COST_NOTHING}) == job.model
        and run.cluster.accelerator.name == job.accelerator.name
        and run.cluster.world == job.cluster.world
        and run.cluster.network.gpus_per_node == job.network.gpus_per_node
        and tokens == (job.workload.seq_length, job.workload.global_batch_size)
    )


def _rows_of(job: Job, table: Candidates, projection: Projection, run: MeasuredRun) -> Ints:
    """Rows of a table that are the configuration of a run, as far as it is known.

    Columns that its log does not print are free; of rows that differ in them those nearest to what is assumed are it.
    """
    free = [name for name in (text.partition(" = ")[0] for text in run.assumed) if name in COLUMN_NAMES]
    word, its = run.candidates.row(0), run.candidates.columns()
    own = {name: column[0] for name, column in its.items()}
    if is_stacks_own(job.stack, word["state_format"]):
        own["state_format"] = StateFormat.STACK
    for name, words in (("schedule", table.schedules), ("pipeline_layout", table.layouts)):
        codes = {str(one): code for code, one in enumerate(words)}
        if (code := codes.get(str(word[name]))) is None and name not in free:
            return np.empty(0, np.int64)
        own[name] = code
    columns = table.columns()
    is_same: Bools = np.ones(len(table), np.bool_)
    for name in set(SAME) - set(free):
        is_same &= columns[name] == own[name]
    rows = np.flatnonzero(is_same)
    if not rows.size:
        return rows
    known = {name: np.full(len(rows), value) for name, value in own.items() if name not in free}
    ran = Projector(job).project(table.take(rows).with_columns(known))
    for mine, other in ((ran.step.total, projection.step.total), (ran.memory.total, projection.memory.total)):
        is_same[rows] &= np.abs(mine / other[rows] - 1.0) < EQUAL
    rows = np.flatnonzero(is_same)
    away = np.zeros(len(rows), np.int64)
    for name in free:
        away += columns[name][rows] != own[name]
    return np.asarray(rows[away == away.min(initial=len(free))])


def ranked_again(table: RankingTable, rates: Mapping[int, float]) -> RankingTable:
    """The table with the measured rates of some rows, in its new order: rows timed on a device stay first."""
    factor: Floats = np.ones(len(table))
    evidence = table.time_evidence.copy()
    for row, rate in rates.items():
        factor[row] = float(table.projection.tokens_per_s_per_gpu[row]) / rate
        evidence[row] = RUN
    step = table.projection.step
    scaled = {f.name: step.__getattribute__(f.name) * factor for f in fields(Step)}
    shares = np.where(evidence == RUN, 1.0, table.expected_shares)
    changed = replace(
        table,
        projection=replace(table.projection, step=Step(**scaled)),
        time_evidence=evidence,
        expected_shares=shares,
    )
    return changed.take(changed.order)
