"""Numbers of a stack that settings of a file decide, read and written by one row of the contract."""

from pathlib import Path

import numpy as np
import pytest

from primus_search.base.errors import InputError
from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import load_stack
from primus_search.launch.contract import words_of
from primus_search.launch.decided import decided_keys, decided_numbers, deciding_settings, had_otherwise
from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from primus_search.values.candidates import DEFAULTS
from primus_search.values.knobs import KNOB
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import Stack, number_of, with_numbers
from primus_search.values.machine.state_formats import master_bytes

MEGATRON = load_framework("megatron")
ROW = dict(DEFAULTS) | {
    "sharding": "distributed_optimizer", "overlap_grad_reduce": True, "state_format": "stack", "fp8": "none",
    "optimizer_offload": 0,
}  # fmt: skip
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --swiglu --bf16 "
    "--max-position-embeddings 4096 --disable-bias-linear --position-embedding-type rope --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 64 --normalization RMSNorm "
    "--use-distributed-optimizer "
)


def numbers(**settings: object) -> dict[str, object]:
    return decided_numbers(MEGATRON, ROW, settings)


def test_gradients_are_in_fp32_unless_the_file_reduces_in_bf16() -> None:
    assert numbers(bf16=True)["gradient_bytes"] == numbers(bf16=True)["gradient_comm_bytes"] == 4.0
    assert numbers(bf16=True, grad_reduce_in_bf16=True)["gradient_bytes"] == 2.0


@pytest.mark.parametrize(("settings", "held"), [
    ({"bf16": True}, (4.0, 4.0, 4.0)),
    ({"fp16": True}, (2.0, 4.0, 4.0)),
    ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True}, (4.0, 4.0, 4.0)),
    ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True, "grad_reduce_in_bf16": True}, (4.0, 4.0, 4.0)),
    ({}, (4.0, 0.0, 4.0)),
    ({"grad_reduce_in_bf16": True}, (4.0, 0.0, 4.0)),
    ({"bf16": True, "use_precision_aware_optimizer": True}, (4.0, 2.0, 4.0)),
    ({"bf16": True, "use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"}, (2.0, 2.0, 4.0)),
    ({"bf16": True, "use_precision_aware_optimizer": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "bf16"},
     (4.0, 2.0, 1.5)),
    ({"bf16": True, "use_precision_aware_optimizer": True, "fp8_recipe": "tensorwise"}, (4.0, 4.0, 4.0)),
])  # fmt: skip
def test_formats_of_state_are_those_of_the_file(settings: dict[str, object], held: tuple[float, ...]) -> None:
    found = numbers(**settings)
    assert tuple(found[f"{name}_bytes"] for name in ("gradient", "master_weight", "moment")) == held


@pytest.mark.parametrize(("job", "held"), [({}, 4.0), ({"bf16": True}, 2.0), ({"fp16": True}, 2.0)])
def test_gradients_of_megatron_fsdp_are_in_the_type_of_the_weights(job: dict[str, object], held: float) -> None:
    row, given = ROW | {"sharding": "megatron_fsdp"}, {"use_megatron_fsdp": True, **job}
    found = decided_numbers(MEGATRON.of_dense, row, given)
    assert found["sharded_gradient_bytes"] == found["shard_gradient_bytes"] == held


@pytest.mark.parametrize("is_aware", [False, True])
def test_masters_leave_with_an_optimizer_that_is_precision_aware(is_aware: bool) -> None:
    hosted = decided_numbers(
        MEGATRON.of_dense, ROW | {"optimizer_offload": 50}, {"use_precision_aware_optimizer": is_aware}
    )
    assert hosted.get("keeps_hosted_masters", False) is not is_aware


def test_reduction_in_bf16_acts_under_bf16_alone() -> None:
    words = [
        words_of(MEGATRON.of_dense, {"grad_reduce_in_bf16": True, "bf16": is_bf16})[0]["state_format"]
        for is_bf16 in (True, False)
    ]
    assert words == ["bf16_reduction", "stack"]


@pytest.mark.parametrize(("name", "settings", "held"), [
    ("megatron", {"bf16": True}, 2.0),
    ("megatron", {"bf16": True, "main_grads_dtype": "bf16"}, 2.0),
    ("megatron", {"bf16": True, "fp8_format": "hybrid"}, 2.0),
    ("megatron", {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"}, 4.0),
    ("megatron", {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"}, 4.0),
    ("megatron", {"fp16": True}, 4.0),
    ("megatron", {"fp16": True, "main_params_dtype": "fp16"}, 2.0),
    ("megatron", {"bf16": True, "optimizer_cpu_offload": True}, 4.0),
    ("primus", {"main_grads_dtype": "bf16"}, 2.0),
    ("nemo", {}, 4.0),
    ("nemo", {"fp8_recipe": "delayed"}, 2.0),
    ("nemo", {"fp8_format": "hybrid"}, 4.0),
    ("nemo", {"fp8_format": "hybrid", "fp8_recipe": "delayed"}, 2.0),
])  # fmt: skip
def test_masters_beside_bf16_moments_are_of_16_bits_where_the_kernel_keeps_them(
    name: str, settings: dict[str, object], held: float
) -> None:
    framework, low = load_framework(name), "bfloat16" if name == "nemo" else "bf16"
    job = {"use_precision_aware_optimizer": True, "exp_avg_dtype": low, "exp_avg_sq_dtype": low} | settings
    row = ROW | words_of(framework.of_dense, job)[0] | {"sharding": "distributed_optimizer"}
    decided = decided_numbers(framework.of_dense, row, job)
    stack = with_numbers(load_stack("megatron_core_2026"), decided)
    codes = (np.array(KNOB[axis].code(row[axis])) for axis in ("state_format", "fp8"))
    assert master_bytes(stack, *codes) == held


@pytest.mark.parametrize(("is_reduced", "held"), [(True, 2.0), (False, 4.0)])
def test_gradients_of_bridge_are_in_the_type_that_they_reduce_in(is_reduced: bool, held: float) -> None:
    """main_grads_dtype is read by the arguments of Megatron-LM alone, which Megatron-Bridge does not parse."""
    nemo, job = load_framework("nemo"), {"main_grads_dtype": "bfloat16", "grad_reduce_in_bf16": is_reduced}
    row = ROW | words_of(nemo.of_dense, job)[0] | {"sharding": "distributed_optimizer"}
    state = {"stack": decided_numbers(nemo.of_dense, row, job).get("gradient_bytes"), "bf16_reduction": 2.0}
    assert state[row["state_format"]] == held


def test_a_step_of_a_job_without_a_batch_is_a_micro_batch_of_every_replica(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = SCRIPT.replace("--global-batch-size 64", "--tensor-model-parallel-size 2 --context-parallel-size 2")
    path.write_text(text)
    assert start(path, "h100", 2).experiment.global_batch_size is None  # it may be a server of the model
    path.write_text(f"{text} --train-iters 100")
    job = start(path, "h100", 2).experiment
    assert job.global_batch_size == 8 // 4
    assert [note for note in job.assumed if note.startswith("global_batch_size = 2")]


def test_selective_recompute_by_its_switch_wins_over_what_is_said_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{SCRIPT} --recompute-granularity full --recompute-activations")
    assert start(path, "h100", 2).experiment.row["recompute"] == "selective"


def test_a_bucket_of_the_file_takes_the_place_of_the_stacks() -> None:
    assert numbers(ddp_bucket_size="134217728")["gradient_bucket_params"] == 134217728.0
    assert "gradient_bucket_params" not in numbers()


@pytest.mark.parametrize("params", [4.0e7, 1.0e8, 2.5e8])
def test_a_bucket_of_the_search_is_written_and_read_as_priced(params: float) -> None:
    stack = with_numbers(load_stack("megatron_core_2026"), {"gradient_bucket_params": params})
    written = deciding_settings(MEGATRON.of_dense, stack, ROW, ranks=8)
    assert ("ddp_bucket_size" in written) == (params != 4.0e7)
    assert numbers(**written).get("gradient_bucket_params", 4.0e7) == params
    assert "ddp_bucket_size" not in deciding_settings(
        MEGATRON.of_dense, stack, ROW | {"overlap_grad_reduce": False}, ranks=8
    )


def test_a_bucket_that_grows_with_the_ranks_is_written_as_large_as_it_is() -> None:
    stack = with_numbers(load_stack("megatron_core_2026"), {"gradient_bucket_params": 1.0e8})
    written = deciding_settings(MEGATRON.of_dense, stack, ROW, ranks=512)
    assert written["ddp_bucket_size"] == 512 * stack.sharding.bucket_params_per_rank
    assert numbers(**written)["bucket_params_per_rank"] == 0.0


@pytest.mark.parametrize("ranks", [8, 40, 41, 512])
@pytest.mark.parametrize("each", [0.0, 1.0e6, 2.0e6])
def test_a_bucket_that_grows_otherwise_than_megatrons_is_written(each: float, ranks: int) -> None:
    stack = with_numbers(load_stack("megatron_core_2026"), {"bucket_params_per_rank": each})
    written = deciding_settings(MEGATRON.of_dense, stack, ROW, ranks=ranks)
    has = max(4.0e7, 1.0e6 * ranks)
    assert written.get("ddp_bucket_size", has) == max(4.0e7, each * ranks)
    assert ("ddp_bucket_size" in written) == (max(4.0e7, each * ranks) != has)


@pytest.mark.parametrize("ranks", [8, 32, 512])
@pytest.mark.parametrize("params", [3.0e7, 4.0e7, 1.0e8])
def test_a_bucket_that_grew_with_the_ranks_is_no_difference(params: float, ranks: int) -> None:
    stack = with_numbers(load_stack("megatron_core_2026"), {"gradient_bucket_params": params})
    written = deciding_settings(MEGATRON.of_dense, stack, ROW, ranks=ranks)
    said = had_otherwise(MEGATRON.of_dense, stack, ROW, written, ranks=ranks)
    assert not [one for one in said if one.startswith("gradient_bucket_params")]
    another = had_otherwise(MEGATRON.of_dense, stack, ROW, {"ddp_bucket_size": 7}, ranks=ranks)
    priced = max(params, ranks * stack.sharding.bucket_params_per_rank)
    assert f"gradient_bucket_params: priced with {priced}, Megatron-LM has 7.0" in another


def test_a_number_of_buckets_is_read_and_written_by_its_row() -> None:
    assert numbers(ddp_num_buckets="48")["gradient_buckets"] == 48.0
    stack = with_numbers(load_stack("megatron_core_2026"), {"gradient_buckets": 48.0})
    written = deciding_settings(MEGATRON.of_dense, stack, ROW, ranks=512)
    assert written["ddp_num_buckets"] == 48 and "ddp_bucket_size" not in written
    assert "ddp_num_buckets" in decided_keys(MEGATRON.of_dense, ROW, written)


@pytest.mark.parametrize(
    "one",
    [one for one in MEGATRON.decides if one.settings and not one.formats and one.number not in MEGATRON.fixes],
    ids=lambda one: one.number,
)
def test_settings_of_a_stacks_number_give_that_number_back(one) -> None:  # type: ignore[no-untyped-def]
    row = ROW | {axis: words[0] if words[0] != "True" else True for axis, words in one.where.items()}
    stack = with_numbers(load_stack("megatron_core_2026"), {one.number: one.value})
    written = {"bf16": True, "add_bias_linear": True} | deciding_settings(MEGATRON, stack, row, ranks=8)
    assert decided_numbers(MEGATRON, row, written)[one.number] == one.value
    priced = decided_keys(MEGATRON, row, written)
    assert (one.settings.keys() <= priced) is not one.is_part


@pytest.mark.parametrize(
    ("recipe", "masters"), [("delayed", 4.0), ("tensorwise", 0.0), ("blockwise", 0.0), ("mxfp8", 0.0)]
)
@pytest.mark.parametrize("is_aware", [True, False])
def test_weights_in_fp32_are_updated_in_place(recipe: str, masters: float, is_aware: bool) -> None:
    """Without --bf16 and --fp16; Transformer Engine's FusedAdam has masters of its own under delayed scales."""
    given = {"fp8_recipe": recipe, "use_precision_aware_optimizer": is_aware}
    found = decided_numbers(MEGATRON.of_dense, ROW | {"sharding": "distributed_optimizer"}, given)
    assert found["master_weight_bytes"] == (masters if is_aware else 0.0)


@pytest.mark.parametrize("name", ["megatron", "primus", "nemo"])
@pytest.mark.parametrize(
    ("has_bias", "dropout", "is_fused"), [(True, 0.0, False), (False, 0.1, False), (False, 0.0, True)]
)
def test_an_addition_without_bias_and_dropout_is_one_kernel_either_way(
    name: str, has_bias: bool, dropout: float, is_fused: bool
) -> None:
    """Of a recipe of Megatron-Bridge that sets no fusion, too, whose class has it off."""
    job = {"bias_dropout_fusion": False, "add_bias_linear": has_bias, "hidden_dropout": dropout}
    for given in [job, {**job, "bias_dropout_fusion": True}] + (
        [dict(list(job.items())[1:])] if name == "nemo" else []
    ):
        found = decided_numbers(load_framework(name).of_dense, ROW, given).get("has_fused_residual", True)
        assert found is (given.get("bias_dropout_fusion", False) or is_fused)


@pytest.mark.parametrize("name", ["megatron", "primus", "nemo"])
@pytest.mark.parametrize(
    ("kind", "is_fused"), [("rope", True), ("yarn", False), ("mrope", False), ("learned_absolute", True)]
)
def test_rotation_in_another_way_than_plain_is_not_fused(name: str, kind: str, is_fused: bool) -> None:
    given = {"position_embedding_type": kind, "apply_rope_fusion": True}
    found = decided_numbers(load_framework(name).of_dense, ROW, given)
    assert found.get("has_fused_rope", True) is is_fused


@pytest.mark.parametrize(
    "one", [one for one in MEGATRON.decides if one.otherwise is not None], ids=lambda one: one.number
)
def test_a_setting_that_decides_either_way_is_priced_either_way(one) -> None:  # type: ignore[no-untyped-def]
    words = {axis: many[0].replace("[1-9]*", "50") for axis, many in one.where.items()}
    row = ROW | {axis: word if word != "True" else True for axis, word in words.items()}
    other = {"bf16": True} | dict.fromkeys(one.settings, "another")
    assert decided_numbers(MEGATRON, row, other)[one.number] == one.otherwise
    assert (one.settings.keys() <= decided_keys(MEGATRON, row, other)) is not one.is_part


def test_a_run_of_a_log_decides_only_what_it_prints() -> None:
    assert decided_numbers(MEGATRON, ROW, {}, is_whole=False) == {}
    printed = decided_numbers(MEGATRON, ROW, {"grad_reduce_in_bf16": False}, is_whole=False)
    assert printed["gradient_bytes"] == 4.0


def test_the_job_of_a_file_has_its_numbers_and_a_set_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    begun = start(path, "h100", 0)
    assert number_of(space_of(begun, [], None, "").cluster.stack, "gradient_bytes") == 4.0
    assert number_of(space_of(begun, ["stack.gradient_B=2"], None, "").cluster.stack, "gradient_bytes") == 2.0


def kept(path: Path, flags: str, device: str = "h100", framework: str = "") -> tuple[float, list[str]]:
    """Bytes of activations of the script with some flags, and what is not priced of it."""
    path.write_text(f"{SCRIPT} {flags}")
    begun = start(path, device, 2)
    space = space_of(begun, [], None, framework)
    activations = Projector(space.job_on(space.clusters[0])).project(begun.experiment.candidate).memory.activations
    return float(activations.max()), list(begun.experiment.not_modelled)


@pytest.mark.parametrize(("name", "device"), [("megatron", "h100"), ("primus", "mi300x")])
def test_masks_of_dropout_are_kept_unless_the_file_drops_nothing(name: str, device: str, tmp_path: Path) -> None:
    """Megatron-Core drops a tenth by default: a byte per element behind each block (arXiv:2205.05198, equation 1)."""
    flags = ("", "--hidden-dropout 0", "--hidden-dropout 0.0 --attention-dropout 0.1")
    by_default, without, plain = (kept(tmp_path / "run.sh", one, device, name)[0] for one in flags)
    assert by_default - without == pytest.approx(32 * 2 * 4096 * 4096, rel=0.1) and without == plain


@pytest.mark.parametrize("kernel", ["--attention-backend unfused", "--transformer-impl local"])
def test_a_kernel_that_stores_its_scores_keeps_them(kernel: str, tmp_path: Path) -> None:
    """5 a s^2 b with dropout, 2 a s^2 b without (arXiv:2205.05198, equation 1); dropout of a fused kernel is named."""
    path = tmp_path / "run.sh"
    for share, a_score in ((0.1, 5.0), (0.0, 2.0)):
        dropout = f"--hidden-dropout 0 --attention-dropout {share}"
        (fused, named), (stored, _) = kept(path, dropout), kept(path, f"{dropout} {kernel}")
        assert stored - fused == pytest.approx(a_score * 32 * 32 * 4096 * 4096, rel=0.05)
        assert any(note.startswith("attention_dropout") for note in named) is (share > 0)


@pytest.mark.parametrize("key", [one.key for one in MEGATRON.decides if one.key])
def test_a_count_of_nothing_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(ValueError, match=rf"{key}: 0 is out of range"):
        decided_numbers(MEGATRON, ROW, {key: "0"})


def test_formats_of_state_are_priced_beside_the_precision_aware_optimizer_alone() -> None:
    formats = {"exp_avg_dtype": "bf16", "main_params_dtype": "fp16"}
    for is_aware in (False, True):
        given = {"bf16": True, "use_precision_aware_optimizer": is_aware, **formats}
        assert (formats.keys() <= decided_keys(MEGATRON, ROW, given)) is is_aware


@pytest.mark.parametrize(("name", "keeps"), [("megatron", True), ("megatron@core_0.16", False), ("nemo", False)])
def test_a_search_prices_the_fused_loss_that_its_file_starts(name: str, keeps: bool) -> None:
    data = {"model": "llama3_8b", "hardware": "h100", "framework": name, "stack": "megatron_core_2026",
            "workload": {"seq_length": 4096, "global_batch_size": 64}}  # fmt: skip
    given = ["stack.keeps_softmax=true"]
    spaces = [make_space(data, nodes=1, overrides=sets, environ={}) for sets in ([], given)]
    assert [number_of(space.cluster.stack, "keeps_softmax") for space in spaces] == [keeps, True]
    framework, row = load_framework(name), ROW | {"loss_fusion": True}
    for space in spaces:
        stack = space.cluster.stack
        written = deciding_settings(framework.of_dense, stack, row, ranks=8)
        read = decided_numbers(framework.of_dense, row, written)
        assert read["keeps_softmax"] is number_of(stack, "keeps_softmax")


def test_a_number_that_a_contract_fixes_is_one_of_a_stack(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("base: megatron\nfixes: {keeps_sotfmax: true}\n")
    with pytest.raises(InputError, match="no number of a stack has that name; did you mean 'keeps_softmax'"):
        load_framework(str(path))


@pytest.mark.parametrize("name", ["megatron", "nemo"])
def test_a_release_drops_what_a_newer_one_fixes(name: str) -> None:
    fixed = {"keeps_softmax": True, "pads_dealt_matrices": True} if name == "megatron" else {}
    newest = load_framework(name)
    assert [one.fixes for one in (newest, *newest.before.values())] == [fixed, *[{}] * len(newest.before)]


@pytest.mark.parametrize("name", ["megatron", "megatron@core_0.16", "nemo"])
@pytest.mark.parametrize("sharding", ["none", "distributed_optimizer", "zero2", "megatron_fsdp", "hsdp"])
@pytest.mark.parametrize("held", [2.0, 4.0])
def test_gradients_of_every_strategy_are_read_as_they_are_written(name: str, sharding: str, held: float) -> None:
    framework = load_framework(name)
    fields = ("gradient_bytes", "gradient_comm_bytes", "sharded_gradient_bytes", "shard_gradient_bytes")
    stack, row = with_numbers(load_stack("megatron_te"), dict.fromkeys(fields, held)), ROW | {"sharding": sharding}
    decided = deciding_settings(framework.of_dense, stack, row, ranks=8)
    written = {**framework.spellings["sharding"].values[sharding], "bf16": True, **decided}
    read = decided_numbers(framework.of_dense, row, written)
    assert {field: read.get(field, held) for field in fields} == dict.fromkeys(fields, held)


def said_otherwise(framework: Framework, stack: Stack, row: dict[str, object]) -> list[str]:
    written = {"bf16": True, "overlap_param_gather": True}
    written |= deciding_settings(framework.of_dense, stack, row, ranks=8)
    return had_otherwise(framework.of_dense, stack, row, written, ranks=8)


def test_a_file_for_another_framework_says_what_it_has_otherwise() -> None:
    stack, row = load_stack("megatron_te"), ROW | {"loss_fusion": True}
    assert said_otherwise(MEGATRON, stack, row) == ["keeps_softmax: priced with False, Megatron-LM has True"]
    assert "cross_entropy_fusion_impl" not in deciding_settings(MEGATRON.of_dense, stack, row, ranks=8)
    for framework, other in ((MEGATRON, ROW | {"loss_fusion": False}), (load_framework("megatron@core_0.16"), row)):
        assert said_otherwise(framework, stack, other) == []
    assert said_otherwise(MEGATRON, with_numbers(stack, {"keeps_softmax": True}), row) == []
