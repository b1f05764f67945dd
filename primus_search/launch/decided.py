"""Numbers of a software stack that settings of a job decide, read from a launch file and written into one.

    decided_numbers(megatron, row, {"bf16": True})      # {"gradient_bytes": 4.0, ...}

A stack file has these numbers as the runs had them that it was fitted to. A contract lists the settings behind each
(`Framework.decides`), so that a file is priced as its own settings make them, and a candidate's file sets them.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from primus_search.launch.contract import number_in, same
from primus_search.values.machine.framework import Decision, Framework, Settings
from primus_search.values.machine.stack import Stack, number_of


def decided_numbers(
    framework: Framework, row: Mapping[str, Any], given: Settings, *, is_whole: bool = True
) -> dict[str, Any]:
    """Field of the stack -> its value in a job with these settings.

    is_whole  what they leave out is at its default; otherwise it is not known, and decides nothing
    """
    found: dict[str, Any] = {}
    job = {**framework.defaults, **given}
    for one in _bearing(framework, row):
        is_set = _is_set(one, job)
        if not is_whole and not {*one.formats, one.key}.union(one.settings, *one.reads) & given.keys():
            continue
        number = number_in(given, (one.key,), float) if one.key else None
        if str(given.get(one.key)) in ("0", "0.0") or (number is not None and number < 0):
            raise ValueError(f"{one.key}: {given[one.key]} is out of range")
        if number is not None:
            found |= {one.number: number} | ({one.per_rank: 0.0} if one.per_rank else {})
        elif is_set and one.formats:
            found[one.number] = fmean(_format_bytes(key, job.get(key)) for key in one.formats)
        elif is_set and one.value is not None:
            found[one.number] = one.value
        elif one.otherwise is not None:
            found.setdefault(one.number, one.otherwise)
    return found


def _format_bytes(key: str, word: Any) -> float:
    """Bytes of a number format by its name: `fp32`, `bfloat16`, `fp8`. Raises ValueError for a word that names none."""
    if bits := re.search(r"\d+", str(word)):
        return int(bits[0]) / 8
    raise ValueError(f"{key}: {str(word)[:80]!r} is no number format")


def decided_keys(framework: Framework, row: Mapping[str, Any], given: Settings) -> frozenset[str]:
    """Keys whose values, given or by default, are priced by the numbers that they decide."""
    found: set[str] = set()
    for one in _bearing(framework, row):
        for key, value in (pair for way in (one.settings, *one.reads) for pair in way.items()):
            now, usual = given.get(key, framework.defaults.get(key)), framework.defaults.get(key)
            is_read = one.otherwise is not None or same(now, value) or (same(now, usual) and not same(usual, value))
            found |= {key} if is_read and not one.is_part else set()
        found |= {one.key, *(one.formats if _is_set(one, {**framework.defaults, **given}) else ())} - {""}
    return frozenset(found)


def _is_set(one: Decision, job: Settings) -> bool:
    """Whether a job has all settings of one of the ways in which a file says a decision."""
    ways = (way.items() for way in (one.settings, *one.reads) if way)
    return any(all(same(job.get(key), value) for key, value in way) for way in ways)


def deciding_settings(framework: Framework, stack: Stack, row: Mapping[str, Any], *, ranks: int) -> dict[str, Any]:
    """The settings under which a job of so many data-parallel ranks has the numbers of its stack, where a file has to
    set them."""
    found: dict[str, Any] = {}
    for one in _bearing(framework, row):
        number = number_of(stack, one.number)
        if one.number in framework.fixes:
            continue  # no setting of a job that starts changes it
        found |= one.settings if one.value is not None and number == one.value else {}
        priced = _priced(stack, one, ranks)
        grew = max(one.absent, one.grows * ranks) if one.grows else priced
        if one.key and (number not in (one.absent, one.otherwise) or priced != grew):
            found |= {**one.settings, one.key: int(priced)}
    return found


def _priced(stack: Stack, one: Decision, ranks: int) -> Any:
    """The number with which a job of so many data-parallel ranks is priced."""
    number = number_of(stack, one.number)
    return max(number, number_of(stack, one.per_rank) * ranks) if one.per_rank else number


def had_otherwise(
    framework: Framework, stack: Stack, row: Mapping[str, Any], written: Settings, *, ranks: int
) -> list[str]:
    """Numbers of a stack that a job with the settings written for it has otherwise, for a person."""
    priced = {one.number: _priced(stack, one, ranks) for one in _bearing(framework, row)}
    found = {**decided_numbers(framework, row, written), **framework.fixes}
    pairs = ((name, found[name], priced[name]) for name in sorted(priced.keys() & found.keys()))
    return [f"{name}: priced with {own}, {framework.title} has {value}" for name, value, own in pairs if own != value]


def resting_settings(framework: Framework, row: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the settings that decide numbers of a job, for a file that is laid over settings of others."""
    keys = {key for one in _bearing(framework, row) for key in one.settings}
    return {key: value for key, value in framework.defaults.items() if key in keys}


def _bearing(framework: Framework, row: Mapping[str, Any]) -> Iterator[Decision]:
    """The decisions that bear on a candidate."""
    for one in framework.decides:
        bears = all(any(fnmatchcase(str(row[axis]), word) for word in words) for axis, words in one.where.items())
        if bears:
            yield one
