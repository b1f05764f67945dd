"""What the flags of a run switch on or off in its software stack, and what they say of its model and pipeline."""

import pytest

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.evidence.published.convert import converted
from primus_search.evidence.published.run_machine import stack_name, switched
from primus_search.evidence.published.run_table import PublishedRun
from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.files.word_rules import first, vocabulary
from primus_search.values.machine.stack import with_numbers
from tests.support.published_run import meaning, run_with

MOE = {
    "gpu": "GB200", "gpus": "64", "gpus_per_node": "4", "fsdp": "zero1", "precision": "bf16", "source": "someone",
    "recompute": "none", "schedule": "1f1b", "model": "X", "num_layers": "12", "hidden": "2048", "ffn_hidden": "8192",
    "heads": "16", "kv_heads": "8", "head_dim": "128", "vocab": "32000", "num_experts": "8", "topk": "2",
    "moe_ffn": "1024", "seq_len": "4096", "mbs": "1", "gbs": "256", "tokens_per_s_per_gpu": "1000",
}  # fmt: skip


GB200 = load_hardware("gb200")


def run_of(**cells: str) -> PublishedRun:
    return run_with(MOE | cells)


@pytest.mark.parametrize(
    ("flags", "graph"),
    [
        ("cuda_graph; dispatcher=hybridep", "full"),
        ("CUDA graphs", "full"),
        ("no cuda graphs", "none"),
        ("force_balanced routing; CUDA graphs off", "none"),
        ("CUDA graph attn+router+preprocess; a2a overlap", "partial"),
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
    assert converted(run_of(flags=flags)).candidates.row(0)["cuda_graph"] == graph


@pytest.mark.parametrize(
    ("flags", "knob", "word"),
    [
        ("tp overlap", "tp_overlap", True),
        ("", "tp_overlap", False),
        ("cp_comm=a2a", "cp_comm", "a2a"),
        ("mixed_precision=pure", "state_format", "bf16_all"),
        ("precision-aware optimizer", "state_format", "bf16_state"),
        ("weight_dtype float32", "state_format", "fp32_all"),
        ("moment_B=2", "state_format", "bf16_moments"),
        ("moment_B=2.5", "state_format", "stack"),
        ("grad_reduce_in_bf16", "state_format", "bf16_reduction"),
        ("", "state_format", "stack"),
    ],
)
def test_what_a_run_switched_on_is_a_knob_of_its_record(flags: str, knob: str, word: object) -> None:
    assert converted(run_of(flags=flags)).candidates.row(0)[knob] == word


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
    ],
)
def test_attention_is_deterministic_where_a_kernel_is(flags: str, device: str, kernel: str) -> None:
    device_file = load_hardware(device)
    assert switched(load_stack("megatron_lm"), run_of(flags=flags), device_file).kernels.attention_kernel == kernel


@pytest.mark.parametrize(
    ("words", "is_low"),
    [
        ({"flags": "fp8_dot_product_attention"}, True),
        ({"flags": "fp8_dot_product_attention=False"}, False),
        ({"flags": "attention recipe Float8CurrentScaling"}, True),
        ({"flags": "cuda_graph=full_iteration", "source": "NVIDIA-NeMo/Megatron-Bridge (26.06)"}, True),
        (
            {
                "flags": "cuda_graph=full_iteration",
                "source": "NVIDIA-NeMo/Megatron-Bridge (26.06)",
                "precision": "bf16",
            },
            False,
        ),
        ({"flags": "cuda_graph=none", "source": "NVIDIA-NeMo/Megatron-Bridge (26.06)"}, False),
    ],
)
def test_attention_in_fp8_is_read_and_known_of_recipes(words: dict[str, str], is_low: bool) -> None:
    run = run_of(**({"precision": "mxfp8", "gpu": "GB300", "flags": ""} | words))
    assert bool(first(vocabulary("words")["knobs"]["fp8_attention"], run.words)) == is_low


def test_dropout_fusion_and_moments_are_read() -> None:
    plain = load_stack("megatron_lm")
    run = run_of(flags="dropout=0.1; moment_B=1", notes="no gradient-accumulation fusion")
    expected = with_numbers(
        plain,
        {
            "has_dropout": True,
            "has_score_dropout": True,
            "has_gradient_accumulation_fusion": False,
            "moment_bytes": 1.0,
        },
    )
    assert switched(plain, run, GB200) == expected
    assert not switched(
        with_numbers(plain, {"has_dropout": True}), run_of(flags="dropout=0.0"), GB200
    ).kernels.has_dropout


@pytest.mark.parametrize(
    ("named", "flags", "stack"),
    [
        ("NVIDIA/Megatron-LM examples/moe_recipes", "dispatcher=deepep; a2a_overlap=True", "megatron_core_2026"),
        ("megatron-lm", "cuda_graph=full_iteration; dispatcher=hybridep", "megatron_core_2026"),
        ("megatron-lm", "megatron_fsdp=v2; dispatcher=alltoall", "megatron_core_2026"),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron_fsdp=True", "megatron_core_2026"),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron_fsdp=None", "megatron_core_2026"),
        ("megatron-lm", "cuda_graph=none", None),
        ("NVIDIA/Megatron-LM examples/llama/README.md FP8 table", "", "nemo_2024"),
    ],
)
def test_megatron_with_the_switches_of_its_vendors_recipes_is_its_vendors_stack(
    named: str, flags: str, stack: str | None
) -> None:
    assert stack_name({"source": named, "flags": flags, "gpu": "GB200", "year": ""}) == stack


def test_experts_may_be_in_every_second_layer() -> None:
    model = converted(run_of(flags="moe_layer_freq=2")).model
    assert model.moe_layers == (False, True) * 6
    assert all(converted(run_of()).model.moe_layers)


def test_a_layout_said_to_be_the_recipes_is_full_stages_and_the_rest_last() -> None:
    case = converted(run_of(flags="pp_layout=recipe", num_layers="61", pp="4", vpp="4", schedule="interleaved-1f1b"))
    assert str(case.candidates.layouts[0]) == "first=None,last=1"
    assert "pp_layout=recipe read as first=None,last=1" in case.assumed


def test_memory_counted_in_decimal_bytes_is_read_so() -> None:
    notes = "peak = torch max_memory_allocated, bytes/1e9 (GB decimal)"
    assert meaning("peak", notes=notes) == ["allocated", "GB"]
    assert meaning("peak", notes="torch max_memory_allocated") == ["allocated", "GiB"]
    assert meaning("peak", notes="peak device memory, GB decimal or GiB not said") == ["driver", "GB"]
    assert meaning("peak", notes="peak device memory in GiB") == ["driver", "GiB"]


def test_every_device_that_takes_flash_attention_2_has_its_rate() -> None:
    for name in ("a100_80", "b200", "b300", "gb200", "gb300"):
        assert "flash2" in load_hardware(name).accelerator.attention.kernels


def test_inputs_of_offloaded_modules_wait_on_the_host() -> None:
    """Rows of 8 experts x 2,048 and of their gate and up products x 1,024, BF16, of 4,096 tokens twice routed."""

    def kept(flags: str) -> float:
        case = converted(run_of(flags=flags))
        columns = Share(case.model, case.workload, case.cluster.stack, case.candidates, case.cluster.world)
        layer = layer_activations(case.model, case.cluster.stack, case.model.kinds[0], columns, 4096)
        return float(layer.kept[0])

    routed = 4096 * 2
    assert kept("") - kept("offload_modules=expert_fc1") == pytest.approx(routed * 2048 * 2)
    assert kept("") - kept("offload_modules=expert_fc1,moe_act") == pytest.approx(routed * (2048 + 2 * 1024) * 2)
    assert kept("offload_modules=None") == kept("offload_modules=nothing_known") == kept("")


@pytest.mark.parametrize(
    ("source", "flags", "stack"),
    [
        ("AMD-AGI/Primus examples/moe_package", "", "primus_megatron_2025"),
        ("AMD-AGI/Primus pilot", "", "primus_megatron"),
        ("AMD-AGI/Primus", "torchtitan", "primus_torchtitan"),
        ("someone/Lumen (AMD)", "Megatron-LM + TransformerEngine", "megatron_te_rocm"),
        ("someone/Lumen (AMD)", "Megatron local", "megatron_lumen"),
        ("someone/Lumen (AMD)", "HF model, FSDP2", "hf_rocm"),
        ("AMD-AGI/maxtext-slurm", "", "maxtext"),
        ("ROCm/Megatron-LM", "Megatron", "megatron_te_rocm"),
        ("AMD blog", "", None),
    ],
)
def test_a_stack_on_rocm_is_known_by_what_a_run_names(source: str, flags: str, stack: str | None) -> None:
    words = dict.fromkeys(("flags", "gpu", "notes", "year"), "") | {"source": source, "flags": flags}
    assert stack_name(words) == stack


LADDER = "AMD-AGI/Primus examples/moe_package/README.md fig 7 (DeepSeekV2_tks_speedup_mi355.png)"


@pytest.mark.parametrize(
    ("flags", "loss", "deepep", "sync_free"),
    [
        ("1F1B baseline", False, None, 0),
        ("+loss fusion", True, None, 0),
        ("+DeepEP", True, True, 0),
        ("+launch opt", True, True, 0),
        ("+VPP3", True, True, 0),
        ("+sync-free1", True, True, 1),
        ("+VPP5", True, True, 1),
    ],
)
def test_every_rung_of_a_ladder_has_what_stands_before_it(
    flags: str, loss: bool, deepep: bool | None, sync_free: int
) -> None:
    knobs = vocabulary("words")["knobs"]
    facts = dict.fromkeys(("notes", "source"), "") | {"flags": flags, "source": LADDER}
    found = [first(knobs[name], facts) for name in ("loss_fusion", "deepep", "sync_free_stage")]
    assert found == [loss, deepep, sync_free]


def test_what_a_run_on_rocm_goes_without_is_switched_off() -> None:
    mi350x, plain = load_hardware("mi350x"), load_stack("megatron_lumen")
    flags = "no TE, no apex: eager norms, torch Adam, unfused rope; no param gather overlap; bf16 grad reduce"
    stack = switched(plain, run_of(gpu="MI350X", flags=flags), mi350x)
    assert plain.kernels.has_fused_norm and plain.kernels.has_fused_rope and plain.kernels.has_fused_optimizer
    assert not (stack.kernels.has_fused_norm or stack.kernels.has_fused_rope or stack.kernels.has_fused_optimizer)
    assert stack.sharding.param_gather_overlap == 0.0


@pytest.mark.parametrize(
    "flags",
    ["unfused rope; unfused swiglu", "no rope fusion; no swiglu fusion", "no rope_fusion; no activation fusion"],
)
def test_rotation_and_activation_are_unfused_in_any_words(flags: str) -> None:
    kernels = switched(load_stack("megatron_lm"), run_of(gpu="H100", flags=flags), load_hardware("h100")).kernels
    assert not (kernels.has_fused_rope or kernels.has_fused_activation)


def test_a_configuration_of_primus_brings_its_switches() -> None:
    mi355x, plain = load_hardware("mi355x"), load_stack("primus_megatron")
    stack = switched(plain, run_of(gpu="MI355X", notes="primus gpt-oss"), mi355x)
    assert not plain.kernels.has_gradient_accumulation_fusion and stack.kernels.has_gradient_accumulation_fusion
    assert stack.experts.permutation == "fused"
