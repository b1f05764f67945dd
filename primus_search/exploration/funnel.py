"""The search: enumerate -> memory -> bound -> project -> pipeline -> rank.

result = run_search(space)
result.ranking.row(0)
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from primus_search.base.errors import NothingFits
from primus_search.base.guards.interrupts import Interrupted, results
from primus_search.exploration.engines.local_engine import Engine, WorkerLost, affordable, peak_rss_bytes
from primus_search.exploration.exhaustive.collect import Budget, Collected, Progress, collect, silent
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.task_plan import open_engine, plan_tasks, promising_places, seeds, task_rows
from primus_search.exploration.findings import FunnelStage
from primus_search.exploration.rank import ranked, refuse_empty, refuse_unfit
from primus_search.exploration.result import SearchResult
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


RELIEVED = "nothing FITS otherwise: {} were tried as well, which take less memory and more time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a search; what to search is in the space.

    engine       auto, local or ray             workers  0: all cores of this machine, or of the Ray cluster
    ray_address  of a running cluster, or "" for a private one
    keep         rows written of each ranking   resume   continue what the run folder's journal holds
    force        replace the run of another question in the folder
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
    progress: Progress = field(default=silent)


def run_search(space: Space, options: Options | None = None) -> SearchResult:
    """The best candidates of a space on each of its clusters; where none FITS, of the space with its `reliefs`.

    Raises InputError when no row is legal (naming the rules) and NothingFits when none fits (naming the nearest miss).
    """
    options = options or Options()
    try:
        found: SearchResult | NothingFits = _searched(space, options)
    except NothingFits as unfit:
        found = unfit
    if space.reliefs and (isinstance(found, NothingFits) or (found.is_complete and not found.has_fit)):
        with suppress(NothingFits):  # no journal: that of the run folder is of the space as it was asked
            wider = _searched(space.relieved(), replace(options, folder=None))
            if isinstance(found, NothingFits) or wider.has_fit:
                names = " and ".join(axis.name for axis in space.reliefs)
                found = replace(wider, notes=(*wider.notes, RELIEVED.format(names)))
    if isinstance(found, NothingFits):
        raise found
    return found


def _searched(space: Space, options: Options) -> SearchResult:
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
    refuse_unfit(funnel, collected.findings)
    clusters = ranked(funnel, collected)
    unproven = () if all(found.is_proven for found in clusters) else (UNPROVEN.format(funnel.keep),)
    return SearchResult(
        space=space,
        clusters=clusters,
        stages=_stages(collected, setup_s),
        reasons=funnel.enumerators[0].reasons,
        engine=engine,
        workers=workers,
        method=method,
        method_reason=reason,
        exact=method == "exhaustive" and collected.is_complete,
        is_complete=collected.is_complete,
        seconds=time.perf_counter() - started,
        peak_rss_bytes=peak_rss_bytes(),
        notes=(*collected.notes, *unproven),
        interrupted_by=collected.interrupted_by,
        keep=max(options.keep, space.search.top_k),
    )


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
