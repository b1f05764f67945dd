"""Typed values as plain JSON and back, so that a baseline can hold the very inputs its figures came from.

    to_plain(accelerator) -> {"gemm": {"tile_overhead": 0.1, ...}, ...}
    restored(Accelerator, plain, today=accelerator) -> Accelerator

A field the baseline does not know (added since) keeps today's value; one that is gone is ignored.
"""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, get_args, get_origin

import numpy as np

Plain = Any
"""What JSON knows: mappings with text keys, lists, text, numbers, true, false and null."""


def to_plain(value: Any) -> Plain:
    """Dataclasses, enumerations and sequences as JSON knows them; fields that no comparison reads are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(value.__getattribute__(f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(item) for item in value]
    return value


def digest(plain: Plain) -> str:
    """A short hash of a plain value; equal values hash alike whatever the order of their keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def restored(hint: Any, plain: Plain, *, today: Any = None) -> Any:
    """The value of type `hint` that `to_plain` wrote. Raises ValueError or TypeError where the type refuses it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if plain is None:
            return None
        inner = next(arg for arg in args if arg is not type(None))
        return restored(inner, plain, today=today)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, plain, today)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        known = today if isinstance(today, Mapping) else {}
        return {key: restored(args[1], item, today=known.get(key)) for key, item in plain.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return tuple(restored(args[0], item) for item in plain)
    return float(plain) if hint is float else plain


def _record(cls: type, plain: Plain, today: Any) -> Any:
    hints = typing.get_type_hints(cls)
    values = {}
    for f in dataclasses.fields(cls):
        now = today.__getattribute__(f.name) if isinstance(today, cls) else None
        if f.name in plain:
            values[f.name] = restored(hints[f.name], plain[f.name], today=now)
        elif isinstance(today, cls):
            values[f.name] = now
    return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value that differs: where (`gemm.tile_overhead`), and both values; None where one side lacks it."""

    path: tuple[str, ...]
    before: Plain
    after: Plain

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def __str__(self) -> str:
        return f"{self.name} {short(self.before)} -> {short(self.after)}".lstrip()


def short(value: Plain) -> str:
    """A value as a line of a report has room for."""
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 48 else f"{text[:45]}..."


def differences(before: Plain, after: Plain, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every leaf in which two plain values differ, in order of their keys; lists count as one leaf."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key), after.get(key), (*path, key))
    elif before != after:
        yield Leaf(path=path, before=before, after=after)


def with_leaf(plain: Plain, leaf: Leaf) -> Plain:
    """The plain value with one leaf set back to what it was before."""
    if not leaf.path:
        return leaf.before
    head, *rest = leaf.path
    inner = dataclasses.replace(leaf, path=tuple(rest))
    return {**plain, head: with_leaf(plain.get(head), inner)}
