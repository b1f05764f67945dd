"""The benchmark of the best rows on that node of a Ray cluster which has the target's device.

On a cluster of many kinds of nodes, those with a device of a kind say so by a resource of its name, which whoever
starts them sets: `ray start --resources '{"device:mi355x": 1}'`. The resource is one per node, so that two benchmarks
never share a node.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import ray
from ray.util import get_node_ip_address

from primus_search.exploration.engines.ray_engine import LOST, join
from primus_search.exploration.engines.task_assignment import MAX_TRIES

if TYPE_CHECKING:
    from primus_search.measure.revalidate import Benchmark, Revalidation


def label_of(device: str) -> str:
    """The resource of nodes that have this device."""
    return f"device:{device}"


def revalidated_on_cluster(
    address: str, device: str, task: "Callable[[Benchmark], Revalidation]", how: "Benchmark"
) -> "tuple[Revalidation | None, str]":
    """What a node with the device found, and where it was; or None, and why it was not done there.

    The measurements of `how.load` travel as the content of that file.
    """
    is_joined_here = not ray.is_initialized()
    if is_joined_here:
        join(address)
    try:
        label = label_of(device)
        offers = [node["Resources"] for node in ray.nodes() if node["Alive"] and label in node["Resources"]]
        if not offers:
            return None, f"no node of the Ray cluster offers {label}: the benchmark ran on this machine"
        remote = _revalidate.options(resources={label: 1}, num_gpus=min(offer.get("GPU", 0.0) for offer in offers))
        known = how.load.read_bytes() if how.load is not None else None
        try:
            found, node = ray.get(remote.remote(task, how, known))
        except LOST as error:
            return None, f"the node with {label} was lost: the benchmark ran on this machine ({error})"
        return found, f"the benchmark ran on node {node} of the Ray cluster, which offers {label}"
    finally:
        if is_joined_here:
            ray.shutdown()


@ray.remote(num_cpus=0, max_retries=MAX_TRIES)  # type: ignore[untyped-decorator]  # Ray ships no types for it
def _revalidate(
    task: "Callable[[Benchmark], Revalidation]", how: "Benchmark", known: bytes | None
) -> "tuple[Revalidation, str]":
    """On the node."""
    with TemporaryDirectory() as folder:
        if known is not None:
            path = Path(folder) / "known.jsonl"
            path.write_bytes(known)
            how = replace(how, load=path)
        return task(how), get_node_ip_address()
