"""Project every run of a table and score what comes out."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.candidates import Candidates, Floats, joined
from primus_search.cost.project import Projector
from primus_search.cost.result import Projection
from primus_search.cost.uncertainty import interval
from primus_search.errors import PrimusSearchError
from primus_search.units import GB, GIB
from primus_search.validate.cases import Case, build_case
from primus_search.validate.rows import Run, Skipped, read_runs
from primus_search.validate.score import by_key, duplicate_weights, kendall_by_group, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One projected run."""

    case: Case
    projection: Projection

    @property
    def predicted(self) -> float:
        """Tokens per second and GPU."""
        return float(self.projection.tokens_per_s_per_gpu[0])

    @property
    def has_rate(self) -> bool:
        """Whether the run publishes tokens/s."""
        return not math.isnan(self.case.measured)

    @property
    def error(self) -> float:
        """Signed relative error of the predicted rate."""
        return self.predicted / self.case.tokens_per_s_per_gpu - 1.0

    @property
    def memory(self) -> tuple[float, float] | None:
        """Predicted and measured bytes in the view the run's source reports; None where it reports none."""
        measured = self.case.run.number("peak_mem_gb")
        if not measured or measured < 0.0:
            return None
        view, unit = memory_view(self.case.run)
        memory = self.projection.memory
        predicted = {"allocated": memory.allocated, "reserved": memory.reserved, "driver": memory.driver}[view]
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
    if re.search(r"max_memory_allocated|memory allocated|max allocated", text):
        return "allocated", GIB
    if re.search(r"torchtitan|primus|gib\b|nvidia-smi|rocm-smi", text):
        # Primus divides by 1024 ** 3 and prints "GB": 287.98 for a device of 288 GiB. So does nvidia-smi, in MiB.
        return "driver", GIB
    return "driver", GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Every projected run, and every run that could not be, with the reason.

    memory_only: runs that publish their memory and no rate; they count for memory and for nothing else.
    """

    rows: tuple[Row, ...]
    skipped: tuple[tuple[Run, str], ...]
    memory_only: tuple[Row, ...] = ()

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
    """Project every run that can be: all runs of one model, cluster and workload as one table."""
    cases: list[Case] = []
    skipped: list[tuple[Run, str]] = []
    for run in runs:
        try:
            cases.append(build_case(run, may_lack_rate=True))
        except (Skipped, PrimusSearchError, ValueError, ArithmeticError) as reason:
            skipped.append((run, str(reason)))
    tables: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        tables.setdefault(_table_key(case), []).append(case)
    rows: dict[int, Row] = {}
    for members in tables.values():
        found, failed = _projected(members)
        rows |= found
        skipped += failed
    # In the order of the file, whichever table a run went into.
    skipped.sort(key=lambda pair: pair[0].line)
    every = [rows[id(case)] for case in cases if id(case) in rows]
    return Outcome(
        rows=tuple(row for row in every if row.has_rate),
        skipped=tuple(skipped),
        memory_only=tuple(row for row in every if not row.has_rate),
    )


def _table_key(case: Case) -> tuple[object, ...]:
    cluster = case.cluster
    return (case.model, cluster.accelerator.name, cluster.network, cluster.stack, cluster.num_nodes, case.workload)


def _projected(cases: Sequence[Case]) -> tuple[dict[int, Row], list[tuple[Run, str]]]:
    """Rows of cases that differ in their candidate only, by identity of the case; runs repeated on another day or
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
        if len(cases) == 1:
            return {}, [(first.run, str(reason))]
        rows: dict[int, Row] = {}
        failed: list[tuple[Run, str]] = []
        for case in cases:
            mine, wrong = _projected([case])
            rows |= mine
            failed += wrong
        return rows, failed
    places = (np.array([numbers[_candidate_key(case)]]) for case in cases)
    return {
        id(case): Row(case=case, projection=projection.take(at)) for case, at in zip(cases, places, strict=True)
    }, []


def _candidate_key(case: Case) -> tuple[object, ...]:
    c = case.candidates
    return (c.schedules, c.layouts, *(column.item() for column in c.columns().values()))


GROUPINGS: dict[str, Callable[[Run], str]] = {
    "gpu": lambda r: r.word("gpu"),
    "precision": lambda r: r.word("precision"),
    "family": lambda r: "moe" if (r.whole("num_experts", 0) or 0) > 1 else "dense",
    "source": lambda r: r.word("source"),
    "gpu x precision x family": lambda r: " ".join(
        (r.word("gpu"), r.word("precision"), "moe" if (r.whole("num_experts", 0) or 0) > 1 else "dense")
    ),
}


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
            {"id": row.case.run.id, "what": what} for row in (*rows, *outcome.memory_only) for what in row.case.assumed
        ],
        "per_row": [_row(row) for row in rows],
    }


def coverage(outcome: Outcome) -> float:
    """Share of runs whose measured rate lies in the 90 % interval of its projection, near-duplicates counted once."""
    if not outcome.rows:
        return float("nan")
    inside = []
    for row in outcome.rows:
        found = interval(row.case.cluster, row.case.model, np.array([row.predicted]))
        inside.append(found.low[0] <= row.case.tokens_per_s_per_gpu <= found.high[0])
    weights = outcome.weights
    return float((np.array(inside) * weights).sum() / weights.sum())


def groups(outcome: Outcome) -> list[dict[str, Any]]:
    """Scores per GPU, precision, family, source and their combination."""
    errors, weights = outcome.errors, outcome.weights
    runs = [row.case.run for row in outcome.rows]
    found = []
    for grouping, key in GROUPINGS.items():
        for name, members in by_key([key(run) for run in runs], lambda x: x).items():
            found.append({"grouping": grouping, "group": name, **asdict(score(errors[members], weights[members]))})
    return found


def memory_summary(outcome: Outcome) -> dict[str, Any]:
    """Errors of memory on the rows that report it, and the share of runs that ran but are said not to fit."""
    rows = (*outcome.rows, *outcome.memory_only)
    pairs = [row.memory for row in rows]
    weights = duplicate_weights(row.case.duplicate_key for row in rows)
    known = [i for i, pair in enumerate(pairs) if pair is not None]
    errors = np.array([p[0] / p[1] - 1.0 for p in pairs if p is not None])
    found = score(errors, weights[known])
    misses = [not bool(row.projection.fits[0]) for row in rows]
    return {
        "rows": found.rows,
        "median_abs_error": found.median_abs_error,
        "p90_abs_error": found.p90_abs_error,
        "bias": found.bias,
        "false_oom": float(np.mean(misses)) if misses else float("nan"),
    }


def _row(row: Row) -> dict[str, Any]:
    memory = row.memory
    return {
        "id": row.case.run.id,
        "predicted_tokens_per_s_per_gpu": row.predicted,
        "measured_tokens_per_s_per_gpu": row.case.tokens_per_s_per_gpu,
        "predicted_memory_GB": memory[0] / GB if memory else None,
        "measured_memory_GB": memory[1] / GB if memory else None,
    }
