"""NeMo's scripts are read by Hydra, which Megatron-Bridge parses its overrides with, and name fields that it has."""

import dataclasses
import datetime
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_rows
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.recipes import recipes
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.launch.write.nemo import fields_of
from primus_search.launch.write.shell import argument_table
from primus_search.learning.started_experiment import start
from primus_search.models.presets import presets
from primus_search.values.candidates import CudaGraph
from primus_search.values.machine.stack import number_of
from primus_search.values.machine.state_formats import is_stacks_own
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import jobs, verdicts
from tests.support.random_jobs import recipes_of_models
from tools.class_fields import Sources

parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
PROVIDER = {
    "vocab_size", "seq_length", "share_embeddings_and_output_weights", "make_vocab_size_divisible_by",
    "position_embedding_type", "rope_scaling", "rope_scaling_factor", "rotary_base", "rotary_percent",
}  # fmt: skip
"""Fields of GPTModelProvider beside Megatron's (Megatron-Bridge src/megatron/bridge/models/gpt_provider.py)."""
NEWER = {"cuda_graph_modules", "fp8_output_proj"}
"""Fields of the Megatron that Bridge v0.6.0 pins and that core 0.16 has not (core 0.20 transformer_config.py:635)."""
MODELS = ("qwen3_30b_a3b", "gpt_oss_20b", "llama3.1_8b", "deepseek_v3", "qwen2.5_7b", "nemotron4_15b")


def overrides(text: str) -> dict[str, Any]:
    """What Hydra reads in a script."""
    body = re.search(r"^OVERRIDES=\(\n(.*?)^\)", text, re.M | re.S)
    assert body is not None
    parsed = parser.OverridesParser.create().parse_overrides(shlex.split(body[1]))
    return {one.key_or_group: one.value() for one in parsed}


def nemo_jobs(
    model: str, count: int, framework: str = "nemo", seed: int = 1, tuning: Mapping[str, Any] = MappingProxyType({})
) -> list[LaunchJob]:
    space = {"model": model, "hardware": "h100", "nodes": 16, "framework": framework,
             "workload": {"seq_length": 8192, "global_batch_size": 512, **tuning}}  # fmt: skip
    return list(jobs(make_space(space, name=model), count, seed))


@pytest.mark.in_turn
@pytest.mark.daily(3)
@pytest.mark.parametrize("model", MODELS)
def test_hydra_reads_every_override_and_the_fields_are_megatrons(model: str) -> None:
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    known = {field.name for field in dataclasses.fields(config.MLATransformerConfig)} | PROVIDER | NEWER
    for job in nemo_jobs(model, 30):
        text = launch_files(job).texts["nemo.sh"]
        found = overrides(text)
        sections = {key.partition(".")[2] for key in found if key.startswith("model.")}
        assert sections - known == set()
        assert found["model.seq_length"] == found["dataset.seq_length"] == 8192
        assert f"--seq_length {job.workload.seq_length} " in text
        assert found["model.tensor_model_parallel_size"] == job.row["tp"]
        assert (found["model.virtual_pipeline_model_parallel_size"] or 1) in (1, job.row["vpp"])
        if job.model.is_moe:
            assert tuple(map(bool, found["model.moe_layer_freq"])) == tuple(job.model.moe_layers)


def test_what_a_candidate_has_off_is_written_off() -> None:
    plain = next(
        job for job in nemo_jobs("qwen2.5_7b", 400) if job.row["recompute"] == "none" and not job.row["tp_overlap"]
    )
    found = overrides(launch_files(plain).texts["nemo.sh"])
    assert found["model.recompute_granularity"] is None and found["model.recompute_num_layers"] is None
    assert found["model.tp_comm_overlap"] is False and found["comm_overlap"] is None
    assert found["model.num_moe_experts"] is None and found["model.mtp_num_layers"] is None
    assert found["ddp.overlap_grad_reduce"] is plain.row["overlap_grad_reduce"]


@pytest.mark.parametrize(
    ("release", "dataset", "needs"),
    [("", "", "Megatron-Bridge v0.6.0 (container 26.08)"), ("@26.08", "", "NeMo Megatron-Bridge 26.08"),
     ("@26.06", "llm-pretrain-mock", "NeMo Megatron-Bridge 26.06"), ("@25.11", "llm-pretrain-mock", "25.11")],
)  # fmt: skip
def test_a_script_names_its_release_and_the_dataset_of_that_release(release: str, dataset: str, needs: str) -> None:
    """Choices of `--dataset`: scripts/training/run_recipe.py of v0.5.1; v0.6.0 refuses it for benchmarks."""
    job = nemo_jobs("llama3.1_8b", 1, f"nemo{release}")[0]
    text = launch_files(job).texts["nemo.sh"]
    assert re.findall(r"--dataset (\S+)", text) == ([dataset] if dataset else [])
    assert needs in next(line for line in text.splitlines() if line.startswith("# Needs: "))


@needs("nemo", "megatron@core_0.20")
def test_hybrid_stacks_are_written_in_fields_of_their_provider() -> None:
    """HybridModelProvider of Megatron-Bridge, which has no scaling of positions."""
    source = sources("nemo") / "src"
    provider = source / "megatron/bridge/models/hybrid/hybrid_provider.py"
    read = Sources([source, sources("megatron@core_0.20")]).fields(provider, "HybridModelProvider")
    fields = {one.name for one in read}
    for job in nemo_jobs("nemotron3_nano", 10):
        found = {key.partition(".")[2] for key in overrides(launch_files(job).texts["nemo.sh"]) if key[:6] == "model."}
        assert found - fields == set()


def test_every_setting_of_the_contract_is_a_field_of_the_section_it_is_written_in() -> None:
    contract = load_framework("nemo")
    decisive = {key for one in contract.decides for key in (*one.settings, one.key) if key}
    decisive |= {key for one in contract.workload for key in (*one.settings, *one.keys.values())}
    towers = argument_table("nemo")["of_towers"]  # the table has providers of text
    known = {name for name, *_ in key_rows("arguments/nemo")} | {*towers}
    assert fields_of(dict.fromkeys(contract.spelled | decisive, 1)).keys() - known == set()


def test_formats_of_gradients_and_the_optimizer_are_set_whatever_the_recipe_has() -> None:
    """DeepSeek-V3's recipe has BF16 moments and gradients (bridge/recipes/deepseek/h100/deepseek_v3.py)."""
    found = overrides(launch_files(nemo_jobs("deepseek_v3", 1)[0]).texts["nemo.sh"])
    assert found["optimizer.exp_avg_dtype"] == found["optimizer.main_params_dtype"] == "torch.float32"
    assert found["optimizer.use_precision_aware_optimizer"] is False
    assert found["mixed_precision"]["grad_reduce_in_fp32"] is False


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("llama3_8b", "llama3_8b_pretrain_8gpu_h100_fp8cs_config"),
        ("qwen3_30b_a3b", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16"),
    ],
)
def test_a_difference_to_a_recipe_is_read_as_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, recipe: str
) -> None:
    monkeypatch.setenv("BRIDGE_PATH", "/opt/bridge")
    for job in nemo_jobs(model, 12):
        texts = [launch_files(one).texts["nemo.sh"] for one in (job, replace(job, recipe=recipe))]
        assert len(overrides(texts[1])) < len(overrides(texts[0])) * 0.6
        assert overrides(texts[1]).items() <= overrides(texts[0]).items()
        (tmp_path / "nemo.sh").write_text(texts[1], encoding="utf-8")
        read = read_experiment(tmp_path / "nemo.sh", 128)
        own = {"state_format": "stack"} if is_stacks_own(job.cluster.stack, read.row["state_format"]) else {}
        assert {**read.row, **own} == job.row
        assert (read.model, read.seq_length, read.global_batch_size) == (job.model, 8192, 512)


@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_a_difference_to_any_recipe_is_priced_as_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Whatever priced setting a recipe has: the numbers of the stack and the workload are those of another's file.

    Recipes of images pad rows to the window, which full rows do not meet; another rotation has another kernel.
    """
    monkeypatch.setenv("BRIDGE_PATH", "/opt/bridge")
    path, named = (
        tmp_path / "nemo.sh",
        [(one, r) for one, by in recipes_of_models().items() if one in presets() for r in by.get("pretrain", ())],
    )
    priced: dict[tuple[str, bool, str], list[object]] = {}
    job_of = cache(lambda model: nemo_jobs(model, 1)[0])
    for model, recipe in drawn("recipes", named, 25, whole=whole):
        with suppress(Inexpressible):
            text = launch_files(replace(job_of(model), recipe=recipe)).texts[path.name]
            path.write_text(text, encoding="utf-8")
            read = read_experiment(path, 128)
            numbers = {one.number: number_of(job_of(model).cluster.stack, one.number) for one in read.framework.decides}
            found = [read.row, numbers | dict(read.numbers), read.workload]
            rotation = str(recipes()[recipe.removesuffix("_config")].settings.get("position_embedding_type"))
            assert priced.setdefault((model, "_vl_" in recipe, rotation), found) == found, recipe


@needs("nemo@26.08")
@pytest.mark.slow
def test_bridge_itself_starts_exports_over_recipes_of_both_kinds_and_differences_to_them(tmp_path: Path) -> None:
    """Its parser, recipes, overrides and checks; every override is what it trains with."""
    files = []
    for model, names in RECIPES.items():
        for number, job in enumerate(nemo_jobs(model, 2 * len(names), seed=datetime.date.today().toordinal())):
            name = names[number % len(names)]
            for recipe in ("", name):
                text = launch_files(replace(job, recipe=recipe)).texts["nemo.sh"]
                files.append(tmp_path / f"{model}_{number}_{recipe}.sh")
                files[-1].write_text(text.replace("set -euo", f"RECIPE={name}_config\nset -euo", 1), encoding="utf-8")
    assert [one for one in verdicts("nemo@26.08", files) if not one["accepted"]] == []


TUNED = {
    "llama31_8b_sft_2gpu_h100_bf16": ("llama3.1_8b", {"task": "sft"}),
    "llama31_8b_peft_1gpu_h100_bf16": ("llama3.1_8b", {"task": "lora", "lora": {"rank": 16}}),
    "gpt_oss_20b_sft_8gpu_h100_fp8mx": ("gpt_oss_20b", {"task": "sft"}),
    "llama3_8b_sft_8gpu_h100_bf16": ("llama3_8b", {"task": "sft"}),
    "llama3_70b_peft_8gpu_h100_bf16": ("llama3_70b", {"task": "lora", "lora": {"rank": 16}}),
}
"""Recipes that tune, three of the library and two of benchmarks, whose runner gives them mock data of full rows."""


def tuned_text(recipe: str, folder: Path, named: str) -> str:
    model, tuning = TUNED[recipe]
    job = nemo_jobs(model, 1, tuning=tuning, seed=datetime.date.today().toordinal())[0]
    text = launch_files(replace(job, recipe=named)).texts["nemo.sh"]
    text = text.replace("pretrained_checkpoint=checkpoint", f"pretrained_checkpoint={folder}")
    return text.replace("set -euo", f"RECIPE={recipe}_config\nset -euo", 1)


@pytest.mark.parametrize("recipe", TUNED)
def test_rows_that_a_recipe_of_the_library_packs_offline_are_padded(recipe: str, tmp_path: Path) -> None:
    """Packed rows go with one a micro-batch; v0.6.0 refuses `--dataset` for benchmarks, and mock data for tuning."""
    text = tuned_text(recipe, tmp_path, recipe)
    is_benchmarks = recipe.startswith("llama3_")
    assert "--dataset" not in text and ("dataset.enable_offline_packing=false" in text) is not is_benchmarks
    assert ("++peft.dim=16" in text) is ("peft" in recipe)


@needs("nemo@26.08")
@pytest.mark.slow
def test_bridge_itself_starts_jobs_that_tune(tmp_path: Path) -> None:
    texts = [tuned_text(recipe, tmp_path, recipe) for recipe in TUNED]
    texts += [tuned_text(recipe, tmp_path, "") for recipe in list(TUNED)[:3]]
    files = [tmp_path / f"{number}.sh" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    assert [one for one in verdicts("nemo@26.08", files) if not one["accepted"]] == []


RECIPES = {
    "qwen3_30b_a3b": ("qwen3_30b_a3b_pretrain", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16"),
    "gpt_oss_20b": ("gpt_oss_20b_pretrain",),
    "llama3_8b": ("llama3_8b_pretrain", "llama3_8b_pretrain_8gpu_h100_fp8cs"),
    "deepseek_v3": ("deepseek_v3_pretrain", "deepseek_v3_pretrain_1024gpu_h100_fp8sc"),
}
"""Recipes of the library, and those of benchmarks, by our name of their model."""


def test_a_head_in_mxfp8_and_older_names_are_switched_off() -> None:
    """Refused with another precision, and won over by `train.eval_iters` of recipes of vision and language."""
    job = replace(nemo_jobs("deepseek_v3", 1)[0], recipe="deepseek_v3_pretrain_256gpu_gb200_fp8mx")
    found = overrides(launch_files(job).texts["nemo.sh"])
    assert found["model.fp8_output_proj"] is False
    assert overrides(launch_files(replace(job, recipe="")).texts["nemo.sh"])["train.eval_iters"] is None


@pytest.mark.in_turn
def test_a_recipe_of_another_model_or_none_is_refused() -> None:
    job = nemo_jobs("llama3_8b", 1)[0]
    with pytest.raises(Inexpressible, match=r"trains Qwen/Qwen3-30B-A3B \(pretrain\); pretrain recipes of llama3_8b: "):
        launch_files(replace(job, recipe="qwen3_30b_a3b_pretrain_16gpu_h100_bf16"))
    with pytest.raises(Inexpressible, match=r"\(sft\); pretrain recipes of llama3_8b: llama3_8b_pretrain"):
        launch_files(replace(job, recipe="llama3_8b_sft"))  # scripts/training/run_recipe.py:_validate_recipe_mode
    with pytest.raises(InputError, match="'llama3_8b_pretran' is no recipe that is known; did you mean"):
        launch_files(replace(job, recipe="llama3_8b_pretran"))


@pytest.mark.parametrize("model", ["gemma2_9b", "minimax_m3", "glm5.2", "deepseek_v4_flash"])
def test_a_recipe_brings_the_parts_of_its_model_that_no_argument_says(model: str) -> None:
    job = nemo_jobs(model, 1)[0]
    with pytest.raises(Inexpressible, match=f"no arguments for parts of {model}: .*; --recipe brings them: ") as caught:
        launch_files(job)
    recipe = str(caught.value).rpartition(": ")[2].partition(",")[0]
    found = overrides(launch_files(replace(job, recipe=recipe)).texts["nemo.sh"])
    assert found.keys().isdisjoint({"model.hidden_size", "model.num_layers", "model.kv_channels"})


def test_runs_of_a_recipe_that_differ_are_named_by_what_differs(tmp_path: Path) -> None:
    run = (
        "python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=$TP"
    )
    path = tmp_path / "job.sh"
    path.write_text(f'IMAGE=""\n[ -z "$IMAGE" ] && exit 1\nfor TP in 2 4; do\n{run} checkpoint.save=/tmp/$TP\ndone\n')
    with pytest.raises(
        InputError, match=r"several .* tensor_model_parallel_size \(2, 4\): .*--args '--training 1' \(to 2"
    ):
        read_experiment(path, 8)
    assert [read_experiment(path, 8, arguments=["--training", one]).row["tp"] for one in "12"] == [2, 4]
    path.write_text(f"TP=4\n{run} $(echo $MORE | tr a b)\n")
    with pytest.raises(InputError, match=r"takes settings from what \$\(echo"):
        read_experiment(path, 8)
    path.write_text(f"TP=4\n{run}\n")
    assert read_experiment(path, 8).row["tp"] == 4


def test_variables_of_a_job_that_an_override_sets_are_named(tmp_path: Path) -> None:
    line = "python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config 'env_vars={NCCL_ALGO:Ring}'"
    (tmp_path / "run.sh").write_text(line, encoding="utf-8")
    assert any(note.startswith("env_vars: {NCCL") for note in read_experiment(tmp_path / "run.sh", 8).not_modelled)


def test_a_precision_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    line = "python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config mixed_precision=bf17"
    (tmp_path / "run.sh").write_text(line, encoding="utf-8")
    with pytest.raises(InputError, match="mixed_precision=bf17: a precision that is not read"):
        read_experiment(tmp_path / "run.sh", 8)


def test_a_variable_of_no_value_in_a_setting_that_counts_for_nothing_is_left_out(tmp_path: Path) -> None:
    line = "python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config "
    (tmp_path / "run.sh").write_text(f"{line} logger.wandb_exp_name=run_$SLURM_JOB_ID train.global_batch_size=64")
    assert read_experiment(tmp_path / "run.sh", 8).global_batch_size == 64
    (tmp_path / "run.sh").write_text(f"{line} train.global_batch_size=$GBS")
    with pytest.raises(InputError, match="depends on GBS"):
        read_experiment(tmp_path / "run.sh", 8)


def test_models_with_towers_have_the_recipes_of_their_name() -> None:
    """Towers are none of the fields of a model of text; a recipe's name on the hub says them."""
    models = {one.model.lower() for one in recipes().values()}
    named = [name for name, one in presets().items() if one.model.towers and models & {*map(str.lower, one.tokenizers)}]
    assert len(named) >= 3
    for name in named:
        job = nemo_jobs(name, 1, tuning={"task": "sft"})[0]
        with pytest.raises(Inexpressible, match=rf"sft recipes of {name}: {name}_sft"):
            launch_files(replace(job, recipe="llama3_8b_sft"))


def vision_text(model: str, micro_batch: int, recipe: str, *, cp: int = 1, **workload: Any) -> str:
    axes = {"micro_batch_size": micro_batch, "tp": 1, "pp": 1, "cp": cp}
    space = {"model": model, "hardware": "h100", "nodes": 4, "framework": "nemo", "space": axes,
             "workload": {"seq_length": 4096, "global_batch_size": 64, "task": "sft", **workload}}  # fmt: skip
    return launch_files(replace(next(jobs(make_space(space, name=model), 1)), recipe=recipe)).texts["nemo.sh"]


def test_a_micro_batch_of_one_sample_is_not_packed(tmp_path: Path) -> None:
    """training/config.py:1475 of Megatron-Bridge v0.6.0."""
    recipe, off = "qwen3_vl_8b_sft", "dataset.enable_in_batch_packing=false"
    texts = [vision_text("qwen3_vl_8b", 1, recipe), vision_text("qwen3_vl_8b", 1, "", image_tokens=512)]
    assert all(off in one for one in texts) and off not in vision_text("qwen3_vl_8b", 2, recipe)
    file = tmp_path / "run.sh"
    file.write_text(f"python scripts/training/run_recipe.py --recipe {recipe}_config train.micro_batch_size=1\n")
    with pytest.raises(InputError, match=rf"takes two; .*{off}"):
        space_of(start(file, "h100", 0), [], None, "")


def test_a_recipe_that_a_person_names_packs_no_micro_batch_of_one_sample() -> None:
    """Text of a model with images trains on data of its recipes, which pack samples; other text has no such field."""
    for size, is_said in ((1, True), (2, False)):
        space = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": size}
        asked = {"model": "qwen3_8b", "hardware": "h100", "nodes": 1, "framework": "nemo", "space": space,
                 "workload": {"seq_length": 4096, "global_batch_size": 64}}  # fmt: skip
        text = launch_files(next(iter(jobs(make_space(asked), 1)))).texts["nemo.sh"]
        assert ("++dataset.enable_in_batch_packing=false" in text) is is_said


def test_gradients_of_images_are_not_averaged_under_context_parallelism() -> None:
    """training/config.py:1450 of Megatron-Bridge v0.6.0, whose benchmarks of vision pretrain on data of tuning."""
    recipe, off = "qwen3_vl_30b_a3b_pretrain_8gpu_gb200_fp8cs", "ddp.average_in_collective=false"
    texts = [vision_text("qwen3_vl_30b_a3b", 1, recipe, cp=cp, task="pretrain") for cp in (1, 2)]
    assert [off in one for one in texts] == [False, True]


def test_caches_of_data_without_a_path_are_left_off() -> None:
    """perf_recipes/gpt_oss/common.py:114 of Megatron-Bridge, whose data a person gives; mock data have no cache."""
    job = nemo_jobs("gpt_oss_20b", 1)[0]
    texts = [launch_files(replace(job, recipe=one)).texts["nemo.sh"] for one in
             ("gpt_oss_20b_pretrain_8gpu_b300_nvfp4", "gpt_oss_20b_pretrain_16gpu_h100_fp8mx")]  # fmt: skip
    off = ("dataset.fast_cache_load=false", "dataset.defer_npy_index_mmap=false")
    assert [[word in one for word in off] for one in texts] == [[True, True], [False, False]]


def test_graphs_of_mixers_of_a_hybrid_stack_need_no_experts() -> None:
    """Recipes of Nemotron-H have them; graphs of attention alone are not priced in a model of one kind of layer."""
    start_of = start(Path("nemotronh_56b_pretrain_64gpu_b200_fp8cs"), "b200", 0)
    (choice,) = space_of(start_of, [], None, "").clusters
    assert choice.axis("cuda_graph").values == (CudaGraph.PARTIAL,)
    space = {"hardware": "b200", "nodes": 8, "framework": "nemo", "space": {"cuda_graph": "partial"},
             "workload": {"seq_length": 8192, "global_batch_size": 192}}  # fmt: skip
    texts = [launch_files(job).texts for job in jobs(make_space({"model": "nemotron_h_56b", **space}), 4)]
    assert [overrides(one["nemo.sh"])["model.cuda_graph_scope"] for one in texts] == [["attn", "mamba"]] * 4
    assert list(jobs(make_space({"model": "llama3_8b", **space}), 4)) == []
