"""The figures a nightly run compares: best candidate, frontier and counts per cluster; errors against runs; work."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from primus_search.analysis.labels import short
from primus_search.base.errors import InputError, NothingFits
from primus_search.base.guards.interrupts import Interrupted
from primus_search.cost.project import Projector
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.first_choices import first_choices, sweeps
from primus_search.evidence.validate.summary import summary
from primus_search.exploration import ClusterResult, Options, run_search
from primus_search.exploration.exhaustive.shortlist import dominated_area
from primus_search.exploration.expected import RATE
from primus_search.space import ClusterChoice, Enumerator, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates

KEEP = 64
"""Rows kept of each search; only the best row and the frontier are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """What was found on one cluster. Rates to expect, memory in bytes; `knobs` is the best candidate, axis by axis.

    best       the candidate in one short line        parts  seconds and bytes of the best, part by part
    frontier   (memory bytes, expected tokens/s/GPU)  removed  rows that each rule removed
    reference_bytes  device memory: the frontier is integrated up to there
    """

    cluster: str
    best: str
    reference_bytes: float
    knobs: dict[str, Any] = field(default_factory=dict)
    tokens_per_s_per_gpu: float = 0.0
    tokens_per_s: float = 0.0
    memory_bytes: float = 0.0
    frontier: tuple[tuple[float, float], ...] = ()
    legal: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return bool(self.knobs)

    @property
    def hypervolume(self) -> float:
        return hypervolume(self.frontier, self.reference_bytes)


def hypervolume(frontier: tuple[tuple[float, float], ...], reference_bytes: float) -> float:
    """Mean of the best tokens/s/GPU over every memory budget from 0 to `reference_bytes`.

    The usual hypervolume of the frontier (tokens/s/GPU x bytes above the origin), divided by the reference, so that it
    reads as a rate.
    """
    memory, rate = (np.array([point[axis] for point in frontier]) for axis in (0, 1))
    return dominated_area(memory, rate, reference_bytes) / reference_bytes


def figures_of(space: Space) -> tuple[ClusterFigures, ...]:
    """Search a space in this process and note what each of its clusters gave; nothing depends on time or machine."""
    try:
        result = run_search(space, Options(engine="local", workers=1, keep=KEEP))
    except (NothingFits, InputError) as error:
        # Tonight's answer may be that nothing is legal or fits any more: a figure to compare, not an end of the night.
        return tuple(_figures(space, choice, why=str(error)) for choice in space.clusters)
    if result.interrupted_by:
        raise Interrupted(result.interrupted_by)
    return tuple(_figures(space, found.choice, found) for found in result.clusters)


def _figures(
    space: Space, choice: ClusterChoice, found: ClusterResult | None = None, why: str = "nothing fits"
) -> ClusterFigures:
    cluster = choice.cluster
    labels = [f"{key}={value}" for key, value in choice.labels if key != "nodes"]
    nodes = f"{cluster.num_nodes} node{'s' if cluster.num_nodes > 1 else ''} of {cluster.accelerator.name}"
    facts: dict[str, Any] = {"cluster": " ".join([nodes, *labels]), "reference_bytes": cluster.accelerator.hbm_bytes}
    if found is not None:
        facts |= {"legal": found.legal, "removed": dict(found.removed)}
    if found is None or not len(found.ranking):
        return ClusterFigures(**facts, best=why.splitlines()[0])
    row = found.ranking.row(0)
    return ClusterFigures(
        **facts,
        tokens_per_s_per_gpu=row[RATE],
        tokens_per_s=row[RATE] * cluster.world,
        memory_bytes=row["memory_bytes"],
        best=short(row),
        knobs={name: row[name] for name in COLUMN_NAMES},
        frontier=tuple(sorted((one["memory_bytes"], one[RATE]) for one in found.frontier.rows())),
        parts=parts(space, choice, found.ranking.candidates.take(slice(0, 1))),
    )


def parts(space: Space, choice: ClusterChoice, candidate: Candidates) -> dict[str, float]:
    """Seconds and bytes of one candidate by part, projected alone."""
    projection = Projector(space.job_on(choice), memory_margin=space.search.memory_margin).project(candidate)
    records = {"step": projection.step, "memory": projection.memory}
    return {
        f"{kind}.{f.name}": _shown(float(record.__getattribute__(f.name)[0]))
        for kind, record in records.items()
        for f in fields(record)
    }


# --- errors against measured runs, as a nightly run compares them, and which runs moved most -----------------------


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
