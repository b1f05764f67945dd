"""Cut the space into tasks, and choose the engine that will do them."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from primus_search.errors import InputError, Problem
from primus_search.search.engine import Engine, InProcess, Processes, available_cores
from primus_search.search.evaluate import CHUNK_ROWS, Funnel, Task

MAX_TASK_ROWS = 16 * CHUNK_ROWS
TASKS_PER_WORKER = 16
"""Enough tasks per worker that the last ones end together."""

SMALL_ROWS = 400_000
"""Rows one process projects before a second one would have started to pay."""

RAY_PAYS_ROWS = 3_000_000_000
"""Rows from which a private Ray cluster could be chosen over plain processes; on one machine it never wins."""


def task_rows(funnel: Funnel, workers: int) -> int:
    """Rows of a task: whole chunks, some tasks for each worker, none so long that losing one would hurt."""
    total = sum(enumerator.size for enumerator in funnel.enumerators)
    wanted = total // max(workers * TASKS_PER_WORKER, 1)
    return int(np.clip(-(-wanted // CHUNK_ROWS) * CHUNK_ROWS, CHUNK_ROWS, MAX_TASK_ROWS))


def plan_tasks(funnel: Funnel, rows: int) -> list[Task]:
    """Ranges of `rows` that cover every legal row of every cluster once, in an order that mixes the space.

    A mixed order fills the top list from everywhere early, so that bounds prune soon; the order depends on the seed
    alone and never changes the answer.
    """
    ranges = [
        (cluster, start, min(start + rows, enumerator.size))
        for cluster, enumerator in enumerate(funnel.enumerators)
        for start in range(0, enumerator.size, rows)
    ]
    order = np.random.default_rng(funnel.space.search.seed).permutation(len(ranges))
    return [Task(number=int(n), cluster=ranges[n][0], start=ranges[n][1], stop=ranges[n][2]) for n in order]


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
    workers = workers or (1 if rows <= SMALL_ROWS else available_cores())
    return InProcess(funnel) if workers == 1 else Processes(funnel, workers)
