"""Project every run of a table and score what comes out."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.candidates import Bools, Candidates, Floats, joined
from primus_search.cost.memory import fit_probability, fit_verdict
from primus_search.cost.memory.fit import AT_RISK, FITS, OUT_OF_MEMORY
from primus_search.cost.project import Projector
from primus_search.cost.result import Projection
from primus_search.cost.uncertainty import interval, is_doubtful, memory_error
from primus_search.errors import PrimusSearchError
from primus_search.units import GB, GIB
from primus_search.validate.cases import Case, build_case
from primus_search.validate.rows import Run, Skipped, read_runs
from primus_search.validate.score import by_key, duplicate_weights, kendall_by_group, score
from primus_search.validate.spread import spread

WORTH_SPREADING = 64
"""Tables of runs from which on workers are forked: a table takes 10 ms, a worker 50."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """Tokens/s/GPU of a run and its 90 % interval, from numbers and errors of other runs."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One projected run. `refitted`: its rate by numbers fitted without it, which then is what is scored."""

    case: Case
    projection: Projection
    refitted: Refitted | None = None

    @property
    def predicted(self) -> float:
        """Tokens per second and GPU."""
        if self.refitted is not None:
            return self.refitted.rate
        return float(self.projection.tokens_per_s_per_gpu[0])

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the predicted rate."""
        if self.refitted is not None:
            return self.refitted.low, self.refitted.high
        found = interval(self.case.cluster, self.case.model, self.case.candidates.fp8, np.array([self.predicted]))
        return float(found.low[0]), float(found.high[0])

    @property
    def has_rate(self) -> bool:
        """Whether the run publishes tokens/s."""
        return not math.isnan(self.case.measured)

    @property
    def error(self) -> float:
        """Signed relative error of the predicted rate."""
        return self.predicted / self.case.tokens_per_s_per_gpu - 1.0

    @property
    def fit_probability(self) -> float:
        """How surely it runs in device memory."""
        cluster = self.case.cluster
        error = memory_error(cluster.stack, self.case.model)
        return float(fit_probability(self.projection.memory, cluster.accelerator, error=error)[0])

    @property
    def verdict(self) -> str:
        """FITS, AT RISK or OOM."""
        doubtful = is_doubtful(self.case.cluster.stack, self.case.model)
        return fit_verdict(self.fit_probability, float(self.projection.headroom_bytes[0]), is_assumed=doubtful)

    @property
    def memory(self) -> tuple[float, float] | None:
        """Predicted and measured bytes in the view the run's source reports; None where it reports none.

        Buffers of DeepEP are no allocator's: it takes them from the driver (deepseek-ai/DeepEP csrc/deep_ep.cpp).
        """
        measured = self.case.run.number("peak_mem_gb")
        if not measured or measured < 0.0:
            return None
        view, unit = memory_view(self.case.run)
        memory = self.projection.memory
        views = {"allocated": memory.allocated - memory.expert_buffers, "driver": memory.driver}
        predicted = (views | {"reserved": memory.reserved - memory.expert_buffers})[view]
        return float(predicted[0]), measured * unit


def memory_view(run: Run) -> tuple[str, float]:
    """Which memory a source prints (allocated, reserved or driver) and its unit in bytes.

    Sources whose convention is known come first, then the words of the notes. torch counts in GiB, whatever is printed.
    """
    text = f"{run.word('source')} {run.word('notes')}".lower()
    if "simumax" in text or "zero bubble" in text:
        return "allocated", GIB
    if "reserved" in text and "incl. reserved" not in text:
        return "reserved", GIB
    if re.search(r"max_memory_allocated|memory allocated|(?:max|peak) allocated", text):
        return "allocated", GB if re.search(r"bytes ?/ ?1e9|\(gb decimal\)", text) else GIB
    if re.search(r"torchtitan|primus|(?<!or )gib\b|nvidia-smi|rocm-smi", text):
        # Primus divides by 1024 ** 3 and prints "GB": 287.98 for a device of 288 GiB. So does nvidia-smi, in MiB.
        return "driver", GIB
    return "driver", GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Every projected run, and every run that could not be, with the reason.

    memory_only    ran, no rate published; they count for memory and for nothing else
    ran_out        known to run out of memory; they count for whether that is foreseen
    """

    rows: tuple[Row, ...]
    skipped: tuple[tuple[Run, str], ...]
    memory_only: tuple[Row, ...] = ()
    ran_out: tuple[Row, ...] = ()

    def with_rates(self, refitted: Mapping[tuple[str, int], Refitted]) -> "Outcome":
        """The same runs scored by other rates, given by their place; a run without one keeps its own."""
        rows = tuple(replace(row, refitted=refitted.get(row.case.run.place)) for row in self.rows)
        return replace(self, rows=rows)

    @property
    def errors(self) -> Floats:
        return np.array([row.error for row in self.rows])

    @property
    def weights(self) -> Floats:
        return duplicate_weights(row.case.duplicate_key for row in self.rows)


def validate_file(path: Path) -> Outcome:
    """Project every complete run of a CSV."""
    return validate_runs(read_runs(path))


def validate_runs(runs: Sequence[Run]) -> Outcome:
    """Project every run that can be."""
    cases: list[Case] = []
    skipped: list[tuple[Run, str]] = []
    for run in runs:
        try:
            cases.append(build_case(run, may_lack_rate=True))
        except (Skipped, PrimusSearchError, ValueError, ArithmeticError) as reason:
            skipped.append((run, str(reason)))
    every, refused = project_cases(cases)
    skipped = sorted([*skipped, *refused], key=lambda pair: pair[0].place)
    return Outcome(
        rows=tuple(row for row in every if row.has_rate),
        skipped=tuple(skipped),
        memory_only=tuple(row for row in every if not row.has_rate and not row.case.run.ran_out),
        ran_out=tuple(row for row in every if row.case.run.ran_out),
    )


def project_cases(cases: Sequence[Case]) -> tuple[list[Row], list[tuple[Run, str]]]:
    """Cases projected, in their order, and the runs of those that cannot be, with the reason: all cases of one model,
    cluster and workload as one table."""
    tables: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        tables.setdefault(_table_key(case), []).append(case)
    rows: dict[int, Row] = {}
    refused: list[tuple[Run, str]] = []
    members = list(tables.values())
    # The first table here: what it compiles or loads, forked workers inherit.
    answers = [_projected(table) for table in members[:1]] + spread(_projected, members[1:], at_least=WORTH_SPREADING)
    for case, answer in zip(chain(*members), chain(*answers), strict=True):
        if isinstance(answer, Projection):
            rows[id(case)] = Row(case=case, projection=answer)
        else:
            refused.append((case.run, answer))
    return [rows[id(case)] for case in cases if id(case) in rows], refused


def _table_key(case: Case) -> tuple[object, ...]:
    cluster = case.cluster
    return (case.model, cluster.accelerator.name, cluster.network, cluster.stack, cluster.num_nodes, case.workload)


def _projected(cases: Sequence[Case]) -> list[Projection | str]:
    """Projections of cases that differ in their candidate only, or why there is none; runs repeated on another day or
    release are one candidate. Where the table cannot be projected every case is tried alone, to name the one."""
    first = cases[0]
    numbers: dict[tuple[object, ...], int] = {}
    distinct: list[Candidates] = []
    for case in cases:
        key = _candidate_key(case)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(case.candidates)
    try:
        projection = Projector(first.model, first.cluster, first.workload).project(joined(distinct))
    except (PrimusSearchError, ValueError, ArithmeticError) as reason:
        return [str(reason)] if len(cases) == 1 else [answer for case in cases for answer in _projected([case])]
    return [projection.take(np.array([numbers[_candidate_key(case)]])) for case in cases]


def _candidate_key(case: Case) -> tuple[object, ...]:
    c = case.candidates
    return (c.schedules, c.layouts, *(column.item() for column in c.columns().values()))


def _family(row: Row) -> str:
    return "moe" if row.case.model.is_moe else "dense"


GROUPINGS: dict[str, Callable[[Row], str]] = {
    "table": lambda row: Path(row.case.run.table).name,
    "gpu": lambda row: row.case.run.word("gpu"),
    "precision": lambda row: row.case.run.word("precision"),
    "family": _family,
    "source": lambda row: row.case.run.word("source"),
    "stack x family": lambda row: f"{row.case.cluster.stack.name} {_family(row)}",
    "gpu x precision x family": lambda row: " ".join(
        (row.case.run.word("gpu"), row.case.run.word("precision"), _family(row))
    ),
}
"""How runs are told apart. Stack and family are the regime that error bands are of."""


def summary(outcome: Outcome) -> dict[str, Any]:
    """Everything `validate --json` prints."""
    rows, errors, weights = outcome.rows, outcome.errors, outcome.weights
    total = score(errors, weights)
    runs = [row.case.run for row in rows]
    ranks = [(*(r.word(w) for w in ("source", "model", "gpu")), r.number("gpus")) for r in runs]
    predicted = np.array([row.predicted for row in rows])
    measured = np.array([row.case.tokens_per_s_per_gpu for row in rows])
    return {
        "rows": len(rows),
        "memory_only": len(outcome.memory_only),
        "ran_out": len(outcome.ran_out),
        "skipped": len(outcome.skipped),
        "median_abs_error": total.median_abs_error,
        "p90_abs_error": total.p90_abs_error,
        "worst_abs_error": total.worst_abs_error,
        "bias": total.bias,
        "kendall": kendall_by_group(ranks, predicted, measured),
        "coverage_90": coverage(outcome),
        "memory": memory_summary(outcome),
        "groups": groups(outcome),
        "skipped_reasons": [{"id": run.id, "reason": reason} for run, reason in outcome.skipped],
        "assumed": [
            {"id": row.case.run.id, "what": what}
            for row in (*rows, *outcome.memory_only, *outcome.ran_out)
            for what in row.case.assumed
        ],
        "per_row": [_row(row) for row in rows],
        "memory_per_row": [_memory_row(row, ran=True) for row in (*rows, *outcome.memory_only)]
        + [_memory_row(row, ran=False) for row in outcome.ran_out],
    }


def coverage(outcome: Outcome) -> float:
    """Share of runs whose measured rate lies in the 90 % interval of its projection, near-duplicates counted once."""
    return _share(are_inside(outcome), outcome.weights) if outcome.rows else float("nan")


def are_inside(outcome: Outcome) -> Bools:
    """Whether the measured rate of every run lies in the 90 % interval of its projection."""
    ends = [row.interval for row in outcome.rows]
    inside = [low <= row.case.measured <= high for row, (low, high) in zip(outcome.rows, ends, strict=True)]
    return np.array(inside, dtype=bool)


def _share(chosen: Bools, weights: Floats) -> float:
    return float((chosen * weights).sum() / weights.sum())


def groups(outcome: Outcome) -> list[dict[str, Any]]:
    """Scores per GPU, precision, family, source, stack and their combination, and how often the interval held."""
    errors, weights, inside = outcome.errors, outcome.weights, are_inside(outcome)
    found = []
    for grouping, key in GROUPINGS.items():
        parts = by_key([key(row) for row in outcome.rows], lambda x: x)
        if grouping == "table" and len(parts) < 2:
            continue
        for name, members in parts.items():
            scores = asdict(score(errors[members], weights[members]))
            held = _share(inside[members], weights[members])
            found.append({"grouping": grouping, "group": name, **scores, "coverage_90": held})
    return found


def memory_summary(outcome: Outcome) -> dict[str, Any]:
    """Errors of memory on the rows that report it; how often whether a run fits is said wrongly, either way.

    false_oom   share of runs that ran and are said to run out of memory
    false_fit   share of runs that ran out of memory and are said to fit; the rest are OOM or at risk
    """
    rows = (*outcome.rows, *outcome.memory_only)
    pairs = [row.memory for row in rows]
    weights = duplicate_weights(row.case.duplicate_key for row in rows)
    known = [i for i, pair in enumerate(pairs) if pair is not None]
    errors = np.array([p[0] / p[1] - 1.0 for p in pairs if p is not None])
    found = score(errors, weights[known])
    ran, ran_out = [row.verdict for row in rows], [row.verdict for row in outcome.ran_out]
    return {
        "rows": found.rows,
        "median_abs_error": found.median_abs_error,
        "p90_abs_error": found.p90_abs_error,
        "bias": found.bias,
        "ran": len(ran),
        "false_oom": _part(ran, OUT_OF_MEMORY),
        "ran_at_risk": _part(ran, AT_RISK),
        "ran_out": len(ran_out),
        "false_fit": _part(ran_out, FITS),
        "ran_out_at_risk": _part(ran_out, AT_RISK),
    }


def _part(verdicts: Sequence[str], wanted: str) -> float:
    return sum(verdict == wanted for verdict in verdicts) / len(verdicts) if verdicts else float("nan")


def _row(row: Row) -> dict[str, Any]:
    memory = row.memory
    low, high = row.interval
    return {
        "id": row.case.run.id,
        "predicted_tokens_per_s_per_gpu": row.predicted,
        "predicted_low": low,
        "predicted_high": high,
        "measured_tokens_per_s_per_gpu": row.case.tokens_per_s_per_gpu,
        "predicted_memory_GB": memory[0] / GB if memory else None,
        "measured_memory_GB": memory[1] / GB if memory else None,
    }


def _memory_row(row: Row, *, ran: bool) -> dict[str, Any]:
    memory = row.projection.memory
    return {
        "id": row.case.run.id,
        "ran": ran,
        "verdict": row.verdict,
        "fit_probability": row.fit_probability,
        "needed_GB": float(memory.allocated[0] + memory.context[0]) / GB,
        "device_GB": row.case.cluster.accelerator.hbm_bytes / GB,
    }
