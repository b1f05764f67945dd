"""Typed values as plain JSON values and back, by their types; where two plain values differ.

to_plain(accelerator) -> {"gemm": {"tile_overhead": 0.1, ...}, ...}
from_plain(Accelerator, plain)                       the accelerator again
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import core_schema

from primus_search.base.guards.values import LARGEST
from primus_search.values import model
from primus_search.values.machine.stack import MeasuredSwitches
from primus_search.values.model import Mixer

Value = TypeVar("Value")
Plain = Any
"""What JSON can hold: mappings with text keys, lists, text, numbers, true, false and null."""


_adapters: dict[type, TypeAdapter[Any]] = {}


def _mixer(plain: Plain) -> Any:
    """A mixer from its plain form, whose `kind` names its class."""
    found = vars(model).get(str(plain.get("kind"))) if isinstance(plain, dict) else None
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ValueError(f"expected a mapping whose kind is a mixer, got {plain!r}")
    return from_plain(found, {key: value for key, value in plain.items() if key != "kind"})


def _mixer_schema(source: type, handler: Any) -> core_schema.CoreSchema:
    """How mixers, which are a contract, are written and read: fields beside the name of their class, as dataclasses."""
    if source is not Mixer:
        schema: core_schema.CoreSchema = handler(source)
        return schema
    return core_schema.union_schema(
        [core_schema.is_instance_schema(source), core_schema.no_info_plain_validator_function(_mixer)],
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda part: {"kind": type(part).__name__, **to_plain(part)}
        ),
    )


Mixer.__get_pydantic_core_schema__ = staticmethod(_mixer_schema)  # type: ignore[attr-defined]


def _unwritten(source: type, handler: Any) -> core_schema.CoreSchema:
    """How evidence that a stack carries is written: not at all, it is loaded again."""
    return core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(lambda value: None))


MeasuredSwitches.__get_pydantic_core_schema__ = staticmethod(_unwritten)  # type: ignore[attr-defined]


def _adapter(kind: type) -> TypeAdapter[Any]:
    """The adapter of a type, built once."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_plain(value: Any, *, is_whole: bool = False) -> Plain:
    """The value as JSON has it; fields that no comparison reads (sources) are left out unless it is to be whole."""
    plain = _adapter(type(value)).dump_python(value, mode="json")
    return _compared(value, plain) if is_dataclass(value) and not is_whole else plain


def from_plain(kind: type[Value], plain: Plain) -> Value:
    """The value of a type from its plain form. Raises ValueError where the type refuses it, with the first reason."""
    try:
        found: Value = _adapter(kind).validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise ValueError(f"{kind.__name__}: {where}: {first['msg']}") from None
    return found


# --- shapes ----------------------------------------------------------------------------------------------------------

WHOLE = Annotated[int, Field(strict=True, ge=0)]
NUMBER = Annotated[float, Field(strict=True, allow_inf_nan=False)]
FIGURE = Annotated[float, Field(strict=True, ge=0.0, le=LARGEST)]
SWITCH = Annotated[bool, Field(strict=True)]


def mapping_of(texts: str, wholes: str = "", numbers: str = "", **others: Any) -> Any:
    """The type of a mapping that has these keys, whatever else it has."""
    kinds: dict[str, Any] = dict.fromkeys(texts.split(), str) | others
    kinds |= dict.fromkeys(wholes.split(), WHOLE) | dict.fromkeys(numbers.split(), NUMBER)
    return create_model("_Mapping", __config__=ConfigDict(defer_build=True), **kinds)


_WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "string_type": "is not a text",
    "bool_type": "is not true or false",
    "list_type": "is not a list",
    **dict.fromkeys(("model_type", "dict_type"), "is not a mapping"),
    **dict.fromkeys(("int_type", "greater_than_equal"), "is not a whole number of at least 0"),
    **dict.fromkeys(("float_type", "finite_number"), "is not a finite number"),
}


def problems_of(plain: Plain, kind: Any, where: str = "$") -> Iterator[tuple[str, str]]:
    """What a plain value lacks of a type: (key, what is wrong)."""
    try:
        _adapter(kind).validate_python(plain)
    except ValidationError as error:
        for one in error.errors():
            place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in one["loc"])
            yield f"{where}{place}", f"{_WORDS.get(one['type'], one['msg'])}; run the search again"


def _compared(value: Any, plain: Mapping[str, Any]) -> Plain:
    """The plain form of a dataclass without fields that no comparison reads, at any depth."""
    return dict(_parts(value, plain))


def _parts(value: Any, plain: Mapping[str, Any]) -> Iterator[tuple[str, Plain]]:
    for field in fields(value):
        if field.compare and field.name in plain:
            inner = value.__getattribute__(field.name)
            own = plain[field.name]
            is_mixer = isinstance(own, dict) and own.get("kind") == type(inner).__name__  # complete, and keeps its kind
            yield field.name, _compared(inner, own) if is_dataclass(inner) and not is_mixer else own


# --- differences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value that differs: where (`gemm.tile_overhead`), and both values; None where one side lacks it."""

    path: tuple[str, ...]
    before: Plain
    after: Plain

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def __str__(self) -> str:
        return f"{self.name} {short_text(self.before)} -> {short_text(self.after)}".lstrip()


def differences(before: Plain, after: Plain, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every leaf in which two plain values differ, in order of their keys; lists count as one leaf."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key), after.get(key), (*path, key))
    elif before != after:
        yield Leaf(path=path, before=before, after=after)


def short_text(value: Plain) -> str:
    """A value as one line of a report has room for."""
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 48 else f"{text[:45]}..."


def digest(plain: Plain) -> str:
    """A short hash of a plain value; equal values hash alike whatever the order of their keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
