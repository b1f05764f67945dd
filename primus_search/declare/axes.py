"""The axes of a space file: what each may hold, how it is read, and how the published schema describes it.

An axis is a value, a list of values, or a word (`auto`; counts also know `divisors` and `powers_of_two`). Words are
resolved later, when model and clusters are known: reading yields `Word` items in their place.

    tp: auto        micro_batch_size: [1, 2, 4]        recompute: [none, selective, {full: [1, 2, all]}]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from primus_search.base.errors import did_you_mean
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.declare.file_problems import FileProblems
from primus_search.files.source import Keys, join_words, quoted
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
class Reader(FileProblems):
    """Reads the axes of one document; collects problems, and what one axis says about another."""

    implied: dict[str, list[Item]] = field(default_factory=dict)

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
        """One value or word; none after noting a problem."""
        if isinstance(raw, str) and raw in spec.words:
            return [Word(raw, self.document.where(keys))]
        if spec.knob.kind is Kind.LAYOUT:
            return self._layout(spec, raw, keys)
        details, detailed = _details(spec.knob)
        if isinstance(raw, dict) and detailed in raw and set(raw) <= set(details):
            for key in (detailed, *(key for key in details if key in raw and key != detailed)):
                self.imply(details[key], self.axis(AXIS[details[key]], raw[key], (*keys, key)))
            return [spec.knob.members[detailed]]
        value = spec.value(raw)
        if value is None:
            return self._refuse(spec, raw, keys)
        if detailed and raw == detailed and spec.knob.kind is Kind.MODULES:
            self.imply(details[detailed], [ALL])
        return [value]

    def _refuse(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        what, known, allowed = f"a value of {spec.knob.name}", [*spec.words, *spec.choices], spec.allowed
        if spec.knob.kind is Kind.SCHEDULE:
            names = schedule_names()
            known = [*names, *(name for name, target in ALIASES.items() if target in names)]
            what, allowed = "a pipeline schedule", f"auto, {', '.join(names)}"
        hint = did_you_mean(raw, known) if isinstance(raw, str) else ""
        self.problem(keys, f"{quoted(raw)} is not {what}{hint} - allowed: {allowed}")
        return []

    def _layout(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        if raw in ("even", "balanced"):
            return [EVEN if raw == "even" else BALANCED]
        if isinstance(raw, dict) and raw and set(raw) <= {"first", "last"}:
            bad = [key for key, n in raw.items() if isinstance(n, bool) or not isinstance(n, int) or n < 0]
            for key in bad:
                self.problem((*keys, key), f"{quoted(raw[key])} is not a number of layers")
            return [] if bad else [Layout("ends", raw.get("first"), raw.get("last"))]
        if isinstance(raw, str) and (raw.startswith("first=") or set(raw) <= set("EtmL|,()* 0123456789")):
            try:
                return [Layout.parse(raw.replace(" ", ""))]
            except ValueError as error:
                self.problem(keys, str(error))
                return []
        return self._refuse(spec, raw, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec:
    """One axis of a space file. `schema` is the JSON schema of one value; `allowed` says the same to a reader."""

    knob: Knob
    allowed: str
    schema: Mapping[str, Any]
    words: tuple[str, ...] = ("auto",)
    choices: Mapping[str, Any] = field(default_factory=dict)

    def json_schema(self) -> dict[str, Any]:
        """A value, a list of values, or a word."""
        one = {"anyOf": [{"enum": list(self.words)}, dict(self.schema)]}
        many = {"type": "array", "items": one, "minItems": 1}
        return {"description": f"{self.knob.summary} Allowed: {self.allowed}.", "anyOf": [*one["anyOf"], many]}

    def value(self, raw: Any) -> AxisValue | None:
        """The value that a plain value of the file stands for; None where it is none of this axis."""
        knob = self.knob
        if isinstance(raw, bool):
            return raw if knob.kind is Kind.SWITCH else None
        if isinstance(raw, str):
            name = ALIASES.get(raw, raw)
            if knob.kind is Kind.SCHEDULE:
                return name if name in schedule_names() else None
            parts = raw.split("+") if knob.kind is Kind.MODULES else [raw]
            known = [self.choices[part] for part in parts if part in self.choices]
            return int(reduce(or_, known)) if len(known) == len(parts) else None
        if not isinstance(raw, int) or knob.kind not in (Kind.DEGREE, Kind.COUNT):
            return None
        most = LARGEST_WHOLE if knob.most is None else knob.most
        return raw if knob.least <= raw <= most or (knob.has_all and raw == ALL) else None


def _details(knob: Knob) -> tuple[dict[str, str], str]:
    """Keys of the details of a knob's value and the axes they give; and the key that is the value itself."""
    details = {other.detail_key: other.name for other in KNOBS if other.detail_of == knob.name}
    return details, next((key for key in details if key in knob.members), "")


# --- the axes ------------------------------------------------------------------------------------------------------

MANY = 10
"""Largest value from which on an axis' values are told as a range, not one by one."""


_ENDS = {
    "type": "object",
    "properties": {"first": {"type": "integer", "minimum": 0}, "last": {"type": "integer", "minimum": 0}},
    "minProperties": 1,
    "additionalProperties": False,
}


def _spec(knob: Knob) -> AxisSpec:
    """How an axis is read and described, by the kind of its knob."""
    words: tuple[str, ...] = ("auto",)
    choices: Mapping[str, int] = knob.members | dict(knob.aliases)
    schema: dict[str, Any] = {"type": "string"}
    allowed = knob.allowed
    if knob.kind in (Kind.DEGREE, Kind.COUNT):
        words = ("auto", "divisors", "powers_of_two") if knob.limit else ("auto",)
        choices = {"all": ALL} if knob.has_all else {}
        schema = {"type": "integer", "minimum": min(knob.least, ALL) if knob.has_all else knob.least}
        known = [f"whole numbers of at least {knob.least}", *choices, *words]
        if knob.most is not None:
            schema |= {"maximum": knob.most}
            every = [f"whole numbers from {knob.least} to {knob.most}"]
            known = [*(map(str, range(knob.least, knob.most + 1)) if knob.most < MANY else every), *words]
        schema = {"anyOf": [schema, {"const": "all"}]} if knob.has_all else schema
        allowed = join_words(known)
    elif knob.kind is Kind.SWITCH:
        schema, allowed = {"type": "boolean"}, "true, false or auto"
    elif knob.kind is Kind.CHOICE:
        allowed = join_words([*choices, "auto"])
        schema = {"enum": [*choices]}
    elif knob.kind is Kind.LAYOUT:
        schema = {"anyOf": [schema, _ENDS]}
    details, detailed = _details(knob)
    if details:
        properties: dict[str, Any] = {key: {} for key in (detailed, *(key for key in details if key != detailed))}
        described = {"type": "object", "properties": properties, "required": [detailed], "additionalProperties": False}
        schema = {"anyOf": [schema, described]}
    return AxisSpec(knob=knob, allowed=allowed, schema=schema, words=words, choices=choices)


AXIS: dict[str, AxisSpec] = {name: _spec(KNOB[name]) for name in AXES}
