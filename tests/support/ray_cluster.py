"""A Ray cluster of several nodes on this machine. What does not start within Ray's own 30 seconds is started again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pytest

START_TRIES = 4
Started = TypeVar("Started")


def until_started(start: Callable[[], Started], clean: Callable[[], object]) -> Started:
    """What `start` returns at last; `clean` ends what a try has left. Raises what the last try raised."""
    for tries_left in reversed(range(START_TRIES)):
        try:
            return start()
        except Exception:  # Ray raises a bare one
            with suppress(Exception):
                clean()
            if not tries_left:
                raise
    raise AssertionError("no try at all")


def add_node(cluster: Any) -> Any:
    """A further node of one core."""
    known = set(cluster.list_all_nodes())

    def clean() -> None:
        for node in set(cluster.list_all_nodes()) - known:
            cluster.remove_node(node, allow_graceful=False)

    return until_started(lambda: cluster.add_node(num_cpus=1), clean)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A head that computes nothing and two nodes of one core, joined by this process."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from primus_search.exploration.engines.ray_engine import join

    head = {"num_cpus": 0, "include_dashboard": False}
    found = until_started(lambda: Cluster(initialize_head=True, head_node_args=head), ray.shutdown)
    try:
        for _ in range(2):
            add_node(found)
        until_started(lambda: join(found.address), ray.shutdown)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()
