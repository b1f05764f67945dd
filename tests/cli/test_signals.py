"""A command that a signal ends names it, exits with 128 + its number and keeps what it has; no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kills import IGNORES, PATIENCE_S, Moment, Run, write_space

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"))


@pytest.mark.in_turn
@pytest.mark.daily(2)
@pytest.mark.parametrize(("number", "workers"), [*zip(ENDING, "212", strict=True)], ids=str)
def test_a_signal_ends_a_search_by_its_own_name(
    number: signal.Signals, workers: str, tmp_path: Path, space: Path
) -> None:
    run = Run(space, tmp_path / "run", ("--workers", workers))
    held = run.held(Moment(3))
    os.kill(held.process.pid, number)
    _, text = held.process.communicate(timeout=PATIENCE_S)
    assert held.process.returncode == 128 + number
    assert f"interrupted by {number.name}" in text.decode()
    assert "Traceback" not in text.decode() and "ignored" not in text.decode()
    assert (run.folder / "journal.bin").exists()
    run.wait_until_gone()


@pytest.mark.in_turn
def test_a_run_under_nohup_goes_on_after_sighup(tmp_path: Path, space: Path) -> None:
    run = Run(space, tmp_path / "run", ("--workers", "1"))
    command = f"trap '' HUP; exec {sys.executable} -c 'import signal; print(signal.getsignal(signal.SIGHUP).name)'"
    is_ignored = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip()
    assert is_ignored == "SIG_IGN"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        held = run.held(Moment(3), environment={IGNORES: "1"})
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(held.process.pid, signal.SIGHUP)
    assert held.ended()[0] == 0
    assert (run.folder / "run.json").exists()


def test_a_signal_in_a_destructor_is_not_lost() -> None:
    """Python prints what a destructor raises and goes on; a handler that raises there would lose its signal."""
    text = """
import os, signal
from primus_search.base.guards import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
interrupts.install()
class Fragile:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass
fragile = Fragile()
del fragile
try:
    interrupts.check()
except interrupts.Interrupted as stop:
    os._exit(128 + stop.number)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize(
    ("after", "code"), [("interrupts.GRACE_S = 0.1", 130), ("os.kill(os.getpid(), signal.SIGTERM)", 130)]
)
def test_a_command_that_never_looks_is_ended_all_the_same(after: str, code: int) -> None:
    """After its time of grace, or by a second signal; the first one is the reason."""
    text = f"""
import os, signal, time
from primus_search.base.guards import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
interrupts.install()
interrupts.REPEAT_S = -1.0
{after if "GRACE" in after else ""}
os.kill(os.getpid(), signal.SIGINT)
{after if "GRACE" not in after else ""}
while True:
    sum(range(1000))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, "primus-search: interrupted by SIGINT\n")


def test_a_signal_after_the_end_changes_nothing() -> None:
    text = """
import os, signal, sys
from primus_search.base.guards import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
interrupts.install()
assert interrupts.finish() == 0
for number in interrupts.ENDING:
    os.kill(os.getpid(), number)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_ends_by_a_signal_at_once() -> None:
    text = """
import os, signal, sys
from primus_search.base.guards import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
interrupts.install()
child = os.fork()
if not child:
    while True:
        signal.pause()
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
assert os.WTERMSIG(status) == signal.SIGTERM and not interrupts.finish()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    done = subprocess.run(
        f"{sys.executable} -m primus_search models | head -1", shell=True, capture_output=True, check=False, text=True
    )
    assert done.stderr == ""


def test_an_interrupt_of_the_first_import_ends_without_a_traceback() -> None:
    text = """
import builtins, os, runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
whole = builtins.__import__
def interrupted(name, *rest, **more):
    if name.endswith("interrupts"):
        os.kill(os.getpid(), signal.SIGINT)
    return whole(name, *rest, **more)
builtins.__import__ = interrupted
runpy.run_module("primus_search.__main__", run_name="__main__", alter_sys=True)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
