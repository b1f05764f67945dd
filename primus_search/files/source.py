"""YAML (and JSON, which is YAML) read as data, with the line of every value kept for messages.

`read` returns a `Document`: plain dicts, lists and scalars plus the line each path stands on. It refuses what data
files never need and attackers like: unknown tags, files above `MAX_BYTES`, nesting above `MAX_DEPTH`, and aliases
that expand to more than `MAX_NODES` values (a "YAML bomb"). A key given twice with different values is a problem, not
an overwrite.

    >>> document = parse("a: {b: [1, 2]}", "x.yaml")
    >>> document.where(("a", "b", 1))
    'x.yaml:1 @ $.a.b[1]'
"""

import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import read_text, working_folder

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 40
MAX_DIGITS = 40  # of one number; Python itself refuses integers of more than a few thousand

Keys = tuple[str | int, ...]

_BARE_KEY = re.compile(r"\A[A-Za-z_][A-Za-z0-9_.-]*\Z")
_INT = re.compile(r"\A[-+]?[0-9][0-9_]*\Z")
_FLOAT = re.compile(r"\A[-+]?([0-9][0-9_]*+(?:\.[0-9_]*+)?|\.[0-9]++)([eE][-+]?[0-9]++)?\Z")
_PLAIN_TAGS = tuple(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "null", "bool", "int", "float", "seq", "map", "merge", "timestamp", "value")
)
_MERGE = "tag:yaml.org,2002:merge"
_BOOLS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file and where each value stands in it.

    `origins` names the flag or variable behind a value that did not come from the file; messages then point there.
    `parents` is the document that gives an inherited value and all below it.
    """

    name: str
    data: Any
    lines: dict[Keys, int] = field(default_factory=dict)
    origins: dict[Keys, str] = field(default_factory=dict)
    parents: dict[Keys, "Document"] = field(default_factory=dict)

    def giver(self, keys: Keys) -> "Document | None":
        """The document that a value is inherited from; None where this one gives it itself."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.parents:
                return self.parents[keys[:length]]
        return None

    def where(self, keys: Keys = ()) -> str:
        """`file:line @ $.path` of a value; the line is that of the nearest enclosing value the file really has."""
        line = None
        parent = self.giver(keys)
        if parent is not None:
            return parent.where(keys)
        inside = next((origin for place, origin in self.origins.items() if place[: len(keys)] == keys), None)
        if inside is not None and keys and keys not in self.lines:
            return f"{inside} @ {json_path(keys)}"
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.origins:
                return f"{self.origins[keys[:length]]} @ {json_path(keys)}"
            line = self.lines.get(keys[:length])
            if line is not None:
                break
        place = self.name if line is None else f"{self.name}:{line}"
        return f"{place} @ {json_path(keys)}"

    def problem(self, keys: Keys, what: str) -> Problem:
        return Problem(self.where(keys), what)


def json_path(keys: Keys) -> str:
    """`$.space.tp[2]` for ("space", "tp", 2)."""
    text = "$"
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _BARE_KEY.match(key):
            text += f".{key}"
        else:
            text += f"[{key!r}]"
    return text


def join_words(words: Sequence[object]) -> str:
    """`1, 2 or 4` for a message."""
    texts = [str(word) for word in words]
    if len(texts) < 2:
        return "".join(texts)
    return ", ".join(texts[:-1]) + " or " + texts[-1]


def quoted(raw: Any) -> str:
    """A value as a message quotes it."""
    if raw is None:
        return "nothing"
    if isinstance(raw, dict):
        return "a mapping"
    return "a list" if isinstance(raw, list) else repr(raw)


def read(path: Path) -> Document:
    """The document in a file; InputError if it is missing, too large, not text, or not YAML."""
    name = shown(path)
    return parse(read_text(path, most=MAX_BYTES, name=name), name)


def shown(path: Path) -> str:
    """The path as messages show it: relative where it is below the current folder."""
    here = working_folder()
    if here is None:
        return str(path)
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links the user did not write
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def parse(text: str, name: str, *, keeps_last: bool = False) -> Document:
    """The document in a text; every contradicting key and unknown tag is reported, a syntax error alone.

    keeps_last: of a key that is given twice the last value counts, as in PyYAML.
    """
    # JSON may be indented with tabs, which YAML forbids; outside strings JSON has no other use for them.
    if name.endswith(".json"):
        text = text.replace("\t", " ")
    return Document(name, *pickle.loads(_parsed(text, name, keeps_last)))


MOST_HELD = 2_048
"""Texts whose data is kept: five times the documents of the package, so that a pass over all of them reads each once;
a process over the files of others holds no more."""


@lru_cache(maxsize=MOST_HELD)
def _parsed(text: str, name: str, keeps_last: bool) -> bytes:
    """The data of a text and its lines, pickled, so that each reader has data of its own: presets, machines and stacks
    are read again for every space that names them."""
    loader = _Loader(text)
    loader.name = name
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError([Problem(f"{name}:{line} @ $", f"is not valid YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise InputError([Problem(name, f"is not valid YAML: {str(error).splitlines()[0]}")]) from None
    finally:
        loader.dispose()
    builder = _Builder(name, keeps_last)
    data = builder.build(node, ()) if node is not None else None
    if builder.problems:
        raise InputError(builder.problems)
    return pickle.dumps((data, builder.lines), pickle.HIGHEST_PROTOCOL)


class _Loader(yaml.CSafeLoader):
    """Composes nodes no deeper than MAX_DEPTH (C recurses there), and leaves what a scalar stands for to `plain`."""

    name, depth = "", 0

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:
        self.depth += 1
        if parent is not None and self.depth > MAX_DEPTH + 1:
            where = f"{self.name}:{parent.start_mark.line + 1} @ $"
            raise InputError([Problem(where, f"is nested more than {MAX_DEPTH} deep")])

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        is_merge = kind is yaml.ScalarNode and value == "<<" and implicit[0]
        return _MERGE if is_merge else _PLAIN_TAGS[0]


class _Builder:
    """Turns a node graph into plain data, counting what aliases expand to."""

    def __init__(self, name: str, keeps_last: bool) -> None:
        self.name, self.keeps_last = name, keeps_last
        self.lines: dict[Keys, int] = {}
        self.problems: list[Problem] = []
        self.num_nodes = 0

    def build(self, node: yaml.Node, keys: Keys) -> Any:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            what = f"expands to more than {MAX_NODES:,} values; remove the aliases (&name, *name) that multiply it"
            raise InputError([Problem(self._where(node, keys[:1]), what)])
        if len(keys) > MAX_DEPTH:
            raise InputError([Problem(self._where(node, keys[:4]), f"is nested more than {MAX_DEPTH} deep")])
        self.lines.setdefault(keys, node.start_mark.line + 1)
        if not node.tag.startswith(_PLAIN_TAGS):
            self.problems.append(Problem(self._where(node, keys), f"tag {node.tag} is not data; write a plain value"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*keys, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _where(self, node: yaml.Node, keys: Keys) -> str:
        return f"{self.name}:{node.start_mark.line + 1} @ {json_path(keys)}"

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(self._where(key_node, keys), "a key must be a plain word"))
                continue
            key = str(key_node.value)
            if key_node.tag == _MERGE:
                bases = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for base in reversed(bases):
                    built = self.build(base, keys)
                    merged |= built if isinstance(built, dict) else {}
                continue
            place = (*keys, key)
            line = self.lines.setdefault(place, key_node.start_mark.line + 1)
            value = self.build(value_node, place)
            is_other = own.get(key, value) != value
            own[key] = value
            if is_other and not self.keeps_last:
                what = f"duplicate key with another value than on line {line}; keep one"
                self.problems.append(Problem(self._where(key_node, place), what))
        return merged | own

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        is_quoted = isinstance(node, yaml.ScalarNode) and bool(node.style)
        return text if is_quoted else plain(text)


def plain(text: str) -> Any:
    """The value of an unquoted scalar: null, bool, int, float or text.

    YAML 1.2 numbers (`1e-05` is a number, `1:30` is not) with YAML 1.1's underscores and yes/no, as our users' files
    have them.
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    lowered = text.lower()
    if lowered in _BOOLS:
        return _BOOLS[lowered]
    if len(text) > MAX_DIGITS:
        return text
    if _INT.match(text):
        return int(text.replace("_", ""))
    if lowered in (".inf", "+.inf", "-.inf"):
        return float(lowered.replace(".inf", "inf"))
    if lowered == ".nan":
        return float("nan")
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    return text


def written(data: Any, *, has_dense_leaves: bool = False) -> str:
    """Plain data as YAML text, keys in their order; strings are quoted where YAML would read something else.

    has_dense_leaves: mappings and lists without others inside are a line each.
    """
    flow = None if has_dense_leaves else False
    return yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=False, width=1000, default_flow_style=flow)


class _Writer(yaml.CSafeDumper):
    """Quotes also the words that this reader, unlike PyYAML's, takes for numbers (`1e3`)."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = None if plain(text) == text else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _Writer.represent_str)
