"""Sticky task assignment: a worker keeps the task group it started, so its caches are reused.

Tasks of a group share orders and moments of memory, which each worker computes once. A second worker joins a group
only when no unstarted group is left.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from primus_search.base.errors import PrimusSearchError
from primus_search.exploration.exhaustive.evaluate import Task

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

    def __str__(self) -> str:
        where = f"task {self.task.number} (candidates {self.task.start}..{self.task.stop})"
        return f"{where} lost its worker {MAX_TRIES} times; {self.why}"


class TaskAssignment:
    """Tasks that nobody has begun, the most promising first, and who has begun their groups."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._groups: dict[Group, deque[tuple[int, Task]]] = defaultdict(deque)
        for place, task in enumerate(tasks):
            self._groups[task.cluster, task.group].append((place, task))
        self._workers: dict[Group, set[int]] = {group: set() for group in self._groups}
        self._again: list[Task] = []
        self._tries = Counter[int]()
        self.lost: list[LostTask] = []

    def __len__(self) -> int:
        """Tasks nobody has begun."""
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
        """Of the groups that nobody else has begun the most promising, else the one with most tasks per worker."""
        others = {group: len(self._workers[group] - {worker}) for group in self._groups}
        alone = [group for group, count in others.items() if not count]
        if alone:
            return min(alone, key=lambda group: self._groups[group][0][0])
        return max(self._groups, key=lambda group: len(self._groups[group]) / others[group])

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
