"""Project every run of a table and score what comes out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from primus_search.base.cores import spread
from primus_search.base.errors import PrimusSearchError
from primus_search.base.positions import places
from primus_search.cost.confidence.fit import fit_probability, fit_verdict
from primus_search.cost.confidence.uncertainty import Exposed, interval, run_ratio
from primus_search.cost.project import Projector
from primus_search.cost.projection import Memory, Projection
from primus_search.evidence.validate.scores import duplicate_weights
from primus_search.values.candidates import Floats, joined
from primus_search.values.measured_run import MeasuredRun, RunTable, SkippedRun

WORTH_SPREADING = 64
"""Tables of runs from which on workers are forked: a table takes 10 ms, a worker 50."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """Tokens/s/GPU of a run and its 90 % interval, from numbers and errors of other runs."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """One projected run, compared with what was measured.

    predicted         tokens per second and GPU
    interval          ends of the 90 % interval of the predicted rate
    fit_probability   probability that it runs in device memory
    verdict           FITS, AT RISK or OOM
    memory            predicted and measured bytes in the view its source reports; None where it reports none
    """

    run: MeasuredRun
    projection: Projection
    predicted: float
    interval: tuple[float, float]
    fit_probability: float
    verdict: str
    memory: tuple[float, float] | None

    @property
    def error(self) -> float:
        """Signed relative error of the predicted rate."""
        return self.predicted / self.run.tokens_per_s_per_gpu - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured rate lies in the 90 % interval of the projection."""
        return self.interval[0] <= self.run.tokens_per_s_per_gpu <= self.interval[1]


def scored(run: MeasuredRun, projection: Projection) -> ScoredRun:
    """A run with its projection and what that says of its rate and its memory."""
    cluster, model = run.cluster, run.model
    rate = projection.tokens_per_s_per_gpu
    ends = interval(
        cluster, model, run.candidates.fp8, rate * run_ratio(run.job, run.candidates), Exposed.of(projection.step)
    )
    probability = fit_probability(run.job, run.candidates, projection.memory)
    return ScoredRun(
        run=run,
        projection=projection,
        predicted=float(ends.expected[0]),
        interval=(float(ends.low[0]), float(ends.high[0])),
        fit_probability=float(probability[0]),
        verdict=str(fit_verdict(run.job, probability, projection.headroom_bytes)[0]),
        memory=_peaks(run, projection.memory),
    )


def _peaks(run: MeasuredRun, memory: Memory) -> tuple[float, float] | None:
    """Predicted and measured bytes in the view a run's source reports."""
    measured = run.measured
    if math.isnan(measured.peak_bytes):
        return None
    return float(memory.counted(measured.peak_kind)[0]), measured.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Every projected run, and every run that could not be, with the reason.

    memory_only    ran, no rate published; they count for memory and for nothing else
    ran_out        known to run out of memory; they count for whether that is foreseen
    """

    rows: tuple[ScoredRun, ...]
    skipped: tuple[SkippedRun, ...]
    memory_only: tuple[ScoredRun, ...] = ()
    ran_out: tuple[ScoredRun, ...] = ()

    def with_rates(self, refitted: Mapping[tuple[str, int], Refitted]) -> "Validation":
        """The same runs scored by other rates, given by their place; a run without one keeps its own."""
        pairs = [(row, refitted.get(row.run.place)) for row in self.rows]
        rows = (replace(row, predicted=r.rate, interval=(r.low, r.high)) if r else row for row, r in pairs)
        return replace(self, rows=tuple(rows))

    @property
    def errors(self) -> Floats:
        return np.array([row.error for row in self.rows])

    @property
    def weights(self) -> Floats:
        return duplicate_weights(row.run.duplicate_key for row in self.rows)


def validate_runs(table: RunTable) -> Validation:
    """Project every run of a table."""
    every, refused = project_runs(table.runs)
    return Validation(
        rows=tuple(row for row in every if row.run.has_rate),
        skipped=tuple(sorted([*table.skipped, *refused], key=lambda one: one.place)),
        memory_only=tuple(row for row in every if not row.run.has_rate and not row.run.ran_out),
        ran_out=tuple(row for row in every if row.run.ran_out),
    )


def project_runs(runs: Sequence[MeasuredRun]) -> tuple[list[ScoredRun], list[SkippedRun]]:
    """Runs projected, in their order, and those that cannot be, with the reason: all runs of one model, cluster and
    workload as one table."""
    tables = [[runs[i] for i in members] for members in places(map(_table_key, runs)).values()]
    # The first table here: what it compiles or loads, forked workers inherit.
    answers = [_projected(table) for table in tables[:1]] + spread(_projected, tables[1:], at_least=WORTH_SPREADING)
    rows: dict[int, ScoredRun] = {}
    refused: list[SkippedRun] = []
    for run, answer in zip(chain(*tables), chain(*answers), strict=True):
        if isinstance(answer, Projection):
            rows[id(run)] = scored(run, answer)
        else:
            refused.append(SkippedRun(id=run.id, place=run.place, reason=answer))
    return [rows[id(run)] for run in runs if id(run) in rows], refused


def _table_key(run: MeasuredRun) -> tuple[object, ...]:
    return (*run.machine_key, run.model, run.workload)


def _projected(runs: Sequence[MeasuredRun]) -> list[Projection | str]:
    """Projections of runs that differ in their candidate only, or why there is none; runs repeated on another day or
    release are one candidate. Where the table cannot be projected every run is tried alone, to find the one."""
    distinct = {run.candidate_key: run.candidates for run in runs}
    rows = {key: np.array([i]) for i, key in enumerate(distinct)}
    try:
        projection = Projector(runs[0].job).project(joined(list(distinct.values())))
    except (PrimusSearchError, ValueError, ArithmeticError) as reason:
        return [str(reason)] if len(runs) == 1 else [answer for run in runs for answer in _projected([run])]
    return [projection.take(rows[run.candidate_key]) for run in runs]
