"""`Transcript`: what has been collected from the lines of one log so far, and what every framework's log may hold.

Printed `name: value` facts of all kinds (argument dumps, YAML, command lines) are kept as text under their names, the
last one before the iterations wins; a reader turns those it needs into numbers.

Tables of `logs/formats.yaml`: which texts of a line are facts, a step or a peak of memory, in all text logs alike.

facts   until the first step. marks: texts that a line must hold. pattern: named groups are facts under their names;
        else the first group is a name, below `prefix`, and the next one its value. means: facts of any match
steps   patterns of their own, in any order in the line: iteration, s or ms, rate, batch, length. Without `is_stamped`
        seconds are the printed ones; with it those between the time stamps of two lines, where both have one.
        samples: per second. Lines of an `is_preferred` row are taken alone where there are some
peaks   of a memory counter: its unit, and its kind where the pattern's first group does not name it
run     facts of the reading, the first that is printed whole; a*b: the product of two
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from primus_search.base.guards.values import finite_number
from primus_search.learning.logs import table
from primus_search.learning.reading import Assumption, Death, LogReading, MemoryKind, Steady, StepLine, steady

MIB = 2.0**20
GIB = 2.0**30
GB = 1e9
STEPS_AFTER_RECOVERY = 4
"""A run that logs so many steps after an error message went on; the message is no death."""
RATE_SLACK = 0.10
"""Relative difference of a printed and a computed rate from which on it is said."""
FEWEST_FACTS = 3
"""Facts below which a log does not show how its process began."""
SHORTEST_BAR_STEP_S = 20.0
"""A progress bar counts whole seconds: differences below this are added up until they reach it."""
PREFERRED = "preferred"
"""Step lines that are taken alone where a log has some."""

_DOTTED = re.compile(r"(?<![\w./-])([A-Za-z_][\w./-]*+) \.{2,}+\s*+(.*)$")
_ORIGIN = re.compile(r"(?<=[.\]}])(?:updated|default)$")
"""How GPT-NeoX ends a line of its dump, behind dots that fill it up."""
_FLAG = re.compile(r"--([A-Za-z][\w.-]{0,120})(?:=|\s{1,80})('[^']*'|\"[^\"]*\"|[^\s'\"-][^\s'\"]*)")
_WORLD = re.compile(r"\b(?:world_size|WORLD_SIZE)\s*[=:]\s*(\d+)\b")
_INCIDENTS = table("incidents")
_DEVICES = tuple(map(re.compile, _INCIDENTS["devices"]))
_NO_ARGUMENTS = ("[OKAY]", "[NO]", "installed .. ", "config.py:")
"""Marks of dotted lines that report DeepSpeed's build and its own configuration."""
_COMMENT = re.compile(r"(?<!\s)\s++#.*$")
_CLOCK = re.compile(r"\A(?:(\d++)d ?)?(?:(\d++)h ?)?(?:(\d++)m ?)?(?:(\d++)s)?$")
_COLONS = re.compile(r"\A(?:(\d++) days?, )?(?:(\d++):)?(\d++):(\d++)$")
_WHOLE = re.compile(r"\d[\d_,]{0,17}(\.0{1,9})?")
_IGNORED_FACT_VALUES = ("", "None", "null", "none", "~")


@dataclass(slots=True, kw_only=True)
class Transcript:
    """Facts, step lines, peaks and incidents of one log, collected line by line.

    `peaks`: largest bytes by counter. `at_death`: how many step lines had been seen at the first error message.
    """

    source: str
    facts: dict[str, str] = field(default_factory=dict)
    steps: list[StepLine] = field(default_factory=list)
    peaks: dict[MemoryKind, float] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    scratch: dict[str, Any] = field(default_factory=dict)
    death: Death | None = None
    at_death: int = 0

    def add_step(self, line: StepLine) -> None:
        """One more step line; it inherits the disturbance seen since the one before."""
        if self.scratch.pop("disturbed", False):
            line = replace(line, is_disturbed=True)
        self.steps.append(line)

    def since_last(self, number: int, stamp: datetime | None) -> tuple[int, float | None]:
        """Steps since the line before, and the seconds of each by the time stamps of both; None where one has none."""
        last, last_stamp = self.scratch.get("last", (None, None))
        self.scratch["last"] = (number, stamp)
        if last is None or number <= last:
            return 1, None
        span = number - last
        return span, (stamp - last_stamp).total_seconds() / span if stamp and last_stamp else None

    def peak(self, kind: MemoryKind, size_bytes: float) -> None:
        """The largest reading of a memory counter so far, in bytes; a counter of 0 counts nothing on its device."""
        if size_bytes > 0.0:
            self.peaks[kind] = max(size_bytes, self.peaks.get(kind, 0.0))

    def note(self, text: str) -> None:
        """A property of the run that a projection does not reproduce, kept once."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, *names: str) -> str | None:
        """The first printed value among names of a fact; None where it is absent or printed as none."""
        found = (self.facts[name] for name in names if name in self.facts)
        return next((value for value in found if value not in _IGNORED_FACT_VALUES), None)

    def whole(self, *names: str) -> int | None:
        """The first positive whole number among names of a fact; None where none is printed whole."""
        texts = (value for name in names if (value := self.text(name)) and _WHOLE.fullmatch(value))
        numbers = (int(float(value.replace(",", "").replace("_", ""))) for value in texts)
        return next((number for number in numbers if number > 0), None)

    def steady(self) -> Steady | None:
        """The steady part of the run; without a word of its settings its log was cut out of a longer one."""
        return steady(self.scratch.get(PREFERRED) or self.steps, is_cut=len(self.facts) < FEWEST_FACTS)

    def died(self) -> Death | None:
        """The death of the run: an error message after which it logged no more than a few steps."""
        if self.death is None or len(self.steps) - self.at_death >= STEPS_AFTER_RECOVERY:
            return None
        return self.death

    def memory(self) -> tuple[float | None, MemoryKind | None]:
        """The peak in bytes and its counter: torch's allocated before reserved before the device's own."""
        kind = next((kind for kind in MemoryKind if kind in self.peaks), None)
        return (self.peaks[kind], kind) if kind else (None, None)


def observe_common(seen: Transcript, line: str) -> None:
    """What a log of any framework may hold: devices, ranks, evaluation and checkpoints, and how it ended."""
    if "GPU " in line or "capacity" in line or "|" in line or "Instinct" in line:
        _observe_device(seen, line)
    if "orld_size" in line or "WORLD_SIZE" in line:
        found = _WORLD.search(line)
        if found:
            seen.facts.setdefault("env_world_size", found[1])
    if not seen.scratch.get("disturbed") and any(mark in line for mark in _INCIDENTS["disturbances"]):
        seen.scratch["disturbed"] = True
    _observe_death(seen, line)


def _observe_device(seen: Transcript, line: str) -> None:
    for pattern in _DEVICES:
        found = pattern.search(line)
        if found and found[1].strip(" .") not in seen.devices:
            seen.devices.append(found[1].strip(" ."))


def _observe_death(seen: Transcript, line: str) -> None:
    """The first error message, but for one that says that memory ran out, which counts before any other."""
    death = None
    if "emory" in line and any(mark in line for mark in _INCIDENTS["out_of_memory"]):
        death = Death.OUT_OF_MEMORY
    elif "timeout" in line and any(mark in line for mark in _INCIDENTS["timeout"]):
        death = Death.TIMEOUT
    elif "Traceback (most recent call last)" in line:
        death = Death.ERROR
    if death and (seen.death is None or (death is Death.OUT_OF_MEMORY is not seen.death)):
        seen.death, seen.at_death = death, len(seen.steps)


def observe_dotted(seen: Transcript, line: str) -> None:
    """An argument dump: `name ....... value`."""
    if " .." in line:
        found = _DOTTED.search(line)
        if found:
            value = found[2].strip()
            seen.facts[found[1]] = _ORIGIN.sub("", value).rstrip(".") if _ORIGIN.search(value) else value
            if found[1].islower() and "_" in found[1] and not any(mark in line for mark in _NO_ARGUMENTS):
                seen.scratch.setdefault("dumped", set()).add(found[1])


def observe_flags(seen: Transcript, line: str) -> None:
    """Flags of a command line, under `flag:` and the name with underscores."""
    if "--" in line:
        for name, value in _FLAG.findall(line):
            seen.facts["flag:" + name.replace("-", "_")] = value.strip("'\"")


_CONFIGURATION = re.compile(
    r"(?:^[\s|'\"-]*+|(?<=[\s(,.{]))[\"']?([A-Za-z_]\w*+)[\"']?\s{0,80}(?::\s{1,80}|=)([^\s,)}]++)"
)
"""`name: value` at the start of a line (after indentation and bars) and `name=value`."""


def observe_configuration(seen: Transcript, line: str, names: Container[str]) -> None:
    """The known names of a line; a printed value that refers to another one (`${...}`) or is none teaches nothing."""
    if "=" not in line and ": " not in line:
        return
    for name, value in _CONFIGURATION.findall(_COMMENT.sub("", line)):
        text = value.strip("'\"")
        if name in names and text and not text.startswith("$"):
            seen.facts[name] = text


def observe_progress(seen: Transcript, step: int, elapsed: float | None, rate: float | None = None) -> None:
    """A step line from the time since the progress before; evaluation bars restart and are no progress."""
    last_step, last_elapsed = seen.scratch.get("last", (0, None))
    since = None if elapsed is None or last_elapsed is None else elapsed - last_elapsed
    if elapsed is None or step <= last_step or (since is not None and since < SHORTEST_BAR_STEP_S):
        return
    span = step - last_step
    seen.add_step(StepLine(iteration=step, seconds=max((since or 0.0) / span, 0.0), span=span, rate=rate))
    seen.scratch["last"] = (step, elapsed)


def clock_s(text: str) -> float | None:
    """Seconds of `1h 2m 3s`, `1:02:03` or `02:03`."""
    found = _COLONS.match(text) or (_CLOCK.match(text) if text else None)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return finite_number(((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds)


def gpus_of_batch(batch: int | None, micro: int | None, accumulation: int | None) -> int | None:
    """Data-parallel GPUs as the global batch over micro-batch and accumulation; None where they do not divide it."""
    if batch and micro and accumulation and batch % (micro * accumulation) == 0:
        return batch // (micro * accumulation)
    return None


def product(*numbers: int | None) -> int | None:
    """The product of counts, None where one of them is not known."""
    known = [number for number in numbers if number is not None]
    return math.prod(known) if len(known) == len(numbers) else None


def tokens_per_s_per_gpu(reading: Mapping[str, Any]) -> float | None:
    """Tokens/s/GPU from batch, sequence length, GPUs and step time, where all of them are known."""
    names = ("global_batch_size", "seq_length", "step_s", "gpus")
    known = [float(part) for part in map(reading.get, names) if part is not None]
    if len(known) < len(names):
        return None
    batch, length, step_s, gpus = known
    return batch * length / step_s / gpus


def conclude(
    seen: Transcript,
    framework: str,
    facts: Mapping[str, Any],
    assumed: Mapping[str, Assumption] | None = None,
    *,
    settings: Iterable[str] | Mapping[str, Any] = (),
    samples_are_full: bool = True,
) -> LogReading:
    """The reading of a transcript: the reader's own facts with what every log has in common.

    `facts`: fields of `LogReading` that the reader found. `settings`: names of printed facts to keep, None where
    printed as none, or the settings themselves.
    Where every sample is a full sequence, a rate that is not printed follows from batch, length,
    GPUs and step.
    """
    found = seen.steady()
    peak, kind = seen.memory()
    values: dict[str, Any] = {
        "step_s": found.step_s if found else None,
        "noise": found.noise if found else None,
        "steps": len(found.lines) if found else 0,
        "tokens_per_s_per_gpu": found.rate if found else None,
        "peak_memory_bytes": peak,
        "memory_kind": kind,
        "device": seen.devices[0] if len(seen.devices) == 1 else None,
        "died": seen.died(),
    } | dict(facts)
    computed = tokens_per_s_per_gpu(values) if samples_are_full else None
    printed = values["tokens_per_s_per_gpu"]
    if printed is None:
        values["tokens_per_s_per_gpu"] = computed
    elif printed and computed and abs(printed / computed - 1.0) > RATE_SLACK:
        seen.note(f"prints {printed:,.0f} tokens/s/GPU; batch, length, GPUs and step time give {computed:,.0f}")
    if found is None and seen.steps:
        seen.note("too few iterations for a steady step time")
    if isinstance(settings, Mapping):
        kept = dict(settings)
    else:
        kept = {name: seen.text(flag) for name in settings if (flag := "flag:" + name) in seen.facts}
        kept |= {name: seen.text(name) for name in settings if name in seen.facts}
    return LogReading(
        source=seen.source,
        framework=framework,
        settings=kept,
        assumed=dict(assumed or {}),
        not_modelled=tuple(seen.notes),
        **values,
    )


UNITS = {"B": 1.0, "GB": GB, "MiB": MIB, "GiB": GIB}
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
                seen.peak(KINDS[kind], (finite_number(size) or 0.0) * UNITS[row.unit])
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
