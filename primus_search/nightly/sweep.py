"""Sweep files: which spaces a nightly run searches, how far figures may move, what else it checks.

name: nightly
baseline: ../accepted/nightly                       # a folder beside the sweep file; default results/baselines/<name>
tolerances: {tokens_per_s: 0.002, memory: 0.002, frontier: 0.005, accuracy: 0.002, speed: 0.1}
accuracy: {runs: ../tests/oracle/data/runs.csv}     # left out: no accuracy check
speed: {space: mixtral_8x22b, rows: 20000}          # left out: no speed check
sweep:
  - {space: llama3_8b_mi300x, nodes: [1, 4], set: {recompute: none}}

Read like a space file: every problem at once, with file, line and path. Variables that override a space
(`PRIMUS_TP`, `NNODES`, ...) are not looked at: a nightly run means the same on every machine.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from primus_search.analysis.labels import counted
from primus_search.base.errors import InputError, Problem
from primus_search.declare import load_space
from primus_search.files.fields import Fields
from primus_search.files.search_path import FileKind, find, shipped
from primus_search.files.source import read
from primus_search.space import ClusterChoice, Space

KEYS = ("name", "baseline", "tolerances", "accuracy", "speed", "sweep")
SPACE_KEYS = ("space", "nodes", "set")
BASELINES = Path("results/baselines")
SPEED_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Relative moves that are no regression.

    tokens_per_s, memory, frontier  of the best candidate and of the frontier's hypervolume, either way
    best       the best configuration may change while the old one projects within this of the new one
    accuracy   how much a median or 90th-percentile error against measured runs may grow, absolute
    speed      growth of the work of a projection (instructions of Python, the same on every machine)
    """

    tokens_per_s: float = 0.002
    memory: float = 0.002
    frontier: float = 0.005
    best: float = 0.0
    accuracy: float = 0.002
    speed: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlySweep:
    """A sweep file, complete: every space loaded.

    entries  a space of one cluster by its place, `NAME, 2 nodes of MI300X`    runs  table of the accuracy check
    speed    whose candidates the speed check projects, `speed_rows` of them
    """

    name: str
    source: Path
    baseline: Path
    tolerances: Tolerances
    entries: Mapping[str, Space]
    runs: Path | None = None
    speed: Space | None = None
    speed_rows: int = SPEED_ROWS


def load_sweep(path: Path) -> NightlySweep:
    """The sweep in a file. Raises InputError with every problem of it and of the spaces it names."""
    document = read(path)
    if not isinstance(document.data, dict):
        raise InputError([document.problem((), f"expected a mapping with the keys {', '.join(KEYS)}")])
    top = Fields.of(document, document.data)
    accuracy, speed, limits = (top.section(key) for key in ("accuracy", "speed", "tolerances"))
    known = (KEYS, ("runs",), ("rows", *SPACE_KEYS), tuple(Tolerances.__dataclass_fields__))
    for section, keys in zip((top, accuracy, speed, limits), known, strict=True):
        section.refuse_unknown(keys)
    name, baseline = top.word("name", path.stem), top.word("baseline", "")
    runs = _beside(path, accuracy.word("runs")) if top.has("accuracy") else None
    if runs and accuracy.has("runs") and not runs.is_file():
        if path in shipped(FileKind.SWEEP).values():
            runs = None  # a checkout has the tables of measured runs, an installed package has not
        else:
            accuracy.problem("runs", f"no such file '{runs}'")
    tolerances = {name: limits.number(name, usual) for name, usual in asdict(Tolerances()).items()}
    for key, value in tolerances.items():
        if value < 0:
            limits.problem(key, f"a tolerance is at least 0, got {value}")
    sweep = NightlySweep(
        name=name,
        source=path,
        baseline=_beside(path, baseline) if baseline else BASELINES / name,
        tolerances=Tolerances(**tolerances),
        entries=_entries(top, path),
        runs=runs,
        speed=_space(speed, path) if top.has("speed") else None,
        speed_rows=speed.integer("rows", SPEED_ROWS),
    )
    if top.problems:
        raise InputError(top.problems)
    return sweep


def _entries(top: Fields, path: Path) -> dict[str, Space]:
    found: dict[str, Space] = {}
    known: set[str] = set()
    sections = top.sections("sweep")
    if not sections:
        top.problem("sweep", "list the spaces to search: sweep: [{space: llama3_8b_mi300x, nodes: 1}]")
    for entry in sections:
        entry.refuse_unknown(("name", *SPACE_KEYS))
        space = _space(entry, path)
        name = entry.word("name", "") or (space.name if space else "")
        if name in known:
            entry.problem("name", f"two entries are called '{name}'; give each a name of its own")
        known.add(name)
        if space is not None:
            found |= {f"{name}, {_words(choice)}": space.on(choice) for choice in space.clusters}
    return found


def _words(choice: ClusterChoice) -> str:
    cluster = choice.cluster
    labels = [f"{key}={value}" for key, value in choice.labels if key != "nodes"]
    return " ".join([f"{counted(cluster.num_nodes, 'node')} of {cluster.accelerator.name}", *labels])


def _space(entry: Fields, path: Path) -> Space | None:
    """The space an entry names, with its nodes and overrides laid over it; None after noting problems."""
    before = len(entry.problems)
    text, nodes, given = entry.word("space"), entry.anything("nodes"), entry.anything("set")
    if given is not None and not isinstance(given, dict):
        entry.problem("set", "expected a mapping of keys and values, as --set takes them")
    if len(entry.problems) > before:
        return None
    overrides = [f"{key}={json.dumps(value)}" for key, value in (given or {}).items()]
    overrides += [] if nodes is None else [f"nodes={json.dumps(nodes)}"]
    place = find(FileKind.SPACE, text, beside=path.parent)
    if isinstance(place, str):
        entry.problem("space", place)
        return None
    try:
        return load_space(place, overrides=overrides, environ={})
    except InputError as error:
        entry.problems += [Problem(entry.where, str(problem)) for problem in error.problems]
        return None


def _beside(sweep: Path, text: str) -> Path:
    """A path written in a sweep file: relative to the file."""
    return Path(os.path.normpath(sweep.parent / text))
