"""Runs that are killed at random moments: start one, kill what the test wants killed, continue, compare to the byte.

The command line itself is run in a process of its own, with tasks cut small, so that even a space of a few seconds has
many of them. Everything such a run starts inherits a mark in its environment, by which orphans are found, whatever
session or process group they moved to.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_search.analysis.answer import answered
from primus_search.declare import load_space
from primus_search.exploration.exhaustive import evaluate, task_plan
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.exploration.run_folder.journal import MAGIC

TASK_ROWS = KEEP = 500
MARK = "KILL_TEST_MARK"
HOLD, IGNORES = "KILL_TEST_HOLD", "KILL_TEST_NOHUP"
PATIENCE_S = 600.0
POLL_S = 0.01
RAY_WORKER = b"ray::Worker"
NUM_FILES = 4
"""Files of a run folder that are written after the search: two tables, all kept rows, facts."""

# The command with small tasks; workers are forked from it, and Ray's get their range with each task.
COMMAND = f"""
import os, signal, sys
from pathlib import Path
if not os.environ.get("{IGNORES}"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so does a shell for what it starts behind it
from primus_search.base.guards import interrupts
interrupts.install()
from primus_search.exploration.exhaustive import evaluate, task_plan
from primus_search.exploration.run_folder.journal import Journal
for module in (evaluate, task_plan):
    module.CHUNK_ROWS = {TASK_ROWS}
task_plan.MAX_TASK_ROWS = task_plan.LEAST_TASK_ROWS = {TASK_ROWS}
if os.environ.get("{HOLD}"):
    number, place, held = os.environ["{HOLD}"].split(" ", 2)
    calls, sync = [], os.fsync
    def hold(descriptor):
        calls.append(descriptor)
        is_there = len(calls) == int(number)
        if is_there and place == "before":
            stand()
        sync(descriptor)
        if is_there and place == "after":
            stand()
    def stand():
        Path(held).touch()
        while Path(held).exists():
            interrupts.wait(timeout_s=0.02)
    os.fsync = hold
from primus_search.cli import main
from primus_search.report import html
html.write_report = lambda run: None  # a quarter of such a run, and written after all that is compared
main()
"""
"""Options by environment: `HOLD` is a number, before or after, and a file. The run makes the file before or after its
so-manieth write to disk, and goes on when the file is gone or a signal came."""

SPACE = {
    "name": "killed",
    "model": "tiny_moe",
    "hardware": "mi355x",
    "nodes": 2,
    "workload": {"seq_length": 1024, "global_batch_size": 64},
    "benchmark": {"device": "off"},
    "space": {
        "etp": 1,
        "cp": 1,
        "pp": [1, 2, 4],
        "schedule": ["1f1b", "interleaved", "zb-h1"],
        "micro_batch_size": 1,
        "sync_free_stage": [0, 1],
        "loss_fusion": True,
        "overlap_grad_reduce": True,
    },
}


@dataclass(frozen=True)
class Moment:
    """Before or after a write to disk: the journal's first record is the first, then come tasks, then files."""

    writes: int
    place: str = "after"


@dataclass(frozen=True)
class Run:
    """A run of the command in a folder of its own; `is_plain`: as a user starts it, its tasks as large as usual."""

    space: Path
    folder: Path
    options: tuple[str, ...] = ()
    is_plain: bool = False
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, *more: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The command, started."""
        arguments = ["run", str(self.space), "--out", str(self.folder), "--keep", str(KEEP), *self.options, *more]
        return subprocess.Popen(
            [sys.executable, *(["-m", "primus_search"] if self.is_plain else ["-c", COMMAND]), *arguments],
            env=os.environ | {MARK: self.mark} | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def holding(self, moment: "Moment", *more: str, environment: Mapping[str, str] | None = None) -> "Held":
        """The command, started; it will stand still at a moment."""
        file = self.folder.with_name(f"{self.folder.name}.held")
        hold = {HOLD: f"{moment.writes} {moment.place} {file}"}
        return Held(self.start(*more, environment=hold | dict(environment or {})), file)

    def held(self, moment: "Moment", *more: str, environment: Mapping[str, str] | None = None) -> "Held":
        """The command, started, as it stands still at a moment."""
        held = self.holding(moment, *more, environment=environment)
        wait_for(lambda: held.file.exists() or held.process.poll() is not None)
        assert held.process.poll() is None, held.process.communicate()[1].decode()
        return held

    def finish(self, *more: str) -> None:
        """The command, to its end."""
        process = self.start(*more)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said.decode()

    def answer(self) -> bytes:
        """What must not depend on who was killed: ranking, frontier and the counts of every stage."""
        facts = yaml.safe_load((self.folder / "run.json").read_text())
        counts = {name: facts[name] for name in ("exact", "complete", "raw", "legal", "feasible", "removed")}
        tables = [(self.folder / name).read_bytes() for name in ("ranking.csv", "pareto.csv")]
        return b"".join(tables) + repr(counts).encode()

    @property
    def num_tasks(self) -> int:
        """Tasks this finished run had."""
        legal: int = yaml.safe_load((self.folder / "run.json").read_text())["legal"]
        return -(-legal // TASK_ROWS)

    def processes(self) -> list[int]:
        """Everything alive that this run started, directly or not."""
        return marked(self.mark)

    def wait_until_gone(self, looks: int = 600) -> None:
        """Nothing may stay behind after a minute of looks, more where the machine is busy. Raises AssertionError with
        what did."""
        for _ in range(looks):
            left = {number: _words(number, "cmdline").replace(b"\0", b" ")[:100] for number in self.processes()}
            if not left:
                return
            time.sleep(0.1)
        raise AssertionError(f"orphans: {left}")


@dataclass(frozen=True)
class Held:
    """A run that stands still as long as the file is there."""

    process: subprocess.Popen[bytes]
    file: Path

    def ended(self) -> tuple[int, str]:
        """Its exit code and standard error, let go."""
        self.file.unlink(missing_ok=True)
        _, text = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text.decode()


def write_space(folder: Path) -> Path:
    """The space that is searched while things are killed."""
    path = folder / "killed.yaml"
    path.write_text(yaml.safe_dump(SPACE), encoding="utf-8")
    return path


def moments(count: int, seed: int, num_tasks: int) -> list[Moment]:
    """Random moments of a run of so many tasks, from holding its folder to writing its files."""
    draws = [random.Random(f"{seed} {number}") for number in range(count)]
    return [Moment(draw.randint(1, 1 + num_tasks + NUM_FILES), draw.choice(("before", "after"))) for draw in draws]


def recorded(folder: Path) -> int:
    """Tasks on record in the journal of a run that is going on; -1 before there is a journal."""
    try:
        return (folder / "journal.bin").read_bytes().count(MAGIC) - 1
    except FileNotFoundError:
        return -1


def kill_at(run: Run, moment: Moment, *more: str) -> None:
    """Start the run and kill its driver at a moment."""
    held = run.held(moment, *more)
    held.process.kill()
    held.process.communicate(timeout=PATIENCE_S)
    held.file.unlink()


def end(process: subprocess.Popen[bytes], name: str) -> None:
    """Send a signal by its name. SIGPIPE is met as in `| head`: the reader of standard output leaves."""
    if name == "SIGPIPE":
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
    else:
        process.send_signal(signal.Signals[name])


def disturbed_here(run: Run, address: str, disturb: Callable[[], bool], num_tasks: int) -> bool:
    """The run in this process, with something done to its cluster once so many tasks are on record; whether that was
    possible meanwhile.

    A process that stays connected to the cluster keeps its workers: only those that were killed start again.
    """
    with ThreadPoolExecutor(1) as search:  # Ray adds a node from the main thread only
        running = search.submit(finished_here, run, engine="ray", ray_address=address)
        wait_for(lambda: running.done() or recorded(run.folder) >= num_tasks)
        was_done = not running.done() and disturb()
        running.result(PATIENCE_S)
    return was_done


def finished_here(run: Run, **options: Any) -> None:
    """The run in this process, to its end; `resume=True` continues it."""
    folder = RunFolder.open(run.folder, resume=bool(options.get("resume")))
    try:
        with small_tasks():
            folder.write(answered(run_search(load_space(run.space), Options(keep=KEEP, folder=folder, **options))))
    finally:
        folder.close()


def continued_here(run: Run) -> None:
    """The run in this process, which has no imports to wait for: from its journal, or its files as they are."""
    finished_here(run, engine="local", workers=1, resume=True)


@contextmanager
def small_tasks() -> Iterator[None]:
    """This process cuts its tasks as COMMAND does."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (evaluate, task_plan):
            patch.setattr(module, "CHUNK_ROWS", TASK_ROWS)
        patch.setattr(task_plan, "MAX_TASK_ROWS", TASK_ROWS)
        patch.setattr(task_plan, "LEAST_TASK_ROWS", TASK_ROWS)
        yield


def wait_for(is_true: Callable[[], bool]) -> None:
    """Poll until something holds. Raises AssertionError when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(POLL_S)


def children_of(parent: int) -> list[int]:
    """Process ids of the direct children of a process."""
    return [number for number in _numbers() if _parent(number) == parent]


def marked(mark: str) -> list[int]:
    """Everything alive that inherited a mark."""
    return [number for number in _numbers() if mark.encode() in _words(number, "environ")]


def ray_workers(mark: str) -> list[int]:
    """Process ids of Ray workers with this mark that have begun to work for us."""
    return [number for number in marked(mark) if _words(number, "cmdline").startswith(RAY_WORKER)]


def ray_agents(mark: str) -> list[int]:
    """Process ids of Ray's agents with this mark: starting (a script), or at work (a title)."""
    return [number for number in marked(mark) if _is_agent(_words(number, "cmdline").split(b"\0"))]


def _is_agent(words: list[bytes]) -> bool:
    return words[0].startswith(b"ray::DashboardAgent") or any(word.endswith(b"agent.py") for word in words[:4])


def _numbers() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _words(number: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{number}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(number: int) -> int:
    words = _words(number, "stat").rpartition(b")")[2].split()
    return int(words[1]) if len(words) > 1 else -1
