"""Refusals of a framework as rows over the resolved settings of a job, against the framework's own checks."""

import ast
import re
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.files.argument_tables import arguments
from primus_search.files.expressions import FUNCTIONS, filled_in, parsed, value_of
from primus_search.files.hardware_files import load_hardware
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.recipes import recipes
from primus_search.launch.refusals import RELEASES, Refusal, judged, refused, resolved_start, rows, spelled
from primus_search.learning.started_experiment import start
from primus_search.models.megatron_arguments import class_sizes
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.judge.checkouts import needs
from tests.support.launched import verdicts
from tests.support.random_scripts import jobs

SCRIPT = (
    "torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu "
    "--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --bf16 "
    "--vocab-size 128256 --micro-batch-size 1 --global-batch-size 256 "
)
ILLEGAL = {
    "--recompute-granularity full --recompute-num-layers 1": "full_method",
    "--recompute-granularity selective --recompute-method uniform": "selective_method",
    "--overlap-param-gather --use-distributed-optimizer": "gather_overlap_reduce",
    "--pipeline-model-parallel-size 5": "world_divides",
    "--pipeline-model-parallel-size 16 --num-layers 46": "layers_on_stages",
    "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3": "stages_virtual",
    "--num-layers 61 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3": "virtual_on_stages",
    "--tensor-model-parallel-size 2 --model-parallel-size 2": "older_names",
    "--recompute-granularity full --recompute-method block --checkpoint-activations": "older_names",
    "--expert-model-parallel-size 2": "",
    "--num-layers many": "num_layers",
    "--fp4-param-gather": "fp4_gather",
    "--bf16 true": "bf16",
    "--sft 1": "sft",
    "--overlap-grad-reduce yes": "overlap_grad_reduce",
    "--ddp-num-buckets 4 --ddp-bucket-size 40000000": "buckets_by_number_or_size",
    "--encoder-seq-length 4096": "one_length",
    "--context-parallel-size 2 --cp-comm-type ring": "exchange_words",
    "--context-parallel-size 2 --cp-comm-type p2p a2a": "",
    "--hidden-dropout 1.5": "dropped_of_states",
    "--attention-dropout -0.1": "dropped_of_scores",
    "--cuda-graph-scope rest": "graph_parts_known",
    "--cuda-graph-modules rest": "graph_parts_known",
    "--train-iters 9 --lr-decay-samples 9": "iterations_alone",
    "--lr 0.1 --min-lr 0.2": "least_learning_rate",
    "--end-weight-decay 0.1": "constant_weight_decay",
    "--weight-decay-incr-style linear": "growing_weight_decay",
    "--tensor-parallel-num-weight-shards 3 --tensor-model-parallel-size 2": "weight_shards_of_tensors",
    "--expert-tensor-parallel-num-weight-shards 32": "weight_shards_of_experts",
    "--deterministic-mode --tp-comm-overlap": "deterministic_overlap",
    "--transformer-impl inference_optimized": "layers_for_inference",
    "--replication": "copies_of_checkpoints",
    "--inference-fuse-tp-communication": "fused_for_inference",
}


def script(folder: Path, flags: str, nodes: int = 2) -> Path:
    path = folder / "run.sh"
    path.write_text(SCRIPT.format(nodes=nodes) + flags)
    return path


@pytest.mark.parametrize("flags", ILLEGAL)
def test_what_megatron_refuses_is_not_priced(flags: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        space_of(start(script(tmp_path, flags), "h100", 0), [], None, "")
    if ILLEGAL[flags]:
        experiment = start(script(tmp_path, flags.replace("many", "32")), "h100", 0).experiment
        found = {one.name for one in refused("megatron", {**experiment.written, **given(flags)}, 16, 9)}
        assert ILLEGAL[flags] in found
    assert "Megatron" in str(caught.value) or "whole number" in str(caught.value)


def given(flags: str) -> dict[str, str | bool]:
    parts = [one.split() for one in flags.split("--") if one]
    return {name.replace("-", "_"): value[0] if value else True for name, *value in parts}


@pytest.mark.parametrize(("flags", "why"), [
    ("--training.dtype float64", "training.dtype: 'float64' is none of bfloat16, float32"),
    ("--parallelism.fsdp-reshard-after-forward sometimes", "'sometimes' is none of default, always, never"),
    ("--training.seq-len 0", "seq_length: 0 is out of range"),
])  # fmt: skip
def test_a_word_that_torchtitans_parser_does_not_have_is_not_priced(flags: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"torchrun --nnodes 1 --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b {flags}"
    )
    with pytest.raises(InputError, match=why):
        space_of(start(path, "h100", 0), [], None, "")


def test_words_in_a_toml_are_as_they_stand() -> None:
    given = {"training.mixed_precision_reduce": "bfloat16", "parallelism.fsdp_reshard_after_forward": "sometimes"}
    assert not refused("torchtitan@0.2.2", given, 8, 9)
    assert len(refused("torchtitan@0.3.0", given, 8, 9)) == 2


def test_a_refusal_names_numbers_and_the_nearest_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        flags = "--pipeline-model-parallel-size 4 --num-layers 46"
        space_of(start(script(tmp_path, flags), "h100", 0), [], None, "")
    said = str(caught.value)
    assert "46 layers (ends counted) do not divide over 4 stages" in said
    assert "--decoder-last-pipeline-num-layers 10, or 48 layers" in said


def test_a_legal_script_is_priced_and_one_flag_more_is_not(tmp_path: Path) -> None:
    flags = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    assert space_of(start(script(tmp_path, flags), "h100", 0), [], None, "").cluster.world == 16


@pytest.mark.parametrize("name", RELEASES)
def test_rows_read_settings_that_the_framework_has(name: str) -> None:
    """Of every release together: an older one lacks arguments of a newer one, and Megatron lacks those of Primus."""
    known = {key for releases in RELEASES.values() for one in releases for key in arguments(one.arguments)}
    known |= {"use_gloo_process_groups", *FUNCTIONS, *OF_PRIMUS, *OF_TITAN}
    for release in RELEASES[name]:
        if release.below:
            continue  # rows that read what is not given are left out
        start_settings, _ = resolved_start(release, {"pipeline_model_parallel_layout": "Et|tL"}, 8, 9)
        known |= start_settings.keys() | {key for row in rows(release) for key in row.sets}
        for row in rows(release):
            for text in (row.when, row.legal, *row.sets.values()):
                nodes = list(ast.walk(parsed(text)))
                bound = {one.target.id for one in nodes if isinstance(one, ast.comprehension)}  # type: ignore[attr-defined]
                read = {one.id for one in nodes if isinstance(one, ast.Name) and not one.id.startswith("env_")}
                assert read - bound <= known, row.name
            assert ":" in row.source or " " in row.source


@pytest.mark.parametrize("name", RELEASES)
def test_a_fault_is_refused_by_one_row(name: str) -> None:
    for release in RELEASES[name]:
        refusals = Counter((row.when, row.legal) for row in rows(release) if row.legal != "True")
        assert [one for one, count in refusals.items() if count > 1] == []


HALVES = (
    "model.pipeline_model_parallel_size=2 model.expert_model_parallel_size=8 "
    "comm_overlap.overlap_moe_expert_parallel_comm=true"
)


@pytest.mark.parametrize(("override", "why"), [
    ("", ""),
    ("model.moe_token_dispatcher_type=allgather", "overlapped expert exchange"),
    ("model.recompute_granularity=half", "full or selective, not half"),
    ("model.context_parallel_size=2 model.cp_comm_type=ring", "ring is no exchange of context"),
    ("model.expert_model_parallel_size=3", "16 GPUs are not divisible by ETP 1 x EP 3"),
    (f"{HALVES} model.virtual_pipeline_model_parallel_size=null", "needs virtual stages"),
    (f"{HALVES} 'model.pipeline_model_parallel_layout=Et*12|t*12|t*12|t*12L'", ""),
    ("model.hierarchical_context_parallel_sizes=[2,2]", "do not multiply to CP"),
    ("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true", "reused for weights that are kept in MXFP8"),
    ("mixed_precision.fp8_recipe=mxfp8 mixed_precision.fp8_param_gather=true", "gathered into the gradient buffer"),
    ("optimizer.use_precision_aware_optimizer=false optimizer.exp_avg_dtype=torch.bfloat16", "number formats"),
    ("model.fp16=true", ""),
    ("mixed_precision.fp16=true", "BF16 and FP16 are both on"),
    ("model.external_cuda_graph=true model.cuda_graph_impl=local", "external_cuda_graph stands beside"),
    ("model.external_cuda_graph=true model.cuda_graph_impl=none model.recompute_granularity=full "
     "model.recompute_method=uniform model.recompute_num_layers=1", "full recomputation"),
    ("--recipe llama3_8b_pretrain_8gpu_h100_bf16_config model.expert_model_parallel_size=2", "EP 2 without experts"),
    ("'model.cuda_graph_scope=[attn,rest]'", "no part that graphs capture"),
])  # fmt: skip
def test_a_recipe_is_refused_what_megatrons_classes_refuse(override: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    recipe = "" if "--recipe" in override else "--recipe qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"
    path.write_text(f"python scripts/training/run_recipe.py {recipe} {override}")
    with nullcontext() if not why else pytest.raises(InputError, match=f"does not start it: .*{why}"):
        space_of(start(path, "h100", 0), [], None, "")


def test_numbers_of_a_script_are_those_of_its_recipe() -> None:
    """A script has every override as text, a recipe the numbers."""
    (release,) = RELEASES["nemo"]
    for name, recipe in drawn("numbers", sorted(recipes().items()), 100):
        texts = {key: str(one) if type(one) in (int, float) else one for key, one in recipe.settings.items()}
        both = [resolved_start(release, given, 64, 9) for given in (recipe.settings, texts)]
        assert both[0] == both[1], name


@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_no_recipe_of_the_library_is_refused(whole: bool) -> None:
    """Those that the rows refuse have more ranks in a copy than GPUs in their name."""
    found = set[str]()
    for name in drawn("refused", sorted(recipes()), 100, whole=whole):
        with suppress(InputError):
            job = read_experiment(Path(name), 64)
            sizes = class_sizes(job.model) if job.model else {}
            found |= {one.name for one in refused("nemo", {**sizes, **job.written}, job.world.gpus or 64, 9)}
    assert found <= {"expert_groups"}


OF_PRIMUS = (
    "recompute_layer_ids", "compress_ratios", "moe_router_topk_limited_devices", "use_turbo_parallel_linear",
    "use_fsdp2_fp32_param_optimizer", "use_fsdp2_bf16_master_weight_optimizer", "fp4_use_native_te_autocast",
    "use_turbo_grouped_mlp",
)  # fmt: skip
"""Settings of Primus' patches that no default file of it has."""
OF_TITAN = (
    "model_name", "n_layers", "n_experts", "n_heads", "n_kv_heads", "is_tied", "num_mtp_layers", "attn_type",
    "ac_class", "num_chunks", "max_seq_len", "flavor", "moe_comm_backend", "non_blocking_capacity_factor",
    "attn_backend",
)  # fmt: skip
"""Facts of a model, arguments of torchtitan's model_registry, and classes of a part."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a % (b * 2) == 0", True), ("a is not None and b is None", False), ("c is None", True), ("-(-a // 3)", 6),
        ("d is list", True), ("d is not int", True), ("all(x > 0 for x in d)", True), ("'x' in e", False),
        ("a if b > 4 else b", 4), ("max(a, 40)", 40), ("product(d) == 6", True), ("model.tp", None),
        ("0 <= b <= 4", True),
    ],
)  # fmt: skip
def test_expressions_have_the_value_that_python_gives_them(text: str, value: object) -> None:
    assert value_of(parsed(text), {"a": 16, "b": 4, "d": [1, 2, 3]}.get) == value


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a.b()", "[x for x in d if x]", "lambda: 1", "f'{a}'", "print(1)"]
)
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(ValueError, match="not part of the language"):
        value_of(parsed(text), {"a": 1, "d": [1]}.get)


def test_a_text_keeps_what_cannot_be_computed() -> None:
    assert filled_in("{a // 2} of {b // 0} and {c}", {"a": 8, "b": 1}.get) == "4 of b // 0 and None"


@needs("megatron@core_0.20")
@pytest.mark.slow
def test_random_scripts_are_refused_as_megatron_refuses_them(tmp_path: Path) -> None:
    drawn = {
        tmp_path / f"{i}.sh": job for i, job in enumerate(jobs("megatron@core_0.20", 100, int(time.strftime("%j"))))
    }
    for file, job in drawn.items():
        file.write_text(job.script)
    wrong = []
    for verdict, (file, job) in zip(verdicts("megatron@core_0.20", [*drawn]), drawn.items(), strict=True):
        ours = found_in(file, job.world)
        wrong += [(verdict, ours, job.argv)] if verdict["accepted"] == bool(ours) else []
    assert wrong == []


def found_in(path: Path, world: int) -> list[Refusal]:
    """What is refused of the settings of a script, as they are read; one refusal where they cannot be."""
    try:
        return refused("megatron", read_experiment(path, world).written, world, 9)
    except InputError as error:
        return [Refusal(name="reading", reason=str(error), cure="", source="")]


def test_a_file_for_an_older_release_is_judged_by_it_and_another_is_told_of_it(tmp_path: Path) -> None:
    """The fused loss of Transformer Engine, which core 0.20 turns off; what neither starts names no release."""

    def why_not(path: Path) -> str:
        return str(CliRunner().invoke(app, ["project", str(path), "--hardware", "h100"]).exception or "")

    fused = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    te = script(tmp_path, fused)
    assert re.search("turned off.*; an older release starts it: --framework megatron@core_0.16", why_not(te))
    te.write_text("# Needs: Megatron-LM core_0.16; priced as stack megatron_core_2026\n" + te.read_text())
    assert not why_not(te)
    neither = why_not(script(tmp_path, f"{fused} --tensor-model-parallel-size 3"))
    assert neither and "an older release" not in neither


def test_a_job_that_stops_in_its_first_step_is_priced_and_named(tmp_path: Path) -> None:
    flags = "--num-experts 8 --moe-grouped-gemm --tensor-model-parallel-size 2 --expert-model-parallel-size 2"
    done = CliRunner().invoke(app, ["project", str(script(tmp_path, flags)), "--hardware", "h100"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Megatron-LM stops in the first step - a model with experts under tensor parallelism" in said
    assert "48.3 B parameters, 32 layers | TP2 PP1 EP2" in done.output


def test_a_rule_of_hopper_binds_no_blackwell_and_a_log_is_not_refused(tmp_path: Path) -> None:
    """Without CUDA_DEVICE_MAX_CONNECTIONS tensor parallelism does not start before Blackwell; a log has no settings."""
    settings = read_experiment(script(tmp_path, "--tensor-model-parallel-size 2 --sequence-parallel"), 16).written
    shut = settings | {"env_CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    devices = {name: load_hardware(name).accelerator.capability for name in ("h100", "a800", "b300", "mi355x")}
    assert devices == {"h100": 9, "a800": 8, "b300": 10, "mi355x": 9}
    refusals = {name: [one.name for one in refused("megatron", shut, 16, by)] for name, by in devices.items()}
    assert refusals == {"h100": ["one_queue"], "a800": ["one_queue"], "b300": [], "mi355x": ["one_queue"]}
    assert refused("megatron", shut, 16, None) == []
    assert refused("megatron", {}, 12, 9) == []


def test_rows_of_the_embedding_are_assumed_for_a_hybrid_too_until_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_hybrid.py --hybrid-layer-pattern M-M*-M-M- --hidden-size 1024 "
        "--seq-length 4096 --num-attention-heads 16 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--max-position-embeddings 4096 --position-embedding-type none "
        "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec "
        "--disable-bias-linear --normalization RMSNorm --tokenizer-type GPTSentencePieceTokenizer "
        "--tokenizer-model /some/tokenizer.model"
    )
    texts = {}
    for given_rows in ("", "64000"):
        words = [
            "project",
            str(path),
            "--hardware",
            "h100",
            *(["--set", f"vocab_size={given_rows}"] if given_rows else []),
        ]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        texts[given_rows] = " ".join(done.stdout.split())
    assert "assumed vocab_size =" in texts[""]
    assert "assumed vocab_size =" not in texts["64000"]


def test_a_default_that_is_priced_otherwise_is_named(tmp_path: Path) -> None:
    flags = "--num-experts 16 --moe-ffn-hidden-size 1024 --expert-model-parallel-size 8 --moe-router-topk 2"
    notes = read_experiment(script(tmp_path, flags), 16).not_modelled
    assert "moe_token_dispatcher_type: allgather by default (projected as alltoall)" in notes


ADVISED = {"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble", "overlap_grad_reduce": True}


@pytest.mark.parametrize(("backend", "fused", "is_named"), [
    ("auto", "1", False), ("auto", "0", True), ("flash", "0", False), ("flash", "1", True), ("fused", "1", False),
    ("unfused", "1", True),
])  # fmt: skip
def test_a_variable_of_an_attention_kernel_that_an_argument_replaced_is_named(
    backend: str, fused: str, is_named: bool
) -> None:
    given = {"attention_backend": backend, "env_NVTE_FUSED_ATTN": fused}
    found = [one.name for one in judged("megatron", given, 8, 9) if one.is_advice]
    assert ("variable_of_fused_attention" in found) is is_named


@pytest.mark.parametrize("name", ["megatron@core_0.20", "megatron@core_0.16", "primus"])
@pytest.mark.parametrize(("balancing", "found"), [
    ("aux_loss", set()), ("none", set()), ("sinkhorn", {"capacity_balancing"}), (["sinkhorn"], {"capacity_balancing"}),
    (["aux_loss", "sinkhorn"], {"balancing_coefficients", "capacity_balancings"}),
])  # fmt: skip
def test_a_capacity_goes_with_balancing_by_losses(name: str, balancing: str | list[str], found: set[str]) -> None:
    """One word after --moe-router-load-balancing-type is that word, not a list of it."""
    given = {"moe_expert_capacity_factor": "1.0", "moe_router_load_balancing_type": balancing, "num_experts": "8"}
    assert {one.name for one in refused(name, given, 8, 9) if "balancing" in one.name} == found


def test_what_a_page_advises_against_is_priced_and_named(tmp_path: Path) -> None:
    found = judged("primus", ADVISED, 8, 9)
    assert [one.name for one in found if one.is_advice] == ["pipeline_overlaps"]
    assert not {one.name for one in refused("primus", ADVISED, 8, 9)} & {"pipeline_overlaps"}
    experiment = {
        "work_group": "a", "user_name": "b", "exp_name": "c", "workspace": "d",
        "modules": {"pre_trainer": {
            "framework": "megatron", "config": "pre_trainer.yaml", "model": "llama2_7B.yaml",
            "overrides": ADVISED | {
                "pipeline_model_parallel_size": 2, "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096,
                "max_position_embeddings": 4096, "overlap_param_gather": False}}},
    }  # fmt: skip
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(experiment))
    for overlaps in (True, False):
        path.write_text(yaml.safe_dump(experiment).replace("reduce: true", f"reduce: {str(overlaps).lower()}"))
        done = CliRunner().invoke(app, ["project", str(path), "--hardware", "mi300x", "-v"])
        assert done.exit_code == 0, done.output
        assert (
            "advises against it: Primus' pipeline overlaps no exchange" in " ".join(done.output.split())
        ) is overlaps
        assert "first step" not in done.output


@pytest.mark.parametrize(
    "late", [{"delay_wgrad_compute": True, "overlap_grad_reduce": True}, {"cuda_graph_impl": "local"}]
)
def test_a_scope_that_is_a_text_is_refused_where_megatron_looks_into_it(late: dict[str, object]) -> None:
    """Primus' trainer_base.yaml has `cuda_graph_scope: full`, in which Megatron's `in` raises a TypeError."""
    names = [
        {one.name for one in refused("primus", late | more, 8, 9)} for more in ({}, {"cuda_graph_scope": ["attn"]})
    ]
    assert ["graph_scope" in found for found in names] == [True, False]
    assert "graph_scope" not in {one.name for one in refused("primus", {"delay_wgrad_compute": True}, 8, 9)}


@pytest.mark.parametrize("name", ["primus", "nemo"])
def test_cures_are_spelled_as_the_files_of_a_framework_give_settings(name: str) -> None:
    release = RELEASES[name][0]
    flagged = [one.cure for one in rows(release) if "--" in one.cure]
    assert len(flagged) > 50 and not any("--" in spelled(release, cure) for cure in flagged)


def test_cures_switch_on_and_off_as_flags_do() -> None:
    primus, bridge = RELEASES["primus"][0], RELEASES["nemo"][0]
    assert spelled(primus, "--no-rope-fusion") == "apply_rope_fusion: false"
    assert spelled(primus, "leave out --no-gradient-accumulation-fusion") == "gradient_accumulation_fusion: true"
    assert spelled(bridge, "--recompute-method uniform --recompute-num-layers 1") == (
        "model.recompute_method=uniform model.recompute_num_layers=1"
    )
    assert spelled(RELEASES["megatron"][0], "--bf16") == "--bf16"


@pytest.mark.parametrize(("minor", "is_read"), [(8, True), (16, True), (20, False), (None, False)])
def test_a_file_in_an_older_checkout_is_read_by_the_rules_that_start_it(
    minor: int | None, is_read: bool, tmp_path: Path
) -> None:
    """What today's release refuses and an earlier one starts, in a checkout that is no younger than that one."""
    file = tmp_path / "tests" / "run.sh"
    file.parent.mkdir()
    sizes = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
    batch = "--micro-batch-size 1 --global-batch-size 16 --train-iters 9 --vocab-size 32000 --deterministic-mode"
    variables = "export NCCL_ALGO=Tree NVTE_ALLOW_NONDETERMINISTIC_ALGO=0"
    file.write_text(f"{variables}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {batch}\n")
    if minor is not None:
        version = tmp_path / "megatron" / "core" / "package_info.py"
        version.parent.mkdir(parents=True)
        version.write_text(f"MAJOR = 0\nMINOR = {minor}\nPATCH = 0\n")
    begun = start(file, "h100", 1)
    if is_read:
        note = next(one for one in space_of(begun, [], None, "").notes if "today does not start it" in one)
        assert note.endswith(f"read by the rules of megatron@core_0.16, as in a checkout of core 0.{minor}")
    else:
        with pytest.raises(InputError, match=r"NCCL_ALGO Tree is not deterministic.*--framework megatron@core_0\.16"):
            space_of(begun, [], None, "")
