"""The links between devices: topology, line rates in one direction, latencies, and what collectives achieve of them.

What a collective achieves of a line rate is a named efficiency next to it, so that a study of a faster NIC changes one
number. Parameters come from `hardware/*.yaml`; the formulas live in `cost/laws/collectives.py`.

    domain   devices on the fast fabric (NVLink switch, xGMI mesh): 8 in a node, 72 in an NVL72 rack
    node     what a scheduler hands out; owns the NICs (an NVL72 tray has 4 devices)
    pod      devices behind one layer of the scale-out fabric; traffic that leaves it may run slower
"""

from dataclasses import dataclass, fields
from typing import Literal

from primus_search.values.machine.kernel_tables import NO_TABLES, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Topology, line rates, latencies, and the share of the line that collectives reach.

    gpus_per_node              devices per node as schedulers count nodes (one NVL72 tray: 4)
    domain_size                devices that reach each other over the fast fabric (8 in a node, 72 in NVL72)
    topology                   "switch": any pair at full rate; "mesh": one link per pair, a group of g uses g-1
    link_bytes_per_s           all links of one device together, one direction
    link_latency_s             a collective of no bytes inside a domain: launch, synchronisation, first hop
    link_hop_latency_s         each step of a ring, each level of a tree, each peer of a direct exchange
    link_half_speed_bytes      wire bytes at which protocol ramp-up takes as long as the transfer itself
    ring_efficiency            share of the link a ring reaches (all-gather, reduce-scatter, ring all-reduce)
    pair_loss                  share of that rate a ring of g members loses: pair_loss / g (fewer channels)
    in_network_efficiency      rate of a link during a switch-reduced all-reduce (NVLS) over its line rate; 0: none
    all_to_all_efficiency      share of the link a direct exchange reaches
    p2p_efficiency             share of the link (mesh: of the one link between the pair) a send reaches
    dispatch_efficiency        share of the link that fused expert dispatch / combine kernels reach (DeepEP, MORI)
    nics_per_node              NICs of one node; every device owns an equal share of them
    nic_bytes_per_s            one NIC, one direction
    nic_port_bytes_per_s       one port of a NIC that has several, which is all that a pair of ranks uses; 0: one port
    nic_latency_s              a collective of no bytes that leaves the domain
    nic_hop_latency_s          each hop between domains
    nic_dispatch_hop_latency_s  likewise of fused expert dispatch / combine kernels, per domain; 0: nic_hop_latency_s
    nic_half_speed_bytes       as link_half_speed_bytes, for the bytes through the NICs of one device
    nic_efficiency             share of the NIC a ring or a send reaches
    nic_all_to_all_efficiency  share of the NIC a direct exchange reaches
    nic_dispatch_efficiency    share of the NIC that fused expert dispatch / combine kernels reach
    scale_loss                 slow-down of rings per doubling of domains beyond two (congestion)
    pod_size                   devices in one pod
    pod_bytes_per_s            one NIC, one direction, for traffic that leaves its pod
    pod_latency_s              what each hop between pods adds
    host_copy_bytes_per_s      one device's copies to or from host memory, all devices at once; 0: not known
    host_update_bytes_per_s    what one process's optimizer on the host reads and writes; 0: not known
    transport                  what carries messages between nodes in place of the file's network: `efa`
    tables                     measured collectives inside the domain, asked before the laws (`measured_correction`)
    """

    gpus_per_node: int
    domain_size: int
    topology: Literal["switch", "mesh"]
    link_bytes_per_s: float
    link_latency_s: float
    link_hop_latency_s: float
    link_half_speed_bytes: float
    ring_efficiency: float
    pair_loss: float
    in_network_efficiency: float
    all_to_all_efficiency: float
    p2p_efficiency: float
    dispatch_efficiency: float
    nics_per_node: int
    nic_bytes_per_s: float
    nic_latency_s: float
    nic_hop_latency_s: float
    nic_half_speed_bytes: float
    nic_efficiency: float
    nic_all_to_all_efficiency: float
    nic_dispatch_efficiency: float
    scale_loss: float
    pod_size: int
    pod_bytes_per_s: float
    pod_latency_s: float
    nic_port_bytes_per_s: float = 0.0
    nic_dispatch_hop_latency_s: float = 0.0
    host_copy_bytes_per_s: float = 0.0
    host_update_bytes_per_s: float = 0.0
    transport: str = ""
    tables: Tables = NO_TABLES

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "domain_size", "nics_per_node", "pod_size"):
            if self.__getattribute__(name) < 1:
                raise ValueError(f"{name} must be at least 1")
        shares = [f.name for f in fields(self) if f.name.endswith("_efficiency")]
        positive = ("link_bytes_per_s", "nic_bytes_per_s", "pod_bytes_per_s", *shares)
        for name in (one for one in positive if one != "in_network_efficiency"):
            if self.__getattribute__(name) <= 0.0:
                raise ValueError(f"{name} must be above 0; a link that is not there belongs to no group")
        if any(self.__getattribute__(name) > 1.0 for name in (*shares, "pair_loss")):
            raise ValueError("an efficiency is a share of the line rate and cannot exceed 1")

    @property
    def nic_bytes_per_s_per_gpu(self) -> float:
        """Line rate out of the node that one device owns: its share of the node's NICs."""
        return self.nics_per_node * self.nic_bytes_per_s / self.gpus_per_node

    @property
    def pod_bytes_per_s_per_gpu(self) -> float:
        """Line rate out of the pod that one device owns."""
        return self.nics_per_node * self.pod_bytes_per_s / self.gpus_per_node
