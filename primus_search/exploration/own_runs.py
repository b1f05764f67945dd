"""Runs that a site made of a job: what they measured is the expected rate of their rows, and near rows move with them.

`learn` writes the runs of a stack beside its file. A run is of one configuration of a space, where that has what its
log does not print (`Evaluator.configured`), whatever table its row stands in. It belongs to a row where job, degrees,
batch, precision, recomputation and sharding are the same and the projection cannot tell both apart: the row's expected
rate is the measured one. What a run leaves of the rate that the stack expects is also that of
configurations which it resembles,

    log(expected) = log(expected by the stack) + sum over runs of weight(run) * resemblance(row, run)
    resemblance = likeness(places) * exp(-0.5 (log(projected row / projected run) / configuration error)^2)

a Gaussian process again (`cost.confidence.uncertainty`): errors of two rows of nearly equal layout differ by no more
than the switches between them change the projection, and by the whole error of a configuration where that is more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from primus_search.cost.confidence.uncertainty import RUN_NOISE, configuration_error, likeness, places_of
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.exploration.expected import expected_shares
from primus_search.values.candidates import COLUMN_NAMES, Bools, Candidates, Floats, joined
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, StateFormat
from primus_search.values.knobs.values import USUAL_SCHEDULES
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
    configurations: tuple[Candidates, ...]
    measured: tuple[float, ...]

    @classmethod
    def of(
        cls,
        projector: Projector,
        runs: Sequence[MeasuredRun],
        configured: Callable[[MeasuredRun], Candidates] = lambda run: run.candidates,
    ) -> "OwnRuns":
        """Those of the job among some runs; `configured`: the one configuration that a run is of."""
        found: dict[tuple[object, ...], tuple[Candidates, list[float]]] = {}
        for run in runs:
            if run.has_rate and not run.ran_out and _is_same_job(run, projector.job):
                one = configured(run)
                if is_stacks_own(projector.job.stack, one.row(0)["state_format"]):
                    one = one.with_columns({"state_format": np.array([StateFormat.STACK])})
                key = tuple(one.row(0)[name] for name in COLUMN_NAMES)
                found.setdefault(key, (one, []))[1].append(run.tokens_per_s_per_gpu)
        measured = tuple(median(rates) for _, rates in found.values())
        return cls(projector, tuple(one for one, _ in found.values()), measured)

    def rates(self, table: Candidates, projection: Projection) -> dict[int, float]:
        """Measured tokens/s/GPU of the rows that were run; the median where runs of several logs are of one row."""
        found: dict[int, list[float]] = {}
        for rows, rate in zip(self._rows(table, projection), self.measured, strict=True):
            for row in rows:
                found.setdefault(row, []).append(rate)
        return {row: median(rates) for row, rates in sorted(found.items())}

    def without_a_row(self, table: Candidates, projection: Projection) -> list[Candidates]:
        """Configurations of the runs that no row of a table is."""
        rows = self._rows(table, projection)
        return [one for one, found in zip(self.configurations, rows, strict=True) if not found]

    def ratios(self, table: Candidates, projection: Projection) -> Floats:
        """What the runs that a row resembles say of its rate, over what the stack expects of it."""
        if not self.configurations:
            return np.ones(len(table))
        rates = np.log(projection.tokens_per_s_per_gpu)
        return np.asarray(np.exp(self._resemblance(places_of(self.projector.job, table), rates) @ self._weights))

    @property
    def most_ratio(self) -> float:
        """A bound of `ratios`."""
        return float(np.exp(np.maximum(self._weights, 0.0).sum())) if self.configurations else 1.0

    def _rows(self, table: Candidates, projection: Projection) -> list[list[int]]:
        """Rows of a table that every configuration is: printed columns agree and the projection is the same."""
        if not self.configurations:
            return []
        mine, own = self._table, self._projected
        schedules, layouts = np.array(table.schedules), np.array([str(one) for one in table.layouts])
        words = schedules[table.schedule], layouts[table.pipeline_layout]
        columns, theirs, found = table.columns(), mine.columns(), list[list[int]]()
        for i, one in enumerate(self.configurations):
            word = one.row(0)
            is_same: Bools = np.isin(words[0], (*USUAL_SCHEDULES, word["schedule"]))
            is_same &= words[1] == str(word["pipeline_layout"])
            for name in SAME:
                is_same &= columns[name] == theirs[name][i]
            for other, its in ((projection.step.total, own.step.total), (projection.memory.total, own.memory.total)):
                is_same &= np.abs(its[i] / other - 1.0) < EQUAL
            found.append(np.flatnonzero(is_same).tolist())
        return found

    @cached_property
    def _table(self) -> Candidates:
        return joined(self.configurations)

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
        return np.asarray(np.linalg.solve(alike + np.eye(len(self._table)) * (RUN_NOISE / self._error) ** 2, left))

    @property
    def _error(self) -> float:
        return configuration_error(self.projector.job.model.is_moe)

    def _resemblance(self, places: Floats, log_rates: Floats) -> Floats:
        """Correlation of what configurations have of their own with that of every run: (rows, runs)."""
        apart = (log_rates[:, None] - np.log(self._projected.tokens_per_s_per_gpu)) / self._error
        return likeness(places, places_of(self.projector.job, self._table)) * np.exp(-0.5 * apart**2)


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
