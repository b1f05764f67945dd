"""Modules of the mixers: their algorithms against recurrences, the projection's FLOPs and activations against them.

Tolerances are those of the product's promise: 1 % of FLOPs by torch's counter, 5 % of activation bytes.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_stack
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.fused_operations import MissingKernelError
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import without_module
from primus_search.measure.trace import trace_layer
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Indexer,
    KimiDeltaAttention,
    LatentAttention,
    LatentMixer,
    LightningAttention,
    Mamba2,
    Mixer,
    Model,
    ShortConvolution,
)
from primus_search.values.workload import Workload
from tests.oracle import reference_mixers, reference_scans
from tests.support.traced_flops import layer_flops

STACK = load_stack("megatron_core_2026")
LATENT = LatentAttention(q_lora_rank=768, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
GROUPED = Attention(num_heads=16, num_kv_heads=2, head_dim=128, qk_norm="head")
COMPRESSED = CompressedAttention(
    num_heads=16, head_dim=256, q_lora_rank=512, o_groups=4, o_lora_rank=256, window=128, index_heads=16,
    index_dim=128, top_k=256,
)  # fmt: skip
MIXERS: dict[str, Mixer] = {
    "Mamba-2": Mamba2(num_heads=32, head_dim=64, state_dim=128, num_groups=8),
    "Gated DeltaNet": GatedDeltaNet(num_key_heads=8, num_value_heads=16, key_dim=128, value_dim=128),
    "Gated DeltaNet, as many keys": GatedDeltaNet(num_key_heads=8, num_value_heads=8, key_dim=128, value_dim=256),
    "KDA": KimiDeltaAttention(num_heads=16, head_dim=128),
    "KDA, low-rank gate": KimiDeltaAttention(num_heads=16, head_dim=128, gate_rank=128),
    "lightning": LightningAttention(num_heads=16, head_dim=128),
    "short convolution": ShortConvolution(kernel=3),
    "gated attention": replace(GROUPED, has_output_gate=True),
    "shared keys and values": replace(GROUPED, has_shared_kv=True),
    "keys of an earlier layer": replace(GROUPED, reuses_kv=True),
    "block-sparse attention": replace(
        GROUPED, indexer=Indexer(num_heads=2, head_dim=128, top_k=1024, block=128, has_weights=False)
    ),
    "DSA": LatentMixer(
        num_heads=16, latent=LATENT, indexer=Indexer(num_heads=16, head_dim=128, top_k=512, query_rank=768)
    ),
    "DSA, selection reused": LatentMixer(
        num_heads=16, latent=LATENT, indexer=Indexer(num_heads=16, head_dim=128, top_k=512, has_own=False)
    ),
    "gated MLA": LatentMixer(num_heads=16, latent=LATENT, has_output_gate=True),
    "shared-key window": COMPRESSED,
    "CSA": replace(COMPRESSED, ratio=4),
    "HCA": replace(COMPRESSED, ratio=128),
}
TRACED_ONLY = ("shared-key window", "CSA", "HCA", "DSA, selection reused")


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    """Mixers without a kernel in torch are built from their references."""
    with reference_mixers.known():
        yield


def model_of(mixer: Mixer, hidden: int = 2048) -> Model:
    return Model(
        name="one mixer", num_layers=1, hidden=hidden, ffn_hidden=2 * hidden, num_heads=16, num_kv_heads=16,
        head_dim=hidden // 16, vocab_size=1024, mixers=[mixer],
    )  # fmt: skip


DIVIDED = ("Mamba-2", "Gated DeltaNet", "KDA, low-rank gate", "gated attention", "DSA", "CSA")


@pytest.mark.daily(5)
@pytest.mark.parametrize(("name", "ranks"), [(name, 1) for name in MIXERS] + [(name, 2) for name in DIVIDED])
def test_flops_and_activations_of_a_mixer_are_those_torch_counts(name: str, ranks: int) -> None:
    model, workload = model_of(MIXERS[name]), Workload(seq_length=1024, global_batch_size=8)
    c = Candidates.table(tp=ranks, sequence_parallel=ranks > 1)
    s = Share(model, workload, STACK, c, 8)
    kind, shard = model.kinds[0], Shard.of(c, 0, workload).as_kept_by(model, STACK, has_fused_dispatch=False)
    assert not without_module(model)
    traced = trace_layer(model, shard, kind)
    kept = layer_activations(model, STACK, kind, s, workload.seq_length).kept
    assert traced.activation_bytes == pytest.approx(float(kept[0]), rel=0.05)
    if ranks == 1:  # what is replicated over ranks each of them computes: torch counts it, model FLOPs do not
        forward, backward = layer_flops(model, shard, kind)
        assert forward == pytest.approx(1024 * model.layer_flops(kind, 1024), rel=0.01)
        assert backward == pytest.approx(2.0 * forward, rel=0.01)


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["qwen3.5_122b_a10b", "nemotron3_super", "deepseek_v3.2"])
def test_layers_of_hybrid_models_keep_what_torch_keeps(name: str) -> None:
    model, workload = load_model(name), Workload(seq_length=1024, global_batch_size=8)
    c = Candidates.table()
    s = Share(model, workload, STACK, c, 8)
    shard = Shard.of(c, 0, workload).as_kept_by(model, STACK, has_fused_dispatch=False)
    for kind in model.kinds:
        traced = trace_layer(model, shard, kind)
        kept = layer_activations(model, STACK, kind, s, workload.seq_length).kept
        assert traced.activation_bytes == pytest.approx(float(kept[0]), rel=0.05)
        forward, _ = layer_flops(model, shard, kind)
        assert forward == pytest.approx(1024 * model.layer_flops(kind, 1024), rel=0.01)


SMALL = {
    "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "state_dim": 16, "num_groups": 2, "num_key_heads": 2,
    "num_value_heads": 4, "key_dim": 16, "value_dim": 16, "chunk": 16, "block": 16, "gate_rank": 8, "top_k": 32,
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "query_rank": 24,
}  # fmt: skip


def small(part: Any) -> Any:
    """A mixer, or a part of one, with the same switches and small sizes."""
    sizes = {f.name: SMALL[f.name] for f in fields(part) if f.name in SMALL and getattr(part, f.name) not in (0, 1)}
    inner = {f.name: small(getattr(part, f.name)) for f in fields(part) if is_dataclass(getattr(part, f.name))}
    return replace(part, **sizes, **inner)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", [name for name in MIXERS if name not in TRACED_ONLY])
def test_a_mixer_runs_on_this_machine_and_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model, shard = model_of(small(MIXERS[name]), hidden=64), Shard(micro_batch_size=2, seq_length=48, dtype="float32")
    layer, x = Layer(model, shard, model.kinds[0]), torch.randn(2, 48, 64, requires_grad=True)
    layer(x).square().mean().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())
    without = [name for name, p in layer.named_parameters() if p.grad is None or not bool(p.grad.isfinite().all())]
    assert without == []


def test_a_scan_is_not_timed_and_its_piece_is_written_and_read() -> None:
    model = model_of(small(MIXERS["Mamba-2"]), hidden=64)
    piece = TimedPiece(piece="layer", model=model, shard=Shard(micro_batch_size=1, seq_length=64, dtype="float32"),
                       kind=model.kinds[0])  # fmt: skip
    assert TimedPiece.from_json(piece.to_json()) == piece and '"Mamba2"' in piece.shape
    reference_mixers.MODULES.clear()
    assert without_module(model) == (model.mixers[0].name,)


def test_sparse_attention_of_everything_is_attention() -> None:
    torch.manual_seed(0)
    full = replace(GROUPED, has_output_gate=True)
    sparse = replace(full, indexer=Indexer(num_heads=2, head_dim=64, top_k=95))
    shard, x = Shard(micro_batch_size=1, seq_length=96, dtype="float32"), torch.randn(1, 96, 256)
    models = [model_of(mixer, hidden=256) for mixer in (full, sparse)]
    one, other = (Layer(model, shard, model.kinds[0]) for model in models)
    other.load_state_dict(one.state_dict(), strict=False)
    # The last token reads all but one of the tokens before it.
    torch.testing.assert_close(one(x)[:, :95], other(x)[:, :95])


def test_the_chunked_state_space_scan_is_its_recurrence() -> None:
    torch.manual_seed(0)
    x, b, c = (torch.randn(2, 37, heads, size, dtype=torch.float64) for heads, size in ((4, 6), (2, 5), (2, 5)))
    decay = -torch.rand(2, 37, 4, dtype=torch.float64)
    state, expected = torch.zeros(2, 4, 6, 5, dtype=torch.float64), []
    wide_b, wide_c = b.repeat_interleave(2, 2), c.repeat_interleave(2, 2)
    for t in range(37):
        state = state * decay[:, t].exp()[..., None, None] + x[:, t][..., None] * wide_b[:, t][:, :, None]
        expected.append((state @ wide_c[:, t][..., None])[..., 0])
    torch.testing.assert_close(reference_scans.ssd(x, decay, b, c, 8), torch.stack(expected, 1))


@pytest.mark.parametrize("channels", [1, 5], ids=["a decay per head", "a decay per channel"])
def test_the_chunked_delta_rule_is_its_recurrence(channels: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 37, 4, size) for size in (5, 5, 6))
    k, decay, beta = reference_scans.unit_length(k), -torch.rand(2, 37, 4, channels), torch.rand(2, 37, 4)
    state, expected = torch.zeros(2, 4, 5, 6), []
    for t in range(37):
        state = state * decay[:, t].exp()[..., None]
        corrected = v[:, t] - (k[:, t][..., None] * state).sum(2)
        state = state + beta[:, t][..., None, None] * k[:, t][..., None] * corrected[:, :, None]
        expected.append((state * q[:, t][..., None]).sum(2))
    torch.testing.assert_close(reference_scans.delta_rule(q, k, v, decay, beta, chunk=8), torch.stack(expected, 1))


def test_blocked_linear_attention_is_its_recurrence() -> None:
    torch.manual_seed(0)
    joint, heads = torch.randn(2, 37, 3 * 4 * 6), 4
    q, k, v = torch.nn.functional.silu(joint).unflatten(-1, (3, heads, 6)).unbind(2)
    decay = torch.exp(-(2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)))[:, None, None]
    state, expected = torch.zeros(2, heads, 6, 6), []
    for t in range(37):
        state = state * decay + k[:, t][..., None] * v[:, t][:, :, None]
        expected.append((state * q[:, t][..., None]).sum(2).flatten(1))
    found = reference_scans.lightning(joint, heads=heads, head_dim=6, chunk=8)
    torch.testing.assert_close(found, torch.stack(expected, 1))


def test_what_has_no_module_is_named() -> None:
    assert without_module(load_model("deepseek_v4_flash")) == ("hyper-connections",)
    with pytest.raises(MissingKernelError, match="compressed entries"):
        model, shard = model_of(COMPRESSED, hidden=256), Shard(micro_batch_size=1, seq_length=128, dtype="float32")
        Layer(model, shard, model.kinds[0])(torch.randn(1, 128, 256))
