"""The axes of a space file: what each may hold, how it is read, and how the published schema describes it.

An axis is a value, a list of values, or a word (`auto`; counts also know `divisors` and `powers_of_two`). Words are
resolved later, when model and clusters are known: reading yields `Word` items in their place.

    tp: auto        micro_batch_size: [1, 2, 4]        recompute: [none, selective, {full: [1, 2, all]}]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from primus_search.base.errors import Problem
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.declare.source import Document, Keys, did_you_mean, join_words, quoted
from primus_search.schedule.registry import ALIASES
from primus_search.schedule.registry import names as schedule_names
from primus_search.space import AXES, AxisValue
from primus_search.values.knobs import KNOB, KNOBS, Kind, Knob
from primus_search.values.layout import BALANCED, EVEN, Layout

ALL = 0
"""What the word `all` is stored as on axes that count layers or ranks."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that stands for values once model and clusters are known, and the place it was written at."""

    text: str
    where: str


Item = AxisValue | Word


@dataclass(slots=True)
class Reader:
    """Reads the axes of one document; collects problems, and what one axis says about another."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    implied: dict[str, list[Item]] = field(default_factory=dict)

    def problem(self, keys: Keys, what: str) -> None:
        self.problems.append(self.document.problem(keys, what))

    def imply(self, axis: str, items: Sequence[Item]) -> None:
        """Note values for another axis, in order, without doubles."""
        values = self.implied.setdefault(axis, [])
        values.extend(item for item in items if item not in values)

    def axis(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        """The items of one axis: values and words, in the order given."""
        if isinstance(raw, list):
            if not raw:
                self.problem(keys, f"is an empty list; give at least one value - allowed: {spec.allowed}")
            return [item for i, one in enumerate(raw) for item in self._item(spec, one, (*keys, i))]
        return self._item(spec, raw, keys)

    def _item(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        if isinstance(raw, str) and raw in spec.words:
            return [Word(raw, self.document.where(keys))]
        return spec.read(self, spec, raw, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec:
    """One axis of a space file. `schema` is the JSON schema of one value; `allowed` says the same to a reader."""

    knob: Knob
    allowed: str
    schema: Mapping[str, Any]
    read: Callable[[Reader, "AxisSpec", Any, Keys], list[Item]]
    words: tuple[str, ...] = ("auto",)
    choices: tuple[tuple[str, int], ...] = ()

    def json_schema(self) -> dict[str, Any]:
        """A value, a list of values, or a word."""
        one = {"anyOf": [{"enum": list(self.words)}, dict(self.schema)]}
        many = {"type": "array", "items": one, "minItems": 1}
        return {"description": f"{self.knob.summary} Allowed: {self.allowed}.", "anyOf": [*one["anyOf"], many]}


# --- readers of one value ------------------------------------------------------------------------------------------


def _refuse(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    known = [*spec.words, *(name for name, _ in spec.choices)]
    hint = did_you_mean(raw, known) if isinstance(raw, str) else ""
    reader.problem(keys, f"{quoted(raw)} is not a value of {spec.knob.name}{hint} - allowed: {spec.allowed}")
    return []


def _read_count(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, str) and raw in dict(spec.choices):
        return [dict(spec.choices)[raw]]
    if spec.knob.has_all and raw == ALL and not isinstance(raw, bool):
        return [ALL]  # as tables of results have it
    most = LARGEST_WHOLE if spec.knob.most is None else spec.knob.most
    if isinstance(raw, bool) or not isinstance(raw, int) or not spec.knob.least <= raw <= most:
        return _refuse(reader, spec, raw, keys)
    return [raw]


def _read_switch(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    return [raw] if isinstance(raw, bool) else _refuse(reader, spec, raw, keys)


def _read_choice(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, str) and raw in dict(spec.choices):
        return [dict(spec.choices)[raw]]
    return _read_detailed(reader, spec, raw, keys)


def _read_detailed(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    """A value given with its details, which are values of other axes: `{full: 2, method: block}`, `{hsdp: 8}`."""
    details, detailed = _details(spec.knob)
    if not isinstance(raw, dict) or detailed not in raw or not set(raw) <= set(details):
        return _refuse(reader, spec, raw, keys)
    for key in (detailed, *(key for key in details if key in raw and key != detailed)):
        reader.imply(details[key], reader.axis(AXIS[details[key]], raw[key], (*keys, key)))
    return [spec.knob.members[detailed]]


def _details(knob: Knob) -> tuple[dict[str, str], str]:
    """Keys of the details of a knob's value and the axes they give; and the key that is the value itself."""
    details = {other.detail_key: other.name for other in KNOBS if other.detail_of == knob.name}
    return details, next((key for key in details if key in knob.members), "")


def _read_schedule(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    known = list(schedule_names())
    aliases = [name for name, target in ALIASES.items() if target in known]
    if isinstance(raw, str) and raw in (*known, *aliases):
        return [ALIASES.get(raw, raw)]
    hint = did_you_mean(raw, [*known, *aliases]) if isinstance(raw, str) else ""
    reader.problem(keys, f"{quoted(raw)} is not a pipeline schedule{hint} - allowed: auto, {', '.join(known)}")
    return []


def _read_modules(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if not isinstance(raw, str):
        return _read_detailed(reader, spec, raw, keys)
    details, detailed = _details(spec.knob)
    if detailed and raw == detailed:
        reader.imply(details[detailed], [ALL])
    known, parts = dict(spec.choices), raw.split("+")
    if not set(parts) <= set(known):
        return _refuse(reader, spec, raw, keys)
    return [int(reduce(or_, [known[part] for part in parts]))]


def _read_layout(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if raw in ("even", "balanced"):
        return [EVEN if raw == "even" else BALANCED]
    if isinstance(raw, dict) and raw and set(raw) <= {"first", "last"}:
        bad = [key for key, n in raw.items() if isinstance(n, bool) or not isinstance(n, int) or n < 0]
        for key in bad:
            reader.problem((*keys, key), f"{quoted(raw[key])} is not a number of layers")
        return [] if bad else [Layout("ends", raw.get("first"), raw.get("last"))]
    if isinstance(raw, str) and (raw.startswith("first=") or set(raw) <= set("EtmL|,()* 0123456789")):
        try:
            return [Layout.parse(raw.replace(" ", ""))]
        except ValueError as error:
            reader.problem(keys, str(error))
            return []
    return _refuse(reader, spec, raw, keys)


# --- the axes ------------------------------------------------------------------------------------------------------

MANY = 10
"""Largest value from which on an axis' values are told as a range, not one by one."""


def _with_details(knob: Knob, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value that may also be given with its details."""
    details, detailed = _details(knob)
    if not details:
        return schema
    keys = [detailed, *(key for key in details if key != detailed)]
    properties: dict[str, Any] = {key: {} for key in keys}
    described = {"type": "object", "properties": properties, "required": [detailed], "additionalProperties": False}
    return {"anyOf": [schema, described]}


_ENDS = {
    "type": "object",
    "properties": {"first": {"type": "integer", "minimum": 0}, "last": {"type": "integer", "minimum": 0}},
    "minProperties": 1,
    "additionalProperties": False,
}


_READ: dict[Kind, Callable[[Reader, AxisSpec, Any, Keys], list[Item]]] = {
    Kind.DEGREE: _read_count,
    Kind.COUNT: _read_count,
    Kind.SWITCH: _read_switch,
    Kind.CHOICE: _read_choice,
    Kind.MODULES: _read_modules,
    Kind.SCHEDULE: _read_schedule,
    Kind.LAYOUT: _read_layout,
}


def _spec(knob: Knob) -> AxisSpec:
    """How an axis is read and described, by the kind of its knob."""
    words: tuple[str, ...] = ("auto",)
    choices = tuple((knob.members | dict(knob.aliases)).items())
    schema: dict[str, Any] = {"type": "string"}
    allowed = knob.allowed
    if knob.kind in (Kind.DEGREE, Kind.COUNT):
        words = ("auto",) if knob.limit is None else ("auto", "divisors", "powers_of_two")
        choices = (("all", ALL),) if knob.has_all else ()
        schema = {"type": "integer", "minimum": min(knob.least, ALL) if knob.has_all else knob.least}
        known = [f"whole numbers of at least {knob.least}", *(word for word, _ in choices), *words]
        if knob.most is not None:
            schema |= {"maximum": knob.most}
            every = [f"whole numbers from {knob.least} to {knob.most}"]
            known = [*(map(str, range(knob.least, knob.most + 1)) if knob.most < MANY else every), *words]
        schema = {"anyOf": [schema, {"const": "all"}]} if knob.has_all else schema
        allowed = join_words(known)
    elif knob.kind is Kind.SWITCH:
        schema, choices, allowed = {"type": "boolean"}, (), "true, false or auto"
    elif knob.kind is Kind.CHOICE:
        allowed = join_words([*(word for word, _ in choices), "auto"])
        schema = _with_details(knob, {"enum": [word for word, _ in choices]})
    elif knob.kind is Kind.MODULES:
        schema = _with_details(knob, schema)
    else:
        choices = ()
        schema = {"anyOf": [schema, _ENDS]} if knob.kind is Kind.LAYOUT else schema
    return AxisSpec(knob=knob, allowed=allowed, schema=schema, read=_READ[knob.kind], words=words, choices=choices)


AXIS: dict[str, AxisSpec] = {name: _spec(KNOB[name]) for name in AXES}
