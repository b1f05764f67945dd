"""The laws of `cost/` on measured points: seconds as the benchmark would have seen them.

A benchmark on a cool device runs at a higher clock than training: its compute is faster by
1 / `sustained_over_burst`, its memory traffic is not. So a point of the burst tier is predicted by the same laws on a
device whose peaks are that much higher; the efficiencies in the hardware file stay those of the sustained tier.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from primus_search.base.positions import places
from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s, quantize_s
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.measure.calibrate.points import Direction, KernelKind, Point
from primus_search.values.candidates import Floats, Fp8, GroupedGemm
from primus_search.values.machine.accelerator import Accelerator

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
