"""A command that a signal ends says which, exits with 128 + its number, and keeps what it has."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = (sys.executable, "-m", "primus_search", "run", "deepseek_v2_mi355x", "--bench", "off", "--out")


def wait_for(folder: Path) -> None:
    """Until the command holds its run folder: from then on it handles signals."""
    ends_at = time.monotonic() + 60
    while not (folder / ".lock").exists() and time.monotonic() < ends_at:
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "after_s"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 3.0), (signal.SIGHUP, 1.0)], ids=str
)
def test_a_signal_ends_a_search_by_its_own_name(number: signal.Signals, after_s: float, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RUN, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for(tmp_path / "run")
    time.sleep(after_s)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in said.decode() and "Traceback" not in said.decode()


def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m primus_search models | head -1", shell=True, capture_output=True, check=False, text=True
    )
    assert done.stderr == ""
