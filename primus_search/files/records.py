"""Generic loader of sourced numbers: a YAML tree becomes a tree of frozen dataclasses, guided by the types alone.

A field `hbm_bytes: float` is filled by the key `hbm_GB` (or MB, GiB ...), whose value is `{value: 80, source: "..."}`.
Nested dataclasses are nested mappings; `dict[str, Law]` is a mapping of free names; tuples are lists. Numbers need a
source; words and switches may stand alone. Fields with a default may be left out. Everything else - a key no field
knows, a field no key fills, a number without a source, a unit given twice - is a problem with its place.

`extends: NAME` in a hardware or stack file: what the file does not give, it has from another one.

Mappings are joined key by key down to the leaves `{value, source}`, which are taken whole. A key is the same whatever
its unit (`host_launch_us` replaces an inherited `host_launch_ms`). Messages and sources of an inherited value name the
file that gives it. A name, error bands, variants and tables of measured calls belong to one file and are not inherited.
Below the key `any` a base gives what every entry of a mapping of free names has (attention kernels of a device).
"""

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from primus_search.base import units
from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.base.guards.values import range_problem
from primus_search.files.search_path import MOUNTED, FileKind, find, is_path, names, unknown
from primus_search.files.source import Document, Keys, join_words, quoted, read

REMOVED = {"natural_imbalance": "natural_spread"}
"""Keys that nothing is priced by any more, with those in their place: passed over in the texts of a run folder, which a
released version wrote."""


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
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and f.name not in values}
    allowed = [key for name in fields for key in units.yaml_keys(name)]
    filled: dict[str, str] = {}
    for key, raw in data.items():
        if key in REMOVED:
            if not MOUNTED.get():
                reading.problem((*keys, key), f"is no longer read; give {REMOVED[key]}")
            continue
        name, factor = units.to_base(key, 1.0)
        if key in fields:
            name, factor = key, 1.0
        if name not in fields or key not in (name, *units.yaml_keys(name)):
            reading.problem((*keys, key), f"unknown key{did_you_mean(key, allowed, reading.problems)}")
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


_hints = cache(typing.get_type_hints)


def read_value(name: str, hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    """The value of a field called `name` that stands without a source; None after noting a problem."""
    is_beyond = isinstance(raw, float) and not math.isfinite(raw)
    value = raw if is_beyond else _scalar(hint, raw, keys, factor, reading)
    _check_range(name, value, raw, keys, reading)
    return value


def _check_range(name: str, value: Any, raw: Any, keys: Keys, reading: Reading) -> None:
    """Notes a problem where a number is not physically possible (`guards.values`)."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        wrong = range_problem(name, value)
        if wrong:
            written = raw["value"] if isinstance(raw, dict) else raw
            reading.problem(keys, f"{wrong}, got {quoted(written)}")


def _value(hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    """The typed value of one field: a dataclass, a mapping of free names, or a leaf; None after noting a problem."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, raw, keys, reading)
    origin = get_origin(hint)
    if not (isinstance(origin, type) and issubclass(origin, Mapping)):
        return leaf(hint, raw, keys, factor, reading)
    if not isinstance(raw, dict):
        reading.problem(keys, f"expected a mapping of names, got {quoted(raw)}")
        return None
    return {name: _value(get_args(hint)[1], item, (*keys, name), factor, reading) for name, item in raw.items()}


def leaf(hint: Any, raw: Any, keys: Keys, factor: float, reading: Reading) -> Any:
    """A leaf `{value, source}`; words and switches may be bare."""
    value: Any = raw
    source: Any = ""
    if isinstance(raw, dict):
        for key in raw:
            if key not in ("value", "source"):
                near = did_you_mean(key, ("value", "source"), reading.problems)
                reading.problem((*keys, key), f"unknown key{near}")
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
    """A word, a switch or a number, in base units; None, or the value itself, after noting a problem."""
    if get_origin(hint) is tuple:
        items = enumerate(value if isinstance(value, list) else [value])
        return tuple(_scalar(get_args(hint)[0], item, (*keys, i), factor, reading) for i, item in items)
    if get_origin(hint) is Literal:
        words = get_args(hint)
        if value not in words:
            reading.problem(keys, f"{quoted(value)} is not one of {join_words(words)}{did_you_mean(str(value), words)}")
        return value
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            reading.problem(keys, f"expected {'true or false' if hint is bool else 'a word'}, got {quoted(value)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        reading.problem(keys, f"expected a number, got {quoted(value)}")
        return None
    scaled = value if factor == 1.0 else value * factor
    if hint is int and scaled != int(scaled):
        reading.problem(keys, f"expected a whole number, got {quoted(value)}")
    return hint(scaled)


EXTENDS, VARIANTS, VARIED = "extends", "variants", "varied"
OWN = frozenset({"name", EXTENDS, VARIANTS, VARIED, "errors", "own_runs", "tables", "schema", "written_by"})
"""Top-level keys that are not inherited."""

ANY = "any"

_MOST_PARENTS = 8


def read_with_parents(path: Path, kinds: Sequence[FileKind], last: Path | None = None) -> Document:
    """The document of a file joined with those that it extends, directly or through others.

    kinds  what the name after `extends:` may stand for
    last   the file that one without `extends:` extends
    Raises InputError for a name that is not known, for a circle, and for a chain of more than 8 files.
    """
    documents = [read(path)]
    seen = [path.resolve()]
    while (parent := _parent(documents[-1], seen[-1].parent, kinds)) is not None:
        if parent.resolve() in seen or len(seen) > _MOST_PARENTS:
            what = f"'{documents[-1].data[EXTENDS]}' extends this file in turn"
            raise InputError([documents[-1].problem((EXTENDS,), what)])
        seen.append(parent.resolve())
        documents.append(read(parent))
    if last is not None:
        documents.append(read(last))
    whole = documents.pop()
    while documents:
        whole = _joined(documents.pop(), whole)
    return whole


def varied(document: Document, variant: str) -> Document:
    """The document with what one of its `variants` has otherwise. Raises InputError for a name that it has not."""
    data = document.data if isinstance(document.data, dict) else {}
    known = data.get(VARIANTS)
    if not isinstance(known, dict) or not isinstance(known.get(variant), dict):
        words = f"variants: {', '.join(map(str, known))}" if isinstance(known, dict) else "it has no variants"
        raise InputError([document.problem((VARIANTS,), f"no variant {variant!r} - {words}")])
    above = (VARIANTS, variant)
    lines = {keys[2:]: line for keys, line in document.lines.items() if keys[:2] == above}
    own = {key: data[key] for key in OWN if key in data}
    return _joined(Document(document.name, own | known[variant], lines), document)


def _parent(document: Document, folder: Path, kinds: Sequence[FileKind]) -> Path | None:
    data = document.data
    if not isinstance(data, dict) or EXTENDS not in data:
        return None
    name = data[EXTENDS]
    if not isinstance(name, str):
        raise InputError([document.problem((EXTENDS,), "expected the name of a file to take the rest from")])
    known = {key: path for kind in reversed(kinds) for key, path in names(kind).items()}
    if name in known:
        return known[name]
    found = find(kinds[0], name, beside=folder) if is_path(name) else ""
    if isinstance(found, Path):
        return found
    what = found or unknown(kinds[0], name, sorted(known))
    raise InputError([document.problem((EXTENDS,), what)])


def _joined(child: Document, parent: Document) -> Document:
    """The child's document with what it has from the parent; `parents` names the file of each inherited value."""
    if not isinstance(child.data, dict) or not isinstance(parent.data, dict):
        return child
    inherited: dict[Keys, Document] = {}
    above = {key: value for key, value in parent.data.items() if key not in OWN}
    data = _join(child.data, above, (), parent, inherited)
    return Document(child.name, data, child.lines, child.origins, inherited)


def _join(
    own: dict[str, Any], above: dict[str, Any], keys: Keys, parent: Document, inherited: dict[Keys, Document]
) -> dict[str, Any]:
    given = {_quantity(key) for key in own}
    joined: dict[str, Any] = {}
    for key, value in own.items():
        over = above.get(key, above.get(ANY))
        both = isinstance(value, dict) and isinstance(over, dict) and "value" not in value and "value" not in over
        joined[key] = _join(value, over, (*keys, key), parent, inherited) if both and over is not None else value
    for key, value in above.items():
        if key not in own and key != ANY and _quantity(key) not in given:
            if isinstance(value, dict) and "value" not in value:
                joined[key] = _join({}, value, (*keys, key), parent, inherited)
            else:
                joined[key] = value
                inherited[(*keys, key)] = parent.giver((*keys, key)) or parent
    return joined


def _quantity(key: str) -> str:
    """What a key gives, without its unit."""
    return units.to_base(key, 0.0)[0]
