"""Disciplined timing: warm up, repeat until the interval is tight or the budget is spent, report median and spread.

What spoils a measurement is detected and said, not averaged away:
- a busy machine: wall time well above the CPU time the call used (CPU devices only). CPU seconds are then reported,
  as the best guess of what the call takes alone, and the measurement says so;
- drift: the last third of the repeats slower than the first third, as a clock that throttles makes them.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from primus_search.measure.device.device_info import CPU, clock

TARGET_INTERVAL = 0.02  # half width of the median's 95 % interval over the median at which repeating stops
NOTCH = 1.57  # that half width is NOTCH * interquartile range / sqrt(repeats) (McGill, Tukey, Larsen 1978)
MIN_REPEATS, MAX_REPEATS = 5, 200
BUSY_RATIO = 1.10  # wall over CPU seconds beyond which other work has taken the core
DRIFT_RATIO = 1.05
CALM_SHARE = 0.05  # of the cores that other processes may take during a training step that counts as undisturbed
SLOW_RATIO = 1.15  # a core that much slower than at its best shares its execution units with another guest's


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
    is_tight = all(width * _spread(same) < TARGET_INTERVAL * statistics.median(same) for same in walls.values())
    if repeats >= 2 * MIN_REPEATS and is_tight:
        return True
    return (spent_s > budget_s and repeats >= MIN_REPEATS) or spent_s > 2 * budget_s


def summarize(walls: list[float], cpus: list[float] | None = None) -> Timing:
    """Median and spread of repeats; CPU seconds in place of wall seconds where the machine was busy."""
    notes: list[str] = []
    if cpus is not None:
        ratio = statistics.median(walls) / max(statistics.median(cpus), 1e-9)
        if ratio > BUSY_RATIO:
            note = f"busy machine (wall {ratio:.1f} x CPU seconds): CPU seconds reported"
            return Timing(median_s=statistics.median(cpus), spread_s=_spread(cpus), repeats=len(cpus), notes=(note,))
    third = len(walls) // 3
    if third >= 2:
        drift = statistics.median(walls[-third:]) / max(statistics.median(walls[:third]), 1e-12)
        if drift > DRIFT_RATIO:
            notes.append(f"drift: the last repeats are {drift:.2f} x slower than the first (throttling?)")
    return Timing(median_s=statistics.median(walls), spread_s=_spread(walls), repeats=len(walls), notes=tuple(notes))


def _spread(samples: list[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4)
    return high - low
