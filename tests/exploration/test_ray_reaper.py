"""What is started under a guardian ends with the process that started it, even where it defends itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primus_search.exploration.engines.ray_reaper import MARKS, Guardian

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a guardian needs /proc")

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
DRIVER = f"""
import subprocess, sys, time
from primus_search.exploration.engines.ray_reaper import Guardian
guardian = Guardian()
with guardian.marking():
    child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
PATIENCE_S = 60.0


def stubborn() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    return child


def is_alive(number: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_what_was_started_under_a_guardian_ends_with_its_killed_driver() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    assert is_alive(child)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    driver.stdout.read()  # ends: the guardian does not hold the pipe


@pytest.mark.parametrize("lost", range(len(MARKS)))
def test_a_process_that_has_lost_one_of_its_marks_is_still_known(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guardian = Guardian()
    with guardian.marking(), monkeypatch.context() as patch:
        patch.delenv(MARKS[lost])
        inside = stubborn()
    guardian.end()
    assert inside.wait(PATIENCE_S) == -signal.SIGKILL


def test_ending_a_guardian_ends_what_it_guards_and_nothing_else() -> None:
    guardian, outside = Guardian(), stubborn()
    with guardian.marking():
        inside = stubborn()
    assert not set(MARKS) & set(os.environ)
    guardian.end()
    assert inside.wait(PATIENCE_S) == -signal.SIGKILL
    assert outside.poll() is None
    outside.kill()
    outside.wait()
    guardian.end()  # a second time is harmless
