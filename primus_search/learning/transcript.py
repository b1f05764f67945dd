"""`Transcript`: what has been collected from the lines of one log so far, and what every framework's log may hold.

Printed `name: value` facts of all kinds (argument dumps, YAML, command lines) are kept as text under their names, the
last one before the iterations wins; a reader turns those it needs into numbers.
"""

import re
from collections.abc import Container
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from primus_search.base.guards.values import finite_number
from primus_search.learning.logs import table
from primus_search.learning.reading import Death, MemoryKind, Steady, StepLine, steady

STEPS_AFTER_RECOVERY = 4
"""A run that logs so many steps after an error message went on; the message is no death."""

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
_CAPACITY = re.compile(r"\b(?:capacity of|with) (\d{1,4}(?:\.\d{1,4})?) ?GiB(?: memory\b| of which\b)")
"""Memory of the device as torchtitan prints it, and as torch does where it runs out."""
_RANKS = re.compile(r"\[rank-?\d{1,6}/(\d{1,6})\]")
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

    @property
    def step_lines(self) -> list[StepLine]:
        """The lines that state step times; of several kinds those of the preferred one."""
        return self.scratch.get(PREFERRED) or self.steps

    def steady(self) -> Steady | None:
        """The steady part of the run; without a word of its settings its log was cut out of a longer one."""
        return steady(self.step_lines, is_cut=len(self.facts) < FEWEST_FACTS)

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
    if "GiB" in line and (capacity := _CAPACITY.search(line)):
        seen.facts["device_GiB"] = capacity[1]
    if "orld_size" in line or "WORLD_SIZE" in line:
        found = _WORLD.search(line)
        if found:
            seen.facts.setdefault("env_world_size", found[1])
    elif "[rank" in line and (ranks := _RANKS.search(line)):
        seen.facts.setdefault("env_world_size", ranks[1])
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


def observe_nothing(seen: Transcript, line: str) -> None:
    """Of a format whose rows read all that its lines say."""


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
