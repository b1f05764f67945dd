"""Worker processes that die while nobody waits for them."""

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from primus_search.declare import load_space
from primus_search.exploration.engines.local_engine import Processes, WorkerLost
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Cut, Shortlist
from primus_search.exploration.exhaustive.task_plan import plan_tasks, promising_places
from primus_search.exploration.findings import Findings
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.space import Space
from tests.support.kills import TASK_ROWS, small_tasks, write_space


@pytest.fixture(scope="module")
def funnel(tmp_path_factory: pytest.TempPathFactory) -> Funnel:
    """Forked into the workers of each engine."""
    return Funnel(load_space(write_space(tmp_path_factory.mktemp("space"))), 10)


@pytest.mark.in_turn
def test_workers_lost_between_two_findings_are_replaced(funnel: Funnel) -> None:
    """They are missed when the next task is sent, not while one is waited for."""
    tasks = plan_tasks(funnel, TASK_ROWS, promising_places(funnel))[:12]
    engine = Processes(funnel, 2)
    try:
        findings = engine.map(tasks, lambda _: Shortlist.empty(10).cut)
        done = [next(findings)[0].number]
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGKILL)
            worker.join()
        done += [task.number for task, _ in findings]
    finally:
        engine.close()
    assert sorted(done) == sorted(task.number for task in tasks)


@pytest.mark.in_turn
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", range(12))
def test_an_idle_worker_that_is_killed_keeps_nobody_waiting(seed: int, funnel: Funnel) -> None:
    """Workers that wait for work, or are just given some, hold nothing that the others or the end need."""
    tasks = plan_tasks(funnel, TASK_ROWS, promising_places(funnel))[:8]
    engine = Processes(funnel, 2)
    try:
        done = [task.number for task, _ in engine.map(tasks[:2], lambda _: Shortlist.empty(10).cut)]
        victim = multiprocessing.active_children()[seed % 2]
        os.kill(victim.pid or 0, signal.SIGKILL)
        time.sleep(0.001 * (seed // 2))
        done += [task.number for task, _ in engine.map(tasks[2:], lambda _: Shortlist.empty(10).cut)]
    finally:
        engine.close()
    assert sorted(done) == sorted(task.number for task in tasks)
    assert not multiprocessing.active_children()


def test_what_a_worker_raises_is_raised_with_where(funnel: Funnel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Funnel, task: Task, cut: Cut) -> Findings:
        raise ValueError("no such row")

    monkeypatch.setattr(Funnel, "evaluate", fails)
    engine = Processes(funnel, 2)
    with pytest.raises(ValueError, match="no such row") as caught, closing(engine):
        list(engine.map(plan_tasks(funnel, TASK_ROWS, promising_places(funnel)), lambda _: Shortlist.empty(10).cut))
    assert "in fails" in "".join(caught.value.__notes__)


@pytest.mark.in_turn
@pytest.mark.parametrize("workers", [1, 2])
def test_a_range_that_memory_does_not_hold_is_named_and_the_rest_answered(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Funnel.evaluate

    def evaluate(self: Funnel, task: Task, cut: Cut) -> Findings:
        if task.number == FATAL:
            raise MemoryError
        return real(self, task, cut)

    monkeypatch.setattr("primus_search.exploration.engines.local_engine.MAX_TRIES", 2)
    space = load_space(write_space(tmp_path))
    with small_tasks():
        whole = run_search(space, Options(workers=1, keep=10))
        monkeypatch.setattr(Funnel, "evaluate", evaluate)
        result = run_search(space, Options(workers=workers, keep=10))
    assert re.match(rf"task {FATAL} \(candidates \d+\.\.\d+\) .*memory", result.notes[0])
    assert not result.exact and not result.is_complete and 0 < result.looked_at < whole.looked_at


class _FullStore:
    """An object store that refuses the first few cuts it is given."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Cut) and self.left:
            self.left -= 1
            from ray.exceptions import ObjectStoreFullError

            raise ObjectStoreFullError("full")
        return value


def test_a_full_object_store_is_waited_for(funnel: Funnel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a task that is refused though nothing is awaited counts as tried."""
    pytest.importorskip("ray")
    from primus_search.exploration.engines import ray_engine

    monkeypatch.setattr(ray_engine.ray, "put", _FullStore(3))
    tasks = plan_tasks(funnel, TASK_ROWS, promising_places(funnel))[:6]
    engine = object.__new__(ray_engine.RayCluster)
    engine.__dict__ |= {"_cuts": {}, "_pool": [_Lane(funnel)], "workers": 1, "_rescan": lambda: None}
    engine.__dict__["_ready"] = lambda: [lane for lane in engine._pool if lane.flying]
    done = [task.number for task, _ in engine.map(tasks, lambda _: Shortlist.empty(10).cut)]
    assert sorted(done) == sorted(task.number for task in tasks) and not engine.lost


class _Lane:
    """A worker of a cluster that answers in this process."""

    number, is_open = 0, True

    def __init__(self, funnel: Funnel) -> None:
        self.flying: list[tuple[Cut, Task]] = []
        self._funnel = funnel

    def send(self, task: Task, cut: Cut) -> None:
        self.flying.append((cut, task))

    def receive(self) -> tuple[Task, Findings]:
        cut, task = self.flying.pop(0)
        return task, self._funnel.evaluate(task, cut)


FATAL = 3
"""Number of the task that ends whoever is at it."""


def arm(patch: pytest.MonkeyPatch) -> None:
    """The fatal task ends this process, and what is forked from it."""
    real = Funnel.evaluate

    def ends(self: Funnel, task: Task, cut: Cut) -> Findings:
        if task.number == FATAL:
            os._exit(9)
        return real(self, task, cut)

    patch.setattr(Funnel, "evaluate", ends)


class Arming:
    """A space on its way to a worker of Ray, which unpacking it arms."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def __reduce__(self) -> tuple[Any, ...]:
        return _armed, (self.space,)


def _armed(space: Space) -> Space:
    arm(pytest.MonkeyPatch())
    return space


def arm_workers_of_ray(patch: pytest.MonkeyPatch) -> None:
    """The fatal task ends Ray's workers; after two of them it is given up."""
    ray = pytest.importorskip("ray")
    put = ray.put

    def armed_put(value: Any) -> Any:
        is_space = isinstance(value, tuple) and isinstance(value[0], Space)
        return put((Arming(value[0]), value[1]) if is_space else value)

    patch.setattr("primus_search.exploration.engines.ray_engine.ray.put", armed_put)
    patch.setattr("primus_search.exploration.engines.local_engine.MAX_TRIES", 2)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("engine", "prepare", "tries"),
    [("local", arm, 8), pytest.param("ray", arm_workers_of_ray, 2, marks=pytest.mark.slow)],
    ids=["local", "ray"],
)
def test_a_task_that_ends_every_worker_is_named_and_the_rest_answered(
    engine: str,
    prepare: Callable[[pytest.MonkeyPatch], None],
    tries: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = load_space(write_space(tmp_path))
    with small_tasks(), RunFolder.open(tmp_path / "run", resume=False) as folder:
        whole = run_search(space, Options(workers=1, keep=10))
        with monkeypatch.context() as patch:
            prepare(patch)
            result = run_search(space, Options(engine=engine, workers=2, keep=10, folder=folder))
        name, share = result.notes[:2]
        assert re.match(rf"task {FATAL} \(candidates \d+\.\.\d+\) lost its worker {tries} times; ", name)
        assert re.fullmatch(r"\d+\.\d\d% of the space was not evaluated: --resume tries these tasks again", share)
        assert not result.exact and not result.is_complete and 0 < result.looked_at < whole.legal == result.legal
        again = run_search(space, Options(workers=2, keep=10, folder=folder, resume=True))
    assert again.exact and list(again.ranking.rows()) == list(whole.ranking.rows())


def test_a_search_whose_every_task_ends_its_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Funnel, "evaluate", lambda self, task, cut: os._exit(9))
    monkeypatch.setattr("primus_search.exploration.engines.local_engine.MAX_TRIES", 2)
    with pytest.raises(WorkerLost, match=r"^task \d+ \(candidates \d+\.\.\d+\) lost its worker 2 times"):
        run_search(load_space(write_space(tmp_path)), Options(workers=2, keep=10))
