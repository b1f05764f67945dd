"""Clock, power and temperature of a GPU while others measure on it: what held it back is said, and what it ran at kept.

The vendor's own tool is asked (nvidia-smi or rocm-smi), from a process that measures nothing, so that asking takes
nothing from what is timed. Where there is no such tool, the text says so.
"""

import csv
import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from threading import Event, Thread
from types import TracebackType

EVERY_S, TOOL_LIMIT_S = 1.0, 10.0
LOADED_SHARE = 0.6  # of the highest clock seen: readings below it are of a device between two measurements
SAID_SHARE = 0.05  # of the readings from which on a slowdown is a warning

# Reasons as a bit mask: nvml.h, nvmlClocksEventReasons. Idle and a power cap are how a healthy device runs.
_IDLE, _POWER_CAP = 0x1, 0x4
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the new name and that of old drivers
_FIELDS = "clocks.sm,power.draw,temperature.gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One look at a device. `reasons` is NVIDIA's bit mask of what holds its clock back; 0 where nobody says."""

    clock_mhz: float
    power_w: float
    temperature_c: float
    reasons: int = 0


def read_clocks(index: int = 0) -> ClockReading | None:
    """The device's state now, or None where no tool of a vendor tells."""
    if shutil.which("nvidia-smi"):
        for reasons in _REASONS:
            query = ["nvidia-smi", "-i", str(index), f"--query-gpu={_FIELDS},{reasons}"]
            text = _output([*query, "--format=csv,noheader,nounits"])
            if text is not None:
                return nvidia_reading(text)
    if shutil.which("rocm-smi"):
        text = _output(["rocm-smi", "-d", str(index), "--showclocks", "--showpower", "--showtemp", "--json"])
        return None if text is None else amd_reading(text)
    return None


def _output(command: list[str]) -> str | None:
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout


def nvidia_reading(text: str) -> ClockReading | None:
    """From a line of nvidia-smi; None where it holds no clock."""
    row = next(csv.reader([text.strip()], skipinitialspace=True), [])
    if len(row) < 4 or _number(row[0]) is None:
        return None
    clock, power, temperature = (_number(word) or 0.0 for word in row[:3])
    reasons = row[3].strip()
    mask = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
    return ClockReading(clock_mhz=clock, power_w=power, temperature_c=temperature, reasons=mask)


def amd_reading(text: str) -> ClockReading | None:
    """From rocm-smi's JSON, whose names differ between releases."""
    start = text.find("{")
    try:
        card: dict[str, str] = next(iter(json.loads(text[start:]).values()))
    except (ValueError, StopIteration):
        return None
    found: dict[str, float] = {}
    for name, value in card.items():
        number, lower = _number(re.sub(r"[^0-9.]", "", value)), name.lower()
        wanted = {"sclk clock speed": "clock_mhz", "power (w)": "power_w", "junction": "temperature_c"}
        for part, key in wanted.items():
            if part in lower and number is not None:
                found.setdefault(key, number)
    if "clock_mhz" not in found:
        return None
    power, temperature = found.get("power_w", 0.0), found.get("temperature_c", 0.0)
    return ClockReading(clock_mhz=found["clock_mhz"], power_w=power, temperature_c=temperature)


def _number(word: str) -> float | None:
    return float(word) if re.fullmatch(r"[0-9]+(\.[0-9]*)?", word.strip()) else None


@dataclass(slots=True)
class Watch:
    """Reads a device every second for as long as its block runs, beginning at once.

    text      what it ran at, in a line; that nothing told where no tool is there
    warnings  slowdowns that make a measurement worth less, in words
    """

    index: int = 0
    readings: list[ClockReading] = field(default_factory=list)
    _done: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def __enter__(self) -> "Watch":
        self._thread = Thread(target=self._poll, daemon=True)
        self._thread.start()
        return self

    def _poll(self) -> None:
        while not self._done.is_set():
            found = read_clocks(self.index)
            if found is None:
                return
            self.readings.append(found)
            self._done.wait(EVERY_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _loaded(self) -> list[ClockReading]:
        """Readings of a device at work."""
        at_work = [one for one in self.readings if not one.reasons & _IDLE]
        highest = max((one.clock_mhz for one in at_work), default=0.0)
        return [one for one in at_work if one.clock_mhz >= LOADED_SHARE * highest]

    @property
    def text(self) -> str:
        loaded = self._loaded()
        if not loaded:
            return "clocks unknown: " + ("the device was idle when asked" if self.readings else "no tool reads them")
        clocks = [one.clock_mhz for one in loaded]
        capped = sum(bool(one.reasons & _POWER_CAP) for one in loaded) / len(loaded)
        power, hottest = median(one.power_w for one in loaded), max(one.temperature_c for one in loaded)
        held = f", held back by its power cap in {capped:.0%} of readings" if capped else ""
        return (
            f"{median(clocks):.0f} MHz ({min(clocks):.0f} to {max(clocks):.0f}), {power:.0f} W, {hottest:.0f} C{held}"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        counts = Counter(name for one in self.readings for bit, name in _SLOWDOWNS.items() if one.reasons & bit)
        shares = {name: count / len(self.readings) for name, count in counts.items()}
        return tuple(
            f"the device was throttled ({name}) in {share:.0%} of readings: measured times may mislead"
            for name, share in shares.items()
            if share >= SAID_SHARE
        )
