"""Where tasks run: this process, a few processes of this machine, or a Ray cluster (`ray_engine`).

An engine takes tasks and gives back findings in any order. It keeps a bounded number in flight, hands each task the
cut as it stands when the task is sent, and does a task again when its worker is lost. Since merging does not depend
on order and a cut only drops what cannot matter, every engine gives the same answer.

Sticky task assignment: a worker keeps the task group it started, so its caches are reused.

Tasks of a group share orders and moments of memory, which each worker computes once. A second worker joins a group
only when no unstarted group is left.
"""

import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from primus_search.base.cores import available_cores, control_group_values
from primus_search.base.errors import PrimusSearchError
from primus_search.base.guards import interrupts
from primus_search.base.units import GB
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Cut
from primus_search.exploration.findings import Findings

MAX_TRIES = 8
IN_FLIGHT_PER_WORKER = 2

Group = tuple[int, int]
"""A cluster of the space, and a group of tasks on it."""


class WorkerLost(PrimusSearchError):
    """Tasks lost their workers again and again and nothing was found; names them and what to look at."""


@dataclass(frozen=True, slots=True)
class LostTask:
    """A task that is done no more, and the last of the reasons."""

    task: Task
    why: str
    what: str = ""

    def __str__(self) -> str:
        where = f"task {self.task.number} (candidates {self.task.start}..{self.task.stop})"
        return f"{where} {self.what or f'lost its worker {MAX_TRIES} times'}; {self.why}"


class TaskAssignment:
    """Tasks that no worker has begun, the most promising first, and who has begun their groups."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._groups: dict[Group, deque[tuple[int, Task]]] = defaultdict(deque)
        for place, task in enumerate(tasks):
            self._groups[task.cluster, task.group].append((place, task))
        self._workers: dict[Group, set[int]] = {group: set() for group in self._groups}
        self._again: list[Task] = []
        self._tries = Counter[int]()
        self.lost: list[LostTask] = []

    def __len__(self) -> int:
        """Tasks that no worker has begun."""
        return len(self._again) + sum(map(len, self._groups.values()))

    def take(self, worker: int) -> Task | None:
        """The next task of a worker, what was lost first; None when all are taken."""
        if self._again:
            return self._again.pop()
        if not self._groups:
            return None
        group = self._group_for(worker)
        self._workers[group].add(worker)
        _, task = self._groups[group].popleft()
        if not self._groups[group]:
            del self._groups[group]
        return task

    def _group_for(self, worker: int) -> Group:
        """Of the groups that no other worker has begun the most promising, else the one with most tasks per worker."""
        others = {group: len(self._workers[group] - {worker}) for group in self._groups}
        alone = [group for group, count in others.items() if not count]
        if alone:
            return min(alone, key=lambda group: self._groups[group][0][0])
        return max(self._groups, key=lambda group: len(self._groups[group]) / others[group])

    def return_unsent(self, task: Task) -> None:
        """A task that could not be sent yet; the next that is taken."""
        self._again.append(task)

    def put_back(self, worker: int, lost: Sequence[Task], why: str) -> None:
        """The tasks that a lost worker was sent, the one it was at first.

        That one is done no more (`self.lost`) when it has lost its worker too often.
        """
        for workers in self._workers.values():
            workers.discard(worker)
        for at in lost[:1]:
            self._tries[at.number] += 1
            if self._tries[at.number] >= MAX_TRIES:
                self.lost.append(LostTask(at, why))
                lost = lost[1:]
        self._again += lost


def most_in_flight(workers: int, num_done: int, num_waiting: int) -> int:
    """Tasks that each worker may have and not yet have done: one ahead of it, but none before each has done its first.

    What is sent before anything was found is pruned by nothing, and costs several times as much. At the end nothing is
    sent ahead that an idle worker could do at once.
    """
    return IN_FLIGHT_PER_WORKER if num_done >= workers and num_waiting > workers else 1


CutOf = Callable[[int], Cut]
IsSpent = Callable[[], bool]
ORPHAN_CHECK_S = 0.5


def never() -> bool:
    """A search without a limit."""
    return False


class Engine(Protocol):
    """Evaluates tasks somewhere."""

    name: str
    workers: int
    lost: Sequence[LostTask]
    """Tasks of the last `map` that lost their workers too often."""

    def map(self, tasks: Sequence[Task], cut_of: CutOf, is_spent: IsSpent = never) -> Iterator[tuple[Task, Findings]]:
        """Findings of every task, in the order they arrive; `cut_of(cluster)` is called when a task is sent.

        No task is sent any more once `is_spent()`.
        """
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...


class InProcess:
    """One worker: this process. Starts at once; what a small space needs."""

    name, workers = "local", 1
    lost: Sequence[LostTask] = ()

    def __init__(self, funnel: Funnel) -> None:
        self._funnel = funnel

    def map(self, tasks: Sequence[Task], cut_of: CutOf, is_spent: IsSpent = never) -> Iterator[tuple[Task, Findings]]:
        self.lost = lost = list[LostTask]()
        for task in tasks:
            interrupts.check()
            if is_spent():
                return
            try:
                findings = self._funnel.evaluate(task, cut_of(task.cluster))
            except MemoryError:
                lost.append(LostTask(task, "free memory, or lower --keep", "ran out of memory"))
                continue
            yield task, findings

    def close(self) -> None:
        """Nothing to release."""


class Processes:
    """Several worker processes of this machine. On Linux they are forked when the first tasks come, and share the grid,
    the kernels and whatever else planning has loaded.

    Each has a pipe of its own. Workers that share a queue share its lock, and one that is killed while it holds the
    lock stops the others for good; here it takes nothing with it but the tasks it was sent.
    """

    name = "local"

    def __init__(self, funnel: Funnel, workers: int) -> None:
        self._funnel, self.workers = funnel, workers
        self.lost: Sequence[LostTask] = ()
        self._pool: list[_Worker] = []

    def map(self, tasks: Sequence[Task], cut_of: CutOf, is_spent: IsSpent = never) -> Iterator[tuple[Task, Findings]]:
        assignment, num_done = TaskAssignment(tasks), 0
        self.lost = assignment.lost
        self._pool = self._pool or [_Worker(self._funnel) for _ in range(self.workers)]
        while True:
            while not is_spent():
                most = most_in_flight(self.workers, num_done, len(assignment))
                number, worker = min(enumerate(self._pool), key=lambda pair: len(pair[1].tasks))
                task = assignment.take(number) if len(worker.tasks) < most else None
                if task is None:
                    break
                worker.send(task, cut_of(task.cluster))
            busy = [worker for worker in self._pool if worker.tasks]
            if not busy:
                return
            ready = interrupts.wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                try:
                    task, findings = worker.receive()
                except (EOFError, OSError, MemoryError):
                    number = self._pool.index(worker)
                    assignment.put_back(number, worker.tasks, "is the machine out of memory? try fewer workers")
                    worker.end()
                    self._pool[number] = _Worker(self._funnel)
                else:
                    num_done += 1
                    yield task, findings

    def close(self) -> None:
        for worker in self._pool:
            worker.end()


class _Worker:
    """One process, the pipe to it, and the tasks it was sent and has not answered, in order."""

    def __init__(self, funnel: Funnel) -> None:
        on_linux = sys.platform == "linux"
        context = multiprocessing.get_context("fork") if on_linux else multiprocessing.get_context("spawn")
        self.pipe, its_end = context.Pipe()
        self.tasks: list[Task] = []
        self._process = context.Process(target=_serve, args=(funnel, its_end, os.getpid()), daemon=True)
        self._process.start()
        its_end.close()  # the worker's alone, so that the pipe ends when the worker does

    def send(self, task: Task, cut: Cut) -> None:
        self.tasks.append(task)
        with suppress(OSError):  # it was lost; what it was sent will be missed when its answer is read
            self.pipe.send((task, cut))

    def receive(self) -> tuple[Task, Findings]:
        """Its next answer. Raises EOFError or OSError when it is lost, and what it raised itself."""
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return self.tasks.pop(0), answer

    def end(self) -> None:
        """Tasks have no effect but their answer, so a worker may be ended at any time."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(funnel: Funnel, pipe: "Connection[Any, Any]", driver: int) -> None:
    """What a worker does: answer tasks in the order they come.

    They are taken off the pipe at once, so that neither end ever waits for the other to read.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its workers itself
    tasks = SimpleQueue[tuple[Task, Cut]]()
    threading.Thread(target=_take, args=(pipe, tasks), daemon=True).start()
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    while True:
        task, cut = tasks.get()
        try:
            answer: Findings | Exception = funnel.evaluate(task, cut)
        except Exception as error:  # the driver raises it again
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send(answer)


def _take(pipe: "Connection[Any, Any]", tasks: "SimpleQueue[tuple[Task, Cut]]") -> None:
    with suppress(EOFError, OSError):
        while True:
            tasks.put(pipe.recv())
    os._exit(1)


def _end_with(driver: int) -> None:
    """End this worker when its driver is gone: other workers hold copies of the driver's end of the pipe."""
    while os.getppid() == driver:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)


BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage counts KiB on Linux, bytes on macOS


def peak_rss_bytes() -> float:
    """Largest resident memory of this process or of one finished child, whichever is larger; not their sum."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return float(max(own, children) * BYTES_PER_UNIT)


def affordable(asked: int) -> tuple[int, str]:
    """Workers to start on this machine, and the sentence that says why they are fewer than requested.

    At most one per core (and two at least, so that a small machine can be asked for more than one), and no more than
    fit in free memory if each grows to what this process holds once the space is planned. 0 asks for every core.
    """
    each, free = peak_rss_bytes(), free_bytes()
    by_memory = max(int(free / each), 1) if free else asked
    cores = available_cores()
    wanted = asked or cores
    most = min(max(cores, 2), by_memory)
    if wanted <= most:
        return asked, ""
    why = f"{cores} cores" if most < by_memory or not free else f"{free / GB:.1f} GB free, {each / GB:.2f} GB each"
    return most, f"{wanted:,} workers were asked for; {most} were started: this machine has {why}"


def free_bytes() -> float:
    """Memory that can still be taken: of the machine, or of the control group if that is less; 0 where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0.0
    groups = zip(control_group_values("memory.max"), control_group_values("memory.current"), strict=False)
    return max(min([free, *(float(limit) - float(used) for limit, used in groups if limit.strip() != "max")]), 0.0)
