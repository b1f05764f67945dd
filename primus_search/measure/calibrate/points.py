"""Measured kernels as typed points: one row of a CSV is one call of one kernel on one device, and its seconds.

The columns of the CSV are kind, gpu, dtype, op, m, n, k, seq, head_dim, heads, batch, causal, value, unit, source,
notes. What a benchmark includes (clocks settled or not, casts or not, forward or both gradients) stands in free text
there and becomes fields here; rows that state a threshold, an average or a best shape are not points and are left out.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.base.units import TB
from primus_search.files.source import read
from primus_search.files.word_rules import first
from primus_search.values.candidates import Fp8


class KernelKind(IntEnum):
    """What kind of call was timed. MOE_LAYER is permute, two grouped products, activation and unpermute together."""

    GEMM = 0
    GROUPED_GEMM = 1
    MOE_LAYER = 2
    ATTENTION = 3


class Direction(IntEnum):
    """FORWARD, BACKWARD (both gradients) or BOTH timed together."""

    FORWARD = 0
    BACKWARD = 1
    BOTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured call.

    casts        operands cast to low precision inside the timed call: 0, 1 (the activation) or 2
    is_burst     short run on a cool device; False: clocks settled under load
    group        points of one group are left out together when the fit is judged
    """

    kind: KernelKind
    gpu: str
    code: Fp8
    direction: Direction
    is_burst: bool
    casts: int
    seconds: float
    group: str
    source: str
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    groups: float = 1.0
    top_k: float = 1.0
    family: str = ""
    batch: float = 1.0
    heads: float = 1.0
    kv_heads: float = 1.0
    seq: float = 0.0
    qk_dim: float = 0.0
    v_dim: float = 0.0
    window: float = 0.0
    is_causal: bool = True


KERNELS = read(Path(__file__).with_name("kernels.yaml")).data
"""Words of such a CSV as rules over a row's cells (`files.word_rules`), and what is fitted to which kernels."""

_CODES = {word: Fp8[name.upper()] for word, name in KERNELS["recipes"].items()}
_HOST_BOUND_ROWS = 4096.0
"""Rows below which a product timed from Python waits for the host."""

SHORTEST_S, LONGEST_S = 1e-9, 1e5
"""Seconds of one call: below a clock cycle and above a day a row is a slip."""

COLUMNS = (
    "kind", "gpu", "dtype", "op", "m", "n", "k", "seq", "head_dim", "heads", "batch", "causal", "value", "unit",
    "source", "notes",
)  # fmt: skip
"""What a CSV of measured kernels has; cells that a kind of kernel has no use for are empty."""

_NEEDED = {
    KernelKind.GEMM: ("m", "n", "k"),
    KernelKind.GROUPED_GEMM: ("m", "n", "k", "batch"),
    KernelKind.MOE_LAYER: (),
    KernelKind.ATTENTION: ("seq", "heads"),
}
"""Cells without which a row is no point of its kind."""


def read_points(path: Path) -> list[Point]:
    """Every usable point of a measurement CSV, in file order. Raises `InputError` with every row that is none."""
    points, problems = list[Point](), list[Problem]()
    for number, row in enumerate(rows_of(path), start=2):
        try:
            point = _point(row)
            if point is not None and not _is_possible(point):
                raise ValueError("sizes and value must be positive, finite numbers that a device can have")
        except (ValueError, ArithmeticError) as error:
            problems.append(Problem(f"{path}:{number}", f"is not a measurement: {error}"))
        else:
            points += [point] if point is not None else []
    if problems:
        raise InputError(problems)
    return points


def _is_possible(point: Point) -> bool:
    """Whether sizes and seconds of a point are of a call that a device can make."""
    sizes = (point.m, point.n, point.k, point.seq, point.batch, point.heads, point.qk_dim, point.v_dim, point.groups)
    return SHORTEST_S < point.seconds < LONGEST_S and all(0.0 <= size <= LARGEST_WHOLE for size in sizes)


def rows_of(path: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, str]]:
    """The rows of a measurement CSV. Raises `InputError` where it cannot be read or lacks a column."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, most=MAX_TABLE_BYTES), newline=""), restval="")
        rows, there = list(reader), reader.fieldnames or ()
    except csv.Error as error:
        raise InputError([Problem(str(path), f"is not a CSV file: {error}")]) from error
    missing = [name for name in columns if name not in there]
    if missing:
        what = f"no column {', '.join(missing)}; needed are {', '.join(columns)}"
        raise InputError([Problem(str(path), what)])
    return rows


def _point(row: dict[str, str]) -> Point | None:
    kind = first(KERNELS["kinds"], row)
    if kind is None or row["unit"] != "TFLOP/s" or row["dtype"] not in _CODES or first(KERNELS["unusable"], row):
        return None
    kind = KernelKind[kind]
    if not all(row[name] for name in _NEEDED[kind]):
        return None
    return _attention(row) if kind is KernelKind.ATTENTION else _product(row, kind)


def _call(row: dict[str, str], kind: KernelKind, flops: float) -> dict[str, Any]:
    """What every kind of call is described by; a cell has TFLOP/s."""
    seconds, is_burst = flops / (float(row["value"]) * TB), first(KERNELS["burst"], row, False)  # TB: 10^12, too
    named = {name: row[name] for name in ("gpu", "source")}
    return {"kind": kind, "code": _CODES[row["dtype"]], "is_burst": is_burst, "seconds": seconds, **named}


def _product(row: dict[str, str], kind: KernelKind) -> Point | None:
    """A product, as many of one shape, or a layer of experts; backward is both gradients."""
    m, n, k = (float(row[name]) for name in ("m", "n", "k"))
    if kind is KernelKind.GEMM and row["op"] in KERNELS["python_timers"] and m < _HOST_BOUND_ROWS:
        return None
    groups, top_k, casts = float(row["batch"]) if kind is KernelKind.GROUPED_GEMM else 1.0, 1.0, 0
    is_backward = row["op"] == "bwd"
    flops = (4.0 if is_backward else 2.0) * m * n * k * groups
    if kind is KernelKind.MOE_LAYER:
        top_k, groups = map(float, first(KERNELS["routing"], row))
        flops, casts = 6.0 * m * top_k * n * k, int(_CODES[row["dtype"]] != Fp8.NONE)
    else:
        casts = first(KERNELS["casts"], row, 0)
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k, "groups": groups, "top_k": top_k}
    direction = Direction.BACKWARD if is_backward else Direction.FORWARD
    return Point(**_call(row, kind, flops), **sizes, direction=direction, casts=casts, group=f"{n:.0f}x{k:.0f}")


def _attention(row: dict[str, str]) -> Point | None:
    """FLOPs as the benchmarks count them: causal halved, a window counted as what it leaves."""
    family, (direction, times) = first(KERNELS["attention"], row), first(KERNELS["directions"], row)
    if family is None:
        return None
    (heads, _, kv_heads), (qk_dim, _, v_dim) = row["heads"].partition("/"), row["head_dim"].partition("/")
    batch, seq, window = float(row["batch"] or 1), float(row["seq"]), float(first(KERNELS["windows"], row, 0))
    is_causal = row["causal"].lower() == "true"
    keys = min(window, seq) if window else seq
    pairs = seq * keys - (0.5 * keys * keys if is_causal else 0.0)
    dims = float(qk_dim) + float(v_dim or qk_dim)
    return Point(
        **_call(row, KernelKind.ATTENTION, 2.0 * batch * float(heads) * pairs * dims * times),
        direction=Direction[direction],
        casts=0,
        group=f"{row['head_dim']}:{row['heads']}:{row['seq']}",
        family=family,
        batch=batch,
        heads=float(heads),
        kv_heads=float(kv_heads or heads),
        seq=seq,
        qk_dim=float(qk_dim),
        v_dim=float(v_dim or qk_dim),
        window=window,
        is_causal=is_causal,
    )
