"""Fields of nested frozen dataclasses by dotted path: look up, replace, compare.

A number of a stack or an accelerator is named by its whole path (`memory.loss_chunks`) or, where that is unambiguous,
by its last word (`loss_chunks`).
"""

import dataclasses
from collections.abc import Iterator
from copy import copy
from typing import Any, TypeVar, cast

Record = TypeVar("Record")
Path = tuple[str, ...]


def paths(record: Any, within: Path = ()) -> Iterator[Path]:
    """Paths of every field of a dataclass that is no dataclass itself, in order of declaration."""
    for field in dataclasses.fields(record):
        value = value_at(record, (field.name,))
        own = (*within, field.name)
        if dataclasses.is_dataclass(value):
            yield from paths(value, own)
        else:
            yield own


def located(record: Any, name: str) -> Path | None:
    """The path that a dotted name or a last word stands for; None for no field. Raises ValueError for several."""
    words = tuple(name.split("."))
    found = [path for path in paths(record) if path[-len(words) :] == words]
    if words in found:
        return words
    if len(found) > 1:
        raise ValueError(f"{name} is ambiguous: {', '.join('.'.join(path) for path in found)}")
    return found[0] if found else None


def value_at(record: Any, path: Path) -> Any:
    """The value of a field, or of a key of a mapping. Raises AttributeError or KeyError where there is none."""
    for name in path:
        record = record[name] if isinstance(record, dict) else record.__getattribute__(name)
    return record


def with_value(record: Record, path: Path, value: Any) -> Record:
    """The record with one field, or key of a mapping, replaced."""
    if len(path) > 1:
        value = with_value(value_at(record, path[:1]), path[1:], value)
    changed: Any = record  # a mapping or a dataclass
    own = {path[0]: value}
    return cast(Record, record | own if isinstance(record, dict) else dataclasses.replace(changed, **own))


def with_column(record: Record, path: Path, value: Any) -> Record:
    """As `with_value`, without the record's validation, so that a number may be a column: one value per row."""
    if len(path) > 1:
        value = with_column(value_at(record, path[:1]), path[1:], value)
    changed = copy(record)
    object.__setattr__(changed, path[0], value)
    return changed


def differences(before: Any, after: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and new value of every field in which two records of one type differ."""
    for field in () if before is after else dataclasses.fields(after):
        was, value = before.__getattribute__(field.name), after.__getattribute__(field.name)
        if dataclasses.is_dataclass(value) and type(was) is type(value):
            yield from differences(was, value, f"{within}{field.name}.")
        elif value != was:
            yield f"{within}{field.name}", value
