"""A run folder, opened again: its space as it was searched, and its rows as candidates.

`run.json` read back: every key that a reader uses has its type, or the file is refused by the key's name.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import (
    MAX_TABLE_BYTES,
    cache_folder,
    exists,
    read_bytes,
    read_text,
    replacing,
    table_beside,
    write_whole,
)
from primus_search.base.guards.values import LARGEST_WHOLE, unguarded
from primus_search.exploration.answer import Answer
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.result import SearchResult, is_on, traced_shortfall_bytes
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Candidates
from primus_search.values.knobs import WORDED
from primus_search.values.machine.framework import Framework

if TYPE_CHECKING:
    from primus_search.declare.search_path import Snapshot


SHAPE: Mapping[str, Any] = table_beside(__file__)
"""What values are by key: a kind, a mapping of further keys, or a list of one shape."""
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a whole number of at least 0": lambda value: type(value) is int and value >= 0,
    "a finite number": lambda value: type(value) in (int, float) and isfinite(value),
    "true or false": lambda value: isinstance(value, bool),
    "anything": lambda value: True,
}


def read_facts(folder: Path) -> Mapping[str, Any]:
    """The content of run.json. Raises `InputError` with the file and the key for a missing, cut or changed one."""
    file = folder / "run.json"
    if not exists(file):
        what = "holds no run.json; is it a finished run of `primus-search run --out`?"
        raise InputError([Problem(str(folder), what if exists(folder) and folder.is_dir() else "no such folder")])
    text = read_text(file, most=MAX_TABLE_BYTES)
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(file), f"cannot be read back: {error}")]) from error
    if not isinstance(facts, dict) or "files" not in facts:
        raise InputError([Problem(str(file), "was written by an older version; run the search again")])
    problems = [Problem(f"{file} @ {key}", what) for key, what in _problems(facts, SHAPE, "$")]
    if problems:
        raise InputError(problems)
    return facts


def _problems(value: Any, shape: Any, where: str) -> Iterator[tuple[str, str]]:
    """What a value lacks of a shape: (key, what is wrong)."""
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            yield where, "is not a mapping; run the search again"
            return
        for key, inner in shape.items():
            if key in value:
                yield from _problems(value[key], inner, f"{where}.{key}")
            else:
                yield f"{where}.{key}", "is missing; run the search again"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield where, "is not a list; run the search again"
            return
        for place, item in enumerate(value):
            yield from _problems(item, shape[0], f"{where}[{place}]")
    elif not KINDS[shape](value):
        yield where, f"is not {shape}; run the search again"


def file_facts(content: bytes) -> dict[str, Any]:
    """What `run.json` says of a file beside it, so that a cut one is not taken for a short one."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_written(path: Path, files: Mapping[str, Any]) -> bytes:
    """A file of the run folder. Raises `InputError` when it is not what the run wrote (`files` of run.json)."""
    content = read_bytes(path, most=max(files[path.name]["bytes"], 1) + 1)
    if file_facts(content) != files[path.name]:
        there, wrote = len(content), files[path.name]["bytes"]
        sizes = f": {there:,} bytes, not {wrote:,}" if there != wrote else ""
        raise InputError([Problem(str(path), f"is not what the run wrote{sizes}; run the search again")])
    return content


QUESTION = "question.json"
MOST_BYTES = 4 * 1024 * 1024
EFFORT = ("method", "budget_candidates", "budget_seconds", "budget_evaluations", "top_k")
"""Settings of a search that change how much of the answer is looked for, not what is asked."""
LONGEST, MOST_NAMED = 60, 6
HASH = "sha256"


def question_of(space: Space) -> dict[str, str]:
    """What a search of the space is asked, by words that a user knows, and the hash of all that decides its answer."""
    search = asdict(space.search)
    found = {"model": space.model.name}
    found |= {name: str(value) for name, value in asdict(space.workload).items()}
    parts = [(one.cluster.num_nodes, one.cluster.accelerator.name, one.cluster.stack.reference, one.framework.name)
             for one in space.clusters]  # fmt: skip
    for name, values in zip(("nodes", "hardware", "stack", "framework"), zip(*parts, strict=True), strict=True):
        found[name] = ", ".join(dict.fromkeys(map(str, values)))
    found |= {axis.name: ", ".join(map(str, axis.values)) for axis in space.axes}
    found["constraints"] = "; ".join(constraint.text for constraint in space.constraints)
    found |= {f"search.{name}": str(value) for name, value in search.items() if name not in EFFORT}
    default = type(space.search)()
    same_effort = replace(space.search, **{name: getattr(default, name) for name in EFFORT})
    return found | {HASH: fingerprint(replace(space, search=same_effort))}


def fingerprint(space: Space) -> str:
    """A hash of everything a search's answer depends on: model, clusters, workload, axes, constraints, settings."""
    model = replace(space.model, source="")  # where a file lies decides nothing
    constraints = [constraint.text for constraint in space.constraints]
    content = repr([model, space.workload, space.clusters, space.axes, constraints, space.search])
    return hashlib.sha256(content.encode()).hexdigest()


def must_be_asked(folder: Path, space: Space, *, resume: bool, force: bool) -> None:
    """Note the question of a folder's run. Raises InputError where the folder holds the run of another one.

    force: replace it, its results included.
    """
    asked, kept = question_of(space), _kept(folder)
    if kept is not None and kept[HASH] != asked[HASH]:
        changes = _differences(kept, asked)
        if resume:
            what = f"was asked something else ({changes}); give what it was given, or leave out --resume"
            raise InputError([Problem(f"--resume {folder}", what)])
        if not force:
            what = f"holds the run of another question ({changes}); choose another folder, or replace it with --force"
            raise InputError([Problem(f"--out {folder}", what)])
        for name in ("run.json", "journal.bin", "ranking.csv", "pareto.csv", "scaling.csv", "candidates.parquet",
                     "report.html", "study.log"):  # fmt: skip
            (folder / name).unlink(missing_ok=True)
    write_whole(folder / QUESTION, json.dumps(asked, indent=2) + "\n")


def _kept(folder: Path) -> Mapping[str, str] | None:
    """The question of the folder's run; None where it has none, is of an older version or damaged."""
    file = folder / QUESTION
    if not exists(file) or not any((folder / name).exists() for name in ("run.json", "journal.bin")):
        return None
    try:
        found = json.loads(read_text(file, most=MOST_BYTES))
    except (InputError, ValueError, RecursionError):
        return None
    is_whole = isinstance(found, dict) and HASH in found and all(isinstance(one, str) for one in found.values())
    return found if is_whole else None


def _differences(kept: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """`nodes 2, now 4; tp 1, 2, now 8`."""
    changed = [name for name in dict.fromkeys([*kept, *asked]) if name != HASH and kept.get(name) != asked.get(name)]
    words = [f"{name} {_short(kept.get(name))}, now {_short(asked.get(name))}" for name in changed[:MOST_NAMED]]
    more = [f"and {len(changed) - MOST_NAMED} more"] if len(changed) > MOST_NAMED else []
    return "; ".join(words + more) or "a number of its model, hardware or stack file"


def _short(text: str | None) -> str:
    if not text:
        return "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


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
