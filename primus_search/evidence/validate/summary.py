"""What `validate` prints: scores per group, coverage of intervals, errors of memory, and every row."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.positions import places
from primus_search.base.units import GB
from primus_search.cost.confidence.fit import AT_RISK, FITS, OUT_OF_MEMORY
from primus_search.evidence.validate.score_runs import ScoredRun, Validation
from primus_search.evidence.validate.scores import duplicate_weights, kendall_by_group, score
from primus_search.values.candidates import Bools, Floats

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
    """Errors of memory on the rows that report it; how often a verdict on fit is wrong, either way.

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
