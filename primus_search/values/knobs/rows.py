"""The knobs of a training configuration, read from `knobs.toml`; what other modules know of a knob derives from there.

A new knob is a table of `knobs.toml`, a field of `candidates.Candidates`, a rule in `space.rules`, a formula in `cost`
and a key in the files of the frameworks that have it (docs/dev/adding.md). Its axis in space files, default, words,
place in the enumeration, key columns of cost terms, `explain`, samplers and labels follow from the table.

    >>> KNOB["fp8"].word(1), KNOB["fp8"].code("hybrid"), sorted(reading(Enters.HOPS))
    ('hybrid', 1, ['cp', 'ep', 'etp', 'micro_batch_size', 'sequence_parallel', 'tp'])
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

import primus_search.values.knobs.values as values
from primus_search.values.knobs.knob import Enters, Kind, Knob, Row, Scope
from primus_search.values.layout import Layout


def _pipeline_label(row: Row) -> str:
    replicas = f" DP{row['dp']}" if "dp" in row else ""
    return f"PP{row['pp']}" + (f"x{row['vpp']}" if row["vpp"] > 1 else "") + replicas


def _schedule_label(row: Row) -> str:
    layout = [] if row["pipeline_layout"] == "even" else [f"layout:{row['pipeline_layout']}"]
    return " ".join([row["schedule"]] * (row["pp"] > 1) + layout)


def _recompute_label(row: Row) -> str:
    if row["recompute"] != "full":
        return "" if row["recompute"] == "none" else f"recompute:{row['recompute']}"
    return f"full({row['recompute_num_layers']})" if row["recompute_num_layers"] else "full"


def _sharding_label(row: Row) -> str:
    return "" if row["sharding"] == "none" else str(row["sharding"]).replace("distributed_optimizer", "zero1")


_LABELS: Mapping[str, Callable[[Row], str]] = {
    "pp": _pipeline_label,
    "schedule": _schedule_label,
    "recompute": _recompute_label,
    "sharding": _sharding_label,
    "tp": lambda row: f"TP{row['tp']}",
    "micro_batch_size": lambda row: f"mbs{row['micro_batch_size']}",
}
"""Labels that are no text of a row of the table, by knob."""


def _knob(name: str, given: Mapping[str, Any]) -> Knob:
    """The knob of one table of the file. Raises KeyError for a word that is no member, TypeError for a wrong field."""
    words = vars(values)[given["words"]] if "words" in given else None

    def value(text: Any) -> Any:
        if given["kind"] == "layout":
            return Layout.parse(text)
        return text if words is None else reduce(or_, (words[member.upper()] for member in text.split("+")))

    def flags(kind: type[Enters] | type[Scope]) -> Callable[[str], Any]:
        return lambda text: reduce(or_, (kind[word.upper()] for word in text.split()))

    readers: dict[str, Callable[[Any], Any]] = {
        "kind": lambda text: Kind[text.upper()],
        "words": lambda _: words,
        "enters": flags(Enters),
        "scope": flags(Scope),
        **dict.fromkeys(("default", "off", "guess"), value),
        **dict.fromkeys(("auto", "relief"), lambda texts: tuple(map(value, texts))),
        **dict.fromkeys(("followers", "said"), tuple),
        "aliases": lambda words_of: {word: value(text) for word, text in words_of.items()},
        "printed": lambda words_of: {value(text): word for text, word in words_of.items()},
    }
    read: dict[str, Any] = {"label": _LABELS[name]} if name in _LABELS else {}
    read |= {field: readers[field](one) if field in readers else one for field, one in given.items()}
    return Knob(name=name, **read)


_FILE = Path(__file__).with_name("knobs.toml")
KNOBS: tuple[Knob, ...] = tuple(_knob(*table) for table in tomllib.loads(_FILE.read_text(encoding="utf-8")).items())
"""Every knob, in the order of enumeration, slowest first; those that are not `is_outer` vary within the others."""

KNOB: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}
NUMERIC = tuple(knob for knob in KNOBS if knob.is_numeric)
"""Knobs that change what training computes (docs/numerics.md)."""
WORDED = frozenset(knob.name for knob in KNOBS if knob.has_words)
"""Knobs whose values are printed as words."""


@cache
def reading(enters: Enters, scope: Scope = Scope.ALL) -> frozenset[str]:
    """The knobs that any of some terms reads; of kernels and traffic, those of the pieces in `scope` alone."""
    inside, around = enters & Enters.INSIDE, enters & ~Enters.INSIDE
    return frozenset(k.name for k in KNOBS if k.enters & around or (k.enters & inside and k.scope & scope))
