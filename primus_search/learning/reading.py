"""`LogReading`: what one training log states about one run, in base units; what it does not state is None.

Steady iterations of a run: which ones are left out, their median and their spread.

Left out, in this order:
1. a line printed twice (same iteration, same time);
2. warm-up: lines that cover any of the first three iterations of a process. A process begins where the iteration
   number does not grow;
3. lines with another global batch or sequence length than the last ones (batch ramp-up, curricula);
4. lines after which an evaluation or a checkpoint was logged before the next (they share its time), while at least
   three others are left;
5. outliers: further from the median than four robust standard deviations and than a tenth of it. Where gaps of more
   than a tenth divide what is left (a run that slowed down halfway), the largest group counts, the faster one of two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Any


class MemoryKind(StrEnum):
    """Which counter a peak of memory was read from; they differ by the allocator's cache and by what is not torch."""

    ALLOCATED = "max_allocated"
    RESERVED = "max_reserved"
    DEVICE = "device_in_use"
    PROGRAM = "compiled_program"


class Death(StrEnum):
    """Why a run ended early, where its log says so."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A value that a log does not print and the reason it is taken when the run is used."""

    value: Any
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """One run as its log states it. A fact that is neither printed nor follows by arithmetic is None.

    `model`: printed facts by their Megatron names. `settings`: what the run is set to, by the keys of `contract`, the
    framework whose contract reads them, None where printed as none. `device`: the accelerator's name as printed;
    `device_bytes`: its memory, bytes.
    `step_s`: median of the steady iterations, in seconds; `steps` of them were used,
    and `noise` is their relative spread (robust standard deviation over median). `peak_memory_bytes`: largest over
    the ranks that print it. `vpp` is None both where it is not printed and where it is printed as None.
    `not_modelled`: properties of the run that a projection does not reproduce. `lines`: every step time that it prints.
    """

    source: str
    framework: str
    model: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    device_bytes: float | None = None
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    seq_length: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    peak_memory_bytes: float | None = None
    memory_kind: MemoryKind | None = None
    noise: float | None = None
    steps: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    contract: str = "megatron"
    assumed: Mapping[str, Assumption] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    died: Death | None = None
    lines: "tuple[StepLine, ...]" = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """The reading as plain values, in the order of the fields; without its lines."""
        plain = asdict(replace(self, lines=())) | {"not_modelled": list(self.not_modelled)}
        return {name: value for name, value in plain.items() if name != "lines"}


WARM_UP_ITERATIONS = 3
FEWEST_UNDISTURBED = 3
OUTLIER_SIGMAS = 4.0
OUTLIER_SHARE = 0.10
MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One line of a log that states a step time.

    `seconds`: per iteration, over the `span` iterations that the line covers, which end at `iteration`. `shape`:
    batch and sequence length where the line prints them. `rate`: tokens/s/GPU where printed. `is_disturbed`: an
    evaluation or a checkpoint shares its time.
    """

    iteration: int
    seconds: float
    span: int = 1
    shape: tuple[int | None, ...] = ()
    rate: float | None = None
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Median step of the lines kept, in seconds; `noise` is their robust standard deviation over the median."""

    step_s: float
    noise: float
    lines: tuple[StepLine, ...]

    @property
    def rate(self) -> float | None:
        """Median of the printed tokens/s/GPU of the kept lines."""
        rates = [line.rate for line in self.lines if line.rate is not None]
        return median(rates) if rates else None


def steady(lines: Sequence[StepLine], *, is_cut: bool = False) -> Steady | None:
    """The steady part of a run by the rule of this module; None where nothing is left.

    is_cut: the log may begin in the middle of a process, so that a first line of a late iteration is no warm-up.
    """
    first: dict[tuple[int, float], StepLine] = {}
    for line in lines:
        if line.seconds > 0.0:
            first.setdefault((line.iteration, line.seconds), line)
    once = list(first.values())
    begins_late = is_cut and bool(once) and once[0].iteration > WARM_UP_ITERATIONS + once[0].span
    kept = after_warm_up(once, WARM_UP_ITERATIONS if begins_late else 0)
    kept = [line for line in kept if line.shape == kept[-1].shape]
    if not kept:
        return None
    undisturbed = [line for line in kept if not line.is_disturbed]
    enough = len(undisturbed) >= FEWEST_UNDISTURBED
    if enough and _middle(undisturbed)[0] <= (1.0 + OUTLIER_SHARE) * _middle(kept)[0]:
        kept = undisturbed
    middle, sigma = _middle(kept)
    reach = max(OUTLIER_SIGMAS * sigma, OUTLIER_SHARE * middle)
    kept = _largest_group([line for line in kept if abs(line.seconds - middle) <= reach])
    middle, sigma = _middle(kept)
    return Steady(step_s=middle, noise=sigma / middle, lines=tuple(kept))


def after_warm_up(lines: Sequence[StepLine], done: int = 0) -> list[StepLine]:
    """The lines behind the warm-up of every process; `done`: its iterations before the first line."""
    kept, last = [], -1
    for line in lines:
        if line.iteration <= last:
            done = 0
        if done >= WARM_UP_ITERATIONS:
            kept.append(line)
        done, last = done + line.span, line.iteration
    return kept


def _largest_group(lines: Sequence[StepLine]) -> list[StepLine]:
    """The lines, or where gaps of more than a tenth divide their times the largest group; of two the faster one."""
    groups: list[list[float]] = []
    for seconds in sorted(line.seconds for line in lines):
        if groups and seconds <= (1.0 + OUTLIER_SHARE) * groups[-1][-1]:
            groups[-1].append(seconds)
        else:
            groups.append([seconds])
    largest = max(groups, key=len)
    if len(largest) < FEWEST_UNDISTURBED:
        return list(lines)
    return [line for line in lines if largest[0] <= line.seconds <= largest[-1]]


def _middle(lines: Sequence[StepLine]) -> tuple[float, float]:
    """Median of the seconds, and their robust standard deviation."""
    middle = median(line.seconds for line in lines)
    return middle, MAD_TO_SIGMA * median(abs(line.seconds - middle) for line in lines)
