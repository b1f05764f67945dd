"""Nothing of a private Ray cluster outlives the process that started it, however that process ends.

Ray ends its own processes when their driver is killed, except agents that are still starting: these wait for the dead
cluster for a minute. So a reaper stands beside the driver: a bare Python process in a session of its own, which waits
for the pipe from the driver to close (the kernel closes it, also after SIGKILL) and then kills every process that
carries the cluster's mark in its environment.

This file is run as a script by the reaper itself: it imports nothing but the standard library.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

MARK = "PRIMUS_SEARCH_CLUSTER"
"""The variable by which processes of a cluster are known; children inherit it."""

KEPT_ENVIRONMENT = {"SPT_NOENV": "1"}
"""setproctitle writes a title over the arguments and, unless this is set, over the environment behind them, up to the
first variable that the process has changed. Ray sets it for its workers but not for its agents, whose variables are in
the order of a hash table: without it both agents of some clusters lost their marks with their title."""

PATIENCE_S, POLL_S = 60.0, 0.05
POLLS_UNTIL_GONE = 10
"""Looks in a row that find nothing before the reaper ends."""

ORDERLY = b"."
"""What a driver that ends by itself writes to its reaper."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """This process and those it starts meanwhile have these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class ClusterReaper:
    """Ends whatever was started inside `marking`, at `end` or when this process dies. Linux only; elsewhere idle."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", str(Path(__file__)), self._mark]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # whoever reads the driver's output need not wait for its reaper
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def marking(self) -> AbstractContextManager[None]:
        """Processes started meanwhile carry the mark."""
        return environment({MARK: self._mark} | KEPT_ENVIRONMENT)

    def end(self) -> None:
        """Kill what is left, and wait until it is gone."""
        if self._process is not None:
            self._process.communicate(ORDERLY)
            self._process = None


def _marked(mark: str) -> list[int]:
    """Process ids of all that carry the mark."""
    return [number for number in _numbers() if mark.encode() in _environment(number)]


def _numbers() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return b""


def _forks(driver: tuple[bytes, int]) -> list[int]:
    """Processes with the command line and session of a driver: what it forked shows its mark only after its exec."""
    command, session = driver
    return [number for number in _numbers() if command and _command(number) == (command, session)]


def _command(number: int) -> tuple[bytes, int]:
    """Command line and session of a process; empty where there is none."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes(), os.getsid(number)
    except OSError:
        return b"", 0


def _kill_all(mark: str, driver: tuple[bytes, int]) -> None:
    """Kill the marked until none is left; what the kernel does not let go of within a minute stays.

    driver: of a driver that was killed, whose forks are waited for.
    """
    deadline, empty = time.monotonic() + PATIENCE_S, 0
    while empty < POLLS_UNTIL_GONE and time.monotonic() < deadline:
        found = _marked(mark)
        empty = 0 if found or _forks(driver) else empty + 1
        for number in found:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended meanwhile
        time.sleep(POLL_S)


def _watch(mark: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = _command(os.getppid())
    is_orderly = sys.stdin.buffer.read(1) == ORDERLY
    _kill_all(mark, (b"", 0) if is_orderly else driver)


if __name__ == "__main__":
    _watch(sys.argv[1])
