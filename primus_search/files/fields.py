"""Typed access to one mapping of a file: each value with its place, each misuse a problem, nothing silently defaulted.

Used by the readers of model files, whose keys are fixed by other projects. A `Fields` remembers which keys were read,
so that a reader can say what it did not understand.

Keys that a reader may leave unread, and why, are in `spaces/keys/*.yaml`:

A reader of a foreign format reads a key, or knows from these lists that the key decides nothing about the model, or
refuses the file by that key's name. `--ignore KEY` drops a key knowingly; the model then carries its name.

    irrelevant   keys that decide no size, in groups with a reason; of a framework neither time nor memory
    not_priced   keys of a framework that decide no size and would change time or memory, with the direction
    priced       values of those that are priced, where that is not off
    read_beside  keys that the reader of launch settings takes beside the knobs of a contract
    read_where   keys of all these that decide something only where something else is set, and what
    renamed      other names of a key               translated  keys that mean settings of others, by value
    idle_where   keys without effect where another one has a value
    switches     keys that make layers of another kind; refused where they are set and not read
    companions   details that a model has only where a switch is set
"""

import ast
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, Self, TypeVar

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import LARGEST, LARGEST_WHOLE
from primus_search.files.search_path import roots
from primus_search.files.source import Document, Keys, did_you_mean, plain, read


@dataclass(frozen=True, slots=True)
class Located:
    """A value and the place it was given at."""

    value: Any
    where: str


_Value = TypeVar("_Value")


class _Required:
    """The default that is none: a missing key is a problem."""


REQUIRED = _Required()
MAX_LAYERS = 4096


@dataclass(slots=True)
class Fields:
    """The entries of one mapping, read by name and type."""

    entries: Mapping[str, Located]
    where: str
    problems: list[Problem] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, document: Document, data: Mapping[str, Any], keys: Keys = (), into: "Fields | None" = None) -> Self:
        """The fields of a mapping of a document; problems go to `into` where given.

        Raises InputError for anything else than a mapping.
        """
        if not isinstance(data, Mapping):
            raise InputError([document.problem(keys, f"expected a mapping, got {reprlib.repr(data)}")])
        entries = {key: Located(value, document.where((*keys, key))) for key, value in data.items()}
        return cls(entries, document.where(keys), into.problems if into else [])

    def problem(self, key: str, what: str) -> None:
        found = Problem(self.entries[key].where if key in self.entries else self.where, what)
        if found not in self.problems:  # of a key that is read twice
            self.problems.append(found)

    def has(self, key: str) -> bool:
        """Whether the key is given and not null."""
        self.read.add(key)
        return key in self.entries and self.entries[key].value is not None

    def _wrong(self, key: str, what: str) -> None:
        self.problem(key, f"{reprlib.repr(self.entries[key].value)} {what}")

    def _given(self, key: str, default: "_Value | _Required", filler: _Value) -> "tuple[Any, _Value]":
        """The value of a key, None where it is missing, and its default; a problem where there is none."""
        if self.has(key):
            return self.entries[key].value, filler
        if isinstance(default, _Required):
            self.problem(key, f"missing key {key}")
            return None, filler
        return None, default

    def integer(self, key: str, default: "int | _Required" = REQUIRED, *, least: int = 1) -> int:
        value, usual = self._given(key, default, least)
        most = MAX_LAYERS if key.endswith(("layers", "n_layer")) else LARGEST_WHOLE
        if value is None:
            return usual
        if type(value) is not int or value < least:
            self._wrong(key, f"is not a whole number of at least {least}")
        elif value > most:
            self._wrong(key, f"is more than {most:,}, the largest that is read")
        else:
            return value
        return usual

    def number(self, key: str, default: "float | _Required" = REQUIRED, *, least: float = -LARGEST) -> float:
        value, usual = self._given(key, default, max(least, 0.0))
        if value is None:
            return usual
        if type(value) not in (int, float) or not isfinite(value):
            self._wrong(key, "is not a finite number")
        elif not least <= value <= LARGEST:
            self._wrong(key, f"is not between {least:g} and {LARGEST:g}")
        else:
            return float(value)
        return usual

    def switch(self, key: str, default: "bool | _Required" = REQUIRED) -> bool:
        return self._of(bool, key, default, False, "is not true or false")

    def word(self, key: str, default: "str | _Required" = REQUIRED) -> str:
        return self._of(str, key, default, "", "is not a word")

    def _of(self, kind: "type[_Value]", key: str, default: "_Value | _Required", filler: _Value, what: str) -> _Value:
        value, usual = self._given(key, default, filler)
        if value is None or isinstance(value, kind):
            return usual if value is None else value
        self._wrong(key, what)
        return usual

    def anything(self, key: str) -> Any:
        """The value as it stands, None where it is missing."""
        return self.entries[key].value if self.has(key) else None

    def items(self, key: str) -> list[Any]:
        """The entries of a list, empty where it is missing."""
        value = self.anything(key)
        if value is not None and not isinstance(value, list):
            self._wrong(key, "is not a list")
        return value if isinstance(value, list) else []

    def sections(self, key: str) -> "list[Fields]":
        """The fields of each mapping in a list, none where it is missing."""
        items = self.items(key)
        return [self._inside(one, f"{self.entries[key].where}[{place}]") for place, one in enumerate(items)]

    def _inside(self, data: Any, where: str) -> "Fields":
        if data is not None and not isinstance(data, dict):
            self.problems.append(Problem(where, f"{reprlib.repr(data)} is not a mapping"))
        pairs = data.items() if isinstance(data, dict) else ()
        return Fields({key: Located(value, f"{where}.{key}") for key, value in pairs}, where, self.problems)

    def whole_numbers(self, key: str) -> list[int]:
        """The entries of a list of whole numbers of at least 0, empty where it is missing or holds something else."""
        given = self.items(key)
        if all(type(one) is int and 0 <= one <= LARGEST_WHOLE for one in given):
            return given
        self.problem(key, f"{reprlib.repr(given)} is not a list of whole numbers of at least 0")
        return []

    def section(self, key: str) -> "Fields":
        """The fields of a nested mapping, none where it is missing."""
        return self._inside(self.anything(key), self.entries[key].where if key in self.entries else self.where)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A problem for every key that is not known, with the nearest known one."""
        names = list(known)
        for key in self.entries:
            if key not in names:
                self.problem(key, f"unknown key{did_you_mean(key, names, self.problems)}")


def layer_pattern(text: str) -> tuple[int, ...]:
    """The numbers a layer pattern stands for, without evaluating code.

    Megatron writes patterns as Python lists: sums of repeated lists of whole numbers, with brackets.

    >>> layer_pattern("([0]*3+[1]*2)")
    (0, 0, 0, 1, 1)

    Raises ValueError naming the first thing that cannot be read, and for more than `MAX_LAYERS` entries.
    """
    if len(text) > MAX_LAYERS:
        raise ValueError(f"a layer pattern has at most {MAX_LAYERS} characters")
    try:
        return tuple(_entries(ast.parse(text.strip(), mode="eval").body))
    except SyntaxError as error:
        found = text.strip()[max((error.offset or 1) - 1, 0) :][:12]
        what = f"cannot read {found!r}" if error.msg == "invalid syntax" else error.msg
        raise ValueError(f"{what} in a layer pattern") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("a layer pattern nests too deeply") from error


def per_layer(fields: Fields, key: str, num_layers: int) -> tuple[int, ...] | None:
    """One whole number per layer from a list or a layer pattern; None after a problem with something else."""
    given = fields.anything(key)
    try:
        found = layer_pattern(given) if isinstance(given, str) else [plain(str(one)) for one in given or ()]
        if not all(isinstance(one, int) and one >= 0 for one in found):
            raise ValueError("it holds whole numbers of at least 0")
    except (TypeError, ValueError) as error:
        forms = "a whole number, a list or a text such as '([0]*3+[1]*58)'"
        fields.problem(key, f"{given!r} is not a layer pattern ({error}) - allowed: {forms}")
        return None
    if len(found) != num_layers:
        fields.problem(key, f"has {len(found)} entries; the model has {num_layers} layers")
        return None
    return tuple(map(int, found))


def _entries(node: ast.expr) -> list[int]:
    """The numbers that a list, a sum of lists or a repeated list stands for."""
    match node:
        case ast.List():
            found = [_whole(one, "a list of a layer pattern holds whole numbers") for one in node.elts]
        case ast.BinOp(op=ast.Add()):
            found = _entries(node.left) + _entries(node.right)
        case ast.BinOp(op=ast.Mult()):
            times = _whole(node.right, "a '*' in a layer pattern needs a whole number after it")
            found = _entries(node.left) * min(times, MAX_LAYERS + 1)
        case _:
            raise ValueError("a layer pattern is a sum of lists such as [0]*3+[1]*58")
    if len(found) > MAX_LAYERS:
        raise ValueError(f"a layer pattern of more than {MAX_LAYERS} layers")
    return found


def _whole(node: ast.expr, otherwise: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(otherwise)


FOLDER = "spaces/keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKeys:
    """The lists of one format."""

    irrelevant: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    companions: frozenset[str] = frozenset()
    effects: Mapping[str, str] = field(default_factory=dict)
    priced: Mapping[str, Any] = field(default_factory=dict)
    read_beside: frozenset[str] = frozenset()
    read_where: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    translated: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    idle_where: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@lru_cache
def key_table(name: str) -> Any:
    """The data of `spaces/keys/NAME.yaml` in the first root that has it; InputError where none has."""
    for root in roots():
        path = root / FOLDER / f"{name}.yaml"
        if path.is_file():
            return read(path).data
    raise InputError([Problem(f"{FOLDER}/{name}.yaml", "no such file; the list of known keys is part of the package")])


@lru_cache
def known_keys(name: str) -> KnownKeys:
    """The lists of the format of that name; InputError as `key_table`."""
    data = key_table(name)
    lists: Any = {name: frozenset(data.get(name) or ()) for name in ("companions", "read_beside")}
    names = ("switches", "priced", "read_where", "renamed", "translated", "idle_where")
    tables: Any = {name: data.get(name) or {} for name in names}
    return KnownKeys(
        irrelevant={key: group["reason"] for group in data["irrelevant"] for key in group["keys"]},
        effects={key: group["effect"] for group in data.get("not_priced", ()) for key in group["keys"]},
        **lists,
        **tables,
    )


def drop_ignored(fields: Fields, ignore: Collection[str]) -> tuple[str, ...]:
    """Remove the keys that the user ignores knowingly; a problem for each that the file does not have."""
    for key in ignore:
        if key not in fields.entries:
            what = f"--ignore {key}: the file has no such key{did_you_mean(key, fields.entries)}"
            fields.problems.append(Problem(fields.where, what))
    dropped = tuple(key for key in fields.entries if key in ignore)
    fields.entries = {key: value for key, value in fields.entries.items() if key not in ignore}
    return dropped


def refuse_unread(fields: Fields, known: KnownKeys, readable: Collection[str] = ()) -> None:
    """A problem for every key that was not read and is not known to decide nothing.

    readable: keys that the reader reads where they apply; unread they say nothing about this model.
    """
    for key, given in fields.entries.items():
        if key in fields.read or key in known.irrelevant or key in known.companions or key in known.effects:
            continue
        if key in known.switches:
            if not _is_off(given.value):
                what = f"{key} makes {known.switches[key]}, which this reader does not read"
                fields.problem(key, f"{what}; --ignore {key} leaves it out knowingly")
        elif key not in readable:
            near = did_you_mean(key, [*readable, *fields.read])
            fields.problem(key, f"unknown key '{key}', which may change the model{near}; --ignore {key} skips it")


def _is_off(value: object) -> bool:
    """Whether a switch is off: nothing, or a mapping that says so (`lora: {enabled: false}`)."""
    return value in (None, False, 0, "", [], {}) or (isinstance(value, dict) and value.get("enabled") is False)
