"""The reference of the space file as a Markdown page, from its schema and the table of knobs: docs/space_file.md."""

from typing import Any

from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.declare.axes import AXIS
from primus_search.declare.space_schema import json_schema
from primus_search.space.context import DERIVED, FACTS
from primus_search.space.types import AXES
from primus_search.values.knobs import KNOB, Kind, Knob
from tools import rendered


def page() -> str:
    """The whole page."""
    schema = json_schema()
    inner = {name: _resolved(schema["properties"][name], schema) for name in ("workload", "search", "benchmark")}
    sections = [("Keys", _lines(schema, schema, ""))]
    sections += [(name, _lines(section, schema, f"{name}.")) for name, section in inner.items()]
    axes = [_axis(name) for name in AXES]
    return rendered("space_reference.md", sections=sections, axes=axes, derived=list(DERIVED), facts=list(FACTS))


def _lines(section: dict[str, Any], schema: dict[str, Any], prefix: str) -> list[str]:
    lines: list[str] = []
    required = section.get("required", [])
    for key, raw in section["properties"].items():
        one = _resolved(raw, schema)
        if prefix == "" and key == "space":
            continue
        if "properties" in one and prefix:
            for inner, detail in one["properties"].items():
                lines.append(_line(f"{prefix}{key}.{inner}", _resolved(detail, schema), schema, False))
            continue
        one |= {"description": raw.get("description") or one.get("description", "")}
        lines.append(_line(prefix + key, one, schema, key in required))
    return lines


def _line(key: str, one: dict[str, Any], schema: dict[str, Any], is_required: bool) -> str:
    default = "required" if is_required else _shown(one.get("default", ""))
    return f"| `{key}` | {_type(one, schema)} | {default} | {_cell(one.get('description', ''))} |"


def _type(one: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in one:
        return ", ".join(f"`{word}`" for word in one["enum"])
    if "anyOf" in one:
        kinds = [_type(_resolved(each, schema), schema) for each in one["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if one.get("type") == "array":
        return f"list of {_type(_resolved(one.get('items', {}), schema), schema) or 'values'}"
    bounds = [f"{sign} {one[word]:g}" for word, sign in _BOUNDS.items() if word in one and one[word] < LARGEST_WHOLE]
    return " ".join([str(one.get("type", "")), *bounds]).strip()


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _resolved(one: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with its reference followed."""
    if "$ref" in one:
        target: dict[str, Any] = schema["$defs"][one["$ref"].rsplit("/", 1)[1]]
        return target | {key: value for key, value in one.items() if key != "$ref"}
    return one


def _axis(name: str) -> tuple[str, ...]:
    """The cells of an axis."""
    knob, spec = KNOB[name], AXIS[name]
    summary = f"{_cell(knob.summary)}{' Changes the mathematics.' if knob.is_numeric else ''}"
    off, auto = _shown(knob.word(knob.off)), _auto(knob)
    return f"`{name}`", f"`{example(knob)}`", _printed(knob), _cell(spec.allowed), off, auto, summary


EXAMPLES = {Kind.SWITCH: "[true, false]", Kind.SCHEDULE: "[1f1b, zbv]", Kind.LAYOUT: "[even, {first: 6, last: 6}]"}


def example(knob: Knob) -> str:
    """Values of an axis as a space file writes them."""
    if knob.name == "recompute":
        return "[none, selective, {full: auto}]"
    if knob.kind in EXAMPLES:
        return EXAMPLES[knob.kind]
    if knob.has_words:
        return f"[{', '.join(list(knob.members)[:2])}]"
    return f"[{', '.join(str(number) for number in sorted({knob.least, 1, 2}))}]"


def _printed(knob: Knob) -> str:
    special = {"pp": "PP4x2", "schedule": "its name", "recompute": "full(2)", "sharding": "zero1"}
    if knob.name in special:
        return f"`{special[knob.name]}`"
    label = knob.label if isinstance(knob.label, str) else f"{knob.name}"
    label = {"micro_batch_size": "mbs2", "tp": "TP2"}.get(knob.name, label)
    return f"`{label.replace('{' + knob.name + '}', '2' if not knob.has_words else 'WORD')}`" if label else ""


def _auto(knob: Knob) -> str:
    if knob.auto is None:
        return "by the job"
    return ", ".join(_shown(knob.word(value)) for value in knob.auto)


def _shown(value: Any) -> str:
    if value == "" or value is None or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
