"""Typed access to one mapping of a file: each value with its place, each misuse a problem, nothing silently defaulted.

Used by the readers of model files, whose keys are fixed by other projects. A `Fields` remembers which keys were read,
so that a reader can say what it did not understand.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self, TypeVar

from primus_search.declare.source import Document, Keys, did_you_mean
from primus_search.errors import Problem


@dataclass(frozen=True, slots=True)
class Located:
    """A value and the place it was given at."""

    value: Any
    where: str


_Value = TypeVar("_Value")


class _Required:
    """The default that is none: a missing key is a problem."""


REQUIRED = _Required()


@dataclass(slots=True)
class Fields:
    """The entries of one mapping, read by name and type."""

    entries: Mapping[str, Located]
    where: str
    problems: list[Problem] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, document: Document, data: Mapping[str, Any], keys: Keys = (), into: "Fields | None" = None) -> Self:
        """The fields of a mapping of a document; problems go to `into` where given."""
        entries = {key: Located(value, document.where((*keys, key))) for key, value in data.items()}
        return cls(entries, document.where(keys), into.problems if into else [])

    def problem(self, key: str, what: str) -> None:
        where = self.entries[key].where if key in self.entries else self.where
        self.problems.append(Problem(where, what))

    def has(self, key: str) -> bool:
        """Whether the key is given and not null."""
        self.read.add(key)
        return key in self.entries and self.entries[key].value is not None

    def integer(self, key: str, default: "int | _Required" = REQUIRED, *, least: int = 1) -> int:
        if not self.has(key):
            return self._missing(key, default, least)
        value = self.entries[key].value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.problem(key, f"{value!r} is not a whole number of at least {least}")
            return least
        return value

    def number(self, key: str, default: "float | _Required" = REQUIRED) -> float:
        if not self.has(key):
            return self._missing(key, default, 0.0)
        value = self.entries[key].value
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            self.problem(key, f"{value!r} is not a finite number")
            return 0.0
        return float(value)

    def switch(self, key: str, default: "bool | _Required" = REQUIRED) -> bool:
        if not self.has(key):
            return self._missing(key, default, False)
        value = self.entries[key].value
        if not isinstance(value, bool):
            self.problem(key, f"{value!r} is not true or false")
            return False
        return value

    def word(self, key: str, default: "str | _Required" = REQUIRED) -> str:
        if not self.has(key):
            return self._missing(key, default, "")
        value = self.entries[key].value
        if not isinstance(value, str):
            self.problem(key, f"{value!r} is not a word")
            return ""
        return value

    def anything(self, key: str) -> Any:
        """The value as it stands, None where it is missing."""
        return self.entries[key].value if self.has(key) else None

    def items(self, key: str) -> list[Any]:
        """The entries of a list, empty where it is missing."""
        value = self.anything(key)
        if value is not None and not isinstance(value, list):
            self.problem(key, f"{value!r} is not a list")
        return value if isinstance(value, list) else []

    def section(self, key: str) -> "Fields":
        """The fields of a nested mapping, none where it is missing."""
        value = self.anything(key)
        if value is not None and not isinstance(value, dict):
            self.problem(key, f"{value!r} is not a mapping")
        where = self.entries[key].where if key in self.entries else self.where
        entries = value if isinstance(value, dict) else {}
        return Fields({name: Located(one, f"{where}.{name}") for name, one in entries.items()}, where, self.problems)

    def _missing(self, key: str, default: "_Value | _Required", filler: _Value) -> _Value:
        """The default of a missing key; where there is none, a problem and a value to go on with."""
        if isinstance(default, _Required):
            self.problem(key, f"missing key {key}")
            return filler
        return default

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A problem for every key that is not known, with the nearest known one."""
        names = list(known)
        for key in self.entries:
            if key not in names:
                self.problem(key, f"unknown key{did_you_mean(key, names)}")


MAX_LAYERS = 4096
_TOKEN = re.compile(r"\s*(\d+|[\[\](),+*])")


def layer_pattern(text: str) -> tuple[int, ...]:
    """The numbers a layer pattern stands for, without evaluating code.

    Megatron writes patterns as Python lists: sums of repeated lists of whole numbers, with brackets.

    >>> layer_pattern("([0]*3+[1]*2)")
    (0, 0, 0, 1, 1)

    Raises ValueError naming the first thing that cannot be read, and for more than `MAX_LAYERS` entries.
    """
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"cannot read {text[position:].strip()[:12]!r} in a layer pattern")
        tokens.append(match.group(1))
        position = match.end()
    values, rest = _sum(tokens)
    if rest:
        raise ValueError(f"cannot read {rest[0]!r} after the end of a layer pattern")
    return tuple(values)


def _sum(tokens: list[str]) -> tuple[list[int], list[str]]:
    values, tokens = _product(tokens)
    while tokens[:1] == ["+"]:
        more, tokens = _product(tokens[1:])
        values = values + more
        _limit(len(values))
    return values, tokens


def _product(tokens: list[str]) -> tuple[list[int], list[str]]:
    values, tokens = _atom(tokens)
    while tokens[:1] == ["*"]:
        if len(tokens) < 2 or not tokens[1].isdigit():
            raise ValueError("a '*' in a layer pattern needs a whole number after it")
        times = int(tokens[1][:6])
        _limit(len(values) * times)
        values, tokens = values * times, tokens[2:]
    return values, tokens


def _atom(tokens: list[str]) -> tuple[list[int], list[str]]:
    if tokens[:1] == ["("]:
        values, rest = _sum(tokens[1:])
        if rest[:1] != [")"]:
            raise ValueError("a '(' in a layer pattern is never closed")
        return values, rest[1:]
    if tokens[:1] != ["["]:
        raise ValueError("a layer pattern is a sum of lists such as [0]*3+[1]*58")
    values, tokens = [], tokens[1:]
    while tokens and tokens[0] != "]":
        if not tokens[0].isdigit():
            raise ValueError(f"cannot read {tokens[0]!r} in a list of a layer pattern")
        values.append(int(tokens[0][:9]))
        tokens = tokens[1:]
        if tokens[:1] == [","]:
            tokens = tokens[1:]
    if not tokens:
        raise ValueError("a '[' in a layer pattern is never closed")
    return values, tokens[1:]


def _limit(length: int) -> None:
    if length > MAX_LAYERS:
        raise ValueError(f"a layer pattern of more than {MAX_LAYERS} layers")
