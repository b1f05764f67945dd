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


DERIVED = re.compile(r"DP\d+")
"""Words of labels that follow from the others."""


def parts_of(text: str) -> list[str]:
    """The words of a text: parted by commas or blanks outside brackets; `no deepep` is one."""
    parts, depth, start = list[str](), 0, 0
    for at, character in enumerate(f"{text},"):
        depth += (character in "[{(") - (character in "]})")
        if depth == 0 and (character == "," or character.isspace()):
            parts.append(text[start:at])
            start = at + 1
    found = list[str]()
    for part in filter(None, parts):
        if found and (found[-1] == "no" or part[0] in "({"):
            found[-1] += f" {part}"  # `no deepep`, `{first: 2, last: 2}`
        else:
            found.append(part)
    return found


def pairs_of(text: str) -> list[tuple[str, str]]:
    """Axes with their values as text, of words as tables print them and as users write them, in any mixture.

    >>> pairs_of("TP1 PP2x8 DP64, mbs=4 recompute=full(4)")
    [('tp', '1'), ('pp', '2'), ('vpp', '8'), ('micro_batch_size', '4'), ('recompute', '{full: 4}')]

    A word that is neither is returned with an empty value.
    """
    found: list[tuple[str, str]] = []
    for part in parts_of(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = axis_name(name)
        values = read_token(value if equals else part) if not DERIVED.fullmatch(part) else {}
        if values is not None and (not equals or name in values):
            found += _spelled(values)
        else:
            found.append((name, value) if equals else (part, ""))
    return found


def _spelled(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Values of axes as a space file takes them, a detail under its key: `{full: 4}`."""
    details = {KNOB[name].detail_of: value for name, value in values.items() if KNOB[name].detail_key}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [
        (name, f"{{{text}: {details[name]}}}" if details.get(name) else text)
        for name, text in texts.items()
        if not KNOB[name].detail_key
    ]


def _words(knob: Knob, row: dict[str, Any]) -> list[str]:
    """What labels and comparisons print of a knob."""
    words = [knob.told(row)] if knob.plain or knob.kind is Kind.LAYOUT else []
    return [*knob.label_of(row).split(" "), *words]


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
