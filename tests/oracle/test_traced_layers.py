"""torch as the oracle: the projection's activation bytes and FLOPs against real modules under FakeTensorMode.

Tolerances are those of the product's promise: 5 % of activation bytes, 1 % of FLOPs. What is left inside them are
routing tables and rows per expert, which are whole numbers in torch.
"""

import resource
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_cluster, load_stack
from primus_search.measure.memory_residual import activation_ratio
from primus_search.measure.modules.layers import Embedding, OutputHead
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import without_module
from primus_search.measure.trace import hidden_states, trace_layer, trace_module
from primus_search.measure.traced_layer import TracedLayer
from primus_search.models.model_files import load_model
from primus_search.models.presets import presets
from primus_search.values.candidates import Candidates, Fp8, Recompute
from primus_search.values.job import Job
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tests.support.traced_flops import layer_flops, module_flops

WORKLOAD = Workload(seq_length=4096, global_batch_size=64)
STACK = load_stack("megatron_core_2026")
CLUSTER = load_cluster("mi355x", 8)
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
    "fp8, norms recomputed": ((DENSE, EXPERTS, LATENT), {"fp8": Fp8.HYBRID, "recompute": Recompute.LAYERNORM}),
    "fp8, activation recomputed": ((EXPERTS, LATENT), {"fp8": Fp8.HYBRID, "recompute": Recompute.MOE_ACTIVATION}),
}
CASES = [(name, words, knobs) for name in (DENSE, LATENT, EXPERTS) for words, knobs in KNOBS.items()]
CASES += [(name, words, knobs) for words, (names, knobs) in ONLY.items() for name in names]


@pytest.mark.daily(4)
@pytest.mark.parametrize(("name", "words", "knobs"), CASES, ids=[f"{name}: {words}" for name, words, _ in CASES])
def test_projected_activations_and_flops_are_those_torch_counts(name, words, knobs):
    model = load_model(name)
    c = Candidates.table(**{knob: value for knob, value in knobs.items() if knob != "ep" or model.is_moe})
    s = Share(model, WORKLOAD, STACK, c, 64)
    shard = Shard.of(c, 0, WORKLOAD).as_kept_by(model, STACK, has_fused_dispatch=False)
    for kind in model.kinds:
        traced = trace_layer(model, shard, kind)
        kept = layer_activations(model, STACK, kind, s, WORKLOAD.seq_length).kept
        if shard.recompute & Recompute.FULL:
            kept = s.split_tokens * model.hidden * 2.0
        assert traced.activation_bytes == pytest.approx(float(kept[0]), rel=0.05)
        tokens = shard.micro_batch_size * WORKLOAD.seq_length / shard.tp / shard.cp
        forward = model.layer_flops(kind, WORKLOAD.seq_length) * tokens
        flops = layer_flops(model, shard, kind)
        assert flops[0] == pytest.approx(forward, rel=0.01)
        again = {Recompute.NONE: 0.0, Recompute.FULL: 1.0}.get(shard.recompute)
        if again is not None:
            assert flops[1] == pytest.approx((2.0 + again) * forward, rel=0.01)


TURBO = load_stack("primus_megatron")


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [EXPERTS, LATENT])
@pytest.mark.parametrize("recompute", [Recompute.MOE_ACTIVATION, Recompute.MOE_ACTIVATION | Recompute.LAYERNORM])
@pytest.mark.parametrize("stage", [2, 3])
def test_recompute_under_fp8_drops_what_the_kernels_of_the_stack_do_not_save(name, recompute, stage):
    model = load_model(name)
    c = Candidates.table(
        ep=8, micro_batch_size=2, deepep=True, sync_free_stage=stage, fp8=Fp8.HYBRID, recompute=recompute
    )
    job = Job(model, replace(CLUSTER, stack=TURBO), WORKLOAD)
    assert activation_ratio(job, c, 0) == pytest.approx(1.0, abs=0.05)
    without = replace(c, recompute=np.zeros(1, np.int64))
    kind = model.kinds[-1]
    whole, kept = (
        layer_activations(model, TURBO, kind, Share(model, WORKLOAD, TURBO, one, 64), WORKLOAD.seq_length).kept
        for one in (without, c)
    )
    if recompute == Recompute.MOE_ACTIVATION:
        assert kept == pytest.approx(whole)  # the cast of the activation is what its recompute would drop


def test_experts_whose_shapes_are_fixed_have_room_for_every_row_of_their_group():
    model = load_model(EXPERTS)
    c = Candidates.table(ep=[8, 8, 1, 1], deepep=[True, True, False, False], sync_free_stage=[2, 3, 0, 0])
    rows = Share(model, WORKLOAD, TURBO, c, 64).routed_rows
    assert rows[1] == 8.0 * WORKLOAD.seq_length * model.moe.top_k
    assert rows[0] < 2.0 * WORKLOAD.seq_length * model.moe.top_k


def test_recomputing_core_attention_repeats_its_two_products_and_nothing_else():
    model = load_model(DENSE)
    kind = model.kinds[0]
    _, plain = layer_flops(model, Shard(micro_batch_size=1, seq_length=8192), kind)
    _, again = layer_flops(model, Shard(micro_batch_size=1, seq_length=8192, recompute=Recompute.CORE_ATTENTION), kind)
    repeated = again - plain
    assert repeated == pytest.approx(8192 * model.mixer(kind).mixing_flops(8192), rel=1e-6)


def traced_embedding(model: Model, shard: Shard) -> TracedLayer:
    return trace_module(lambda: Embedding(model, shard), lambda: (tokens(shard),), shard)


def traced_head(model: Model, shard: Shard) -> TracedLayer:
    """Final norm, output projection and loss."""
    return trace_module(lambda: OutputHead(model, shard), lambda: (hidden_states(model, shard), tokens(shard)), shard)


def tokens(shard: Shard) -> torch.Tensor:
    return torch.empty(shard.micro_batch_size, shard.context_seq, dtype=torch.int64)


def test_the_head_costs_two_flops_per_weight_and_a_fused_loss_keeps_two_bytes_per_logit():
    model = load_model(DENSE)
    shard = Shard(micro_batch_size=1, seq_length=4096)
    traced = traced_head(model, shard)
    forward, _ = module_flops(
        lambda: OutputHead(model, shard), lambda: (hidden_states(model, shard), tokens(shard)), shard
    )
    assert forward == pytest.approx(2.0 * 4096 * model.head_params, rel=1e-6)
    beside_logits = 4096 * (2 * 2 * model.hidden + 4 + 8)  # norm input and output, its deviation, targets
    assert traced.activation_bytes - beside_logits == pytest.approx(2.0 * 4096 * model.vocab_size, rel=0.01)


def test_the_embedding_keeps_token_numbers_only():
    model = load_model(DENSE)
    assert traced_embedding(model, Shard(micro_batch_size=1, seq_length=4096)).activation_bytes == 4096 * 8


PRESETS = tuple(name for name, preset in presets().items() if not without_module(preset.model))
LARGEST = ("deepseek_v3", "gpt_oss_120b", "nemotron4_340b")


@pytest.mark.daily(1)
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
