"""Every argument of a framework's release with its type and default (`spaces/keys/arguments/RELEASE.tsv`).

    arguments("megatron@core_0.20")["num_layers"].kind      # "int"

The tables are written by a tool from the framework's own parser.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from primus_search.files.known_keys import key_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a release: its type, its default, the values it takes, and the flags that set it."""

    name: str
    kind: str
    default: Any
    choices: tuple[Any, ...]
    flags: tuple[str, ...]


@lru_cache(maxsize=8)
def arguments(release: str) -> Mapping[str, Argument]:
    """Every argument of a release (`megatron@core_0.20`) by its name. Raises `InputError` where no table is there."""
    return {line[0]: _argument(*line) for line in key_rows(f"arguments/{release}")}


def _argument(name: str, kind: str, default: str, choices: str = "", flags: str = "") -> Argument:
    return Argument(
        name=name,
        kind=kind,
        default=None if default.startswith("?") else json.loads(default),
        choices=tuple(json.loads(choices)) if choices else (),
        flags=tuple(flags.split()),
    )


@lru_cache(maxsize=8)
def flags_of(table: str) -> Mapping[str, tuple[str, bool]]:
    """Each flag of a table with underscores -> the argument, and whether the flag sets it or switches it off."""
    return {
        flag.lstrip("!-").replace("-", "_"): (one.name, not flag.startswith("!"))
        for one in arguments(table).values()
        for flag in one.flags
    }
