"""`validate` on tables nobody here wrote: names spelled otherwise, columns missing, sources and stacks unknown."""

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.cost.confidence.uncertainty import UNKNOWN
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.published.run_machine import hardware_of, stack_name
from primus_search.evidence.published.run_table import Skipped
from primus_search.evidence.validate.score_runs import Refitted, Validation, validate_runs
from primus_search.evidence.validate.summary import summary
from primus_search.evidence.validate.undescribed import with_undescribed
from primus_search.files.hardware_files import load_stack
from primus_search.files.word_rules import first, vocabulary
from primus_search.values.candidates import Fp8, GroupedGemm, Offload, Recompute
from tests.support.published_run import meaning, run_with
from tools.fit.intervals import FAR, HONEST, NEW_REGIME, bands_of_others

LLAMA = {
    "id": "x-1", "source": "someone/else results.md", "model": "Llama-3-8B", "params_b": "8.03", "num_layers": "32",
    "hidden": "4096", "ffn_hidden": "14336", "heads": "32", "kv_heads": "8", "head_dim": "128", "vocab": "128256",
    "gpu": "H100", "gpus": "16", "gpus_per_node": "8", "tp": "2", "pp": "1", "cp": "1", "dp": "8", "fsdp": "zero1",
    "seq_len": "8192", "mbs": "1", "gbs": "64", "precision": "bf16", "recompute": "none", "schedule": "none",
    "sequence_parallel": "yes", "flags": "", "tokens_per_s_per_gpu": "9000", "complete": "yes", "notes": "",
}  # fmt: skip


def outcome_of(folder: Path, *rows: dict[str, str], without: tuple[str, ...] = ()) -> Validation:
    """The runs of a table on the stacks that they are read as; no mixture over stacks where that is assumed."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in without]
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return validate_runs(measured_table(path))


@pytest.mark.parametrize(
    ("gpu", "notes", "file"),
    [
        ("H100", "", "h100"),
        ("NVIDIA H100-SXM5-80GB", "", "h100"),
        ("H100", "96 GB HBM2e 500 W, not stock", "h100_96gb"),
        ("H100 96GB", "", "h100_96gb"),
        ("DGX H200", "", "h200"),
        ("A100-SXM4-40GB", "", "a100_40"),
        ("A100 80GB SXM", "", "a100_80"),
        ("A100", "each with 40 GB of memory free", "a100_80"),
        ("NVIDIA GB200 NVL72", "", "gb200"),
        ("GB300", "", "gb300"),
        ("8xH100", "", "h100"),
        ("DGXH100", "", "h100"),
        ("HGX-B200", "", "b200"),
        ("AMD Instinct MI300X OAM", "", "mi300x"),
        ("mi355x (288 GB)", "", "mi355x"),
        ("MI250X (GCD)", "", "mi250x"),
        ("H100 PCIe", "", None),
        ("GH200 96GB", "", "gh200"),
        ("B300", "EFA 16x400 Gb/s a node", "b300@efa"),
        ("H20", "", "h20"),
        ("H200", "", "h200"),
        ("TPU v5p", "", None),
        ("", "", None),
    ],
)
def test_a_gpu_is_known_by_any_of_its_names(gpu: str, notes: str, file: str | None) -> None:
    run = run_with({"gpu": gpu, "notes": notes})
    if file is not None:
        assert hardware_of(run) == file
        return
    with pytest.raises(Skipped):
        hardware_of(run)


@pytest.mark.parametrize(
    ("gpu", "column", "text"),
    [
        ("H200", "source", "someone (Dell 1xXE7740x8H200-NVL)"),
        ("H100", "notes", "H100 PCIe, 350 W"),
        ("B200", "flags", "torch.compile; power limited B200"),
    ],
)
def test_a_device_that_is_another_card_than_its_name_is_not_projected_as_the_module(
    tmp_path: Path, gpu: str, column: str, text: str
) -> None:
    module = LLAMA | {"gpu": gpu}
    outcome = outcome_of(tmp_path, module, module | {"id": "other", column: text})
    assert [row.run.id for row in outcome.rows] == ["x-1"]
    assert [(one.id, "another card" in one.reason) for one in outcome.skipped] == [("other", True)]


@pytest.mark.parametrize(
    "notes", ["H200 SXM, not power limited", "GB200 NVL72 and an H200 SXM", "H100 SXM over PCIe 5"]
)
def test_other_words_do_not_make_it_another_card(tmp_path: Path, notes: str) -> None:
    assert not outcome_of(tmp_path, LLAMA | {"gpu": "H200", "notes": notes}).skipped


def test_recomputed_layers_are_numbered_over_the_whole_model(tmp_path: Path) -> None:
    """A knob recomputes as many layers of every stage; a list that names more of one than of another is none."""
    piped = LLAMA | {"tp": "1", "pp": "4", "dp": "4", "schedule": "1f1b", "sequence_parallel": "no"}
    alike, uneven = "partial:layer ids 0,1,8,9,16,17,24,25", "partial:layer ids 0,1,2,4"
    outcome = outcome_of(
        tmp_path, piped | {"recompute": alike}, piped | {"id": "x-2", "recompute": uneven},
        LLAMA | {"id": "x-3", "recompute": uneven},
    )  # fmt: skip
    found = {row.run.id: int(row.run.candidates.recompute_num_layers[0]) for row in outcome.rows}
    assert found == {"x-1": 2, "x-3": 4}
    assert [(one.id, "0 to 4 per virtual stage" in one.reason) for one in outcome.skipped] == [("x-2", True)]


def test_a_pool_is_as_large_as_a_run_says_and_full_where_it_ends(tmp_path: Path) -> None:
    jax = LLAMA | {"source": "someone maxtext sweep", "fsdp": "zero3", "tp": "1", "dp": "16", "sequence_parallel": "no"}
    said = {
        "": 0.93,
        "XLA pool .97": 0.97,
        "XLA pool .90; CK fused attention": 0.90,
    }
    rows = [
        jax | {"id": str(i), "flags": flags, "notes": "XLA pool .93 unless flagged"} for i, flags in enumerate(said)
    ]
    for row, share in zip(outcome_of(tmp_path, *rows).rows, said.values(), strict=True):
        cluster, memory = row.run.cluster, row.projection.memory
        assert cluster.stack.memory.device_share == share
        room = float(row.projection.headroom_bytes[0] + memory.allocated[0] + memory.allocator_slack[0])
        assert room == pytest.approx(share * cluster.accelerator.hbm_bytes)
    torch = outcome_of(tmp_path, LLAMA | {"notes": "XLA pool .93"}).rows[0]
    assert torch.run.cluster.stack.memory.device_share == 1.0


def test_weights_of_float32_hold_twelve_bytes_of_state_per_parameter(tmp_path: Path) -> None:
    jax = LLAMA | {"source": "someone maxtext sweep", "fsdp": "zero3", "tp": "1", "dp": "16", "sequence_parallel": "no"}
    half, whole = outcome_of(tmp_path, jax, jax | {"id": "x-2", "notes": "weight_dtype not set = default float32"}).rows
    for row, width in ((half, 2.0), (whole, 4.0)):
        memory = row.projection.memory
        states = float(memory.weights[0] + memory.optimizer[0])
        assert states == pytest.approx(3.0 * width * row.run.model.total_params / 16, rel=0.01)


@pytest.mark.parametrize(("flags", "state_bytes"), [("TE FusedAdam fp32 master", 16.0), ("optimizer=bf16 adam", 8.0)])
def test_an_optimizer_with_masters_of_its_own_holds_them_in_fp32(
    flags: str, state_bytes: float, tmp_path: Path
) -> None:
    run = LLAMA | {
        "stack": "automodel",
        "fsdp": "fsdp2",
        "tp": "1",
        "dp": "16",
        "sequence_parallel": "no",
        "flags": flags,
    }
    (row,) = outcome_of(tmp_path, run).rows
    memory = row.projection.memory
    held = float(memory.weights[0] + memory.gradients[0] + memory.optimizer[0])
    assert held == pytest.approx(state_bytes / 16 * 8.03e9, rel=0.02)


def test_a_source_nobody_knows_gets_the_likely_stack_and_is_told_so(tmp_path: Path) -> None:
    amd = LLAMA | {"id": "x-2", "gpu": "MI300X", "fsdp": "FSDP2", "tp": "1", "dp": "16", "sequence_parallel": "no"}
    outcome = with_undescribed(outcome_of(tmp_path, LLAMA, amd))
    assert [row.run.cluster.stack.name for row in outcome.rows] == ["megatron_lm", "primus_torchtitan"]
    told = [(item["id"], item["what"].partition(", most likely")[0]) for item in summary(outcome)["assumed"]]
    mixture = "software is not described: median over stacks"
    assert told == [
        ("x-1", "no stack is known for this source: megatron_lm assumed"),
        ("x-1", mixture),
        ("x-2", "no stack is known for this source: primus_torchtitan assumed"),
        ("x-2", mixture),
    ]


def test_fsdp_that_keeps_its_weights_is_of_the_same_kind_of_stack(tmp_path: Path) -> None:
    kept = LLAMA | {"fsdp": "fsdp2 (no reshard)", "tp": "1", "dp": "16", "sequence_parallel": "no"}
    assert outcome_of(tmp_path, kept).rows[0].run.cluster.stack.name == "torchtitan"


def test_a_column_may_name_the_stack(tmp_path: Path) -> None:
    named, odd = LLAMA | {"stack": "megatron_te"}, LLAMA | {"id": "x-2", "stack": "our_fork"}
    outcome = outcome_of(tmp_path, named, odd)
    assert [row.run.cluster.stack.name for row in outcome.rows] == ["megatron_te", "megatron_lm"]
    assert [item["what"] for item in summary(outcome)["assumed"]][:2] == [
        "stack 'our_fork' is not known",
        "no stack is known for this source: megatron_lm assumed",
    ]


def test_the_stack_may_be_called_by_its_name_instead_of_its_file(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, LLAMA | {"stack": "Megatron-Bridge 0.4"})
    assert outcome.rows[0].run.cluster.stack.name == "megatron_core_2026"
    assert summary(outcome)["assumed"][0]["what"] == "stack 'Megatron-Bridge 0.4' read as megatron_core_2026"


@pytest.mark.parametrize(
    ("source", "flags", "gpu", "stack"),
    [
        ("MLPerf Training v5.0 NVIDIA", "CUDA graphs", "GB200", "nemo_mlperf"),
        ("MLPerf Training v5.1 NVIDIA", "dispatcher=hybridep", "GB200", "megatron_core_2026"),
        ("mlcommons/training_results_v6.0", "", "GB300", "megatron_core_2026"),
        ("mlcommons/training_results_v6.0", "", "MI355X", "primus_megatron"),
    ],
)
def test_a_submission_to_mlperf_is_of_the_stack_of_its_year(source: str, flags: str, gpu: str, stack: str) -> None:
    assert stack_name({"source": source, "flags": flags, "gpu": gpu}) == stack


@pytest.mark.parametrize(
    ("word", "flags"),
    [
        ("core_attn, mlp", Recompute.CORE_ATTENTION | Recompute.MLP),
        ("['mla_up_proj','mlp']", Recompute.MLA_UP_PROJ | Recompute.MLP),
        ("Selective (core attention)", Recompute.CORE_ATTENTION),
        ("gradient checkpointing", Recompute.FULL),
        ("no checkpointing", Recompute.NONE),
    ],
)
def test_recompute_is_read_from_any_list_of_modules(word: str, flags: Recompute, tmp_path: Path) -> None:
    candidates = outcome_of(tmp_path, LLAMA | {"recompute": word}).rows[0].run.candidates
    assert (candidates.recompute[0], candidates.recompute_num_layers[0]) == (flags, 0)


@pytest.mark.parametrize(
    ("word", "recipe"),
    [
        ("FP8-DS", Fp8.DELAYED),
        ("FP8-SC", Fp8.BLOCKWISE),
        ("bfloat16", Fp8.NONE),
        ("16-mixed", Fp8.NONE),
        ("fp32", None),
    ],
)
def test_a_precision_is_known_by_its_short_form(word: str, recipe: Fp8 | None) -> None:
    assert meaning("precision", precision=word) == (None if recipe is None else recipe.name.lower())


@pytest.mark.parametrize(("word", "stage"), [("zero_stage=3", 3), ("ZeRO stage 2", 2), ("stage1", 1), ("n/a", 0)])
def test_a_stage_of_zero_is_read_however_it_is_written(word: str, stage: int) -> None:
    stages = {0: "none", 1: "distributed_optimizer", 2: "zero2", 3: "fsdp2"}
    assert meaning("sharding", fsdp=word) == stages[stage]


def test_an_mtp_module_is_there_where_the_flags_say_so(tmp_path: Path) -> None:
    moe = LLAMA | {"num_experts": "8", "topk": "2", "moe_ffn": "1024", "model": "DeepSeek-V3", "mla": "1"}
    outcome = outcome_of(tmp_path, moe | {"flags": "mtp=1"}, moe | {"flags": "no MTP"}, moe)
    assert [row.run.model.num_mtp_layers for row in outcome.rows] == [1, 0, 0]


def test_columns_may_be_missing_renamed_in_case_or_more_than_known(tmp_path: Path) -> None:
    whole = outcome_of(tmp_path, LLAMA).rows[0].predicted
    rare = ("id", "source", "model", "notes", "flags", "complete", "vpp", "ep", "etp", "mla", "params_b", "dp")
    assert outcome_of(tmp_path, LLAMA, without=rare).rows[0].predicted == whole
    loud = {name.upper(): value for name, value in LLAMA.items()} | {"weather": "fair"}
    assert outcome_of(tmp_path, loud).rows[0].predicted == whole


def test_the_time_of_a_step_stands_in_for_a_rate(tmp_path: Path) -> None:
    timed = LLAMA | {"tokens_per_s_per_gpu": "", "step_time_s": "4.0"}
    row = outcome_of(tmp_path, timed).rows[0]
    assert row.run.tokens_per_s_per_gpu == pytest.approx(64 * 8192 / 4.0 / 16)


def test_a_run_that_publishes_memory_alone_counts_for_memory_alone(tmp_path: Path) -> None:
    memory = LLAMA | {"id": "x-2", "tokens_per_s_per_gpu": "", "peak_mem_gb": "40", "notes": "nvidia-smi"}
    outcome = outcome_of(tmp_path, LLAMA, memory)
    figures = summary(outcome)
    assert (figures["rows"], figures["memory_only"], figures["memory"]["rows"]) == (1, 1, 1)
    assert [item["id"] for item in figures["per_row"]] == ["x-1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TPU v5p"}, "no hardware file for GPU 'TPU v5p'"),
        ({"heads": ""}, "heads is missing or not a whole number of at least 1"),
        ({"kv_heads": "7"}, "no such model: num_heads 32 is not a multiple of num_kv_heads 7"),
        ({"num_layers": "1e9"}, "num_layers is missing or not a whole number of at least 1"),
        ({"mbs": "0"}, "mbs is missing or not a whole number of at least 1"),
        ({"precision": "int7"}, "precision 'int7' is not known"),
        ({"recompute": ""}, "recompute '' is not known"),
        ({"recompute": "selective:layernorm,moe"}, "recompute 'selective:layernorm,moe' is not known"),
        ({"fsdp": "magic"}, "fsdp 'magic' is not known"),
        ({"pp": "2", "tp": "1", "schedule": "hanoi"}, "schedule 'hanoi' is not known"),
        ({"gbs": "63"}, "16 GPUs and global batch 63 do not divide by the degrees given"),
        ({"gpus": "12"}, "12 GPUs are no whole number of nodes of 8"),
        ({"gbs": "800000000", "pp": "4"}, "400000000 micro-batches through 4 stages are beyond any training run"),
        ({"tokens_per_s_per_gpu": "fast"}, "no measured tokens/s/GPU, nor the time of a step"),
        ({"num_experts": "8", "moe_ffn": "1024"}, "topk is missing or not a whole number of at least 1"),
        ({"complete": "no"}, "marked incomplete"),
        ({"model": "Llama-3-8B LoRA"}, "only adapters are trained, which is not modelled"),
    ],
)
def test_a_row_that_cannot_be_projected_says_why(change: dict[str, str], reason: str, tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, LLAMA | change)
    assert [one.reason for one in outcome.skipped] == [reason] and not outcome.rows


def test_without_a_pipeline_the_word_for_its_schedule_does_not_matter(tmp_path: Path) -> None:
    plain, odd = outcome_of(tmp_path, LLAMA), outcome_of(tmp_path, LLAMA | {"schedule": "hanoi", "vpp": "4"})
    assert odd.rows[0].predicted == plain.rows[0].predicted


@pytest.mark.parametrize(
    ("notes", "length"),
    [
        ("packed sequences of 2048", 0.0),
        ("THD packing", 2000.0),
        ("varlen flash-attn on packed C4 documents", 854.0),
        ("block-diagonal attention, mean document length of 300 tokens", 600.0),
    ],
)
def test_documents_that_are_masked_from_each_other_are_short_sequences(
    notes: str, length: float, tmp_path: Path
) -> None:
    (plain,), (packed,) = (outcome_of(tmp_path, LLAMA | {"notes": text}).rows for text in ("", notes))
    assert packed.run.workload.document_length == length
    assert (packed.predicted > 1.01 * plain.predicted) == (length > 0.0)


@pytest.mark.parametrize(
    ("stack", "date", "length"),
    [
        ("torchtitan", "2026-05", 0.0),
        ("torchtitan", "2026-06", 0.0),  # released in part of that month alone
        ("torchtitan", "2026-06-09", 2000.0),
        ("torchtitan", "2026-07-22", 2000.0),
        ("torchtitan", "2027-01", 2000.0),
        ("torchtitan", "", 0.0),
        ("megatron-lm", "2026-09", 0.0),
    ],
)
def test_torchtitan_masks_documents_since_it_knows_no_other_mask(
    stack: str, date: str, length: float, tmp_path: Path
) -> None:
    (row,) = outcome_of(tmp_path, LLAMA | {"stack": stack, "date": date}).rows
    assert row.run.workload.document_length == length


@pytest.mark.parametrize(
    ("flags", "fused"),
    [("fa4; Liger kernels", True), ("no Liger kernels", False), ("Liger kernels off", False), ("fa4", False)],
)
def test_ligers_cross_entropy_is_fused_with_its_gradient(flags: str, fused: bool, tmp_path: Path) -> None:
    (row,) = outcome_of(tmp_path, LLAMA | {"stack": "torchtitan", "flags": flags}).rows
    assert bool(row.run.candidates.loss_fusion[0]) == fused


@pytest.mark.parametrize(
    ("notes", "listed"),
    [
        ("torch.compile, DeepEP v1; FP32 weights", True),
        ("recompute, DeepEP", True),
        ("12 % slower than with DeepEP, all else equal", False),
        ("", False),
    ],
)
def test_notes_may_list_deepep_among_what_a_run_was_made_with(notes: str, listed: bool) -> None:
    assert bool(first(vocabulary("words")["knobs"]["deepep"], {"flags": "", "notes": notes})) == listed


def test_experts_padded_to_a_capacity_take_as_long_as_one_of_that_many_rows(tmp_path: Path) -> None:
    padded = LLAMA | {"flags": "dropping, capacity_factor=1.25 (padded to it)"}
    (row,) = outcome_of(tmp_path, padded).rows
    assert row.run.workload.routing_imbalance == 1.25


@pytest.mark.parametrize(
    ("stack", "words", "is_uneven"),
    [
        ("megatron-lm", "natural routing of the pre-trained gate", True),
        ("torchtitan", "", True),
        ("torchtitan", "debug moe_force_balanced routing", False),
        ("xtuner", "synthetic data", False),
        ("primus-torchtitan", "", False),
        ("nemo", "", False),
        ("automodel", "fake balanced gate", False),
    ],
)
def test_experts_are_uneven_where_nothing_balances_them(stack: str, words: str, is_uneven: bool) -> None:
    facts = {"stack": stack, "flags": words, "notes": "", "stack.": load_stack("torchtitan")}
    spread = load_stack("torchtitan").experts.natural_spread
    assert first(vocabulary("words")["routing_spread"], facts) == (spread if is_uneven else 0.0)


def test_a_dense_model_has_no_experts_to_be_uneven(tmp_path: Path) -> None:
    (row,) = outcome_of(tmp_path, LLAMA | {"flags": "natural routing"}).rows
    assert row.run.workload.routing_spread == 0.0


@pytest.mark.parametrize(
    ("flags", "chunks", "hides"),
    [("", 1, True), ("torch.compile; four loss chunks", 4, True), ("no CUDA graphs; eager", 1, False)],
)
def test_loss_chunks_and_eager_modules_are_read_from_flags(
    flags: str, chunks: int, hides: bool, tmp_path: Path
) -> None:
    run = LLAMA | {
        "source": "torchtitan page",
        "flags": flags,
        "tp": "1",
        "dp": "16",
        "fsdp": "fsdp2",
        "sequence_parallel": "no",
    }
    (row,) = outcome_of(tmp_path, run).rows
    stack = row.run.cluster.stack
    assert stack.name == "torchtitan"
    assert (stack.memory.loss_chunks, stack.memory.hides_expert_layers) == (chunks, hides)
    assert stack.kernels.has_fused_norm == ("eager" not in flags)


@pytest.mark.parametrize(
    ("flags", "recompute", "hosted", "modules"),
    [
        ("activation offloading", "full", 0, Offload.LAYER_INPUT),
        ("bf16; offloaded activations; optimizer CPU offload", "full", 100, Offload.LAYER_INPUT),
        ("optimizer_cpu_offload; optimizer_offload_fraction=0.5", "none", 50, Offload.NONE),
        ("optimizer_cpu_offload; optimizer_offload_fraction=.3", "none", 30, Offload.NONE),
        ("optimizer offload to the host, 75 %", "none", 75, Offload.NONE),
        ("offload_optimizer=cpu; residuals on the host", "full", 100, Offload.LAYER_INPUT),
        ("activation offload", "none", 0, Offload.NONE),
        ("activation_offload=false; offload_optimizer=none", "full", 0, Offload.NONE),
    ],
)
def test_what_waits_on_the_host_is_read_from_flags(
    flags: str, recompute: str, hosted: int, modules: Offload, tmp_path: Path
) -> None:
    (row,) = outcome_of(tmp_path, LLAMA | {"flags": flags, "recompute": recompute}).rows
    c = row.run.candidates
    assert (int(c.optimizer_offload[0]), Offload(int(c.offload_modules[0]))) == (hosted, modules)


def test_weights_that_stay_gathered_are_in_bf16_beside_their_shards(tmp_path: Path) -> None:
    again = LLAMA | {"stack": "torchtitan", "tp": "1", "dp": "16", "fsdp": "fsdp2", "sequence_parallel": "no"}
    first, second = outcome_of(tmp_path, again, again | {"fsdp": "fsdp2 (no reshard)"}).rows
    more = second.projection.memory.weights[0] - first.projection.memory.weights[0]
    assert more == pytest.approx(2 * 8.03e9, rel=1e-3)


def test_a_v_has_two_chunks_though_the_table_leaves_them_out(tmp_path: Path) -> None:
    run = LLAMA | {"pp": "2", "dp": "4", "schedule": "DualPipeV"}
    (row,) = outcome_of(tmp_path, run).rows
    assert row.run.candidates.vpp[0] == 2
    assert row.predicted > 1000.0


def test_attention_of_plain_torch_keeps_its_softmax_in_fp32(tmp_path: Path) -> None:
    words = ("no flash attention (fused softmax kernel of Megatron-LM)", "no flash attention (plain torch)")
    stacks = [outcome_of(tmp_path, LLAMA | {"flags": word}).rows[0].run.cluster.stack for word in words]
    assert {stack.kernels.attention_kernel for stack in stacks} == {"unfused"}
    assert [stack.memory.score_bytes for stack in stacks] == [2.0, 6.0]


def test_nodes_with_fewer_gpus_than_the_hardware_file_has_are_believed(tmp_path: Path) -> None:
    by_four = LLAMA | {"gpus_per_node": "4"}
    network = outcome_of(tmp_path, by_four).rows[0].run.cluster.network
    assert (network.gpus_per_node, network.domain_size, network.nics_per_node) == (4, 4, 4)


@pytest.mark.parametrize(
    ("source", "notes", "view"),
    [
        ("MooreThreads/SimuMax", "reserved 70 GiB", ("allocated", 2**30)),
        ("pytorch/torchtitan", "max reserved GiB over ranks", ("reserved", 2**30)),
        ("paper", "torch.cuda.max_memory_allocated", ("allocated", 2**30)),
        ("paper", "peak allocated", ("allocated", 2**30)),
        ("blog", "as nvidia-smi shows", ("driver", 2**30)),
        ("blog", "", ("driver", 1e9)),
    ],
)
def test_memory_is_compared_in_the_view_its_source_prints(
    source: str, notes: str, view: tuple[str, float], tmp_path: Path
) -> None:
    (row,) = outcome_of(tmp_path, LLAMA | {"source": source, "notes": notes, "peak_mem_gb": "1"}).rows
    assert (row.run.measured.peak_kind, row.run.measured.peak_bytes) == view


def test_no_row_at_all_is_an_answer_and_a_table_without_gpus_is_refused(tmp_path: Path) -> None:
    outcome_of(tmp_path, LLAMA | {"gpu": "TPU v5p"})
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "runs.csv")])
    assert done.exit_code == 0
    assert "0 runs projected, 1 skipped" in done.stdout and "no hardware file for GPU 'TPU v5p'" in done.stdout
    with pytest.raises(InputError) as caught:
        outcome_of(tmp_path, LLAMA, without=("gpu", "tokens_per_s_per_gpu"))
    text = str(tmp_path / "runs.csv")
    either = "tokens_per_s_per_gpu or step_time_s or outcome or oom or status or result"
    assert str(caught.value) == f"{text}: no column gpu\n{text}: no column {either}"


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "said",
    [
        {"outcome": "oom"}, {"outcome": "OOM"}, {"status": "CUDA out of memory"}, {"result": "out-of-memory"},
        {"oom": "yes"}, {"oom": "1"}, {"tokens_per_s_per_gpu": "OOM"}, {"peak_mem_gb": "OOM"},
        {"tokens_per_s_per_gpu": "", "notes": "CUDA OOM in the first step"},
    ],
)  # fmt: skip
def test_a_run_that_ran_out_of_memory_counts_for_nothing_but_that(tmp_path: Path, said: dict[str, str]) -> None:
    hopeless = LLAMA | {"id": "x-2", "mbs": "64", "gbs": "1024", "tp": "1", "sequence_parallel": "no"}
    found = outcome_of(tmp_path, LLAMA, hopeless | said)
    assert [row.run.id for row in found.rows] == ["x-1"]
    assert [(row.run.id, row.verdict) for row in found.ran_out] == [("x-2", "OOM")]
    memory = summary(found)["memory"]
    assert (memory["ran"], memory["ran_out"], memory["false_oom"], memory["false_fit"]) == (1, 1, 0.0, 0.0)
    shown = CliRunner().invoke(app, ["validate", str(tmp_path / "runs.csv")]).stdout
    assert "1 more ran out of memory" in shown
    assert "of 1 runs that ran out of memory 0.0% are said to fit" in shown


def test_notes_of_a_run_with_a_rate_may_speak_of_another_that_ran_out(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, LLAMA | {"notes": "with two chunks per rank OOM"})
    assert (len(found.rows), len(found.ran_out)) == (1, 0)


@pytest.mark.parametrize("said", [{"outcome": "ran"}, {"outcome": "ok"}, {"oom": "no"}, {"status": "no OOM"}])
def test_a_run_that_only_says_it_ran_counts_for_whether_it_fits(tmp_path: Path, said: dict[str, str]) -> None:
    found = outcome_of(tmp_path, LLAMA | {"tokens_per_s_per_gpu": ""} | said)
    assert (len(found.rows), len(found.memory_only), len(found.ran_out)) == (0, 1, 0)
    assert summary(found)["memory"]["ran"] == 1


def test_a_configuration_wrongly_said_to_fit_or_not_is_named(tmp_path: Path) -> None:
    wrong = LLAMA | {"id": "roomy", "outcome": "oom", "tp": "4", "dp": "4"}
    hopeless = LLAMA | {"id": "hopeless", "mbs": "64", "gbs": "1024", "tp": "1", "sequence_parallel": "no"}
    outcome_of(tmp_path, wrong, hopeless)
    shown = CliRunner().invoke(app, ["validate", str(tmp_path / "runs.csv")]).stdout
    assert "roomy: ran out of memory, said FITS" in shown
    assert "hopeless: ran, said OOM" in shown


def test_a_rank_correlation_that_no_group_is_large_enough_for_is_a_dash(tmp_path: Path) -> None:
    outcome_of(tmp_path, LLAMA)
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(app, ["validate", str(tmp_path / "runs.csv"), "--html", str(page)]).stdout
    assert "Kendall -," in shown and "nan" not in shown
    assert "nan" not in page.read_text(encoding="utf-8")


def test_every_regime_says_how_often_its_interval_held(tmp_path: Path) -> None:
    rate = outcome_of(tmp_path, LLAMA).rows[0].predicted
    inside = LLAMA | {"tokens_per_s_per_gpu": str(rate)}
    outside = LLAMA | {"id": "x-2", "mbs": "2", "tokens_per_s_per_gpu": str(3.0 * rate)}
    regimes = {g["group"]: g for g in summary(outcome_of(tmp_path, inside, outside))["groups"]}
    assert regimes["megatron_lm dense"]["coverage_90"] == 0.5


OSS = LLAMA | {
    "model": "GPT-OSS-120B", "params_b": "116.8", "num_layers": "36", "hidden": "2880", "ffn_hidden": "2880",
    "heads": "64", "head_dim": "64", "vocab": "201088", "num_experts": "128", "topk": "4", "moe_ffn": "2880",
    "tp": "1", "ep": "16", "dp": "16", "sequence_parallel": "no",
}  # fmt: skip


def test_gpt_oss_has_biases_sinks_and_clamps_and_they_cost_time(tmp_path: Path) -> None:
    plain = OSS | {"id": "x-2", "model": "Somebody-120B"}
    oss, other = outcome_of(tmp_path, OSS, plain).rows
    model = oss.run.model
    assert model.has_linear_bias and model.has_attention_sinks and model.activation_clamp == 7.0
    assert not model.learned_positions
    assert not other.run.model.has_linear_bias
    assert oss.predicted < 0.95 * other.predicted


@pytest.mark.parametrize(
    ("recipe", "is_fused"),
    [
        ("deepseek_v3_pretrain_config_32nodes", False),
        ("deepseek_v3_pretrain_256gpu_b300_bf16_config", True),
        ("", True),
    ],
)
def test_library_recipes_of_bridge_fuse_neither_router_nor_rotation(
    recipe: str, is_fused: bool, tmp_path: Path
) -> None:
    (row,) = outcome_of(tmp_path, OSS | {"source": "someone Megatron-Bridge 0.4.2", "notes": recipe}).rows
    stack = row.run.cluster.stack
    assert stack.experts.has_fused_router == stack.kernels.has_fused_latent_rope == is_fused


def test_experts_without_grouped_products_run_one_by_one_in_bf16(tmp_path: Path) -> None:
    fused = OSS | {"gpu": "B200", "precision": "mxfp8", "gpus": "16"}
    single = fused | {"id": "x-2", "flags": "alltoall dispatcher; moe_grouped_gemm=false"}
    first, second = outcome_of(tmp_path, fused, single).rows
    modes = [int(row.run.candidates.grouped_gemm[0]) for row in (first, second)]
    assert modes == [GroupedGemm.TURBO, GroupedGemm.LEGACY]
    assert second.predicted < first.predicted


def test_rates_of_a_fit_without_a_run_are_what_is_scored(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, LLAMA, LLAMA | {"id": "x-2", "mbs": "2"})
    first, second = outcome.rows
    scored = outcome.with_rates({first.run.place: Refitted(rate=9090.0, low=8900.0, high=8950.0)})
    assert scored.rows[0].error == pytest.approx(0.01)
    assert scored.rows[0].interval == (8900.0, 8950.0)
    assert scored.rows[1].predicted == second.predicted
    assert scored.rows[0].memory == first.memory


@pytest.mark.in_turn
def test_a_band_of_left_out_runs_has_not_seen_the_group_it_is_laid_over(tmp_path: Path) -> None:
    rows = [LLAMA | {"id": f"x-{n}", "seq_len": str(1024 * (1 + n))} for n in range(20)]
    cases = [row.run for row in outcome_of(tmp_path, *rows).rows]
    assert len(cases) == 20
    errors = np.where(np.arange(20) < 10, 0.01, 0.5)
    left_out = dict.fromkeys((*HONEST, FAR, NEW_REGIME), errors)
    apart = bands_of_others(cases, left_out, ["near"] * 10 + ["far"] * 10)
    assert apart[0] == pytest.approx((np.exp(-0.5), 1.0)) and apart[-1] == pytest.approx((np.exp(-0.01), 1.0))
    together = bands_of_others(cases, left_out, ["all"] * 20)
    assert together[0] == (UNKNOWN.low, UNKNOWN.high)


def test_gradients_of_plain_megatron_are_fp32_but_where_it_trains_in_fp16(tmp_path: Path) -> None:
    rows = [
        LLAMA | {"id": word, "source": "someone's Megatron-LM runs", "precision": word} for word in ("bf16", "fp16")
    ]
    full, half = (row.projection.memory.gradients[0] for row in outcome_of(tmp_path, *rows).rows)
    assert full == 2 * half


def test_launch_arguments_among_the_flags_are_read_by_the_contract_and_the_rest_is_named(tmp_path: Path) -> None:
    flags = "--overlap-grad-reduce; optimizer=muon; recompute_granularity=full; a dance at dawn; log_interval=5"
    plain, told = outcome_of(tmp_path, LLAMA, LLAMA | {"id": "x-2", "flags": flags}).rows
    assert plain.run.provenance.unread == ()
    assert told.run.candidates.row(0)["optimizer"] == "muon"
    assert told.run.provenance.unread == ("a dance at dawn",)
    outcome = outcome_of(tmp_path, LLAMA | {"flags": flags})
    assert summary(outcome)["unread"] == [{"id": "x-1", "what": "a dance at dawn"}]
