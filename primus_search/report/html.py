"""`report.html` of a run folder: one self-contained page that works offline and requests nothing.

`templates/report.html` is the page, readable without scripts; `page/` holds its style sheet and its JavaScript modules,
`page/vendor/` the charting library. Candidates travel as packed columns, everything else of the run as text of the
template or JSON. Scripts write text only through `textContent`; the JSON cannot close its element; a content security
policy admits the scripts of the page by their hashes and forbids every request.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.analysis.explanation import Explained
from primus_search.analysis.glossary import TERMS
from primus_search.analysis.labels import between, chance, short
from primus_search.analysis.page.roofline import roofline
from primus_search.base.errors import InputError
from primus_search.base.guards.files import replacing
from primus_search.base.guards.values import finite
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.cost.memory.chunk_memory import memories_by_rank
from primus_search.exploration.answer_values import Choice
from primus_search.exploration.ranking_table import PROJECTED
from primus_search.exploration.result import is_of
from primus_search.exploration.run_folder.folder import StoreError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.report.html_columns import PageRows
from primus_search.report.html_figures import exchanges, own_runs, scaling, what_if
from primus_search.schedule import Timeline
from primus_search.values.candidates import COLUMN_NAMES, Candidates

LIBRARY, ENTRY = "vendor/echarts.min.js", "main.js"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
# Parts of the content that scripts read; the others are in the text of the page.
EMBEDDED = ("limit", "memory_by_rank", "gantt", "exports", "scaling", "what_if", "own_runs", "roofline")


def write_report(run: SavedRun, rank: int = 1, target: Path | None = None) -> Path:
    """Write the page of a run, into its folder by default, whole or not at all; everything shown is escaped.

    rank: a row on the cluster whose candidates are shown, and whose step is drawn. Raises StoreError where the page
    cannot be written.
    """
    target = target or run.path / "report.html"
    try:
        with replacing(target) as temporary:
            temporary.write_text(page(run, content(run, rank)), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def page(run: SavedRun, data: Mapping[str, Any]) -> str:
    """The whole page."""
    answer = run.answer
    rows = dict(data["rows"])
    columns = rows.pop("text")
    scripts = [_file(LIBRARY), "\n".join(modules())]
    letters = {one.letter: one.rank for one in answer.choices}
    return rendered(
        "report.html",
        run=run,
        facts=run.facts,
        best=run.ranking[data["rank"] - 1],
        short=short(run.ranking[0]),
        answer=answer,
        chosen=[(choice, short(run.row(choice.rank))) for choice in answer.choices],
        band=between(answer.low, answer.high),
        chance=chance(answer.fit_probability),
        GB=GB,
        data=data,
        style=_file("page.css"),
        scripts=scripts,
        sources=" ".join(f"'sha256-{_sha256(script)}'" for script in scripts),
        columns=columns,
        embedded=embedded(
            {"rows": rows, "rank": data["rank"], "letters": letters, "terms": _terms(rows["step"])}
            | {name: data[name] for name in EMBEDDED if name in data}
        ),
    )


def _terms(parts: Sequence[str]) -> dict[str, str]:
    """What parts of a step mean, by their names."""
    return {name: TERMS[word] for name in parts if (word := name.replace("_", " ")) in TERMS}


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: no markup character survives, and no number JSON does not know."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --- scripts ---------------------------------------------------------------------------------------------------------


def modules(entry: str = ENTRY, seen: set[str] | None = None) -> Iterator[str]:
    """The texts of the page's modules as one script: a module behind those that it imports, imports and exports gone.

    Names are shared, so modules import under the names that others export.
    """
    seen = seen if seen is not None else set()
    seen.add(entry)
    text = _file(entry)
    for name in IMPORT.findall(text):
        if name not in seen:
            yield from modules(name, seen)
    yield re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)


def _file(name: str) -> str:
    return resources.files("primus_search.report").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


EXPORTED = 5  # best ranks whose launch files are in the page, beside those of the choices
# Ranks whose memory is shown pipeline rank by pipeline rank, beside the choices; of others the worst rank.
RANKED_MEMORY = 12
MOST_PASSES = 24_000  # passes of a pipeline that are drawn; longer steps show their beginning


def content(run: SavedRun, rank: int = 1) -> dict[str, Any]:
    """Everything that the page shows; of several clusters the candidates of that of a rank."""
    facts = run.facts
    cluster, labels = _cluster_of(run, rank)
    kept = run.kept(cluster)
    ranking = {rank: row for rank, row in enumerate(run.ranking, start=1) if is_of(row, labels)}
    rows = PageRows(kept, ranking, [row for row in run.frontier if is_of(row, labels)])
    data: dict[str, Any] = {
        "rank": rank,
        "cluster": ", ".join(f"{name} {word}" for name, word in labels.items()) if len(facts["clusters"]) > 1 else "",
        "facts": {name: facts[name] for name in QUESTION if name in facts},
        "ties": sum(bool(row["ties_with_best"]) for row in run.ranking),
        "kept": len(kept),
        "notes": list(facts["notes"]),
        **dict.fromkeys(("coverage", "ablations", "advice"), ()),
        "gantt": None,
        "scaling": scaling(facts),
    }
    try:
        data |= _projected(rows, Explained(run, rank), run.answer.choices)
    except InputError as error:
        data["notes"].append(f"Gantt, knobs and launch files are left out: {error}")
    return data | {"rows": rows.packed()}


QUESTION = (
    "space", "model", "hardware", "stack", "framework", "nodes", "gpus", "objective", "method", "method_reason",
    "exact", "complete", "memory_margin", "seed", "finished", "engine", "workers", "seconds", "source",
)  # fmt: skip


def _cluster_of(run: SavedRun, rank: int) -> tuple[int, Mapping[str, Any]]:
    """Which of the run's clusters a row is for, and what tells it from the others."""
    told = [{**one["labels"], "nodes": one["nodes"]} for one in run.facts["clusters"]]
    number = [is_of(run.ranking[rank - 1], labels) for labels in told].index(True)
    return number, told[number]


# --- what needs the inputs of the run -------------------------------------------------------------------------------


def _projected(rows: PageRows, e: Explained, choices: Sequence[Choice]) -> dict[str, Any]:
    """Parts of rows that were not kept, memory by pipeline rank, the winner's Gantt, what each knob gives, files."""
    run, hbm_bytes = e.run, e.choice.cluster.accelerator.hbm_bytes
    _add_parts(rows, e)
    mine = {one.rank for one in choices if run.cluster(one.rank) == e.choice}
    shown, exported = (
        sorted(mine | set(range(1, min(most, len(run.ranking)) + 1))) for most in (RANKED_MEMORY, EXPORTED)
    )
    return {
        "limit": {"device_bytes": hbm_bytes, "usable_bytes": hbm_bytes * (1.0 - e.space.search.memory_margin)},
        "memory_by_rank": _memory_by_rank(run, shown),
        "coverage": e.coverage,
        "gantt": None if e.timeline is None else _gantt(e.timeline) | {"exchanges": exchanges(e, e.timeline)},
        "what_if": what_if(e, choices, float(run.facts.get("goal", {}).get("tokens", 0.0))),
        "own_runs": own_runs(e),
        "roofline": roofline(e.job, e.one),
        "ablations": e.ablations,
        "advice": e.advice,
        "exports": {rank: files for rank in exported if (files := _files(run, rank))},
    }


def _add_parts(rows: PageRows, e: Explained) -> None:
    """Break-downs of rows of the frontier that the run neither kept nor measured."""
    added = [row["time_evidence"] == row["memory_evidence"] == PROJECTED for row in rows.added]
    if not any(added):
        return
    candidates = Candidates.from_rows([{name: row[name] for name in COLUMN_NAMES} for row in rows.added])
    projection = e.evaluator.projector.project(candidates)
    parts = (
        {f.name: np.where(added, of.__getattribute__(f.name), np.nan) for f in fields(of)}
        for of in (projection.step, projection.memory)
    )
    rows.fill(*parts)


def _memory_by_rank(run: SavedRun, shown: Sequence[int]) -> dict[int, dict[str, list[float]]]:
    """Bytes of some rows of the ranking by part, one value per pipeline rank."""
    found = {}
    for choice in run.space.clusters:
        ranks = [rank for rank in shown if run.cluster(rank) is choice]
        rows = [{name: run.row(rank)[name] for name in COLUMN_NAMES} for rank in ranks]
        every = memories_by_rank(run.space.job_on(choice), Candidates.from_rows(rows)) if rows else []
        for rank, memory in zip(ranks, every, strict=True):
            parts = {f.name: memory.__getattribute__(f.name) for f in fields(memory)}
            found[rank] = {name: [float(f"{value:.6g}") for value in column] for name, column in parts.items()}
    return {rank: found[rank] for rank in shown}


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
