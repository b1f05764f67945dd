"""The machine of a measured run: accelerator and network of its GPU, software stack of its source, switches of its
flags."""

import re
from dataclasses import replace
from functools import lru_cache

from primus_search.cluster import Cluster
from primus_search.declare.hardware import Hardware, load_hardware, load_stack, on_fewer_gpus
from primus_search.errors import InputError
from primus_search.network import Network
from primus_search.stack import Stack
from primus_search.validate import devices, words
from primus_search.validate.likely import likely_stack
from primus_search.validate.rows import Run, Skipped
from primus_search.validate.switches import switched


@lru_cache(maxsize=64)
def _hardware(name: str) -> Hardware:
    return load_hardware(name)


@lru_cache(maxsize=64)
def stack_file(name: str) -> Stack:
    """The stack of that name as its file has it."""
    return load_stack(name)


def build_hardware(run: Run) -> Hardware:
    """The hardware file of a run's GPU; variants that notes describe (memory) have files of their own, or none."""
    text = " | ".join(run.word(name) for name in ("source", "flags", "notes"))
    if devices.is_other_card(run.word("gpu"), text):
        raise Skipped(f"the {run.word('gpu')} is said to be another card, or to run at less power, than the module")
    name = devices.hardware(run.word("gpu"), run.word("notes"), run.word("source"))
    if name is None:
        raise Skipped(f"no hardware file for GPU {run.word('gpu')!r}")
    try:
        return _hardware(name)
    except InputError as error:
        raise Skipped(f"hardware {name}: {error.problems[0].what}") from None


def build_cluster(run: Run, hardware: Hardware, stack: Stack) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of one node, or of each node, has smaller nodes."""
    gpus = run.count("gpus")
    network = _fabric(run, hardware.network)
    per_node = min(run.parts("gpus_per_node") or network.gpus_per_node, network.gpus_per_node, gpus)
    if gpus % per_node:
        raise Skipped(f"{gpus} GPUs are no whole number of nodes of {per_node}")
    network = on_fewer_gpus(network, per_node)
    return Cluster(accelerator=hardware.accelerator, network=network, stack=stack, num_nodes=gpus // per_node)


def _fabric(run: Run, network: Network) -> Network:
    """The network with the NICs a run says it had: `4x100Gb RoCE/node`, or a total per node."""
    text = f"{run.word('flags')} {run.word('source')}"
    per_nic = re.search(r"\b(\d{1,2})x(\d{1,4}) ?Gb", text)
    if per_nic and int(per_nic.group(1)) and int(per_nic.group(2)):
        nics, gbit = int(per_nic.group(1)), float(per_nic.group(2))
        return replace(network, nics_per_node=nics, nic_bytes_per_s=gbit * 1e9 / 8.0)
    total = re.search(r"(?:inter-node|with) (\d{3,4}) ?Gbps", text)
    if total and int(total.group(1)):
        rate = float(total.group(1)) * 1e9 / 8.0 / network.nics_per_node
        return replace(network, nic_bytes_per_s=rate, pod_bytes_per_s=min(rate, network.pod_bytes_per_s))
    return network


def build_stack(run: Run, hardware: Hardware, supposed: str = "") -> tuple[Stack, tuple[str, ...]]:
    """The stack of a run with the switches its flags name, and what had to be assumed to know it.

    A column `stack` (or `stack=` in the flags) names a stack file; else the source tells; else the words of notes and
    flags; else what most runs on such a device are made with. supposed: this stack whatever the run says.
    """
    acc = hardware.accelerator
    if supposed:
        return replace(switched(stack_file(supposed), run, acc), is_assumed=True), (f"{supposed} supposed",)
    named = run.word("stack") or words.setting(run.word("flags"), "stack") or ""
    assumed: tuple[str, ...] = ()
    if named:
        try:
            return switched(stack_file(named), run, acc), ()
        except InputError:
            assumed = (f"stack {named!r} is not known",)
    name = words.stack_name(named, run.word("flags"), run.word("gpu")) if named else None
    if name is not None:
        assumed = (f"stack {named!r} read as {name}",)
    else:
        name = words.stack_name(run.word("source"), run.word("flags"), run.word("gpu"))
    is_assumed = name is None
    if name is None:
        name = likely_stack(run, hardware)
        assumed += (f"no stack is known for this source: {name} assumed",)
    elif words.is_fork(run.word("source")):
        is_assumed, assumed = True, (*assumed, f"{name} assumed of a fork")
    try:
        return replace(switched(stack_file(name), run, acc), is_assumed=is_assumed), assumed
    except InputError as error:
        raise Skipped(f"stack {name}: {error.problems[0].what}") from None


def stack_without_source(run: Run) -> str:
    """What would be assumed of a run if nothing but its configuration were known."""
    return likely_stack(run.without("source", "flags", "notes", "stack"), build_hardware(run))


def imbalance(run: Run, stack: Stack) -> float:
    """How uneven routing is: 1 where it is balanced by force, as published runs do unless they say otherwise.

    Experts padded to a capacity all take as long as one of that many rows.
    """
    text = f"{run.word('flags')} {run.word('notes')}".lower()
    capacity = words.padded_capacity(text)
    if capacity is not None:
        return capacity
    return stack.natural_imbalance if re.search(r"natural routing|real routing", text) else 1.0
