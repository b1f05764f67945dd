"""The machine of a published run: its GPU's hardware file and network, the software stack and its switches."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError
from primus_search.evidence.published.run_table import PublishedRun, Skipped
from primus_search.files.hardware_files import Hardware, load_cluster, load_hardware, load_stack, site_of
from primus_search.files.word_rules import first, hardware_named, plain, vocabulary
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack, number_of, with_numbers


@lru_cache(maxsize=64)
def stack_file(name: str) -> Stack:
    """The stack of that name as its file has it."""
    return load_stack(name)


def hardware_of(run: PublishedRun) -> str:
    """The hardware file of a run's GPU and the transport that its words name. Raises `Skipped` where there is none."""
    gpu = run.word("gpu")
    words = plain(" | ".join(run.word(column) for column in ("source", "flags", "notes")))
    family = re.search(r"(?<![a-z])[a-z]++\d{2,3}", gpu.lower().replace(" ", ""))
    is_card = family and re.search(rf"(?<![a-z]){family.group()} (?:pcie|nvl)\b(?! ?\d| gen)", words)
    if is_card or first(vocabulary("devices")["limited_power"], {"words": words}):
        raise Skipped(f"the {gpu} is said to be another card, or to run at less power, than the module")
    file = hardware_named(gpu, run.word("notes"), run.word("source"))
    if file is None:
        raise Skipped(f"no hardware file for GPU {gpu!r}")
    transport = first(vocabulary("devices")["transport"], {"words": words})
    return f"{file}@{transport}" if transport else file


@lru_cache(maxsize=64)
def build_hardware(name: str) -> Hardware:
    """The hardware file of that name. Raises `Skipped` where it cannot be read."""
    try:
        return load_hardware(name)
    except InputError as error:
        raise Skipped(f"hardware {name}: {error.problems[0].what}") from None


def build_cluster(run: PublishedRun, hardware: Hardware, stack: Stack) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of one node, or of each node, has smaller nodes."""
    gpus = run.count("gpus")
    network = _fabric(run, hardware.network)
    per_node = min(run.parts("gpus_per_node") or network.gpus_per_node, network.gpus_per_node, gpus)
    if gpus % per_node:
        raise Skipped(f"{gpus} GPUs are no whole number of nodes of {per_node}")
    usual = replace(hardware, network=network)
    cluster = load_cluster(usual, gpus // per_node, stack, gpus_per_node=per_node)
    return replace(cluster, site=site_of(hardware, run.publisher))


def _fabric(run: PublishedRun, network: Network) -> Network:
    """The network with the NICs a run says it had: `4x100Gb RoCE/node`, or a total per node."""
    nics = run.told("nics", file="devices", default=[0, 0])
    if all(nics):
        return replace(network, nics_per_node=nics[0], nic_bytes_per_s=_bytes_per_s(nics[1]))
    total = run.told("nic_total", file="devices", default=0)
    if total:
        rate = _bytes_per_s(total) / network.nics_per_node
        return replace(network, nic_bytes_per_s=rate, pod_bytes_per_s=min(rate, network.pod_bytes_per_s))
    return network


def _bytes_per_s(gbit: int) -> float:
    return float(gbit) * 1e9 / 8.0


def build_stack(
    run: PublishedRun, hardware: Hardware, supposed: str = "", *, variant: str = ""
) -> tuple[Stack, tuple[str, ...]]:
    """The stack of a run with the switches its flags name, and what had to be assumed to know it.

    A column `stack` (or `stack=` in the flags) names a stack file; else the source tells; else the words of notes and
    flags; else what most runs on such a device are made with. supposed: this stack whatever the run says.
    variant: which one of the stack that its column or source tells.
    """
    if supposed:
        return replace(switched(stack_file(supposed), run, hardware), is_assumed=True), (f"{supposed} supposed",)
    in_flags = re.search(r"\bstack=([^;]*)", run.word("flags"))
    named = run.word("stack") or (in_flags.group(1).strip() if in_flags else "")
    assumed: tuple[str, ...] = ()
    name, version = None, f"@{variant}" if variant else ""
    if named:
        try:
            return switched(stack_file(named + version), run, hardware), ()
        except InputError:
            name = stack_name(run.facts | {"source": named})
            assumed = (f"stack {named!r} " + (f"read as {name}" if name else "is not known"),)
    name = name or stack_name(run.facts)
    is_assumed, has_words = name is None, False
    if name is None:
        name = inferred_stack(run, hardware)
        has_words = name != stack_without_words(run, hardware)
        assumed += (f"no stack is known for this source: {name} assumed",)
    elif variant:
        name += version
    elif run.told("is_fork", file="stacks"):
        is_assumed, has_words, assumed = True, True, (*assumed, f"{name} assumed of a fork")
    try:
        stack = switched(stack_file(name), run, hardware)
    except InputError as error:
        raise Skipped(f"stack {name}: {error.problems[0].what}") from None
    return replace(stack, is_assumed=is_assumed, has_words=has_words), assumed


def stack_name(words: Mapping[str, str]) -> str | None:
    """The stack that runs of a source (with these flags, on this GPU) were made with; None: not known."""
    found: str | None = first(vocabulary("stacks")["by_source"], words)
    return found


def inferred_stack(run: PublishedRun, hardware: Hardware) -> str:
    """What a run of an unknown source was most likely made with; docs/fidelity.md has the error that this costs."""
    sharding = run.told("sharding")
    facts = _facts(run, hardware) | {
        "is_sharded": "yes" if sharding in ("fsdp2", "hsdp", "megatron_fsdp") else "no",
        "is_moe": "yes" if (run.whole("num_experts", 0) or 0) > 1 else "no",
    }
    return str(first(vocabulary("stacks")["likely"], facts))


def stack_without_words(run: PublishedRun, hardware: Hardware) -> str:
    """What would be assumed of a run's software if nothing but its configuration were known."""
    return inferred_stack(run.without("source", "flags", "notes", "stack"), hardware)


def switched(stack: Stack, run: PublishedRun, hardware: Hardware) -> Stack:
    """The stack with what a run's words switch on or off on that device."""
    facts = _facts(run, hardware)
    for group in vocabulary("switches"):
        for name, value in (first(group, facts | {"stack.": stack}) or {}).items():
            is_float = isinstance(number_of(stack, name), float)
            stack = with_numbers(stack, {name: float(value) if is_float else value})
    return stack


def _facts(run: PublishedRun, hardware: Hardware) -> dict[str, Any]:
    acc = hardware.accelerator
    return run.facts | {
        "device.vendor": acc.vendor,
        "device.arch": acc.arch,
        "device.kernels": " ".join(acc.attention.kernels),
        "device.default_stack": hardware.default_stack or "",
    }
