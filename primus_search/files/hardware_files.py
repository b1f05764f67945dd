"""Hardware files: one accelerator and its network per file, one software stack per file, every number sourced.

A file may extend another one of its kind (`extends: b200`) and gives what differs; see `records`.

`load_cluster("mi355x", nodes=32)` joins an accelerator, its network and a software stack (the file's
`default_stack` unless another is named). A Primus `hardware_config:` file is accepted in place of a hardware file; see
below. `host` is the machine itself: its file is written by the calibration in `measure` and read from the
cache folder like any other.

AMD Primus' `hardware_config:` files, read as they are.

Such a file describes links, not the accelerator, so it is laid over a hardware file of this project: the one its own
name stands for (`mi355x.yml`), or the one a `base:` key beside `hardware_config:` names. Both generations of keys are
known: the short ones of the collective model (`node_bw`, `pod_lat` ...) and the long ones of the custom example.

Bandwidths become line rates in one direction: `node_bw` is one (448 GB/s on MI300X is 7 links of 64 GB/s),
`intra_node_bandwidth_gbps` counts both directions and is halved, `inter_node_bandwidth_gbps` is in Gbit/s. Primus
applies one `bw_eff` everywhere; so do we, to rings, exchanges and NICs. Keys of effects that this project models
otherwise are reported in `notes`, never silently dropped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primus_search.base import units
from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.base.guards.files import MAX_TABLE_BYTES, is_recording, read_bytes
from primus_search.base.guards.values import name_problem
from primus_search.base.lazy import provided
from primus_search.files.evidence_files import load_sites, read_tables
from primus_search.files.fields import Fields
from primus_search.files.known_keys import key_table
from primus_search.files.learned_stacks import RUNS_ENDING, of_its_version, without_head
from primus_search.files.records import (
    EXTENDS,
    VARIANTS,
    VARIED,
    Reading,
    Sourced,
    build,
    leaf,
    read_with_parents,
    varied,
)
from primus_search.files.search_path import FileKind, find, name_and_version, names
from primus_search.files.source import Document, join_words, read
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.cluster import UNFAILING, UNMETERED, Cluster, Power, Reliability
from primus_search.values.machine.kernel_tables import NO_TABLES
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import GROUP_OF, GROUPS, SiteErrors, Stack, number_of

HOST = "host"

BASE = "device"
"""What a hardware file extends that extends no other one."""

STACK_KINDS = (FileKind.STACK, FileKind.STACK_BASE)
"""What a stack may extend: another stack, or a base that several share."""

STATUS, STATUSES = "status", ("planned", "unmeasured")
"""Key and value of a file whose device nobody can buy yet."""
LEAST_MISSING = 5
"""Numbers whose lack says that a file was written from a data sheet alone."""

_WORDS = ("name", "vendor", "default_stack", "tables")
_PRICE = "price_per_gpu_hour_USD"
SECTIONS: Mapping[str, type] = {
    "accelerator": Accelerator, "network": Network, "reliability": Reliability, "power": Power,
}  # fmt: skip
"""Sections of a hardware file, and what each is read as."""
OF_THE_JOB = frozenset({"accelerator", "network"})
"""Sections that a step depends on, which a file has to have; those of long runs have defaults."""
_KEYS = ("name", EXTENDS, STATUS, "vendor", *SECTIONS, _PRICE, "default_stack", "tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One hardware file. `sources` lists every number with its source; `notes` says what was read and not used."""

    name: str
    accelerator: Accelerator
    network: Network
    default_stack: str | None
    price_per_gpu_hour_usd: float | None
    reliability: Reliability = UNFAILING
    power: Power = UNMETERED
    sources: tuple[Sourced, ...]
    notes: tuple[str, ...] = ()
    path: Path


def load_hardware(
    text: str, *, beside: Path | None = None, host_file: Callable[[], Path] | None = None, where: str | None = None
) -> Hardware:
    """The hardware a name or path stands for; `NAME@TRANSPORT`: over another network between its nodes.

    `where` is the place that named it, for messages; `host_file` measures this machine (or finds the cached result)
    and returns a hardware file, and is only called for `host`.
    """
    name, transport = name_and_version(text)
    if transport:
        return _over(load_hardware(name, beside=beside, host_file=host_file, where=where), transport, where)
    if text == HOST:
        path: Path | str = (host_file or host_hardware)()
    else:
        path = find(FileKind.HARDWARE, text, beside=beside)
    if isinstance(path, str):
        raise InputError([Problem(where or "hardware", path)])
    document = read(path)
    if isinstance(document.data, dict) and "hardware_config" in document.data:
        return _from_primus(document, path)
    data = document.data if isinstance(document.data, dict) else {}
    try:
        whole = _parse(read_with_parents(path, (FileKind.HARDWARE,), names(FileKind.HARDWARE_BASE)[BASE]), path)
    except InputError as error:
        raise error if EXTENDS in data else _of_data_sheet(document, error) from None
    if EXTENDS not in data:
        return whole
    parent = load_hardware(data[EXTENDS], beside=path.parent)
    return _unmeasured(whole, parent, data[STATUS]) if STATUS in data else _as_its_parent(whole, parent)


def _over(hardware: Hardware, transport: str, where: str | None) -> Hardware:
    """The hardware with the numbers of a transport between its nodes. Raises `InputError` for one without a file."""
    known = {name: path for name, path in names(FileKind.HARDWARE_BASE).items() if name != BASE}
    if transport not in known:
        what = (
            f"no file of the transport '{transport}'{did_you_mean(transport, known)} - known: {join_words(list(known))}"
        )
        raise InputError([Problem(where or "hardware", what)])
    document = read(known[transport])
    reading, found = Reading(document), dict[str, Any]()
    for key, value in document.data["network"].items():
        field, factor = units.to_base(key, 1.0)
        found[field] = leaf(float, value, ("network", key), factor, reading)
    if reading.problems:
        raise InputError(reading.problems)
    kept = tuple(one for one in hardware.sources if units.to_base(one.path.rpartition(".")[2], 0.0)[0] not in found)
    return replace(
        hardware,
        name=f"{hardware.name}@{transport}",
        network=replace(hardware.network, transport=transport, **found),
        sources=kept + tuple(reading.sources),
    )


def _unmeasured(hardware: Hardware, parent: Hardware, status: str) -> Hardware:
    """The hardware marked with its status by its name, with the device whose efficiencies it has."""
    name, ancestor = f"{hardware.name} ({status})", parent.accelerator.ancestor or parent.name
    device = replace(hardware.accelerator, name=name, ancestor=ancestor)
    return replace(
        hardware, name=name, accelerator=device, notes=(*hardware.notes, f"{name}: efficiencies of {ancestor}")
    )


def _of_data_sheet(document: Document, error: InputError) -> InputError:
    """One sentence in place of the many numbers that no data sheet has."""
    missing = [one for one in error.problems if one.what.startswith("missing ")]
    if len(missing) < LEAST_MISSING:
        return error
    what = (
        f"{len(missing)} numbers are missing that data sheets do not give: add 'extends:' with the nearest device "
        f"({', '.join(names(FileKind.HARDWARE))}), whose efficiencies then stand in, and 'status: planned' (not "
        "sold yet) or 'unmeasured'; see docs/own_hardware.md"
    )
    return InputError([document.problem((), what), *(one for one in error.problems if one not in missing)])


def _as_its_parent(hardware: Hardware, parent: Hardware) -> Hardware:
    """The hardware, its device under the parent's name where no number of device and network is another: prices,
    failures and watts change no rate, and what was measured of the parent holds. Of a planned device it is one, too."""
    if parent.accelerator.ancestor:
        hardware = replace(hardware, accelerator=replace(hardware.accelerator, ancestor=parent.accelerator.ancestor))
    is_same_device = replace(hardware.accelerator, name=parent.accelerator.name) == parent.accelerator
    is_same = is_same_device and hardware.network == parent.network
    return replace(hardware, accelerator=parent.accelerator) if is_same else hardware


def load_stack(text: str, *, beside: Path | None = None, where: str | None = None) -> Stack:
    """The software stack a name or path stands for; `NAME@VARIANT`: one of the variants that its file lists."""
    return read_stack(text, beside=beside, where=where)[0]


def read_stack(text: str, *, beside: Path | None = None, where: str | None = None) -> tuple[Stack, tuple[Sourced, ...]]:
    """The software stack and the source of each of its numbers."""
    name, variant = name_and_version(text)
    path = find(FileKind.STACK, name, beside=beside)
    if isinstance(path, str):
        raise InputError([Problem(where or "stack", path)])
    with of_its_version(path):
        return _read_stack(path, variant)


def _read_stack(path: Path, variant: str) -> tuple[Stack, tuple[Sourced, ...]]:
    """The stack of a file, or one of its variants."""
    document = read_with_parents(path, STACK_KINDS)
    if variant:
        document = varied(document, variant)
    reading = Reading(document)
    data = document.data
    changed = data[VARIANTS][variant] if variant else {}
    for key in changed:
        if key not in GROUPS:
            reading.problem((VARIANTS, variant, key), f"is no group of a stack; allowed: {join_words(list(GROUPS))}")
    learned_with = data.get(VARIED, []) if isinstance(data, dict) else []
    if isinstance(data, dict):
        _check_groups(data, reading)
        if not isinstance(learned_with, list) or not {*map(str, learned_with)} <= {*GROUP_OF}:
            reading.problem((VARIED,), "expected the names of habits that a stack was learned with")
        data = {key: value for key, value in without_head(data).items() if key not in (EXTENDS, VARIANTS, VARIED)}
    runs = path.with_name(f"{path.stem}{RUNS_ENDING}")
    if is_recording() and runs.is_file():
        read_bytes(runs, most=MAX_TABLE_BYTES)  # a run folder keeps the runs of a learned stack
    given = {"runs_file": str(runs) if runs.is_file() else "", "variant": variant, "varied": {}}
    stack = build(Stack, data, (), reading, given) if not reading.problems else None
    if reading.problems:
        raise InputError(reading.problems)
    assert isinstance(stack, Stack)
    fields = [units.to_base(key, 0.0)[0] for group in changed.values() for key in group] + learned_with
    return replace(stack, varied={name: number_of(stack, name) for name in fields}), tuple(reading.sources)


def _check_groups(data: dict[str, Any], reading: Reading) -> None:
    """Problems of a stack file as a whole: numbers outside their group, and most numbers missing without `extends`."""
    for key in data:
        group = GROUP_OF.get(units.to_base(key, 0.0)[0]) or GROUP_OF.get(key)
        if group is not None and key not in GROUPS:
            reading.problem((key,), f"belongs into the group {group}: write it below '{group}:'")
    if EXTENDS in data or reading.problems:
        return
    given = {units.to_base(key, 0.0)[0] for group in GROUPS for key in _keys(data.get(group))}
    missing = [name for name in GROUP_OF if name not in given]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        bases = join_words(list(names(FileKind.STACK_BASE)))
        what = f"{len(missing)} of {len(GROUP_OF)} numbers and habits are missing ({shown})"
        reading.problem((), f"{what}: give them, or inherit them with 'extends:' {bases}, or another stack")


def _keys(group: Any) -> list[str]:
    return list(group) if isinstance(group, dict) else []


_SHOWN = 4


def load_cluster(
    hardware: str | Hardware, nodes: int, stack: str | Stack | None = None, *, gpus_per_node: int | None = None
) -> Cluster:
    """Accelerator, network and stack of `nodes` nodes; the stack defaults to the one the hardware file names."""
    loaded = load_hardware(hardware) if isinstance(hardware, str) else hardware
    name = stack if stack is not None else loaded.default_stack
    is_assumed = stack is None and is_guess(loaded)
    if name is None:
        what = "names no default_stack; say which stack to use"
        raise InputError([Problem(str(loaded.path), what)])
    try:
        network = on_gpus(loaded.network, gpus_per_node)
        return Cluster(
            accelerator=loaded.accelerator,
            network=network,
            stack=replace(load_stack(name), is_assumed=is_assumed) if isinstance(name, str) else name,
            num_nodes=nodes,
            site=site_of(loaded),
        )
    except ValueError as error:
        raise InputError([Problem("nodes", str(error))]) from None


def site_of(hardware: Hardware, publisher: str = "") -> SiteErrors | None:
    """Errors of a cluster of somebody's; None on a machine that its own file was measured on, and for a publisher whose
    runs are in the fits."""
    device, is_sold = hardware.accelerator, hardware.accelerator.vendor in VENDORS
    return load_sites().of(publisher, f"{device.name}@{hardware.network.transport}") if is_sold else None


VENDORS = ("amd", "nvidia")
"""Vendors of the devices that training runs were published of."""


def is_guess(hardware: Hardware) -> bool:
    """Whether the stack that a hardware file names is one of several that train there.

    On AMD it is Primus, which this tool plans for; a measured machine's file names the stack it was measured with.
    """
    return hardware.accelerator.vendor == "nvidia"


def on_gpus(network: Network, gpus: int | None) -> Network:
    """The network with `gpus` devices in each node: the fast domain shrinks with a node it ends at, and never grows.

    The NICs stay in proportion, so that each device keeps its share; of a mesh, the links to unused devices carry
    nothing. Devices beyond the domain of a node reach each other over the NICs.
    """
    if gpus is None or gpus == network.gpus_per_node:
        return network
    ends_at_node = network.domain_size == network.gpus_per_node
    nics = max(network.nics_per_node * gpus // network.gpus_per_node, 1)
    domain = min(gpus, network.domain_size) if ends_at_node else network.domain_size
    share = 1.0
    if network.topology == "mesh":
        share = max(domain - 1, 1) / max(network.domain_size - 1, 1)
    return replace(
        network,
        gpus_per_node=gpus,
        domain_size=domain,
        nics_per_node=nics,
        link_bytes_per_s=network.link_bytes_per_s * share,
        link_half_speed_bytes=network.link_half_speed_bytes * share,
    )


def _parse(document: Document, path: Path) -> Hardware:
    reading = Reading(document)
    data = document.data
    if not isinstance(data, dict):
        raise InputError([document.problem((), f"expected the keys {', '.join(_KEYS)}")])
    for key in data:
        if key not in _KEYS:
            reading.problem((key,), f"unknown key{did_you_mean(key, _KEYS, reading.problems)}")
    if data.get(STATUS, STATUSES[0]) not in STATUSES:
        reading.problem((STATUS,), f"is {' or '.join(STATUSES)}, or left out")
    words = {key: _word(reading, data, key) for key in _WORDS}
    price = leaf(float, data[_PRICE], (_PRICE,), 1.0, reading) if _PRICE in data else None
    parts: dict[str, Any] = {}
    own: dict[str, Any] = {"tables": NO_TABLES}  # of a file of their own
    named = own | {"name": words["name"], "vendor": words["vendor"]}
    given = {"accelerator": named, "network": own}
    for section, cls in SECTIONS.items():
        if section in data:
            parts[section] = build(cls, data[section], (section,), reading, given.get(section, {}))
        elif section in OF_THE_JOB:
            reading.problem((), f"missing section {section}")
    if reading.problems:
        raise InputError(reading.problems)
    loaded = Hardware(
        name=words["name"] or path.stem,
        default_stack=words["default_stack"],
        price_per_gpu_hour_usd=price,
        sources=tuple(reading.sources),
        path=path,
        **parts,
    )
    return _with_tables(loaded, path.parent / words["tables"]) if words["tables"] else loaded


def _with_tables(hardware: Hardware, path: Path) -> Hardware:
    """The hardware with the measured calls of a CSV, which projections ask before the laws."""
    kernels, links, sources = read_tables(path)
    return replace(
        hardware,
        accelerator=replace(hardware.accelerator, tables=kernels),
        network=replace(hardware.network, tables=links),
        sources=hardware.sources + tuple(Sourced("tables", path.name, source) for source in sources),
    )


def _word(reading: Reading, data: dict[str, Any], key: str) -> str | None:
    value = data.get(key)
    if isinstance(value, str) and (wrong := name_problem(value)):
        reading.problem((key,), wrong)
        return None
    if isinstance(value, str) or (value is None and key not in ("name", "vendor")):
        return value
    reading.problem((key,) if key in data else (), f"expected a word for {key}")
    return None


def host_hardware() -> Path:
    """The hardware file of this machine, measured once and cached."""
    path: Path = provided("host_file")()
    return path


def known_names() -> tuple[str, ...]:
    """Every key that a Primus file may have."""
    table = key_table("primus_hardware")
    return (*table["numbers"], *table["counts"], "node_topology", *table["unused"])


def _from_primus(document: Document, path: Path) -> Hardware:
    """The hardware a Primus `hardware_config` file describes: its links over the base file's accelerator."""
    top, known = Fields.of(document, document.data), names(FileKind.HARDWARE)
    top.refuse_unknown(("hardware_config", "base", "name"))
    name = top.word("base", path.stem)
    if name not in known:
        what = "a hardware_config says nothing about the accelerator: name the file after one, or add base: NAME"
        top.problem("base", f"unknown base '{name}'{did_you_mean(name, known)}; {what}")
    config = document.data["hardware_config"]
    if not isinstance(config, dict):
        raise InputError([*top.problems, document.problem(("hardware_config",), "expected a mapping")])
    fields = Fields.of(document, config, ("hardware_config",), into=top)
    fields.refuse_unknown(known_names())
    changed = _changes(fields)
    if top.problems:
        raise InputError(top.problems)
    base = load_hardware(name)
    of_device = {key: value for key, value in changed.items() if key in Accelerator.__dataclass_fields__}
    of_network = {key: value for key, value in changed.items() if key not in of_device}
    kept = tuple(s for s in base.sources if units.to_base(s.path.rpartition(".")[2], 0.0)[0] not in changed)
    given = tuple(Sourced(f"hardware_config.{key}", value, document.name) for key, value in config.items())
    unused = key_table("primus_hardware")["unused"]
    passed = [f"{document.name}: {key} is read but not used; {unused[key]}" for key in config if key in unused]
    return replace(
        base,
        accelerator=replace(base.accelerator, **of_device),
        network=replace(base.network, **of_network),
        sources=kept + given,
        notes=(f"{document.name}: laid over the hardware file '{name}'", *passed),
        path=path,
    )


def _changes(fields: Fields) -> dict[str, Any]:
    """Fields of the accelerator and the network that the keys of a Primus file give."""
    table, found = key_table("primus_hardware"), dict[str, Any]()
    for key in filter(fields.has, table["numbers"]):
        targets, before = table["numbers"][key]["fields"], len(fields.problems)
        value = fields.number(key)
        if value <= 0.0 and len(fields.problems) == before:
            fields.problem(key, f"must be above 0, got {value:g}")
        if value > 1.0 and targets[0].endswith("efficiency"):
            fields.problem(key, f"is a share of the line rate and cannot exceed 1, got {value:g}")
        found |= dict.fromkeys(targets, value * table["numbers"][key]["factor"])
    for key in filter(fields.has, table["counts"]):
        found |= dict.fromkeys(table["counts"][key], fields.integer(key))
    if fields.has("node_topology"):
        found["topology"] = fields.word("node_topology")
        if found["topology"] not in ("switch", "mesh"):
            fields.problem("node_topology", f"{found['topology']!r} is not switch or mesh")
    return found
