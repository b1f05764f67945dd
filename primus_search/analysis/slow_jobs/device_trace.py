"""Seconds of one step by what the device did, from a trace of torch.profiler: `export_chrome_trace("step.json.gz")`.

Every moment of the step counts once: as attention where an attention kernel runs, else as GEMM, else as another kernel,
else as an exchange between devices, else as idle. So parts add up to the step, and exchange is what nothing hides.
A trace without kernels of a device is read by its operators: training on a CPU.
"""

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import opened, read_bytes
from primus_search.values.candidates import Floats

LIMIT = 1 << 29
"""Most bytes that are read of a trace, and most it may unpack to: 512 MiB are about two million kernels."""

US_PER_S = 1e6


class DeviceWork(IntEnum):
    """What runs; of several at a moment the first one counts."""

    ATTENTION = 0
    GEMM = 1
    OTHER = 2
    EXCHANGE = 3


PATTERNS = {
    DeviceWork.EXCHANGE: r"nccl|rccl|c10d::|gloo:|all_?gather|all_?reduce|reduce_?scatter|all_?to_?all|sendrecv|"
    r"deep_?ep|hybrid_?ep|nvshmem|rocshmem|userbuffers",
    DeviceWork.ATTENTION: r"flash|fmha|sdpa|scaled_dot_product|attn|attention|mha_",
    DeviceWork.GEMM: r"gemm|nvjet|cublas|cutlass|cijk_|xmma|wgrad|dgrad|splitk|hipblaslt|"
    r"^aten::_?(mm|addmm|bmm|baddbmm|scaled_mm|grouped_mm)$",
}
"""Names of kernels by kind, the first that fits: NCCL and RCCL; flash-attention, cuDNN, CK and AITER; cuBLAS, CUTLASS,
hipBLASLt (Tensile's Cijk_) and torch's own products. Everything else is another kernel."""

_FINDERS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in PATTERNS.items())

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of one step of one device; they add up to it."""

    gemm_s: float
    attention_s: float
    exchange_s: float
    other_s: float
    idle_s: float

    @property
    def total_s(self) -> float:
        return float(sum(self.__getattribute__(name) for name in StepParts.__dataclass_fields__))

    @property
    def parts(self) -> dict[str, float]:
        """Each part by its name, and the total."""
        return {name: self.__getattribute__(name) for name in (*StepParts.__dataclass_fields__, "total_s")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep(StepParts):
    """The mean of `steps` steps.

    hidden_exchange_s  exchange beside other kernels, which is part of theirs       ran_on  device | cpu
    """

    hidden_exchange_s: float
    steps: int
    ran_on: str


Row = tuple[str, float, float]
"""Name, begin and end in seconds of what ran."""


def read_trace(path: Path) -> TracedStep:
    """The step of a trace. Raises `InputError` for a file that is none, is damaged or holds no kernels."""
    with opened(path) as file:
        head = file.read(16)
    content = read_bytes(path, most=LIMIT)
    if head.startswith(b"\x1f\x8b"):
        content = _unpacked(content, path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _refuse(path, f"is not UTF-8 text (byte {error.start})") from None
    if text.lstrip()[:1] not in ("{", "["):
        raise _refuse(path, "is no trace in JSON; write one with torch.profiler's export_chrome_trace")
    return _of_kineto(text, path)


def _refuse(path: Path, what: str) -> InputError:
    return InputError([Problem(str(path), what)])


def _unpacked(packed: bytes, path: Path) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(packed, LIMIT + 1)
    except zlib.error as error:
        raise _refuse(path, f"is a damaged gzip file: {error}") from None
    if len(content) > LIMIT:
        raise _refuse(path, f"unpacks to more than {LIMIT:,} bytes, the most that is read of a trace")
    if not unpacker.eof:
        raise _refuse(path, "is a gzip file that ends too early; the profiler may have been killed")
    return content


def kind_of(name: str) -> DeviceWork:
    """What a kernel or an operator of that name is."""
    return next((kind for kind, finder in _FINDERS if finder.search(name)), DeviceWork.OTHER)


def _step(
    rows: Sequence[Row], path: Path, window: tuple[float, float] | None = None, steps: int = 1, ran_on: str = "device"
) -> TracedStep:
    """The mean of `steps` steps; `window`: begin and end of all of them where the trace says so."""
    if not rows:
        raise _refuse(path, "holds no kernels and no operators; profile with CUDA or CPU activities")
    names, *times = zip(*rows, strict=True)
    kinds = {name: int(kind_of(name)) for name in set(names)}
    ran, (begin, stop) = np.array([kinds[name] for name in names]), np.array(times)
    low, high = window or (float(begin.min()), float(stop.max()))
    start, end = np.clip(begin, low, high), np.clip(stop, low, high)
    busy = [_union_s(start[ran <= kind], end[ran <= kind]) for kind in DeviceWork]
    covered = np.diff([0.0, *busy]) / steps
    exchange = ran == DeviceWork.EXCHANGE
    return TracedStep(
        **{f"{kind.name.lower()}_s": float(covered[kind]) for kind in DeviceWork},
        idle_s=(high - low - busy[-1]) / steps,
        hidden_exchange_s=_union_s(start[exchange], end[exchange]) / steps - float(covered[DeviceWork.EXCHANGE]),
        steps=steps,
        ran_on=ran_on,
    )


def _union_s(start: Floats, end: Floats) -> float:
    """Time that at least one interval covers."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, start[1:] - reached[:-1]).sum()
    return float(reached[-1] - start[0] - gaps)


def _of_kineto(text: str, path: Path) -> TracedStep:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"is no complete JSON ({str(error)[:100]}); the profiler may have been killed") from None
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise _refuse(path, "has no list of traceEvents; export it with torch.profiler's export_chrome_trace")
    complete = [one for one in events if isinstance(one, dict) and one.get("ph") == "X"]
    on_device = [one for one in complete if str(one.get("cat", "")).lower() in DEVICE_CATEGORIES]
    rows = list(_rows(on_device, path)) or list(_rows([o for o in complete if o.get("cat") == "cpu_op"], path))
    marks = [one for one in complete if str(one.get("name", "")).startswith(STEP)]
    of_device = [one for one in marks if one.get("cat") == "gpu_user_annotation"]
    steps = len({str(one["name"]) for one in marks}) or 1
    spans = list(_rows(of_device if on_device else marks, path))
    window = (min(low for _, low, _ in spans), max(high for _, _, high in spans)) if spans else None
    return _step(rows, path, window, steps, "device" if on_device else "cpu")


def _rows(events: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Row]:
    """Events that last."""
    for one in events:
        yield _row(str(one.get("name", "")), one.get("ts"), one.get("dur"), path)


def _row(name: str, begin: Any, lasts: Any, path: Path) -> Row:
    try:
        start, duration = float(begin) / US_PER_S, float(lasts) / US_PER_S
    except (TypeError, ValueError):
        start = duration = math.nan
    if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0.0):
        raise _refuse(path, f"{name[:80]!r} has no time: {begin!r} for {lasts!r}"[:200])
    return name, start, start + duration
