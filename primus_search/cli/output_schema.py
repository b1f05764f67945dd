"""JSON Schema of what commands print with --json, from the table in outputs.toml; `primus-search schema COMMAND`."""

import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

OUTPUTS = 1
"""Number of the form of every output, its key `schema`; docs/json.md has when it grows."""
KINDS = {"text": "string", "list": "array", "mapping": "object"}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("outputs.toml").read_text(encoding="utf-8"))


def commands() -> dict[str, str]:
    """Commands with an output -> how it stands: "" a mapping, "[]" a list of them, "[?]" either, "{}" free names."""
    names = [name for name in _table() if name != "shared"]
    return {name.rstrip("[?]{}"): name.removeprefix(name.rstrip("[?]{}")) for name in names}


def output_schema(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's output. Raises KeyError for a command without one."""
    form, needed = commands()[command], dict[str, Any]()
    inner = _mapping(_table()[command + form], needed)
    if form == "[]":
        inner = {"type": "array", "items": inner}
    elif form == "[?]":
        inner = {"anyOf": [inner, {"type": "array", "items": inner}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:primus-search:{command}:{OUTPUTS}",
        "title": f"primus-search {command} --json",
        **inner,
        **({"$defs": needed} if needed else {}),
    }


def numbered(data: dict[str, Any]) -> dict[str, Any]:
    """A command's output with the number of its form."""
    return {"schema": OUTPUTS, **data}


def _mapping(keys: dict[str, str], needed: dict[str, Any]) -> dict[str, Any]:
    """The schema of a mapping; `needed` gains the definitions that it names."""
    properties, required = dict[str, Any](), list[str]()
    for key, text in keys.items():
        kind, _, what = text.partition(": ")
        name = key.removesuffix("?").removesuffix("[]")
        if name == "*":
            properties |= _mapping(_table()["shared"][kind[1:]], needed)["properties"]
            continue
        found = _value(kind, needed) | ({"description": what} if what else {})
        if what.startswith("deprecated"):
            found["deprecated"] = True
        properties[name] = {"type": "array", "items": found} if "[]" in key else found
        if not key.endswith("?"):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _value(kind: str, needed: dict[str, Any]) -> dict[str, Any]:
    """The schema of one kind."""
    if kind.startswith("@"):
        name = kind[1:]
        needed[name] = _candidate() if name == "candidate" else _parts(name, _mapping(_table()["shared"][name], needed))
        return {"$ref": f"#/$defs/{name}"}
    if kind == "any":
        return {}
    plain = kind.removesuffix("?")
    word = KINDS.get(plain, plain)
    return {"type": [word, "null"] if kind.endswith("?") else word}


def _parts(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a break-down with a key for every part; others as they are."""
    from primus_search.cost.projection import Memory, Step

    unit = {"part_seconds": ("_s", Step), "part_bytes": ("_bytes", Memory)}.get(name)
    if unit is None:
        return schema
    ending, kind = unit
    parts = {f"{one.name}{ending}": {"type": "number"} for one in fields(kind)}
    return schema | {"properties": parts | schema["properties"], "required": [*parts, *schema["required"]]}


def _candidate() -> dict[str, Any]:
    """The schema of a candidate: every axis by its name, in the words of a space file, and what follows from them."""
    from primus_search.values.candidates import DEFAULTS
    from primus_search.values.knobs import KNOBS, WORDED

    def word(knob: Any) -> str:
        if knob.name in WORDED:
            return "string"
        return "boolean" if isinstance(DEFAULTS[knob.name], bool) else "integer"

    axes = {knob.name: {"type": word(knob), "description": knob.summary} for knob in KNOBS}
    derived = {"dp": "data-parallel size", "microbatches": "micro-batches per step"}
    more = {name: {"type": "integer", "description": what} for name, what in derived.items()}
    return {"type": "object", "properties": axes | more, "required": list(axes)}
