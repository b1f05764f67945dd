"""Whatever is killed, at whatever moment: the same files to the byte, nothing lost, nothing left behind.

A few moments in the default suite; with `-m full` thirty kills of drivers and workers each, ten of nodes, five of each
signal. Moments are writes to disk, drawn from a seed: from the journal's first record to the last file of a run.
"""

import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import kills
from tests.support.kills import Moment, Run, kill_at, moments, write_space
from tests.support.ray_cluster import add_node, two_nodes

MOMENTS, NODES, SIGNALS = 30, 10, 5
WITH_A_TASK = 20
"""Kills of drivers, of MOMENTS, that have to come after the first finished task."""
FEW = 1
HOW_OFTEN = [pytest.param(FEW, marks=pytest.mark.slow), pytest.param(MOMENTS, marks=pytest.mark.full)]

Whole = tuple[Path, bytes, int]
Record = Callable[[str, object], None]
"""`record_property`: counts that `--junitxml` writes."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The space, the answer of an undisturbed run, and how many tasks it had."""
    folder = tmp_path_factory.mktemp("whole")
    run = Run(write_space(folder), folder / "run")
    kills.finished_here(run, workers=1)
    return run.space, run.answer(), run.num_tasks


@pytest.mark.full
def test_a_killed_driver_continues_to_the_same_files(tmp_path: Path, whole: Whole, record_property: Record) -> None:
    space, answer, num_tasks = whole
    before, with_a_task = shared_memory(), 0
    for number, moment in enumerate(moments(MOMENTS, 1, num_tasks)):
        run = Run(space, tmp_path / str(number), ("--workers", "2"))
        kill_at(run, moment)
        with_a_task += kills.recorded(run.folder) > 0
        run.wait_until_gone()
        run.finish("--resume")
        assert run.answer() == answer, f"killed at {moment}"
        assert_nothing_is_left(run, before)
    record_property("kills after the first finished task", with_a_task)
    assert with_a_task >= WITH_A_TASK


def shared_memory() -> set[str]:
    """Names of what is in shared memory."""
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def assert_nothing_is_left(run: Run, before: set[str] | None) -> None:
    """No process, no temporary file, no shared memory of a run.

    before: what was in shared memory; None where other tests may run at the same time.
    """
    run.wait_until_gone()
    assert [path.name for path in run.folder.iterdir() if path.name.endswith(".tmp")] == []
    assert before is None or shared_memory() <= before


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("SIGTERM", FEW, marks=pytest.mark.slow),
        *(pytest.param(name, SIGNALS, marks=pytest.mark.full) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")),
    ],
)
def test_a_run_that_a_signal_ended_continues_to_the_same_files(
    name: str, count: int, tmp_path: Path, whole: Whole
) -> None:
    space, answer, num_tasks = whole
    before = shared_memory() if count > FEW else None
    for number, moment in enumerate(moments(count, len(name) + ord(name[-1]), num_tasks)):
        run = Run(space, tmp_path / str(number), ("--workers", "2"))
        held = run.held(moment)
        kills.end(held.process, name)
        code, said = held.ended()
        is_complete = (run.folder / "run.json").exists()
        assert code == 128 + signal.Signals[name] or (code == 0 and is_complete), said
        assert "Traceback" not in said and "ignored" not in said
        run.wait_until_gone()
        kills.continued_here(run)
        assert run.answer() == answer, f"{name} at {moment}"
        assert_nothing_is_left(run, before)


@pytest.mark.in_turn
def test_a_driver_killed_again_and_again_still_arrives(tmp_path: Path, whole: Whole) -> None:
    space, answer, num_tasks = whole
    run = Run(space, tmp_path / "run", ("--workers", "2"))
    kill_at(run, Moment(num_tasks // 3))
    kill_at(run, Moment(num_tasks // 3), "--resume")
    run.wait_until_gone()
    run.finish("--resume")
    assert run.answer() == answer
    assert_nothing_is_left(run, None)


@pytest.mark.in_turn
@pytest.mark.parametrize("count", HOW_OFTEN)
def test_killed_workers_are_replaced(count: int, tmp_path: Path, whole: Whole) -> None:
    """The driver stands still meanwhile: its workers are at their tasks, or wait for further ones."""
    space, answer, num_tasks = whole
    before = shared_memory() if count > FEW else None
    for number in range(count):
        moment = Moment(random.Random(f"2 {number}").randint(2, num_tasks // 2))
        run = Run(space, tmp_path / str(number), ("--workers", "2"))
        held = run.held(moment)
        kills.wait_for(lambda parent=held.process.pid: bool(kills.children_of(parent)))
        assert _killed(kills.children_of(held.process.pid), number)
        code, said = held.ended()
        assert code == 0, said
        assert run.answer() == answer, f"killed at {moment}"
        assert_nothing_is_left(run, before)


def _killed(victims: list[int], seed: int) -> bool:
    """Kill one of some processes; False when there is none."""
    if not victims:
        return False
    try:
        os.kill(random.Random(seed).choice(victims), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# --- on Ray --------------------------------------------------------------------------------------------------------


CLUSTER_MARK = uuid.uuid4().hex


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two nodes of one core; all that they start is marked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kills.MARK, CLUSTER_MARK)
        with two_nodes() as found:
            yield found


@pytest.mark.in_turn("ray")
@pytest.mark.parametrize(
    "count", [pytest.param(FEW, marks=pytest.mark.slow), pytest.param(NODES, marks=pytest.mark.full)]
)
def test_ray_loses_workers_and_nodes_but_no_row(
    count: int, tmp_path: Path, whole: Whole, cluster: Any, record_property: Record
) -> None:
    space, answer, num_tasks = whole

    def lose_worker() -> bool:
        return _killed(kills.ray_workers(CLUSTER_MARK), count)

    def lose_node() -> bool:
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        add_node(cluster)
        return True

    for what, disturb in (("worker", lose_worker), ("node", lose_node)):
        hits = 0
        for number in range(6 * count):
            after = random.Random(f"{what} {number}").randint(0, num_tasks // 2)
            run = Run(space, tmp_path / f"{what}{number}")
            hits += kills.disturbed_here(run, cluster.address, disturb, after)
            assert run.answer() == answer, f"{what} killed after {after} tasks"
            if hits == count:
                break
        record_property(f"runs that lost a {what}", hits)
        assert hits == count, f"{what}: {hits} of {number + 1} runs"


@pytest.mark.in_turn("ray")
@pytest.mark.parametrize("count", HOW_OFTEN)
def test_a_driver_killed_on_ray_leaves_nothing_and_continues(
    count: int, tmp_path: Path, whole: Whole, cluster: Any
) -> None:
    space, answer, num_tasks = whole
    for number, moment in enumerate(moments(count, 5, num_tasks)):
        run = Run(space, tmp_path / str(number), ("--ray-address", cluster.address))
        kill_at(run, moment)
        run.wait_until_gone()
        kills.wait_for(lambda: not kills.ray_workers(CLUSTER_MARK))
        kills.continued_here(run)
        assert run.answer() == answer, f"killed at {moment}"


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("when", [kills.ray_agents, kills.ray_workers, None], ids=["agents_start", "workers", "done"])
def test_a_private_cluster_ends_with_its_driver(
    when: Callable[[str], list[int]] | None, tmp_path: Path, whole: Whole
) -> None:
    """Killed, also while its agents start: left to themselves these would wait for the dead cluster for over a minute;
    and at the end of a run."""
    pytest.importorskip("ray")
    space, answer, _ = whole
    run = Run(space, tmp_path / "run", ("--engine", "ray", "--workers", "2"))
    if when is None:
        run.finish()
        assert not run.processes()
    else:
        held = run.holding(Moment(2))  # it cannot end before it was looked at, however busy the machine
        process = held.process
        kills.wait_for(lambda: bool(when(run.mark)) or process.poll() is not None)
        assert process.poll() is None
        process.kill()
        process.wait()
        run.wait_until_gone()
        process.communicate()
        held.file.unlink(missing_ok=True)
        kills.continued_here(run)
    assert run.answer() == answer
