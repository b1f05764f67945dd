"""Where tasks run: this process, a few processes of this machine, or a Ray cluster (`engine_ray`).

An engine takes tasks and gives back findings in any order. It keeps a bounded number in flight, hands each task the
cut as it stands when the task is sent, and does a task again when its worker is lost. Since merging does not depend
on order and a cut only drops what cannot matter, every engine gives the same answer.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from primus_search.errors import PrimusSearchError
from primus_search.search.evaluate import Funnel, Task
from primus_search.search.findings import Findings
from primus_search.search.shortlist import Cut

CutOf = Callable[[int], Cut]
IN_FLIGHT_PER_WORKER = 2
MAX_TRIES = 4
ORPHAN_CHECK_S = 0.5


class WorkerLost(PrimusSearchError):
    """A task lost its worker again and again; names the task and what to look at."""


class Engine(Protocol):
    """Evaluates tasks somewhere."""

    name: str
    workers: int

    def map(self, tasks: Iterable[Task], cut_of: CutOf) -> Iterator[tuple[Task, Findings]]:
        """Findings of every task, in the order they arrive; `cut_of(cluster)` is asked when a task is sent."""
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...


def most_in_flight(workers: int, num_done: int) -> int:
    """Tasks that may be sent and not yet done: one ahead of each worker, but none before each has done its first.

    What is sent before anything was found is pruned by nothing, and costs several times as much.
    """
    return workers * (IN_FLIGHT_PER_WORKER if num_done >= workers else 1)


def available_cores() -> int:
    """Cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class InProcess:
    """One worker: this process. Starts at once; what a small space needs."""

    name, workers = "local", 1

    def __init__(self, funnel: Funnel) -> None:
        self._funnel = funnel

    def map(self, tasks: Iterable[Task], cut_of: CutOf) -> Iterator[tuple[Task, Findings]]:
        for task in tasks:
            yield task, self._funnel.evaluate(task, cut_of(task.cluster))

    def close(self) -> None:
        """Nothing to release."""


class Processes:
    """Several worker processes of this machine. On Linux they are forked and share the enumerated grid."""

    name = "local"

    def __init__(self, funnel: Funnel, workers: int) -> None:
        self._funnel, self.workers = funnel, workers
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        method = "fork" if sys.platform == "linux" else "spawn"
        context = multiprocessing.get_context(method)
        return ProcessPoolExecutor(
            max_workers=self.workers,
            mp_context=context,
            initializer=_enter_worker,
            initargs=(self._funnel, os.getpid()),
        )

    def map(self, tasks: Iterable[Task], cut_of: CutOf) -> Iterator[tuple[Task, Findings]]:
        waiting, flying, tries = iter(tasks), dict[Future[Findings], Task](), dict[int, int]()
        again: list[Task] = []
        is_drained, num_done = False, 0
        while True:
            is_broken = False
            while not is_drained and not is_broken and len(flying) < most_in_flight(self.workers, num_done):
                task = again.pop() if again else next(waiting, None)
                if task is None:
                    is_drained = True
                    break
                try:
                    flying[self._pool.submit(_evaluate, task, cut_of(task.cluster))] = task
                except BrokenProcessPool:  # a worker was lost while the caller looked at findings
                    again.append(task)
                    is_broken = True
            if not flying and not is_broken:
                return
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            is_broken |= any(isinstance(future.exception(), BrokenProcessPool) for future in done)
            for future in done:
                if not isinstance(future.exception(), BrokenProcessPool):
                    num_done += 1
                    yield flying.pop(future), future.result()
            if is_broken:
                again += _counted(list(flying.values()), tries)
                flying, is_drained = {}, False
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = self._start()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _counted(lost: list[Task], tries: dict[int, int]) -> list[Task]:
    """The lost tasks, to be done again; raises when one of them was lost too often."""
    for task in lost:
        tries[task.number] = tries.get(task.number, 0) + 1
        if tries[task.number] >= MAX_TRIES:
            raise WorkerLost(
                f"task {task.number} (candidates {task.start}..{task.stop}) lost its worker {MAX_TRIES} times; "
                "is the machine out of memory? try fewer workers"
            )
    return lost


_worker: list[Funnel] = []


def _enter_worker(funnel: Funnel, driver: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its workers itself
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    _worker[:] = [funnel]


def _end_with(driver: int) -> None:
    """End this worker when its driver is gone: a killed driver cannot tell it, and the pool's queue never closes."""
    while os.getppid() == driver:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)


def _evaluate(task: Task, cut: Cut) -> Findings:
    return _worker[0].evaluate(task, cut)
