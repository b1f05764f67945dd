"""Settings of documents that launchers start from: YAML and JSON with those that they change, Python of plain values.

settings_of(Path("conf/train.yaml"), text)      # {"train.system.tensor_model_parallel_size": 8, ...}
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.source import parse
from primus_search.launch.read.python_calls import CallRecord, Name, PythonModule, Unknown
from primus_search.launch.read.torchtitan import flattened
from primus_search.launch.script.shell_variables import UNSET

ENDS = (".yaml", ".yml", ".json", ".py", ".toml")
MOST_PARENTS = 8
_TAG = re.compile(r"(?<=[\s:])!\w{1,40}(?=\s)")
"""A tag that a launcher's own loader reads (`!include`)."""
_NAMED = re.compile(r"\$\{(\.?[A-Za-z_][\w.]{0,200})\}")
"""The value of another key of a document; behind a dot one of the same section."""


def settings_of(path: Path, text: str) -> dict[str, Any]:
    """The keys of a document with dots between sections, over those of the documents that it changes."""
    given = _settings(path, text, 0)
    for _ in range(MOST_PARENTS):
        given = {key: _filled(key, value, given) for key, value in given.items()}
    return given


def _filled(key: str, value: Any, given: Mapping[str, Any]) -> Any:
    found = _NAMED.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return value
    section = key.rpartition(".")[0] if found[1][0] == "." else ""
    name = (section + found[1]).removeprefix("." * (not section)).replace("-", "_")
    return given.get(name, given.get(name.partition(".")[2], value))  # of a document that Hydra puts under a group


def _settings(path: Path, text: str, depth: int) -> dict[str, Any]:
    if path.suffix == ".toml":
        data: Any = tomllib.loads(text)
    elif path.suffix == ".py":
        data = _plain(PythonModule.of(path, text).names)
    else:
        data = parse(_TAG.sub("", text), path.name).data
    if not isinstance(data, dict):
        return {}
    given: dict[str, Any] = {}
    for section, file in _parents(data, path.parent) if depth < MOST_PARENTS else ():
        if file.is_file():
            parent = _settings(file, read_text(file, most=MAX_TABLE_BYTES), depth + 1)
            given |= {f"{section}{name}": value for name, value in parent.items()}
    return given | {name.replace("-", "_"): written(value) for name, value in flattened(data).items()}


def _parents(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Path]]:
    """Section and file of each document that one changes: `defaults: base.yaml` (NeMo-RL), a list of groups (Hydra)."""
    many = data.get("defaults")
    for one in many if isinstance(many, list) else [many]:
        if isinstance(one, str):
            yield "", folder / one
        elif isinstance(one, dict):
            yield from ((f"{group}.", folder / str(group) / f"{name}.yaml") for group, name in one.items())


def _plain(value: Any) -> Any:
    """A value of a Python file: `dict(a=1)` as a mapping, what only a run has as it stands."""
    match value:
        case CallRecord("dict", fields=fields) | (dict() as fields):
            return {str(key): _plain(one) for key, one in fields.items()}
        case list():
            return [_plain(one) for one in value]
        case CallRecord(name) | Name(name):
            return name
        case Unknown(text):
            return text
    return value


def written(value: Any) -> Any:
    """A value as YAML has it: true, null and lists of a command line, too."""
    if not isinstance(value, str) or UNSET.search(value):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        return [part.strip(" '\"") for part in value[1:-1].split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None, "none": None, "~": None}
    return words.get(value.lower(), value)
