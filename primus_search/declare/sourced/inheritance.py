"""`extends: NAME` in a hardware or stack file: what the file does not give, it has from another one.

Mappings are joined key by key down to the leaves `{value, source}`, which are taken whole. A key is the same whatever
its unit (`host_launch_us` replaces an inherited `host_launch_ms`). Messages and sources of an inherited value name the
file that gives it. A name, error bands, variants and tables of measured calls belong to one file and are not inherited.
Below the key `any` a base gives what every entry of a mapping of free names has (attention kernels of a device).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from primus_search.base import units
from primus_search.base.errors import InputError
from primus_search.declare.search_path import FileKind, find, is_path, names
from primus_search.declare.source import Document, Keys, did_you_mean, read

EXTENDS, VARIANTS = "extends", "variants"
OWN = frozenset({"name", EXTENDS, VARIANTS, "errors", "tables"})
"""Top-level keys that are not inherited."""

ANY = "any"

_MOST_PARENTS = 8


def read_with_parents(path: Path, kinds: Sequence[FileKind], last: Path | None = None) -> Document:
    """The document of a file joined with those that it extends, directly or through others.

    kinds  what the name after `extends:` may stand for
    last   the file that one without `extends:` extends
    Raises InputError for a name that is not known, for a circle, and for a chain of more than 8 files.
    """
    documents = [read(path)]
    seen = [path.resolve()]
    while (parent := _parent(documents[-1], seen[-1].parent, kinds)) is not None:
        if parent.resolve() in seen or len(seen) > _MOST_PARENTS:
            what = f"'{documents[-1].data[EXTENDS]}' extends this file in turn"
            raise InputError([documents[-1].problem((EXTENDS,), what)])
        seen.append(parent.resolve())
        documents.append(read(parent))
    if last is not None:
        documents.append(read(last))
    whole = documents.pop()
    while documents:
        whole = _joined(documents.pop(), whole)
    return whole


def varied(document: Document, variant: str) -> Document:
    """The document with what one of its `variants` has otherwise. Raises InputError for a name that it has not."""
    data = document.data if isinstance(document.data, dict) else {}
    known = data.get(VARIANTS)
    if not isinstance(known, dict) or not isinstance(known.get(variant), dict):
        words = f"variants: {', '.join(map(str, known))}" if isinstance(known, dict) else "it has no variants"
        raise InputError([document.problem((VARIANTS,), f"no variant {variant!r} - {words}")])
    above = (VARIANTS, variant)
    lines = {keys[2:]: line for keys, line in document.lines.items() if keys[:2] == above}
    own = {key: data[key] for key in OWN if key in data}
    return _joined(Document(document.name, own | known[variant], lines), document)


def _parent(document: Document, folder: Path, kinds: Sequence[FileKind]) -> Path | None:
    data = document.data
    if not isinstance(data, dict) or EXTENDS not in data:
        return None
    name = data[EXTENDS]
    if not isinstance(name, str):
        raise InputError([document.problem((EXTENDS,), "expected the name of a file to take the rest from")])
    known = {key: path for kind in reversed(kinds) for key, path in names(kind).items()}
    if name in known:
        return known[name]
    found = find(kinds[0], name, beside=folder) if is_path(name) else ""
    if isinstance(found, Path):
        return found
    what = found or f"unknown {kinds[0].noun} '{name}'{did_you_mean(name, known)} - known: {', '.join(sorted(known))}"
    raise InputError([document.problem((EXTENDS,), what)])


def _joined(child: Document, parent: Document) -> Document:
    """The child's document with what it has from the parent; `parents` names the file of each inherited value."""
    if not isinstance(child.data, dict) or not isinstance(parent.data, dict):
        return child
    inherited: dict[Keys, Document] = {}
    above = {key: value for key, value in parent.data.items() if key not in OWN}
    data = _join(child.data, above, (), parent, inherited)
    return Document(child.name, data, child.lines, child.origins, inherited)


def _join(
    own: dict[str, Any], above: dict[str, Any], keys: Keys, parent: Document, inherited: dict[Keys, Document]
) -> dict[str, Any]:
    given = {_quantity(key) for key in own}
    joined: dict[str, Any] = {}
    for key, value in own.items():
        over = above.get(key, above.get(ANY))
        both = isinstance(value, dict) and isinstance(over, dict) and "value" not in value and "value" not in over
        joined[key] = _join(value, over, (*keys, key), parent, inherited) if both and over is not None else value
    for key, value in above.items():
        if key not in own and key != ANY and _quantity(key) not in given:
            if isinstance(value, dict) and "value" not in value:
                joined[key] = _join({}, value, (*keys, key), parent, inherited)
            else:
                joined[key] = value
                inherited[(*keys, key)] = parent.giver((*keys, key)) or parent
    return joined


def _quantity(key: str) -> str:
    """What a key gives, without its unit."""
    return units.to_base(key, 0.0)[0]
