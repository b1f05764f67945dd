"""Settings of documents that launchers start from: YAML and JSON with those that they change, Python of plain values.

settings_of(Path("conf/train.yaml"), text)      # {"train.system.tensor_model_parallel_size": 8, ...}
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.source import parse
from primus_search.launch.read.torchtitan import flattened
from primus_search.launch.script.shell_variables import UNSET

ENDS = (".yaml", ".yml", ".json", ".py", ".toml")
MOST_PARENTS = 8
_TAG = re.compile(r"(?<=[\s:])!\w{1,40}(?=\s)")
"""A tag that a launcher's own loader reads (`!include`)."""
_NAMED = re.compile(r"\$\{([A-Za-z_][\w.]{0,200})\}")
"""The value of another key of a document."""


def settings_of(path: Path, text: str) -> dict[str, Any]:
    """The keys of a document with dots between sections, over those of the documents that it changes."""
    given = _settings(path, text, 0)
    for _ in range(MOST_PARENTS):
        given = {key: _filled(value, given) for key, value in given.items()}
    return given


def _filled(value: Any, given: Mapping[str, Any]) -> Any:
    found = _NAMED.fullmatch(value) if isinstance(value, str) else None
    return given.get(found[1].replace("-", "_"), value) if found else value


def _settings(path: Path, text: str, depth: int) -> dict[str, Any]:
    if path.suffix == ".toml":
        data: Any = tomllib.loads(text)
    else:
        data = _assigned(text) if path.suffix == ".py" else parse(_TAG.sub("", text), path.name).data
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


def _assigned(text: str) -> dict[str, Any]:
    """Plain values that a Python file assigns to names of its own; nothing is run.

    Raises InputError where the text is no Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        raise InputError([]) from None
    found: dict[str, Any] = {}
    for one in body:
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
            found[one.targets[0].id] = _plain(one.value, found)
    return found


def _plain(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A constant, a list, a mapping (`dict(a=1)`, too) or the value of a name; else the expression as it stands."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in names:
            return names[name]
        case ast.List(elts) | ast.Tuple(elts):
            return [_plain(one, names) for one in elts]
        case ast.Call(func=ast.Name("dict"), keywords=keywords):
            return {one.arg: _plain(one.value, names) for one in keywords if one.arg}
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {str(key.value): _plain(one, names) for key, one in pairs if isinstance(key, ast.Constant)}
    return ast.unparse(node)


def written(value: Any) -> Any:
    """A value as YAML has it: true, null and lists of a command line, too."""
    if not isinstance(value, str) or UNSET.search(value):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        return [part.strip(" '\"") for part in value[1:-1].split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None, "none": None, "~": None}
    return words.get(value.lower(), value)
