"""Every number that a projection reads from a stack or a device has a source, whether its file gives or inherits it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from primus_search.base import units
from primus_search.files.hardware_files import load_hardware, read_stack
from primus_search.files.records import Sourced
from primus_search.files.search_path import FileKind, names
from primus_search.files.source import read

TABLES = ("tables",)
"""Measured calls of a CSV beside the file, each with a source of its own."""


def numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all numbers of a loaded record."""
    if is_dataclass(value):
        for f in fields(value):
            if f.name not in TABLES:
                yield from numbers(getattr(value, f.name), (*path, f.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers(item, (*path, str(key)))
    elif isinstance(value, tuple):
        if any(isinstance(item, int | float) for item in value):
            yield path
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def sourced(found: tuple[Sourced, ...]) -> set[str]:
    """Paths, in names of fields, of every number that has a source."""
    paths = set()
    for one in found:
        if one.source.strip():
            *groups, key = one.path.split(".")
            paths |= {".".join([*groups, name]) for name in (key, units.to_base(key, 0.0)[0])}
    return paths


def without_source(value: Any, found: tuple[Sourced, ...], path: tuple[str, ...] = ()) -> list[str]:
    known = sourced(found)
    return [name for name in (".".join(p) for p in numbers(value, path)) if name not in known]


@pytest.mark.parametrize("name", names(FileKind.STACK))
def test_no_number_of_a_loaded_stack_lacks_a_source(name: str) -> None:
    stack, found = read_stack(name)
    assert without_source(stack, found) == []


@pytest.mark.parametrize("name", names(FileKind.HARDWARE))
def test_no_number_of_loaded_hardware_lacks_a_source(name: str) -> None:
    hardware = load_hardware(name)
    assert without_source(hardware.accelerator, hardware.sources, ("accelerator",)) == []
    assert without_source(hardware.network, hardware.sources, ("network",)) == []


def test_the_constants_of_every_preset_have_a_source() -> None:
    for name, path in names(FileKind.MODEL).items():
        data = read(path).data
        if "constants" in data:
            assert "config.json" in data["source"] or data["constants"].get("source"), name
