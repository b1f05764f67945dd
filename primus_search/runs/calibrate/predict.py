"""The laws of `cost/` on measured points: seconds as the benchmark would have seen them.

A benchmark on a cool device runs at a higher clock than training: its compute is faster by
1 / `sustained_over_burst`, its memory traffic is not. So a point of the burst tier is predicted by the same laws on a
device whose peaks are that much higher; the efficiencies in the hardware file stay those of the sustained tier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import InputError, Problem
from primus_search.cost.laws import collectives
from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s, quantize_s
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.declare.hardware_files import Hardware
from primus_search.runs.calibrate.points import Direction, KernelKind, Point, read_points, rows_of
from primus_search.values.candidates import Floats, Fp8, GroupedGemm
from primus_search.values.machine.cluster import Accelerator

BF16_BYTES = 2.0


class PointTable:
    """Points of one device as columns, split once so that a fit can predict them many times."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.measured_s = np.array([point.seconds for point in points])
        self.groups = np.array([point.group for point in points])
        self._parts: list[tuple[NDArray[np.int64], tuple[KernelKind, Direction, bool, str], dict[str, Floats]]] = []
        keys = [(point.kind, point.direction, point.is_burst, point.family) for point in points]
        for key in dict.fromkeys(keys):
            rows = np.array([i for i, other in enumerate(keys) if other == key], np.int64)
            chosen = [points[i] for i in rows]
            self._parts.append((rows, key, _columns(chosen)))

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


def at_burst(acc: Accelerator) -> Accelerator:
    """The device at the clocks of a short run."""
    gain = 1.0 / acc.sustained_over_burst
    return replace(
        acc,
        bf16_peak_flops_per_s=acc.bf16_peak_flops_per_s * gain,
        fp8_peak_flops_per_s=acc.fp8_peak_flops_per_s * gain,
        fp4_peak_flops_per_s=acc.fp4_peak_flops_per_s * gain,
    )


_NUMBERS = (
    "m n k groups top_k batch heads kv_heads seq qk_dim v_dim window casts".split()  # noqa: SIM905 - reads as a row
)


def _columns(points: Sequence[Point]) -> dict[str, Floats]:
    columns = {name: np.array([getattr(point, name) for point in points], np.float64) for name in _NUMBERS}
    columns["code"] = np.array([point.code for point in points], np.int64)
    columns["causal"] = np.array([point.is_causal for point in points], np.bool_)
    return columns


def _product_s(acc: Accelerator, kind: KernelKind, direction: Direction, c: dict[str, Floats]) -> Floats:
    """A dense or grouped GEMM, forward or both gradients, with the casts its benchmark includes.

    Forward casts the activation and, where both operands are cast, the weight; backward casts the output gradient. An
    autograd operation (both cast) with scales per block also writes the transpose, whose blocks run the other way.
    """
    m, n, k, groups, code = c["m"], c["n"], c["k"], c["groups"], c["code"]
    if direction is Direction.FORWARD:
        elements = np.where(c["casts"] > 0, groups * m * k, 0.0) + np.where(c["casts"] > 1, groups * k * n, 0.0)
        passes: tuple[GemmPass, ...] = (GemmPass.FORWARD,)
    else:
        elements = np.where(c["casts"] > 0, groups * m * n, 0.0)
        passes = (GemmPass.INPUT_GRAD, GemmPass.WEIGHT_GRAD)
    seconds = np.zeros_like(m)
    for gemm_pass in passes:
        if kind is KernelKind.GROUPED_GEMM:
            seconds += expert_products_s(acc, m, groups, n, k, code, GroupedGemm.TURBO, gemm_pass)
        else:
            shape = {GemmPass.FORWARD: (m, n, k), GemmPass.INPUT_GRAD: (m, k, n), GemmPass.WEIGHT_GRAD: (k, n, m)}[
                gemm_pass
            ]
            seconds += gemm_s(acc, *shape, code, gemm_pass)
    layouts = np.where((c["casts"] > 1) & (code != Fp8.HYBRID), 2, 1)
    total: Floats = seconds + quantize_s(acc, elements, code, layouts)
    return total


def _moe_layer_s(acc: Accelerator, c: dict[str, Floats]) -> Floats:
    """Permute, gate-and-up, activation, down, unpermute of `m` tokens over `groups` experts on one device."""
    tokens, inner, hidden, code = c["m"], c["n"], c["k"], c["code"]
    copies = tokens * c["top_k"]
    experts = np.minimum(c["groups"], copies)
    rows = copies / experts
    products = expert_products_s(acc, rows, experts, 2.0 * inner, hidden, code) + expert_products_s(
        acc, rows, experts, hidden, inner, code
    )
    permute = 2.0 * stream_s(acc, BF16_BYTES * (tokens + copies) * hidden, Stream.PERMUTE)
    activation = stream_s(acc, BF16_BYTES * 3.0 * copies * inner, Stream.ELEMENTWISE)
    casts = quantize_s(acc, copies * hidden, code, layouts=1) + quantize_s(acc, copies * inner, code, layouts=1)
    total: Floats = products + permute + activation + casts
    return total


def _attention_s(acc: Accelerator, direction: Direction, family: str, c: dict[str, Floats]) -> Floats:
    call = attention_s(
        acc,
        family,
        batch=c["batch"],
        heads=c["heads"],
        kv_heads=c["kv_heads"],
        seq_q=c["seq"],
        seq_kv=c["seq"],
        qk_dim=c["qk_dim"],
        v_dim=c["v_dim"],
        window=c["window"],
        causal=c["causal"],
    )
    if direction is Direction.BOTH:
        both: Floats = call.forward_s + call.backward_s
        return both
    return call.backward_s if direction is Direction.BACKWARD else call.forward_s


# --- a site against its hardware file -----------------------------------------------------------------------------

COLLECTIVES = {
    name: getattr(collectives, f"{name}_s")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
}
SLOW = 0.9
"""Share of the file's speed below which a site is slow: sweeps that a law is fitted to lie within 10 % of it."""


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
