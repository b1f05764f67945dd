"""Errors against measured runs, and how much work a projection is: what a night compares besides its searches."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from primus_search.cost.project import Projector
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.first_choices import first_choices, sweeps
from primus_search.evidence.validate.summary import summary
from primus_search.space import Enumerator, Space

MOST_MOVED = 5
"""Runs that are named where errors moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Scored runs by count, errors as fractions, and tokens/s/GPU per run, for naming what moved."""

    rows: dict[str, int]
    errors: dict[str, float]
    predicted: dict[str, float]


def accuracy_of(runs: Path) -> Accuracy:
    """Project every run of a table and score the errors, those of first choices of measured sweeps included."""
    outcome = validated(runs)
    found, chosen = summary(outcome), first_choices(sweeps(outcome.rows))
    memory = found["memory"]
    errors = {
        "median_abs_error": found["median_abs_error"],
        "p90_abs_error": found["p90_abs_error"],
        "memory_median_abs_error": memory["median_abs_error"],
        "memory_p90_abs_error": memory["p90_abs_error"],
        "false_oom": memory["false_oom"],
        "first_choice_bias": abs(chosen.get("bias of the first choice", 0.0)),
        "first_choice_regret": chosen.get("mean regret", 0.0),
    }
    return Accuracy(
        rows={"rows": found["rows"], "memory_rows": memory["rows"]},
        errors={name: _shown(error) for name, error in errors.items()},
        predicted={row["id"]: _shown(row["predicted_tokens_per_s_per_gpu"]) for row in found["per_row"]},
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


# --- how much work a projection is: the same on every machine, however busy it is -----------------------------------


def work_of(space: Space, rows: int) -> int:
    """Instructions of Python that projecting rows of a space takes; those of compiled code do not count."""
    cluster, enumerator = space.clusters[0], Enumerator(space, space.clusters[0])
    size = min(enumerator.size, rows)
    candidates = enumerator.rows(np.arange(size, dtype=np.int64) * max(enumerator.size // size, 1))

    def project() -> None:
        Projector(space.job_on(cluster)).project(candidates)

    project()  # the first call compiles and fills caches that every later one finds
    return _instructions(project)


def _instructions(work: Callable[[], object]) -> int:
    """Bytecode instructions that a call executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
