"""Launch files are read by the frameworks' own parsers, and come back as the very same candidate."""

import importlib
import importlib.metadata
import random
import sys
import types
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.candidates import Candidates
from primus_search.declare import load_cluster, load_model, load_stack
from primus_search.errors import InputError
from primus_search.export import FORMATS, open_launch, read_launch, write_launch
from primus_search.export.assumed import assumed
from primus_search.export.job import Job
from primus_search.export.megatron import arguments
from primus_search.workload import Workload

CLUSTER = load_cluster("mi355x", 4)
DENSE, EXPERTS = load_model("llama3.1_8b"), load_model("deepseek_v3")
NUM_CANDIDATES = 200


def random_job(seed: int) -> Job:
    """A legal-looking candidate on 32 GPUs with every knob drawn; both a dense and an MLA + MoE model."""
    rng = random.Random(seed)
    is_moe = rng.random() < 0.5
    model = EXPERTS if is_moe else DENSE
    pp, vpp = rng.choice([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)])
    schedule = "1f1b"
    if pp > 1:
        schedule = rng.choice(["zbv", "v-half", "v-min", "interleaved", "dualpipev"] if vpp > 1 else ["1f1b", "zb-h1"])
    even = model.num_layers % (pp * vpp) == 0
    ep = rng.choice([1, 2, 4, 8]) if is_moe else 1
    modules = "mla_up_proj+mlp" if model.latent else "core_attention+mlp"
    recompute = rng.choice(["none", "selective", "full", modules, "op_sac"])
    method = rng.choice(["uniform", "block"]) if recompute == "full" else "uniform"
    sharding = rng.choice(["none", "distributed_optimizer", "zero2", "fsdp2", "hsdp"])
    row = {
        "tp": rng.choice([1, 2, 4]), "pp": pp, "vpp": vpp, "cp": rng.choice([1, 2]), "ep": ep, "etp": 1,
        "micro_batch_size": rng.choice([1, 2, 4]), "schedule": schedule,
        "pipeline_layout": rng.choice(["even", "balanced"]) if even else "balanced",
        "deepep": ep > 1 and rng.random() < 0.5, "sync_free_stage": rng.choice([0, 1, 2, 3]) if ep > 1 else 0,
        "fp8": rng.choice(["none", "hybrid", "delayed", "blockwise", "rowwise", "mxfp8", "nvfp4"]),
        "recompute": recompute, "recompute_method": method,
        "recompute_num_layers": rng.choice([0, 1, 3]) if recompute == "full" else 0,
        "sharding": sharding, "shard_group": 2 if sharding == "hsdp" else 0,
        "loss_fusion": rng.random() < 0.5, "overlap_grad_reduce": rng.random() < 0.5,
        "grouped_gemm": rng.choice(["turbo", "legacy"]) if is_moe else "turbo",
        "offload_layers": rng.choice([0, 0, 2]),
    }  # fmt: skip
    candidate = Candidates.from_words(row)
    return Job(
        candidate=candidate, model=model, cluster=CLUSTER, workload=Workload(seq_length=4096, global_batch_size=256)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_random_candidates_come_back_unchanged(name: str) -> None:
    for seed in range(NUM_CANDIDATES):
        job = random_job(seed)
        launch = write_launch(job, name)
        assert read_launch(launch.text, name).row(0) == job.candidate.row(0), launch.text


def test_what_a_format_cannot_say_is_named_in_the_file() -> None:
    job = random_job(0)
    job = Job(
        candidate=Candidates.from_words(dict(job.row) | {"fp8": "rowwise", "sync_free_stage": 2}),
        model=EXPERTS, cluster=CLUSTER, workload=job.workload,
    )  # fmt: skip
    launch = write_launch(job, "megatron")
    assert launch.unsaid["fp8"] == "rowwise" and launch.unsaid["sync_free_stage"] == 2
    assert "#   sync_free_stage: 2\n" in launch.text


def test_the_gather_of_weights_is_hidden_where_the_projection_hides_it() -> None:
    row = {"tp": 1, "pp": 1, "micro_batch_size": 1, "sharding": "distributed_optimizer", "overlap_grad_reduce": True}
    for is_hidden in (True, False):
        one = Candidates.from_words(row | {"overlap_grad_reduce": is_hidden})
        said = arguments(replace(random_job(0), candidate=one, model=DENSE))
        assert [said.get(name, False) for name in ("overlap_grad_reduce", "overlap_param_gather")] == [is_hidden] * 2


def test_hsdp_is_as_many_copies_as_groups_and_fsdp_is_megatrons_where_it_was_projected() -> None:
    row = {"tp": 2, "pp": 1, "micro_batch_size": 1, "sharding": "hsdp", "shard_group": 4}
    job = replace(random_job(0), candidate=Candidates.from_words(row), model=DENSE)
    assert arguments(job)["num_distributed_optimizer_instances"] == 32 // 2 // 4
    assert not set(write_launch(job, "megatron").unsaid) & {"sharding", "shard_group"}
    job = replace(job, candidate=Candidates.from_words(row | {"sharding": "fsdp2", "shard_group": 0}))
    for stack, switch in (("megatron_core_2026", "use_torch_fsdp2"), ("megatron_fsdp_2026", "use_megatron_fsdp")):
        there = replace(job, cluster=replace(CLUSTER, stack=load_stack(stack)))
        assert arguments(there)[switch] is True
        assert "sharding" not in write_launch(there, "megatron").unsaid


def test_what_the_projection_assumes_of_the_software_is_said_and_not_set() -> None:
    row = {"tp": 1, "pp": 1, "ep": 8, "micro_batch_size": 1}
    cluster = replace(CLUSTER, stack=load_stack("megatron_core_2026"))
    job = replace(random_job(0), candidate=Candidates.from_words(row), model=EXPERTS, cluster=cluster)
    for name in ("megatron", "primus"):
        text = write_launch(job, name).text
        said = [line for line in text.splitlines() if line.startswith("#")]
        assert "moe-permute-fusion" in " ".join(said)
        assert "permute" not in "".join(line for line in text.splitlines() if not line.startswith("#"))


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="use one of primus, megatron, torchtitan, env"):
        write_launch(random_job(1), "deepspeed")


# Megatron's command line and its configuration class name a few things differently (arguments.py, 0.16).
RENAMED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
ELSEWHERE = {  # training, data-parallel and optimizer arguments that are not part of the model's configuration
    "seq_length", "micro_batch_size", "global_batch_size", "overlap_grad_reduce", "use_distributed_optimizer",
    "use_torch_fsdp2", "use_megatron_fsdp", "data_parallel_sharding_strategy", "overlap_param_gather",
    "num_distributed_optimizer_instances", "no_gradient_accumulation_fusion", "ckpt_format",
}  # fmt: skip
# Of these, those that Megatron-Core's data-parallel wrapper reads.
DATA_PARALLEL = {
    "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "num_distributed_optimizer_instances",
}  # fmt: skip


@pytest.fixture(scope="module")
def transformer_config() -> Any:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("megatron.core.transformer.transformer_config")
    # Transformer Engine needs a GPU to be installed; what a launch file names assumes a cluster that has it.
    utils = importlib.import_module("megatron.core.utils")
    utils.get_te_version = lambda: utils.PkgVersion("2.9.0")
    return module.MLATransformerConfig


@pytest.mark.slow
def test_megatron_core_accepts_every_configuration(transformer_config: Any) -> None:
    known = {f.name for f in fields(transformer_config)}
    accepted = 0
    for seed in range(NUM_CANDIDATES):
        job = random_job(seed)
        said = {RENAMED.get(k, k): v for k, v in arguments(job).items() if k not in ELSEWHERE}
        assert set(said) <= known
        said |= _sizes(job)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformer_config(**said)
        accepted += 1
    assert accepted == NUM_CANDIDATES


@pytest.mark.slow
def test_megatron_core_knows_how_data_is_parallel_and_what_a_stack_assumes(transformer_config: Any) -> None:
    wrapper = importlib.import_module("megatron.core.distributed").DistributedDataParallelConfig
    optimizer = importlib.import_module("megatron.core.optimizer.optimizer_config").OptimizerConfig
    model = {f.name for f in fields(transformer_config)}
    newest = load_stack("megatron_core_2026")
    switched_on = {"expert_overlap": 0.7, "shared_expert_overlap": True, "moment_bytes": 2.0, "tensor_overlap": 0.5}
    stacks = [newest, load_stack("primus_megatron"), replace(newest, cuda_graph="partial", **switched_on)]
    named = set()
    for seed in range(NUM_CANDIDATES):
        job = random_job(seed)
        said = {name: value for name, value in arguments(job).items() if name in DATA_PARALLEL}
        wrapper(**said)
        for stack in stacks:
            named |= set(assumed(replace(job, cluster=replace(CLUSTER, stack=stack))))
    spelled = {"grad_reduce_in_bf16": "grad_reduce_in_fp32", "fp8_param_gather": "fp8_param"}  # the flag, and its field
    known = model | {f.name for f in fields(wrapper)} | {f.name for f in fields(optimizer)}
    assert len(named) == 11
    assert {spelled.get(name, name) for name in named} <= known


def _sizes(job: Job) -> dict[str, Any]:
    model = job.model
    sizes: dict[str, Any] = {
        "num_layers": model.num_layers, "hidden_size": model.hidden, "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads, "add_bias_linear": False, "pipeline_dtype": "bf16",
        "gated_linear_unit": True, "multi_latent_attention": model.latent is not None, "normalization": "RMSNorm",
    }  # fmt: skip
    if model.num_mtp_layers:
        sizes["mtp_num_layers"] = model.num_mtp_layers
    if model.moe is not None:
        sizes |= {"num_moe_experts": model.moe.num_experts, "moe_router_topk": model.moe.top_k,
                  "moe_ffn_hidden_size": model.moe.expert_ffn_hidden}  # fmt: skip
    return sizes


@pytest.fixture(scope="module")
def job_parser() -> Any:
    """torchtitan's own configuration manager, without its package's `__init__`, which needs GPU kernels to import."""
    try:
        home = importlib.metadata.distribution("torchtitan").locate_file("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("torchtitan is not installed")
    package = types.ModuleType("torchtitan")
    package.__path__ = [str(home)]
    sys.modules["torchtitan"] = package
    yield importlib.import_module("torchtitan.config.manager").ConfigManager
    for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
        del sys.modules[name]


@pytest.mark.slow
def test_torchtitan_parses_every_job_file(job_parser: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for seed in range(0, NUM_CANDIDATES, 2):  # the parser takes a tenth of a second a file
        job = random_job(seed)
        path.write_text(write_launch(job, "torchtitan").text, encoding="utf-8")
        parsed = job_parser().parse_args([f"--job.config_file={path}"])
        assert parsed.parallelism.tensor_parallel_degree == job.row["tp"]
        assert parsed.parallelism.expert_parallel_degree == job.row["ep"]
        assert parsed.training.seq_len == job.workload.seq_length


BY_HAND = r"""
torchrun --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size=4 --num-layers-per-virtual-pipeline-stage 4 \
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --micro-batch-size 2 \
    --recompute-granularity selective --fp8-format hybrid --bf16  # a comment
"""


def test_a_script_written_by_hand_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(BY_HAND)
    row = open_launch(path).row(0)
    wanted = {
        "tp": 2, "pp": 4, "vpp": 2, "schedule": "interleaved", "sequence_parallel": True, "micro_batch_size": 2,
        "sharding": "distributed_optimizer", "overlap_grad_reduce": True, "recompute": "selective", "fp8": "delayed",
        "loss_fusion": False, "ep": 1,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train --tensor-model-parallel-size ${TP}", "cannot be read as that of megatron: invalid literal for int"),
        ("python train.py --tp 8", "is no launch file that is known: primus has 'overrides:'"),
        ("[parallelism]\ntensor_parallel_degree = 2\n", "cannot be read as that of torchtitan: 'training' is missing"),
    ],
)
def test_a_launch_file_that_says_too_little_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "launch"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        open_launch(path)
    assert str(caught.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_known_by_what_it_says(name: str, tmp_path: Path) -> None:
    job = random_job(3)
    path = tmp_path / "launch"
    path.write_text(write_launch(job, name).text)
    assert open_launch(path).row(0) == job.candidate.row(0)
