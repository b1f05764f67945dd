"""Keys that a reader of a foreign format may leave unread, and why: `spaces/keys/*.yaml`.

A reader of a foreign format reads a key, or knows from these lists that the key decides nothing about the model, or
refuses the file by that key's name. `--ignore KEY` drops a key knowingly; the model then carries its name.

    irrelevant   keys that decide no size, in groups with a reason; of a framework neither time nor memory
    not_priced   keys of a framework that decide no size and would change time or memory, with the direction
    priced       values of those that are priced, where that is not off
    read_beside  keys that the reader of launch settings takes beside the knobs of a contract
    renamed      other names of a key               translated  keys that mean settings of others, by value
    overruling   of the translated ones those that win over what a file sets under the other's own name
    acts_where   keys of all these that act only where an expression over axes and settings holds
    switches     keys that make layers of another kind; refused where they are set and not read
    companions   details that a model has only where a switch is set
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.files.search_path import roots
from primus_search.files.source import read

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
    overruling: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    translated: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    acts_where: Mapping[str, str] = field(default_factory=dict)


@lru_cache
def key_table(name: str) -> Any:
    """The data of `spaces/keys/NAME.yaml` in the first root that has it; InputError where none has."""
    for root in roots():
        path = root / FOLDER / f"{name}.yaml"
        if path.is_file():
            return read(path).data
    raise InputError([Problem(f"{FOLDER}/{name}.yaml", "no such file; the list of known keys is part of the package")])


def key_rows(name: str) -> list[list[str]]:
    """The rows of `spaces/keys/NAME.tsv`, each its fields; InputError as `key_table`."""
    for root in roots():
        path = root / FOLDER / f"{name}.tsv"
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            return [line.split("\t") for line in lines if line[:1] != "#"]
    raise InputError([Problem(f"{FOLDER}/{name}.tsv", "no such file; it is part of the package")])


@lru_cache
def known_keys(name: str) -> KnownKeys:
    """The lists of the format of that name; InputError as `key_table`."""
    data = key_table(name)
    lists: Any = {name: frozenset(data.get(name) or ()) for name in ("companions", "read_beside", "overruling")}
    names = ("switches", "priced", "acts_where", "renamed", "translated")
    tables: Any = {name: data.get(name) or {} for name in names}
    return KnownKeys(
        irrelevant={key: group["reason"] for group in data["irrelevant"] for key in group["keys"]},
        effects={key: group["effect"] for group in data.get("not_priced", ()) for key in group["keys"]},
        **lists,
        **tables,
    )
