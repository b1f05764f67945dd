"""A kernel cache that is damaged, cut short, foreign or garbage is compiled anew, with one line of notice."""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import config

import primus_search
from primus_search.declare import load_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.schedule import kernel_cache

KERNELS = """
from primus_search.schedule.kernel_cache import njit
@njit(cache=True)
def twice(x):
    return FACTOR * x
@njit(cache=True)
def thrice(x):
    return 3 * x
FACTOR = 2
"""


def called(program: Path) -> tuple[list[float], int]:
    """What fresh kernels of a program return, and how many of their three compilations the cache saved."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [module.twice(7), module.thrice(7), module.twice(0.5)]
    return found, sum(sum(one.stats.cache_hits.values()) for one in (module.twice, module.thrice))


ANSWER = [14, 21, 1.0]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program whose kernels are kept below `cache` beside it."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_noted", set())
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    assert called(path) == (ANSWER, 0)
    assert called(path) == (ANSWER, 3)
    return path


def flipped(path: Path) -> bytes:
    content, draw = bytearray(path.read_bytes()), random.Random(path.name)
    for _ in range(5):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def others(path: Path) -> bytes:
    """What is kept of another kernel, or of other types, in a file of the same kind."""
    return next(one.read_bytes() for one in sorted(path.parent.glob(f"*{path.suffix}")) if one != path)


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda path: path.read_bytes()[:-20],
    "short": lambda path: path.read_bytes()[:10],
    "longer": lambda path: path.read_bytes() + b".",
    "garbage": lambda _: random.Random(1).randbytes(3000),
    "flipped": flipped,
    "text": lambda _: b"no kernel",
    "pickle": lambda _: b"\x80\x05\x95\x0a\0\0\0\0\0\0\0\x8c\x060.68.1\x94.",
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_compiled_anew_with_one_line(
    damage: str, ending: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in program.parent.rglob(f"*.{ending}"):
        path.write_bytes(DAMAGES[damage](path))
    assert called(program) == (ANSWER, 0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "compiled anew" in lines[0] and str(program.parent / "cache") in lines[0]
    assert called(program) == (ANSWER, 3)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_whole_file_of_another_kernel_is_not_run(ending: str, program: Path) -> None:
    for path in sorted(program.parent.rglob(f"*twice*.{ending}")):
        path.write_bytes(others(path))
    assert called(program)[0] == ANSWER
    assert called(program)[0] == ANSWER


def test_code_of_an_older_source_is_not_run(program: Path) -> None:
    """An index that was written just before a kill names machine code of the source before."""
    kept = {path: path.read_bytes() for path in program.parent.rglob("*.nbc")}
    program.write_text(KERNELS.replace("FACTOR = 2", "FACTOR = 20"))
    answer = [140, 21, 10.0]
    assert called(program)[0] == answer
    for path, content in kept.items():
        path.write_bytes(content)
    assert called(program)[0] == answer


def test_a_folder_that_cannot_be_written_costs_a_line(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache._File, "_save_index", full)
    shutil.rmtree(program.parent / "cache")
    assert called(program) == (ANSWER, 0)
    assert "could not be kept" in capsys.readouterr().err


SPACE, OVERRIDES = "spaces/tiny_host.yaml", ("hardware=mi355x", "tp=1", "micro_batch_size=1")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its kernels, and of the files of data that a command reads."""
    folder, source = tmp_path_factory.mktemp("copy"), Path(primus_search.__file__).parent
    run_search(load_space(SPACE, overrides=OVERRIDES), Options(workers=1))  # now kernels are kept beside the source
    shutil.copytree(source, folder / "primus_search")
    for name in ("hardware", "spaces"):
        shutil.copytree(source.parent / name, folder / name)
    return folder


@pytest.mark.in_turn
@pytest.mark.slow
def test_a_command_runs_with_damaged_kernels(package: Path, tmp_path: Path) -> None:
    """As a full disk or a crash leaves them: empty files and cut ones, in the place where kernels are kept."""
    kept = package / "primus_search/space/__pycache__"
    damaged = [*kept.glob("key_kernels.place*.nbi"), *kept.glob("key_kernels.number_rows*.nbc")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[: 3000 * path.name.endswith("nbc")])
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", "primus_search", "run", SPACE, *(f"--set={one}" for one in OVERRIDES), "--workers=1",
         "--bench=off", f"--out={tmp_path / 'run'}"],
        env=environment | {"PYTHONPATH": str(package), "NUMBA_NUM_THREADS": "0"},
        cwd=package, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("compiled anew") == bool(damaged)
