"""The machine a job runs on: accelerators, the links between them, the software stack, and how many nodes."""

from dataclasses import dataclass

from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.network import Network
from primus_search.values.machine.ranges import CAPACITY
from primus_search.values.machine.stack import SiteErrors, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What a long run on many nodes loses; a zero switches its term off (`exploration/goodput.py`).

    node_mtbf_hours           hours between two failures of one node that end a job
    restart_minutes           from a failure to the next step: finding it, replacing the node, loading the checkpoint
    checkpoint_bytes_per_s    rate at which one node writes its part of a checkpoint
    node_repair_hours         from a failure until that node can be used again; spare nodes stand in meanwhile
    mtbf_is_assumed           node_mtbf_hours is of another device: none is published of this one
    """

    node_mtbf_hours: float = 0.0
    restart_minutes: float = 0.0
    checkpoint_bytes_per_s: float = 0.0
    node_repair_hours: float = 0.0
    mtbf_is_assumed: bool = False


UNFAILING = Reliability()
"""Of hardware that says nothing: no failures, and checkpoints that take no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts of one device with its share of the node, cooling of the building left out; 0: unknown.

    busy_w, idle_w  while training, and without work      limit_w  power limit of the device alone
    """

    busy_w: float = 0.0
    idle_w: float = 0.0
    limit_w: float = 0.0


UNMETERED = Power()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster.

    overridden  numbers that a user gave in place of the files', by field path: `accelerator.hbm_bytes_per_s`
    site        errors of a cluster that no fit has seen; None: that of a publisher whose runs are in the fits
    """

    accelerator: Accelerator
    network: Network
    stack: Stack
    num_nodes: int
    overridden: tuple[str, ...] = ()
    site: SiteErrors | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError("a cluster has at least one node")

    @property
    def fabric(self) -> str:
        """What evidence of switches is kept by: the device, and the transport between its nodes: `B300@efa`."""
        return "@".join(filter(None, (self.accelerator.name, self.network.transport)))

    @property
    def is_hypothetical(self) -> bool:
        """Whether the device is planned, or a rate, a link or a number of the software is a user's own: no measurement
        speaks for it."""
        return bool(self.accelerator.ancestor) or any(path != CAPACITY for path in self.overridden)

    @property
    def world(self) -> int:
        """Devices in the whole cluster."""
        return self.num_nodes * self.network.gpus_per_node
