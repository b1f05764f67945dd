"""What a device's table is swept over: shapes of GEMMs, attention and expert products, each forward and backward.

Every call is one entry: its columns in the table, the FLOPs its rate is stated in, and a function that makes operands
(fresh random ones) and returns the call to time. A kernel the device lacks leaves its rows out and is named.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from primus_search.measure.device.device_info import CPU, TORCH_NAMES, heat, on
from primus_search.measure.device.timing import measure
from primus_search.measure.modules.attention_modules import core_attention
from primus_search.measure.modules.experts import grouped_product
from primus_search.measure.modules.linear import precise8, scaled_mm, wide8
from primus_search.values.machine.accelerator import GROUPED

TERA = 1e12
BACKWARD_ATTENTION = 2.5  # five products against two, as in cost/laws/attention.py
FP8_MULTIPLE = 16  # of every dimension, which torch's scaled product asks for
_FATAL = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSweep:
    """Shapes to measure: GEMMs (m, n, k), attention (batch, query heads, key heads, seq, query dim, value dim), experts
    (groups, rows, n, k); seconds for one call, and for a family; bytes of messages between devices."""

    gemms: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int, int, int], ...]
    experts: tuple[tuple[int, int, int, int], ...]
    budget_s: float
    family_s: float
    messages: tuple[int, ...]


# Sizes stand around those of real layers and on none of them, so that layers are a test of what was fitted.
_WIDE = (
    (2048, 2048), (5120, 5120), (8192, 8192), (2048, 8192), (8192, 2048), (12288, 4096), (28672, 8192),
    (5120, 13824), (2560, 10240), (20480, 2560), (640, 2560), (5120, 640), (65536, 4096), (100352, 2560),
)  # fmt: skip
_EXPERTS = ((24576, 4096), (4096, 12288), (3072, 2048), (2048, 1536))
FULL = ShapeSweep(
    gemms=(
        *((m, n, k) for (n, k), m in itertools.product(_WIDE, (2048, 4096, 8192))),
        *((1024, 4096, 4096), (1024, 8192, 8192), (16384, 4096, 4096), (16384, 8192, 8192)),
    ),
    attention=(
        *(
            (batch, heads, heads, seq, dim, dim)
            for batch, heads, seq in ((8, 16, 1024), (1, 32, 2048), (4, 32, 2048), (1, 24, 4096), (1, 40, 4096),
                                      (2, 32, 4096), (1, 32, 8192), (1, 16, 16384))
            for dim in (64, 128)
        ),
        *((1, heads, heads // 4, seq, 128, 128) for heads, seq in ((64, 4096), (32, 8192))),
        *((batch, heads, heads, seq, 192, 128) for batch, heads, seq in ((1, 16, 2048), (1, 32, 4096), (1, 16, 8192))),
    ),
    experts=(
        *((8, rows, n, k) for rows, (n, k) in itertools.product((256, 768, 1536, 4096), _EXPERTS)),
        *((48, rows, n, k) for rows, (n, k) in itertools.product((128, 512, 1024), _EXPERTS[2:])),
    ),
    budget_s=0.5,
    family_s=100.0,
    messages=tuple(1 << power for power in range(12, 31, 2)),
)  # fmt: skip
TINY = ShapeSweep(
    gemms=((64, 64, 64),), attention=((1, 2, 2, 64, 16, 16),), experts=((2, 16, 32, 16),), budget_s=0.02, family_s=60.0,
    messages=(1 << 10, 1 << 14),
)  # fmt: skip
SWEEPS = {"full": FULL, "tiny": TINY}

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeEntry:
    """One call of a sweep: its columns, the FLOPs of its rate, and what prepares the call."""

    columns: dict[str, Any]
    flops: float
    prepare: Callable[[], Call]


def run_family(
    family: str, sweep: ShapeSweep, kind: str, common: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of one family of kernels on this device, and what could not be measured in words, each cause once."""
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    started = time.perf_counter()
    heat(kind)
    with on(kind):
        entries = list(FAMILIES[family](sweep, TORCH_NAMES[kind]))
        for number, entry in enumerate(entries):
            what = f"{family} {entry.columns['op']} {entry.columns['dtype']}"
            if time.perf_counter() - started > sweep.family_s:
                missing.append(
                    f"{family}: {len(entries) - number} of {len(entries)} shapes: {sweep.family_s:.0f} s were up"
                )
                break
            try:
                seconds = measure(entry.prepare(), device=kind, budget_s=sweep.budget_s).median_s
            except RuntimeError as error:  # a missing kernel, no memory: other shapes may run
                missing.append(f"{what}: {str(error).splitlines()[0]}")
                if any(text in str(error) for text in _FATAL):
                    break  # this process's context is lost
                continue
            rows.append(common | entry.columns | {"kind": family, "value": entry.flops / seconds / TERA})
    return rows, list(dict.fromkeys(missing))


def _random(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.bfloat16)


def _gemms(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.gemms:
        shape = dict(zip("mnk", sizes, strict=True))
        flops = 2.0 * math.prod(sizes)
        plain, eighth = shape | {"dtype": "bf16"}, shape | {"dtype": "fp8_tensorwise"}
        yield ShapeEntry(columns=plain | {"op": "fwd"}, flops=flops, prepare=partial(_forward, *sizes))
        yield ShapeEntry(columns=plain | {"op": "bwd"}, flops=2.0 * flops, prepare=partial(_backward, *sizes))
        if device != CPU and not any(size % FP8_MULTIPLE for size in sizes):
            yield ShapeEntry(columns=eighth | {"op": "fwd"}, flops=flops, prepare=partial(_forward8, *sizes))
            yield ShapeEntry(columns=eighth | {"op": "bwd"}, flops=2.0 * flops, prepare=partial(_backward8, *sizes))


def _forward(m: int, n: int, k: int) -> Call:
    x, w = _random(m, k), _random(n, k)
    return lambda: x @ w.t()


def _backward(m: int, n: int, k: int) -> Call:
    x, w, g = _random(m, k), _random(n, k), _random(m, n)
    return lambda: (g @ w, g.t() @ x)


def _forward8(m: int, n: int, k: int) -> Call:
    (x8, x_scale), (w8, w_scale) = precise8(_random(m, k)), precise8(_random(n, k))
    return lambda: scaled_mm(x8, w8.t(), x_scale, w_scale, torch.bfloat16)


def _backward8(m: int, n: int, k: int) -> Call:
    """Both gradients, their operands turned beforehand: matrix units read FP8 along the inner dimension."""
    (x8, x_scale), (w8, w_scale) = precise8(_random(m, k)), precise8(_random(n, k))
    g8, g_scale = wide8(_random(m, n))
    w_turned, x_turned, g_turned = w8.t().contiguous().t(), x8.t().contiguous().t(), g8.t().contiguous()

    def run() -> tuple[Tensor, Tensor]:
        grad_x = scaled_mm(g8, w_turned, g_scale, w_scale, torch.bfloat16)
        return grad_x, scaled_mm(g_turned, x_turned, g_scale, x_scale, torch.bfloat16)

    return run


def _attentions(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.attention:
        batch, heads, kv_heads, seq, dim, v_dim = sizes
        shape = {"seq": seq, "batch": batch, "causal": "true", "dtype": "bf16"}
        shape |= {"head_dim": dim if dim == v_dim else f"{dim}/{v_dim}"}
        shape |= {"heads": heads if heads == kv_heads else f"{heads}/{kv_heads}"}
        flops = 2.0 * batch * heads * (dim + v_dim) * seq * seq / 2.0
        yield ShapeEntry(columns=shape | {"op": "fwd_torch_sdpa"}, flops=flops, prepare=partial(_attend, *sizes))
        backward = partial(_attend_backward, *sizes)
        yield ShapeEntry(columns=shape | {"op": "bwd_torch_sdpa"}, flops=BACKWARD_ATTENTION * flops, prepare=backward)


def _operands(batch: int, heads: int, kv_heads: int, seq: int, dim: int, v_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _random(batch, heads, seq, dim), _random(batch, kv_heads, seq, dim), _random(batch, kv_heads, seq, v_dim)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def _attend(*sizes: int) -> Call:
    q, k, v = _operands(*sizes)
    return lambda: core_attention(q, k, v, seq_length=q.shape[2], window=0)


def _attend_backward(*sizes: int) -> Call:
    q, k, v = _operands(*sizes)
    return _gradients(core_attention(q, k, v, seq_length=q.shape[2], window=0), q, k, v)


def _gradients(out: Tensor, *inputs: Tensor) -> Call:
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _experts(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.experts:
        groups, rows, n, k = sizes
        shape = {"m": rows, "n": n, "k": k, "batch": groups, "dtype": "bf16"}
        flops = 2.0 * math.prod(sizes)
        yield ShapeEntry(columns=shape | {"op": "fwd"}, flops=flops, prepare=partial(_grouped, *sizes))
        backward = partial(_grouped_backward, *sizes)
        yield ShapeEntry(columns=shape | {"op": "bwd"}, flops=2.0 * flops, prepare=backward)


def _grouped(groups: int, rows: int, n: int, k: int) -> Call:
    x, w = _random(groups, rows, k), _random(groups, k, n)
    return lambda: grouped_product(x, w)


def _grouped_backward(groups: int, rows: int, n: int, k: int) -> Call:
    x, w = _random(groups, rows, k).requires_grad_(), _random(groups, k, n).requires_grad_()
    return _gradients(grouped_product(x, w), x, w)


FAMILIES: dict[str, Callable[[ShapeSweep, str], Iterator[ShapeEntry]]] = {
    "gemm": _gemms,
    "attention": _attentions,
    GROUPED: _experts,
}
