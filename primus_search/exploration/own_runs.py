"""Runs that a site made of a job: what they measured is the expected rate of their rows, and near rows move with them.

`learn` writes the runs of a stack beside its file. A run belongs to a row where job, degrees, batch, precision,
recomputation and sharding are the same, as far as its log prints them, and the projection cannot tell both apart: the
row's expected rate is the measured one. What a run leaves of the rate that the stack expects is also that of
configurations which it resembles,

    log(expected) = log(expected by the stack) + sum over runs of weight(run) * resemblance(row, run)
    resemblance = likeness(places) * exp(-0.5 (log(projected row / projected run) / configuration error)^2)

a Gaussian process again (`cost.confidence.uncertainty`): errors of two rows of nearly equal layout differ by no more
than the switches between them change the projection, and by the whole error of a configuration where that is more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from primus_search.cost.confidence.uncertainty import RUN_NOISE, configuration_error, likeness, places_of
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.ranking_table import USUAL_SCHEDULES
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


@dataclass(frozen=True, eq=False)
class OwnRuns:
    """Runs with a rate of a projector's job, each configuration once, with the median of its rates."""

    projector: Projector
    runs: tuple[MeasuredRun, ...]
    measured: tuple[float, ...]

    @classmethod
    def of(cls, projector: Projector, runs: Sequence[MeasuredRun]) -> "OwnRuns":
        """Those of the job among some runs."""
        found: dict[tuple[object, ...], list[MeasuredRun]] = {}
        for run in runs:
            if run.has_rate and not run.ran_out and _is_same_job(run, projector.job):
                found.setdefault(run.candidate_key, []).append(run)
        rates = (median(run.tokens_per_s_per_gpu for run in same) for same in found.values())
        return cls(projector, tuple(same[0] for same in found.values()), tuple(rates))

    def rates(self, table: Candidates, projection: Projection) -> dict[int, float]:
        """Measured tokens/s/GPU of the rows that were run; the median where runs of several logs are of one row."""
        found: dict[int, list[float]] = {}
        for rows, rate in zip(self._rows(table, projection), self.measured, strict=True):
            for row in rows:
                found.setdefault(row, []).append(rate)
        return {row: median(rates) for row, rates in sorted(found.items())}

    def without_a_row(self, table: Candidates, projection: Projection) -> list[Candidates]:
        """Configurations of the runs that no row of a table is."""
        return [run.candidates for run, rows in zip(self.runs, self._rows(table, projection), strict=True) if not rows]

    def ratios(self, table: Candidates, projection: Projection) -> Floats:
        """What the runs that a row resembles say of its rate, over what the stack expects of it."""
        if not self.runs:
            return np.ones(len(table))
        rates = np.log(projection.tokens_per_s_per_gpu)
        return np.asarray(np.exp(self._resemblance(places_of(self.projector.job, table), rates) @ self._weights))

    @property
    def most_ratio(self) -> float:
        """A bound of `ratios`."""
        return float(np.exp(np.maximum(self._weights, 0.0).sum())) if self.runs else 1.0

    def _rows(self, table: Candidates, projection: Projection) -> list[list[int]]:
        return [_rows_of(self.projector, table, projection, run).tolist() for run in self.runs]

    @cached_property
    def _table(self) -> Candidates:
        return joined([run.candidates for run in self.runs])

    @cached_property
    def _projected(self) -> Projection:
        return self.projector.project(self._table)

    @cached_property
    def _weights(self) -> Floats:
        """Weight of every run: the runs' own rows reach what they measured but for the noise between two runs."""
        rates = self._projected.tokens_per_s_per_gpu
        left = np.log(self.measured) - np.log(
            rates * expected_shares(self.projector, self._table, self._projected.step.total)
        )
        alike = self._resemblance(places_of(self.projector.job, self._table), np.log(rates))
        return np.asarray(np.linalg.solve(alike + np.eye(len(self.runs)) * (RUN_NOISE / self._error) ** 2, left))

    @property
    def _error(self) -> float:
        return configuration_error(self.projector.job.model.is_moe)

    def _resemblance(self, places: Floats, log_rates: Floats) -> Floats:
        """Correlation of what configurations have of their own with that of every run: (rows, runs)."""
        apart = (log_rates[:, None] - np.log(self._projected.tokens_per_s_per_gpu)) / self._error
        return likeness(places, places_of(self.projector.job, self._table)) * np.exp(-0.5 * apart**2)


def own_rates(job: Job, table: Candidates, runs: Sequence[MeasuredRun]) -> dict[int, float]:
    """Measured tokens/s/GPU of the rows of a table that some runs are of."""
    own = OwnRuns.of(Projector(job), runs)
    return own.rates(table, own.projector.project(table)) if own.runs else {}


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


def _rows_of(projector: Projector, table: Candidates, projection: Projection, run: MeasuredRun) -> Ints:
    """Rows of a table that are the configuration of a run, as far as it is known.

    Columns that its log does not print are free; of rows that differ in them those nearest to what is assumed are it.
    """
    free = [name for name in (text.partition(" = ")[0] for text in run.assumed) if name in COLUMN_NAMES]
    if "vpp" in free:
        free.append("schedule")  # one of the usual ones, which the chunks decide
    word, its = run.candidates.row(0), run.candidates.columns()
    own = {name: column[0] for name, column in its.items()}
    if is_stacks_own(projector.job.stack, word["state_format"]):
        own["state_format"] = StateFormat.STACK
    for name, words in (("schedule", table.schedules), ("pipeline_layout", table.layouts)):
        codes = {str(one): code for code, one in enumerate(words)}
        if (code := codes.get(str(word[name]))) is None and name not in free:
            return np.empty(0, np.int64)
        own[name] = code
    columns = table.columns()
    usual = [code for code, one in enumerate(table.schedules) if one in (*USUAL_SCHEDULES, word["schedule"])]
    is_same: Bools = np.isin(columns["schedule"], usual)
    for name in set(SAME) - set(free):
        is_same &= columns[name] == own[name]
    rows = np.flatnonzero(is_same)
    if not rows.size:
        return rows
    known = {name: np.full(len(rows), value) for name, value in own.items() if name not in free}
    ran = projector.project(table.take(rows).with_columns(known))
    for mine, other in ((ran.step.total, projection.step.total), (ran.memory.total, projection.memory.total)):
        is_same[rows] &= np.abs(mine / other[rows] - 1.0) < EQUAL
    rows = np.flatnonzero(is_same)
    away = np.zeros(len(rows), np.int64)
    for name in free:
        away += columns[name][rows] != own[name]
    return np.asarray(rows[away == away.min(initial=len(free))])
