"""Words of tables read back: `mbs2`, `PP4x2`, `sf3`, `zero1`, `full(2)` as values of axes. The inverse of labels.

>>> read_token("PP4x2"), read_token("sf3"), axis_name("mbs")
({'pp': 4, 'vpp': 2}, {'sync_free_stage': 3}, 'micro_batch_size')
"""

import re
from collections.abc import Iterator
from typing import Any

from primus_search.schedule import names as schedule_names
from primus_search.values.knobs import KNOB, KNOBS, Kind, Knob

NICKNAMES = {knob.nickname: knob.name for knob in KNOBS if knob.nickname}
"""Names that labels print for axes."""

PLAIN: dict[str, Any] = {knob.name: knob.word(knob.default) for knob in KNOBS} | {"pp": 2}
"""A row whose labels print nothing but the pipeline, without which no schedule is printed."""


def axis_name(name: str) -> str:
    """The axis that a printed name stands for; any other name as it is."""
    return NICKNAMES.get(name, name)


def read_token(word: str) -> dict[str, Any] | None:
    """The axes, with values as space files write them, that a word of a label stands for; None for another word."""
    for knob in KNOBS:
        for values in _tried(knob, word):
            if word in _words(knob, PLAIN | values):
                return values
    return None


def _words(knob: Knob, row: dict[str, Any]) -> list[str]:
    """What labels and comparisons print of a knob."""
    told = [knob.told(row)] if knob.plain or knob.kind is Kind.LAYOUT else []
    return [*knob.label_of(row).split(" "), *told]


def _tried(knob: Knob, word: str) -> Iterator[dict[str, Any]]:
    """Values of a knob, with details that its label prints, that a word may stand for."""
    numbers = [int(digits) for digits in re.findall(r"\d{1,6}", word)]
    tail = word.partition(":")[2]
    if knob.kind in (Kind.DEGREE, Kind.COUNT):
        yield from ({knob.name: number} for number in numbers[:1])
        if knob.name == "pp" and len(numbers) > 1:
            yield {"pp": numbers[0], "vpp": numbers[1]}
    elif knob.kind is Kind.SWITCH:
        yield from ({knob.name: value} for value in (True, False))
    elif knob.kind is Kind.SCHEDULE:
        yield from ({knob.name: name} for name in schedule_names() if name == word)
    elif knob.kind is Kind.LAYOUT:
        yield from ({knob.name: value} for value in (tail,) if value)
    else:
        modules = [tail] if "+" in tail and set(tail.split("+")) <= set(knob.members) else []
        yield from ({knob.name: value} for value in (*knob.members, *modules))
        if knob.name == "recompute":
            yield from ({"recompute": "full", "recompute_num_layers": number} for number in numbers)


def meaning(values: dict[str, Any]) -> list[str]:
    """One line per axis of what `read_token` found: its value and what the axis is."""
    return [f"{name}={value}: {KNOB[name].summary}" for name, value in values.items()]
