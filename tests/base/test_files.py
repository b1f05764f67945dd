"""Files that are written whole: what a killed writer leaves behind goes with a later write."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from primus_search.analysis.slow_jobs.device_trace import read_trace
from primus_search.base.errors import InputError
from primus_search.base.guards import files
from primus_search.learning.readers import read_log
from primus_search.nightly.observed import read_baseline
from primus_search.nightly.sweep import load_sweep

KILLED = """
import os, signal, sys
from pathlib import Path
from primus_search.base.guards.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_later_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "host-[1].yaml"
    subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    files.write_whole(target, "one")
    assert sorted(tmp_path.iterdir()) == sorted([left, target])  # its writer could still be at it elsewhere
    os.utime(left, (0, left.stat().st_mtime - 2 * files.LEFT_S))
    files.write_whole(target, "two")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["two"]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc here")
def test_a_file_of_the_kernel_is_refused_by_name() -> None:
    """They look regular to `stat`."""
    for read in (read_trace, read_log, load_sweep, read_baseline, lambda path: files.read_text(path, most=1 << 20)):
        with pytest.raises(InputError, match="/proc/self/mem"):
            read(Path("/proc/self/mem"))


def test_a_file_that_has_nothing_to_say_for_now_is_refused() -> None:
    """`/proc/kmsg`, read by root, gives None where bytes are expected."""
    end, other = os.pipe()
    os.set_blocking(end, False)
    with io.BufferedReader(files._Read(end, "kmsg")) as file, pytest.raises(InputError, match="kmsg: is not a regular"):
        file.read(16)
    os.close(other)


def test_a_fifo_in_place_of_a_baseline_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    for place, what in ((tmp_path, "not a regular file"), (tmp_path / "state.json", "keeps run folders")):
        with pytest.raises(InputError, match=what):
            read_baseline(place)
