"""`run.json` read back: every key that a reader uses has its type, or the file is refused by the key's name."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, exists, read_bytes, read_text

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
