"""The same files to the byte on every engine: one process, two, private and joined Ray, continued after a kill."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_search.base.errors import InputError, NothingFits
from tests.support.kills import KEEP, Moment, Run, finished_here, kill_at
from tests.support.random_spaces import random_space
from tests.support.ray_cluster import two_nodes

SEEDS = [int(seed) for seed in os.environ.get("SAME_BYTES_SEEDS", "1 2").split()]
"""Spaces that are searched; a wider series is named by the environment."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Driver and nodes stand in an empty folder: what a worker wants to read must have travelled."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def cluster(elsewhere: Path) -> Iterator[Any]:
    with two_nodes() as found:
        yield found


def space_file(seed: int, folder: Path) -> Path:
    path = folder / f"random_{seed}.yaml"
    path.write_text(yaml.safe_dump(random_space(seed)), encoding="utf-8")
    return path


def files(run: Run) -> dict[str, bytes]:
    """Ranking, frontier, counts and candidates of a finished run."""
    facts = json.loads((run.folder / "run.json").read_bytes())
    counts = {name: facts[name] for name in ("exact", "complete", "raw", "legal", "feasible", "removed")}
    tables = ("ranking.csv", "pareto.csv", "candidates.parquet")
    return {name: (run.folder / name).read_bytes() for name in tables} | {"counts": repr(counts).encode()}


def searched(space: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    """The files of a search in this process, or why nothing is legal there or fits."""
    run = Run(space, folder)
    try:
        finished_here(run, **options)
    except (InputError, NothingFits) as error:
        return {"refused": str(error).encode()}
    return files(run)


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_joined_cluster_gives_the_bytes_of_one_process(seed: int, cluster: Any, tmp_path: Path) -> None:
    space = space_file(seed, tmp_path)
    alone = searched(space, tmp_path / "one", workers=1)
    assert searched(space, tmp_path / "joined", engine="ray", ray_address=cluster.address) == alone


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_two_workers_and_a_continued_run_give_the_bytes_of_one_process(seed: int, tmp_path: Path) -> None:
    space = space_file(seed, tmp_path)
    alone = searched(space, tmp_path / "one", workers=1)
    assert searched(space, tmp_path / "two", workers=2) == alone
    if "refused" in alone:
        return
    killed = Run(space, tmp_path / "killed", ("--workers", "2"))
    tasks = -(-int(json.loads((tmp_path / "one" / "run.json").read_bytes())["legal"]) // KEEP)
    kill_at(killed, Moment(random.Random(seed).randint(2, 1 + tasks)))
    killed.wait_until_gone()
    killed.finish("--resume")
    assert files(killed) == alone


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_private_cluster_with_the_least_object_store_gives_the_bytes_of_one_process(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    ray.shutdown()  # a private cluster is this process's only one
    monkeypatch.setattr(
        "primus_search.exploration.engines.ray_engine.OBJECT_STORE_BYTES", 80 * 1024**2
    )  # Ray's least is 75 MB
    space = space_file(seed, tmp_path)
    alone = searched(space, tmp_path / "one", workers=1)
    assert searched(space, tmp_path / "private", engine="ray", workers=2) == alone
