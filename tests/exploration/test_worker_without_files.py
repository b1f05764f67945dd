"""A worker prices with what the driver shipped: the package alone, no file of data beside it."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import primus_search
from primus_search.base.errors import InputError
from primus_search.declare.record_table import write_records
from primus_search.declare.space_file import make_space
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import OPEN
from primus_search.exploration.findings import Findings
from primus_search.files import evidence_files
from primus_search.files.evidence_files import RANGES, SWITCH_FOLDER, load_ranges, load_switches
from primus_search.space import Space
from primus_search.values.candidates import Candidates
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance
from tests.support.random_spaces import random_space

WORKER = """
import builtins, io, os, pickle, sys
PACKAGE = os.path.realpath(os.environ["PACKAGE"])
CODE = (".py", ".pyc", ".toml", ".nbi", ".nbc")
DATA = (".yaml", ".yml", ".json", ".csv", ".parquet")
def refusing(real):
    def opened(file, *rest, **named):
        path = os.fsdecode(os.path.realpath(file)) if isinstance(file, (str, bytes, os.PathLike)) else ""
        of_package = path.startswith(PACKAGE) and not os.path.isdir(path)
        of_others = "site-packages" not in path and path.endswith(DATA)
        if of_package and not os.path.basename(path).split(".tmp.")[0].endswith(CODE) or of_others:
            raise AssertionError("a worker opened " + path)
        return real(file, *rest, **named)
    return opened
space, keep, tasks, cut = pickle.loads(sys.stdin.buffer.read())
builtins.open, io.open, os.open = refusing(open), refusing(io.open), refusing(os.open)
from primus_search.exploration.exhaustive.evaluate import Funnel
import primus_search
assert os.path.realpath(primus_search.__file__).startswith(PACKAGE), primus_search.__file__
funnel = Funnel(space, keep)
assert len(funnel.task_orders) == len(funnel.grid_costs)
sys.stdout.buffer.write(pickle.dumps([funnel.evaluate(task, cut) for task in tasks]))
"""
"""What a Ray worker does, where files of data cannot be opened and no root holds any."""
KEEP = 500
SEEDS = (1, 2)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package as Ray ships it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(Path(primus_search.__file__).parent, folder / "primus_search")  # with the kernels beside it
    return folder


def answer(found: Findings) -> list[bytes]:
    """Rows of a finding, to the byte; how long stages took is not of them."""
    rows, group = found.shortlist.rows_and_groups
    columns = (rows.indices, rows.step_s, rows.memory_bytes, rows.expected_s, group, found.shortlist.frontier.indices)
    return [repr((found.legal, found.feasible)).encode(), *(column.tobytes() for column in columns)]


def in_worker(funnel: Funnel, tasks: list[Task], package: Path, here: Path) -> list[Findings]:
    """What a process in an empty folder, with the package and the shipped space alone, finds."""
    given = pickle.dumps((funnel.space, funnel.keep, tasks, OPEN))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_SEARCH_")}
    environment |= {"PYTHONPATH": str(package), "PACKAGE": str(package / "primus_search"), "HOME": str(here)}
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=given, env=environment, cwd=here, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[Findings] = pickle.loads(done.stdout)
    return found


def agrees(space: Space, package: Path, here: Path) -> bool:
    """Whether a worker without files finds what this process does, to the byte."""
    funnel = Funnel(space, KEEP)
    sizes = [min(int(order.starts[-1]), 4000) for order in funnel.task_orders]
    tasks = [Task(number=i, cluster=i, start=0, stop=size) for i, size in enumerate(sizes)]
    mine = [answer(funnel.evaluate(task, OPEN)) for task in tasks]
    return [answer(one) for one in in_worker(funnel, tasks, package, here)] == mine


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_with_the_package_alone_prices_the_same_bytes(seed: int, package: Path, tmp_path: Path) -> None:
    assert agrees(make_space(random_space(seed), environ={}), package, tmp_path)


@pytest.mark.in_turn
def test_clusters_of_two_devices_and_a_learned_stack_travel_whole(package: Path, tmp_path: Path) -> None:
    """The runs of a site lie beside its stack, which the worker has not either."""
    space = make_space(random_space(1) | {"hardware": ["mi355x", "h100"]}, environ={})
    one = Candidates.from_words({"ep": 8, "deepep": True, "cuda_graph": "full", "sync_free_stage": 2})
    run = MeasuredRun(
        model=space.model,
        cluster=space.cluster,
        workload=space.workload,
        candidates=one,
        measured=Measurement(tokens_per_s_per_gpu=1000.0),
        provenance=Provenance(id="own"),
        hardware="mi355x",
    )
    write_records([run], tmp_path / "mine.runs.parquet")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "extends": space.cluster.stack.name}))
    learned = make_space(random_space(1) | {"stack": str(tmp_path / "mine.yaml")}, environ={})
    assert learned.cluster.stack.runs_file
    empty = tmp_path / "empty"
    empty.mkdir()
    assert agrees(space, package, empty)
    Path(learned.cluster.stack.runs_file).unlink()
    assert agrees(learned, package, empty)


@pytest.mark.parametrize(("load", "folder"), [(load_switches, SWITCH_FOLDER), (load_ranges, RANGES)])
def test_evidence_that_is_not_there_is_an_error(
    load: Callable[[], object], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_files, "roots_of_today", lambda: [tmp_path])
    load.cache_clear()  # type: ignore[attr-defined]
    try:
        with pytest.raises(InputError, match=f"{folder}: is missing from the installation"):
            load()
    finally:
        load.cache_clear()  # type: ignore[attr-defined]
