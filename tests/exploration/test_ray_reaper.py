"""What is started under a reaper ends with the process that started it, even where it defends itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primus_search.exploration.engines.ray_reaper import KEPT_ENVIRONMENT, MARK, ClusterReaper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a reaper needs /proc")

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
TITLED = """
import time
from ray._raylet import setproctitle
setproctitle("ray::DashboardAgent")
print("up", flush=True)
time.sleep(600)
"""
DRIVER = f"""
import subprocess, sys, time
from primus_search.exploration.engines.ray_reaper import ClusterReaper
reaper = ClusterReaper()
with reaper.marking():
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


def test_what_was_started_under_a_reaper_ends_with_its_killed_driver() -> None:
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
    driver.stdout.read()  # ends: the reaper does not hold the pipe


def titled() -> subprocess.Popen[bytes]:
    """A process that has given itself a title, as Ray's agents do; no variable has changed since it began."""
    child = subprocess.Popen([sys.executable, "-c", TITLED], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    return child


@pytest.mark.in_turn
def test_a_process_that_has_a_title_keeps_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `KEPT_ENVIRONMENT` the title erases every variable: so agents outlived their killed driver."""
    pytest.importorskip("ray")
    for name in ("RAY_CLIENT_MODE", "KMP_DUPLICATE_LIB_OK", *KEPT_ENVIRONMENT):  # what `import ray` may replace
        monkeypatch.delenv(name, raising=False)
    reaper = ClusterReaper()
    with reaper.marking():
        for name in KEPT_ENVIRONMENT:
            monkeypatch.delenv(name)
        erased = titled()
        assert MARK.encode() not in Path(f"/proc/{erased.pid}/environ").read_bytes()
    erased.kill()
    erased.wait()
    with reaper.marking():
        kept = titled()
    reaper.end()
    assert kept.wait(PATIENCE_S) == -signal.SIGKILL


def test_ending_a_reaper_ends_what_it_guards_and_nothing_else() -> None:
    reaper, outside = ClusterReaper(), stubborn()
    with reaper.marking():
        inside = stubborn()
    assert MARK not in os.environ
    reaper.end()
    assert inside.wait(PATIENCE_S) == -signal.SIGKILL
    assert outside.poll() is None
    outside.kill()
    outside.wait()
    reaper.end()  # a second time is harmless
