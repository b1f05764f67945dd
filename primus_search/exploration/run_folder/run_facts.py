"""`run.json` read back: every key that a reader uses has its type, or the file is refused by the key's name."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, exists, read_bytes, read_text, table_beside
from primus_search.exploration.run_folder.resolved import is_known_form, is_of_today, refusal

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
    found = list(_problems(facts, SHAPE, "$"))
    if not is_known_form(facts) or (found and not is_of_today(facts)):
        why = "; ".join(f"{key} {what.partition(';')[0]}" for key, what in found[:1])
        raise InputError([Problem(str(folder), refusal(facts, why))])
    if found:
        raise InputError([Problem(f"{file} @ {key}", what) for key, what in found])
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
    written: Any = files.get(path.name)
    if wrong := list(_problems(written, SHAPE["files"]["ranking.csv"], f"$.files.{path.name}")):
        raise InputError([Problem(f"{path.parent / 'run.json'} @ {key}", what) for key, what in wrong])
    content = read_bytes(path, most=max(written["bytes"], 1) + 1)
    if file_facts(content) != written:
        there, wrote = len(content), written["bytes"]
        sizes = f": {there:,} bytes, not {wrote:,}" if there != wrote else ""
        raise InputError([Problem(str(path), f"is not what the run wrote{sizes}; run the search again")])
    return content
