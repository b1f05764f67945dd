"""Machines as containers are: a uid without a passwd entry, no HOME, nothing writable but a temporary folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEARCH = ("run", str(ROOT / "spaces/mixtral_8x22b_mi355x.yaml"), "--nodes", "4", "--bench", "off")
NARROW = ("tp=1", "cp=1", "etp=1", "micro_batch_size=1", "sharding=distributed_optimizer", "schedule=1f1b", "fp8=none")
"""Fewer candidates of the README's first search."""
FAST = "tests/declare/test_bounds.py"
ROOMS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/") if list(path.glob("test_*.py")))
"""What `make check` runs, room by room: `pytest -m full tests/cli/test_containers.py`."""
READ_ONLY = """
set -e
folder=$1
shift
mount --bind "$folder" "$folder" || exit 99
cut -d " " -f 2 /proc/self/mounts | while read -r place; do
  case "$place" in
    "$folder"|/proc*|/sys*|/dev*) ;;
    *) mount -o remount,bind,ro "$place" || exit 99 ;;
  esac
done
cd "$folder"
exec unshare -U --map-user=12345 --map-group=12345 "$@"
"""
"""The whole file system read-only but for one folder, and then an unmapped user."""


def bare(folder: Path) -> dict[str, str]:
    """The environment of a container: no HOME, temporary files in one folder."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")}
    return kept | {"TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def contained(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in such a container, or a skipped test where this machine makes none."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    command = ["unshare", "-m", "bash", "-c", READ_ONLY, "bash", str(folder), sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=bare(folder), capture_output=True, text=True, check=False)
    if done.returncode == 99 or "unshare: " in done.stderr:
        pytest.skip(f"namespaces are not available here: {done.stderr.strip()[:80]}")
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The one folder that may be written, by anybody."""
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        path.chmod(0o777)
    return tmp_path


@pytest.mark.full  # compiles every kernel: the caches of this machine cannot be read there
def test_the_first_command_of_the_readme_searches_there(folder: Path) -> None:
    sets = [word for one in NARROW for word in ("--set", one)]
    done = contained(folder, "-m", "primus_search", *SEARCH, *sets, "--out", str(folder / "run"))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-2000:]
    assert (folder / "run" / "report.html").is_file()


@pytest.mark.in_turn
def test_a_space_is_read_and_a_model_is_described_there(folder: Path) -> None:
    done = contained(folder, "-m", "primus_search", "models", "llama3_8b")
    assert (done.returncode, done.stderr) == (0, "")
    done = contained(folder, "-m", "primus_search", *SEARCH, "--set", "tp=0", "--out", str(folder / "run"))
    assert done.returncode == 2 and "$.space.tp" in done.stderr, done.stderr[-2000:]


@pytest.mark.daily(1)
@pytest.mark.parametrize("where", ["/", "."])
def test_kernels_are_kept_in_the_temporary_folder_there(where: str, folder: Path) -> None:
    """Without HOME numba makes a folder named `~` in the working folder, or cannot be loaded."""
    start = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.chdir({where!r})"
    code = f"{start}; import primus_search.schedule.algorithms.interleaved; print(os.environ['NUMBA_CACHE_DIR'])"
    done = contained(folder, "-c", code)
    assert (done.returncode, Path(done.stdout.strip()).is_relative_to(folder)) == (0, True), done.stderr[-2000:]
    assert not (folder / "~").exists()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "name",
    [pytest.param(FAST, marks=pytest.mark.slow), *(pytest.param(room, marks=pytest.mark.full) for room in ROOMS)],
)
def test_fast_tests_pass_there(name: str, folder: Path) -> None:
    options = [
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(folder / "pytest"),
        "-m",
        "not slow and not full",
    ]
    run = f"import os, sys, pytest; os.chdir({str(ROOT)!r}); sys.exit(pytest.main({[*options, name]!r}))"
    done = contained(folder, "-c", run)
    assert done.returncode in (0, 5), done.stdout[-2000:] + done.stderr[-500:]  # 5: no fast test in it
