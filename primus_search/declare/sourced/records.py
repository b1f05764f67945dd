"""Generic loader of sourced numbers: a YAML tree becomes a tree of frozen dataclasses, guided by the types alone.

A field `hbm_bytes: float` is filled by the key `hbm_GB` (or MB, GiB ...), whose value is `{value: 80, source: "..."}`.
Nested dataclasses are nested mappings; `dict[str, Law]` is a mapping of free names; tuples are lists. Numbers need a
source; words and switches may stand alone. Fields with a default may be left out. Everything else - a key no field
knows, a field no key fills, a number without a source, a unit given twice - is a problem with its place.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from primus_search.base import units
from primus_search.base.errors import Problem
from primus_search.base.guards.numbers import range_problem
from primus_search.declare.source import Document, Keys, did_you_mean, join_words, quoted


@dataclass(frozen=True, slots=True)
class Sourced:
    """One leaf as the file has it: dotted path, value in the file's unit, its source, and the file that gives it where
    another one does (`extends:`)."""

    path: str
    value: Any
    source: str
    inherited_from: str = ""


@dataclass(slots=True)
class Reading:
    """One pass over one document: problems found and sources seen so far."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    sources: list[Sourced] = field(default_factory=list)

    def problem(self, keys: Keys, what: str) -> None:
        self.problems.append(self.document.problem(keys, what))


def build(cls: type, data: Any, keys: Keys, reading: Reading, given: dict[str, Any] | None = None) -> Any:
    """An instance of the dataclass `cls` from the mapping at `keys`, or None after noting problems.

    `given` fills fields that the mapping must not (a name that stands elsewhere in the file).
    """
    if not isinstance(data, dict):
        reading.problem(keys, f"expected a mapping with the fields of {cls.__name__}, got {quoted(data)}")
        return None
    before = len(reading.problems)
    values = dict(given or {})
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and f.name not in values}
    allowed = [key for name in fields for key in units.yaml_keys(name)]
    filled: dict[str, str] = {}
    for key, raw in data.items():
        name, factor = units.to_base(key, 1.0)
        if key in fields:
            name, factor = key, 1.0
        if name not in fields or key not in (name, *units.yaml_keys(name)):
            reading.problem((*keys, key), f"unknown key{did_you_mean(key, allowed)}")
        elif name in filled:
            reading.problem((*keys, key), f"is the same quantity as '{filled[name]}'; keep one")
        else:
            filled[name] = key
            values[name] = _value(hints[name], raw, (*keys, key), factor, reading)
            _check_range(name, values[name], raw, (*keys, key), reading)
    for name, spec in fields.items():
        has_default = spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING
        if name not in filled and not has_default:
            names = units.yaml_keys(name)
            reading.problem(keys, f"missing key {join_words(names)}")
    if len(reading.problems) > before:
        return None
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        reading.problem(keys, str(error))
        return None


def _check_range(name: str, value: Any, raw: Any, keys: Keys, reading: Reading) -> None:
    """Notes a problem where a number is not physically possible (`guards.numbers`)."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        wrong = range_problem(name, value)
        if wrong:
            written = raw["value"] if isinstance(raw, dict) else raw
            reading.problem(keys, f"{wrong}, got {quoted(written)}")


def _value(hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    """The typed value of one field; None after noting a problem."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        choices = [arg for arg in args if arg is not type(None)]
        if raw is None and len(choices) < len(args):
            return None
        return _value(choices[0], raw, keys, factor, reading)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, raw, keys, reading)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _table(args[1], raw, keys, factor, reading)
    return _leaf(hint, raw, keys, factor, reading)


def _table(hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    if not isinstance(raw, dict):
        reading.problem(keys, f"expected a mapping of names, got {quoted(raw)}")
        return None
    return {name: _value(hint, item, (*keys, name), factor, reading) for name, item in raw.items()}


def _leaf(hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    """A leaf `{value, source}`; words and switches may be bare."""
    value: Any = raw
    source: Any = ""
    if isinstance(raw, dict):
        for key in raw:
            if key not in ("value", "source"):
                reading.problem((*keys, key), f"unknown key{did_you_mean(key, ('value', 'source'))}")
        if "value" not in raw:
            reading.problem(keys, 'missing value: write {value: ..., source: "..."}')
            return None
        value, source = raw["value"], raw.get("source")
    is_number = hint in (int, float) or get_origin(hint) is tuple
    if is_number and not (isinstance(source, str) and source.strip()):
        reading.problem(keys, 'missing source: write {value: ..., source: "where the number is from"}')
    converted = _scalar(hint, value, keys, factor, reading)
    path = ".".join(str(key) for key in keys)
    giver = reading.document.giver(keys)
    inherited = Path(giver.name).stem if giver is not None else ""
    reading.sources.append(Sourced(path, value, source if isinstance(source, str) else "", inherited))
    return converted


def _scalar(hint: Any, value: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list):
            reading.problem(keys, f"expected a list, got {quoted(value)}")
            return None
        item = args[0]
        return tuple(_scalar(item, v, (*keys, i), factor, reading) for i, v in enumerate(value))
    if origin is Literal:
        if value not in args:
            reading.problem(keys, f"{quoted(value)} is not one of {join_words(args)}{did_you_mean(str(value), args)}")
        return value
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            reading.problem(keys, f"expected {'true or false' if hint is bool else 'a word'}, got {quoted(value)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        reading.problem(keys, f"expected a number, got {quoted(value)}")
        return None
    scaled = value if factor == 1.0 else value * factor
    if hint is int:
        if scaled != int(scaled):
            reading.problem(keys, f"expected a whole number, got {quoted(value)}")
        return int(scaled)
    if hint is float:
        return float(scaled)
    raise TypeError(f"{hint!r} is not a type a hardware or stack file can hold")
