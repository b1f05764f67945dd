"""The machine a job runs on: accelerators, their network, the software stack, and how many nodes."""

from dataclasses import dataclass

from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack

CAPACITY = "accelerator.hbm_bytes"
"""A number that says how much fits, and nothing about rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster.

    overridden  numbers that a user gave in place of the files', by field path: `accelerator.hbm_bytes_per_s`
    """

    accelerator: Accelerator
    network: Network
    stack: Stack
    num_nodes: int
    overridden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError("a cluster has at least one node")

    @property
    def is_hypothetical(self) -> bool:
        """Whether a rate, a link or a number of the software is a user's own: no measurement speaks for it."""
        return any(path != CAPACITY for path in self.overridden)

    @property
    def world(self) -> int:
        """Devices in the whole cluster."""
        return self.num_nodes * self.network.gpus_per_node
