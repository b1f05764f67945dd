"""Typed access to one mapping of a file: each value with its place, each misuse a problem, nothing silently defaulted.

Used by the readers of model files, whose keys are fixed by other projects. A `Fields` remembers which keys were read,
so that a reader can say what it did not understand (`unread_keys`).
"""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self, TypeVar

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.base.guards.values import LARGEST, LARGEST_WHOLE
from primus_search.files.source import Document, Keys


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
