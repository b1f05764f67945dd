"""Seconds of the expert products of one rank: `groups` GEMMs with `rows` rows each.

TURBO is one kernel over all experts: its tiles share the waves, so only the last wave of the whole call is incomplete.
LEGACY is one GEMM after another (the grouped_gemm package under Megatron's GroupedMLP): each pays its own launch and
its own last wave, all three passes run at the rate of a dense forward product, and it exists in BF16 only, whatever
the recipe. Parameters: `accelerator.GroupedGemmLaw`; formula of the tiles: `cost/laws/gemm.py`; sources and errors:
docs/cost/grouped_gemm.md.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.gemm import GemmPass, gemm_s, operand_bytes, tiled_s
from primus_search.cost.laws.measured_correction import corrected
from primus_search.values.candidates import Floats, Fp8, GroupedGemm
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.kernel_tables import GROUPED
from primus_search.values.machine.stack import Stack

LINE_BYTES = 128.0
"""Cache line of these devices: rows of one-byte operands that do not fill whole lines are read in pieces."""


def expert_products_s(
    acc: Accelerator,
    rows: ArrayLike,
    groups: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    precision: ArrayLike = Fp8.NONE,
    mode: ArrayLike = GroupedGemm.TURBO,
    gemm_pass: GemmPass = GemmPass.FORWARD,
) -> Floats:
    """Seconds of all experts' products on one rank, kernel only; 0 where there are no rows or no groups.

    `rows` is the mean per expert (may be fractional). n and k are those of the forward product (rows x k times
    k x n); the pass turns them: input gradient (rows, k, n), weight gradient (k, n, rows).
    """
    rows, groups = np.asarray(rows, np.float64), np.asarray(groups, np.float64)
    n, k = np.asarray(n, np.float64), np.asarray(k, np.float64)
    code = expert_precision(precision, mode)
    a, b, depth = turned(rows, n, k, gemm_pass)
    is_legacy = np.asarray(mode, np.int64) == GroupedGemm.LEGACY
    fused = _fused_s(acc, a, b, depth, groups, code, gemm_pass)
    if acc.tables:
        direction = "fwd" if gemm_pass is GemmPass.FORWARD else "bwd"
        law = partial(_direction_s, acc, direction)
        fused = corrected(fused, acc.tables, GROUPED, direction, code, law, groups, rows, n, k)
    if not is_legacy.any():  # the usual table has one mode; the other costs as much to compute
        return fused + np.zeros(is_legacy.shape)
    one_by_one = groups * gemm_s(acc, a, b, depth, code, GemmPass.FORWARD)
    return np.where(is_legacy, one_by_one, fused)


def with_experts_of(acc: Accelerator, stack: Stack) -> Accelerator:
    """The device with the grouped products of a framework that brings its own: shares of its library's dense rate."""
    law = acc.grouped_gemm
    bf16 = (stack.experts.has_cutlass_products and law.cutlass_factor) or stack.experts.expert_gemm_share or law.factor
    fp8 = stack.experts.expert_fp8_gemm_share * acc.gemm.fp8_library_factor or law.fp8_factor
    return replace(acc, grouped_gemm=replace(law, factor=bf16, fp8_factor=fp8))


def expert_precision(precision: ArrayLike, mode: ArrayLike) -> NDArray[np.int64]:
    """Precision code the experts' products run in: that of the recipe, but BF16 in LEGACY mode, which has no other.

    Source: NVIDIA/Megatron-LM core/transformer/moe/experts.py, GroupedMLP (`grouped_gemm.ops.gmm` on BF16 weights).
    """
    return np.where(np.asarray(mode, np.int64) == GroupedGemm.LEGACY, int(Fp8.NONE), np.asarray(precision, np.int64))


def turned(rows: Floats, n: Floats, k: Floats, gemm_pass: GemmPass) -> tuple[Floats, Floats, Floats]:
    """(m, n, k) of one pass of a linear layer whose forward product is (rows, n, k)."""
    if gemm_pass is GemmPass.INPUT_GRAD:
        return rows, k, n
    if gemm_pass is GemmPass.WEIGHT_GRAD:
        return k, n, rows
    return rows, n, k


def _direction_s(
    acc: Accelerator, direction: str, code: np.ndarray, groups: Floats, rows: Floats, n: Floats, k: Floats
) -> Floats:
    """The fused law of a forward pass, or of both gradients together: what benchmarks time."""
    passes = (GemmPass.FORWARD,) if direction == "fwd" else (GemmPass.INPUT_GRAD, GemmPass.WEIGHT_GRAD)
    total = np.zeros(np.shape(rows))
    for gemm_pass in passes:
        total = total + _fused_s(acc, *turned(rows, n, k, gemm_pass), groups, code, gemm_pass)
    return total


def _fused_s(
    acc: Accelerator, m: Floats, n: Floats, k: Floats, groups: Floats, code: np.ndarray, gemm_pass: GemmPass
) -> Floats:
    law = acc.grouped_gemm
    is_backward = gemm_pass is not GemmPass.FORWARD
    bf16 = law.factor * (law.backward_factor if is_backward else 1.0)
    fp8 = np.asarray(law.fp8_factor * (law.fp8_backward_factor if is_backward else 1.0))
    if gemm_pass is not GemmPass.WEIGHT_GRAD:  # its depth is the tokens of an expert, which are padded
        fp8 = fp8 * np.where(k % LINE_BYTES == 0, 1.0, law.fp8_unaligned_factor)
    extra_depth = law.gradient_depth_overhead if gemm_pass is GemmPass.WEIGHT_GRAD else 0.0
    busy_s = tiled_s(acc, m, n, k, groups, code, GemmPass.FORWARD, extra_depth)
    busy_s /= np.where(code == Fp8.NONE, bf16, fp8)
    bytes_moved = groups * ((m * k + k * n) * operand_bytes(code) + m * n * BF16_BYTES)
    traffic_s = bytes_moved / (acc.hbm_bytes_per_s * acc.memory.stream_efficiency)
    return np.where(m * n * k * groups > 0, acc.gemm.latency_s + np.maximum(busy_s, traffic_s), 0.0)
