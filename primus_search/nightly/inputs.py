"""The inputs of a search as plain values, one group per thing an owner changes, and a space with some set back.

Groups: model, workload, accelerator, network, stack, nodes, axes, constraints, search. The three of the machine hold
one value per cluster of the space.
"""

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from primus_search import __version__
from primus_search.declare.plain_forms import Plain, from_plain, to_plain
from primus_search.declare.search_path import FileKind, names
from primus_search.space import Axis, AxisValue, Constraint, SearchSettings, Space
from primus_search.values.layout import Layout
from primus_search.values.machine.cluster import Accelerator, Cluster, Network
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

MACHINE: Mapping[str, type] = {"accelerator": Accelerator, "network": Network, "stack": Stack}
GROUPS = ("model", "workload", *MACHINE, "nodes", "axes", "constraints", "search")

Inputs = dict[str, Plain]


def inputs_of(space: Space) -> Inputs:
    """Every input the figures of a space depend on, by group."""
    clusters = [choice.cluster for choice in space.clusters]
    machine = {name: [to_plain(cluster.__getattribute__(name)) for cluster in clusters] for name in MACHINE}
    return {
        "model": to_plain(space.model),
        "workload": to_plain(space.workload),
        **machine,
        "nodes": [cluster.num_nodes for cluster in clusters],
        "axes": {axis.name: [_plain_value(value) for value in axis.values] for axis in space.axes},
        "constraints": [constraint.text for constraint in space.constraints],
        "search": to_plain(space.search),
    }


def with_groups(space: Space, before: Inputs, groups: tuple[str, ...]) -> Space:
    """The space with some groups as they were; the rest stays. Raises ValueError or TypeError where they do not fit."""
    for group in groups:
        space = _with_group(space, group, before[group])
    return space


def _with_group(space: Space, group: str, before: Plain) -> Space:
    if group == "model":
        return replace(space, model=from_plain(Model, before, today=space.model))
    if group == "workload":
        return replace(space, workload=from_plain(Workload, before, today=space.workload))
    if group == "search":
        return replace(space, search=from_plain(SearchSettings, before, today=space.search))
    if group == "constraints":
        return replace(space, constraints=tuple(Constraint(text=text, where="baseline") for text in before))
    if group == "axes":
        return replace(space, axes=tuple(_axis(axis, before) for axis in space.axes))
    if len(before) != len(space.clusters):
        raise ValueError(f"the baseline has {len(before)} clusters, this space {len(space.clusters)}")
    choices = []
    for choice, value in zip(space.clusters, before, strict=True):
        cluster = choice.cluster
        if group == "nodes":
            changed: Cluster = replace(cluster, num_nodes=value)
        else:
            part = from_plain(MACHINE[group], value, today=cluster.__getattribute__(group))
            changed = replace(cluster, **{group: part})
        choices.append(replace(choice, cluster=changed))
    return replace(space, clusters=tuple(choices))


def _plain_value(value: AxisValue) -> Plain:
    return {"layout": str(value)} if isinstance(value, Layout) else to_plain(value)


def _axis(today: Axis, before: Mapping[str, Any]) -> Axis:
    """An axis as the baseline has it; codes of enumerations take the type today's values have."""
    if today.name not in before:
        return today
    kinds = {type(value) for value in today.values}
    kind = kinds.pop() if len(kinds) == 1 else None
    values: list[AxisValue] = []
    for plain in before[today.name]:
        if isinstance(plain, dict):
            values.append(Layout.parse(plain["layout"]))
        else:
            values.append(kind(plain) if kind not in (None, Layout) else plain)
    return Axis(name=today.name, values=tuple(values))


# --- what a result depends on besides its declared inputs: the package's own code, its dependencies, its data files


PACKAGE = Path(__file__).resolve().parent.parent
NUMERIC = ("cost", "schedule", "space", "exploration", "declare", "runs", "values")
"""Packages that can move a figure; with the modules beside them. The others print, measure or export."""

DEPENDENCIES = ("numpy", "numba", "scipy", "pydantic", "pyyaml")


def code_hashes() -> dict[str, str]:
    """Hash of every module that can move a figure, by its path in the package (`cost/laws/gemm.py`)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if "/" not in name or name.split("/")[0] in NUMERIC:
            found[name] = _sha(path)
    return found


def data_hashes() -> dict[str, str]:
    """Hash of every hardware, stack and model file (`hardware/mi300x.yaml`)."""
    kinds = (FileKind.HARDWARE, FileKind.HARDWARE_BASE, FileKind.STACK, FileKind.STACK_BASE, FileKind.MODEL)
    return {f"{kind.folder}/{path.name}": _sha(path) for kind in kinds for path in names(kind).values()}


def dependency_versions() -> dict[str, str]:
    """Versions of what computes the figures."""
    found = {"primus-search": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in DEPENDENCIES}


def commit() -> str:
    """The commit of the checkout the package runs from, `+` after it where files differ; empty where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=False, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names whose hash or version differs, those gone and new ones said so, in order."""
    lines = []
    for name in sorted({*before, *after}):
        if name not in after:
            lines.append(f"{name} (gone)")
        elif name not in before:
            lines.append(f"{name} (new)")
        elif before[name] != after[name]:
            lines.append(name)
    return lines


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
