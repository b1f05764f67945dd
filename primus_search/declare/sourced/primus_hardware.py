"""AMD Primus' `hardware_config:` files, read as they are.

Such a file describes links, not the accelerator, so it is laid over a hardware file of this project: the one its own
name stands for (`mi355x.yml`), or the one a `base:` key beside `hardware_config:` names. Both generations of keys are
known: the short ones of the collective model (`node_bw`, `pod_lat` ...) and the long ones of the custom example.

Bandwidths become line rates in one direction: `node_bw` is one (448 GB/s on MI300X is 7 links of 64 GB/s),
`intra_node_bandwidth_gbps` counts both directions and is halved, `inter_node_bandwidth_gbps` is in Gbit/s. Primus
applies one `bw_eff` everywhere; so do we, to rings, exchanges and NICs. Keys of effects that this project models
otherwise are reported in `notes`, never silently dropped.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from primus_search.accelerator import Accelerator
from primus_search.declare.fields import Fields
from primus_search.declare.source import Document, did_you_mean
from primus_search.errors import InputError
from primus_search.network import Network
from primus_search.units import BITS_PER_BYTE, GB

BOTH_DIRECTIONS = 2.0
US = 1e-6
TERA = 1e12

NETWORK_KEYS: dict[str, tuple[tuple[str, ...], float]] = {
    "node_bw": (("link_bytes_per_s",), GB),
    "pod_bw": (("nic_bytes_per_s",), GB),
    "cluster_bw": (("pod_bytes_per_s",), GB),
    "bw_eff": (("ring_efficiency", "all_to_all_efficiency", "nic_efficiency", "nic_all_to_all_efficiency"), 1.0),
    "p2p_bw_eff": (("p2p_efficiency",), 1.0),
    "node_lat": (("link_hop_latency_s",), US),
    "pod_lat": (("nic_hop_latency_s",), US),
    "cluster_lat": (("pod_latency_s",), US),
    "intra_node_bandwidth_gbps": (("link_bytes_per_s",), GB / BOTH_DIRECTIONS),
    "intra_node_latency_us": (("link_hop_latency_s",), US),
    "inter_node_bandwidth_gbps": (("nic_bytes_per_s", "pod_bytes_per_s"), GB / BITS_PER_BYTE),
    "inter_node_latency_us": (("nic_hop_latency_s",), US),
    "intra_node_efficiency": (("ring_efficiency",), 1.0),
    "inter_node_efficiency": (("nic_efficiency",), 1.0),
    "alltoall_intra_efficiency": (("all_to_all_efficiency",), 1.0),
    "alltoall_inter_efficiency": (("nic_all_to_all_efficiency",), 1.0),
}
"""Primus key -> fields of `Network` it sets, and the factor to base units."""

COUNT_KEYS: dict[str, tuple[str, ...]] = {
    "node_size": ("gpus_per_node", "domain_size"),
    "gpus_per_node": ("gpus_per_node", "domain_size"),
    "nics_per_node": ("nics_per_node",),
    "pod_size": ("pod_size",),
}

ACCELERATOR_KEYS: dict[str, tuple[str, float]] = {
    "gpu_memory_gb": ("hbm_bytes", GB),
    "gpu_compute_tflops": ("bf16_peak_flops_per_s", TERA),
}

UNUSED: dict[str, str] = {
    "switch_topology": "each device owns its share of the NICs",
    "hbm_latency": "inside the latency of a collective",
    "write_latency": "inside the latency of a collective",
    "write_resp": "inside the latency of a collective",
    "kernel_launch_latency": "the hardware file's launch section says it",
    "vector_flops": "reductions run at memory speed",
    "rccl_overhead_us": "the hardware file's measured link_latency and nic_latency say it",
    "a2a_peer_lat": "link_hop_latency and nic_hop_latency say it",
    "a2a_intra_sync_overhead": "link_latency says it",
    "a2a_intra_node_peer_lat": "link_hop_latency says it",
    "a2a_mesh_contention": "all_to_all_efficiency says it",
    "a2a_rccl_overhead_us": "link_latency says it",
    "a2a_remote_contention": "scale_loss says it",
    "ar_overlap_factor": "hierarchical all-reduce overlaps its phases by itself",
    "ar_warmup_chunk_bytes": "half_speed says how rates ramp up with size",
    "nic_rdma_setup_us": "nic_latency says it",
    "nic_warmup_bytes": "nic_half_speed says how rates ramp up with size",
    "hp": "a candidate says its own degrees",
    "cp": "a candidate says its own degrees",
    "ep": "a candidate says its own degrees",
}
"""Primus keys without a counterpart here, and what takes their place."""

KNOWN = (*NETWORK_KEYS, *COUNT_KEYS, *ACCELERATOR_KEYS, "node_topology", *UNUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What a Primus file changes about a hardware file."""

    base: str
    network: dict[str, Any] = field(default_factory=dict)
    accelerator: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def on(self, accelerator: Accelerator, network: Network) -> tuple[Accelerator, Network]:
        return replace(accelerator, **self.accelerator), replace(network, **self.network)


def read_overlay(document: Document, path: Path, known_hardware: list[str]) -> Overlay:
    """The changes a Primus hardware_config file asks for; InputError with every problem."""
    top = Fields.of(document, document.data)
    top.refuse_unknown(("hardware_config", "base", "name"))
    base = top.word("base", path.stem)
    if base not in known_hardware:
        what = "a hardware_config says nothing about the accelerator: name the file after one, or add base: NAME"
        top.problem("base", f"unknown base '{base}'{did_you_mean(base, known_hardware)}; {what}")
    config = document.data["hardware_config"]
    if not isinstance(config, dict):
        raise InputError([*top.problems, document.problem(("hardware_config",), "expected a mapping")])
    fields = Fields.of(document, config, ("hardware_config",), into=top)
    fields.refuse_unknown(KNOWN)
    network: dict[str, Any] = {}
    for key, (names, factor) in NETWORK_KEYS.items():
        if fields.has(key):
            value = _positive(fields, key)
            if value > 1.0 and names[0].endswith("efficiency"):
                fields.problem(key, f"is a share of the line rate and cannot exceed 1, got {value:g}")
            network |= dict.fromkeys(names, value * factor)
    for key, counted in COUNT_KEYS.items():
        if fields.has(key):
            network |= dict.fromkeys(counted, fields.integer(key))
    if fields.has("node_topology"):
        topology = fields.word("node_topology")
        if topology not in ("switch", "mesh"):
            fields.problem("node_topology", f"{topology!r} is not switch or mesh")
        network["topology"] = topology
    accelerator = {
        name: _positive(fields, key) * factor for key, (name, factor) in ACCELERATOR_KEYS.items() if fields.has(key)
    }
    if top.problems:
        raise InputError(top.problems)
    unused = [f"{document.name}: {key} is read but not used; {UNUSED[key]}" for key in config if key in UNUSED]
    notes = [f"{document.name}: laid over the hardware file '{base}'", *unused]
    return Overlay(base=base, network=network, accelerator=accelerator, notes=tuple(notes))


def _positive(fields: Fields, key: str) -> float:
    said = len(fields.problems)
    value = fields.number(key)
    if value <= 0.0 and len(fields.problems) == said:
        fields.problem(key, f"must be above 0, got {value:g}")
    return value
