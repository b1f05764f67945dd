"""Settings over a recipe of Megatron-Bridge as its command line has them, in Hydra's grammar.

overrides_of(["model.tensor_model_parallel_size=2", "peft=null"])   {"tensor_model_parallel_size": 2, "dim": None}
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from primus_search.base.errors import did_you_mean
from primus_search.files.argument_tables import arguments
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table
from primus_search.launch.adapters import keys_of
from primus_search.launch.contract import is_off
from primus_search.launch.read.launcher_documents import written
from primus_search.launch.read.recipes import COMMANDS, NO_RECIPE, OF_OVERLAPS, Recipe
from primus_search.values.machine.framework import NOTHING, Settings

_OVERRIDE = re.compile(r"\A\+{0,2}~?([a-z]\w*+)\.(?:\w+\.)*+(\w+)=(.*)", re.DOTALL)
_SECTION = re.compile(r"\A(?:\+{0,2}(?=\w+=)|~)([a-z]\w*+)=?(.*)", re.DOTALL)
QUOTES = "'\""
"""Around a value in Hydra's grammar."""
Laid = tuple[Mapping[str, tuple[str, ...]], Settings]
"""Sections with those that they overwrite, and fields that nothing reads with those that decide."""


def overrides_of(words: Sequence[str], recipe: Recipe = NO_RECIPE, unread: Settings = NOTHING) -> dict[str, Any]:
    """The settings of `section.key=value` and of whole sections, by their last names.

    recipe: the one that they stand over; unread: fields that nothing reads, and those that decide
    """
    _refuse_fields_of_a_name(words, recipe)
    laid = _overwriting(words, recipe.settings, unread)
    found = (one for word in words if (one := _OVERRIDE.fullmatch(word)) and not _takes_place_of(laid, one[1], one[2]))
    given = [(one[1], one[2], written(one[3].strip(QUOTES).removeprefix("torch."))) for one in found]
    single = {_setting(section, name): value for section, name, value in given}
    if said := {section: value for section, name, value in given if name == EITHER}:
        on = [
            value
            for value in (*said.values(), *([recipe.settings.get(EITHER)] if len(said) == 1 else ()))
            if not is_off(value)
        ]
        single[EITHER] = on[0] if on else single[EITHER]
    return _of_sections(words) | single


EITHER = "use_distributed_optimizer"
"""What `ddp` and `optimizer` both have, and is on where one of them has it on (training/config.py:1940 of v0.6.0)."""


def idle_in(words: Sequence[str], recipe: Recipe = NO_RECIPE, unread: Settings = NOTHING) -> tuple[str, ...]:
    """Notes on those of `section.key=value` that fields of another section overwrite."""
    found, laid = filter(None, map(_OVERRIDE.fullmatch, words)), _overwriting(words, recipe.settings, unread)
    idle = [(f"{one[1]}.{one[2]}", by) for one in found if (by := _takes_place_of(laid, one[1], one[2]))]
    said = {one[1]: one[3] for one in filter(None, map(_OVERRIDE.fullmatch, words)) if one[2] == EITHER}
    other = {"ddp": "optimizer", "optimizer": "ddp"}
    if len(said) == 1 and not is_off(recipe.settings.get(EITHER)):
        idle += [(f"{one}.{EITHER}", f"{other.get(one)}.{EITHER}") for one, value in said.items() if is_off(value)]
    return tuple(f"{one}: no effect; projected as {by} has it" for one, by in idle)


def _overwriting(words: Sequence[str], recipe: Settings, unread: Settings) -> Laid:
    """Sections whose fields are laid over those of others once a command is read, and those others; `unread` beside.

    Source: training/mixed_precision.py of v0.6.0, line 138; training/comm_overlap.py, 599 to 632.
    """
    laid = {PRECISION: ("model", "optimizer", "ddp")}
    if any(one[1] == OVERLAPS for one in filter(None, map(_SECTION.fullmatch, words))):
        return laid, unread
    if recipe and OF_OVERLAPS not in recipe and (given := [one for one in words if one.startswith(f"{OVERLAPS}.")]):
        raise ValueError(f"{given[0]}: the recipe has no {OVERLAPS}, and Megatron-Bridge stops at a field of it")
    buffers = ("optimizer", "ddp") if recipe.get("use_distributed_optimizer") else ()
    return laid | ({OVERLAPS: ("model", *buffers)} if OF_OVERLAPS in recipe else {}), unread


def _takes_place_of(laid: Laid, section: str, name: str) -> str:
    """The field that decides one of another section; empty where none does."""
    fields = (f"{by}.{name}" for by, others in laid[0].items() if section in others)
    own: str = {**key_table(COMMANDS)["unread"], **laid[1]}.get(f"{section}.{name}", "")
    return own or next((one for one in fields if one in arguments("nemo")), "")


def _refuse_fields_of_a_name(words: Sequence[str], recipe: Recipe) -> None:
    """Raises ValueError for a field of `mixed_precision` where that is a name: of the recipe, or of an earlier word."""
    is_name = recipe.names_precision
    for word in words:
        if (whole := _SECTION.fullmatch(word)) and whole[1] == PRECISION:
            is_name = whole[2][:1] != "{" and not whole[2].endswith(CALLED)
        elif is_name and (field := _OVERRIDE.fullmatch(word)) and field[1] == PRECISION:
            raise ValueError(f"{word}: {PRECISION} is a name here, and Megatron-Bridge stops at a field of it")


OVERLAPS, PRECISION, CALLED = "comm_overlap", "mixed_precision", "()"
"""Sections, and how the precision ends that a function of that name makes."""


def _precision(name: str) -> dict[str, Any]:
    """The settings of `mixed_precision=`, a name or fields; ValueError for a name that is not read."""
    if name[:1] == "{":
        fields = _FIELD.findall(re.sub(r"\{[^{}]*\}", "", name[1:-1]))
        return {**UNSCALED, **{key: written(value) for key, value in fields}}
    known, name = key_table(COMMANDS)[PRECISION], name.removesuffix(CALLED)
    if name not in known:
        raise ValueError(f"mixed_precision={name}: a precision that is not read{did_you_mean(name, known)}")
    own = {key: value for key, value in UNSCALED.items() if key not in GATHERED}
    return {**own, **load_framework("nemo").spellings["fp8"].values[known[name]]}


GATHERED = ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
"""What the name of a precision has as its format has it."""
UNSCALED: Settings = {
    **dict.fromkeys(("fp8_format", "fp4_format", "fp8_recipe", "fp4_recipe")),
    **dict.fromkeys(("fp8_dot_product_attention", *GATHERED), False),
}
"""Fields of `MixedPrecisionConfig`, which takes the place of a recipe's."""
_FIELD = re.compile(r"(?<!\w)(\w+):([^,{}]+)")
"""A field of a mapping in Hydra's grammar that is none itself."""


def _of_sections(words: Sequence[str]) -> dict[str, Any]:
    """The settings of `mixed_precision=`, of `peft=null` (no adapters) and of `comm_overlap=null` (buckets of `ddp`);
    ValueError for other whole sections."""
    known, gone = arguments("nemo"), {"peft": keys_of(load_framework("nemo")).rank[0], "comm_overlap": "bucket_size"}
    sections = {name.partition(".")[0] for name in known}
    found = {one[1]: one[2] or "null" for word in words if (one := _SECTION.fullmatch(word)) and one[1] in sections}
    precision, plain = found.pop(PRECISION, ""), dict[str, Any]()
    for section, value in found.items():
        if section in known and section != "peft":  # no section
            plain[section] = written(value)
        elif section not in gone or written(value) is not None:
            raise ValueError(f"{section}={value[:80]}: sections are not read as a whole; set {section}.NAME=VALUE")
    without = {key: None for section, key in gone.items() if section in found}
    return plain | without | (_precision(precision) if precision else {})


def _setting(section: str, name: str) -> str:
    """A setting as the table of recipes has it: by its last name, but those of adapters."""
    whole = f"{section}.{name}"
    return whole if whole in keys_of(load_framework("nemo")).read else name
