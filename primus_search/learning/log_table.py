"""Tables of `logs/formats.yaml`: which texts of a line are facts, a step or a peak of memory, in all text logs alike.

facts   until the first step. marks: texts that a line must hold. pattern: named groups are facts under their names;
        else the first group is a name, below `prefix`, and the next one its value. means: facts of any match
steps   patterns of their own, in any order in the line: iteration, s or ms, rate, batch, length. Without `is_stamped`
        seconds are the printed ones; with it those between the time stamps of two lines, where both have one.
        samples: per second. Lines of an `is_preferred` row are taken alone where there are some
peaks   of a memory counter: its unit, and its kind where the pattern's first group does not name it
run     facts of the reading, the first that is printed whole; a*b: the product of two
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from primus_search.base.guards.values import finite_number
from primus_search.base.units import SUFFIXES
from primus_search.learning.conclusion import conclude, product
from primus_search.learning.reading import LogReading, MemoryKind, StepLine
from primus_search.learning.transcript import PREFERRED, Transcript, observe_dotted, observe_flags

KINDS = {
    "allocated": MemoryKind.ALLOCATED,
    "reserved": MemoryKind.RESERVED,
    "cached": MemoryKind.RESERVED,
    "device": MemoryKind.DEVICE,
    "program": MemoryKind.PROGRAM,
}
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3,6})")
_SHORT_STAMP = re.compile(r"\b[IWE](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})\b")
LEAP_YEAR = 2024
"""Short stamps have no year; any leap year serves for differences."""


def moment(line: str) -> datetime | None:
    """The time stamp of a line where it has fractions of a second."""
    found, short = _STAMP.search(line), _SHORT_STAMP.search(line)
    try:
        if found:
            return datetime.fromisoformat(f"{found[1]}T{found[2]}.{found[3].ljust(6, '0')}")
        return datetime.fromisoformat(f"{LEAP_YEAR}-{short[1]}-{short[2]}T{short[3]}.{short[4]}") if short else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRow:
    """One row of a format: lines that hold all marks, and what is looked for in them."""

    marks: tuple[str, ...]
    patterns: Mapping[str, re.Pattern[str]]
    prefix: str = ""
    means: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    unit: str = ""
    is_first: bool = False
    is_stamped: bool = False
    is_preferred: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "LineRow":
        """A row as the file has it."""
        marks = [row["mark"]] if isinstance(row["mark"], str) else row["mark"]
        patterns = {name: re.compile(text) for name, text in row.items() if name in PATTERNS}
        own = {name: value for name, value in row.items() if name not in ("mark", *PATTERNS)}
        return cls(marks=tuple(marks), patterns=patterns, **own)

    def matches(self, line: str) -> Iterator[re.Match[str]]:
        """Every place of its one pattern in a line that holds the marks."""
        if all(mark in line for mark in self.marks):
            yield from self.patterns["pattern"].finditer(line)

    def numbers(self, line: str) -> dict[str, float]:
        """What its patterns find in a line that holds the marks; empty where it states no step or no time of it."""
        if not all(mark in line for mark in self.marks):
            return {}
        found = {name: match for name, pattern in self.patterns.items() if (match := pattern.search(line))}
        timed = [name for name in ("s", "ms") if name in self.patterns] or ["rate", "samples"]
        if "iteration" not in found or not any(name in found for name in timed):
            return {}
        read = {name: finite_number(_value(match.groups()).replace(",", "")) for name, match in found.items()}
        known = {name: number for name, number in read.items() if number is not None}
        return known if len(known) == len(read) else {}


LINES = ("facts", "steps", "peaks")
PATTERNS = ("pattern", "iteration", "s", "ms", "rate", "batch", "length", "samples", "weights")


def _value(groups: Sequence[str | None]) -> str:
    return next((text for text in groups if text is not None), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """One format of logs.

    summary    for people                      module    of `logs/`, for what no row can say
    marks      texts that name it; one of each group occurs in every log of this format; none: no text log
    rank       of several formats whose marks occur, the one of highest rank reads the file
    contract   whose contract reads its settings
    is_late    facts stand behind the first step as well
    """

    name: str
    summary: str
    facts: tuple[LineRow, ...]
    steps: tuple[LineRow, ...]
    peaks: tuple[LineRow, ...]
    module: str = ""
    marks: Sequence[Sequence[str]] = ()
    rank: int = 0
    contract: str = "megatron"
    reads: Sequence[str] = ()
    run: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Sequence[str] = ()
    model: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[Mapping[str, str]] = ()
    is_late: bool = False

    @classmethod
    def of(cls, name: str, every: Mapping[str, Mapping[str, Any]]) -> "LogTable":
        """The table of a format of the file."""
        row = {"also": "", **every[name]}
        both = (row, every.get(row.pop("also"), {}))
        lines = {part: tuple(LineRow.of(one) for of in both for one in of.get(part, ())) for part in LINES}
        return cls(name=name, **row | lines)

    def observe(self, seen: Transcript, line: str) -> None:
        """One line."""
        if self.is_late or not seen.steps:
            if "dotted" in self.reads:
                observe_dotted(seen, line)
            if "flags" in self.reads:
                observe_flags(seen, line)
            for row in self.facts:
                _observe_facts(seen, row, line)
        for row in self.peaks:
            for found in row.matches(line):
                kind, size = (row.kind, found[1]) if row.kind else (found[1], found[2])
                seen.peak(KINDS[kind], (finite_number(size) or 0.0) * SUFFIXES[row.unit][1])
        for row in self.steps:
            if (row.is_preferred or PREFERRED not in seen.scratch) and (numbers := row.numbers(line)):
                _add_step(seen, row, line, numbers)
                return

    def fields(self, seen: Transcript) -> dict[str, Any]:
        """Whole numbers of the reading and the model's name, as the facts have them."""
        named = seen.text(*self.model)
        return {"model": {"model_name": named} if named else {}} | {
            name: next((value for one in words if (value := product(*map(seen.whole, one.split("*"))))), None)
            for name, words in self.run.items()
        }

    def conclude_run(self, seen: Transcript) -> LogReading:
        """The reading of a format without a hook."""
        named = {"device": device} if (device := seen.text("device")) else {}
        return conclude(seen, self.name, self.fields(seen) | named, settings=self.settings)


def _observe_facts(seen: Transcript, row: LineRow, line: str) -> None:
    for found in row.matches(line):
        named = {name: text for name, text in found.groupdict().items() if text is not None}
        if not named and found.groups():
            named = {row.prefix + found[1]: _value(found.groups()[1:]).strip()}
        seen.facts.update({**named, **row.means, **(seen.facts if row.is_first else {})})


def _add_step(seen: Transcript, row: LineRow, line: str, numbers: Mapping[str, float]) -> None:
    """The step line of a row's numbers. Lines that count samples give seconds of one, for want of a printed time."""
    iteration = int(numbers["iteration"])
    seconds, span = numbers.get("s", numbers.get("ms", 0.0) * 1e-3), _span(seen, iteration)
    if row.is_stamped:
        stamp = moment(line)
        span, since = seen.since_last(iteration, stamp)
        if "samples" in numbers:
            if timed := seconds or since:
                seen.scratch.setdefault("batches", []).append(timed * numbers["samples"])
            seconds = seconds or 1.0 / max(numbers["samples"], 1e-9)
        elif stamp is not None:
            seconds = since or 0.0
    shape = [int(numbers[name]) if name in numbers else None for name in ("batch", "length") if name in row.patterns]
    seen.add_step(
        StepLine(iteration=iteration, seconds=seconds, span=span, shape=tuple(shape), rate=numbers.get("rate"))
    )
    seen.scratch["numbers"] = numbers
    if row.is_preferred:
        seen.scratch.setdefault(PREFERRED, []).append(seen.steps[-1])


def _span(seen: Transcript, iteration: int) -> int:
    """Iterations that a line covers: since the line before, at most the printed logging interval."""
    interval = seen.whole("log_interval", "flag:log_interval") or 1
    last = seen.steps[-1].iteration if seen.steps else 0
    return max(1, min(interval, iteration - last)) if iteration > last else interval
