"""Lengths of documents as a space file gives them: one length, quantiles, a histogram, a named set, or a file.

document_length: 4000
document_length: {quantiles: {p10: 180, p50: 900, p90: 5000, p100: 32768}}
document_length: {histogram: {512: 40, 2048: 50, 16384: 10}}
document_length: lognormal_16k            # a set of spaces/keys/document_lengths.yaml
document_length: lengths.txt              # one a line; data.jsonl:KEY: a number, or a list of tokens; set.yaml
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import did_you_mean
from primus_search.base.guards.files import read_text
from primus_search.files.known_keys import key_table
from primus_search.files.source import read
from primus_search.values.lengths import Lengths

SETS = "document_lengths"
FORMS = "a number, {quantiles: {p50: 900, p100: 8192}}, {histogram: {512: 3, 2048: 1}}, a named set or a file"
MOST_BYTES = 64 * 1024 * 1024
KEY = "length"
"""Of a line of a JSON Lines file, where none is named."""


def lengths_of(given: Any, beside: Path | None) -> Lengths | None:
    """The distribution that a space file gives; None of a number, which is one length of all. Raises ValueError."""
    if isinstance(given, str):
        return _named(given, beside)
    if not isinstance(given, Mapping):
        return None
    form = next(iter(given)) if len(given) == 1 else ""
    values = given.get(form)
    if form not in _FORM or not isinstance(values, Mapping) or not values:
        raise ValueError(f"is {FORMS}")
    try:
        return _FORM[form]({_number(form, key): float(value) for key, value in values.items()})
    except TypeError:
        raise ValueError(f"{form} are numbers by numbers: {FORMS}") from None


def _number(form: str, key: Any) -> float:
    text = str(key).removeprefix("p") if form == "quantiles" else str(key)
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{form}: {key!r} is no {'percentile such as p50' if form == 'quantiles' else 'length'}"
        ) from None


def _of_quantiles(given: Mapping[float, float]) -> Lengths:
    lengths = [given[key] for key in sorted(given)]
    if len(given) < 2 or max(given) != 100.0 or min(given) < 0.0 or lengths != sorted(lengths) or lengths[0] < 1.0:
        raise ValueError("quantiles are at least two lengths that rise, the last one p100, the longest document")
    return Lengths.between({key / 100.0: value for key, value in given.items()})


def _of_histogram(given: Mapping[float, float]) -> Lengths:
    shares = np.array([given[key] for key in sorted(given)])
    return Lengths(tuple(sorted(given)), tuple((shares / shares.sum()).tolist()))


_FORM = {"quantiles": _of_quantiles, "histogram": _of_histogram}


def _named(text: str, beside: Path | None) -> Lengths:
    """The lengths of a named set or of a file."""
    sets = key_table(SETS)
    if text in sets:
        return _of_set(sets[text])
    name, _, key = text.partition(":")
    path = next((one for one in ((beside or Path()) / name, Path(name)) if one.is_file()), None)
    if path is None:
        raise ValueError(f"{text!r} is no set of lengths and no file{did_you_mean(text, sets)}; give {FORMS}")
    if path.suffix in (".yaml", ".yml"):
        return _of_set(read(path).data)
    lines = read_text(path, most=MOST_BYTES).splitlines()
    found = [length for number, line in enumerate(lines, 1) for length in _of_line(line, key, f"{name}:{number}")]
    if not found:
        raise ValueError(f"{name} has no lengths; it holds one a line, or JSON objects with the key {key or KEY}")
    return Lengths.of(np.array(found))


def _of_set(data: Any) -> Lengths:
    if not isinstance(data, Mapping) or not data.get("source"):
        raise ValueError("a set of lengths has quantiles or a histogram, and the source and date of its numbers")
    found = lengths_of({form: data[form] for form in _FORM if form in data}, None)
    assert found is not None
    return found


def _of_line(line: str, key: str, where: str) -> Iterator[float]:
    """The length on one line, if it is not empty."""
    if not line.strip():
        return
    try:
        value: Any = json.loads(line)
        value = value.get(key or KEY) if isinstance(value, dict) else value
        yield max(float(len(value) if isinstance(value, list) else value), 1.0)
    except (ValueError, TypeError):
        raise ValueError(
            f"{where}: {line.strip()[:40]!r} has no length; a number, or {key or KEY!r} of an object"
        ) from None
