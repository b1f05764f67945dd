"""What repeated steps of one configuration say of its time, on a machine whose cores have slow spells.

A core of a virtual machine shares its execution units with another guest's: in spells of a tenth of a second to minutes
everything on it takes up to 1.8 times its CPU seconds, and nothing but a longer step tells. Two witnesses do:
- a yardstick, one and the same small product, on each core right before and after the step;
- the CPU seconds of each rank in the step against what this rank needs for this configuration on a calm core.

A step that both call calm counts as it is. Of these the lower quartile is taken, as of the layers' measurements: what
still disturbs a calm step only makes it longer, and the least of all is a matter of luck. Where too few steps are calm,
those on calm cores count though other processes worked beside them; where these too are few, all steps, divided by how
much slower the slower rank computed. The configuration says so either way.

What a slow core makes of a whole step is less than what it makes of the yardstick, which does nothing but multiply: by
a power of it that all steps of a run tell together (`Yardstick.power`).

CPU speed probe: times a fixed GEMM to detect throttling, and waits until it clears.

A core of a virtual machine shares its execution units with another guest's. No counter shows it: everything takes more
CPU seconds for a while. So a rank times a small product of its own before and after what it measures.
"""

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from primus_search.measure.device.device_info import LARGEST_MMAP_THRESHOLD
from primus_search.measure.device.timing import NOTCH, PieceMeasurement

CALM_SHARE = 0.05  # of the cores that other processes may take during a training step that counts as undisturbed
SLOW_RATIO = 1.15  # a core that much slower than at its best shares its execution units with another guest's
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
M, N, K = 512, 1024, 256  # of the product; some milliseconds
PATIENCE_S, PAUSE_S = 4.0, 0.05  # what one process waits in all for slow spells to end, and between two looks


def anywhere(is_so: bool) -> bool:
    """Whether it is so on any rank; all ranks come to the same answer."""
    found = torch.tensor(float(is_so))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


@dataclass(slots=True, kw_only=True)
class Core:
    """How fast this rank's core is: CPU seconds of one and the same small product, the lesser of two.

    calm_s      what it takes on a calm core, as far as known;  patience_s  left to wait for calm cores
    """

    calm_s: float
    patience_s: float = PATIENCE_S
    factors: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.randn(M, K), torch.randn(K, N)))

    def yard_s(self) -> float:
        found = min(self._once(), self._once())
        self.calm_s = min(self.calm_s or found, found)
        return found

    def _once(self) -> float:
        start = time.process_time()
        torch.mm(*self.factors)
        return time.process_time() - start

    def awaited_s(self) -> float:
        """The yardstick once no rank's core is slow, or once patience has ended; all ranks wait alike."""
        while True:
            found = self.yard_s()
            if not anywhere(found > SLOW_RATIO * self.calm_s) or self.patience_s <= 0.0:
                return found
            time.sleep(PAUSE_S)
            self.patience_s -= PAUSE_S


def forget_peak() -> None:
    """Let VmHWM start again from what is resident now (proc_pid_clear_refs(5)); nothing where the system has none."""
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5")


def return_freed_memory_from(num_bytes: int) -> None:
    """The C library gives allocations of that many bytes and more back to the system as they are freed (mallopt(3)).

    With a small number resident memory is what the process holds; with a large one the heap keeps what it once needed,
    as a GPU's caching allocator reserves more than is allocated. Does nothing where the C library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, min(num_bytes, LARGEST_MMAP_THRESHOLD))
        library.mallopt(M_TRIM_THRESHOLD, num_bytes)


def busy_s() -> float:
    """CPU seconds all processes of this machine have used since it started, time stolen by its host included.

    0 where the system does not say (proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal in ticks).
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


FEWEST_CALM = 3
SLOW_STEP = 1.10  # CPU seconds of a rank over those on a calm core, beyond which a spell fell into the step
BEST_SHARE = 0.05  # of all yardsticks; below that quantile is luck
TIGHT = 0.02  # half width of the calm steps' 95 % interval at which a configuration needs no more rounds
TIGHT_STEPS, TIGHT_VISITS = 6, 3
QUARTILE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One really trained step.

    cpus_s         of each rank: what other work does not spoil, but blind to waiting
    foreign_share  of the machine's cores, what processes that do not train used meanwhile
    yards_s        CPU seconds of the yardstick on each rank right before or after, whichever took longer
    """

    wall_s: float
    cpus_s: tuple[float, ...]
    foreign_share: float
    yards_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of an undisturbed step; half_width is that of their 95 % interval, as a share; `calm` steps of them."""

    seconds: float
    half_width: float
    calm: int

    @property
    def is_calm(self) -> bool:
        return self.calm >= FEWEST_CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSample:
    """One rank's measurement of one piece, with the yardstick of its core as in `Sample`."""

    measurement: PieceMeasurement
    yard_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """calm_s  on a calm core;  power  of its slowness that is the slowness of a step, between 0 and 1"""

    calm_s: float
    power: float = 1.0

    def slowness(self, samples: Sequence[Sample]) -> np.ndarray:
        """Of each rank's core beside each step, at least 1."""
        yards = np.array([sample.yards_s for sample in samples])
        found: np.ndarray = np.maximum(yards / self.calm_s, 1.0)
        return found


def yardstick_of(cases: Sequence[Sequence[Sample]]) -> Yardstick:
    """What all steps of all configurations say of the yardstick.

    power: slope of the logarithm of a rank's CPU seconds over that of its yardstick, both less their means over the
    steps of one configuration, so that only what changes between its steps counts.
    """
    calm_s = float(np.quantile([yard_s for same in cases for one in same for yard_s in one.yards_s], BEST_SHARE))
    plain = Yardstick(calm_s=calm_s)
    slow = [np.log(plain.slowness(same)) for same in cases]
    work = [np.log([one.cpus_s for one in same]) for same in cases]
    slow, work = ([x - x.mean(axis=0) for x in many] for many in (slow, work))
    square = sum(float((x * x).sum()) for x in slow)
    product = sum(float((x * y).sum()) for x, y in zip(slow, work, strict=True))
    return Yardstick(calm_s=calm_s, power=min(max(product / square, 0.0), 1.0) if square > 0.0 else 1.0)


def estimate(samples: Sequence[Sample], yardstick: Yardstick) -> Estimate:
    """What a step takes when nothing disturbs it."""
    walls = np.array([sample.wall_s for sample in samples])
    beside = yardstick.slowness(samples)
    cpus = np.array([sample.cpus_s for sample in samples])
    needed = np.array([_needed_s(c, b, yardstick.power) for c, b in zip(cpus.T, beside.T, strict=True)])
    slowness = np.maximum((cpus / needed).max(axis=1), 1.0)
    foreign = np.array([sample.foreign_share for sample in samples])
    is_even = (slowness <= SLOW_STEP) & (beside.max(axis=1) <= SLOW_RATIO)
    calm = int((is_even & (foreign <= CALM_SHARE)).sum())
    if calm >= FEWEST_CALM:
        counted = walls[is_even & (foreign <= CALM_SHARE)]
    else:
        counted = walls[is_even] if is_even.sum() >= FEWEST_CALM else walls / slowness
    low, middle, high = np.quantile(counted, (QUARTILE, 0.5, 1.0 - QUARTILE))
    half_width = NOTCH * (high - low) / np.sqrt(len(counted)) / middle
    return Estimate(seconds=float(low), half_width=float(half_width), calm=calm)


def _needed_s(cpus_s: np.ndarray, beside: np.ndarray, power: float) -> float:
    """CPU seconds of one rank's step on a calm core: of steps beside which it was calm, or else of all, scaled."""
    calm = cpus_s[beside <= SLOW_RATIO]
    if len(calm) >= FEWEST_CALM:
        return float(np.quantile(calm, QUARTILE))
    return float(np.median(cpus_s / beside**power))


def is_tight(visits: Sequence[Sequence[Sample]], yardstick: Yardstick) -> bool:
    """Whether more visits would tell little more."""
    if len(visits) < TIGHT_VISITS:
        return False
    found = estimate([sample for visit in visits for sample in visit], yardstick)
    return found.calm >= TIGHT_STEPS and found.half_width <= TIGHT


def samples_of(values: Sequence[dict[str, Any]], cores: int) -> list[Sample]:
    """The timed steps of one job from what its ranks say: the slower one's wall seconds."""
    names = ("walls_s", "cpus_s", "machine_s", "yards_s")
    found = []
    for by_rank in zip(*(zip(*(v[name] for name in names), strict=True) for v in values), strict=True):
        walls, cpus, machine, yards = zip(*by_rank, strict=True)
        foreign_s = max(float(np.median(machine)) - sum(cpus), 0.0)
        share = foreign_s / (max(walls) * cores)
        found.append(Sample(wall_s=max(walls), cpus_s=cpus, foreign_share=share, yards_s=yards))
    return found


def undisturbed_piece(samples: Sequence[PieceSample], yardstick: Yardstick) -> dict[str, float]:
    """Seconds of each pass of a piece: the lower quartile over calm measurements, or over all, scaled like steps."""
    slowness = [max(sample.yard_s / yardstick.calm_s, 1.0) for sample in samples]
    calm = [sample.measurement.seconds for sample, slow in zip(samples, slowness, strict=True) if slow <= SLOW_RATIO]
    scaled = [
        {name: s / slow**yardstick.power for name, s in sample.measurement.seconds.items()}
        for sample, slow in zip(samples, slowness, strict=True)
    ]
    found: dict[str, float] = lower_quartile(calm or scaled)
    return found


def lower_quartile(trees: Sequence[Any]) -> Any:
    """The element-wise lower quartile of equal trees of numbers."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: lower_quartile([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list):
        return [lower_quartile(list(column)) for column in zip(*trees, strict=True)]
    return float(np.quantile(trees, QUARTILE))
