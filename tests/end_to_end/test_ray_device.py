"""On a cluster of unlike nodes the benchmark runs on the one that offers the target's device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primus_search.declare import load_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.exploration.revalidation import revalidated

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a node without a device, and one that offers the device `host`; each keeps files of its own."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("labelled")))
        found.add_node(num_cpus=1, resources={"device:host": 1})
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="module")
def searched() -> SearchResult:
    overrides = ["space.micro_batch_size=1", "benchmark.top_k=1", "benchmark.seconds=1"]
    return run_search(load_space("tiny_host", overrides=overrides), Options(workers=1))


def test_the_benchmark_runs_on_the_node_that_offers_the_device(
    searched: SearchResult, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "driver"))
    kept = tmp_path / "measured.jsonl"
    result = revalidated(searched, save=kept, ray_address=cluster.address)
    assert any("which offers device:host" in note for note in result.notes)
    assert result.best.ranking.time_evidence[0] == "measured"
    assert not (tmp_path / "driver").exists()  # what is measured is kept where it was measured
    again = revalidated(searched, load=kept, ray_address=cluster.address)
    assert any(note.startswith("measured: 0 pieces now") for note in again.notes)


def test_without_such_a_node_it_does_not_run_there_and_says_so(cluster: Any) -> None:
    from primus_search.exploration.engines.ray_engine import revalidated_on_cluster
    from primus_search.measure.revalidate import Benchmark

    def never(how: Benchmark) -> Any:
        raise AssertionError("ran on a node that has no such device")

    found, why = revalidated_on_cluster(cluster.address, "h100", never, Benchmark())
    assert found is None
    assert why == "no node of the Ray cluster offers device:h100: the benchmark ran on this machine"
