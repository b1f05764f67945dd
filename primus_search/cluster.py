"""The machine a job runs on: accelerators, their network, the software stack, and how many nodes."""

from dataclasses import dataclass

from primus_search.accelerator import Accelerator
from primus_search.network import Network
from primus_search.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster."""

    accelerator: Accelerator
    network: Network
    stack: Stack
    num_nodes: int

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError("a cluster has at least one node")

    @property
    def world(self) -> int:
        """Devices in the whole cluster."""
        return self.num_nodes * self.network.gpus_per_node
