"""The last stage of the funnel: the best rows re-validated with torch, and ranked again by what was found.

Only the best cluster's tables are touched, and of its ranking the first `RANKED_ROWS` rows: no table lists others.
Where rows turn out not to fit and another cluster is then the best, its tables follow.
A row that shares its layer shapes with a measured one is measured with it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from primus_search.exploration.findings import FunnelStage
from primus_search.exploration.rank import frontier_after
from primus_search.exploration.ranking_table import MEASURED, PROJECTED, RANKED_ROWS, RUN, RankingTable
from primus_search.exploration.result import SearchResult
from primus_search.space import ClusterChoice
from primus_search.values.candidates import Bools

if TYPE_CHECKING:
    from primus_search.measure.revalidate import Benchmark, Revalidation

BUSY = "busy machine"
TORCH = "torch"
WITHOUT_TORCH = (
    "torch is not installed: no row was re-validated, every figure is projected (pip install 'primus-search[torch]')"
)


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
    space = result.space
    if space.benchmark.device == "off":
        return result
    if find_spec(TORCH) is None:
        if space.benchmark.device != "auto" or load or save:
            raise ModuleNotFoundError(name=TORCH)
        return replace(result, notes=(*result.notes, WITHOUT_TORCH))
    from primus_search.measure.revalidate import Benchmark, revalidate

    how = Benchmark(
        mode=space.benchmark.device,
        top_k=space.benchmark.top_k,
        seconds=space.benchmark.seconds,
        memory_margin=space.search.memory_margin,
        folder=folder,
        load=load,
    )
    seen: list[Revalidation] = []
    choices: list[ClusterChoice] = []
    while result.best.choice not in choices:
        best = result.best
        choices.append(best.choice)
        table = best.ranking
        head = np.arange(min(RANKED_ROWS, len(table)))
        task = partial(revalidate, space.job_on(best.choice), table.candidates.take(head), table.projection.take(head))
        found = _found_on(ray_address, best.choice.cluster.accelerator.name, task, how)
        seen.append(found)
        ranking, notes = reordered(table, found)
        result = replace(
            result.with_cluster(replace(best, ranking=ranking, frontier=frontier_after(best.frontier, ranking))),
            stages=(*result.stages, FunnelStage(name="measure", rows=len(head), seconds=found.seconds)),
            notes=tuple(dict.fromkeys([*result.notes, *notes])),
            seconds=result.seconds + found.seconds,
        )
    if save is not None:
        from primus_search.measure.candidate_bench import save as save_benchmark

        save_benchmark(save, [one for found in seen for one in found.measurements])
    return result


def _found_on(
    ray_address: str, device: str, task: "Callable[[Benchmark], Revalidation]", how: "Benchmark"
) -> "Revalidation":
    """What re-validation finds, on the node of the cluster that has the device where there is one."""
    if not ray_address or how.mode == "trace":
        return task(how)
    from primus_search.exploration.engines.ray_engine import revalidated_on_cluster

    found, where = revalidated_on_cluster(ray_address, device, task, how)
    found = found or task(how)
    return replace(found, notes=(where, *found.notes))


def _notes(found: "Revalidation") -> list[str]:
    """What re-validation has to say to the reader of a ranking."""
    busy = [note for note in found.notes if note.startswith(BUSY)]
    kept = [note for note in found.notes if note not in busy]
    if busy:
        kept.append(f"{len(busy)} measurements met a busy machine, the worst: {max(busy, key=_factor)}")
    failed = [f"a benchmark failed: {one.verdict.value}: {one.cause}" for one in found.failures]
    counted = []
    if found.measurements:
        known = len(found.measurements) - found.num_new
        counted = [f"measured: {found.num_new} pieces now, {known} known before, in {found.seconds:.1f} s"]
    return list(dict.fromkeys([*kept, *failed, *counted]))


def _factor(note: str) -> float:
    """The number in a note about a busy machine: wall over CPU seconds."""
    return next(float(word) for word in note.replace("(", " ").split() if word.replace(".", "").isdigit())


def reordered(table: RankingTable, found: "Revalidation") -> tuple[RankingTable, list[str]]:
    """The table with what was found of its first rows, in its new order, and the notes of the ranking's reader."""
    tail = np.arange(len(found.order), len(table))
    order = np.concatenate([found.order, tail])
    rest = (PROJECTED,) * len(tail)
    behind = table.projection.take(slice(len(found.order), None))
    projection, was_run = found.projection.joined(behind), table.time_evidence[order] == RUN
    shares = np.where(_is_timed(found, len(order)), 1.0, table.expected_shares[order])
    measured_fits = np.full(len(order), np.nan)
    measured_fits[list(found.measured_fits)] = list(found.measured_fits.values())
    changed = replace(
        table,
        indices=table.indices[order],
        candidates=table.candidates.take(order),
        projection=projection,
        expected_shares=np.where(was_run, table.expected_rate[order] / projection.tokens_per_s_per_gpu, shares),
        time_evidence=np.where(was_run, RUN, np.array(found.time_evidence + rest)),
        memory_evidence=np.array(found.memory_evidence + rest),
        measured_fits=measured_fits,
    )
    ranks = np.argsort(changed.order) + 1
    notes = _notes(found) + [f"rank {ranks[row]}: {text}" for row, text in found.remarks.items()]
    ranking = changed.ordered()
    seen = ranking.is_looked_at
    if seen.any() and not (seen & ranking.is_fit).any() and not seen[0]:
        notes.append(f"rank 1 was not traced: none of the {int(seen.sum())} rows that were FITS")
    return ranking, notes


def _is_timed(found: "Revalidation", rows: int) -> Bools:
    """Rows whose step was measured: their rate is expected as it is."""
    return np.array([one == MEASURED for one in found.time_evidence] + [False] * (rows - len(found.order)))
