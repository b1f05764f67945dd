"""torch as the oracle: the projection's activation bytes and FLOPs against real modules under FakeTensorMode.

Tolerances are those of the product's promise: 5 % of activation bytes, 1 % of FLOPs. What is left inside them are
routing tables and rows per expert, which are whole numbers in torch.
"""

import resource
import time

import numpy as np
import pytest
import torch

from primus_search.candidates import Candidates, Fp8, Recompute
from primus_search.cost.memory import layer_activations, share
from primus_search.declare.hardware_files import load_stack
from primus_search.declare.model_files import load_model
from primus_search.declare.presets import presets
from primus_search.measure.modules.layers import Embedding, OutputHead, without_module
from primus_search.measure.modules.shard import Shard
from primus_search.measure.trace import TracedLayer, trace_layer, trace_module
from primus_search.model import Model
from primus_search.workload import Workload

WORKLOAD = Workload(seq_length=4096, global_batch_size=64)
STACK = load_stack("megatron_core_2026")
DENSE, LATENT, EXPERTS = "llama3.1_8b", "deepseek_v3", "mixtral_8x7b"
KNOBS = {
    "plain": {},
    "two sequences": {"micro_batch_size": 2},
    "tensor and sequence parallel": {"tp": 2, "ep": 2},
    "context parallel": {"cp": 2, "ep": 2},
    "core attention recomputed": {"recompute": Recompute.CORE_ATTENTION},
    "norms recomputed": {"recompute": Recompute.LAYERNORM},
    "layer recomputed": {"recompute": Recompute.FULL},
    "fp8": {"fp8": Fp8.HYBRID},
}
ONLY = {
    "expert activation recomputed": ((EXPERTS, LATENT), {"recompute": Recompute.MOE_ACTIVATION}),
    "latents projected up again": ((LATENT,), {"recompute": Recompute.MLA_UP_PROJ}),
    "MLP recomputed": ((DENSE,), {"recompute": Recompute.MLP}),
}
CASES = [(name, words, knobs) for name in (DENSE, LATENT, EXPERTS) for words, knobs in KNOBS.items()]
CASES += [(name, words, knobs) for words, (names, knobs) in ONLY.items() for name in names]


@pytest.mark.parametrize(("name", "words", "knobs"), CASES, ids=[f"{name}: {words}" for name, words, _ in CASES])
def test_projected_activations_and_flops_are_those_torch_counts(name, words, knobs):
    model = load_model(name)
    c = Candidates.table(**{knob: value for knob, value in knobs.items() if knob != "ep" or model.is_moe})
    s = share(model, WORKLOAD, STACK, c, 64)
    shard = Shard.of(c, 0, WORKLOAD).as_kept_by(model, STACK, has_fused_dispatch=False)
    for kind in model.kinds:
        traced = trace_layer(model, shard, kind)
        kept = layer_activations(model, STACK, kind, s, WORKLOAD.seq_length).kept
        if shard.recompute & Recompute.FULL:
            kept = s.split_tokens * model.hidden * 2.0
        assert traced.activation_bytes == pytest.approx(float(kept[0]), rel=0.05)
        tokens = shard.micro_batch_size * WORKLOAD.seq_length / shard.tp / shard.cp
        forward = model.layer_flops(kind, WORKLOAD.seq_length) * tokens
        assert traced.forward_flops == pytest.approx(forward, rel=0.01)
        again = {Recompute.NONE: 0.0, Recompute.FULL: 1.0}.get(shard.recompute)
        if again is not None:
            assert traced.backward_flops == pytest.approx((2.0 + again) * forward, rel=0.01)


def test_recomputing_core_attention_repeats_its_two_products_and_nothing_else():
    model = load_model(DENSE)
    kind = model.kinds[0]
    plain = trace_layer(model, Shard(micro_batch_size=1, seq_length=8192), kind)
    again = trace_layer(model, Shard(micro_batch_size=1, seq_length=8192, recompute=Recompute.CORE_ATTENTION), kind)
    repeated = again.backward_flops - plain.backward_flops
    assert repeated == pytest.approx(8192 * model.attention_flops(8192, 0), rel=1e-6)


def traced_embedding(model: Model, shard: Shard) -> TracedLayer:
    return trace_module(lambda: Embedding(model, shard), lambda: (tokens(shard),), shard)


def traced_head(model: Model, shard: Shard) -> TracedLayer:
    """Final norm, output projection and loss."""
    hidden = (shard.micro_batch_size, shard.resident_seq, model.hidden)
    return trace_module(
        lambda: OutputHead(model, shard), lambda: (torch.empty(hidden, requires_grad=True), tokens(shard)), shard
    )


def tokens(shard: Shard) -> torch.Tensor:
    return torch.empty(shard.micro_batch_size, shard.context_seq, dtype=torch.int64)


def test_the_head_costs_two_flops_per_weight_and_a_fused_loss_keeps_two_bytes_per_logit():
    model = load_model(DENSE)
    traced = traced_head(model, Shard(micro_batch_size=1, seq_length=4096))
    assert traced.forward_flops == pytest.approx(2.0 * 4096 * model.head_params, rel=1e-6)
    beside_logits = 4096 * (2 * 2 * model.hidden + 4 + 8)  # norm input and output, its deviation, targets
    assert traced.activation_bytes - beside_logits == pytest.approx(2.0 * 4096 * model.vocab_size, rel=0.01)


def test_the_embedding_keeps_token_numbers_only():
    model = load_model(DENSE)
    assert traced_embedding(model, Shard(micro_batch_size=1, seq_length=4096)).activation_bytes == 4096 * 8


PRESETS = tuple(name for name, preset in presets().items() if not without_module(preset.model))
LARGEST = ("deepseek_v3", "gpt_oss_120b", "nemotron4_340b")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in LARGEST else pytest.mark.full) for n in PRESETS])
def test_a_preset_traces_at_full_size_in_five_seconds_without_allocating_a_gigabyte(name):
    model, shard = load_model(name), Shard(micro_batch_size=1, seq_length=8192)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for kind in model.kinds:
        started = time.process_time()
        traced = trace_layer(model, shard, kind)
        assert time.process_time() - started < 5.0
        assert traced.activation_bytes > 8192 * model.hidden * 2
    traced_embedding(model, shard)
    traced_head(model, shard)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 1e9


def test_a_trace_is_the_same_twice():
    model = load_model(EXPERTS)
    shard = Shard(micro_batch_size=1, seq_length=1024, ep=2)
    first = trace_layer(model, shard, model.kinds[0])
    trace_layer.cache_clear()
    assert trace_layer(model, shard, model.kinds[0]) == first
    assert np.isfinite(first.workspace_bytes)
