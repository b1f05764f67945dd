"""Project every run of a table and score what comes out."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from primus_search.base.cores import spread
from primus_search.base.errors import PrimusSearchError
from primus_search.base.units import GB
from primus_search.cost.confidence.uncertainty import interval, is_doubtful, memory_error, run_ratio
from primus_search.cost.memory import fit_probability, fit_verdict
from primus_search.cost.project import Projector
from primus_search.cost.projection import AT_RISK, FITS, OUT_OF_MEMORY, Memory, Projection
from primus_search.values.candidates import Bools, Floats, joined
from primus_search.values.measured_run import MeasuredRun, PeakKind, RunTable, SkippedRun

# --- errors: per row, per group, over all rows with near-duplicates counted once -------------------------------------


Key = TypeVar("Key", bound=Hashable)
LEAST_IN_GROUP = 4
"""Rows of a group from which on a rank correlation inside it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors as fractions: |predicted / measured - 1|; bias is the median signed one. NaN without rows."""

    rows: int
    median_abs_error: float = math.nan
    p90_abs_error: float = math.nan
    worst_abs_error: float = math.nan
    bias: float = math.nan


def score(errors: Floats, weights: Floats | None = None) -> Score:
    """Score of signed relative errors; `weights` let near-duplicates count once together."""
    if len(errors) == 0:
        return Score(rows=0)
    weights = np.ones(len(errors)) if weights is None else weights
    magnitude = np.abs(errors)
    return Score(
        rows=len(errors),
        median_abs_error=quantile(magnitude, weights, 0.5),
        p90_abs_error=quantile(magnitude, weights, 0.9),
        worst_abs_error=float(magnitude.max()),
        bias=quantile(errors, weights, 0.5),
    )


def quantile(values: Floats, weights: Floats, share: float) -> float:
    """Weighted quantile: linear between the mid-points of the sorted weights; numpy's for equal weights at 0.5."""
    order = np.argsort(values, kind="stable")
    ordered, mass = values[order], weights[order]
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return float(np.interp(share, middle, ordered))


def duplicate_weights(keys: Iterable[Hashable]) -> Floats:
    """1 / (number of rows with the same key), so that a ladder of near-duplicates counts as one row."""
    listed = list(keys)
    count = Counter(listed)
    return np.array([1.0 / count[key] for key in listed])


def kendall_by_group(groups: Iterable[Hashable], predicted: Floats, measured: Floats) -> float:
    """Mean rank correlation (tau-b) inside groups of at least LEAST_IN_GROUP rows; NaN where there is no such group."""
    large = (members for members in places(groups).values() if len(members) >= LEAST_IN_GROUP)
    taus = np.array([kendall(predicted[members], measured[members]) for members in large])
    taus = taus[np.isfinite(taus)]
    return float(np.mean(taus)) if len(taus) else math.nan


def places(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Positions of every key, in order of first appearance."""
    found: dict[Key, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found


def kendall(a: Floats, b: Floats) -> float:
    """Kendall's tau-b: concordant less discordant pairs over pairs not tied (Kendall 1945)."""
    i, j = np.triu_indices(len(a), k=1)
    da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
    pairs = np.sqrt(float(np.count_nonzero(da)) * float(np.count_nonzero(db)))
    return float((da * db).sum() / pairs) if pairs else float("nan")


# --- runs ------------------------------------------------------------------------------------------------------------


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
    ends = interval(cluster, model, run.candidates.fp8, rate * run_ratio(run.job, run.candidates))
    error = memory_error(cluster, model)
    probability = float(fit_probability(projection.memory, cluster.accelerator, error=error)[0])
    headroom = float(projection.headroom_bytes[0])
    return ScoredRun(
        run=run,
        projection=projection,
        predicted=float(ends.expected[0]),
        interval=(float(ends.low[0]), float(ends.high[0])),
        fit_probability=probability,
        verdict=fit_verdict(probability, headroom, is_assumed=is_doubtful(cluster.stack, model)),
        memory=_peaks(run, projection.memory),
    )


def _peaks(run: MeasuredRun, memory: Memory) -> tuple[float, float] | None:
    """Predicted and measured bytes in the view a run's source reports."""
    measured = run.measured
    if math.isnan(measured.peak_bytes):
        return None
    return float(counted_bytes(memory, measured.peak_kind)[0]), measured.peak_bytes


def counted_bytes(memory: Memory, kind: PeakKind) -> Floats:
    """Bytes of every row as peaks of a kind count them.

    Buffers of DeepEP are no allocator's: it takes them from the driver (deepseek-ai/DeepEP csrc/deep_ep.cpp).
    """
    if kind == "driver":
        return memory.driver
    return (memory.allocated if kind == "allocated" else memory.reserved) - memory.expert_buffers


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


GROUPINGS: dict[str, Callable[[ScoredRun], str]] = {
    "table": lambda row: Path(row.run.provenance.table).name,
    "gpu": lambda row: row.run.gpu,
    "precision": lambda row: row.run.precision,
    "family": lambda row: row.run.family,
    "source": lambda row: row.run.provenance.source,
    "stack x family": lambda row: f"{row.run.cluster.stack.name} {row.run.family}",
    "gpu x precision x family": lambda row: " ".join((row.run.gpu, row.run.precision, row.run.family)),
}
"""How runs are told apart. Stack and family are the regime that error bands are of."""


def summary(outcome: Validation) -> dict[str, Any]:
    """Everything `validate --json` prints."""
    rows, errors, weights = outcome.rows, outcome.errors, outcome.weights
    every = (*rows, *outcome.memory_only, *outcome.ran_out)
    total = score(errors, weights)
    ranks = [(*row.run.group, row.run.gpu, row.run.cluster.world) for row in rows]
    predicted = np.array([row.predicted for row in rows])
    measured = np.array([row.run.tokens_per_s_per_gpu for row in rows])
    return {
        "rows": len(rows),
        "memory_only": len(outcome.memory_only),
        "ran_out": len(outcome.ran_out),
        "skipped": len(outcome.skipped),
        **{name: value for name, value in asdict(total).items() if name != "rows"},
        "kendall": kendall_by_group(ranks, predicted, measured),
        "coverage_90": coverage(outcome),
        "memory": memory_summary(outcome),
        "groups": groups(outcome),
        "skipped_reasons": [{"id": one.id, "reason": one.reason} for one in outcome.skipped],
        "assumed": [{"id": row.run.id, "what": what} for row in every for what in row.run.assumed],
        "unread": [{"id": row.run.id, "what": what} for row in every for what in row.run.provenance.unread],
        "overrides": overrides(every),
        "per_row": [_row(row) for row in rows],
        "memory_per_row": [_memory_row(row, ran=True) for row in (*rows, *outcome.memory_only)]
        + [_memory_row(row, ran=False) for row in outcome.ran_out],
    }


def overrides(rows: Sequence[ScoredRun]) -> dict[str, Any]:
    """How many runs differ in something from the hardware and stack files that their records name, and in what."""
    counts = Counter(one.key for row in rows for one in row.run.overrides)
    return {
        "runs": sum(bool(row.run.overrides) for row in rows),
        "of": len(rows),
        "by_key": dict(counts.most_common()),
        "per_row": [
            {"id": row.run.id, "key": one.key, "value": one.value, "reason": one.reason}
            for row in rows
            for one in row.run.overrides
        ],
    }


def coverage(outcome: Validation) -> float:
    """Share of runs whose measured rate lies in the 90 % interval of its projection, near-duplicates counted once."""
    return _share(are_inside(outcome), outcome.weights) if outcome.rows else math.nan


def are_inside(outcome: Validation) -> Bools:
    """Whether the measured rate of every run lies in the 90 % interval of its projection."""
    return np.array([row.is_inside for row in outcome.rows], dtype=bool)


def _share(chosen: Bools, weights: Floats) -> float:
    return float((chosen * weights).sum() / weights.sum())


def groups(outcome: Validation) -> list[dict[str, Any]]:
    """Scores per GPU, precision, family, source, stack and their combination, and how often the interval held."""
    errors, weights, inside = outcome.errors, outcome.weights, are_inside(outcome)
    found = []
    for grouping, key in GROUPINGS.items():
        parts = places(map(key, outcome.rows))
        if grouping != "table" or len(parts) >= 2:
            for name, members in parts.items():
                figures = asdict(score(errors[members], weights[members]))
                held = _share(inside[members], weights[members])
                found.append({"grouping": grouping, "group": name, **figures, "coverage_90": held})
    return found


def memory_summary(outcome: Validation) -> dict[str, Any]:
    """Errors of memory on the rows that report it; how often whether a run fits is said wrongly, either way.

    false_oom   share of runs that ran and are said to run out of memory
    false_fit   share of runs that ran out of memory and are said to fit; the rest are OOM or at risk
    """
    rows = (*outcome.rows, *outcome.memory_only)
    weights = duplicate_weights(row.run.duplicate_key for row in rows)
    known = [i for i, row in enumerate(rows) if row.memory is not None]
    errors = np.array([row.memory[0] / row.memory[1] - 1.0 for row in rows if row.memory is not None])
    found = score(errors, weights[known])
    ran, ran_out = [row.verdict for row in rows], [row.verdict for row in outcome.ran_out]
    return {
        **{name: found.__getattribute__(name) for name in ("rows", "median_abs_error", "p90_abs_error", "bias")},
        "ran": len(ran),
        "false_oom": _part(ran, OUT_OF_MEMORY),
        "ran_at_risk": _part(ran, AT_RISK),
        "ran_out": len(ran_out),
        "false_fit": _part(ran_out, FITS),
        "ran_out_at_risk": _part(ran_out, AT_RISK),
    }


def _part(verdicts: Sequence[str], wanted: str) -> float:
    return sum(verdict == wanted for verdict in verdicts) / len(verdicts) if verdicts else float("nan")


def _row(row: ScoredRun) -> dict[str, Any]:
    predicted_bytes, measured_bytes = row.memory or (None, None)
    low, high = row.interval
    return {
        "id": row.run.id,
        "predicted_tokens_per_s_per_gpu": row.predicted,
        "predicted_low": low,
        "predicted_high": high,
        "measured_tokens_per_s_per_gpu": row.run.tokens_per_s_per_gpu,
        "predicted_memory_GB": predicted_bytes and predicted_bytes / GB,
        "measured_memory_GB": measured_bytes and measured_bytes / GB,
    }


def _memory_row(row: ScoredRun, *, ran: bool) -> dict[str, Any]:
    memory = row.projection.memory
    return {
        "id": row.run.id,
        "ran": ran,
        "verdict": row.verdict,
        "fit_probability": row.fit_probability,
        "needed_GB": float(memory.allocated[0] + memory.context[0]) / GB,
        "device_GB": row.run.cluster.accelerator.hbm_bytes / GB,
    }


SMALLEST = 4


def sweeps(rows: Sequence[ScoredRun]) -> list[list[ScoredRun]]:
    """Runs of one job, each configuration once with its fastest run."""
    jobs: dict[tuple[Any, ...], dict[tuple[object, ...], ScoredRun]] = defaultdict(dict)
    for row in rows:
        run = row.run
        found = jobs[run.group, run.gpu, run.cluster.world, run.workload, run.precision]
        before = found.setdefault(run.candidate_key, row)
        if run.tokens_per_s_per_gpu > before.run.tokens_per_s_per_gpu:
            found[run.candidate_key] = row
    return [list(found.values()) for found in jobs.values() if len(found) >= SMALLEST]


def first_choices(found: Sequence[Sequence[ScoredRun]]) -> dict[str, float]:
    """Figures of some sweeps, each sweep counted once; without sweeps, only how many there are.

    A sweep is one source's runs of one job (model, device, number of devices, workload, precision) in at least
    `SMALLEST` configurations; its first choice is the configuration of the highest projected rate.

    bias      projected over measured rate, less 1: of the first choice, and of all runs of its sweep
    regret    what the first choice loses against the fastest measured configuration of its sweep
    coverage  share of measured rates inside the 90 % band of the first choice, and of all runs
    """
    if not found:
        return {"sweeps": 0, "runs": 0}
    chosen = [max(sweep, key=lambda row: row.predicted) for sweep in found]
    fastest = [max(row.run.tokens_per_s_per_gpu for row in sweep) for sweep in found]
    regrets = [1.0 - one.run.tokens_per_s_per_gpu / best for one, best in zip(chosen, fastest, strict=True)]
    return {
        "sweeps": len(found),
        "runs": sum(map(len, found)),
        "bias of the first choice": float(np.mean([row.error for row in chosen])),
        "bias of its sweep": float(np.mean([np.mean([row.error for row in sweep]) for sweep in found])),
        "mean regret": float(np.mean(regrets)),
        "worst regret": max(regrets),
        "first choice in its band": float(np.mean([row.is_inside for row in chosen])),
        "all runs in their bands": float(np.mean([np.mean([row.is_inside for row in sweep]) for sweep in found])),
    }
