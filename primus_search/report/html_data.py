"""What `report.html` shows as plain data, from the files of a run folder and, where its inputs can still be read, from
projecting its best rows again.

    content(run)["rows"]   the candidates as packed columns (`html_columns`); the rest is JSON and text
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from primus_search.analysis.explanation import Explained
from primus_search.analysis.kept_rows import Kept
from primus_search.base.errors import InputError
from primus_search.cost.memory import memories_by_rank
from primus_search.cost.projection import Memory, Step
from primus_search.exploration.result import PROJECTED, is_of
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.export import Inexpressible, launch_files
from primus_search.export.job import LaunchJob
from primus_search.report.html_columns import PageRows
from primus_search.schedule import Timeline
from primus_search.values.candidates import COLUMN_NAMES, Candidates

EXPORTED = 5
"""Best ranks whose launch files are in the page, beside those of the choices."""
RANKED_MEMORY = 12
"""Ranks whose memory is shown pipeline rank by pipeline rank, beside the choices; of others the worst rank."""
MOST_PASSES = 24_000
"""Passes of a pipeline that are drawn; longer steps show their beginning."""


def content(run: SavedRun) -> dict[str, Any]:
    """Everything that the page shows."""
    facts = run.facts
    cluster, labels = _best_cluster(run)
    kept = Kept.open(run.path, cluster, is_exact=bool(facts["exact"]))
    ranking = {rank: row for rank, row in enumerate(run.ranking, start=1) if is_of(row, labels)}
    rows = PageRows(kept, ranking, [row for row in run.frontier if is_of(row, labels)])
    chosen = [choice.rank for choice in run.answer.choices]
    data: dict[str, Any] = {
        "facts": {name: facts[name] for name in QUESTION if name in facts},
        "ties": sum(bool(row["ties_with_best"]) for row in run.ranking),
        "kept": len(kept),
        "notes": list(facts["notes"]),
        "coverage": (),
        "gantt": None,
        "ablations": (),
        "advice": (),
    }
    try:
        _add_projected(data, rows, Explained(run, 1, kept), chosen)
    except InputError as error:
        data["notes"].append(f"Gantt, knobs and launch files are left out: {error}")
    return data | {"rows": rows.packed()}


QUESTION = (
    "space", "model", "hardware", "stack", "framework", "nodes", "gpus", "objective", "method", "method_reason",
    "exact", "complete", "memory_margin", "seed", "finished", "engine", "workers", "seconds", "source",
)  # fmt: skip


def _best_cluster(run: SavedRun) -> tuple[int, Mapping[str, Any]]:
    """Which of the run's clusters the best row is for, and what tells it from the others."""
    best = run.ranking[0]
    told = [{**one["labels"], "nodes": one["nodes"]} for one in run.facts["clusters"]]
    number = [is_of(best, labels) for labels in told].index(True)
    return number, told[number]


# --- what needs the inputs of the run -------------------------------------------------------------------------------


def _add_projected(data: dict[str, Any], rows: PageRows, e: Explained, chosen: Sequence[int]) -> None:
    """Parts of rows that were not kept, memory by pipeline rank, the winner's Gantt, what each knob gives, files."""
    run, accelerator = e.run, e.choice.cluster.accelerator
    data["limit"] = {
        "device_bytes": accelerator.hbm_bytes,
        "usable_bytes": accelerator.hbm_bytes * (1.0 - e.space.search.memory_margin),
    }
    _add_parts(rows, e)
    mine = [rank for rank in chosen if run.cluster(rank) == e.choice]
    shown = sorted({*mine, *range(1, min(RANKED_MEMORY, len(run.ranking)) + 1)})
    data["memory_by_rank"] = _memory_by_rank(run, shown)
    data["coverage"] = e.coverage
    data["gantt"] = None if e.timeline is None else _gantt(e.timeline)
    data["ablations"] = e.ablations
    data["advice"] = e.advice
    ranks = sorted({*mine, *range(1, min(EXPORTED, len(run.ranking)) + 1)})
    data["exports"] = {rank: files for rank in ranks if (files := _files(run, rank))}


def _add_parts(rows: PageRows, e: Explained) -> None:
    """Break-downs of rows of the frontier that the run did not keep and nobody measured."""
    added = [row["time_evidence"] == row["memory_evidence"] == PROJECTED for row in rows.added]
    if not any(added):
        return
    candidates = Candidates.from_rows([{name: row[name] for name in COLUMN_NAMES} for row in rows.added])
    projection = e.evaluator.projector.project(candidates)
    rows.fill(
        {f.name: np.where(added, projection.step.__getattribute__(f.name), np.nan) for f in fields(Step)},
        {f.name: np.where(added, projection.memory.__getattribute__(f.name), np.nan) for f in fields(Memory)},
    )


def _memory_by_rank(run: SavedRun, shown: Sequence[int]) -> dict[int, dict[str, list[float]]]:
    """Bytes of some rows of the ranking by part, one value per pipeline rank."""
    found = {}
    for choice in run.space.clusters:
        ranks = [rank for rank in shown if run.cluster(rank) is choice]
        rows = [{name: run.row(rank)[name] for name in COLUMN_NAMES} for rank in ranks]
        every = memories_by_rank(run.space.job_on(choice), Candidates.from_rows(rows)) if rows else []
        for rank, memory in zip(ranks, every, strict=True):
            found[rank] = {f.name: [_rounded(v) for v in memory.__getattribute__(f.name)] for f in fields(Memory)}
    return {rank: found[rank] for rank in shown}


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _files(run: SavedRun, rank: int) -> dict[str, str]:
    """Texts of the launch files of a rank by name; none where no framework was searched for."""
    job = LaunchJob.of(run.space, run.cluster(rank), run.candidate(rank))
    try:
        return {} if job.framework.is_any else dict(launch_files(job).texts)
    except Inexpressible:
        return {}


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
