"""Recipes of Megatron-Bridge by name: the table, what of it is read, and commands that run one."""

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.analysis.own_configuration import must_be_readable
from primus_search.base.errors import InputError, PrimusSearchError
from primus_search.cli import app
from primus_search.files.argument_tables import arguments
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_rows
from primus_search.files.search_path import FileKind, names
from primus_search.launch.experiment import Experiment, of_job
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.megatron import model_keys
from primus_search.launch.read.recipe_commands import started_in
from primus_search.launch.read.recipes import RECIPES, RESIZED, model_of, recipes
from primus_search.launch.refusals import refused
from primus_search.launch.world import World
from primus_search.learning.started_experiment import start
from primus_search.models.megatron_arguments import megatron_keys, model_arguments
from primus_search.models.presets import load_preset
from primus_search.models.tokenizers import model_of_tokenizer
from primus_search.values.model.adapters import DEFAULT_MODULES
from primus_search.values.model.attention_mixers import Attention, CompressedAttention
from tests.launch.test_judged_jobs import recipes_in
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import verdicts

ROOT = Path(__file__).parents[2]

NAMED = [name for name in recipes() if "gpu_" in name]
"""Recipes whose name has GPUs and a device: those of benchmarks (megatron/bridge/perf_recipes) and of the library."""
TUNED = [name for name in NAMED if "_sft_" in name or "_peft_" in name]
REFUSED = (
    "which no preset is", "is not modelled", "names no model", "do not split into whole micro-batches",
)  # fmt: skip
"""What a refusal says of a recipe that is not read: its model, its modules, or a batch that its GPUs do not divide."""


def test_the_table_has_every_recipe_of_the_benchmarks() -> None:
    assert len(NAMED) >= 480 and len(recipes()) == sum(len(key_rows(table)) for table in RECIPES) >= 1000
    counted = Counter(name.split("gpu_")[1].split("_")[0] for name in NAMED)
    assert counted.keys() >= {"h100", "b200", "b300", "gb200", "gb300"}


RECIPES_OF_THE_DAY = 120


@needs("nemo")
def test_the_table_is_what_the_recipes_of_bridge_return() -> None:
    """Its own functions, run in a process of their own with stand-ins for torch and Megatron-Core."""
    command = [sys.executable, "-m", "tools.launch_tables", "nemo", str(sources("nemo"))]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert made == (ROOT / "spaces/keys/nemo_recipes.tsv").read_text()


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_every_recipe_on_known_devices_is_read_or_refused_by_name(whole: bool) -> None:
    """Read: with model, length and batch, 406 of 500; a sample may refuse three standard deviations more."""
    devices = set(names(FileKind.HARDWARE))
    known = [name for name in NAMED if set(name.split("_")) & devices and name not in TUNED]
    assert len(known) >= 490
    refused, judged = Counter[str](), drawn("recipes", known, RECIPES_OF_THE_DAY, whole=whole)
    for name in judged:
        try:
            read = start(Path(f"{name}_config"), "", 0).experiment
            assert read.model is not None and read.seq_length and read.global_batch_size, name
        except (PrimusSearchError, ValueError) as error:
            assert any(why in str(error) for why in REFUSED), (name, str(error))
            refused[next(why for why in REFUSED if why in str(error))] += 1
    by_chance = 0.0 if whole else 3.0 * (0.21 * 0.79 * len(judged)) ** 0.5
    assert refused.total() <= 0.21 * len(judged) + by_chance, refused


def test_a_recipe_that_tunes_a_model_is_a_job_that_does() -> None:
    assert len(TUNED) >= 200
    read = 0
    for name in drawn("tuned", TUNED, 20):
        try:
            tuning = start(Path(f"{name}_config"), "", 0).experiment.tuning
        except (PrimusSearchError, ValueError) as error:
            assert any(why in str(error) for why in (*REFUSED, "not modelled")), (name, str(error))
            continue
        settings, read = recipes()[name].settings, read + 1
        if "_sft_" in name:
            assert tuning == {"task": "sft"}, name
        else:
            assert tuning["task"] == "lora" and tuning["lora"]["rank"] == settings["peft.dim"], name
    assert read >= 8


SIZES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
         "moe_ffn_hidden_size", "moe_router_topk")  # fmt: skip


def test_sizes_that_a_recipe_assigns_are_those_of_the_model_that_it_is_read_as() -> None:
    """A model named by its class, too, whose sizes are in the recipe alone."""
    judged = 0
    for name, recipe in recipes().items():
        model = model_of(recipe)
        assigned = {key: recipe.settings[key] for key in SIZES if key in recipe.settings}
        own = megatron_keys(model) if model and assigned else {}
        assert not model or {key: own.get(key) for key in assigned} == assigned, name
        judged += bool(model and assigned)
    assert judged >= 3
    assert read_experiment(Path("gemma3_1b_pretrain_1gpu_h100_bf16")).model == load_preset("gemma3_1b").model


def test_settings_of_adapters_are_changed_by_a_command(tmp_path: Path) -> None:
    recipe = "llama31_8b_peft_1gpu_h100_bf16_config"
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 1 scripts/training/run_recipe.py --recipe {recipe} peft.dim=64\n")
    assert read_experiment(script).tuning["lora"]["rank"] == 64
    assert read_experiment(Path(recipe)).tuning["lora"] == {
        "rank": 8,
        "alpha": 16.0,
        "modules": list(DEFAULT_MODULES),
    }


@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_a_size_that_a_command_changes_leaves_the_rest_of_the_model(whole: bool, tmp_path: Path) -> None:
    """Each model of a recipe keeps what no argument says, YaRN of gpt-oss for one; layers follow a frequency."""
    file, of_model = tmp_path / "run.sh", {one.model: name for name, one in recipes().items()}
    read_alike = 0
    for name in drawn("sizes", of_model.values(), 20, whole=whole):
        with suppress(InputError):
            model = read_experiment(Path(name), 64).model
            file.write_text(f"python run_recipe.py --recipe {name}_config model.make_vocab_size_divisible_by=1\n")
            read = read_experiment(file, 64).model
            assert read == model and getattr(read, "constants", None) == getattr(model, "constants", None), name
            read_alike += model is not None
    assert read_alike > (40 if whole else 5)
    file.write_text(f"python run_recipe.py --recipe {of_model['openai/gpt-oss-120b']}_config model.num_layers=6\n")
    read = read_experiment(file, 64).model
    assert read is not None and (read.num_layers, [window > 0 for window in read.windows]) == (6, [True, False] * 3)
    assert read.constants.scaling["rope_type"] == "yarn" and read.has_attention_sinks
    file.write_text("python run_recipe.py --recipe deepseek_v3_pretrain_256gpu_b200_bf16_config model.num_layers=6\n")
    with pytest.raises(InputError, match=r"moe_layer_freq: has 61 entries; the model has 6 layers"):
        read_experiment(file)


def test_windows_and_gates_of_a_command_are_those_of_the_model(tmp_path: Path) -> None:
    script, name = tmp_path / "run.sh", "qwen35_vl_35b_a3b_pretrain_8gpu_gb300_fp8cs_config"
    script.write_text(f"python run_recipe.py --recipe {name} model.window_size=[1023,0]\n")
    model = read_experiment(script).model
    assert model is not None
    assert {one.window for one in model.mixers if isinstance(one, Attention)} == {1024}
    settings = f"model.csa_window_size=256 model.csa_compress_ratios={[4] * 43}".replace(", ", ",")
    script.write_text(
        f"python run_recipe.py --recipe deepseek_v4_flash_pretrain_32gpu_h100_bf16_muon_config {settings}\n"
    )
    model = read_experiment(script).model
    assert model is not None
    compressed = {(one.window, one.ratio) for one in model.mixers if isinstance(one, CompressedAttention)}
    assert compressed == {(256, 4)}
    recipe = "llama3_8b_pretrain_8gpu_h100_fp8cs_config"
    script.write_text(f"python run_recipe.py --recipe {recipe} model.gated_linear_unit=false\n")
    plain = read_experiment(script).model
    assert plain is not None and not plain.is_gated


def test_prediction_layers_of_a_command_take_the_place_of_those_of_the_model(tmp_path: Path) -> None:
    script, recipe = tmp_path / "run.sh", "nemotron_3_super_pretrain_64gpu_b200_bf16_config"
    letters = {"": "*E", "model.mtp_hybrid_override_pattern=ME": "ME", "model.mtp_num_layers=null": ""}
    for words, module in letters.items():
        script.write_text(f"python run_recipe.py --recipe {recipe} {words}\n")
        job = read_experiment(script)
        assert job.model is not None and not any("mtp_hybrid" in note for note in job.not_modelled)
        modules = str(model_arguments(job.model, stages=["t" * 88])["hybrid_layer_pattern"]).split("/")[1:]
        assert modules == ([module] * 2 if module else []), words
    script.write_text(f"python run_recipe.py --recipe {recipe} model.mtp_hybrid_override_pattern=G\n")
    with pytest.raises(InputError, match="prediction layers 'G' of a kind that no layer is"):
        read_experiment(script)


def test_groups_of_experts_of_a_command_limit_routing(tmp_path: Path) -> None:
    """Of a recipe whose experts are one group."""
    script, name = tmp_path / "run.sh", "nemotron_3_nano_pretrain_8gpu_b300_nvfp4_config"
    script.write_text(f"python run_recipe.py --recipe {name} model.moe_router_num_groups=2\n")
    limits = [(one.model.moe.num_groups, one.model.moe.top_groups) for one in map(read_experiment, (Path(name), script))
              if one.model is not None and one.model.moe is not None]  # fmt: skip
    assert limits == [(0, 0), (2, 1)]


@pytest.mark.parametrize(("given", "etp"), [("", 1), (" model.expert_tensor_parallel_size=4", 4)])
def test_experts_beside_expert_parallelism_are_whole_unless_a_command_splits_them(
    given: str, etp: int, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python run_recipe.py --recipe qwen35_vl_35b_a3b_pretrain_8gpu_h100_bf16_mock_config{given}\n")
    assert read_experiment(script, 32).row["etp"] == etp


def test_an_overlap_that_runs_of_a_stack_do_not_tell_is_named(tmp_path: Path) -> None:
    script, name = tmp_path / "run.sh", "llama31_405b_pretrain_128gpu_gb200_fp8cs_config"
    for word, is_named in (("true", False), ("false", True)):
        script.write_text(f"python run_recipe.py --recipe {name} comm_overlap.tp_comm_overlap={word}\n")
        notes = space_of(start(script, "gb200", 0), [], None, "").notes
        assert is_named == any(one.startswith("tp_overlap is off and priced as on") for one in notes)


def test_settings_act_beside_what_the_class_of_a_model_has(tmp_path: Path) -> None:
    """Norms of compressed queries, of every model that has them; no recipe says which has."""
    file, seen = tmp_path / "run.sh", set[str]()
    for name, model in {one.model: (name, model_of(one)) for name, one in recipes().items()}.values():
        if model is None:
            continue
        file.write_text(f"python run_recipe.py --recipe {name}_config model.qk_layernorm=false\n")
        with suppress(InputError):  # elsewhere a size of the model, which some recipes do not let change
            notes = [one for one in read_experiment(file, 64).not_modelled if one.startswith("qk_layernorm")]
            is_latent = model.latent or "multi_latent_attention" in recipes()[name].settings
            assert notes == ([notes[0]] if is_latent else []) and all("faster, less memory" in one for one in notes)
            seen |= {name} if notes else set()
    assert len(seen) >= 4
    name = "qwen25_7b_pretrain_2gpu_h100_bf16_config"  # whose class has a vocabulary, whatever the tokenizer
    file.write_text(f"python run_recipe.py --recipe {name} tokenizer.tokenizer_model=gpt2\n")
    assert of_job(load_framework("nemo"), read_experiment(Path(name)).model, {})["vocab_size"] == 152064
    assert read_experiment(file).not_modelled == read_experiment(Path(name)).not_modelled


OF_PRECISION = [f"{section}.{key}" for section, key in product(
    ("model", "optimizer", "ddp"), ("fp8_recipe", "grad_reduce_in_fp32", "bf16", "fp8_param_gather")
)]  # fmt: skip


@pytest.mark.parametrize("key", [key for key in OF_PRECISION if key in arguments("nemo")])
def test_what_mixed_precision_overwrites_has_no_effect_and_is_named(key: str, tmp_path: Path) -> None:
    script, name = tmp_path / "run.sh", "deepseek_v3_pretrain_256gpu_gb200_fp8mx_config"
    base = read_experiment(Path(name))
    for value in ("false", "true", "null"):
        script.write_text(f"python run_recipe.py --recipe {name} {key}={value}\n")
        job = read_experiment(script)
        assert (job.row, job.numbers, job.written) == (base.row, base.numbers, base.written)
        last = key.partition(".")[2]
        assert f"{key}: no effect; projected as mixed_precision.{last} has it" in job.assumed


FIELD = "mixed_precision.grad_reduce_in_fp32=false"
OBJECT = "mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true}"


@pytest.mark.parametrize("name", ["llama3_8b_sft_config", "llama3_8b_pretrain_8gpu_h100_bf16_config"])
@pytest.mark.parametrize("before", ["", "mixed_precision=bf16_mixed", f"'{OBJECT}'"])
def test_a_field_of_a_precision_by_its_name_is_refused(name: str, before: str, tmp_path: Path) -> None:
    """As Hydra does: of the recipe, or of a word before it; objects have fields."""
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node=8 run_recipe.py --recipe {name} {before} {FIELD}\n")
    is_name = recipes()[name.removesuffix("_config")].names_precision if not before else before.endswith("bf16_mixed")
    if is_name:
        with pytest.raises(InputError, match=f"{FIELD}: mixed_precision is a name here"):
            read_experiment(script)
    else:
        assert read_experiment(script).row["tp"] >= 1


def test_what_a_command_sets_to_null_is_taken_from_the_recipe(tmp_path: Path) -> None:
    """Under its own name, too, where the contract has another by the value."""
    script, name = tmp_path / "run.sh", "gpt_oss_20b_pretrain_8gpu_b300_nvfp4_config"
    assert "fp4" in recipes()[name.removesuffix("_config")].settings
    assert read_experiment(Path(name)).row["fp8"] == "nvfp4"
    script.write_text(f"python run_recipe.py --recipe {name} mixed_precision.fp4=null\n")
    assert read_experiment(script).row["fp8"] == "none"


def test_a_format_of_gradients_that_the_optimizer_asserts_alone_changes_nothing(tmp_path: Path) -> None:
    """Buffers follow `grad_reduce_in_fp32`; another format is refused without the precision-aware optimizer."""
    script, name = tmp_path / "run.sh", "olmoe_7b_sft_8gpu_h100_bf16_config"
    read = []
    for words in ("", "optimizer.main_grads_dtype=torch.float32", "optimizer.use_precision_aware_optimizer=false"):
        script.write_text(f"python run_recipe.py --recipe {name} {words}\n")
        read.append(read_experiment(script))
    assert read[0].numbers == read[1].numbers and read[0].not_modelled == read[1].not_modelled
    assert [one.name for one in refused("nemo", read[2].written, 8, 9)] == ["precision_formats"]


@pytest.mark.parametrize(("words", "said"), [
    ("peft=null", ""),
    ("~peft", ""),
    ("peft=dora", "peft=dora: sections are not read as a whole; set peft.NAME=VALUE"),
    ("optimizer={lr:0.1}", "sections are not read as a whole"),
])  # fmt: skip
def test_a_section_is_taken_away_or_refused(tmp_path: Path, words: str, said: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python run_recipe.py --recipe llama31_8b_peft_1gpu_h100_bf16_config {words}\n")
    if said:
        with pytest.raises(InputError, match=said):
            read_experiment(script)
    else:
        assert read_experiment(script).tuning == {"task": "sft"}


def test_buckets_are_those_of_overlaps_unless_a_command_has_none(tmp_path: Path) -> None:
    """128 x 1024 x 1024 parameters under any `comm_overlap`: megatron/bridge/training/comm_overlap.py."""
    name, script = "llama3_8b_pretrain_8gpu_h100_bf16_config", tmp_path / "run.sh"

    def params(words: str) -> float:
        script.write_text(f"python run_recipe.py --recipe {name} {words}\n")
        space = space_of(start(script, "h100", 0), [], None, "")
        return space.clusters[0].cluster.stack.sharding.gradient_bucket_params

    assert (params(""), params("comm_overlap=null")) == (2.0**27, 4.0e7)
    assert params("comm_overlap=null ddp.bucket_size=50000000") == 5.0e7


def test_a_fused_group_of_experts_offloads_both_inputs() -> None:
    """megatron/core/transformer/transformer_config.py of core 0.20: `fused_group_mlp` of offload_modules."""
    read = read_experiment(Path("nemotron_3_ultra_pretrain_256gpu_gb300_fp8mx_config"))
    assert read.row["offload_modules"] == "expert_fc1+moe_act"


def test_settings_of_no_section_are_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python run_recipe.py --recipe llama31_8b_peft_1gpu_h100_bf16_config tensor_inspect=on\n")
    assert any(one.startswith("tensor_inspect: on (not priced: slower") for one in read_experiment(script).not_modelled)


def test_numbers_of_a_command_are_numbers_to_the_checks(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "model.moe_router_num_groups=4 model.moe_router_group_topk=5 model.moe_router_pre_softmax=true"
    script.write_text(f"python run_recipe.py --recipe qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config {words}\n")
    job = read_experiment(script)
    assert [one.name for one in refused("nemo", {"num_experts": 128, **job.written}, 16, 9)] == ["group_topk"]


PROGRAM = """
from megatron.bridge.recipes.llama import llama3_8b_pretrain_config as shipped, llama3_70b_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig

def configured():
    cfg = shipped()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.attention_backend = AttnBackend.flash
    cfg.train.global_batch_size = 64
    cfg.dataset.seq_length = cfg.model.seq_length
    cfg.mixed_precision = bf16_with_mxfp8_mixed()
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    cfg.logger.log_interval = args.interval
    return cfg

if __name__ == "__main__":
    pretrain(config=configured(), forward_step_func=forward_step)
"""
DEFINED = """
def llama3_8b_pretrain_config() -> ConfigContainer:
    return _common(**{"hf_path": "meta-llama/Meta-Llama-3-8B", "tensor_model_parallel_size": 4})

def _common(hf_path, tensor_model_parallel_size):
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(hf_path).to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = tensor_model_parallel_size
    cfg.train.global_batch_size = 96
    return cfg
"""


def test_a_program_that_starts_a_recipe_is_that_with_what_it_sets(tmp_path: Path) -> None:
    file = tmp_path / "pretrain.py"
    file.write_text(PROGRAM)
    job, shipped = read_experiment(file), read_experiment(Path("llama3_8b_pretrain_config"))
    assert (job.row["tp"], job.row["fp8"], job.global_batch_size) == (2, "mxfp8", 64)
    assert job.seq_length == shipped.seq_length
    assert read_experiment(file, arguments=["train.global_batch_size=32"]).global_batch_size == 32
    file.write_text(PROGRAM.replace("= 64", "= count()"))
    with pytest.raises(InputError, match=r"global_batch_size depends on count\(\): --args 'section.global_batch_size="):
        read_experiment(file)
    file.write_text(PROGRAM.replace("cfg.train", "cfg.model = own_provider()\n    cfg.train"))
    with pytest.raises(InputError, match=r"with another model \(own_provider\): give it by --model"):
        read_experiment(file)
    file.write_text(PROGRAM + "\nother = llama3_70b_pretrain_config()\n")
    with pytest.raises(InputError, match=r"starts 2 recipes; name one: .* --args '--recipe llama3_8b_pretrain_config'"):
        read_experiment(file)


def test_a_document_that_a_program_lays_over_its_recipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "pretrain.py").write_text('CONFIG_FILE = HERE / "conf" / "own.yaml"\n' + PROGRAM)
    with pytest.raises(InputError, match=r"takes settings from own.yaml, which is not beside the file"):
        read_experiment(tmp_path / "pretrain.py")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own.yaml").write_text("model: {seq_length: 2048}\ntrain: {micro_batch_size: 4}\n")
    assert read_experiment(tmp_path / "pretrain.py").row["micro_batch_size"] == 4


def test_a_recipe_that_a_file_defines_has_the_degrees_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "llama3.py"
    file.write_text(DEFINED)
    job = read_experiment(file)
    assert (job.row["tp"], job.global_batch_size, job.model and job.model.name) == (4, 96, "llama3_8b")
    file.write_text(DEFINED.replace("Meta-Llama-3-8B", "Other-8B"))
    with pytest.raises(InputError, match=r"with another model \(meta-llama/Other-8B\): give it by --model"):
        read_experiment(file)


def test_a_file_of_recipes_asks_for_one_by_name(tmp_path: Path) -> None:
    file = tmp_path / "llama3.py"
    names = "llama31_8b_peft_1gpu_h100_bf16_config", "llama31_8b_sft_2gpu_h100_bf16_config"
    file.write_text("".join(f"def {name}(peft_scheme='lora'):\n    return megatron.bridge\n" for name in names))
    with pytest.raises(InputError, match=r"starts 2 recipes; .*; as shipped: .* --recipe llama31_8b_peft_1gpu"):
        read_experiment(file)
    listed = f"from elsewhere import {names[1]}\n__all__ = [\n    '{names[1]}',\n]\n"
    file.write_text(f"{listed}\ndef {names[0]}(peft_scheme='lora'):\n    return megatron.bridge\n")
    with pytest.raises(InputError, match=r"starts 2 recipes; .*; as shipped: .* --recipe llama31_8b_peft_1gpu"):
        read_experiment(file)
    assert read_experiment(file, arguments=["--recipe", names[1]]).world.gpus == 2


@pytest.mark.in_turn
def test_recipes_change_no_size_of_their_model_but_the_two_that_are_read() -> None:
    for name, recipe in recipes().items():
        model = model_of_tokenizer(recipe.model)
        if model is not None and "hidden_size" not in recipe.settings:
            sizes = model_arguments(model)
            of_no_size = {"make_vocab_size_divisible_by", "position_embedding_type", "mtp_hybrid_override_pattern"}
            of_no_size.add("multi_latent_attention")  # of DeepSeek-V4's class alone
            given = recipe.settings.keys() & model_keys() - RESIZED.keys() - of_no_size
            assert {key: recipe.settings[key] for key in given if recipe.settings[key] != sizes.get(key)} == {}, name


def test_a_recipe_is_projected_by_its_name_on_its_device() -> None:
    name = "llama31_405b_pretrain_1024gpu_h100_fp8cs_config"
    figures = json.loads(CliRunner().invoke(app, ["project", "--recipe", name, "--json"]).stdout)
    row = figures["candidate"]
    assert {axis: row[axis] for axis in ("tp", "pp", "vpp", "cp", "fp8")} == {
        "tp": 8, "pp": 8, "vpp": 8, "cp": 2, "fp8": "hybrid",
    }  # fmt: skip
    assert figures["workload"]["global_batch_size"] == 1536


def test_an_unknown_recipe_is_named_with_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["project", "--recipe", "llama3_80b_pretrain", "--hardware", "h100"])
    assert "no recipe of Megatron-Bridge that is known; did you mean 'llama3_" in str(result.exception)


COMMANDS = {
    "torchrun --nproc_per_node 8 --nnodes 2 scripts/training/run_recipe.py --recipe "
    "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config --dataset mock -ep 8 model.pipeline_model_parallel_size=1": (
        "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", World(16, 8),
        {
            "expert_model_parallel_size": "8", "pipeline_model_parallel_size": "1",
            "use_precision_aware_optimizer": True,
        },
    ),
    "torchrun --nproc_per_node 8 --nnodes 4 scripts/training/run_recipe.py --recipe "
    "llama3_8b_pretrain_8gpu_h100_fp8cs_config -tp 2 model.context_parallel_size=1": (
        "llama3_8b_pretrain_8gpu_h100_fp8cs_config", World(32, 8),
        {"tensor_model_parallel_size": "2", "context_parallel_size": "1", "global_batch_size": 256},
    ),
    "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --model llama3_8b --mode pretrain -gb 64": (
        "llama3_8b_pretrain_config", World(8, 8), {"global_batch_size": "64"},
    ),
    "python scripts/performance/setup_experiment.py -m llama -mr llama3_8b -ng 8 -g h100 -c fp8_cs -a me -gn 8": (
        "llama3_8b_pretrain_8gpu_h100_fp8cs_config", World(8, 8), {},
    ),
    "python scripts/performance/setup_experiment.py -m llama -mr llama31_405b -ng 1024 --gpu H100 -c bf16 -tp 4": (
        "llama31_405b_pretrain_1024gpu_h100_bf16_config", World(1024, 0),
        {"tensor_model_parallel_size": "4", "sequence_parallel": True, "use_precision_aware_optimizer": True},
    ),
    "python scripts/performance/run_script.py -m llama -mr llama3_8b -ng 8 -g h100 -c bf16 -tp 2 -gb 64 "
    "train.global_batch_size=128 model.tensor_model_parallel_size=4": (
        "llama3_8b_pretrain_8gpu_h100_bf16_config", World(8, 0),
        {
            "tensor_model_parallel_size": "2", "global_batch_size": "64", "sequence_parallel": True,
            "use_precision_aware_optimizer": True,
        },
    ),
    "python scripts/performance/run_recipe.py -m llama -mr llama3_8b -ng 8 -g h100 -c bf16 -tp 2 -gb 64 "
    "train.global_batch_size=128": (
        "llama3_8b_pretrain_config", World(8, 0), {"tensor_model_parallel_size": "2", "global_batch_size": "128"},
    ),
    "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe llama32_3b_pretrain_1gpu_h100_bf16_config": (
        "llama32_3b_pretrain_1gpu_h100_bf16_config", World(8, 8), {},
    ),
    "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_8gpu_h100_fp8cs_config "
    "-sl 4096 model.seq_length=2048 optimizer.use_distributed_optimizer=false": (
        "llama3_8b_pretrain_8gpu_h100_fp8cs_config", World(8, 8),
        {"seq_length": "4096", "use_distributed_optimizer": True},
    ),
    "python scripts/performance/run_script.py --gpu gb300 --model_recipe_name deepseek_v3 --num_gpus 512 "
    "--compute_dtype fp8_mx --pipeline_model_parallel_size 4 --virtual_pipeline_model_parallel_size 2 "
    "--cuda_graph_scope attn,moe_router --recompute_modules mlp --moe_flex_dispatcher_backend None": (
        "deepseek_v3_pretrain_256gpu_gb300_fp8mx_config", World(512, 0),
        {
            "pipeline_model_parallel_size": "4", "virtual_pipeline_model_parallel_size": "2",
            "pipeline_model_parallel_layout": "Et*8|(t*8|)*6t*5mL", "cuda_graph_scope": ["attn", "moe_router"],
            "recompute_granularity": "selective", "recompute_modules": ["mlp"],
            "moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None,
        },
    ),
    "python scripts/performance/setup_experiment.py --model_name llama3 --model_size 8b --num_gpus 16 --gpu h100": (
        "llama3_8b_pretrain_8gpu_h100_bf16_config", World(16, 0),
        {"global_batch_size": 256, "use_precision_aware_optimizer": True},
    ),
}  # fmt: skip
"""Commands of scripts/training/README.md and scripts/performance, and the recipe, GPUs and settings that they start."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_choose_a_recipe_and_settings_over_it(command: str, tmp_path: Path) -> None:
    found = started_in(command, tmp_path)
    assert (found.name, found.started, found.overrides) == COMMANDS[command]
    script = tmp_path / "h100" / "run.sh"
    script.parent.mkdir()
    script.write_text(command)
    assert start(script, "", 0).world == COMMANDS[command][1].gpus


def test_virtual_stages_that_the_layout_of_a_recipe_has_not_take_its_place(tmp_path: Path) -> None:
    command = "python scripts/performance/setup_experiment.py -mr llama3_70b -ng 64 -g h100 -c fp8_cs"
    for given, stages, said in (("", (8, 5), False), (" -pp 4 -vp 5", (4, 5), True), (" -pp 1 -vp None", (1, 1), True)):
        (tmp_path / "run.sh").write_text(command + given, encoding="utf-8")
        job = read_experiment(tmp_path / "run.sh")
        assert (job.row["pp"], job.row["vpp"]) == stages
        assert any("the recipe's has 40 stages" in note for note in job.assumed) is said


def test_a_command_without_gpus_lists_the_recipes_that_fit(tmp_path: Path) -> None:
    command = "python scripts/performance/setup_experiment.py -m llama -mr llama31_405b -g h100 -c bf16"
    with pytest.raises(ValueError, match=r"give --num_gpus; recipes: .*llama31_405b_pretrain_512gpu"):
        started_in(command, tmp_path)


def test_the_tower_of_a_vision_model_is_named() -> None:
    name = next(name for name in NAMED if name.startswith("qwen35_vl_122b") and "_b200_" in name)
    assert any("vision tower" in note for note in read_experiment(Path(name), 64).not_modelled)


def test_a_model_of_another_kind_is_named_by_its_class() -> None:
    with pytest.raises(InputError, match=r"WanModelProvider of .* is not modelled"):
        start(Path("wan_14b_pretrain_32gpu_h100_bf16_config"), "", 0)


def test_a_recipe_is_a_baseline_by_its_name() -> None:
    must_be_readable(Path("llama3_8b_pretrain_8gpu_h100_fp8cs_config"))
    with pytest.raises(InputError, match="no such file, and no recipe of Megatron-Bridge; did you mean 'llama3_8b_"):
        must_be_readable(Path("llama3_8b_pretrain_8gpu_h100_fp8xs"))


@pytest.mark.parametrize(
    ("name", "backend", "fused"),
    [
        ("deepseek_v3_pretrain_1024gpu_h100_bf16", "hybridep", None),
        ("deepseek_v3_pretrain_256gpu_gb200_bf16", "hybridep", None),
        ("deepseek_v2_pretrain_128gpu_h100_bf16", "stack", None),
        ("deepseek_v4_flash_pretrain_32gpu_h100_bf16", "stack", False),
        ("deepseek_v4_flash_pretrain_64gpu_gb200_bf16", "hybridep", True),
    ],
)
def test_what_a_recipe_asks_its_device_is_answered(name: str, backend: str, fused: bool | None) -> None:
    """training/flex_dispatcher_backend.py, where a recipe calls it, and what models/deepseek of V4 has on Blackwell."""
    assert start(Path(f"{name}_config"), "", 0).experiment.row["dispatch_backend"] == backend
    assert recipes()[name].settings.get("use_fused_mhc") == fused


FUSIONS = {"cross_entropy_loss_fusion": "cross_entropy_loss_fusion", "bias_swiglu_fusion": "bias_activation_fusion"}
"""Settings that move time and memory -> their fields of Bridge, whose classes of models have defaults of their own."""


@needs("nemo@26.08")
@pytest.mark.in_turn
@pytest.mark.slow
def test_fusions_that_a_recipe_leaves_open_are_those_that_bridge_trains_with(tmp_path: Path) -> None:
    """Of gated models; Qwen3.5 is trained with its tower, whose class is not built from a preset of text."""
    shipped, read = recipes_in("nemo@26.08"), {}
    for name in drawn("fusions", [one for one in NAMED if f"{one}_config" in shipped and "_pretrain_" in one], 24):
        model = model_of_tokenizer(recipes()[name].model)
        if model is not None and model.is_gated and not model.towers and "qwen35" not in name:
            read[f"{name}.sh"] = recipes()[name].settings
            command = f"torchrun --nproc_per_node 8 $BRIDGE_PATH/scripts/training/run_recipe.py --recipe {name}_config"
            (tmp_path / f"{name}.sh").write_text(command)
    compared = [one for one in verdicts("nemo@26.08", [tmp_path / name for name in read]) if one["accepted"]]
    assert len(compared) >= 6
    for one in compared:
        ours = {of: read[one["file"]].get(key, True) for key, of in FUSIONS.items()}
        assert ours == {of: one["args"][f"model.{of}"] for of in FUSIONS.values()}, one["file"]


OF_OVERLAPS = (
    "ddp.overlap_grad_reduce", "ddp.overlap_param_gather", "ddp.bucket_size", "optimizer.overlap_param_gather",
    "model.tp_comm_overlap", "model.overlap_p2p_comm", "model.overlap_moe_expert_parallel_comm",
)  # fmt: skip


@pytest.mark.parametrize("key", OF_OVERLAPS)
def test_what_comm_overlap_sets_is_its_own_to_say(key: str, tmp_path: Path) -> None:
    """Whatever fields it overwrites have; its own decide, without it those fields; one of a recipe without it stops."""
    script, last = tmp_path / "run.sh", key.partition(".")[2]

    def job(*words: str, name: str = "deepseek_v3_pretrain_256gpu_b200_fp8mx") -> Experiment:
        script.write_text(f"python run_recipe.py --recipe {name}_config {' '.join(words)}\n")
        return read_experiment(script)

    found = {value: job(f"{key}={value}") for value in (("1000000", "5") if "bucket" in key else ("false", "true"))}
    note = f"{key}: no effect; projected as comm_overlap.{last} has it"
    assert all((one.row, one.numbers) == (job().row, job().numbers) and note in one.assumed for one in found.values())
    own = [job(f"comm_overlap.{last}={value}").written[last.replace("bucket", "ddp_bucket")] for value in found]
    assert [str(one).lower() for one in own] == [*found]
    assert not any(one.startswith(key) for one in job("comm_overlap=null", f"{key}=false").assumed)
    with pytest.raises(InputError, match="has no comm_overlap"):
        job(f"comm_overlap.{last}=false", name="exaone4_1p2b_peft_1gpu_h100_bf16")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("optimizer.exp_avg_dtype=bfloat16", "need the precision-aware optimizer"),
        ("model.deterministic_mode=true", "the fused loss is not deterministic"),
        ("model.fine_grained_activation_offloading=true", "offloaded activations need their modules"),
    ],
)
def test_settings_that_go_with_no_default_of_a_recipe_are_refused(given: str, why: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{command_of('llama3_70b_pretrain_64gpu_h100_fp8cs')} {given}\n")
    with pytest.raises(InputError, match=why):
        space_of(start(script, "h100", 8), [], None, "")


def command_of(recipe: str) -> str:
    return f"torchrun --nnodes 8 --nproc-per-node 8 scripts/training/run_recipe.py --recipe {recipe}_config"
