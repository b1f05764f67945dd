"""The content of `report.html` as plain data, from the files of a run folder and, where its inputs are still the same,
from projecting the winner again.

Columns of the scatter travel as base64 of typed arrays: 100,000 points with twenty axes stay below 4 MB of text.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.analysis.explanation import Explained
from primus_search.analysis.kept_rows import FIGURES, Kept
from primus_search.candidates import COLUMN_NAMES, Candidates
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.memory import fit_verdict
from primus_search.cost.projection import Memory, Projection, Step
from primus_search.errors import InputError
from primus_search.exploration.result import PROJECTED
from primus_search.exploration.run_folder.candidates_file import knobs_of
from primus_search.exploration.run_folder.saved_run import SavedRun, is_of
from primus_search.exploration.trials import table_of, values_of
from primus_search.export import launch_files
from primus_search.export.job import LaunchJob
from primus_search.report.labels import short
from primus_search.schedule import Timeline

TABLE_ROWS = 100
MOST_POINTS = 100_000
EXPORTED = 5
"""Ranks whose launch files are in the page."""
RANKED_MEMORY = 12
"""Rows whose memory is shown rank by rank; of the others the worst rank."""
MOST_PASSES = 24_000
"""Passes of a pipeline that are drawn; longer steps show their beginning."""
SAME = 1e-9
"""Figures of two files closer than this are the same, written with another number of digits."""


def content(run: SavedRun) -> dict[str, Any]:
    """Everything the page shows."""
    facts = run.facts
    kept = Kept.open(run.path, _best_cluster(run), is_exact=bool(facts["exact"]))
    ties = sum(bool(row["ties_with_best"]) for row in run.ranking)
    data: dict[str, Any] = {
        "facts": {name: facts[name] for name in QUESTION if name in facts},
        "workload": facts["workload"],
        "winner": {"row": dict(run.ranking[0]), "short": short(run.ranking[0]), "ties": ties, "tie": TIE},
        "funnel": {"raw": facts["raw"], "legal": facts["legal"], "feasible": facts["feasible"],
                   "stages": facts["stages"], "removed": [r for r in facts["removed"] if r["rows"]]},
        "points": _points(kept),
        "table": _table(run.ranking[:TABLE_ROWS], kept),
        "frontier": _table(run.frontier, kept),
        "versions": facts["versions"],
        "notes": list(facts["notes"]),
    }  # fmt: skip
    try:
        _add_projected(data, Explained(run, 1))
    except InputError as error:
        data["notes"].append(f"Gantt, knobs and launch files are left out: {error}")
    return data


QUESTION = (
    "space", "model", "hardware", "stack", "framework", "nodes", "gpus", "objective", "method", "method_reason",
    "exact", "complete", "memory_margin", "seed", "finished", "engine", "workers", "seconds", "source",
)  # fmt: skip


def _best_cluster(run: SavedRun) -> int:
    """Which of the run's clusters the best row is for."""
    best = run.ranking[0]
    told = [{**one["labels"], "nodes": one["nodes"]} for one in run.facts["clusters"]]
    return [is_of(best, labels) for labels in told].index(True)


# --- tables ----------------------------------------------------------------------------------------------------------


def _points(kept: Kept) -> dict[str, Any]:
    """Memory, speed and the axes that differ, of every kept row (evenly thinned above `MOST_POINTS`), fastest first."""
    rows = np.arange(len(kept))
    if len(kept) > MOST_POINTS:
        rows = np.unique(np.linspace(0, len(kept) - 1, MOST_POINTS).astype(np.int64))
    axes, fixed = [], {}
    for name in COLUMN_NAMES:
        codes, values = kept.codes(name)
        used = np.unique(codes)
        if len(used) == 1:
            fixed[name] = values[int(used[0])]
        elif len(used):
            place = np.zeros(len(values), dtype=np.int64)
            place[used] = np.arange(len(used))
            axes.append({"name": name, "values": [values[i] for i in used], "codes": _packed(place[codes[rows]], "u")})
    return {
        "count": len(rows),
        "of": len(kept),
        "memory": _packed(np.asarray(kept.column("memory_bytes"))[rows], "f"),
        "speed": _packed(kept.speed[rows], "f"),
        "axes": axes,
        "fixed": fixed,
    }


def _packed(values: NDArray[Any], kind: str) -> dict[str, str]:
    """A column as base64 of little-endian float32, or of the smallest unsigned integers that hold it."""
    if kind == "f":
        dtype, name = "<f4", "f4"
    else:
        dtype, name = ("u1", "u1") if values.size == 0 or values.max() < 256 else ("<u2", "u2")
    return {"type": name, "base64": base64.b64encode(values.astype(dtype).tobytes()).decode()}


def _table(rows: Sequence[Mapping[str, Any]], kept: Kept) -> dict[str, Any]:
    """Rows with their short names, and the parts of step and memory where the run kept them."""
    table: dict[str, Any] = {
        "axes": list(COLUMN_NAMES),
        "rows": [{**{n: row[n] for n in (*COLUMN_NAMES, *FIGURES)}, "short": short(row),
                  "memory_verdict": fit_verdict(row["fit_probability"], row["headroom_bytes"]),
                  "time_evidence": row["time_evidence"], "memory_evidence": row["memory_evidence"]}
                 for row in rows],
    }  # fmt: skip
    step, memory = kept.parts("step_", "_s"), kept.parts("memory_", "_bytes")
    for row in table["rows"]:
        i = kept.places.get(knobs_of(row))
        # A run over several clusters ranks them together; the kept rows are those of the winner's.
        if i is not None and abs(kept.speed[i] / row["tokens_per_s_per_gpu"] - 1.0) < SAME:
            row["step"] = {name: _rounded(column[i]) for name, column in step.items()}
            row["memory"] = {name: _rounded(column[i]) for name, column in memory.items()}
    return table


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


# --- what needs the inputs of the run -------------------------------------------------------------------------------


def _add_projected(data: dict[str, Any], e: Explained) -> None:
    """Parts of the frontier, memory rank by rank, the winner's Gantt, what each knob gives, launch files."""
    run, space = e.run, e.space
    data["hbm"] = {"bytes": e.choice.cluster.accelerator.hbm_bytes, "margin": space.search.memory_margin}
    if len(space.clusters) == 1:
        frontier = [values_of(Candidates.from_words({n: row[n] for n in COLUMN_NAMES})) for row in run.frontier]
        projection = e.judge.projector.project(table_of(frontier))
        for i, row in enumerate(data["frontier"]["rows"]):
            if "step" not in row and row["time_evidence"] == row["memory_evidence"] == PROJECTED:
                _add_parts(row, projection, i)
    for rank, row in enumerate(data["table"]["rows"][:RANKED_MEMORY], start=1):
        memory = Explained(run, rank).memory_by_rank
        row["memory_by_rank"] = {f.name: [_rounded(v) for v in memory.__getattribute__(f.name)] for f in fields(Memory)}
    data["coverage"] = [
        {"part": part.part, "is_calibrated": part.is_calibrated, "why": part.why} for part in e.coverage
    ]
    data["gantt"] = None if e.timeline is None else _gantt(e.timeline)
    data["traffic"] = [
        {"operation": s.operation, "part": s.part, "message_bytes": s.message_bytes, "count": s.count,
         "seconds": s.seconds, "exposed_s": s.exposed_s} for s in e.traffic
    ]  # fmt: skip
    data["knobs"] = [
        {
            "knob": one.knob,
            "used": one.used,
            "off": one.off,
            "gain": one.gain,
            "tuned_gain": one.tuned_gain,
            "fits": one.alone.fits,
            "followed": {name: one.alone.changes[name] for name in one.alone.followed},
            "rule": one.alone.broken[0].reason if one.gain is None else None,
        }
        for one in e.ablations
    ]
    data["advice"] = [
        {"topic": one.topic, "finding": one.finding, "best": one.best and one.best.what,
         "gain": one.best and one.best.gain, "is_in_space": one.best and one.best.is_in_space}
        for one in e.advice
    ]  # fmt: skip
    exports = [_exports(run, rank) for rank in range(1, min(EXPORTED, len(run.ranking)) + 1)]
    data["exports"] = [one for one in exports if one["files"]]


def _add_parts(row: dict[str, Any], p: Projection, i: int) -> None:
    row["step"] = {f.name: _rounded(p.step.__getattribute__(f.name)[i]) for f in fields(Step)}
    row["memory"] = {f.name: _rounded(p.memory.__getattribute__(f.name)[i]) for f in fields(Memory)}


def _exports(run: SavedRun, rank: int) -> dict[str, Any]:
    """The launch files of a rank by their names; none where no framework was searched for."""
    space, choice = run.space, run.cluster(rank)
    job = LaunchJob(
        candidate=run.candidate(rank),
        model=space.model,
        cluster=choice.cluster,
        workload=space.workload,
        framework=choice.framework,
    )
    files = {} if choice.framework.is_any else launch_files(job).texts
    return {"rank": rank, "files": {name: {"name": name, "text": text} for name, text in files.items()}}


def _gantt(line: Timeline) -> dict[str, Any]:
    """Passes with rank, kind, virtual stage, micro-batch, start and end in 1/100,000 of the makespan."""
    table, scale = line.table, 1e5 / line.makespan
    rows = np.argsort(line.start, kind="stable")[:MOST_PASSES]
    ranks = np.repeat(np.arange(table.stages), np.diff(table.offsets))
    return {
        "ranks": table.stages,
        "makespan_s": line.makespan,
        "bubble_ratio": line.bubble_ratio,
        "shown": len(rows),
        "of": len(table),
        "schedule": table.name,
        "rank": ranks[rows].tolist(),
        "kind": table.kind[rows].tolist(),
        "stage": table.stage[rows].tolist(),
        "micro_batch": table.micro_batch[rows].tolist(),
        "start": np.round(line.start[rows] * scale).astype(int).tolist(),
        "end": np.round(line.end[rows] * scale).astype(int).tolist(),
    }
