"""Experiments that others wrote: Primus' own are read and legal under their framework, and no setting is lost."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from primus_search.base.errors import InputError
from primus_search.files.argument_tables import arguments
from primus_search.files.dotted_keys import nested
from primus_search.files.framework_files import load_framework
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read import torchtitan as reading
from primus_search.launch.read.experiments import is_experiment, read_experiment
from primus_search.launch.write import shell
from primus_search.learning.started_experiment import fewest_nodes, start
from primus_search.models.megatron_yaml import readable_keys
from primus_search.models.model_files import load_model
from primus_search.space import Enumerator
from primus_search.values.machine.framework import Framework
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import verdicts

OTHER_KINDS = ("kimi_k3", "diffusion", "flux", "nemo_automodel", "hummingbirdxt", "mamba_130M", "gemma4_31B")
"""Paths of experiments that train what is not modelled: attention residuals, images, models without a preset; or
by a back end that is not read."""
REFUSALS = (
    "attn_res_block_size makes",
    "trains another kind of model",
    "models of framework",
    "'kimi_k3'",
    "spec makes",
)
"""Words that refuse the model of such an experiment."""


def legal_rows(path: Path) -> int:
    """How many candidates the space of an experiment has: one where it is legal under its own framework."""
    space = space_of(start(path, "" if "/MI" in str(path) else "mi300x", 0), [], None, "")
    enumerator = Enumerator(space)
    return len(enumerator.chunk(0, enumerator.size).candidates)


@needs("primus")
@pytest.mark.parametrize("step", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.full)])
def test_primus_own_experiments_are_read_and_legal_or_refused_by_name(step: int, tmp_path: Path) -> None:
    files = [path for path in sorted((sources("primus") / "examples").rglob("*.yaml")) if is_experiment(path)]
    assert len(files) >= 230
    supported = [path for path in files[::step] if not any(kind in str(path) for kind in OTHER_KINDS)]
    rows, unstarted = 0, list[Path]()
    for path in supported:
        try:
            rows += legal_rows(path)
        except InputError as error:
            if "does not start it" in str(error):
                unstarted.append(tmp_path / f"{len(unstarted)}.yaml")
                unstarted[-1].write_text(f"{path.read_text(encoding='utf-8')}\n# on 512 GPUs\n", encoding="utf-8")
    assert not [one["file"] for one in verdicts("primus", unstarted) if one["accepted"]]
    assert rows >= 0.95 * (len(supported) - len(unstarted))
    for path in set(files[::step]) - set(supported):
        with pytest.raises(InputError):  # names the keys or the module that is not modelled
            legal_rows(path)


def model_problems(path: Path) -> str:
    """Why the model of an experiment is not read; empty where it is."""
    try:
        return str(InputError(list(problems))) if (problems := read_experiment(path, 256).model_problems) else ""
    except InputError:  # fine-tuning is not projected, its model is read all the same
        try:
            return "" if load_model(str(path)) else "no model"
        except InputError as error:
            return str(error)


@needs("primus")
@pytest.mark.slow
def test_models_of_primus_own_experiments_are_read_or_refused_by_a_key() -> None:
    files = [path for path in sorted((sources("primus") / "examples").rglob("*.yaml")) if is_experiment(path)]
    problems = {path: model_problems(path) for path in files}
    refused = [text for text in problems.values() if text]
    others = [text for text in refused if not any(words in text for words in REFUSALS)]
    assert len(others) <= 0.05 * len(files)
    assert not any("vocab_size" in text for text in refused)


def test_the_fewest_nodes_hold_whole_replicas() -> None:
    row = {"tp": 1, "cp": 1, "pp": 4, "etp": 1, "ep": 8, "shard_group": 0}
    assert fewest_nodes(row, 8) == 4
    assert fewest_nodes(row | {"pp": 1, "ep": 1}, 8) == 1
    assert fewest_nodes(row | {"pp": 3, "ep": 1, "tp": 8}, 8) == 3


# --- no setting is lost -----------------------------------------------------------------------------------------------

PRIMUS_BASE = {
    "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "group_query_attention": True,
    "num_query_groups": 4, "vocab_size": 1000, "max_position_embeddings": 4096, "num_experts": 8,
    "moe_ffn_hidden_size": 512, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
    "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1, "global_batch_size": 64, "seq_length": 2048,
    "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2,
}  # fmt: skip
BESIDE_SWITCHES: dict[tuple[str, ...], dict[str, Any]] = {
    ("accumulate_allreduce_grads_in_fp32",): {"fp16": True, "bf16": False},
    ("muon_scalar_optimizer", "muon_split_qkv"): {"optimizer": "muon"},
    ("sgd_momentum",): {"optimizer": "sgd"},
    ("barrier_with_L1_time",): {"timing_log_level": 1},
    ("cross_entropy_fusion_impl",): {"cross_entropy_loss_fusion": True},
    ("disable_delayed_scaling_patches",): {"fp8": "hybrid", "fp8_recipe": "delayed"},
    ("dsa_indexer_skip_topk_offset", "dsa_indexer_topk_freq", "dsa_indexer_rotate_activation"): {
        "experimental_attention_variant": "dsa",
    },
    ("init_model_with_meta_device",): {"use_megatron_fsdp": True},
    ("use_flash_attn",): {"transformer_impl": "local", "use_legacy_models": True},
    ("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"): {"optimizer_cpu_offload": True},
    ("manual_gc_interval",): {"manual_gc": True},
    ("mtp_use_repeated_layer",): {"mtp_num_layers": 2},
    ("moe_deepep_num_sms", "turbo_deepep_num_cu", "turbo_deepep_use_comm_stream"): {
        "moe_token_dispatcher_type": "flex", "moe_enable_deepep": True,
    },
    ("activation_offload_fraction", "offload_modules"): {"fine_grained_activation_offloading": True},
    ("auto_offload_time", "offload_overlap_sr", "offload_time"): {"offload": True},
    ("cpu_offloading_activations", "cpu_offloading_weights"): {"cpu_offloading": True, "cpu_offloading_num_layers": 1},
    ("outer_dp_sharding_strategy",): {
        "use_megatron_fsdp": True, "num_distributed_optimizer_instances": 2, "pipeline_model_parallel_size": 1,
    },
    ("megatron_fsdp_grad_comm_dtype", "megatron_fsdp_main_grads_dtype"): {
        "use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params",
    },
    ("cuda_graph_modules", "cuda_graph_scope", "cuda_graph_scope_deprecated", "cuda_graph_use_single_mempool"): {
        "cuda_graph_impl": "transformer_engine",
    },
    ("main_grads_dtype",): {"use_precision_aware_optimizer": True},  # refused else: precision_formats
    ("persist_layer_norm", "attention_softmax_in_fp32"): {"transformer_impl": "local"},
    ("wgrad_deferral_limit",): {"defer_embedding_wgrad_compute": True},
    ("enable_exactly_numeric_match", "enable_zb_runtime", "enable_zero_bubble"): {"patch_zero_bubble": True},
    ("cp_comm_type",): {"context_parallel_size": 2},
}  # fmt: skip
"""Settings of Megatron and Primus that act beside these."""
PRIMUS_CONTEXTS: dict[tuple[str, ...], dict[str, Any]] = BESIDE_SWITCHES | {
    ("reuse_grad_buf_for_mxfp8_param_ag",): {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    ("fp8_recipe", "fp8_param_gather", "tp_only_amax_red"): {"fp8": "hybrid"},
    ("recompute_modules",): {"recompute_granularity": "selective", "recompute_num_layers": None},
    ("use_torch_fsdp2",): {"use_distributed_optimizer": False},
    ("data_parallel_replicate_degree",): {"use_torch_fsdp2": True, "use_distributed_optimizer": False},
    ("use_megatron_fsdp",): {"data_parallel_sharding_strategy": "optim_grads_params"},
    ("data_parallel_sharding_strategy", "megatron_fsdp_main_params_dtype"): {"use_megatron_fsdp": True},
    ("enable_primus_turbo", "use_turbo_deepep", "use_turbo_grouped_gemm"): {
        "use_turbo_deepep": True, "use_turbo_grouped_gemm": True,
    },
    ("pp_algorithm",): {"patch_primus_pipeline": True, "num_virtual_stages_per_pipeline_rank": 2},
    ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"): {
        "multi_latent_attention": True,
    },
    ("patch_tokenizer_type", "extra_vocab_size"): {"vocab_size": None, "patch_tokenizer_type": "LLama3Tokenizer"},
    ("tokenizer_model", "tokenizer_type"): {"vocab_size": None, "tokenizer_model": "meta-llama/Meta-Llama-3-8B"},
    ("sink_sliding_window", "sink_window_even_layers_only"): {
        "use_sink_attention": True, "sink_sliding_window": 64,
    },
    ("window_attn_skip_freq",): {"window_size": [64, 0]},
    ("quick_geglu", "bias_gelu_fusion"): {"swiglu": False},
    ("max_position_embeddings", "use_rotary_position_embeddings"): {"position_embedding_type": "learned_absolute"},
}  # fmt: skip
"""Settings beside the base under which these keys act."""
OF_REFUSED_LAYERS = ["gdp_num_chunk_states_to_recompute", "gdp_cutedsl_kernel"]
"""Keys that act in layers alone with which no job is read."""
TITAN_BASE = {
    "model.name": "deepseek_v3", "model.flavor": "16B", "training.global_batch_size": 64,
    "training.local_batch_size": 4, "parallelism.tensor_parallel_degree": 2,
}  # fmt: skip
TITAN_CONTEXTS: dict[tuple[str, ...], dict[str, Any]] = {
    ("parallelism.pipeline_parallel_microbatch_size", "parallelism.pipeline_parallel_schedule",
     "parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_layers_per_stage",
     "parallelism.module_fqns_per_model_part"): {
        "parallelism.pipeline_parallel_degree": 2,
    },
    ("quantize.linear.float8.recipe_name",): {"model.converters": ["quantize.linear.float8"]},
    ("quantize.linear.mx.recipe_name",): {"model.converters": ["quantize.linear.mx"]},
    ("compile.components",): {"compile.enable": True},
    ("activation_checkpoint.memory_budget",): {"activation_checkpoint.mode": "memory_budget"},
    ("training.local_batch_size",): {"training.global_batch_size": -1},
}  # fmt: skip
OTHER_VALUES = (True, False, 0, 2, 3, 16, 0.5, "x", "optim", [4], "block", "rowwise", "[1]*4+[0]*4", "[0]*4+[1]*4")


def keys_of(framework: Framework) -> dict[str, list[Any]]:
    """Every key of a contract with the values that it names."""
    settings: list[Mapping[str, Any]] = []
    for spelling in framework.spellings.values():
        settings += [{spelling.key: 2}] if spelling.key else []
        settings += [*spelling.values.values(), *spelling.beside.values()]
        settings += [one for many in spelling.reads.values() for one in many]
    for schedule in framework.schedules.values():
        settings += [schedule.keys, schedule.beside]
    settings += [one.settings for one in framework.decides]
    keys: dict[str, list[Any]] = {key: [] for key in framework.effects}
    for one in settings:
        for key, value in one.items():
            keys.setdefault(key, []).append(value)
    return {key: values for key, values in keys.items() if key not in framework.ignored}


Contexts = Mapping[tuple[str, ...], dict[str, Any]]


def lost(keys: Mapping[str, list[Any]], contexts: Contexts, seen: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Keys of which no other value changes what is read, each in its context."""
    of_key = {key: context for names, context in contexts.items() for key in names}
    before = [(context, seen(context)) for context in ({}, *contexts.values())]
    found = []
    for key, values in keys.items():
        context = of_key.get(key, {})
        plain = next(read for other, read in before if other == context)
        tried = [value for value in (*values, *OTHER_VALUES) if value is not None]
        if all(seen(context | {key: value}) == plain for value in tried):
            found.append(key)
    return found


def what_is_read(path: Path) -> Any:
    try:
        found = read_experiment(path, 16)
    except InputError as error:
        return str(error)
    of_job = found.seq_length, found.global_batch_size, found.workload
    return dict(found.row), of_job, found.model, found.numbers, found.not_modelled


@pytest.mark.in_turn
def test_no_key_of_primus_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"

    def seen(changes: dict[str, Any]) -> Any:
        given = {key: value for key, value in (PRIMUS_BASE | changes).items() if value is not None}
        module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml"}
        path.write_text("modules: " + json.dumps({"pre_trainer": module | {"overrides": given}}))
        return what_is_read(path)

    keys = keys_of(load_framework("primus")) | {key: [] for key in readable_keys()}
    assert lost(keys, PRIMUS_CONTEXTS, seen) == OF_REFUSED_LAYERS


@pytest.mark.parametrize(("folder", "device"), [("MI355", "mi355x"), ("MI300X", "mi300x"), ("r1", ""), ("A100", "")])
def test_a_folder_names_the_device_as_people_do(folder: str, device: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "experiment.yaml"
    path.parent.mkdir()
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml"}
    path.write_text("modules: " + json.dumps({"pre_trainer": module | {"overrides": PRIMUS_BASE}}))
    if device:
        assert start(path, "", 2).hardware == device
    else:  # a model of that name, devices of two sizes
        with pytest.raises(InputError, match="--hardware: is needed"):
            start(path, "", 2)


def test_what_another_key_means_is_judged_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml"}
    given = PRIMUS_BASE | {"recompute_activations": True}  # over any granularity, which full recompute is then no more
    path.write_text("modules: " + json.dumps({"pre_trainer": module | {"overrides": given}}))
    with pytest.raises(InputError, match="selective recomputation takes no method"):
        space_of(start(path, "mi355x", 2), [], None, "")


@pytest.mark.parametrize("key", load_framework("primus").ignored)
def test_a_key_that_a_contract_ignores_is_no_unknown_one_of_a_model(key: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml"}
    path.write_text("modules: " + json.dumps({"pre_trainer": module | {"overrides": PRIMUS_BASE | {key: True}}}))
    assert start(path, "mi355x", 2).experiment.model is not None


def test_no_key_of_torchtitan_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"

    def seen(changes: dict[str, Any]) -> Any:
        path.write_text(tomli_w.dumps(nested(TITAN_BASE | changes)))
        return what_is_read(path)

    keys = keys_of(load_framework("torchtitan@0.2.2")) | {key: [] for key in reading.READ}
    assert lost(keys, TITAN_CONTEXTS, seen) == []


@pytest.mark.parametrize("key", ["training.local_batch_size", "parallelism.data_parallel_replicate_degree"])
def test_a_count_of_nothing_is_refused_by_its_key(key: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(nested(TITAN_BASE | {key: 0})))
    assert f"{key.rpartition('.')[2]}: 0 is out of range" in what_is_read(path)


MEGATRON_BASE = PRIMUS_BASE | {"position_embedding_type": "rope", "use_distributed_optimizer": True, "bf16": True}
MEGATRON_CONTEXTS: dict[tuple[str, ...], dict[str, Any]] = BESIDE_SWITCHES | {
    ("reuse_grad_buf_for_mxfp8_param_ag",): {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    ("fp8_recipe", "fp8_param_gather", "tp_only_amax_red"): {"fp8_format": "hybrid"},
    ("fp4_recipe",): {"fp4_format": "e2m1"},
    ("recompute_modules",): {"recompute_granularity": "selective", "recompute_num_layers": None},
    ("num_distributed_optimizer_instances", "data_parallel_sharding_strategy", "megatron_fsdp_main_params_dtype"): {
        "use_megatron_fsdp": True,
    },
    ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"): {
        "multi_latent_attention": True,
    },
    ("patch_tokenizer_type", "extra_vocab_size"): {"vocab_size": None, "patch_tokenizer_type": "LLama3Tokenizer"},
    ("tokenizer_model", "tokenizer_type"): {"vocab_size": None, "tokenizer_model": "meta-llama/Meta-Llama-3-8B"},
    ("window_attn_skip_freq",): {"window_size": "64,0"},
    ("max_position_embeddings", "use_rotary_position_embeddings"): {"position_embedding_type": "learned_absolute"},
    ("moe_flex_dispatcher_backend",): {"moe_token_dispatcher_type": "flex"},
}  # fmt: skip
OF_PRIMUS = ("add_bias_linear", "use_sink_attention", "sink_sliding_window", "sink_window_even_layers_only", "env_vars")
"""Names that Megatron's command line does not have."""


@pytest.mark.in_turn
def test_no_argument_of_megatron_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"

    def seen(changes: dict[str, Any]) -> Any:
        given = {key: value for key, value in (MEGATRON_BASE | changes).items() if value is not None}
        given |= {name: True for key, name in switches.items() if given.get(key) is False}
        path.write_text("torchrun pretrain_gpt.py " + " ".join(" ".join(words) for words in shell.words(given)))
        return what_is_read(path)

    table = arguments("megatron@core_0.20").values()
    switches = {one.name: flag[3:].replace("-", "_") for one in table for flag in one.flags if flag.startswith("!--")}
    keys = keys_of(load_framework("megatron")) | {key: [] for key in readable_keys()}
    keys = {key: values for key, values in keys.items() if key not in OF_PRIMUS}
    assert lost(keys, MEGATRON_CONTEXTS, seen) == OF_REFUSED_LAYERS
