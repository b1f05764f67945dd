"""Keys of other projects' model files that a reader may leave unread, and why: `spaces/keys/*.yaml`.

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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.declare.fields import Fields
from primus_search.declare.search_path import roots
from primus_search.declare.source import did_you_mean, read

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
    return KnownKeys(
        irrelevant={key: group["reason"] for group in data["irrelevant"] for key in group["keys"]},
        switches=data.get("switches") or {},
        companions=frozenset(data.get("companions") or ()),
        effects={key: group["effect"] for group in data.get("not_priced", ()) for key in group["keys"]},
        priced=data.get("priced", {}),
        read_beside=frozenset(data.get("read_beside", ())),
        read_where=data.get("read_where", {}),
        renamed=data.get("renamed", {}),
        translated=data.get("translated", {}),
        idle_where=data.get("idle_where", {}),
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
