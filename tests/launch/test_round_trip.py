"""Candidate -> launch file -> read back, without being told the model: the same candidate, job, model and constants."""

import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.megatron import canonical
from primus_search.launch.workload_settings import unwritten, workload_settings, workload_values
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.launch.write.shell import argument_table
from primus_search.learning.started_experiment import start
from primus_search.values.layout import Layout
from primus_search.values.machine.stack import with_numbers
from primus_search.values.machine.state_formats import is_stacks_own
from primus_search.values.model import Model
from primus_search.values.model.shape import shape
from primus_search.values.workload import Workload
from tests.support.launched import jobs

MAIN_FILE = {"megatron": "megatron.sh", "primus": "primus.yaml", "torchtitan": "searched.py",
             "torchtitan@0.2.2": "torchtitan.toml", "nemo": "nemo.sh"}  # fmt: skip
HARDWARE = {"megatron": "h100", "primus": "mi355x", "torchtitan": "h100", "torchtitan@0.2.2": "h100",
            "nemo": "h100"}  # fmt: skip
RECIPES = {"plain": "llama3_8b_pretrain", "scaled": "llama31_8b_pretrain", "tied": "qwen3_8b_pretrain",
           "experts": "qwen3_30b_a3b_pretrain_16gpu_h100_bf16", "latent": "deepseek_v3_pretrain"}  # fmt: skip
"""A recipe of Megatron-Bridge with each model's kinds of layers; every size and setting of its own is overridden."""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "vocab_size": 50000,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2000000.0,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rope_theta": 5000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 2000,
    "intermediate_size": 6144,
    "num_hidden_layers": 16,
    "vocab_size": 64000,
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "first_k_dense_replace": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "rope_theta": 70000.0,
    "norm_topk_prob": True,
    "rope_scaling": {
        "type": "yarn",
        "factor": 8,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "plain": LLAMA,
    "scaled": LLAMA
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    },
    "tied": LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 64, "vocab_size": 151936},
    "experts": EXPERTS,
    "latent": LATENT,
}
FEW, MANY = 6, 400
"""Candidates of each model and format: five models, 2,000 a format in `make test-full`."""
WORKLOADS: dict[str, tuple[Any, ...]] = {
    "document_length": (0.0, 0.0, 512.0, 3000.5),
    "packing": ("cut", "whole", "token_budget", "pad_to_longest"),
    "routing_imbalance": (1.0, 1.0, 1.3, 1.75),
    "routing_spread": (0.0, 0.0, 0.3),
    "experts_in_turn": (False, False, True),
    "pads_to_capacity": (False, False, True),
    "task": ("pretrain", "pretrain", "sft"),
}
"""Values of workloads, drawn for every candidate."""
KEYED = {"ddp_bucket_size": (3.0e7, 2.0e8), "loss.num_chunks": (4.0, 16.0)}
"""Values of settings that are themselves numbers of the stack."""


def with_settings(job: LaunchJob) -> LaunchJob:
    """The job on a stack that has the numbers of one setting that a file decides, or those of its absence."""
    rng, stack = random.Random(repr(job.row)), job.cluster.stack
    ours = [one for one in job.framework.decides if job.model.is_moe or not one.of_experts]
    picked = rng.choice(ours)
    alike = [one for one in ours if (one.settings, one.where) == (picked.settings, picked.where)]
    bears = all(str(job.row[axis]) in words for axis, words in picked.where.items())
    sides = [{one.number: getattr(one, side) for one in alike} for side in ("value", "otherwise")]
    sides += [{one.number: rng.choice(KEYED[one.key]) for one in alike if one.key}]
    numbers = {name: value for name, value in rng.choice(sides).items() if bears and value is not None}
    return replace(job, cluster=replace(job.cluster, stack=with_numbers(stack, numbers)))


def job_rows(model: str, framework: str, count: int, folder: Path) -> Iterator[LaunchJob]:
    """Random candidates with random workloads."""
    path, rng = folder / f"{model}.json", random.Random(7)
    path.write_text(json.dumps(MODELS[model]))
    space = {"model": str(path), "hardware": HARDWARE[framework], "nodes": 4, "framework": framework,
             "workload": {"seq_length": 4096, "global_batch_size": 256}}  # fmt: skip
    for job in jobs(make_space(space, name=model), count, seed=7):
        drawn = {name: rng.choice(values) for name, values in WORKLOADS.items()}
        packed = {} if drawn["document_length"] else {"packing": "cut"}
        yield replace(job, workload=replace(job.workload, **drawn | packed))


def expected(job: LaunchJob) -> dict[str, object]:
    row = dict(job.row)
    layout = canonical(Layout.parse(row["pipeline_layout"]), job.model, row["pp"] * row["vpp"])
    return row | {"pipeline_layout": str(layout)}


def differences(job: LaunchJob, folder: Path) -> list[str]:
    """What comes back otherwise than it was written."""
    try:
        texts = launch_files(job).texts
    except Inexpressible:
        return []
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    found = read_experiment(folder / MAIN_FILE[job.framework.name], job.cluster.world)
    row = found.candidate.row(0)
    row |= {"state_format": "stack"} if is_stacks_own(job.cluster.stack, row["state_format"]) else {}
    wanted = expected(job)
    wrong = [f"{axis}: {row[axis]} for {wanted[axis]}" for axis in wanted if row[axis] != wanted[axis]]
    if (found.seq_length, found.global_batch_size) != (job.workload.seq_length, job.workload.global_batch_size):
        wrong.append("workload")
    if found.model is None:
        return [*wrong, "no model"]
    if nameless(found.model) != nameless(job.model):
        wrong.append(f"model: {found.model}")
    for name in ("norm_epsilon", "rotary_base", "rotary_share", "router_score", "router_normalises"):
        ours, theirs = job.model.constants.__getattribute__(name), found.model.constants.__getattribute__(name)
        if ours not in (None, "") and theirs != ours:
            wrong.append(f"{name}: {theirs} for {ours}")
    if (job.model.constants.router_scale or 1.0) != (found.model.constants.router_scale or 1.0):
        wrong.append("router_scale")
    wrong += [] if scaling(found.model) == scaling(job.model) else [f"scaling: {scaling(found.model)}"]
    return wrong or figures_differ(job, folder, texts)


def figures_differ(job: LaunchJob, folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Seconds and bytes of the file's projection that are not those of the job, the values under Edit set."""
    sets = list(dict.fromkeys(re.findall(r"\(--set (workload\.\S+)\)", "\n".join(texts.values()))))
    path = folder / MAIN_FILE[job.framework.name]
    space = space_of(start(path, HARDWARE[job.framework.name], job.cluster.num_nodes), sets, None, "")
    ours = Projector(job).project(job.candidate)
    theirs = Projector(space.job_on(space.clusters[0])).project(read_experiment(path, job.cluster.world).candidate)
    pairs = {"seconds": (ours.step, theirs.step), "bytes": (ours.memory, theirs.memory)}
    return [
        f"{name}: {b.total[0]} for {a.total[0]}"
        for name, (a, b) in pairs.items()
        if b.total[0] != pytest.approx(a.total[0], rel=1e-9)
    ]


def nameless(model: Model) -> Model:
    return shape(replace(model, name="", head_dim=0 if model.latent else model.head_dim))


def scaling(model: Model) -> dict[str, object]:
    return {key: float(v) if isinstance(v, int) else v for key, v in model.constants.scaling.items()}


@pytest.fixture(autouse=True)
def of_bridge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script of Megatron-Bridge takes from its environment."""
    monkeypatch.setenv("BRIDGE_PATH", "/opt/bridge")
    if (model := request.node.callspec.params.get("model") if hasattr(request.node, "callspec") else None) in RECIPES:
        monkeypatch.setenv("RECIPE", f"{RECIPES[model]}_config")


@pytest.mark.parametrize("framework", MAIN_FILE)
@pytest.mark.parametrize("model", MODELS)
def test_a_launch_file_says_the_job_that_was_asked_for(model: str, framework: str, tmp_path: Path) -> None:
    for job in job_rows(model, framework, FEW, tmp_path):
        assert differences(with_settings(job), tmp_path) == [], job.row


@pytest.mark.full
@pytest.mark.parametrize("framework", MAIN_FILE)
@pytest.mark.parametrize("model", MODELS)
def test_thousands_of_launch_files_say_the_job_that_was_asked_for(model: str, framework: str, tmp_path: Path) -> None:
    for job in job_rows(model, framework, MANY, tmp_path):
        assert differences(with_settings(job), tmp_path) == [], job.row


def test_torchtitans_own_parser_reads_the_same_degrees(tmp_path: Path) -> None:
    for job in job_rows("plain", "torchtitan@0.2.2", FEW, tmp_path):
        tables = tomllib.loads(launch_files(job).texts["torchtitan.toml"])
        assert tables["parallelism"]["tensor_parallel_degree"] == job.row["tp"]
        compiled = ["model", "loss"] if job.row["loss_fusion"] else ["model"]
        assert tables["compile"]["components"] == compiled


@pytest.mark.parametrize(("framework", "hardware"), [("megatron", "h100"), ("primus", "mi355x")])
def test_context_groups_by_document_are_written_and_read(framework: str, hardware: str, tmp_path: Path) -> None:
    lengths = {"document_length": {"quantiles": {"p0": 256, "p100": 32768}}, "packing": "token_budget"}
    space = make_space(
        {"model": "llama3.1_8b", "hardware": hardware, "nodes": 2, "framework": framework,
         "workload": {"seq_length": 32768, "global_batch_size": 32} | lengths,
         "space": {"cp": 4, "pp": 1, "tp": 2, "hybrid_cp": True, "cp_comm": "stack", "cuda_graph": "none",
                   "sharding": "distributed_optimizer"}}
    )  # fmt: skip
    job = next(jobs(space, 1))
    texts = launch_files(job).texts
    main = tmp_path / MAIN_FILE[framework]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    words = texts[MAIN_FILE[framework]].replace("-", "_").lower()
    assert "hybrid_context_parallel" in words and "8192" in words
    assert "workload.packing=token_budget" in words
    read = read_experiment(main, 16)
    assert read.row["hybrid_cp"] is True
    assert not any("context" in one or "seqlen" in one for one in read.not_modelled)


def test_each_value_of_a_workload_is_written_or_stands_under_edit(tmp_path: Path) -> None:
    """Every field but those that size a step, those of adapters, and images, which no framework's file trains."""
    sized = {
        "seq_length",
        "global_batch_size",
        "adapters",
        "image_tokens",
        "tokens_per_image",
        "trains_towers",
        "policy",
    }
    assert {one.name for one in fields(Workload)} - sized == argument_table("workload").keys()
    job = next(job_rows("experts", "megatron", 1, tmp_path))
    capacity = replace(job, workload=Workload(seq_length=4096, global_batch_size=256, pads_to_capacity=True,
                       routing_imbalance=1.5))  # fmt: skip
    assert workload_settings(capacity) == {
        "moe_pad_expert_input_to_capacity": True,
        "moe_expert_capacity_factor": 1.5,
    }
    assert unwritten(capacity) == {}


@pytest.mark.parametrize(
    ("framework", "given", "values"),
    [
        ("megatron", {"moe_router_force_load_balancing": True}, {"experts_in_turn": False}),
        ("primus", {"moe_router_force_load_balancing": True}, {"experts_in_turn": True}),
        ("primus", {"moe_router_force_load_balancing": True, "moe_router_force_load_balancing_type": "uniform"},
         {"experts_in_turn": False}),
        ("torchtitan@0.2.2", {"debug.moe_force_load_balance": True}, {"experts_in_turn": True}),
        ("megatron", {"moe_expert_capacity_factor": 1.5}, {}),
    ],
)  # fmt: skip
def test_settings_of_a_router_are_values_of_the_workload(
    framework: str, given: dict[str, Any], values: dict[str, Any]
) -> None:
    found = workload_values(load_framework(framework), given, has_experts=True)
    assert {name: found[name] for name in values} == values and bool(found) == bool(values)
    assert workload_values(load_framework(framework), given, has_experts=False) == {}
