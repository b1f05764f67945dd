"""What the words of tables mean: tokens of labels by the axes they stand for, and the terms of columns and verdicts."""

import re
from collections.abc import Mapping
from pathlib import Path

from primus_search.files.source import read
from primus_search.schedule import algorithm
from primus_search.schedule import names as schedule_names
from primus_search.space.tokens import NICKNAMES, axis_name, meaning, read_token
from primus_search.values.knobs import KNOB, KNOBS, Kind, Knob

TERMS: Mapping[str, str] = read(Path(__file__).with_name("terms.yaml")).data  # words that are no value of an axis


def explain_word(word: str) -> list[str]:
    """Lines that say what a word means; empty for an unknown one."""
    pair = re.fullmatch(r"([ptmr])/([ptmr])", word)
    if pair:
        return [f"time {TERMS[pair[1]]}", f"memory {TERMS[pair[2]]}"]
    term = re.sub(r"^DP\d+$", "DPn", word, flags=re.IGNORECASE).lower()
    found = [TERMS[name] for name in TERMS if name.lower() in (term, term.replace("_", " "))]
    name, equals, value = word.partition("=")
    if equals and value and axis_name(name) in KNOB:
        return meaning({axis_name(name): value})
    values = read_token(word) if word else None
    return [*(meaning(values) if values else []), *found]


def every_token() -> list[tuple[str, str]]:
    """Examples of the tokens that labels print, with what they mean."""
    tokens = ["TP2", "PP4x2", "mbs2", "zero1", "fsdp2", "full", "full(2)", "recompute:selective", "layout:balanced"]
    tokens += list(schedule_names())
    for knob in KNOBS:
        if isinstance(knob.label, str) and knob.label:
            tokens += [knob.label.format_map({knob.name: word}) for word in _examples(knob)]
        tokens += [knob.plain] if knob.plain else []
    found = []
    for token in dict.fromkeys(tokens):
        values = read_token(token)
        if values:
            summary = algorithm(token).summary if "schedule" in values else "; ".join(meaning(values))
            found.append((token, summary))
    return found


def _examples(knob: Knob) -> list[str]:
    """Values that labels print of a knob, all of its words or one number."""
    if knob.words is not None:
        return [word for word, value in knob.members.items() if value != knob.default]
    return ["2"] if knob.kind in (Kind.DEGREE, Kind.COUNT) else [str(not knob.default)]


def nicknames() -> list[str]:
    """Short names that are accepted for axes."""
    return [f"{short} = {name}" for short, name in NICKNAMES.items()]
