"""Disciplined timing: warm up, repeat until the interval is tight or the budget is spent, report median and spread.

What spoils a measurement is detected and said, not averaged away:
- a busy machine: wall time well above the CPU time the call used (CPU devices only). CPU seconds are then reported,
  as the best guess of what the call takes alone, and the measurement says so;
- drift: the last third of the repeats slower than the first third, as a clock that throttles makes them.
"""

import json
import math
import re
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from threading import Event, Thread

from primus_search.measure.device.device_info import CPU
from primus_search.measure.device.torch_device import clock

TARGET_INTERVAL = 0.02  # half width of the median's 95 % interval over the median at which repeating stops
NOTCH = 1.57  # that half width is NOTCH * interquartile range / sqrt(repeats) (McGill, Tukey, Larsen 1978)
MIN_REPEATS, MAX_REPEATS = 5, 200
BUSY_RATIO = 1.10  # wall over CPU seconds beyond which other work has taken the core
DRIFT_RATIO = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call. spread_s is the interquartile range; notes name what disturbed the measurement."""

    median_s: float
    spread_s: float
    repeats: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceMeasurement:
    """One measured quantity with all that is needed to trust, repeat or refuse it.

    kernel   what ran: gemm, layer, head, optimizer, all_reduce ...
    shape    its sizes, canonical text
    seconds  named medians (forward, input_grad, weight_grad ...); spreads_s likewise
    memory_bytes  of activations held for backward, by the device's own allocator; 0 where it does not say
    peaks_bytes   of one pass over `modules` such pieces, where the allocator says: resident before it, allocated,
                  reserved, driver (the whole device's use), and gradient, the largest new one
    clocks        what a GPU ran at meanwhile, in words (`clocks.Watch`)
    """

    kernel: str
    shape: str
    dtype: str
    seconds: dict[str, float]
    spreads_s: dict[str, float]
    device: str
    versions: str
    date: str
    memory_bytes: float = 0.0
    peaks_bytes: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    clocks: str = ""


def measure(run: Callable[[], object], *, device: str, budget_s: float, warmup: int = 1, threads: int = 1) -> Timing:
    """Median seconds of `run` on the device, within about `budget_s` seconds after the warm-up."""
    return measure_cycle({"run": run}, device=device, budget_s=budget_s, warmup=warmup, threads=threads)["run"]


def measure_cycle(
    passes: Mapping[str, Callable[[], object]], *, device: str, budget_s: float, warmup: int = 1, threads: int = 1
) -> dict[str, Timing]:
    """Median seconds of each of several passes that run one after another (a forward, then its backward)."""
    stopwatch = clock(device, is_cold=True)
    for _ in range(warmup):
        for run in passes.values():
            stopwatch(run)
    walls: dict[str, list[float]] = {name: [] for name in passes}
    cpus: dict[str, list[float]] = {name: [] for name in passes}
    started = time.perf_counter()
    for repeat in range(1, MAX_REPEATS + 1):
        for name, run in passes.items():
            before = time.process_time()
            walls[name].append(stopwatch(run))
            cpus[name].append((time.process_time() - before) / threads)
        if _is_enough(walls, repeat, time.perf_counter() - started, budget_s):
            break
    return {name: summarize(walls[name], cpus[name] if device == CPU else None) for name in passes}


def _is_enough(walls: dict[str, list[float]], repeats: int, spent_s: float, budget_s: float) -> bool:
    """Tight after twice the least repeats; out of time after the least; far out of time after any."""
    width = NOTCH / math.sqrt(repeats)
    is_tight = all(width * _spread(same) < TARGET_INTERVAL * median(same) for same in walls.values())
    if repeats >= 2 * MIN_REPEATS and is_tight:
        return True
    return (spent_s > budget_s and repeats >= MIN_REPEATS) or spent_s > 2 * budget_s


def summarize(walls: list[float], cpus: list[float] | None = None) -> Timing:
    """Median and spread of repeats; CPU seconds in place of wall seconds where the machine was busy."""
    notes: list[str] = []
    if cpus is not None:
        ratio = median(walls) / max(median(cpus), 1e-9)
        if ratio > BUSY_RATIO:
            note = f"busy machine (wall {ratio:.1f} x CPU seconds): CPU seconds reported"
            return Timing(median_s=median(cpus), spread_s=_spread(cpus), repeats=len(cpus), notes=(note,))
    third = len(walls) // 3
    if third >= 2:
        drift = median(walls[-third:]) / max(median(walls[:third]), 1e-12)
        if drift > DRIFT_RATIO:
            notes.append(f"drift: the last repeats are {drift:.2f} x slower than the first (throttling?)")
    return Timing(median_s=median(walls), spread_s=_spread(walls), repeats=len(walls), notes=tuple(notes))


def _spread(samples: list[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4)
    return high - low


EVERY_S, TOOL_LIMIT_S = 1.0, 10.0
LOADED_SHARE = 0.6  # of the highest clock seen: readings below it are of a device between two measurements
SAID_SHARE = 0.05  # of the readings from which on a slowdown is a warning

# Reasons as a bit mask: nvml.h, nvmlClocksEventReasons. Idle and a power cap are how a healthy device runs.
_IDLE, _POWER_CAP = 0x1, 0x4
_SLOWDOWNS = {
    0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake",
}  # fmt: skip
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the new name and that of old drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One look at a device. `reasons` is NVIDIA's bit mask of what holds its clock back; 0 where it is unknown."""

    clock_mhz: float
    power_w: float
    temperature_c: float
    reasons: int = 0


def read_clocks(index: int = 0) -> ClockReading | None:
    """The device's state now, or None where no tool of a vendor tells.

    nvidia-smi or rocm-smi is called by a process that measures nothing, so that the call takes nothing from what is
    timed.
    """
    if shutil.which("nvidia-smi"):
        for reasons in _REASONS:
            query = f"--query-gpu=clocks.sm,power.draw,temperature.gpu,{reasons}"
            text = _output("nvidia-smi", "-i", str(index), query, "--format=csv,noheader,nounits")
            if text is not None:
                return nvidia_reading(text)
    if shutil.which("rocm-smi"):
        text = _output("rocm-smi", "-d", str(index), "--showclocks", "--showpower", "--showtemp", "--json")
        return None if text is None else amd_reading(text)
    return None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def nvidia_reading(text: str) -> ClockReading | None:
    """From a line of nvidia-smi; None where it holds no clock."""
    row = [word.strip() for word in text.strip().split(",")]
    if len(row) < 4 or _number(row[0]) is None:
        return None
    clock, power, temperature = (_number(word) or 0.0 for word in row[:3])
    mask = int(row[3], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", row[3]) else 0
    return ClockReading(clock_mhz=clock, power_w=power, temperature_c=temperature, reasons=mask)


def amd_reading(text: str) -> ClockReading | None:
    """From rocm-smi's JSON, whose names differ between releases."""
    try:
        card: dict[str, str] = next(iter(json.loads(text[text.find("{") :]).values()))
    except (ValueError, StopIteration):
        return None
    wanted = {"clock_mhz": "sclk clock speed", "power_w": "power (w)", "temperature_c": "junction"}
    found = {
        key: _number(re.sub(r"[^0-9.]", "", next((v for name, v in card.items() if part in name.lower()), "")))
        for key, part in wanted.items()
    }
    clock, power, temperature = found.values()
    if clock is None:
        return None
    return ClockReading(clock_mhz=clock, power_w=power or 0.0, temperature_c=temperature or 0.0)


def _number(word: str) -> float | None:
    return float(word) if re.fullmatch(r"[0-9]+(\.[0-9]*)?", word) else None


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
        while not self._done.is_set() and (found := read_clocks(self.index)) is not None:
            self.readings.append(found)
            self._done.wait(EVERY_S)

    def __exit__(self, *_: object) -> None:
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
        mhz, power = [one.clock_mhz for one in loaded], median(one.power_w for one in loaded)
        capped = sum(bool(one.reasons & _POWER_CAP) for one in loaded) / len(loaded)
        held = f", held back by its power cap in {capped:.0%} of readings" if capped else ""
        hottest = max(one.temperature_c for one in loaded)
        return f"{median(mhz):.0f} MHz ({min(mhz):.0f} to {max(mhz):.0f}), {power:.0f} W, {hottest:.0f} C{held}"

    @property
    def warnings(self) -> tuple[str, ...]:
        counts = Counter(name for one in self.readings for bit, name in _SLOWDOWNS.items() if one.reasons & bit)
        shares = {name: count / len(self.readings) for name, count in counts.items()}
        return tuple(
            f"the device was throttled ({name}) in {share:.0%} of readings: measured times may mislead"
            for name, share in shares.items()
            if share >= SAID_SHARE
        )
