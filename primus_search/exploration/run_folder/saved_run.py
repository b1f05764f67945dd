"""A run folder, opened again: its space as it was searched, and its rows as candidates."""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import cache_folder, write_whole
from primus_search.base.guards.values import LARGEST_WHOLE, unguarded
from primus_search.base.version import __version__
from primus_search.exploration.answer_values import Answer
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.result import SearchResult, is_on, traced_shortfall_bytes
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.exploration.run_folder.resolved import RESOLVED, is_of_today, read_resolved, refusal, written_by
from primus_search.exploration.run_folder.run_facts import read_facts, read_written
from primus_search.files.plain_forms import from_plain
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Candidates
from primus_search.values.knobs import KNOB, WORDED
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import Stack

if TYPE_CHECKING:
    from primus_search.files.snapshot import Snapshot


def _pointer() -> Path:
    return cache_folder() / "last_runs" / hashlib.sha256(os.fsencode(Path.cwd())).hexdigest()[:16]


def remember(folder: Path) -> None:
    """Note the run that was just made in this working directory; a cache that cannot be written is no error."""
    try:
        write_whole(_pointer(), os.fsencode(folder.resolve()))
    except (OSError, InputError):
        return


def last_run() -> Path:
    """The folder of the last run made in this working directory. Raises InputError where there is none."""
    try:
        folder = Path(os.fsdecode(_pointer().read_bytes()))
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
        with _of_its_version(path, facts):
            ranking, frontier = (_rows(path / name, facts["files"]) for name in ("ranking.csv", "pareto.csv"))
        return cls(path=path, facts=facts, ranking=ranking, frontier=frontier)

    @classmethod
    def of(cls, result: SearchResult, path: Path) -> "SavedRun":
        """The run of a result that has just been written to `path`; its tables are not read back."""
        run = cls(path=path, facts=read_facts(path), ranking=result.ranked_rows, frontier=result.frontier_rows)
        run.__dict__.update(space=result.space, _result=result)
        run.__dict__["_evaluators"] = [
            (
                found.choice,
                replace(found.evaluator, traced_shortfall_bytes=traced_shortfall_bytes(run.ranking, found.choice)),
            )
            for found in result.clusters
        ]
        return run

    @cached_property
    def space(self) -> Space:
        """The space as it was searched, overrides included: of `resolved.json`, or the texts that 0.1.0 kept instead.

        Raises `InputError` when it holds neither and the space, its model or its hardware has changed since: figures
        would not match.
        """
        if RESOLVED in self.facts["files"]:
            from primus_search.declare.record_table import with_measured_switches

            file = self.path / RESOLVED
            space = read_resolved(file, read_written(file, self.facts["files"]))
            return with_measured_switches(self._with_kept_runs(space))
        space = self.loaded(())
        if self.inputs is None and fingerprint(space) != self.facts["search_sha256"]:
            what = "its space, model, hardware or stack has changed since this run; run it again"
            raise InputError([Problem(str(self.path), what)])
        return space

    @cached_property
    def inputs(self) -> "Snapshot | None":
        """The texts that the run was given; None where the folder of an older run keeps none."""
        from primus_search.files.snapshot import Snapshot

        return Snapshot.read(self.path)

    def _with_kept_runs(self, space: Space) -> Space:
        """The space whose learned stacks have their runs in the folder's copy, where it keeps one."""
        kept = self.inputs

        def with_kept(stack: Stack) -> Stack:
            if kept is None or stack.runs_file not in kept.texts:
                return stack
            return replace(stack, runs_file=str(kept.place(stack.runs_file)))

        return space.with_stacks(with_kept)

    def loaded(self, changes: Sequence[str]) -> Space:
        """The run's space with further `key=value` changes as after `--set`."""
        from primus_search.declare import load_space

        overrides = [*(f"{one['key']}={one['value']}" for one in self.facts["overrides"]), *changes]
        if self.inputs is None:
            space = load_space(self.facts["source"], overrides=overrides, environ={})
        else:
            with self.inputs.mounted() as source, _of_its_version(self.path, self.facts):
                space = load_space(source, overrides=overrides, environ={}, host_file=self.inputs.host_file)
        return replace(_relieved(space, self.facts["clusters"]), source=self.facts["source"])

    @cached_property
    def answer(self) -> Answer:
        """The answer as the run decided it. Raises InputError where an older version wrote the folder."""
        try:
            return from_plain(Answer, self.facts["answer"])
        except (KeyError, ValueError) as error:
            what = refusal(self.facts, "its run.json has another form of answer")
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
        known.append((choice, Evaluator(self.space, choice, traced_shortfall_bytes(self.ranking, choice))))
        return known[-1][1]

    def kept(self, cluster: int) -> Kept:
        """The kept rows of a cluster, by its number; those of a result that has just been written are not read back."""
        known: dict[int, Kept] = self.__dict__.setdefault("_kept", {})
        if cluster not in known:
            result, is_exact = self.__dict__.get("_result"), bool(self.facts["exact"])
            known[cluster] = (
                Kept.of(result.clusters[cluster].ranking, result.keep, is_exact=is_exact)
                if result
                else Kept.open(self.path, cluster, is_exact=is_exact)
            )
        return known[cluster]

    @property
    def note(self) -> str:
        """One line where a later run did not end, another version wrote the folder, or originals of its inputs have
        changed since; else empty."""
        if self.facts["complete"] and (self.path / "journal.bin").exists():
            return f"a later run here has not ended; these are the results of {self.facts['finished']}"
        if not is_of_today(self.facts):
            with suppress(InputError):
                if RESOLVED not in self.facts["files"]:
                    _ = self.space  # what cannot be read is refused where it is needed, in one line
                return f"written by {written_by(self.facts)}; what is projected anew is projected as {__version__} does"
            return ""
        changed = self.inputs.changed() if self.inputs else ()
        names = ", ".join(Path(name).name for name in changed[:3]) + (" ..." if len(changed) > 3 else "")
        return f"{names} changed since this run; figures are those of the texts it keeps" if changed else ""

    def under(self, framework: Framework) -> "SavedRun":
        """The run judged by the rules of another framework; its rows stay."""
        space = self.space
        other = replace(self)
        other.__dict__["space"] = space.on(*(replace(choice, framework=framework) for choice in space.clusters))
        return other

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


@contextmanager
def _of_its_version(path: Path, facts: Mapping[str, Any]) -> Iterator[None]:
    """One line with the version that wrote a folder in the place of what is wrong in it, where another one did."""
    try:
        yield
    except InputError as error:
        if is_of_today(facts):
            raise
        raise InputError([Problem(str(path), refusal(facts, str(error.problems[0])))]) from error


def _relieved(space: Space, clusters: Sequence[Mapping[str, Any]]) -> Space:
    """The space with the reliefs of the clusters that a run relieved; of all, where others than its own are wanted."""
    places = {place for place, one in enumerate(clusters) if one.get("is_relieved")}
    if places and len(clusters) != len(space.clusters):
        places = set(range(len(space.clusters)))
    return space.relieved(places)


def _rows(path: Path, files: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The rows of one of the run's tables, numbers as numbers. Raises `InputError` when it is not what was written."""
    content = read_written(path, files)
    try:
        lines = csv.DictReader(io.StringIO(content.decode()))
        absent = [name for name in (*COLUMN_NAMES, *FIGURES) if name not in (lines.fieldnames or ())]
        missing = [name for name in absent if name in FIGURES]
        if missing and content:
            raise ValueError(f"no column {', '.join(missing)}")
        if twice := [name for name, times in Counter(lines.fieldnames or ()).items() if times > 1]:
            raise ValueError(f"two columns {', '.join(twice)}")
        later = {name: KNOB[name].word(DEFAULTS[name]) for name in absent}  # knobs of later versions
        return tuple({**later, **{name: _value(name, text) for name, text in row.items()}} for row in lines)
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
    least = 1 if name not in KNOB or KNOB[name].is_doubled else 0
    if not least <= int(text) <= LARGEST_WHOLE:
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
