"""Kernels that only a GPU has, with a plain one in their place: what is handed to them and what comes back."""

import pytest
import torch

from primus_search.measure.device import device_table
from primus_search.measure.isolate import ProcessOutcome, ProcessVerdict
from primus_search.measure.modules import products
from primus_search.measure.modules.attention_modules import _windowed, core_attention
from primus_search.measure.modules.fused_operations import MissingKernelError, swiglu
from primus_search.measure.modules.products import grouped_product


def packed_attention(query, key, value, ends, ends_k, most, most_k, *, window_size, enable_gqa):
    """Attention over sequences packed one after another, every score written out."""
    assert most == most_k and (ends == ends_k).all()
    before, after = window_size
    out = torch.empty_like(query)
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        q, k, v = (part[start:end].transpose(0, 1) for part in (query, key, value))
        if enable_gqa:
            k, v = (part.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for part in (k, v))
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (distance <= before) & (distance >= -after)
        out[start:end] = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1)
    return out


def test_a_window_sees_as_many_keys_as_it_says_its_own_included(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", packed_attention)
    q, k, v = torch.randn(2, 4, 12, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    distance = torch.arange(12)[:, None] - torch.arange(12)
    seen = (distance >= 0) & (distance < 5)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    assert torch.allclose(_windowed(q, k, v, 5), wanted, atol=1e-6)


def test_an_older_torch_or_a_cpu_has_no_window_and_says_so(monkeypatch):
    q = torch.randn(1, 2, 8, 4)
    with pytest.raises(MissingKernelError, match="no windowed attention kernel in torch for cpu"):
        core_attention(q, q, q, seq_length=8, window=4)
    monkeypatch.setattr(
        "torch.nn.attention.varlen.varlen_attn", lambda query, key, value, ends, ends_k, most, most_k: query
    )
    with pytest.raises(MissingKernelError, match="has no windowed attention"):
        _windowed(q, q, q, 4)


def test_one_kernel_for_all_experts_is_the_product_of_each(monkeypatch):
    """torch runs its grouped GEMM on a CPU too, slowly: enough to compare it, gradients included."""
    monkeypatch.setattr(products, "has_grouped_kernel", lambda *_: True)
    rows, weights = (torch.randn(3, 16, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    out = grouped_product(rows, weights)
    found = torch.autograd.grad(out, (rows, weights), torch.ones_like(out))
    wanted = torch.bmm(rows, weights)
    gradients = torch.autograd.grad(wanted, (rows, weights), torch.ones_like(wanted))
    for one, other in zip((out, *found), (wanted, *gradients), strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("has_weights", [False, True])
def test_gradients_of_the_fused_activation_are_those_of_its_formula(has_weights):
    gate_up, grad = torch.randn(3, 5, 16, dtype=torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
    weights = torch.rand(3, 5, 1, dtype=torch.float64) if has_weights else None
    leaves = [one.clone().requires_grad_() for one in (gate_up, weights) if one is not None]
    gate, up = leaves[0].chunk(2, dim=-1)
    written_out = torch.nn.functional.silu(gate) * up * (leaves[1] if has_weights else 1.0)
    assert torch.allclose(swiglu(*leaves), written_out)
    found, wanted = (torch.autograd.grad(out, leaves, grad) for out in (swiglu(*leaves), written_out))
    assert all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_message_between_two_of_eight_devices_is_timed_by_those_two(monkeypatch):
    row = {"kind": "collective", "op": "send", "num_gpus": 2, "message_bytes": 1024}
    reduce = {"kind": "collective", "op": "all_reduce", "num_gpus": 8, "message_bytes": 1024}

    def ranks_of(function, payload, *, ranks, limit_s):
        def rows(rank):
            return [row | {"value": 20.0 if rank < 2 else 0.0}, reduce | {"value": 30.0 + rank}]

        return [ProcessOutcome(verdict=ProcessVerdict.DONE, value=rows(rank)) for rank in range(ranks)]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(device_table.rank_group, "run_ranks", ranks_of)
    found, missing = device_table._measure_links("cuda", "H200", "tiny")
    assert missing == [] and [one["value"] for one in found] == [20.0, 33.5]
