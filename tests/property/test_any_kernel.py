"""Any kernel of any size: the same alone as in a table, never above the peak, never cheaper for being larger."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.values.candidates import Fp8, GroupedGemm
from primus_search.values.machine.accelerator import Accelerator
from tests.support.accelerators import ACCELERATORS

SIZES = st.integers(1, 131_072)
RECIPES = st.sampled_from(list(Fp8))
PASSES = st.sampled_from(list(GemmPass))
DEVICE = st.sampled_from(list(ACCELERATORS.values()))


def peak_flops_per_s(acc: Accelerator, code: Fp8) -> float:
    if code is Fp8.NONE or not acc.fp8_peak_flops_per_s:
        return acc.bf16_peak_flops_per_s
    return max(acc.fp4_peak_flops_per_s if code in (Fp8.NVFP4, Fp8.MXFP4) else 0.0, acc.fp8_peak_flops_per_s)


@given(DEVICE, st.lists(st.tuples(SIZES, SIZES, SIZES, RECIPES), min_size=1, max_size=20), PASSES)
def test_a_product_costs_the_same_alone_as_in_a_table(
    acc: Accelerator, rows: list[tuple[int, int, int, Fp8]], gemm_pass: GemmPass
) -> None:
    m, n, k, code = (np.array(column) for column in zip(*rows, strict=True))
    table = gemm_s(acc, m, n, k, code, gemm_pass)
    for i, row in enumerate(rows):
        assert gemm_s(acc, *row, gemm_pass) == table[i]


@given(DEVICE, SIZES, SIZES, SIZES, RECIPES, PASSES)
def test_a_product_never_beats_the_peak_nor_the_memory(
    acc: Accelerator, m: int, n: int, k: int, code: Fp8, gemm_pass: GemmPass
) -> None:
    seconds = gemm_s(acc, m, n, k, code, gemm_pass)
    assert seconds >= 2.0 * m * n * k / peak_flops_per_s(acc, code)
    assert seconds >= 2.0 * m * n / acc.hbm_bytes_per_s


@given(DEVICE, SIZES, SIZES, SIZES, st.integers(1, 64), RECIPES, PASSES)
def test_experts_never_beat_the_peak(
    acc: Accelerator, rows: int, n: int, k: int, groups: int, code: Fp8, gemm_pass: GemmPass
) -> None:
    seconds = expert_products_s(acc, rows, groups, n, k, code, GroupedGemm.TURBO, gemm_pass)
    assert seconds >= 2.0 * rows * n * k * groups / peak_flops_per_s(acc, code)


@given(DEVICE, SIZES, SIZES, SIZES, st.integers(2, 8), RECIPES, st.sampled_from(["m", "n", "k"]))
def test_a_larger_product_is_never_cheaper(
    acc: Accelerator, m: int, n: int, k: int, factor: int, code: Fp8, grown: str
) -> None:
    size = {"m": m, "n": n, "k": k}
    larger = size | {grown: size[grown] * factor}
    assert gemm_s(acc, **larger, precision=code) >= gemm_s(acc, **size, precision=code) * (1.0 - 1e-12)


@given(
    DEVICE,
    st.integers(1, 16),
    st.integers(1, 128),
    st.integers(128, 131_072),
    st.sampled_from([64, 128, 192, 256]),
    st.sampled_from([0, 128, 4096]),
    st.booleans(),
)
def test_attention_is_monotone_in_sequence_and_batch(
    acc: Accelerator, batch: int, heads: int, seq: int, dim: int, window: int, causal: bool
) -> None:
    kernel = "cudnn" if acc.vendor == "nvidia" else "aiter"

    def seconds(batch: int, seq: int) -> tuple[float, float]:
        result = attention_s(
            acc,
            kernel,
            batch=batch,
            heads=heads,
            kv_heads=heads,
            seq_q=seq,
            seq_kv=seq,
            qk_dim=dim,
            v_dim=dim,
            window=window,
            causal=causal,
        )
        return float(result.forward_s), float(result.backward_s)

    once = seconds(batch, seq)
    assert 0 < once[0] < once[1]
    assert seconds(batch, 2 * seq) >= once
    assert seconds(2 * batch, seq) >= once


@given(DEVICE, st.floats(1.0, 1e12), st.sampled_from(list(Stream)))
def test_a_stream_never_beats_the_memory(acc: Accelerator, moved: float, kind: Stream) -> None:
    assert stream_s(acc, moved, kind) > moved / acc.hbm_bytes_per_s
