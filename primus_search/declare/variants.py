"""Clusters a space chooses from: every combination of nodes, hardware, stack, and hardware numbers given as axes.

`hardware.nic_GBps: [50, 100]` in the `space` section plans for both NICs; `stack.cuda_graph: [none, full]` for both
ways to launch. Names are those of the YAML files, units included; a number inside a section is written with dots
(`hardware.gemm.bf16_efficiency`). Names of a stack's numbers are unique, so its group may be left out
(`stack.host.cuda_graph` is `stack.cuda_graph`).
"""

import dataclasses
import itertools
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_origin

from primus_search.base import units
from primus_search.base.errors import Problem, did_you_mean
from primus_search.base.field_paths import value_at, with_value
from primus_search.files.hardware_files import OF_THE_JOB, SECTIONS, Hardware, on_gpus
from primus_search.files.records import Reading, read_value
from primus_search.files.source import Document, Keys
from primus_search.space import ClusterChoice
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import SiteErrors, Stack

PREFIXES = ("hardware.", "stack.")
PRICE = "hardware.price_per_gpu_hour_USD"


@dataclass(frozen=True, slots=True)
class HardwareAxis:
    """A number of a hardware or stack file that takes several values.

    key   as written, e.g. `hardware.nic_GBps`       part    the section it belongs to, or `stack`
    path  field names from the part to the number    values  as written, and in base units
    """

    key: str
    part: str
    path: tuple[str, ...]
    values: tuple[tuple[Any, Any], ...]


def read_axis(document: Document, keys: Keys, raw: Any, problems: list[Problem]) -> HardwareAxis | None:
    """The hardware axis at `keys` of the document, or None after noting problems."""
    key = str(keys[-1])
    prefix, _, rest = key.partition(".")
    parts = SECTIONS if prefix == "hardware" else {"stack": Stack}
    names = {name: (part, *found) for part, cls in parts.items() for name, *found in _numbers(cls)}
    if prefix == "stack":  # names of a stack's numbers are unique
        names = {name.partition(".")[2]: one for name, one in names.items() if "." in name} | names
    if key == PRICE:
        what = "is no axis: write price: {NAME: 2.5} beside the space section, or --price NAME=2.5"
        problems.append(document.problem(keys, what))
        return None
    if rest not in names:
        near = did_you_mean(key, [f"{prefix}.{name}" for name in names])
        problems.append(document.problem(keys, f"unknown {prefix} number{near}"))
        return None
    part, path, hint, factor = names[rest]
    items = raw if isinstance(raw, list) else [raw]
    places = [(*keys, i) for i in range(len(items))] if isinstance(raw, list) else [keys]
    reading = Reading(document)
    if not items:
        reading.problem(keys, "is an empty list; give at least one value")
    values = [read_value(path[-1], hint, one, at, factor, reading) for one, at in zip(items, places, strict=True)]
    problems += reading.problems
    return None if reading.problems else HardwareAxis(key, part, path, tuple(zip(items, values, strict=True)))


def stack_fields(keys: Iterable[str]) -> set[str]:
    """The fields of a stack that keys of a space file name (`stack.gradient_B`, `stack.precision.gradient_B`)."""
    named = {name.rpartition(".")[2]: path[-1] for name, path, _, _ in _numbers(Stack)}
    words = (key.strip().rpartition(".")[2] for key in keys if key.strip().startswith("stack."))
    return {named[word] for word in words if word in named}


def _numbers(part: type) -> Iterator[tuple[str, tuple[str, ...], Any, float]]:
    """Dotted YAML name, field path, type and unit factor of every number, switch and word inside a dataclass."""
    for name, hint in typing.get_type_hints(part).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from ((f"{name}.{inner}", (name, *path), of, by) for inner, path, of, by in _numbers(hint))
        elif hint in (int, float, bool) or get_origin(hint) is Literal:
            for key in dict.fromkeys((*units.yaml_keys(name), name)):
                yield key, (name,), hint, units.to_base(key, 1.0)[1] if key != name else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A hardware file with a software stack on it and the framework that starts jobs there."""

    hardware: Hardware
    stack: Stack
    framework: Framework
    is_framework_assumed: bool
    site: SiteErrors | None = None


def clusters(
    sizes: Sequence[tuple[Machine, int]], axes: Sequence[HardwareAxis], gpus: int | None
) -> list[ClusterChoice]:
    """Every machine with its nodes and values of the axes, each labelled with what tells it from the others.

    Raises ValueError where a value is impossible.
    """
    choices, machines, counts = [], [machine for machine, _ in sizes], {count for _, count in sizes}
    node_sizes: dict[str, set[int]] = {}
    for one in machines:
        node_sizes.setdefault(one.hardware.name, set()).add(one.hardware.network.gpus_per_node)
    several_hardware = len({machine.hardware.name for machine in machines}) > 1
    several_stacks = len({machine.stack.reference for machine in machines}) > 1
    named = {machine.framework.name for machine in machines if not machine.is_framework_assumed}
    for machine, count in sizes:
        hard, stack = machine.hardware, machine.stack
        base: list[tuple[str, int | float | str]] = [
            (name, value)
            for name, value, is_named in (
                ("nodes", count, len(counts) > 1),
                ("gpus_per_node", hard.network.gpus_per_node, len(node_sizes[hard.name]) > 1),
                ("hardware", hard.name, several_hardware),
                ("stack", stack.reference, several_stacks),
                ("framework", machine.framework.name, len(named) > 1),
            )
            if is_named
        ]
        for values in itertools.product(*(axis.values for axis in axes)):
            parts: dict[str, Any] = {name: hard.__getattribute__(name) for name in SECTIONS} | {"stack": stack}
            parts["network"] = on_gpus(hard.network, gpus)
            labels, overridden = list(base), list[str]()
            for axis, (written, value) in zip(axes, values, strict=True):
                is_rate = axis.part in (*OF_THE_JOB, "stack") and not isinstance(value, bool | str)
                if is_rate and value != value_at(parts[axis.part], axis.path):
                    overridden.append(".".join((axis.part, *axis.path)))
                parts[axis.part] = with_value(parts[axis.part], axis.path, value)
                labels += [(axis.key, written)] if len(axis.values) > 1 else []
            fails = parts["reliability"]
            if fails.node_mtbf_hours != hard.reliability.node_mtbf_hours:
                parts["reliability"] = dataclasses.replace(fails, mtbf_is_assumed=False)
            cluster = Cluster(
                **{name: parts.pop(name) for name in (*OF_THE_JOB, "stack")},
                num_nodes=count,
                overridden=tuple(overridden),
                site=machine.site,
            )
            choices.append(
                ClusterChoice(
                    cluster=cluster,
                    framework=machine.framework,
                    is_framework_assumed=machine.is_framework_assumed,
                    labels=tuple(labels),
                    price_per_gpu_hour_USD=hard.price_per_gpu_hour_usd or 0.0,
                    **parts,
                )
            )
    return choices
