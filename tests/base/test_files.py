"""Files that are written whole: what a killed writer leaves behind goes with a later write."""

import os
import subprocess
import sys
from pathlib import Path

from primus_search.base.guards import files

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
