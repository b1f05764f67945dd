"""What the flags of a run switch on or off in its software stack, and what they say of its model and pipeline."""

from dataclasses import replace

import pytest

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import share
from primus_search.declare.hardware import load_hardware, load_stack
from primus_search.units import GB, GIB
from primus_search.validate.cases import build_case
from primus_search.validate.rows import Run
from primus_search.validate.run import memory_view
from primus_search.validate.switches import switched
from primus_search.validate.words import stack_name
from tests.unit.published_run import run_with

MOE = {
    "gpu": "GB200", "gpus": "64", "gpus_per_node": "4", "fsdp": "zero1", "precision": "bf16", "source": "someone",
    "recompute": "none", "schedule": "1f1b", "model": "X", "num_layers": "12", "hidden": "2048", "ffn_hidden": "8192",
    "heads": "16", "kv_heads": "8", "head_dim": "128", "vocab": "32000", "num_experts": "8", "topk": "2",
    "moe_ffn": "1024", "seq_len": "4096", "mbs": "1", "gbs": "256", "tokens_per_s_per_gpu": "1000",
}  # fmt: skip


GB200 = load_hardware("gb200").accelerator


def run_of(**cells: str) -> Run:
    return run_with(MOE | cells)


@pytest.mark.parametrize(
    ("flags", "graph"),
    [
        ("cuda_graph; dispatcher=hybridep", "full"),
        ("CUDA graphs", "full"),
        ("no cuda graphs", "none"),
        ("cuda_graph=none", "none"),
        ("cuda_graph=None/None", "none"),
        ("cuda_graph=transformer_engine/mlp", "none"),
        ("cuda_graph=transformer_engine/[moe_router,moe_preprocess]", "router"),
        ("cuda_graph=transformer_engine/[attn,moe_router]", "partial"),
        ("cuda_graph=local/full_iteration", "full"),
        ("cuda_graph=none/full_iteration", "none"),
    ],
)
def test_a_graph_without_a_scope_is_of_the_whole_step(flags: str, graph: str) -> None:
    assert switched(load_stack("megatron_core_2026"), run_of(flags=flags), GB200).cuda_graph == graph


@pytest.mark.parametrize(
    ("flags", "device", "kernel"),
    [
        ("deterministic", "gb200", "flash2"),
        ("deterministic mode; dropout=0.1", "a100_80", "flash2"),
        ("deterministic", "h100", "cudnn"),
        ("deterministic=False", "gb200", "cudnn"),
        ("deterministic=0; dropout=.", "gb200", "cudnn"),
        ("non-deterministic", "gb200", "cudnn"),
        ("", "gb200", "cudnn"),
        ("fp8_dot_product_attention", "gb300", "cudnn_fp8"),
        ("fp8_dot_product_attention=False", "gb300", "cudnn"),
        ("fp8_dot_product_attention", "h100", "cudnn"),
    ],
)
def test_attention_is_deterministic_or_in_fp8_where_a_kernel_is(flags: str, device: str, kernel: str) -> None:
    acc = load_hardware(device).accelerator
    assert switched(load_stack("megatron_lm"), run_of(flags=flags), acc).attention_kernel == kernel


def test_dropout_fusion_and_moments_are_read() -> None:
    plain = load_stack("megatron_lm")
    run = run_of(flags="dropout=0.1; moment_B=2", notes="no gradient-accumulation fusion")
    expected = replace(plain, has_dropout=True, has_gradient_accumulation_fusion=False, moment_bytes=2.0)
    assert switched(plain, run, GB200) == expected
    assert not switched(replace(plain, has_dropout=True), run_of(flags="dropout=0.0"), GB200).has_dropout


@pytest.mark.parametrize(
    ("named", "flags", "stack"),
    [
        ("NVIDIA/Megatron-LM examples/moe_recipes", "dispatcher=deepep; a2a_overlap=True", "megatron_core_2026"),
        ("megatron-lm", "cuda_graph=full_iteration; dispatcher=hybridep", "megatron_core_2026"),
        ("megatron-lm", "megatron_fsdp=v2; dispatcher=alltoall", "megatron_fsdp_2026"),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron_fsdp=True", "megatron_fsdp_2026"),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron_fsdp=None", "megatron_core_2026"),
        ("megatron-lm", "cuda_graph=none", None),
        ("NVIDIA/Megatron-LM examples/llama/README.md FP8 table", "", "nemo_2024"),
    ],
)
def test_megatron_with_the_switches_of_its_vendors_recipes_is_its_vendors_stack(
    named: str, flags: str, stack: str | None
) -> None:
    assert stack_name(named, flags, "GB200") == stack


def test_experts_may_be_in_every_second_layer() -> None:
    model = build_case(run_of(flags="moe_layer_freq=2")).model
    assert model.moe_layers == (False, True) * 6
    assert all(build_case(run_of()).model.moe_layers)


def test_a_layout_said_to_be_the_recipes_is_full_stages_and_the_rest_last() -> None:
    case = build_case(run_of(flags="pp_layout=recipe", num_layers="61", pp="4", vpp="4", schedule="interleaved-1f1b"))
    assert str(case.candidates.layouts[0]) == "first=None,last=1"
    assert "pp_layout=recipe read as first=None,last=1" in case.assumed


def test_memory_counted_in_decimal_bytes_is_read_so() -> None:
    notes = "peak = torch max_memory_allocated, bytes/1e9 (GB decimal)"
    assert memory_view(run_of(notes=notes)) == ("allocated", GB)
    assert memory_view(run_of(notes="torch max_memory_allocated")) == ("allocated", GIB)
    assert memory_view(run_of(notes="peak device memory, GB decimal or GiB not said")) == ("driver", GB)
    assert memory_view(run_of(notes="peak device memory in GiB")) == ("driver", GIB)


def test_every_device_that_takes_flash_attention_2_has_its_rate() -> None:
    for name in ("a100_80", "b200", "b300", "gb200", "gb300"):
        assert "flash2" in load_hardware(name).accelerator.attention.kernels


def test_inputs_of_offloaded_modules_wait_on_the_host() -> None:
    """Rows of 8 experts x 2,048 and of their gate and up products x 1,024, BF16, of 4,096 tokens twice routed."""

    def kept(flags: str) -> float:
        case = build_case(run_of(flags=flags))
        columns = share(case.model, case.workload, case.cluster.stack, case.candidates, case.cluster.world)
        layer = layer_activations(case.model, case.cluster.stack, case.model.kinds[0], columns, 4096)
        return float(layer.kept[0])

    routed = 4096 * 2
    assert kept("") - kept("offload_modules=expert_fc1") == pytest.approx(routed * 2048 * 2)
    assert kept("") - kept("offload_modules=expert_fc1,moe_act") == pytest.approx(routed * (2048 + 2 * 1024) * 2)
    assert kept("offload_modules=None") == kept("offload_modules=nothing_known") == kept("")
