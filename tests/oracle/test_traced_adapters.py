"""torch as the oracle of fine-tuning: activations and FLOPs of layers with frozen weights and trained adapters.

Tolerance: 5 %, that of the product's promise for activations; FLOPs 1 %.
"""

from dataclasses import replace
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_stack
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.shard import Shard
from primus_search.measure.trace import trace_layer
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Fp8, Recompute
from primus_search.values.model import Adapters
from primus_search.values.workload import Workload
from tests.support.traced_flops import layer_flops

pytestmark = pytest.mark.slow
DENSE, LATENT, EXPERTS = "llama3.1_8b", "deepseek_v3", "qwen3_30b_a3b"
STACK = load_stack("megatron_core_2026")
SEQ = 4096
ALL = Adapters(rank=16)
WITH_EXPERTS = Adapters(rank=8, modules=("linear_qkv", "linear_proj", "experts"))
CASES: list[tuple[str, Adapters, dict[str, Any]]] = [
    (DENSE, ALL, {}),
    (DENSE, ALL, {"tp": 4, "sequence_parallel": True}),
    (DENSE, ALL, {"fp8": Fp8.HYBRID}),
    (DENSE, ALL, {"recompute": Recompute.CORE_ATTENTION}),
    (DENSE, ALL, {"recompute": Recompute.MLP}),
    (DENSE, replace(ALL, dropout=0.1), {}),
    (DENSE, Adapters(rank=64, modules=("linear_q", "linear_v")), {}),
    (DENSE, Adapters(rank=8, modules=("linear_fc1_gate", "linear_fc1_up", "linear_fc2")), {"micro_batch_size": 2}),
    (DENSE, Adapters(rank=4, modules=("linear_proj",)), {"tp": 2}),
    (LATENT, Adapters(rank=16, modules=("linear_q_down_proj", "linear_kv_up_proj", "linear_proj")), {"ep": 8}),
    (LATENT, ALL, {"ep": 8}),
    (EXPERTS, WITH_EXPERTS, {"ep": 8}),
    (EXPERTS, replace(WITH_EXPERTS, modules=("linear_qkv", "shared_expert_adapters")), {"ep": 4}),
    (EXPERTS, replace(WITH_EXPERTS, modules=("linear_fc1", "shared_expert_adapters")), {"ep": 4}),
    (EXPERTS, replace(WITH_EXPERTS, modules=("linear_fc2", "experts")), {"ep": 4}),
    (EXPERTS, Adapters(rank=16, modules=("linear_qkv", "linear_proj")), {"ep": 8, "fp8": Fp8.HYBRID}),
]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("name", "adapters", "knobs"), CASES)
def test_what_a_frozen_layer_keeps_and_computes_is_what_torch_counts(
    name: str, adapters: Adapters, knobs: dict[str, Any]
) -> None:
    model = replace(load_model(name), adapters=adapters)
    workload = Workload(seq_length=SEQ, global_batch_size=64)
    c = Candidates.table(**knobs)
    s = Share(model, workload, STACK, c, 64)
    shard = Shard.of(c, 0, workload).as_kept_by(model, STACK, has_fused_dispatch=False)
    for kind in model.kinds:
        kept = float(layer_activations(model, STACK, kind, s, SEQ).kept[0])
        assert kept == pytest.approx(trace_layer(model, shard, kind).activation_bytes, rel=0.05)
        if shard.tp == shard.ep == 1:
            with FakeTensorMode():
                trained = sum(p.numel() for p in Layer(model, shard, kind).parameters() if p.requires_grad)
            assert trained == model.trained_params / model.num_layers
        if knobs.get("recompute", Recompute.NONE) == Recompute.NONE and shard.tp == 1:
            tokens = shard.micro_batch_size * SEQ
            forward, backward = layer_flops(model, shard, kind)
            expected = model.layer_flops(kind, SEQ)
            mixing = model.mixer(kind).mixing_flops(SEQ)
            of_adapters = 2.0 * model.adapter_params_used(kind)
            assert forward == pytest.approx(expected * tokens, rel=0.01)
            assert backward == pytest.approx((expected + mixing + of_adapters) * tokens, rel=0.01)


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_an_adapter_on_everything_keeps_no_less_than_one_on_a_part(name: str) -> None:
    workload, c = Workload(seq_length=SEQ, global_batch_size=64), Candidates.table()

    def kept(modules: tuple[str, ...]) -> float:
        model = replace(load_model(name), adapters=Adapters(rank=16, modules=modules))
        s = Share(model, workload, STACK, c, 8)
        return float(layer_activations(model, STACK, model.kinds[-1], s, SEQ).kept[0])

    assert kept(("linear_qkv",)) < kept(("linear_qkv", "linear_proj")) < kept((*ALL.modules, "experts"))
