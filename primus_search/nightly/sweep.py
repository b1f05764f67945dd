"""Sweep files: which spaces a nightly run searches, how far figures may move, what else it checks.

name: nightly
baseline: ../results/baselines/nightly.json         # beside the sweep file; default results/baselines/<name>.json
tolerances: {tokens_per_s: 0.002, memory: 0.002, frontier: 0.005, accuracy: 0.002, speed: 0.4}
accuracy: {runs: ../tests/oracle/data/runs.csv}     # left out: no accuracy check
speed: {space: mixtral_8x22b, rows: 20000}          # left out: no speed check
sweep:
  - {space: llama3_8b_mi300x, nodes: [1, 4], set: {recompute: none}}

Read like a space file: every problem at once, with file, line and path. Variables that override a space
(`PRIMUS_TP`, `NNODES`, ...) are not looked at: a nightly run means the same on every machine.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.declare import load_space
from primus_search.declare.fields import Fields
from primus_search.declare.search_path import FileKind, find
from primus_search.declare.source import Document, read
from primus_search.space import Space

KEYS = ("name", "baseline", "tolerances", "accuracy", "speed", "sweep")
ENTRY_KEYS = ("name", "space", "nodes", "set")
BASELINES = Path("results/baselines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Relative moves that are no regression.

    tokens_per_s, memory, frontier  of the best candidate and of the frontier's hypervolume, either way
    best       the best configuration may change while the old one projects within this of the new one
    accuracy   how much a median or 90th-percentile error against measured runs may grow, absolute
    speed      share of the projection speed that may be lost; wide, for machines differ from night to night
    """

    tokens_per_s: float = 0.002
    memory: float = 0.002
    frontier: float = 0.005
    best: float = 0.0
    accuracy: float = 0.002
    speed: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEntry:
    """One space of a sweep, loaded: its clusters are those of `nodes`."""

    name: str
    space: Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCheck:
    """Whose candidates the speed check projects, and how many."""

    space: Space
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlySweep:
    """A sweep file, complete: every space loaded."""

    name: str
    source: Path
    sha256: str
    baseline: Path
    tolerances: Tolerances
    entries: tuple[SweepEntry, ...]
    runs: Path | None = None
    speed: SpeedCheck | None = None


def load_sweep(path: Path) -> NightlySweep:
    """The sweep in a file. Raises InputError with every problem of it and of the spaces it names."""
    document = read(path)
    if not isinstance(document.data, dict):
        raise InputError([document.problem((), f"expected a mapping with the keys {', '.join(KEYS)}")])
    reader = _Reader(document, path)
    sweep = reader.sweep()
    if reader.problems:
        raise InputError(reader.problems)
    return sweep


@dataclass(slots=True)
class _Reader:
    """One pass over one sweep file, collecting what is wrong on the way."""

    document: Document
    path: Path
    problems: list[Problem] = field(default_factory=list)

    def sweep(self) -> NightlySweep:
        top = Fields.of(self.document, self.document.data)
        top.problems = self.problems
        top.refuse_unknown(KEYS)
        name = top.word("name", self.path.stem)
        baseline = top.word("baseline", "")
        return NightlySweep(
            name=name,
            source=self.path,
            sha256=hashlib.sha256(self.path.read_bytes()).hexdigest(),
            baseline=_beside(self.path, baseline) if baseline else BASELINES / f"{name}.json",
            tolerances=self._tolerances(top),
            entries=self._entries(top),
            runs=self._runs(top),
            speed=self._speed(top),
        )

    def _tolerances(self, top: Fields) -> Tolerances:
        usual = Tolerances()
        section = top.section("tolerances")
        names = tuple(Tolerances.__dataclass_fields__)
        section.refuse_unknown(names)
        values = {name: section.number(name, usual.__getattribute__(name)) for name in names}
        for name, value in values.items():
            if value < 0:
                section.problem(name, f"a tolerance is at least 0, got {value}")
        return Tolerances(**values)

    def _entries(self, top: Fields) -> tuple[SweepEntry, ...]:
        found: list[SweepEntry] = []
        items = top.items("sweep")
        if not items:
            top.problem("sweep", "list the spaces to search: sweep: [{space: llama3_8b_mi300x, nodes: 1}]")
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                self.problems.append(self.document.problem(("sweep", i), "expected a mapping with a space"))
                continue
            entry = Fields.of(self.document, item, ("sweep", i), top)
            entry.refuse_unknown(ENTRY_KEYS)
            space = self._space(entry, ("sweep", i))
            name = entry.word("name", "") or (space.name if space else "")
            if name in [one.name for one in found]:
                entry.problem("name", f"two entries are called '{name}'; give each a name of its own")
            if space is not None:
                found.append(SweepEntry(name=name, space=space))
        return tuple(found)

    def _space(self, entry: Fields, keys: tuple[str | int, ...]) -> Space | None:
        """The space an entry names, with its nodes and overrides laid over it; None after noting problems."""
        before = len(self.problems)
        text = entry.word("space")
        overrides = [f"{key}={json.dumps(located)}" for key, located in _settings(entry).items()]
        nodes = entry.anything("nodes")
        overrides += [] if nodes is None else [f"nodes={json.dumps(nodes)}"]
        if len(self.problems) > before:
            return None
        path = find(FileKind.SPACE, text, beside=self.path.parent)
        if isinstance(path, str):
            entry.problem("space", path)
            return None
        try:
            return load_space(path, overrides=overrides, environ={})
        except InputError as error:
            where = self.document.where(keys)
            self.problems += [Problem(where, str(problem)) for problem in error.problems]
            return None

    def _runs(self, top: Fields) -> Path | None:
        section = top.section("accuracy")
        section.refuse_unknown(("runs",))
        if not top.has("accuracy"):
            return None
        text = section.word("runs")
        path = _beside(self.path, text)
        if text and not path.is_file():
            section.problem("runs", f"no such file '{path}'")
        return path

    def _speed(self, top: Fields) -> SpeedCheck | None:
        if not top.has("speed"):
            return None
        section = top.section("speed")
        section.refuse_unknown(("space", "rows", "nodes", "set"))
        rows = section.integer("rows", 20_000)
        space = self._space(section, ("speed",))
        return None if space is None else SpeedCheck(space=space, rows=rows)


def _beside(sweep: Path, text: str) -> Path:
    """A path written in a sweep file: relative to the file."""
    return Path(os.path.normpath(sweep.parent / text))


def _settings(entry: Fields) -> dict[str, Any]:
    """The overrides under `set`, as written."""
    given = entry.anything("set")
    if given is None:
        return {}
    if not isinstance(given, dict):
        entry.problem("set", "expected a mapping of keys and values, as --set takes them")
        return {}
    return given
