"""Clusters a space chooses from: every combination of nodes, hardware, stack, and hardware numbers given as axes.

`hardware.nic_GBps: [50, 100]` in the `space` section plans for both NICs; `stack.cuda_graph: [none, full]` for both
ways to launch. Names are those of the YAML files, units included; a number inside a section is written with dots
(`hardware.gemm.bf16_efficiency`). Names of a stack's numbers are unique, so its group may be left out
(`stack.host.cuda_graph` is `stack.cuda_graph`).
"""

import dataclasses
import itertools
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from primus_search.base import units
from primus_search.base.errors import Problem
from primus_search.base.field_paths import value_at, with_value
from primus_search.base.guards.values import range_problem
from primus_search.declare.hardware_files import Hardware, on_fewer_gpus
from primus_search.declare.source import Document, Keys, did_you_mean, join_words
from primus_search.space import ClusterChoice
from primus_search.values.machine.cluster import Accelerator, Cluster, Network, Reliability
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import GROUPS, SiteErrors, Stack

PREFIXES = ("hardware.", "stack.")


@dataclass(frozen=True, slots=True)
class HardwareAxis:
    """A number of a hardware or stack file that takes several values.

    key   as written, e.g. `hardware.nic_GBps`       part    the dataclass it belongs to
    path  field names from the part to the number    values  as written, and in base units
    """

    key: str
    part: type
    path: tuple[str, ...]
    values: tuple[tuple[Any, Any], ...]


def read_axis(document: Document, keys: Keys, raw: Any, problems: list[Problem]) -> HardwareAxis | None:
    """The hardware axis at `keys` of the document, or None after noting problems."""
    key = str(keys[-1])
    prefix, _, rest = key.partition(".")
    parts: tuple[type, ...] = (Accelerator, Network, Reliability) if prefix == "hardware" else (Stack,)
    for part in parts:
        found = _locate(part, rest.split(".")) or _in_group(part, rest)
        if found is not None:
            path, hint, factor = found
            items = raw if isinstance(raw, list) else [raw]
            places = [(*keys, i) for i in range(len(items))] if isinstance(raw, list) else [keys]
            before = len(problems)
            values = [
                _value(document, place, item, path[-1], hint, factor, problems)
                for place, item in zip(places, items, strict=True)
            ]
            if not items:
                problems.append(document.problem(keys, "is an empty list; give at least one value"))
            if len(problems) > before:
                return None
            return HardwareAxis(key, part, path, tuple(zip(items, values, strict=True)))
    known = [f"{prefix}.{name}" for part in parts for name in _names(part)]
    known += [f"{prefix}.{name}" for group in GROUPS.values() for name in _names(group)] if Stack in parts else []
    problems.append(document.problem(keys, f"unknown {prefix} number{did_you_mean(key, known)}"))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A hardware file with a software stack on it and the framework that starts jobs there."""

    hardware: Hardware
    stack: Stack
    framework: Framework
    is_framework_assumed: bool
    site: SiteErrors | None = None


def clusters(
    machines: Sequence[Machine], nodes: Sequence[int], axes: Sequence[HardwareAxis], gpus: int | None
) -> list[ClusterChoice]:
    """Every combination, each labelled with what tells it from the others. ValueError where a value is impossible."""
    choices = []
    several_hardware = len({machine.hardware.name for machine in machines}) > 1
    several_stacks = len({machine.stack.reference for machine in machines}) > 1
    named = {machine.framework.name for machine in machines if not machine.is_framework_assumed}
    several_frameworks = len(named) > 1
    for machine, count in itertools.product(machines, nodes):
        hard, stack = machine.hardware, machine.stack
        base: list[tuple[str, int | float | str]] = []
        base += [("nodes", count)] if len(nodes) > 1 else []
        base += [("hardware", hard.name)] if several_hardware else []
        base += [("stack", stack.reference)] if several_stacks else []
        base += [("framework", machine.framework.name)] if several_frameworks else []
        for values in itertools.product(*(axis.values for axis in axes)):
            parts: dict[type, Any] = {
                Accelerator: hard.accelerator,
                Network: on_fewer_gpus(hard.network, gpus),
                Reliability: hard.reliability,
                Stack: stack,
            }
            labels, overridden = list(base), list[str]()
            for axis, (written, value) in zip(axes, values, strict=True):
                is_rate = axis.part is not Reliability and not isinstance(value, bool | str)
                if is_rate and value != value_at(parts[axis.part], axis.path):
                    overridden.append(".".join((axis.part.__name__.lower(), *axis.path)))
                parts[axis.part] = with_value(parts[axis.part], axis.path, value)
                labels += [(axis.key, written)] if len(axis.values) > 1 else []
            cluster = Cluster(
                accelerator=parts[Accelerator],
                network=parts[Network],
                stack=parts[Stack],
                num_nodes=count,
                overridden=tuple(overridden),
                site=machine.site,
            )
            price = hard.price_per_gpu_hour_usd or 0.0
            choices.append(
                ClusterChoice(
                    cluster=cluster,
                    framework=machine.framework,
                    is_framework_assumed=machine.is_framework_assumed,
                    labels=tuple(labels),
                    price_per_gpu_hour_USD=price,
                    reliability=parts[Reliability],
                )
            )
    return choices


def _locate(part: type, words: list[str]) -> tuple[tuple[str, ...], Any, float] | None:
    """Field path, type and unit factor of a dotted YAML name inside a dataclass."""
    hints = typing.get_type_hints(part)
    name, factor = units.to_base(words[0], 1.0)
    if words[0] in hints:
        name, factor = words[0], 1.0
    if name not in hints:
        return None
    if len(words) == 1:
        is_number = hints[name] in (int, float, bool) or get_origin(hints[name]) is Literal
        return ((name,), hints[name], factor) if is_number and words[0] in (name, *units.yaml_keys(name)) else None
    if not (dataclasses.is_dataclass(hints[name]) and isinstance(hints[name], type)):
        return None
    inner = _locate(hints[name], words[1:])
    return None if inner is None else ((name, *inner[0]), inner[1], inner[2])


def _in_group(part: type, name: str) -> tuple[tuple[str, ...], Any, float] | None:
    """What `_locate` finds for a stack's number without its group (`cuda_graph`)."""
    if part is not Stack:
        return None
    found = (_locate(part, [group, name]) for group in GROUPS)
    return next((one for one in found if one is not None), None)


def _names(part: type) -> list[str]:
    """Every dotted YAML name inside a dataclass."""
    names = []
    for name, hint in typing.get_type_hints(part).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            names += [f"{name}.{inner}" for inner in _names(hint)]
        else:
            names += units.yaml_keys(name)
    return names


def _value(
    document: Document, keys: Keys, raw: Any, name: str, hint: Any, factor: float, problems: list[Problem]
) -> Any:
    if get_origin(hint) is Literal:
        if raw not in get_args(hint):
            problems.append(document.problem(keys, f"{raw!r} is not one of {join_words(get_args(hint))}"))
        return raw
    wanted = bool if hint is bool else int if hint is int else (int, float)
    if not isinstance(raw, wanted) or (hint is not bool and isinstance(raw, bool)):
        what = {bool: "true or false", int: "a whole number"}.get(hint, "a number")
        problems.append(document.problem(keys, f"expected {what}, got {raw!r}"))
        return None
    if hint is bool:
        return raw
    if wrong := range_problem(name, raw if factor == 1.0 else raw * factor):
        problems.append(document.problem(keys, f"{wrong}, got {raw!r}"))
        return None
    return hint(raw * factor) if factor != 1.0 else hint(raw)
