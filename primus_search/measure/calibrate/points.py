"""Measured kernels as typed points: one row of a CSV is one call of one kernel on one device, and its seconds.

The columns of the CSV are kind, gpu, dtype, op, m, n, k, seq, head_dim, heads, batch, causal, value, unit, source,
notes. What a benchmark includes (clocks settled or not, casts or not, forward or both gradients) stands in free text
there and becomes fields here; rows that state a threshold, an average or a best shape are not points and are left out.

The laws of `cost/` on measured points: seconds as the benchmark would have seen them.

A benchmark on a cool device runs at a higher clock than training: its compute is faster by
1 / `sustained_over_burst`, its memory traffic is not. So a point of the burst tier is predicted by the same laws on a
device whose peaks are that much higher; the efficiencies in the hardware file stay those of the sustained tier.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.base.units import TB
from primus_search.cost.laws import collectives
from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s, quantize_s
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.evidence.validate.score_runs import places
from primus_search.files.hardware_files import Hardware
from primus_search.files.source import read
from primus_search.files.word_rules import first
from primus_search.values.candidates import Floats, Fp8, GroupedGemm
from primus_search.values.machine.cluster import Accelerator


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


BF16_BYTES = 2.0


class PointTable:
    """Points of one device as columns, split once so that a fit can predict them many times."""

    def __init__(self, points: Sequence[Point]) -> None:
        columns = {field.name: np.array([getattr(point, field.name) for point in points]) for field in fields(Point)}
        self.measured_s, self.groups = columns["seconds"], columns["group"]
        parts = places((point.kind, point.direction, point.is_burst, point.family) for point in points)
        self._parts = [(rows, key, {name: of[rows] for name, of in columns.items()}) for key, rows in parts.items()]

    def __len__(self) -> int:
        return len(self.measured_s)

    def predict_s(self, acc: Accelerator) -> Floats:
        """Seconds of every point by the laws, in the order of the points."""
        seconds = np.empty(len(self))
        for rows, (kind, direction, is_burst, family), c in self._parts:
            device = at_burst(acc) if is_burst else acc
            if kind is KernelKind.ATTENTION:
                seconds[rows] = _attention_s(device, direction, family, c)
            elif kind is KernelKind.MOE_LAYER:
                seconds[rows] = _moe_layer_s(device, c)
            else:
                seconds[rows] = _product_s(device, kind, direction, c)
        return seconds


PEAKS = ("bf16_peak_flops_per_s", "fp8_peak_flops_per_s", "fp4_peak_flops_per_s")


def at_burst(acc: Accelerator) -> Accelerator:
    """The device at the clocks of a short run."""
    peaks: dict[str, Any] = {name: getattr(acc, name) * (1.0 / acc.sustained_over_burst) for name in PEAKS}
    return replace(acc, **peaks)


def _product_s(acc: Accelerator, kind: KernelKind, direction: Direction, c: dict[str, Floats]) -> Floats:
    """A dense or grouped GEMM, forward or both gradients, with the casts its benchmark includes.

    Forward casts the activation and, where both operands are cast, the weight; backward casts the output gradient. An
    autograd operation (both cast) with scales per block also writes the transpose, whose blocks run the other way.
    """
    m, n, k, groups, code = c["m"], c["n"], c["k"], c["groups"], c["code"]
    if direction is Direction.FORWARD:
        elements = np.where(c["casts"] > 0, groups * m * k, 0.0) + np.where(c["casts"] > 1, groups * k * n, 0.0)
        shapes = {GemmPass.FORWARD: (m, n, k)}
    else:
        elements = np.where(c["casts"] > 0, groups * m * n, 0.0)
        shapes = {GemmPass.INPUT_GRAD: (m, k, n), GemmPass.WEIGHT_GRAD: (k, n, m)}
    seconds = np.zeros_like(m)
    for gemm_pass, shape in shapes.items():
        if kind is KernelKind.GROUPED_GEMM:
            seconds += expert_products_s(acc, m, groups, n, k, code, GroupedGemm.TURBO, gemm_pass)
        else:
            seconds += gemm_s(acc, *shape, code, gemm_pass)
    layouts = np.where((c["casts"] > 1) & (code != Fp8.HYBRID), 2, 1)
    return np.asarray(seconds + quantize_s(acc, elements, code, layouts))


def _moe_layer_s(acc: Accelerator, c: dict[str, Floats]) -> Floats:
    """Permute, gate-and-up, activation, down, unpermute of `m` tokens over `groups` experts on one device."""
    tokens, inner, hidden, code = c["m"], c["n"], c["k"], c["code"]
    copies = tokens * c["top_k"]
    experts = np.minimum(c["groups"], copies)
    rows = copies / experts
    products = expert_products_s(acc, rows, experts, 2.0 * inner, hidden, code)
    products += expert_products_s(acc, rows, experts, hidden, inner, code)
    permute = 2.0 * stream_s(acc, BF16_BYTES * (tokens + copies) * hidden, Stream.PERMUTE)
    activation = stream_s(acc, BF16_BYTES * 3.0 * copies * inner, Stream.ELEMENTWISE)
    casts = quantize_s(acc, copies * hidden, code, layouts=1) + quantize_s(acc, copies * inner, code, layouts=1)
    return np.asarray(products + permute + activation + casts)


def _attention_s(acc: Accelerator, direction: Direction, family: str, c: dict[str, Floats]) -> Floats:
    sizes = {name: c[name] for name in ("batch", "heads", "kv_heads", "qk_dim", "v_dim", "window")}
    call = attention_s(acc, family, **sizes, seq_q=c["seq"], seq_kv=c["seq"], causal=c["is_causal"])
    if direction is Direction.BOTH:
        return np.asarray(call.forward_s + call.backward_s)
    return call.backward_s if direction is Direction.BACKWARD else call.forward_s


# --- a site against its hardware file -----------------------------------------------------------------------------

COLLECTIVES = {
    name: getattr(collectives, f"{name}_s")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
}
SLOW = 0.9
"""Share of the file's speed below which a site is called slow, for its median over one kind of call: a round number.

Below it lies none of 61 published sweeps of kernels (one device, kind and format each), the lowest at 0.91 and 19 of 20
above 0.95, 2026-11-24. Most laws were fitted to these sweeps, their single points lie at 0.2 to 1.6, and collectives
were not among them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteShare:
    """How fast a site runs one kind of call: its median speed over that of the hardware file, and the range of it."""

    what: str
    num_points: int
    share: float
    low: float
    high: float

    @property
    def is_slow(self) -> bool:
        return self.share < SLOW


def site_shares(path: Path, hardware: Hardware) -> tuple[list[SiteShare], int]:
    """Measured points of one device against what its hardware file expects of it, by kind of call and number format.

    Also how many of its rows are of no law's kind or format, and were compared with nothing.

    path  CSV of `calibrate --device` or `bench --site`: kernels in TFLOP/s, collectives of one node in microseconds
    Raises InputError where it holds no point of that device.
    """
    points = [point for point in read_points(path) if point.gpu == hardware.name]
    shares: dict[str, list[float]] = {}
    expected_s = PointTable(points).predict_s(hardware.accelerator) if points else ()
    for point, seconds in zip(points, expected_s, strict=True):
        form = "" if point.kind is KernelKind.ATTENTION else f" {'BF16' if point.code is Fp8.NONE else point.code.name}"
        name = point.kind.name.replace("_", " ").lower().replace("gemm", "GEMM")
        shares.setdefault(f"{name}{form}", []).append(float(seconds / point.seconds))
    rows = [row for row in rows_of(path) if row["gpu"] == hardware.name]
    for row in rows:
        if row["kind"] == "collective" and row["op"] in COLLECTIVES:
            group = collectives.Group(int(row["num_gpus"]), 1)
            seconds = float(COLLECTIVES[row["op"]](hardware.network, float(row["message_bytes"]), group))
            shares.setdefault(f"{row['op'].replace('_', '-')} in a node", []).append(
                seconds / (1e-6 * float(row["value"]))
            )
    if not shares:
        raise InputError([Problem("--site", f"{path} has no point of {hardware.name}")])
    found = [
        SiteShare(what=what, num_points=len(all_), share=float(np.median(all_)), low=min(all_), high=max(all_))
        for what, all_ in shares.items()
    ]
    return found, len(rows) - sum(one.num_points for one in found)
