"""The last stage of the funnel: the best rows re-validated with torch, and ranked again by what was found.

Only the best cluster's table is touched, and of it the first `ROWS` rows: rows beyond them could not be printed. A row
that shares its layer shapes with a measured one is measured with it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from primus_search.candidates import joined
from primus_search.cost.project import Projector
from primus_search.cost.result import PER_ROW, Memory, Projection, Step
from primus_search.search.findings import Stage
from primus_search.search.result import PROJECTED, SearchResult, Table
from primus_search.search.saved import SavedRun
from primus_search.search.store import _csv as csv_bytes
from primus_search.search.store import file_facts

if TYPE_CHECKING:
    from primus_search.measure.revalidate import Benchmark, Revalidation

ROWS = 1000
BUSY = "busy machine"


def revalidated(
    result: SearchResult,
    *,
    load: Path | None = None,
    save: Path | None = None,
    folder: Path | None = None,
    ray_address: str = "",
) -> SearchResult:
    """The result with its ranking traced and, where there is the target's device, measured.

    load, save   benchmark files to take measurements from and to write those used to
    folder       of the measurement cache; the user's own by default
    ray_address  of a cluster: a node that offers the target's device measures, else this machine
    """
    space, best = result.space, result.best
    if space.benchmark.device == "off":
        return result
    from primus_search.measure.cache import save as save_benchmark
    from primus_search.measure.revalidate import Benchmark, revalidate

    how = Benchmark(
        mode=space.benchmark.device,
        top_k=space.benchmark.top_k,
        seconds=space.benchmark.seconds,
        memory_margin=space.search.memory_margin,
        folder=folder,
        load=load,
    )
    table = best.ranking
    head = np.arange(min(ROWS, len(table)))
    task = partial(
        revalidate,
        space.model,
        best.choice.cluster,
        space.workload,
        table.candidates.take(head),
        table.projection.take(head),
    )
    found = _found_on(ray_address, best.choice.cluster.accelerator.name, task, how)
    if save is not None:
        save_benchmark(save, found.measurements)
    stage = Stage(name="measure", rows=len(head), seconds=found.seconds)
    return replace(
        result.with_cluster(replace(best, ranking=_reordered(table, found))),
        stages=(*result.stages, stage),
        notes=(*result.notes, *_notes(found)),
        seconds=result.seconds + found.seconds,
    )


def _found_on(
    ray_address: str, device: str, task: "Callable[[Benchmark], Revalidation]", how: "Benchmark"
) -> "Revalidation":
    """What re-validation finds, on the node of the cluster that has the device where there is one."""
    if not ray_address or how.mode == "trace":
        return task(how)
    from primus_search.search.engine_ray_device import revalidated_on_cluster

    found, where = revalidated_on_cluster(ray_address, device, task, how)
    found = found or task(how)
    return replace(found, notes=(where, *found.notes))


def _notes(found: "Revalidation") -> list[str]:
    """What re-validation has to say to the reader of a ranking."""
    busy = [note for note in found.notes if note.startswith(BUSY)]
    said = [note for note in found.notes if note not in busy]
    if busy:
        said.append(f"{len(busy)} measurements met a busy machine, the worst: {max(busy, key=_factor)}")
    failed = [f"a benchmark failed: {one.verdict.value}: {one.cause}" for one in found.failures]
    counted = []
    if found.measurements:
        known = len(found.measurements) - found.num_new
        counted = [f"measured: {found.num_new} pieces now, {known} known before, in {found.seconds:.1f} s"]
    return list(dict.fromkeys([*said, *failed, *counted]))


def _factor(note: str) -> float:
    """The number in a note about a busy machine: wall over CPU seconds."""
    return next(float(word) for word in note.replace("(", " ").split() if word.replace(".", "").isdigit())


def _reordered(table: Table, found: "Revalidation") -> Table:
    """The table with its first rows replaced, and the others behind them as they were."""
    tail = np.arange(len(found.order), len(table))
    order = np.concatenate([found.order, tail])
    rest = (PROJECTED,) * len(tail)
    return replace(
        table,
        indices=table.indices[order],
        candidates=table.candidates.take(order),
        projection=_joined(found.projection, table.projection.take(tail)),
        time_evidence=found.time_evidence + rest,
        memory_evidence=found.memory_evidence + rest,
        sureties=found.sureties,
    )


def _joined(first: Projection, second: Projection) -> Projection:
    """The rows of both, one after the other."""
    columns = {name: _both(first, second, name) for name in PER_ROW}
    memory = {f.name: _both(first.memory, second.memory, f.name) for f in fields(Memory)}
    step = {f.name: _both(first.step, second.step, f.name) for f in fields(Step)}
    return replace(first, memory=Memory(**memory), step=Step(**step), **columns)


def _both(first: object, second: object, name: str) -> Any:
    return np.concatenate([first.__getattribute__(name), second.__getattribute__(name)])


# --- an old run, measured later -----------------------------------------------------------------------------------


def top_up(
    path: Path, *, device: str, top_k: int, seconds: float, load: Path | None = None, save: Path | None = None
) -> tuple[Table, list[str]]:
    """Re-validate the ranking of a finished run and write it back: `ranking.csv`, then the best row of `run.json`.

    Only shapes that no earlier measurement answers are measured. Raises InputError for a folder that holds no run, or
    one whose inputs have changed since.
    """
    from primus_search.measure.cache import save as save_benchmark
    from primus_search.measure.revalidate import Benchmark, revalidate

    run = SavedRun.open(path)
    space, choice = run.space, run.cluster(1)
    ranks = [rank for rank in range(1, min(len(run.ranking), ROWS) + 1) if run.cluster(rank) is choice]
    candidates = joined([run.candidate(rank) for rank in ranks])
    projector = Projector(space.model, choice.cluster, space.workload, memory_margin=space.search.memory_margin)
    table = Table(
        model=space.model,
        choice=choice,
        indices=np.array(ranks, dtype=np.int64),
        candidates=candidates,
        projection=projector.project(candidates),
    )
    how = Benchmark(mode=device, top_k=top_k, seconds=seconds, memory_margin=space.search.memory_margin, load=load)
    found = revalidate(space.model, choice.cluster, space.workload, candidates, table.projection, how)
    if save is not None:
        save_benchmark(save, found.measurements)
    table = _reordered(table, found)
    _write_back(run, table, ranks)
    return table, _notes(found)


def _write_back(run: SavedRun, table: Table, ranks: Sequence[int]) -> None:
    """The new order first, then the rows that were not looked at; each file whole or as it was."""
    names = list(run.ranking[0])
    extra = {name: run.ranking[0][name] for name in names if name not in table.row(0)}
    rows: list[Mapping[str, Any]] = [extra | row for row in table.rows()]
    rows += [row for rank, row in enumerate(run.ranking, start=1) if rank not in set(ranks)]
    ranking = csv_bytes([{name: row[name] for name in names} for row in rows])
    write_whole(run.path / "ranking.csv", ranking)
    facts = dict(run.facts) | {"best": table.row(0)}
    facts |= {"files": run.facts["files"] | {"ranking.csv": file_facts(ranking)}}
    write_whole(run.path / "run.json", json.dumps(facts, indent=2).encode() + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """One file, whole or as it was."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
