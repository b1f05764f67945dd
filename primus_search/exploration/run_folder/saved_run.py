"""A run folder, opened again: its space as it was searched, and its rows as candidates."""

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import cache_folder, replacing
from primus_search.base.guards.values import LARGEST_WHOLE, unguarded
from primus_search.exploration.answer import Answer
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.result import SearchResult, is_on, traced_shortfall_bytes
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.exploration.run_folder.run_facts import read_facts, read_written
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Candidates
from primus_search.values.knobs import WORDED
from primus_search.values.machine.framework import Framework

if TYPE_CHECKING:
    from primus_search.declare.search_path import Snapshot


def _pointer() -> Path:
    return cache_folder() / "last_runs" / hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]


def remember(folder: Path) -> None:
    """Note the run that was just made in this working directory; a cache that cannot be written is no error."""
    try:
        pointer = _pointer()
        pointer.parent.mkdir(parents=True, exist_ok=True)
        with replacing(pointer) as temporary:
            temporary.write_text(str(folder.resolve()), encoding="utf-8")
    except (OSError, InputError):
        return


def last_run() -> Path:
    """The folder of the last run made in this working directory. Raises InputError where there is none."""
    try:
        folder = Path(_pointer().read_text(encoding="utf-8"))
    except OSError:
        folder = Path()
    if not (folder / "run.json").is_file():
        raise InputError([Problem("RUN", "no run was made in this folder, or it is gone; name a run folder")])
    return folder


MOST_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """What `RunFolder.write` left behind. `facts` is run.json; rows are words and numbers as in ranking.csv."""

    path: Path
    facts: Mapping[str, Any]
    ranking: tuple[Mapping[str, Any], ...]
    frontier: tuple[Mapping[str, Any], ...]

    @classmethod
    def open(cls, path: Path) -> "SavedRun":
        """Read a run folder. Raises `InputError` where it is none, or an unfinished one."""
        facts = read_facts(path)
        return cls(
            path=path,
            facts=facts,
            ranking=_rows(path / "ranking.csv", facts["files"]),
            frontier=_rows(path / "pareto.csv", facts["files"]),
        )

    @classmethod
    def of(cls, result: SearchResult, path: Path) -> "SavedRun":
        """The run of a result that has just been written to `path`; its tables are not read back."""
        run = cls(path=path, facts=read_facts(path), ranking=result.ranked_rows, frontier=result.frontier_rows)
        run.__dict__["space"] = result.space
        run.__dict__["_evaluators"] = [
            (found.choice, replace(found.evaluator, traced_shortfall_bytes=run.traced_shortfall_bytes(found.choice)))
            for found in result.clusters
        ]
        return run

    @cached_property
    def space(self) -> Space:
        """The space as it was searched, overrides included, from the texts that the run folder keeps.

        Raises `InputError` when it holds none and the space, its model or its hardware has changed since: figures would
        not match.
        """
        space = self.loaded(())
        if fingerprint(space) != self.facts["search_sha256"]:
            what = "its space, model, hardware or stack has changed since this run; run it again"
            raise InputError([Problem(str(self.path), what)])
        return space

    @cached_property
    def inputs(self) -> "Snapshot | None":
        """The texts that the run was given; None where the folder of an older run keeps none."""
        from primus_search.declare.search_path import Snapshot

        return Snapshot.read(self.path)

    def loaded(self, changes: Sequence[str]) -> Space:
        """The run's space with further `key=value` changes as after `--set`."""
        from primus_search.declare import load_space

        overrides = [*(f"{one['key']}={one['value']}" for one in self.facts["overrides"]), *changes]
        if self.inputs is None:
            return load_space(self.facts["source"], overrides=overrides, environ={})
        with self.inputs.mounted() as source:
            space = load_space(source, overrides=overrides, environ={}, host_file=self.inputs.host_file)
        return replace(space, source=self.facts["source"])

    @cached_property
    def answer(self) -> Answer:
        """The answer as the run decided it. Raises InputError where an older version wrote the folder."""
        try:
            return Answer.of_data(self.facts["answer"])
        except (KeyError, TypeError) as error:
            what = "its run.json has no answer that this version reads; run the search again"
            raise InputError([Problem(str(self.path), what)]) from error

    def rank_named(self, word: str) -> int:
        """The rank that a letter of the choices or a number stands for. Raises InputError for any other word."""
        if word.isdecimal() and len(word) <= MOST_DIGITS:
            return int(word)
        rank = self.answer.rank_of(word)
        if rank is None:
            letters = ", ".join(one.letter for one in self.answer.choices)
            what = f"is neither a rank nor one of the choices of {self.path} ({letters})"
            raise InputError([Problem(f"row {word[:40]}", what)])
        return rank

    def evaluator(self, choice: ClusterChoice) -> Evaluator:
        """What evaluates further configurations on one of its clusters; the same one for every question."""
        known: list[tuple[ClusterChoice, Evaluator]] = self.__dict__.setdefault("_evaluators", [])
        for one, found in known:
            if one is choice:
                return found
        known.append((choice, Evaluator(self.space, choice, self.traced_shortfall_bytes(choice))))
        return known[-1][1]

    @property
    def note(self) -> str:
        """One line where originals of the run's inputs have changed since, or a later run did not end; else empty."""
        if self.facts["complete"] and (self.path / "journal.bin").exists():
            return f"a later run here has not ended; these are the results of {self.facts['finished']}"
        changed = self.inputs.changed() if self.inputs else ()
        names = ", ".join(Path(name).name for name in changed[:3]) + (" ..." if len(changed) > 3 else "")
        return f"{names} changed since this run; figures are those of the texts it keeps" if changed else ""

    def under(self, framework: Framework) -> "SavedRun":
        """The run judged by the rules of another framework; its rows stay."""
        space = self.space
        other = replace(self)
        other.__dict__["space"] = replace(
            space, clusters=tuple(replace(choice, framework=framework) for choice in space.clusters)
        )
        return other

    def traced_shortfall_bytes(self, choice: ClusterChoice) -> dict[tuple[Any, ...], float]:
        """Rows of one cluster that re-validation showed not to fit, by their words: bytes to spare, negative."""
        return traced_shortfall_bytes(self.ranking, choice)

    def row(self, rank: int) -> Mapping[str, Any]:
        """One row of the ranking; `rank` counts from 1. Raises `InputError` beyond the ends."""
        if not 1 <= rank <= len(self.ranking):
            raise InputError(
                [Problem(f"rank {rank}", f"the ranking of {self.path} has ranks 1 to {len(self.ranking)}")]
            )
        return self.ranking[rank - 1]

    def candidate(self, rank: int) -> Candidates:
        """One row of the ranking as a table of one candidate."""
        row = self.row(rank)
        try:
            return Candidates.from_words({name: row[name] for name in COLUMN_NAMES})
        except UNREADABLE as error:
            what = f"rank {rank} is no candidate: {error}; run the search again"
            raise InputError([Problem(str(self.path / "ranking.csv"), what)]) from error

    def cluster(self, rank: int) -> ClusterChoice:
        """The cluster a row of the ranking is for."""
        row = self.row(rank)
        for choice in self.space.clusters:
            if is_on(row, choice):
                return choice
        raise InputError([Problem(str(self.path), f"no cluster of its space is that of rank {rank}")])


def _rows(path: Path, files: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The rows of one of the run's tables, numbers as numbers. Raises `InputError` when it is not what was written."""
    content = read_written(path, files)
    try:
        lines = csv.DictReader(io.StringIO(content.decode()))
        absent = [name for name in (*COLUMN_NAMES, *FIGURES) if name not in (lines.fieldnames or ())]
        if absent and content:
            raise ValueError(f"no column {', '.join(absent)}")
        return tuple({name: _value(name, text) for name, text in row.items()} for row in lines)
    except (csv.Error, *UNREADABLE) as error:
        raise InputError([Problem(str(path), f"cannot be read back: {error}")]) from error


_COUNTS = frozenset(name for name, default in DEFAULTS.items() if not isinstance(default, bool))
FIGURES = ("dp", "microbatches", "tokens_per_s", "tokens_per_s_per_gpu", "expected_tokens_per_s_per_gpu",
           "step_s", "memory_bytes", "headroom_bytes",
           "bubble_ratio", "mfu")  # fmt: skip
"""Columns of figures that every table of a run has, finite numbers."""


def _value(name: str | None, text: str | None) -> Any:
    """A cell by its column. Raises ValueError for what the column cannot hold."""
    if name is None or text is None:
        raise ValueError(f"a row is longer or shorter than its header, at column {name}")
    if name in WORDED:
        return _known_word(name, unguarded(text))
    if name.endswith("_evidence"):
        return text
    if name in DEFAULTS and name not in _COUNTS and text not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} in column {name} is not true or false")
    if text in ("true", "false"):
        return text == "true"
    if name in _COUNTS or name in ("dp", "microbatches", "nodes"):
        return _count(name, text)
    if name in FIGURES and not isfinite(float(text)):
        raise ValueError(f"{text[:40]!r} in column {name} is not a finite number")
    try:
        return float(text)
    except ValueError:
        return unguarded(text)  # a label of a hardware axis may be a word


def _count(name: str, text: str) -> int:
    if not 0 <= int(text) <= LARGEST_WHOLE:
        raise ValueError(f"{text[:40]!r} in column {name} is no count")
    return int(text)


@lru_cache(maxsize=4096)
def _known_word(name: str, text: str) -> str:
    """A word that its knob has. Raises ValueError for another."""
    try:
        Candidates.from_words({name: text})
    except KeyError:
        raise ValueError(f"{text[:40]!r} in column {name} is none of its words") from None
    return text
