"""Memory formulas against figures printed in papers, worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from primus_search.base.units import GB, GIB
from primus_search.cost.confidence.fit import fit_probability
from primus_search.cost.memory.activations import kept_by_operation, saved_tensors
from primus_search.cost.memory.chunk_memory import MemoryTable, memory_by_rank
from primus_search.cost.memory.held_microbatches import held_microbatches
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.files.search_path import FileKind, names
from primus_search.models.model_files import load_model
from primus_search.space.context import FACTS
from primus_search.values.candidates import Candidates, Fp8, PipelineOrder, Recompute, RecomputeMethod, Sharding
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack, with_numbers
from primus_search.values.model import LatentAttention, LayerKind, MixtureOfExperts, Model
from primus_search.values.workload import Workload
from tests.support.plain_stack import plain_stack

HARDWARE = load_hardware("b200")
PLAIN = plain_stack(
    "unfused", has_dropout=True, has_score_dropout=True, caches_dummy_gradients=False, keeps_fused_qkv=False
)
FLASH = with_numbers(PLAIN, {"attention_kernel": "flash2", "has_dropout": False})

GPT_22B = Model(
    name="gpt-22b", num_layers=48, hidden=6144, ffn_hidden=4 * 6144, num_heads=64, num_kv_heads=64, head_dim=96,
    vocab_size=51200, is_gated=False, norm="layernorm", has_linear_bias=True, learned_positions=2048,
)  # fmt: skip
LLAMA_70B = Model(
    name="llama-70b", num_layers=80, hidden=8192, ffn_hidden=28672, num_heads=64, num_kv_heads=8, head_dim=128,
    vocab_size=128256,
)  # fmt: skip
LITE = Model(
    name="v2-lite", num_layers=27, hidden=2048, ffn_hidden=10944, num_heads=16, num_kv_heads=16, head_dim=128,
    vocab_size=102400, moe_layers=[False] + [True] * 26,
    latent=LatentAttention(
        q_lora_rank=0, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    moe=MixtureOfExperts(num_experts=64, top_k=6, expert_ffn_hidden=1408, shared_ffn_hidden=2816),
)  # fmt: skip


def cluster(nodes: int = 1, stack: Stack = FLASH) -> Cluster:
    return Cluster(accelerator=HARDWARE.accelerator, network=HARDWARE.network, stack=stack, num_nodes=nodes)


def layer_bytes(model: Model, stack: Stack, seq: int, **columns: object) -> float:
    """Saved bytes of the model's first layer, per micro-batch."""
    c = Candidates.table(**columns)
    s = Share(model, Workload(seq_length=seq, global_batch_size=8), stack, c, 8)
    return float(sum(t.bytes for t in saved_tensors(model, stack, model.kinds[0], s, seq))[0])


@pytest.mark.parametrize("batch", [1, 4])
def test_a_gpt_layer_saves_34sbh_plus_5as2b(batch: int) -> None:
    # Korthikanti 2022 (arXiv:2205.05198) equation 1; 22B of its Table 3: s 2048, a 64, h 6144.
    s, a, h = 2048, 64, 6144
    assert layer_bytes(GPT_22B, PLAIN, s, micro_batch_size=batch) == 34 * s * batch * h + 5 * a * s * s * batch


def test_tensor_and_sequence_parallelism_divide_every_saved_tensor() -> None:
    # Korthikanti 2022 equation 4: (34 s b h + 5 a s^2 b) / t.
    s, a, h, t = 2048, 64, 6144, 8
    saved = layer_bytes(GPT_22B, PLAIN, s, tp=t, sequence_parallel=True)
    assert saved == pytest.approx((34 * s * h + 5 * a * s * s) / t, rel=1e-12)


def test_without_sequence_parallelism_ten_units_stay_whole() -> None:
    # Korthikanti 2022 equation 2: s b h (10 + 24/t + 5 a s / (h t)).
    s, a, h, t = 2048, 64, 6144, 8
    saved = layer_bytes(GPT_22B, PLAIN, s, tp=t, sequence_parallel=False)
    assert saved == pytest.approx(s * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)


def test_a_llama_layer_with_flash_attention_by_hand() -> None:
    # Per token: 4 H (norm inputs) + 4 H (norm outputs) + 2 (A + 2 G) d + 2 A d + 4 A (log-sum-exp) + 3 F * 2.
    s, h = 8192, 8192
    per_token = 8 * h + 2 * (64 + 16) * 128 + 2 * 64 * 128 + 4 * 64 + 6 * 28672
    assert layer_bytes(LLAMA_70B, FLASH, s) == s * per_token


def test_a_norm_of_several_operations_keeps_an_fp32_copy_and_a_normalised_one() -> None:
    # transformers LlamaRMSNorm: 4 + 2 bytes where the fused kernel keeps its input of 2, two norms a layer.
    s, h = 8192, 8192
    eager = with_numbers(FLASH, {"has_fused_norm": False})
    assert layer_bytes(LLAMA_70B, eager, s) - layer_bytes(LLAMA_70B, FLASH, s) == 2 * 4 * s * h


def test_an_mla_moe_layer_by_hand() -> None:
    # DeepSeek-V2-Lite, 4096 tokens, EP 8: 6 routed copies of every token, inner 1408, shared 2816.
    c = Candidates.table(ep=8, deepep=True)
    work = Workload(seq_length=4096, global_batch_size=8)
    s = Share(LITE, work, FLASH, c, 8)
    tensors = {t.name: float(t.bytes[0]) / 4096 for t in saved_tensors(LITE, FLASH, LITE.kinds[1], s, 4096)}
    assert tensors["queries"] == tensors["keys"] == 2 * 16 * 192
    assert tensors["values"] == 2 * 16 * 128
    assert tensors["latents before their norm"] == 2 * (512 + 64)
    assert tensors["expert input"] == 2 * 6 * 2048
    assert tensors["expert inner"] == 2 * 2 * 6 * 1408
    assert tensors["expert activated"] == 2 * 6 * 1408
    assert tensors["shared experts inner"] == 2 * 2 * 2816


def dropped_by_up_projections(model: Model, kind: LayerKind, **words: Any) -> float:
    """Bytes of a token that a layer keeps unless its up-projections run again."""
    c = Candidates.table(**words)
    s = Share(model, Workload(seq_length=4096, global_batch_size=8), FLASH, c, 8)
    tensors = saved_tensors(model, FLASH, kind, s, 4096)
    return sum(float(t.bytes[0]) for t in tensors if t.dropped_by & Recompute.MLA_UP_PROJ) / 4096


def test_up_projections_that_run_again_drop_queries_keys_and_values() -> None:
    """DeepSeek-V4: 64 heads of 512 before their norm and as the kernel reads them, one head of keys and values;
    DeepSeek-V3.2, absorbed: 128 heads of 192, and of 512 + 64 as they attend to latents."""
    v4, v32 = load_model("deepseek_v4_flash"), load_model("deepseek_v3.2")
    assert {dropped_by_up_projections(v4, kind) for kind in v4.kinds} == {2 * (2 * 64 * 512 + 512)}
    assert {dropped_by_up_projections(v32, kind) for kind in v32.kinds} == {2 * 128 * (192 + 512 + 64)}


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", names(FileKind.MODEL))
def test_up_projections_run_again_where_a_model_has_some(name: str) -> None:
    model = load_model(name)
    keeps = any(dropped_by_up_projections(model, kind) > 0.0 for kind in model.kinds)
    assert keeps == FACTS["has_up_projections"](model)


def test_per_operation_checkpointing_keeps_nothing_of_routed_experts() -> None:
    # Their grouped product is no `mm`: only dense products, attention and the layer's input are on torchtitan's list.
    wide = replace(LITE, moe=MixtureOfExperts(num_experts=64, top_k=12, expert_ffn_hidden=5632, shared_ffn_hidden=2816))

    def kept(model: Model, ep: int) -> float:
        c = Candidates.table(ep=ep, recompute=Recompute.OP_SAC)
        s = Share(model, Workload(seq_length=4096, global_batch_size=8), FLASH, c, 8)
        return float(np.ravel(kept_by_operation(model, FLASH, model.kinds[1], s))[0])

    assert kept(wide, 1) == kept(LITE, 1)
    # The list does name exchanges: tokens as dispatched and as combined.
    assert kept(LITE, 8) - kept(LITE, 1) == 2 * (2 * 4096 * 6 * LITE.hidden)


def test_per_operation_checkpointing_may_keep_products_of_experts_too() -> None:
    def kept(flags: Recompute) -> float:
        c = Candidates.table(recompute=flags)
        s = Share(LITE, Workload(seq_length=4096, global_batch_size=8), FLASH, c, 8)
        return float(np.ravel(kept_by_operation(LITE, FLASH, LITE.kinds[1], s))[0])

    more = kept(Recompute.OP_SAC | Recompute.OP_SAC_EXPERTS) - kept(Recompute.OP_SAC)
    assert more == 2 * (4096 * 6) * (LITE.hidden + 2 * 1408)  # the down product's rows, and gate and up


def test_per_operation_checkpointing_keeps_every_product_with_a_bias() -> None:
    # `addmm` is on the list, and every second `mm` is not.
    def kept(model: Model) -> float:
        c = Candidates.table(recompute=Recompute.OP_SAC)
        s = Share(model, Workload(seq_length=4096, global_batch_size=8), FLASH, c, 8)
        return float(np.ravel(kept_by_operation(model, FLASH, model.kinds[0], s))[0])

    products = 2 * (64 * 128 + 2 * 8 * 128 + 8192 + 8192 + 2 * 28672)  # queries, keys, values, output, down, both
    assert kept(replace(LLAMA_70B, has_linear_bias=True)) - kept(LLAMA_70B) == 4096 * products / 2


def test_a_compiled_norm_keeps_no_output_and_an_eager_clamped_activation_every_step() -> None:
    oss = replace(LITE, activation_clamp=7.0)
    compiled = replace(FLASH, memory=replace(FLASH.memory, recomputes_norms=True))
    s = Share(oss, Workload(seq_length=4096, global_batch_size=8), FLASH, Candidates.table(), 8)

    def kept(stack: Stack) -> dict[str, float]:
        return {t.name: float(t.bytes[0]) for t in saved_tensors(oss, stack, oss.kinds[1], s, 4096)}

    assert kept(compiled)["MLP norm output"] == kept(compiled)["attention norm output"] == 0.0
    assert kept(FLASH)["attention norm output"] > 0.0
    eager = kept(with_numbers(FLASH, {"has_fused_activation": False}))
    # The gate activated, gate and up clamped, up plus one; routed rows of the inner width each.
    assert eager["expert activation, step by step"] == 4 * (2 * 4096 * 6 * 1408)


def test_a_checkpoint_outside_compiled_modules_keeps_the_input_of_a_layer_with_experts() -> None:
    hidden_from_it = replace(FLASH, memory=replace(FLASH.memory, hides_expert_layers=True))

    def kept(number: int, **columns: int | bool) -> float:
        s = Share(LITE, Workload(seq_length=4096, global_batch_size=8), FLASH, Candidates.table(**columns), 8)
        return float(np.ravel(kept_by_operation(LITE, hidden_from_it, LITE.kinds[number], s))[0])

    assert kept(1, ep=8) == 2 * 4096 * LITE.hidden
    assert kept(1, tp=4, sequence_parallel=True) == 2 * (2 * 4096 / 4 * LITE.hidden)  # and the reduce-scatter's output
    assert kept(0, ep=8) > 2 * 4096 * LITE.hidden  # a dense layer is compiled as a whole, its checkpoint inside


@pytest.mark.parametrize(
    ("sharding", "gigabytes"),
    [(Sharding.NONE, 120.0), (Sharding.DISTRIBUTED_OPTIMIZER, 31.4), (Sharding.ZERO2, 16.6), (Sharding.FSDP2, 1.88)],
)
def test_zero_stages_of_a_7_5b_model_on_64_devices(sharding: Sharding, gigabytes: float) -> None:
    # Rajbhandari 2020 (arXiv:1910.02054) Figure 1: 7.5 B parameters, 64 devices, 2 + 2 + 12 bytes per parameter.
    model = Model(
        name="7.5b", num_layers=1, hidden=8, ffn_hidden=312_500_000, num_heads=1, num_kv_heads=1, head_dim=8,
        vocab_size=8,
    )  # fmt: skip
    assert model.total_params == pytest.approx(7.5e9, rel=1e-6)
    stack = with_numbers(FLASH, {"gradient_bytes": 2.0, "sharded_gradient_bytes": 2.0})
    c = Candidates.table(sharding=int(sharding))
    m = MemoryTable(Job(model, cluster(8, stack), Workload(seq_length=1, global_batch_size=64))).memory(c)
    assert float((m.weights + m.gradients + m.optimizer)[0]) / GB == pytest.approx(gigabytes, rel=0.005)


def test_megatron_distributed_optimizer_needs_6_plus_12_over_d_bytes() -> None:
    # Megatron-Core dist_optimizer.md: BF16 weights, FP32 gradients, 12 bytes of state over d replicas.
    m = MemoryTable(Job(LLAMA_70B, cluster(), Workload(seq_length=64, global_batch_size=8))).memory(
        Candidates.table(tp=2, sequence_parallel=True)
    )
    per_param = float((m.weights + m.gradients + m.optimizer)[0]) / (LLAMA_70B.total_params / 2)
    assert per_param == pytest.approx(6 + 12 / 4, rel=1e-3)


@pytest.mark.parametrize(("name", "copies"), [("megatron_lm", 2.0), ("primus_megatron", 1.0)])
def test_weights_that_are_cast_once_a_step_are_kept_by_rows_and_on_nvidia_by_columns(name: str, copies: float) -> None:
    """Beside BF16 weights; of four bits both are a byte, and gathered FP8 weights need none."""
    norms = (LLAMA_70B.num_layers * 2 + 1) * LLAMA_70B.hidden
    linear = LLAMA_70B.total_params - 2 * LLAMA_70B.head_params - norms
    for is_gathered in (False, True):
        stack = with_numbers(load_stack(name), {"has_fp8_param_gather": is_gathered})
        table = MemoryTable(Job(LLAMA_70B, cluster(1, stack), Workload(seq_length=64, global_batch_size=8)))
        held = {
            fp8: float(table.memory(Candidates.table(fp8=int(fp8))).weights[0]) for fp8 in Fp8 if fp8 != Fp8.ROWWISE
        }
        per_param = {fp8: (one - held[Fp8.NONE]) / linear for fp8, one in held.items()}
        wanted = dict.fromkeys((Fp8.HYBRID, Fp8.DELAYED, Fp8.BLOCKWISE, Fp8.MXFP8), 0.0 if is_gathered else copies)
        wanted |= dict.fromkeys((Fp8.NVFP4, Fp8.MXFP4), 0.0 if is_gathered else 1.0)
        assert per_param == pytest.approx({Fp8.NONE: 0.0, **wanted}, rel=1e-12)


def test_weights_of_all_ranks_are_the_model() -> None:
    work = Workload(seq_length=4096, global_batch_size=64)
    for columns in ({}, {"pp": 4, "ep": 2}, {"pp": 8}):
        c = Candidates.table(layouts=(BALANCED,), sharding=0, **columns)
        stages = memory_by_rank(Job(LITE, cluster(), work), c)
        experts = sum(LITE.moe_layers) * 64 * LITE.expert_params
        on_ranks = LITE.total_params - experts * (1 - 1 / int(c.ep[0]))
        assert stages.weights.sum() / 2 == pytest.approx(on_ranks, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "vpp", "peak"),
    [("1f1b", 1, 8), ("gpipe", 1, 32), ("interleaved", 2, (2 * 8 + 7) / 2), ("zb-h1", 1, 8), ("v-half", 2, 5)],
)
def test_the_first_rank_holds_what_its_schedule_says(schedule: str, vpp: int, peak: float) -> None:
    # 8 stages, 32 micro-batches. 1F1B p, GPipe m, interleaved (v p + p - 1) / v (Narayanan 2021), ZB-H1 p
    # (arXiv:2401.10241), V-Half p/2 + 1 (arXiv:2405.15362).
    moments = held_microbatches(PipelineOrder(schedule, 8, vpp), 32)
    on_first = slice(0, int(moments.first[1]))
    assert (moments.live + moments.waiting)[on_first].sum(axis=1).max() / vpp == peak


def test_full_recompute_keeps_one_input_per_layer_and_one_layer_at_work() -> None:
    work = Workload(seq_length=8192, global_batch_size=8)
    full = Candidates.table(recompute=int(Recompute.FULL), recompute_method=int(RecomputeMethod.UNIFORM))
    m = MemoryTable(Job(LLAMA_70B, cluster(), work)).memory(full)
    layer = layer_bytes(LLAMA_70B, FLASH, 8192)
    inputs = 80 * 8192 * 8192 * 2
    assert float(m.activations[0]) == pytest.approx(inputs + 2 * 2 * 8192 * 8192, rel=1e-12)
    assert float(m.recompute_workspace[0]) in (0.0, pytest.approx(layer))
    everything = m.recompute_workspace + m.logits + m.workspace
    assert float(everything[0]) >= layer


def test_block_recompute_of_some_layers_keeps_the_others() -> None:
    work = Workload(seq_length=8192, global_batch_size=8)
    some = Candidates.table(
        recompute=int(Recompute.FULL), recompute_method=int(RecomputeMethod.BLOCK), recompute_num_layers=[20, 60]
    )
    m = MemoryTable(Job(LLAMA_70B, cluster(), work)).memory(some)
    layer, unit = layer_bytes(LLAMA_70B, FLASH, 8192), 8192 * 8192 * 2
    assert np.diff(m.activations)[0] == pytest.approx(-40 * (layer - unit), rel=1e-12)


def test_views_differ_by_slack_and_context() -> None:
    stack = replace(FLASH, memory=replace(FLASH.memory, activation_share=0.25))
    m = MemoryTable(Job(LLAMA_70B, cluster(4, stack), Workload(seq_length=2048, global_batch_size=32))).memory(
        Candidates.table(tp=8, sequence_parallel=True)
    )
    moving = m.activations + m.recompute_workspace + m.logits + m.workspace + m.collective_buffers
    assert (m.reserved - m.allocated)[0] == pytest.approx(0.25 * moving[0])
    assert (m.driver - m.reserved)[0] == pytest.approx(m.context[0])
    assert m.context[0] >= 0.7 * GIB


def test_what_only_the_driver_shows_is_in_no_view_of_torch() -> None:
    work, c = Workload(seq_length=2048, global_batch_size=32), Candidates.table(tp=8, sequence_parallel=True)
    stack = replace(FLASH, memory=replace(FLASH.memory, driver_bytes=7.0 * GB))
    plain, more = (MemoryTable(Job(LLAMA_70B, cluster(4, s), work)).memory(c) for s in (FLASH, stack))
    assert more.driver - plain.driver == pytest.approx(7.0 * GB)
    assert more.reserved == pytest.approx(plain.reserved)


def test_slack_gives_way_before_the_device_overflows() -> None:
    # PyTorch releases cached blocks and retries before it reports out of memory.
    tight = replace(FLASH, memory=replace(FLASH.memory, activation_share=50.0, tight_slack=0.0))
    work, c = Workload(seq_length=4096, global_batch_size=32), Candidates.table(tp=8, sequence_parallel=True)
    m = MemoryTable(Job(LLAMA_70B, cluster(4, tight), work)).memory(c)
    assert m.total[0] == pytest.approx(HARDWARE.accelerator.hbm_bytes)
    assert m.allocated[0] < 0.8 * HARDWARE.accelerator.hbm_bytes


def test_probability_of_fitting_is_half_at_the_limit_and_falls_with_need() -> None:
    work, c = (
        Workload(seq_length=4096, global_batch_size=64),
        Candidates.table(tp=8, micro_batch_size=[1, 2, 4, 8, 16, 32]),
    )
    job = Job(LLAMA_70B, cluster(2), work)
    m = MemoryTable(job).memory(c)
    p = fit_probability(job, c, m)
    assert (np.diff(p) <= 0).all() and p[0] > 0.99 and p[-1] < 0.01
    exact = replace(job.accelerator, hbm_bytes=float(m.needed[0]))
    there = replace(job, cluster=replace(job.cluster, accelerator=exact))
    assert fit_probability(there, c, m)[0] == pytest.approx(0.5)
