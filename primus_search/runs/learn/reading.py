"""`LogReading`: what one training log states about one run, in base units; what it does not state is None."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
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
    framework whose contract reads them, None where printed as none. `device`: the accelerator's name as printed.
    `step_s`: median of the steady iterations, in seconds; `steps` of them were used,
    and `noise` is their relative spread (robust standard deviation over median). `peak_memory_bytes`: largest over
    the ranks that print it. `vpp` is None both where it is not printed and where it is printed as None.
    `not_modelled`: properties of the run that a projection does not reproduce.
    """

    source: str
    framework: str
    model: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
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

    def as_json(self) -> dict[str, Any]:
        """The reading as plain values, in the order of the fields."""
        plain = {f.name: self.__getattribute__(f.name) for f in fields(self)}
        plain["model"] = dict(self.model)
        plain["settings"] = dict(self.settings)
        plain["assumed"] = {key: {"value": a.value, "because": a.because} for key, a in self.assumed.items()}
        plain["not_modelled"] = list(self.not_modelled)
        return plain
