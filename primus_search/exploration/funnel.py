"""The search: enumerate -> memory -> bound -> project -> pipeline -> rank.

result = run_search(space)
result.ranking.row(0)
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from primus_search.base.guards.interrupts import Interrupted, results
from primus_search.exploration.engines.local_engine import Engine, WorkerLost, affordable, peak_rss_bytes
from primus_search.exploration.exhaustive.collect import Budget, Collected, Progress, collect, silent
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.task_plan import (
    is_limited,
    open_engine,
    plan_tasks,
    promising_places,
    seeds,
    task_rows,
)
from primus_search.exploration.findings import STAGES, Findings, FunnelStage
from primus_search.exploration.rank import cluster_words, ranked, refuse_empty, refuse_unfit, unfit_notes
from primus_search.exploration.result import ClusterResult, SearchResult
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.exploration.run_folder.journal import Journal
from primus_search.files.snapshot import Snapshot
from primus_search.space import Space

KEEP = 100_000
"""Rows kept in `candidates.parquet`."""
LEAST_RANKED = KEEP
"""Rows that are ranked at least, whatever is kept of them: the search cuts by projection, a ranking is by expected
rate."""

UNPROVEN = (
    "the {:,} best candidates by projection were compared by their expected rate; others may be within the noise of "
    "the recommendation (--keep with more rows looks further)"
)


RELIEVED = "{} otherwise: {} were tried as well, which take less memory and more time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a search; what to search is in the space.

    engine       auto, local or ray             workers  0: all cores of this machine, or of the Ray cluster
    ray_address  of a running cluster, or "" for a private one
    keep         rows written of each ranking   resume   continue what the run folder's journal holds
    force        replace the run of another question in the folder
    is_last_run  whether commands without a run folder are about this one from now on
    inputs       texts that the space was loaded from, where they are known (`files.search_path.load_recorded`)
    """

    engine: str = "auto"
    workers: int = 0
    ray_address: str = ""
    keep: int = KEEP
    resume: bool = False
    force: bool = False
    folder: RunFolder | None = None
    inputs: Snapshot | None = None
    is_last_run: bool = True
    progress: Progress = field(default=silent)


def run_search(space: Space, options: Options | None = None) -> SearchResult:
    """The best candidates of a space on each of its clusters; where none FITS there, with the cluster's `reliefs`.

    A cluster's rows are those of the cluster alone. Raises InputError when no row is legal (naming the rules),
    NothingFits when none fits (naming the nearest miss) and BudgetEnded when none of those looked at does.
    """
    options = options or Options()
    first = _searched(space, options)
    result = first.result
    places = [place for place, found in enumerate(result.clusters) if _needs_relief(found)]
    if places and (result.exact or (result.is_complete and not is_limited(first.funnel))):
        with suppress(WorkerLost):  # no journal: that of the run folder is of the space as it was asked
            relieved = space.on(*(space.clusters[place] for place in places)).relieved(range(len(places)))
            result = _with_relief(result, places, _searched(relieved, replace(options, folder=None)).result)
    if not any(len(found.ranking) for found in result.clusters):
        refuse_unfit(first.funnel, first.findings)
    unproven = () if all(found.is_proven for found in result.clusters) else (UNPROVEN.format(first.funnel.keep),)
    notes = (*result.notes, *unfit_notes(result.clusters), *unproven)
    return replace(result, notes=notes)


def _needs_relief(found: ClusterResult) -> bool:
    return bool(found.choice.reliefs) and found.legal > 0 and not found.has_fit


def _with_relief(result: SearchResult, places: Sequence[int], wider: SearchResult) -> SearchResult:
    """A search with those clusters of another one, relieved, that FIT, or fit where nothing did.

    places: of the clusters of the other search in this one. Seconds and stages are those of both.
    """
    better = {
        place: one
        for place, one in zip(places, wider.clusters, strict=True)
        if one.has_fit or (len(one.ranking) and not len(result.clusters[place].ranking))
    }
    clusters = [better.get(place, one) for place, one in enumerate(result.clusters)]
    space = replace(result.space, clusters=tuple(one.choice for one in clusters))
    named = dict.fromkeys(axis.name for place in better for axis in result.space.clusters[place].reliefs)
    found = "nothing FITS" if result.exact else "nothing that FITS was found"
    reliefs_text = [RELIEVED.format(found, " and ".join(named))] if better else []
    if better and len(clusters) > 1:
        reliefs_text = [f"{reliefs_text[0]} (on {'; '.join(cluster_words(one.choice) for one in better.values())})"]
    stages = {stage.name: stage for stage in result.stages}
    for stage in wider.stages:
        stages[stage.name] = stages[stage.name].plus(stage) if stage.name in stages else stage
    return replace(
        result,
        space=space,
        clusters=tuple(replace(one, evaluator=replace(one.evaluator, space=space)) for one in clusters),
        stages=tuple(stages[name] for name in STAGES if name in stages),
        exact=result.exact and wider.exact,
        is_complete=result.is_complete and wider.is_complete,
        seconds=result.seconds + wider.seconds,
        peak_rss_bytes=max(result.peak_rss_bytes, wider.peak_rss_bytes),
        notes=tuple(dict.fromkeys((*result.notes, *wider.notes, *reliefs_text))),
        interrupted_by=wider.interrupted_by,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searched:
    """One walk over a space: what it found, perhaps nothing, and what it walked."""

    result: SearchResult
    funnel: Funnel
    findings: Sequence[Findings]


def _searched(space: Space, options: Options) -> _Searched:
    started, began = time.perf_counter(), time.process_time()
    funnel = Funnel(space, max(options.keep, LEAST_RANKED))
    refuse_empty(funnel)
    setup_s = time.process_time() - began

    method, reason = choose_method(funnel)
    if method == "exhaustive":
        settings, notes = space.search, list[str]()
        budget = Budget(candidates=settings.budget_candidates, seconds=settings.budget_seconds)
        with _planned(funnel, options, notes) as (runner, tasks, journal):
            known = seeds(funnel, runner.workers if runner.name == "ray" else 1)  # while its workers start
            collected = collect(runner, funnel, tasks, budget, journal, options.progress, known)
            engine, workers = runner.name, runner.workers
        collected = replace(collected, notes=(*collected.notes, *notes))
    else:
        from primus_search.exploration.sampled.samplers import sample

        path = options.folder.path if options.folder else None
        collected = sample(funnel, method, path, options.progress)
        engine, workers = "local", 1
    if collected.interrupted_by and not any(found.feasible for found in collected.findings):
        raise Interrupted(collected.interrupted_by)
    if collected.lost and not any(found.feasible for found in collected.findings):
        raise WorkerLost("\n".join(collected.lost))
    result = SearchResult(
        space=space,
        clusters=ranked(funnel, collected),
        stages=_stages(collected, setup_s),
        engine=engine,
        workers=workers,
        method=method,
        method_reason=reason,
        exact=method == "exhaustive" and collected.is_complete,
        is_complete=collected.is_complete,
        seconds=time.perf_counter() - started,
        peak_rss_bytes=peak_rss_bytes(),
        notes=collected.notes,
        interrupted_by=collected.interrupted_by,
        keep=max(options.keep, space.search.top_k),
    )
    return _Searched(result=result, funnel=funnel, findings=collected.findings)


@contextmanager
def _planned(
    funnel: Funnel, options: Options, notes: list[str]
) -> Iterator[tuple[Engine, Sequence[Task], Journal | None]]:
    """The engine that suits, tasks that cover every legal row, and the run folder's journal of them."""
    workers, note = (options.workers, "") if options.ray_address else affordable(options.workers)
    notes += [note] if note else []
    with ThreadPoolExecutor(1) as aside:
        promising = aside.submit(promising_places, funnel)  # while the engine starts
        with closing(open_engine(funnel, options.engine, workers, options.ray_address)) as engine:
            rows = task_rows(funnel, engine.workers)
            journal = options.folder.journal(funnel, rows, options.resume) if options.folder else None
            tasks = plan_tasks(funnel, journal.task_rows if journal else rows, results([promising])[0])
            aside.shutdown()  # an engine may fork, which a second thread would not survive
            yield engine, tasks, journal


def _stages(collected: Collected, setup_s: float) -> tuple[FunnelStage, ...]:
    """Stages over all clusters; listing the legal grid counts as enumeration."""
    merged = collected.total
    seconds = {**merged.seconds, "enumerate": merged.seconds.get("enumerate", 0.0) + setup_s}
    return replace(merged, seconds=seconds).stages


EXHAUSTIVE_LIMIT = 2_000_000_000
"""Legal rows a search without a budget still walks through; about half an hour on two cores."""


def choose_method(funnel: Funnel) -> tuple[str, str]:
    """The method of this search and, in words, why."""
    settings = funnel.space.search
    legal = sum(enumerator.size for enumerator in funnel.enumerators)
    limit = settings.budget_candidates or EXHAUSTIVE_LIMIT
    if settings.method == "exhaustive":
        return "exhaustive", "asked for"
    if settings.method != "auto":
        return settings.method, "asked for"
    if legal <= limit:
        return "exhaustive", f"{legal:,} legal candidates fit the budget of {limit:,}"
    return "tpe", f"{legal:,} legal candidates exceed the budget of {limit:,}; TPE handles words, switches and limits"
