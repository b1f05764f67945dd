"""The links between devices: inside a node (or a rack-scale domain), between nodes, and beyond a pod.

Bandwidths are per device and per direction. Parameters come from `hardware/*.yaml`; the formulas live in
`cost/collectives.py`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Topology and link rates.

    gpus_per_node     devices per node as schedulers count nodes (one NVL72 tray: 4)
    domain_size       devices that reach each other over the fast link (8 in a node, 72 in NVL72)
    topology          "switch": any pair at full rate; "mesh": one link per pair, a group of g uses g-1 of them
    """

    gpus_per_node: int
    domain_size: int
    topology: Literal["switch", "mesh"]
    link_bytes_per_s: float
    link_latency_s: float
    nics_per_node: int
    nic_bytes_per_s: float
    nic_latency_s: float
    pod_size: int
    pod_bytes_per_s: float
    pod_latency_s: float
