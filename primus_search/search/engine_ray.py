"""Tasks on a Ray cluster: a private one on this machine, or one that is already running.

The driver ships the declared space once and then two numbers per task; a worker builds the grid and the tables of
terms once and keeps them for all its tasks. What comes back is a top list and a frontier, so the network never
limits. Once each core has done a task, twice as many are in flight as the cluster has cores, asked again every few
seconds: an autoscaler sees waiting tasks, new nodes get work at once. A task of a lost worker or node is done again
elsewhere.
"""

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    WorkerCrashedError,
)

import primus_search
from primus_search.errors import InputError, Problem
from primus_search.search.compiler import spare_linear_algebra
from primus_search.search.engine import MAX_TRIES, CutOf, WorkerLost, available_cores, most_in_flight
from primus_search.search.evaluate import Funnel, Task
from primus_search.search.findings import Findings
from primus_search.search.guardian import Guardian
from primus_search.search.shortlist import Cut
from primus_search.space import Space

LOST = (NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RaySystemError, WorkerCrashedError)
OBJECT_STORE_BYTES = 256 * 1024**2  # summaries are small; the default would take a third of the machine
RESCAN_S = 5.0
CACHED_FUNNELS = 4

_funnels: dict[str, Funnel] = {}


class RayCluster:
    """An engine on Ray. A private cluster ends with it; one that was joined goes on."""

    name = "ray"

    def __init__(self, funnel: Funnel, workers: int, address: str) -> None:
        self._is_ours = not ray.is_initialized()
        self._guardian = Guardian() if self._is_ours and not address else None
        if self._guardian is not None:
            with self._guardian.marking():
                start(workers)
        elif self._is_ours:
            join(address)
        self._cap = workers
        self._scanned_at = -RESCAN_S
        self.workers = 1
        self._rescan()
        self._key = uuid.uuid4().hex
        self._space = ray.put((funnel.space, funnel.keep))
        for _ in range(self.workers):  # workers start while the driver plans; should one fail, its task will say why
            _prepare.remote(self._key, self._space)

    def map(self, tasks: Iterable[Task], cut_of: CutOf) -> Iterator[tuple[Task, Findings]]:
        waiting, again = iter(tasks), list[Task]()
        flying, tries, num_done = dict[Any, Task](), dict[int, int](), 0
        try:
            while True:
                self._rescan()
                while len(flying) < most_in_flight(self.workers, num_done):
                    task = again.pop() if again else next(waiting, None)
                    if task is None:
                        break
                    flying[_evaluate.remote(self._key, self._space, task, cut_of(task.cluster))] = task
                if not flying:
                    return
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=RESCAN_S)
                for reference in ready:
                    task = flying.pop(reference)
                    try:
                        findings: Findings = ray.get(reference)
                    except LOST as error:
                        again.append(_counted(task, tries, error))
                        continue
                    num_done += 1
                    yield task, findings
        finally:
            for reference in flying:  # after Ctrl-C a cluster that was joined must not go on computing for nobody
                ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._is_ours:
            ray.shutdown()
        if self._guardian is not None:
            self._guardian.end()

    def _rescan(self) -> None:
        """How many workers there are now; nodes come and go."""
        if time.monotonic() - self._scanned_at < RESCAN_S:
            return
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.workers = max(min(cores, self._cap) if self._cap else cores, 1)
        self._scanned_at = time.monotonic()


def _settings() -> dict[str, Any]:
    """How Ray is started and joined: it reports nothing home and prints nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray 2.60 otherwise hides GPUs from workers that ask for none and warns about it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}


def start(workers: int) -> None:
    """A private cluster on this machine."""
    ray.init(
        address="local",  # without it Ray joins whatever cluster this machine belongs to
        num_cpus=workers or available_cores(),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        **_settings(),
    )


def join(address: str) -> None:
    """A cluster that is running. A worker on another machine may have another version of this package, or none."""
    package = str(Path(primus_search.__file__).parent)
    try:
        ray.init(address=address, runtime_env={"py_modules": [package]}, **_settings())
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError([Problem(f"--ray-address {address}", f"no Ray cluster answers there: {error}")]) from error


def _counted(task: Task, tries: dict[int, int], error: Exception) -> Task:
    tries[task.number] = tries.get(task.number, 0) + 1
    if tries[task.number] >= MAX_TRIES:
        raise WorkerLost(f"task {task.number} was lost {MAX_TRIES} times on the Ray cluster; last: {error}") from error
    return task


@ray.remote(num_cpus=1, max_retries=MAX_TRIES)  # type: ignore[untyped-decorator]  # Ray ships no types for it
def _evaluate(key: str, shipped: tuple[Space, int], task: Task, cut: Cut) -> Findings:
    """One task in a worker process."""
    return _funnel(key, shipped).evaluate(task, cut)


@ray.remote(num_cpus=1, max_retries=0)  # type: ignore[untyped-decorator]
def _prepare(key: str, shipped: tuple[Space, int]) -> None:
    """What a worker does once per search."""
    funnel = _funnel(key, shipped)
    assert len(funnel.walks) == len(funnel.sieves)


def _funnel(key: str, shipped: tuple[Space, int]) -> Funnel:
    """The funnel of a search in this worker, built once; `key` names the search."""
    space, keep = shipped
    if key not in _funnels:
        while len(_funnels) >= CACHED_FUNNELS:
            _funnels.pop(next(iter(_funnels)))
        spare_linear_algebra()
        _funnels[key] = Funnel(space, keep)
    return _funnels[key]
