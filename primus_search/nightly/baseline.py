"""Accepted figures with every input they came from: one JSON file per sweep; a space with some inputs set back.

Groups of inputs: model, workload, accelerator, network, stack, nodes, axes, constraints, search. Axes and those of the
machine hold one value per cluster of the space. Beside them stands what else a result depends on: the package's code,
its dependencies and its data files.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, locked, read_text, write_whole
from primus_search.base.version import __version__
from primus_search.files.plain_forms import Plain, from_plain, to_plain
from primus_search.files.search_path import roots
from primus_search.nightly.figures import Accuracy, ClusterFigures
from primus_search.space import Axis, ClusterChoice, Constraint, SearchSettings, Space
from primus_search.values.layout import Layout
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

FORMAT = 3
WHOLE: Mapping[str, type] = {"model": Model, "workload": Workload, "search": SearchSettings}
MACHINE: Mapping[str, type] = {"accelerator": Accelerator, "network": Network, "stack": Stack}
GROUPS = ("model", "workload", *MACHINE, "nodes", "axes", "constraints", "search")
PARTED = frozenset({*MACHINE, "axes"})
"""Groups that hold a record of values per cluster."""

Inputs = dict[str, Plain]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineState:
    """What one night saw: figures and inputs per entry of the sweep, and what else they depend on.

    code, data, versions   hash or version by name
    """

    entries: dict[str, tuple[ClusterFigures, ...]]
    inputs: dict[str, Inputs]
    accuracy: Accuracy | None
    work: int
    runs_sha256: str
    code: dict[str, str]
    data: dict[str, str]
    versions: dict[str, str]
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a baseline was accepted: when, at which commit, in whose words."""

    date: str
    commit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An accepted state and the reasons of all updates, newest last."""

    state: BaselineState
    reasons: tuple[Reason, ...]


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file. Raises InputError when there is none, or one of another format."""
    if not path.exists():
        what = 'no such baseline; accept today\'s figures with --update-baseline --reason "first baseline"'
        raise InputError([Problem(str(path), what)])
    try:
        plain = json.loads(read_text(path, most=MAX_TABLE_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error
    try:
        if plain.pop("format") != FORMAT:
            raise KeyError("format")
        for one in plain["state"]["inputs"].values():
            if isinstance(one["axes"], dict):  # written when all clusters of a space had the same
                one["axes"] = [one["axes"]] * len(one["nodes"])
        return from_plain(Baseline, plain)
    except UNREADABLE as error:
        what = f"is no baseline of this version ({error}); write a new one with --update-baseline --reason TEXT"
        raise InputError([Problem(str(path), what)]) from error


def write_baseline(path: Path, state: BaselineState, reason: Reason) -> None:
    """The file, whole or not at all, with the reasons of the one it replaces; the same state gives the same bytes."""
    with locked(path.parent):
        try:
            known = read_baseline(path).reasons
        except InputError:
            known = ()
        plain = to_plain(Baseline(state=state, reasons=(*known, reason)))
        write_whole(path, json.dumps({"format": FORMAT} | plain, indent=1, sort_keys=True) + "\n")


# --- inputs ----------------------------------------------------------------------------------------------------------


def inputs_of(space: Space) -> Inputs:
    """Every input the figures of a space depend on, by group."""
    clusters = [choice.cluster for choice in space.clusters]
    return {
        **{name: to_plain(space.__getattribute__(name)) for name in WHOLE},
        **{name: [to_plain(cluster.__getattribute__(name)) for cluster in clusters] for name in MACHINE},
        "nodes": [cluster.num_nodes for cluster in clusters],
        "axes": [
            {
                axis.name: [{"layout": str(one)} if isinstance(one, Layout) else to_plain(one) for one in axis.values]
                for axis in choice.axes
            }
            for choice in space.clusters
        ],
        "constraints": [constraint.text for constraint in space.constraints],
    }


def with_groups(space: Space, before: Inputs, groups: Iterable[str]) -> Space:
    """The space with some groups as they were; the rest stays. Raises ValueError or TypeError where they do not fit."""
    for group in groups:
        was = before[group]
        if group in WHOLE:
            changed: dict[str, Any] = {group: from_plain(WHOLE[group], was, today=space.__getattribute__(group))}
        elif group == "constraints":
            changed = {group: tuple(Constraint(text=text, where="baseline") for text in was)}
        elif len(was) != len(space.clusters):
            raise ValueError(f"the baseline has {len(was)} clusters, this space {len(space.clusters)}")
        else:
            changed = {"clusters": tuple(_choice(*pair, group) for pair in zip(space.clusters, was, strict=True))}
        space = replace(space, **changed)
    return space


def _choice(today: ClusterChoice, was: Plain, group: str) -> ClusterChoice:
    """A cluster with one part of its machine, its number of nodes or its axes as they were."""
    if group == "axes":
        return today.with_axes([_axis(axis, was[axis.name]) for axis in today.axes if axis.name in was])
    part = {"num_nodes": was}
    if group != "nodes":
        part = {group: from_plain(MACHINE[group], was, today=today.cluster.__getattribute__(group))}
    return replace(today, cluster=replace(today.cluster, **part))


def _axis(today: Axis, before: list[Plain]) -> Axis:
    """An axis as the baseline has it; codes of enumerations take the type today's values have."""
    kinds = {type(value) for value in today.values} - {Layout}
    kind: Any = kinds.pop() if len(kinds) == 1 else lambda plain: plain
    values = (Layout.parse(plain["layout"]) if isinstance(plain, dict) else kind(plain) for plain in before)
    return Axis(name=today.name, values=tuple(values))


# --- what a result depends on besides its declared inputs ------------------------------------------------------------


PACKAGE = Path(__file__).resolve().parent.parent
MOVES_NOTHING = ("analysis", "cli", "launch", "measure", "nightly", "report", "session")
"""Rooms that print, measure or start jobs; a module of any other one can move a figure."""

DATA = ("hardware", "spaces/models", "spaces/keys")
"""Folders of data that figures depend on: devices, stacks, frameworks, measured ranges, models, known keys."""
DEPENDENCIES = ("numpy", "numba", "scipy", "pydantic", "pyyaml")


def code_hashes() -> dict[str, str]:
    """Hash of every module and table that can move a figure, by its path in the package (`cost/laws/gemm.py`)."""
    files = sorted((*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml")))
    paths = {path.relative_to(PACKAGE): path for path in files}
    return {own.as_posix(): _sha(path) for own, path in paths.items() if own.parts[0] not in MOVES_NOTHING}


def data_hashes() -> dict[str, str]:
    """Hash of every file of `DATA` by its path below the root that it is read from (`hardware/mi300x.yaml`)."""
    found: dict[str, Path] = {}
    for root in reversed(roots()):
        files = (path for folder in DATA for path in sorted((root / folder).rglob("*.*")) if path.is_file())
        found |= {path.relative_to(root).as_posix(): path for path in files}
    return {name: _sha(path) for name, path in found.items()}


def dependency_versions() -> dict[str, str]:
    """Versions of what computes the figures."""
    found = {"primus-search": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in DEPENDENCIES}


def commit() -> str:
    """The commit of the checkout the package runs from, `+` after it where files differ; empty where there is none."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names whose hash or version differs, in order; those gone and new ones are marked."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [name + (" (new)" if name not in before else "" if name in after else " (gone)") for name in names]


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
