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

from primus_search.base.errors import InputError
from primus_search.declare.fields import Fields
from primus_search.declare.known_keys import key_table
from primus_search.declare.source import Document, did_you_mean
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.cluster import Network


def known_names() -> tuple[str, ...]:
    """Every key that such a file may have."""
    table = key_table("primus_hardware")
    return (*table["numbers"], *table["counts"], "node_topology", *table["unused"])


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
    fields.refuse_unknown(known_names())
    table = key_table("primus_hardware")
    network: dict[str, Any] = {}
    accelerator: dict[str, Any] = {}
    for key, row in table["numbers"].items():
        if fields.has(key):
            names, value = row["fields"], _positive(fields, key)
            if value > 1.0 and names[0].endswith("efficiency"):
                fields.problem(key, f"is a share of the line rate and cannot exceed 1, got {value:g}")
            part = accelerator if names[0] in Accelerator.__dataclass_fields__ else network
            part |= dict.fromkeys(names, value * row["factor"])
    for key, counted in table["counts"].items():
        if fields.has(key):
            network |= dict.fromkeys(counted, fields.integer(key))
    if fields.has("node_topology"):
        topology = fields.word("node_topology")
        if topology not in ("switch", "mesh"):
            fields.problem("node_topology", f"{topology!r} is not switch or mesh")
        network["topology"] = topology
    if top.problems:
        raise InputError(top.problems)
    unused = table["unused"]
    passed = [f"{document.name}: {key} is read but not used; {unused[key]}" for key in config if key in unused]
    notes = [f"{document.name}: laid over the hardware file '{base}'", *passed]
    return Overlay(base=base, network=network, accelerator=accelerator, notes=tuple(notes))


def _positive(fields: Fields, key: str) -> float:
    said = len(fields.problems)
    value = fields.number(key)
    if value <= 0.0 and len(fields.problems) == said:
        fields.problem(key, f"must be above 0, got {value:g}")
    return value
