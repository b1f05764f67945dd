"""Cut the space into tasks, and choose the engine that will do them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from primus_search.base.cores import available_cores
from primus_search.base.errors import InputError, Problem
from primus_search.exploration.engines.local_engine import Engine, InProcess, Processes
from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS, SMALL_ROWS, Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Shortlist
from primus_search.space import Enumerator
from primus_search.values.candidates import Ints

MAX_TASK_ROWS = 16 * CHUNK_ROWS
TASKS_PER_WORKER = 16
"""Enough tasks per worker that the last ones end together."""

MOST_TASKS = 8192
"""Answers that the driver merges, at a few milliseconds each: a larger space has larger tasks
(docs/dev/performance_log.md)."""

ROWS_PER_ANSWER = 20_000
"""Rows that a worker evaluates in the time of an answer in the driver; workers times so many make a task at least."""

LEAST_TASK_ROWS = 1024
"""Rows of a task where a small space is dealt to several workers: what costs there is orders, not rows."""

FIRST_SHARE = 4
"""Tasks per chunk where one process walks a small space within a budget: a search ends behind a task."""

FEW_ORDERS = 20
"""Orders that one process searches for before a second one would have started to pay; each takes 50 to 300 ms."""

LOOKED_AT, LEAST_LOOKED_AT = 8192, 16
"""Candidates that are looked at to order the tasks of a cluster, and of each task at least."""

PROMISING, LEAST_BEST = 2.0, 64
"""The best of them: so many times as many as rows are kept of the space, and so many at least."""

SEEDED_WORKERS = 8
"""Workers from which it pays that the driver finds the first cut while they start: fewer find it themselves in less."""

SEED_LOOKED_AT, SEED_BEST, SEED_ROWS = 262_144, 1024, 4_000_000
"""Candidates that are looked at for it, the best of them whose cells are evaluated, and most rows of these cells."""

QUICK_STAGES = 4
"""Pipelines of so many ranks have their order in milliseconds."""


def task_rows(funnel: Funnel, workers: int) -> int:
    """Rows of a task: whole chunks, some tasks for each worker, none so long that losing one would hurt.

    No more tasks than the driver can merge.
    """
    total = sum(enumerator.size for enumerator in funnel.enumerators)
    workers = max(workers, 1)
    wanted = total // (workers * TASKS_PER_WORKER)
    if total <= SMALL_ROWS:
        alone = CHUNK_ROWS // FIRST_SHARE if is_limited(funnel) else CHUNK_ROWS
        return max(wanted, LEAST_TASK_ROWS if workers > 1 else alone)
    chunks = np.clip(-(-wanted // CHUNK_ROWS), 1, MAX_TASK_ROWS // CHUNK_ROWS)
    most = min(MOST_TASKS, max(workers, total // (ROWS_PER_ANSWER * workers)))
    return int(max(chunks, -(-total // (most * CHUNK_ROWS)))) * CHUNK_ROWS


def plan_tasks(funnel: Funnel, rows: int, promising: Sequence[Ints]) -> list[Task]:
    """Ranges of about `rows` that cover every legal row of every cluster once, the most promising first.

    What is found first prunes what follows. The number of a task, by which a journal knows it, is its place in the
    walk; the order in which tasks are done never changes the answer. `promising`: of `promising_places`.
    """
    tasks, promise, turn = list[Task](), list[Ints](), list[Ints]()
    for cluster, (order, places) in enumerate(zip(funnel.task_orders, promising, strict=True)):
        cuts = order.cuts(rows)
        promise.append(np.histogram(places, cuts)[0])
        turn.append(np.argsort(np.argsort(-promise[-1], kind="stable")) * is_limited(funnel))
        tasks += [
            Task(number=number, cluster=cluster, start=start, stop=stop, group=order.group_of(start))
            for number, (start, stop) in enumerate(pairwise(cuts.tolist()), start=len(tasks))
        ]
    shuffled = np.random.default_rng(funnel.space.search.seed).permutation(len(tasks))
    return [tasks[n] for n in np.lexsort((shuffled, -np.concatenate(promise), np.concatenate(turn)))]


def is_limited(funnel: Funnel) -> bool:
    """Whether the search may end before it has looked at every candidate: each cluster has its turn then."""
    return bool(funnel.space.search.budget_candidates or funnel.space.search.budget_seconds)


def promising_places(funnel: Funnel) -> list[Ints]:
    """Places in the order of each cluster where candidates were found that may be among the best.

    It takes a second of a large space, and depends on nothing but the space: time to start workers meanwhile.
    """
    rng = np.random.default_rng(funnel.space.search.seed)
    found = list[Ints]()
    for cluster, enumerator in enumerate(funnel.enumerators):
        count = max(LOOKED_AT, LEAST_LOOKED_AT * enumerator.size // MAX_TASK_ROWS)
        share = PROMISING * funnel.keep / max(enumerator.size, 1)
        found.append(_promising(funnel, cluster, rng, count, max(int(share * count), LEAST_BEST)))
        if is_limited(funnel) and not len(found[-1]):
            found[-1] = _promising(funnel, cluster, rng, SEED_LOOKED_AT, LEAST_BEST, is_quick=False)
    return found


def seeds(funnel: Funnel, workers: int) -> list[Shortlist]:
    """The best candidates in the most promising outer cells of each cluster; empty lists for few workers.

    They prune the first tasks of all workers, as an answer would, and take the driver two seconds while workers start.
    """
    rng = np.random.default_rng(funnel.space.search.seed)
    return [_seed(funnel, cluster, rng, workers) for cluster in range(len(funnel.task_orders))]


def _seed(funnel: Funnel, cluster: int, rng: np.random.Generator, workers: int) -> Shortlist:
    order, share = funnel.task_orders[cluster], len(funnel.task_orders)
    if workers < SEEDED_WORKERS or funnel.enumerators[cluster].has_late_rules:
        return Shortlist.empty(funnel.keep)
    places = _promising(funnel, cluster, rng, SEED_LOOKED_AT // share, SEED_BEST // share)
    at = np.searchsorted(order.starts, places, side="right") - 1
    at = at[np.sort(np.unique(at, return_index=True)[1])]
    at = at[np.cumsum(np.diff(order.starts)[at]) <= SEED_ROWS // share]
    if not len(at):
        return Shortlist.empty(funnel.keep)
    return funnel.best_of_cells(cluster, order.cells[at])


def _promising(
    funnel: Funnel, cluster: int, rng: np.random.Generator, count: int, most: int, *, is_quick: bool = True
) -> Ints:
    """The `most` best of `count` candidates of a cluster, the best first.

    By the bounds of those that fit; none for a small space that is walked to its end. is_quick: of those alone whose
    order needs no search; otherwise those that lack least memory where none fits.
    """
    enumerator, order, costs = funnel.enumerators[cluster], funnel.task_orders[cluster], funnel.grid_costs[cluster]
    if not enumerator.size or (order.is_small and not is_limited(funnel)):
        return np.zeros(0, dtype=np.int64)
    places = ((np.arange(count) + rng.random(count)) * (enumerator.size / count)).astype(np.int64)
    numbers, place_of = np.unique(order.numbers(places), return_index=True)
    lines = enumerator.lines_at(numbers)
    lines = lines.take(enumerator.is_quick[lines.cells]) if is_quick else lines
    missing_bytes = costs.missing_bytes(costs.memory_bytes(lines.cells, lines.inner))
    fits = np.flatnonzero(missing_bytes <= 0.0)
    if len(fits):
        lines = lines.take(fits)
        best = np.argsort(costs.pipelines(lines).bound_s(), kind="stable")[:most]
    else:
        best = np.argsort(missing_bytes, kind="stable")[: 0 if is_quick else most]
    return places[place_of[np.searchsorted(numbers, lines.indices[best])]]


def _searched_orders(enumerator: Enumerator) -> int:
    """Orders of the space that have to be searched for at length."""
    _, example = enumerator.outer_numbers(frozenset({"pp", "vpp", "schedule", "microbatches"}))
    is_searched = ~enumerator.is_quick & (enumerator.blocks[0].values["pp"] > QUICK_STAGES)
    return int(np.count_nonzero(is_searched[example]))


def open_engine(funnel: Funnel, name: str, workers: int, ray_address: str) -> Engine:
    """The engine of that name, to be closed; `auto` takes this machine, and Ray where an address is given."""
    if name not in ("auto", "local", "ray"):
        raise InputError([Problem("--engine", f"{name!r} is no engine; use auto, local or ray")])
    if name == "local" and ray_address:
        raise InputError([Problem("--ray-address", "the local engine has no address; leave out --engine local")])
    if name == "ray" or ray_address:
        from primus_search.exploration.engines.ray_engine import RayCluster

        return RayCluster(funnel, workers, ray_address)
    rows = sum(enumerator.size for enumerator in funnel.enumerators)
    is_small = rows <= SMALL_ROWS and sum(map(_searched_orders, funnel.enumerators)) <= FEW_ORDERS
    workers = workers or (1 if is_small else available_cores())
    return InProcess(funnel) if workers == 1 else Processes(funnel, workers)
