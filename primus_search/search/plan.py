"""Cut the space into tasks, and choose the engine that will do them."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from primus_search.errors import InputError, Problem
from primus_search.schedule.kept import is_kept
from primus_search.search.engine import Engine, InProcess, Processes, available_cores
from primus_search.search.evaluate import CHUNK_ROWS, Funnel, Task
from primus_search.space import Enumerator

MAX_TASK_ROWS = 16 * CHUNK_ROWS
TASKS_PER_WORKER = 16
"""Enough tasks per worker that the last ones end together."""

SMALL_ROWS = 400_000
"""Rows one process projects before a second one would have started to pay."""

LEAST_TASK_ROWS = 1024
"""Rows of a task where a small space is dealt to several workers: what costs there is orders, not rows."""

FEW_ORDERS = 20
"""Orders that one process searches for before a second one would have started to pay; each takes 50 to 300 ms."""

QUICK_STAGES = 4
"""Pipelines of so many ranks have their order in milliseconds."""


def task_rows(funnel: Funnel, workers: int) -> int:
    """Rows of a task: whole chunks, some tasks for each worker, none so long that losing one would hurt."""
    total = sum(enumerator.size for enumerator in funnel.enumerators)
    wanted = total // max(workers * TASKS_PER_WORKER, 1)
    if total <= SMALL_ROWS and workers > 1:
        return max(wanted, LEAST_TASK_ROWS)
    return int(np.clip(-(-wanted // CHUNK_ROWS) * CHUNK_ROWS, CHUNK_ROWS, MAX_TASK_ROWS))


def plan_tasks(funnel: Funnel, rows: int) -> list[Task]:
    """Ranges of about `rows` that cover every legal row of every cluster once, in an order that mixes the space.

    A mixed order fills the top list from everywhere early, so that bounds prune soon; the order depends on the seed
    alone and never changes the answer.
    """
    ranges = [
        (cluster, start, stop)
        for cluster, enumerator in enumerate(funnel.enumerators)
        for start, stop in pairwise(_cuts(enumerator, rows))
    ]
    order = np.random.default_rng(funnel.space.search.seed).permutation(len(ranges))
    return [Task(number=int(n), cluster=ranges[n][0], start=ranges[n][1], stop=ranges[n][2]) for n in order]


def _cuts(enumerator: Enumerator, rows: int) -> list[int]:
    """Where tasks of about `rows` begin and end: where a schedule or its stages change, else where a cell begins.

    Rows of one task then share their orders with few others, so that no two workers search for the same one.
    """
    cuts = np.arange(rows, enumerator.size, rows)
    for marks in (enumerator.starts, enumerator.pipeline_starts):
        after = np.searchsorted(marks, cuts).clip(1, len(marks) - 1)
        near = np.where(cuts - marks[after - 1] < marks[after] - cuts, marks[after - 1], marks[after])
        cuts = np.where(np.abs(near - cuts) <= rows // 4, near, cuts)
    return [int(cut) for cut in np.unique([0, *cuts, enumerator.size])]


def _searched_orders(enumerator: Enumerator) -> int:
    """Orders of the space that have to be searched for at length: those not on disk."""
    _, example = enumerator.outer_numbers(frozenset({"pp", "vpp", "schedule", "microbatches"}))
    outer, chosen = enumerator.blocks[0].values, enumerator.job.algorithms
    columns = (
        outer["schedule"][example],
        outer["pp"][example],
        enumerator.microbatches[example],
        outer["vpp"][example],
    )
    shapes = zip(*(column.tolist() for column in columns), strict=True)
    return sum(
        chosen[which].cost_aware and pp > QUICK_STAGES and not is_kept(chosen[which].name, pp, microbatches, vpp)
        for which, pp, microbatches, vpp in shapes
    )


@contextmanager
def open_engine(funnel: Funnel, name: str, workers: int, ray_address: str) -> Iterator[Engine]:
    """The engine of that name; `auto` takes this machine, and Ray where an address is given."""
    engine = _engine(funnel, name, workers, ray_address)
    try:
        yield engine
    finally:
        engine.close()


def _engine(funnel: Funnel, name: str, workers: int, ray_address: str) -> Engine:
    if name not in ("auto", "local", "ray"):
        raise InputError([Problem("--engine", f"{name!r} is no engine; use auto, local or ray")])
    if name == "local" and ray_address:
        raise InputError([Problem("--ray-address", "the local engine has no address; leave out --engine local")])
    if name == "ray" or ray_address:
        from primus_search.search.engine_ray import RayCluster

        return RayCluster(funnel, workers, ray_address)
    rows = sum(enumerator.size for enumerator in funnel.enumerators)
    is_small = rows <= SMALL_ROWS and sum(map(_searched_orders, funnel.enumerators)) <= FEW_ORDERS
    workers = workers or (1 if is_small else available_cores())
    return InProcess(funnel) if workers == 1 else Processes(funnel, workers)
