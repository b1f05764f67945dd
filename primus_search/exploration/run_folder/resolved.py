"""`resolved.json`: the space of a run with every value resolved, which every later version reads.

    files["resolved.json"] = resolved_bytes(space)
    space = read_resolved(path, content)

Held are the typed values themselves (model, accelerator, network, stack, framework contract, axes), not the texts they
came from: a key that a later version renames, refuses or needs in a hardware file changes nothing here. What a later
version adds to a type has a default there or a line in `MISSING`; what it removed is ignored.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.version import __version__
from primus_search.files.plain_forms import Plain, from_plain, to_plain
from primus_search.space import AXES, Space
from primus_search.values.candidates import DEFAULTS

RESOLVED = "resolved.json"
SCHEMA = 2
"""Number of the form of run.json and resolved.json; it grows where a later form cannot be read as this one."""
MISSING: Mapping[str, Mapping[str, Plain]] = {
    "clusters.*.cluster.site": dict.fromkeys(("stack_share", "software", "device", "exchange", "host"), 0.0),
}
"""Fields that folders of released versions lack and whose types have no default, by the path to their owner, `*` for
every item of a list: neutral values. An owner that a folder has not got at all is passed over."""
_SHARED = (("framework",), ("cluster", "accelerator"), ("cluster", "network"), ("cluster", "stack"))
"""Parts of a cluster that others often have as well: each is written once."""


def resolved_bytes(space: Space) -> bytes:
    """The file of a space: `{"schema", "parts", "space"}`; clusters name their parts by their places in `parts`."""
    plain, parts = to_plain(space, is_whole=True), dict[str, int]()
    for cluster in plain["clusters"]:
        for *above, name in _SHARED:
            owner = cluster[above[0]] if above else cluster
            owner[name] = parts.setdefault(json.dumps(owner[name]), len(parts))
    content = {"schema": SCHEMA, "parts": [json.loads(part) for part in parts], "space": plain}
    return json.dumps(content).encode() + b"\n"


def read_resolved(path: Path, content: bytes) -> Space:
    """The space of a file. Raises `InputError` with one line where it cannot be one."""
    try:
        data = json.loads(content)
        plain, parts = data["space"], data["parts"]
        for cluster in plain["clusters"]:
            for *above, name in _SHARED:
                owner = cluster[above[0]] if above else cluster
                owner[name] = parts[owner[name]]
        for place, fields in MISSING.items():
            for owner in _at(plain, place.split(".")):
                owner |= {name: value for name, value in fields.items() if name not in owner}
        common = {name: plain.pop(name, []) for name in ("axes", "reliefs")}  # once all clusters had the same
        for cluster in plain["clusters"]:
            cluster |= {name: axes for name, axes in common.items() if name not in cluster}
            cluster.setdefault("is_relieved", False)
            axes = [one for one in cluster["axes"] if one["name"] in AXES]
            held = {one["name"] for one in axes}
            cluster["axes"] = axes + [{"name": n, "values": [DEFAULTS[n]]} for n in AXES if n not in held]
        return from_plain(Space, plain)
    except (*UNREADABLE, LookupError) as error:
        raise InputError([Problem(str(path), f"cannot be read back: {str(error)[:200]}; {AGAIN}")]) from error


AGAIN = "run the search again"


def _at(plain: Plain, keys: list[str]) -> Iterator[dict[str, Plain]]:
    """The mappings at a path."""
    if not keys:
        yield plain
        return
    found = plain if keys[0] == "*" else [plain.get(keys[0])]
    for one in found:
        if one is not None:
            yield from _at(one, keys[1:])


# --- who wrote a folder ----------------------------------------------------------------------------------------------


def written_by(facts: Mapping[str, Any]) -> str:
    """`primus-search 0.1.0, 2026-11-24`: the version that wrote a run folder, as its run.json has it."""
    versions = facts.get("versions")
    version = versions.get("primus-search") if isinstance(versions, dict) else None
    day = str(facts.get("finished", ""))[:10]
    return f"primus-search {str(version or 'of unknown version')[:40]}" + (f" on {day}" if day else "")


def is_known_form(facts: Mapping[str, Any]) -> bool:
    """Whether the folder's form is one that this version reads; folders of 0.1.0 have no number."""
    schema = facts.get("schema", 0)
    return type(schema) is int and 0 <= schema <= SCHEMA


def is_of_today(facts: Mapping[str, Any]) -> bool:
    """Whether this version wrote the folder."""
    versions = facts.get("versions")
    return isinstance(versions, dict) and versions.get("primus-search") == __version__


def refusal(facts: Mapping[str, Any], why: str) -> str:
    """One line: which version wrote a folder, why this one does not read it, what to do."""
    schema = facts.get("schema")
    if type(schema) is int and schema > SCHEMA:
        return (
            f"written by {written_by(facts)} in schema {schema}; this is {__version__}, which reads up to schema"
            f" {SCHEMA}: open it with that version, or run its space again with --force"
        )
    return (
        f"written by {written_by(facts)}, which this version ({__version__}) cannot read: {why}; {AGAIN} (with --force)"
    )
