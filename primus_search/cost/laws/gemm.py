"""Seconds of one dense matrix product on one device, and of bringing its operands to low precision.

A GEMM of (m, n, k) multiplies an m x k by a k x n matrix. Output tiles of a x b are spread over the compute units;
a library picks the tile that finishes first, and so does the law:

    cost(a, b) = waves(a, b) * a * b * (1 + h (1/a + 1/b)) * (k + k0)
    compute_s  = 2 * units * min over tiles of cost / (efficiency * peak)
    waves      = t^(1-p) * max(ceil(t), 1)^p,  t = ceil(m/a) * ceil(n/b) / units
    time       = latency + max(compute_s, operand bytes / achieved bandwidth)

h prices the edges of a tile (its loads grow with a + b, its work with a * b), k0 prologue and epilogue, and p how much
of an incomplete last wave is lost (idle units leave power to the busy ones, so less than all of it).
Parameters: `accelerator.GemmLaw`. Derivation, alternatives and errors: docs/cost/gemm.md.
"""

from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.measured_correction import corrected
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.values.candidates import Bools, Floats, Fp8
from primus_search.values.machine.accelerator import Accelerator


class GemmPass(IntEnum):
    """Which of a linear layer's three products: y = x W, dx = dy W^T, dW = x^T dy."""

    FORWARD = 0
    INPUT_GRAD = 1
    WEIGHT_GRAD = 2


# Output tiles the BLAS libraries choose from (cuBLAS and hipBLASLt kernel names), rows x columns.
TILE_ROWS: Floats = np.array([256.0, 256.0, 128.0, 128.0, 128.0, 64.0, 64.0])
TILE_COLUMNS: Floats = np.array([256.0, 128.0, 256.0, 128.0, 64.0, 128.0, 64.0])
# Powers of two, so that multiplying is exact division.
_PER_TILE_ROW, _PER_TILE_COLUMN = 1.0 / TILE_ROWS, 1.0 / TILE_COLUMNS
_TILE_AREA, _TILE_EDGES = TILE_ROWS * TILE_COLUMNS, TILE_ROWS + TILE_COLUMNS


def gemm_s(
    acc: Accelerator,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    precision: ArrayLike = Fp8.NONE,
    gemm_pass: GemmPass = GemmPass.FORWARD,
) -> Floats:
    """Seconds of the kernel alone, sustained clocks; 0 where m, n or k is 0. Operands are already in `precision`.

    Casting operands is `quantize_s`. m, n, k are those of the product itself: for the weight gradient of a linear
    layer with T tokens pass (out, in, T). Near measured shapes the law is corrected by the accelerator's tables.
    """
    m, n, k, code = _columns(m, n, k, precision)
    seconds = _law_s(acc, gemm_pass, code, m, n, k)
    if not acc.tables:
        return seconds
    if gemm_pass is GemmPass.FORWARD:
        law = partial(_law_s, acc, GemmPass.FORWARD)
        return corrected(seconds, acc.tables, "gemm", "fwd", code, law, m, n, k)
    shape = (m, k, n) if gemm_pass is GemmPass.INPUT_GRAD else (k, m, n)  # of the forward product
    return corrected(seconds, acc.tables, "gemm", "bwd", code, partial(_both_gradients_s, acc), *shape)


def _both_gradients_s(acc: Accelerator, code: NDArray[np.int64], m: Floats, n: Floats, k: Floats) -> Floats:
    """Both gradients of a forward product (m, n, k), by the law: what benchmarks time as its backward."""
    input_grad = _law_s(acc, GemmPass.INPUT_GRAD, code, m, k, n)
    weight_grad = _law_s(acc, GemmPass.WEIGHT_GRAD, code, n, k, m)
    return input_grad + weight_grad


def _law_s(acc: Accelerator, gemm_pass: GemmPass, code: NDArray[np.int64], m: Floats, n: Floats, k: Floats) -> Floats:
    seconds = tiled_s(acc, m, n, k, np.float64(1.0), code, gemm_pass)
    bytes_moved = (m * k + k * n) * operand_bytes(code) + m * n * BF16_BYTES
    traffic_s = bytes_moved / (acc.hbm_bytes_per_s * acc.memory.stream_efficiency)
    return np.where(m * n * k > 0, acc.gemm.latency_s + np.maximum(seconds, traffic_s), 0.0)


def tiled_s(
    acc: Accelerator,
    m: Floats,
    n: Floats,
    k: Floats,
    groups: ArrayLike,
    code: NDArray[np.int64],
    gemm_pass: GemmPass,
    extra_depth: float = 0.0,
) -> Floats:
    """Seconds the compute units are busy with `groups` equal products; no traffic, no latency (module docstring)."""
    law = acc.gemm
    share = np.asarray(groups, np.float64) / acc.num_compute_units
    # Tiles come first, so that rows stay the long inner axis.
    by_tile = (len(TILE_ROWS),) + (1,) * max(m.ndim, n.ndim, share.ndim)
    waves = np.ceil(m * _PER_TILE_ROW.reshape(by_tile)) * np.ceil(n * _PER_TILE_COLUMN.reshape(by_tile)) * share
    whole = np.maximum(np.ceil(waves), 1.0)
    paid = whole * (waves / whole) ** (1.0 - law.occupancy_power)
    area = (_TILE_AREA + law.tile_overhead * _TILE_EDGES).reshape(by_tile)
    overhead = np.where(code == Fp8.NONE, law.depth_overhead, law.fp8_depth_overhead) + extra_depth
    cost = (paid * area).min(axis=0) * (k + overhead)
    result: Floats = 2.0 * acc.num_compute_units * cost / rate_flops_per_s(acc, code, gemm_pass)
    return result


def rate_flops_per_s(acc: Accelerator, code: NDArray[np.int64], gemm_pass: GemmPass) -> Floats:
    """Sustained FLOP/s deep inside a large tile, per precision code; BF16 where the device lacks the format."""
    law = acc.gemm
    is_backward = gemm_pass is not GemmPass.FORWARD
    bf16 = acc.bf16_peak_flops_per_s * law.bf16_efficiency * (law.backward_factor if is_backward else 1.0)
    fp8 = acc.fp8_peak_flops_per_s * (law.fp8_backward_factor if is_backward else 1.0)
    blocks = (law.mx_backward_factor or law.fp8_backward_factor) if is_backward else 1.0
    by_code = (
        bf16,
        fp8 * law.fp8_tensor_efficiency or bf16,
        fp8 * law.fp8_tensor_efficiency or bf16,
        fp8 * law.fp8_block_efficiency or bf16,
        fp8 * law.fp8_row_efficiency or bf16,
        acc.fp8_peak_flops_per_s * blocks * law.mxfp8_efficiency or bf16,
        acc.fp4_peak_flops_per_s * blocks * law.nvfp4_efficiency or bf16,
        acc.fp4_peak_flops_per_s * blocks * law.nvfp4_efficiency or bf16,
    )
    return np.array(by_code)[code]


# Bytes per element of an operand, per precision code; block formats carry one scale byte per 32 (MX) or 16 (NVFP4).
_OPERAND_BYTES: Floats = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0 + 1 / 32, 0.5 + 1 / 16, 0.5 + 1 / 32])

# HBM bytes per element a cast reads (BF16), and kernels it takes. Current scaling (HYBRID) reads twice, the maximum
# first and then the cast, with a tiny kernel for the scale between; NVFP4 likewise. Delayed, block and MX scaling know
# their scale when the element is read. ROWWISE reads once per layout: rows and columns have different scales.
_CAST_READS: Floats = np.array([0.0, 4.0, 2.0, 2.0, 4.0, 2.0, 4.0, 2.0])
_CAST_KERNELS: Floats = np.array([0.0, 3.0, 1.0, 1.0, 2.0, 1.0, 3.0, 1.0])


# Bytes read where the kernel that wrote the operand took part: it found the maximum (per-tensor current scaling, NVFP4)
# or wrote the low-precision operand itself (delayed scaling), which leaves nothing to read.
_FUSED_READS: Floats = np.array([0.0, 2.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0])
_FUSED_KERNELS: Floats = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0])


# Recipes whose activations tensor parallelism may gather in low precision. Row-wise ones are gathered in BF16: what
# arrives has one scale per token, and the weight gradient needs one per column (pytorch/torchtitan docs/float8.md).
GATHERS_LOW: Bools = np.array([False, True, True, True, False, True, True, True])


def operand_bytes(code: NDArray[np.int64]) -> Floats:
    """Bytes per element of a GEMM operand in this precision."""
    return _OPERAND_BYTES[code]


def quantize_s(acc: Accelerator, elements: ArrayLike, precision: ArrayLike, layouts: ArrayLike = 2) -> Floats:
    """Seconds to cast one BF16 operand to the recipe; 0 for BF16. Sources: docs/cost/fp8.md.

    `layouts` is 2 where the transpose is written as well (activations and gradients feed two products), 1 where one
    product uses the result. Where the cast is part of the producing kernel, do not call this.
    """
    code = np.asarray(precision, np.int64)
    count = np.asarray(elements, np.float64)
    bytes_moved = count * (_CAST_READS[code] + np.asarray(layouts, np.float64) * _OPERAND_BYTES[code])
    seconds = stream_s(acc, np.where(code == Fp8.NONE, 0.0, bytes_moved), Stream.CAST)
    extra_kernels = np.maximum(_CAST_KERNELS[code] - 1.0, 0.0)
    return np.where(seconds > 0, seconds + extra_kernels * acc.memory.latency_s, 0.0)


def operand_cast_s(
    acc: Accelerator, elements: Floats, share: ArrayLike, precision: NDArray[np.int64], is_fused: ArrayLike
) -> tuple[Floats, Floats]:
    """Seconds and kernels that bring one activation or gradient to the recipe for the two products it feeds.

    `share` of the elements is cast here, the rest arrives from other ranks in low precision. With one scale per tensor
    what arrived is transposed by a kernel of its own where products run along K only (`GemmLaw.fp8_layouts` 2); block
    recipes cast both layouts before they travel. `is_fused` as in `_FUSED_READS`. Sources: docs/cost/fp8.md.
    """
    code, share = precision, np.asarray(share, np.float64)
    size = _OPERAND_BYTES[code]
    is_tensor = (code == Fp8.HYBRID) | (code == Fp8.DELAYED)
    is_written = is_fused & (code == Fp8.DELAYED)
    is_apart = is_tensor & (is_written | (share < 1.0)) & (acc.gemm.fp8_layouts > 1.0)
    second = np.where(is_tensor, np.where(is_apart, 0.0, acc.gemm.fp8_layouts - 1.0), 1.0)
    reads = np.where(is_fused, _FUSED_READS[code], _CAST_READS[code])
    cast = share * elements * np.where(is_written, 0.0, reads + (1.0 + second) * size)
    apart = np.where(is_apart, 2.0 * size, 0.0) * elements
    is_low = (code != Fp8.NONE) & (elements > 0.0)
    kernels = np.where(is_low, np.where(is_fused, _FUSED_KERNELS[code], _CAST_KERNELS[code]) + is_apart, 0.0)
    moved = np.where(is_low, cast + apart, 0.0)
    seconds = stream_s(acc, moved, Stream.LIBRARY_CAST) + np.maximum(kernels - 1.0, 0.0) * acc.memory.latency_s
    return seconds, kernels


def _columns(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, precision: ArrayLike
) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    m, n, k = np.asarray(m, np.float64), np.asarray(n, np.float64), np.asarray(k, np.float64)
    return m, n, k, np.asarray(precision, np.int64)
