"""Errors against measured runs, as a nightly run compares them, and which runs moved most."""

import math
from dataclasses import dataclass
from pathlib import Path

from primus_search.lab.published import validated
from primus_search.validate import summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors as fractions. `predicted` is tokens/s/GPU per run, for naming what moved."""

    rows: int
    skipped: int
    median_abs_error: float
    p90_abs_error: float
    memory_rows: int
    memory_median_abs_error: float
    memory_p90_abs_error: float
    false_oom: float
    predicted: dict[str, float]


ERRORS = ("median_abs_error", "p90_abs_error", "memory_median_abs_error", "memory_p90_abs_error", "false_oom")


def accuracy_of(runs: Path) -> Accuracy:
    """Project every run of a table and score the errors."""
    found = summary(validated(runs))
    memory = found["memory"]
    return Accuracy(
        rows=found["rows"],
        skipped=found["skipped"],
        median_abs_error=_shown(found["median_abs_error"]),
        p90_abs_error=_shown(found["p90_abs_error"]),
        memory_rows=memory["rows"],
        memory_median_abs_error=_shown(memory["median_abs_error"]),
        memory_p90_abs_error=_shown(memory["p90_abs_error"]),
        false_oom=_shown(memory["false_oom"]),
        predicted={row["id"]: _shown(row["predicted_tokens_per_s_per_gpu"]) for row in found["per_row"]},
    )


def moved_most(before: Accuracy, after: Accuracy, most: int = 5) -> list[str]:
    """The runs whose projection moved most, in words, largest first."""
    moves = {
        name: after.predicted[name] / rate - 1.0
        for name, rate in before.predicted.items()
        if rate and name in after.predicted and not math.isclose(after.predicted[name], rate, rel_tol=1e-6)
    }
    ordered = sorted(moves.items(), key=lambda item: (-abs(item[1]), item[0]))[:most]
    return [f"{name} {move:+.1%}" for name, move in ordered]


def _shown(figure: float) -> float:
    """Twelve digits; 0 where there is no row to score."""
    return float(f"{figure:.12g}") if math.isfinite(figure) else 0.0
