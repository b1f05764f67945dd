"""`run.json` read back: every key that a reader uses has its type, or the file is refused by the key's name."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import (
    MAX_TABLE_BYTES,
    cache_folder,
    exists,
    read_bytes,
    read_text,
    replacing,
    write_whole,
)
from primus_search.space import Space

ANY: Any = object
_FILE = {"bytes": int, "sha256": str}
_CLUSTER = {"labels": {}, "nodes": int, "gpus": int, "legal": int, "feasible": int, "best_tokens_per_s_per_gpu": float}
SHAPE: Mapping[str, Any] = {
    **dict.fromkeys(("space", "source", "search_sha256", "model", "hardware", "stack", "framework"), str),
    **dict.fromkeys(("objective", "method", "method_reason", "engine", "finished"), str),
    **dict.fromkeys(("nodes", "gpus", "seed", "workers", "raw", "legal", "feasible"), int),
    **dict.fromkeys(("memory_margin", "seconds", "peak_rss_bytes"), float),
    **dict.fromkeys(("exact", "complete"), bool),
    "overrides": [{"key": str, "value": ANY, "origin": str}],
    "workload": {"seq_length": int, "global_batch_size": int},
    "notes": [str],
    "removed": [{"rule": str, "rows": int, "reason": str}],
    "stages": [{"name": str, "rows": int, "seconds": float, "rows_per_s": float}],
    "clusters": [_CLUSTER],
    "best": {},
    "versions": {},
    "files": {"ranking.csv": _FILE, "pareto.csv": _FILE, "candidates.parquet": _FILE},
}
"""Types by key: a type, a mapping of further keys, or a list of one shape. Whole numbers are at least 0."""

_WORDS = {str: "a text", int: "a whole number of at least 0", float: "a finite number", bool: "true or false"}


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
    elif shape is not ANY and not _is(value, shape):
        yield where, f"is not {_WORDS[shape]}; run the search again"


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind and not (isinstance(value, int) and value < 0)


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
