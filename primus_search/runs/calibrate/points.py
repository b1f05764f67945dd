"""Measured kernels as typed points: one row of a CSV is one call of one kernel on one device, and its seconds.

The columns of the CSV are kind, gpu, dtype, op, m, n, k, seq, head_dim, heads, batch, causal, value, unit, source,
notes. What a benchmark includes (clocks settled or not, casts or not, forward or both gradients) stands in free text
there and becomes fields here; rows that state a threshold, an average or a best shape are not points and are left out.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.base.units import TB
from primus_search.declare.source import read
from primus_search.values.candidates import Fp8
from primus_search.values.machine.cluster import GROUPED


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
"""Words of such a CSV, and what is fitted to which kernels."""

_CODES = {word: Fp8[name.upper()] for word, name in KERNELS["recipes"].items()}
_FAMILIES: dict[str, str] = KERNELS["attention_timers"]
_HOST_BOUND_ROWS = 4096.0
"""Rows below which a product timed from Python waits for the host."""

SHORTEST_S, LONGEST_S = 1e-9, 1e5
"""Seconds of one call: below a clock cycle and above a day a row is a slip."""

COLUMNS = (
    "kind", "gpu", "dtype", "op", "m", "n", "k", "seq", "head_dim", "heads", "batch", "causal", "value", "unit",
    "source", "notes",
)  # fmt: skip
"""What a CSV of measured kernels has; cells that a kind of kernel has no use for are empty."""

# Words of a row's notes that a release ran without a kernel for the call: they say nothing about the device.
_SLOW_PATH = "path very slow in this revision"


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


def of_gpu(points: Iterable[Point], gpu: str) -> list[Point]:
    """The points of one device."""
    return [point for point in points if point.gpu == gpu]


def _point(row: dict[str, str]) -> Point | None:
    if row["unit"] != "TFLOP/s" or row["dtype"] not in _CODES:
        return None
    if any(part in row["source"] for part in KERNELS["excluded_sources"]) or _SLOW_PATH in row["notes"]:
        return None
    if row["kind"] == "gemm":
        return _gemm(row)
    if row["kind"] == GROUPED:
        return _moe_layer(row) if row["op"] == "moe_layer_fwd" else _grouped(row)
    return _attention(row) if row["kind"] == "attention" else None


def _is_burst(row: dict[str, str]) -> bool:
    short_runs = ("ai-dynamo/aiconfigurator", "cudnn-frontend", "FlashAttention-2", "FlashAttention-3")
    return "burst" in row["notes"] or any(part in row["source"] for part in short_runs)


def _casts(row: dict[str, str]) -> int:
    if "on-the-fly quantisation" in row["notes"]:
        return 2
    return 1 if "includes activation quantisation" in row["notes"] else 0


def _rate(row: dict[str, str]) -> float:
    return float(row["value"]) * TB  # TFLOP/s: the same factor of 10^12


def _call(row: dict[str, str], kind: KernelKind) -> dict[str, Any]:
    """What every kind of call is described by."""
    code = _CODES[row["dtype"]]
    return {"kind": kind, "gpu": row["gpu"], "code": code, "is_burst": _is_burst(row), "source": row["source"]}


def _gemm(row: dict[str, str]) -> Point | None:
    if row["op"] not in KERNELS["gemm_timers"] or not (row["m"] and row["n"] and row["k"]):
        return None
    m, n, k = (float(row[name]) for name in ("m", "n", "k"))
    if row["op"] in KERNELS["python_timers"] and m < _HOST_BOUND_ROWS:
        return None
    return _product(row, KernelKind.GEMM, m, n, k)


def _grouped(row: dict[str, str]) -> Point | None:
    if row["op"] not in KERNELS["grouped_timers"] or not (row["m"] and row["n"] and row["k"] and row["batch"]):
        return None
    m, n, k, groups = (float(row[name]) for name in ("m", "n", "k", "batch"))
    return _product(row, KernelKind.GROUPED_GEMM, m, n, k, groups)


def _product(row: dict[str, str], kind: KernelKind, m: float, n: float, k: float, groups: float = 1.0) -> Point:
    """A product, or as many of one shape; backward is both gradients."""
    is_backward = row["op"] == "bwd"
    return Point(
        **_call(row, kind),
        direction=Direction.BACKWARD if is_backward else Direction.FORWARD,
        casts=_casts(row),
        seconds=(4.0 if is_backward else 2.0) * m * n * k * groups / _rate(row),
        group=f"{n:.0f}x{k:.0f}",
        m=m,
        n=n,
        k=k,
        groups=groups,
    )


# TensorRT-LLM's block-scaled MoE layer on Hopper spends up to 60 % outside its products (0.22 PFLOP/s where the
# per-tensor layer reaches 0.42 and DeepGEMM's grouped kernel 1.1): it says nothing about the products.
_UNFUSED_BLOCK_MOE = {"H100", "H200"}


def _moe_layer(row: dict[str, str]) -> Point | None:
    """Balanced routing only: a skewed one measures its skew. The A100 sweep has skewed rows alone and keeps them."""
    routing = re.search(r"top(\d+)/(\d+) experts, (\w+)", row["notes"])
    if row["dtype"] == "fp8_blockwise" and row["gpu"] in _UNFUSED_BLOCK_MOE:
        return None
    if routing is None or (routing[3] != "balanced" and row["gpu"] != "A100"):
        return None
    tokens, inner, hidden, top_k = float(row["m"]), float(row["n"]), float(row["k"]), float(routing[1])
    return Point(
        **_call(row, KernelKind.MOE_LAYER),
        direction=Direction.FORWARD,
        casts=0 if _CODES[row["dtype"]] == Fp8.NONE else 1,
        seconds=6.0 * tokens * top_k * inner * hidden / _rate(row),
        group=f"{inner:.0f}x{hidden:.0f}",
        m=tokens,
        n=inner,
        k=hidden,
        groups=float(routing[2]),
        top_k=top_k,
    )


def _family(row: dict[str, str]) -> str | None:
    if "cudnn-frontend" in row["source"]:
        return None if "deterministic" in row["notes"] and row["gpu"] != "H200" else "cudnn"
    if row["op"] in ("fwd", "bwd"):
        if "ROCm/aiter" in row["source"]:
            return "aiter"
        return "turbo" if "flash_attn (aiter/CK)" in row["notes"] else None
    return _FAMILIES.get(row["op"])


def _attention(row: dict[str, str]) -> Point | None:
    family = _family(row)
    if family is None or row["dtype"] not in ("bf16", "fp16") or not (row["seq"] and row["heads"]):
        return None
    heads, _, kv_heads = row["heads"].partition("/")
    qk_dim, _, v_dim = row["head_dim"].partition("/")
    window = re.search(r"sliding window (\d+)", row["notes"])
    direction = (
        Direction.BOTH
        if row["op"].startswith("fwd_bwd")
        else (Direction.BACKWARD if row["op"].startswith("bwd") else Direction.FORWARD)
    )
    shape: dict[str, Any] = {
        "batch": float(row["batch"] or 1),
        "heads": float(heads),
        "seq": float(row["seq"]),
        "qk_dim": float(qk_dim),
        "v_dim": float(v_dim or qk_dim),
        "window": float(window[1]) if window else 0.0,
    }
    is_causal = row["causal"].lower() == "true"
    return Point(
        **_call(row, KernelKind.ATTENTION),
        direction=direction,
        casts=0,
        seconds=_attention_flops(is_causal=is_causal, **shape) * (1.0, 2.5, 3.5)[direction] / _rate(row),
        group=f"{row['head_dim']}:{row['heads']}:{row['seq']}",
        family=family,
        kv_heads=float(kv_heads or heads),
        is_causal=is_causal,
        **shape,
    )


def _attention_flops(
    *, batch: float, heads: float, seq: float, qk_dim: float, v_dim: float, window: float, is_causal: bool
) -> float:
    """FLOPs as the benchmarks count them: causal halved, a window counted as what it leaves."""
    keys = min(window, seq) if window else seq
    pairs = seq * keys - (0.5 * keys * keys if is_causal else 0.0)
    return 2.0 * batch * heads * pairs * (qk_dim + v_dim)
