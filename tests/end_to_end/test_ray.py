"""A real Ray cluster of several nodes on this machine: joined by address, losing a worker and a node on the way."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primus_search.declare import make_space
from primus_search.search import Options, RunFolder, run_search
from primus_search.space import Space

pytestmark = pytest.mark.slow


def space() -> Space:
    axes = {"sync_free_stage": [0, 1], "etp": 1, "cp": [1, 2], "pp": [1, 2], "schedule": ["1f1b", "interleaved"]}
    return make_space(
        {
            "model": "tiny_moe",
            "hardware": "mi355x",
            "nodes": 2,
            "workload": {"seq_length": 1024, "global_batch_size": 64},
            "space": axes | {"micro_batch_size": [1, 2]},
        }
    )


@pytest.fixture
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    yield found
    ray.shutdown()
    found.shutdown()


def searched(folder: Path, **options: Any) -> bytes:
    opened = RunFolder.open(folder, resume=False)
    try:
        result = run_search(space(), Options(folder=opened, keep=200, **options))
        opened.write(result)
    finally:
        opened.close()
    assert result.exact
    return (folder / "ranking.csv").read_bytes() + (folder / "pareto.csv").read_bytes()


def test_a_cluster_that_loses_a_worker_and_a_node_gives_the_same_files(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.MAX_TASK_ROWS", 500)
    alone = searched(tmp_path / "alone", workers=1)
    lost: list[str] = []

    def breaks_things(tick: Any) -> None:
        share = tick.rows_done / tick.rows_total
        if share > 0.2 and not lost:
            lost.append("worker")
            os.kill(_a_worker(), signal.SIGKILL)
        elif share > 0.4 and len(lost) == 1:
            lost.append("node")
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

    together = searched(tmp_path / "cluster", ray_address=cluster.address, progress=breaks_things)
    assert lost == ["worker", "node"]
    assert together == alone


def _a_worker(seconds: float = 30.0) -> int:
    """The process id of a Ray worker that evaluates our tasks."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if words.startswith(b"ray::_evaluate"):
                    return int(entry.name)
        time.sleep(0.02)
    raise AssertionError("no Ray worker evaluates anything")
