"""Run tasks on an engine and merge what they find, until all are done, a budget is spent or the user stops."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate
from typing import Any

from primus_search.base.guards.interrupts import Interrupted, signal_of
from primus_search.exploration.engines.local_engine import Engine
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Cut, Shortlist, ShortlistRows
from primus_search.exploration.findings import Findings
from primus_search.exploration.run_folder.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Rows and wall seconds a search may use; 0 means no limit."""

    candidates: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Findings per cluster, and whether every row was evaluated; `interrupted_by` is the signal that ended it, or 0.

    `lost` names tasks whose workers were lost again and again.
    """

    findings: tuple[Findings, ...]
    is_complete: bool
    notes: tuple[str, ...] = ()
    interrupted_by: int = 0
    lost: tuple[str, ...] = ()

    @property
    def total(self) -> Findings:
        """Counts over all clusters; its rows mix clusters and mean nothing."""
        empty = Findings.none(1)
        return reduce(lambda left, right: left.plus(right), (one.without_rows() for one in self.findings), empty)


MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """One of the best candidates so far: its knobs, and what is projected of it."""

    knobs: Mapping[str, Any]
    num_gpus: int
    tokens_per_s_per_gpu: float
    memory_bytes: float


def leaders(funnel: Funnel, tops: Sequence[ShortlistRows]) -> list[Leader]:
    """The fastest by tokens per second and GPU, from the top list of every cluster."""
    found = [leader for cluster, top in enumerate(tops) for leader in _of(funnel, cluster, top.take(slice(MOST)))]
    return sorted(found, key=lambda leader: -leader.tokens_per_s_per_gpu)[:MOST]


def _of(funnel: Funnel, cluster: int, top: ShortlistRows) -> list[Leader]:
    world = funnel.space.clusters[cluster].cluster.world
    candidates = funnel.enumerators[cluster].rows(top.indices)
    return [
        Leader(
            knobs=candidates.row(rank),
            num_gpus=world,
            tokens_per_s_per_gpu=funnel.space.workload.tokens_per_step / float(top.step_s[rank]) / world,
            memory_bytes=float(top.memory_bytes[rank]),
        )
        for rank in range(len(top))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Where a search stands, for a progress bar. `leaders` lists the best rows so far when it is called."""

    rows_done: int
    rows_total: int
    legal: int
    feasible: int
    projected: int
    leaders: Callable[[], list[Leader]]


Progress = Callable[[Tick], None]


def silent(tick: Tick) -> None:
    """No progress bar."""


def collect(
    engine: Engine,
    funnel: Funnel,
    tasks: Sequence[Task],
    budget: Budget,
    journal: Journal | None,
    progress: Progress,
    seeds: Sequence[Shortlist],
) -> Collected:
    """Findings per cluster of all tasks; tasks that the journal holds are not done again.

    seeds: rows of each cluster that are known before; they prune, and count where the search ends early.
    """
    gathered, notes, interrupted_by = _Gathered(funnel, tasks, progress, seeds), list[str](), 0
    unkept = ""
    for done in journal.done if journal else ():
        gathered.add(done.task, done.findings)
    left = _within([task for task in tasks if task.number not in gathered.done], budget.candidates)
    ends_at = time.monotonic() + budget.seconds if budget.seconds else math.inf
    try:
        for task, findings in engine.map(left, gathered.cut_of, lambda: time.monotonic() >= ends_at):
            gathered.add(task.number, findings)
            if journal and not unkept:
                unkept = _unkept(journal, task.number, findings)
    except (KeyboardInterrupt, Interrupted) as stop:
        interrupted_by = signal_of(stop)
        notes.append("interrupted: these are the best candidates found so far")
    finally:
        if journal:
            journal.close()
    is_complete = len(gathered.done) == len(tasks)
    lost = [] if interrupted_by else [str(one) for one in engine.lost]
    if lost:
        share = sum(one.task.stop - one.task.start for one in engine.lost) / sum(one.stop - one.start for one in tasks)
        notes += [*lost, f"{share:.2%} of the space was not evaluated: --resume tries these tasks again"]
    if not is_complete and not notes:
        notes.append("the budget ran out: these are the best candidates found so far")
    return Collected(
        findings=tuple(gathered.findings if is_complete else gathered.with_seeds()),
        is_complete=is_complete,
        notes=(*notes, unkept) if unkept else tuple(notes),
        interrupted_by=interrupted_by,
        lost=tuple(lost),
    )


def _unkept(journal: Journal, task: int, findings: Findings) -> str:
    """Record a task; a note where that is impossible: a full disk must not end a search that can still end well."""
    try:
        journal.add(task, findings)
    except OSError as error:
        return f"the journal could not be written ({error.strerror}): --resume would do again what followed"
    return ""


def _within(tasks: Sequence[Task], candidates: int) -> Sequence[Task]:
    """The first tasks, until they hold so many candidates, and the first one of each cluster; all without a limit."""
    if not candidates:
        return tasks
    before = accumulate((task.stop - task.start for task in tasks), initial=0)
    first = {task.cluster: task for task in reversed(tasks)}
    return [task for task, rows in zip(tasks, before, strict=False) if rows < candidates or task is first[task.cluster]]


class _Gathered:
    """Findings per cluster so far."""

    def __init__(self, funnel: Funnel, tasks: Sequence[Task], progress: Progress, seeds: Sequence[Shortlist]) -> None:
        self._seeds = seeds
        self._cuts = [(seed, seed.cut) for seed in seeds]
        self.findings = [Findings.none(funnel.keep) for _ in funnel.enumerators]
        self.done: set[int] = set()
        self._tasks = {task.number: task for task in tasks}
        self._total = sum(task.stop - task.start for task in tasks)
        self._rows, self._progress, self._funnel = 0, progress, funnel

    def add(self, number: int, findings: Findings) -> None:
        task = self._tasks[number]
        self.done.add(number)
        self.findings[task.cluster] = self.findings[task.cluster].plus(findings)
        self._rows += task.stop - task.start
        self._progress(self._tick())

    def cut_of(self, cluster: int) -> Cut:
        """What a row must reach by now; the same object as long as nothing was found."""
        found = self.findings[cluster].shortlist
        if self._cuts[cluster][0] is not found:
            self._cuts[cluster] = (found, found.cut.tighter(self._cuts[cluster][1]))
        return self._cuts[cluster][1]

    def with_seeds(self) -> list[Findings]:
        """Findings so far, with the rows of the seeds."""
        return [
            replace(found, shortlist=found.shortlist.united(seed))
            for found, seed in zip(self.findings, self._seeds, strict=True)
        ]

    def _tick(self) -> Tick:
        tops = [f.shortlist.top for f in self.findings]
        return Tick(
            rows_done=self._rows,
            rows_total=self._total,
            legal=sum(f.legal for f in self.findings),
            feasible=sum(f.feasible for f in self.findings),
            projected=sum(f.rows.get("project", 0) for f in self.findings),
            leaders=partial(leaders, self._funnel, tops),
        )
