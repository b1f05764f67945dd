"""Errors against measured runs, as a nightly run compares them, and which runs moved most."""

import math
from dataclasses import dataclass
from pathlib import Path

from primus_search.runs.published import validated
from primus_search.runs.validate import summary
from primus_search.runs.validate.first_choices import first_choices, sweeps

MOST_MOVED = 5
"""Runs that are named where errors moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors as fractions. `predicted` is tokens/s/GPU per run, for naming what moved.

    first_choice_bias, first_choice_regret   of measured sweeps (`validate.first_choices`); the bias without its sign
    """

    rows: int
    skipped: int
    median_abs_error: float
    p90_abs_error: float
    memory_rows: int
    memory_median_abs_error: float
    memory_p90_abs_error: float
    false_oom: float
    predicted: dict[str, float]
    first_choice_bias: float = 0.0
    first_choice_regret: float = 0.0


ERRORS = ("median_abs_error", "p90_abs_error", "memory_median_abs_error", "memory_p90_abs_error", "false_oom",
          "first_choice_bias", "first_choice_regret")  # fmt: skip


def accuracy_of(runs: Path) -> Accuracy:
    """Project every run of a table and score the errors."""
    outcome = validated(runs)
    found, chosen = summary(outcome), first_choices(sweeps(outcome.rows))
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
        first_choice_bias=_shown(abs(chosen.get("bias of the first choice", 0.0))),
        first_choice_regret=_shown(chosen.get("mean regret", 0.0)),
    )


def moved_most(before: Accuracy, after: Accuracy) -> list[str]:
    """The runs whose projection moved most, in words, largest first."""
    moves = {
        name: after.predicted[name] / rate - 1.0
        for name, rate in before.predicted.items()
        if rate and name in after.predicted and not math.isclose(after.predicted[name], rate, rel_tol=1e-6)
    }
    ordered = sorted(moves.items(), key=lambda item: (-abs(item[1]), item[0]))[:MOST_MOVED]
    return [f"{name} {move:+.1%}" for name, move in ordered]


def _shown(figure: float) -> float:
    """Twelve digits; 0 where there is no row to score."""
    return float(f"{figure:.12g}") if math.isfinite(figure) else 0.0
