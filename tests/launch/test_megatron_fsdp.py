"""Megatron-FSDP: where Megatron starts it, which settings mean it, and that it costs what FSDP2 costs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_search.cli.project import of_file
from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import load_cluster
from primus_search.launch.decided import decided_numbers
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.megatron import candidate_words
from primus_search.learning.logged_run import SaidBeside, measured_run
from primus_search.learning.readers import read_log
from primus_search.models.model_files import load_model
from primus_search.space import Enumerator
from primus_search.space.auto import auto_values
from primus_search.values.candidates import Candidates, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import KNOB
from primus_search.values.workload import Workload
from tests.support.written_logs import LOGS

JOB: dict[str, Any] = {"model": "qwen3_30b_a3b", "hardware": "h100", "nodes": 2}
WORK = {"seq_length": 4096, "global_batch_size": 64}
FSDP = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}


def legal(sharding: str, framework: str, **axes: object) -> int:
    space = {"tp": 1, "pp": 1, "cp": 1, "etp": 1, "micro_batch_size": 1, "schedule": "1f1b", "recompute": "none",
             "cuda_graph": "none", "deepep": False, "fp8": "none", "sharding": sharding}  # fmt: skip
    made = make_space(JOB | {"workload": WORK, "framework": framework, "space": space | axes})
    enumerator = Enumerator(made)
    return len(enumerator.chunk(0, enumerator.size).candidates)


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_megatron_fsdp_takes_experts_where_torch_fsdp_does_not(framework: str) -> None:
    assert legal("megatron_fsdp", framework, ep=8) > 0
    assert legal("fsdp2", framework, ep=8) == 0
    assert legal("megatron_fsdp", framework, ep=8, pp=2) == 0


def test_torchtitan_does_not_have_it() -> None:
    assert legal("megatron_fsdp", "torchtitan", ep=8) == 0


@pytest.mark.parametrize(
    ("model", "framework", "searched"),
    [
        ("llama3_8b", "megatron", ("distributed_optimizer", "megatron_fsdp")),
        ("qwen3_30b_a3b", "megatron", ("distributed_optimizer", "megatron_fsdp")),
        ("qwen3_30b_a3b", "primus", ("distributed_optimizer",)),
        ("qwen3_30b_a3b", "torchtitan", ("fsdp2",)),
    ],
)
def test_experts_weights_are_sharded_where_the_launcher_takes_them(
    model: str, framework: str, searched: tuple[str, ...]
) -> None:
    cluster = load_cluster("h100", 2)
    values = auto_values("sharding", load_model(model), cluster, Workload(**WORK), load_framework(framework))
    assert tuple(KNOB["sharding"].word(value) for value in values) == searched


@pytest.mark.parametrize("model", ["llama3_8b", "qwen3_30b_a3b"])
def test_it_costs_what_fsdp2_costs_but_for_its_queue_and_the_hosts_time_of_experts(model: str) -> None:
    job = Job(load_model(model), load_cluster("h100", 2), Workload(**WORK))
    sharding = [int(Sharding.MEGATRON_FSDP), int(Sharding.FSDP2), int(Sharding.NONE)]
    found = Projector(job).project(Candidates.table(ep=8 if job.model.moe else 1, sharding=sharding))
    assert (found.step.total[0] > found.step.total[1]) == (job.model.moe is not None)
    assert found.step.total[0] >= found.step.total[1] and found.step.shard_comm[0] > found.step.shard_comm[2] == 0.0
    assert found.memory.collective_buffers[0] > found.memory.collective_buffers[1]
    assert 1.0 < found.memory.optimizer[0] / found.memory.optimizer[1] < 1.03  # whole rows for every rank
    assert found.memory.total[0] < found.memory.total[2]


@pytest.mark.parametrize(
    ("settings", "sharding", "group"),
    [
        (FSDP, "megatron_fsdp", 0),
        (FSDP | {"num_distributed_optimizer_instances": 2}, "hsdp", 8),
        (FSDP | {"num_distributed_optimizer_instances": 16}, "none", 0),
        (FSDP | {"num_distributed_optimizer_instances": 16, "outer_dp_sharding_strategy": "optim"}, "hsdp", 1),
        (FSDP | {"data_parallel_sharding_strategy": "optim_grads"}, "zero2", 0),
        ({"use_torch_fsdp2": True}, "fsdp2", 0),
        ({"use_distributed_optimizer": True}, "distributed_optimizer", 0),
    ],
)
def test_settings_of_a_file_mean_one_sharding(settings: dict[str, object], sharding: str, group: int) -> None:
    found = {"micro_batch_size": 1, "global_batch_size": 64} | settings
    row, _ = candidate_words(load_framework("megatron"), found, None, 16)
    assert (row["sharding"], row.get("shard_group", 0)) == (sharding, group)


@pytest.mark.parametrize(
    ("said", "is_told"),
    [("2", True), ("2 --outer-dp-sharding-strategy optim", False), ("", False)],
)
def test_an_optimizer_replicated_across_groups_is_priced(said: str, is_told: bool, tmp_path: Path) -> None:
    """Megatron's default keeps an optimizer in each group of HSDP; a setting shards it across them."""
    instances = f"--num-distributed-optimizer-instances {said}" if said else ""
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 4096 "
        "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 "
        f"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params {instances}\n"
    )
    found = read_experiment(path, 16)
    assert (found.numbers.get("shards_optimizer_across") is False) == is_told


STRATEGIES = {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor", "gradient_accumulation_fusion": False}
LOW_MOMENTS = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
TORCH = {
    "use_torch_fsdp2": True, "use_distributed_optimizer": False, "gradient_accumulation_fusion": False,
    "ckpt_format": "torch_dcp", "overlap_grad_reduce": False, "overlap_param_gather": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "held"),
    [
        (STRATEGIES | {"data_parallel_sharding_strategy": "no_shard"}, (2.0, 4.0, 12.0)),
        (STRATEGIES | {"data_parallel_sharding_strategy": "optim"}, (2.0, 4.0, 12.0 / 8)),
        (STRATEGIES | {"data_parallel_sharding_strategy": "optim_grads"}, (2.0, 4.0 / 8, 12.0 / 8)),
        (STRATEGIES | {"data_parallel_sharding_strategy": "optim_grads_params"}, (2.0 / 8, 4.0 / 8, 12.0 / 8)),
        (
            STRATEGIES | {"data_parallel_sharding_strategy": "optim_grads", "num_distributed_optimizer_instances": 2},
            (2.0, 4.0 / 4, 12.0 / 4),
        ),
        (
            STRATEGIES | {"data_parallel_sharding_strategy": "optim_grads_params"} | LOW_MOMENTS,
            (2.0 / 8, 4.0 / 8, 12.0 / 8),
        ),
        (TORCH, (2.0 / 8, 2.0 / 8, 12.0 / 8)),
        (TORCH | {"data_parallel_replicate_degree": 2}, (2.0 / 4, 2.0 / 4, 12.0 / 4)),
    ],
)
def test_a_parameter_takes_bytes_in_primus_as_its_megatron_shards_it(
    settings: dict[str, Any], held: tuple[float, ...], tmp_path: Path
) -> None:
    """FP32 gradients of Megatron-FSDP (arguments:3127 of d3528a21); torch's FSDP2 has them in the type of the weights.

    Beside moments in BF16 there are Megatron-FSDP's main weights and FusedAdam's own masters (fp8_recipe is delayed
    where a file does not say it).
    """
    named = dict.fromkeys(("work_group", "user_name", "exp_name", "workspace"), "one")
    job = {"seq_length": 4096, "max_position_embeddings": 4096, "micro_batch_size": 1, "global_batch_size": 64}
    trainer = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "llama3.1_8B.yaml"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(named | {"modules": {"pre_trainer": trainer | {"overrides": job | settings}}}))
    space, one = of_file(path, "mi300x")
    memory = memory_by_rank(space.job, one)
    found = (memory.weights, memory.gradients, memory.optimizer)
    params = space.job.model.total_params
    assert [float(part[0]) / params for part in found] == pytest.approx(held, rel=1e-3)


def test_torch_shards_experts_over_the_ranks_of_their_layer() -> None:
    """Whole experts beside tensor parallelism are on all its ranks (torch_fully_sharded_data_parallel.py)."""
    job = Job(load_model("mixtral_8x7b"), load_cluster("h100", 2), Workload(**WORK))
    memory = Projector(job).memory(Candidates.table(tp=4, etp=[1, 4], sharding=Sharding.FSDP2))
    assert memory.weights[0] / memory.weights[1] == pytest.approx(4.0, rel=0.15)


DENSE = (
    "pretrain_gpt.py --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824 --seq-length "
    "4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 512 --disable-bias-linear --swiglu "
    "--untie-embeddings-and-output-weights --vocab-size 151936 --use-distributed-optimizer "
)
IN_BUFFERS = "--bf16 --position-embedding-type rope --use-megatron-fsdp --ckpt-format fsdp_dtensor "
LLAMA2_13B = f"{DENSE}{IN_BUFFERS}--num-distributed-optimizer-instances 2 "
ONE_GROUP = f"{DENSE}{IN_BUFFERS}--data-parallel-sharding-strategy optim_grads_params "
IN_FP8 = "--fp8-format hybrid --fp8-param-gather"
GROUPED = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-query-groups 8 "
    "--group-query-attention"
)


@pytest.mark.parametrize(
    ("nodes", "more", "held"),
    [
        (128, "optim_grads_params --tensor-model-parallel-size 2 --normalization RMSNorm", 61_388_800),
        (4, "optim", 28_592_209_920),
    ],
)
def test_buffers_of_layers_are_filled_up_to_whole_rows_of_every_rank(
    nodes: int, more: str, held: int, tmp_path: Path
) -> None:
    """Bytes of weights that its classes allocate at d98e8a64 (tests.support.megatron_bytes): 9 % more than the
    parameters of a rank on 512 ranks of two groups, 0.4 % on 16."""
    path = tmp_path / "run.sh"
    start = f"torchrun --nnodes {nodes} --nproc-per-node 8 "
    path.write_text(f"{start}{LLAMA2_13B}--data-parallel-sharding-strategy {more}\n")
    space, one = of_file(path, "h100")
    assert float(memory_by_rank(space.job, one).weights[0]) == pytest.approx(held, rel=2e-4)


def test_elements_between_matrices_have_no_moments(tmp_path: Path) -> None:
    """One chunk in 287 of a layer ends in a gap, on the first of two ranks (tests.support.megatron_bytes)."""
    path = tmp_path / "run.sh"
    more = f"optim --tensor-model-parallel-size 8 {IN_FP8} --mtp-num-layers 1"
    path.write_text(f"torchrun --nnodes 4 --nproc-per-node 8 {LLAMA2_13B}--data-parallel-sharding-strategy {more}\n")
    space, one = of_file(path, "h100")
    memory = memory_by_rank(space.job, one)
    assert (memory.weights[0], memory.gradients[0], memory.optimizer[0]) == (
        2_031_247_360,
        3_670_138_880,
        11_002_019_840,
    )


@pytest.mark.parametrize(("gpus", "job", "weights", "optimizer"), [
    (8, f"{ONE_GROUP}{GROUPED} --tensor-model-parallel-size 8 --use-precision-aware-optimizer --exp-avg-dtype bf16",
     2_059_419_648, 14_410_694_656),
    (2, f"{ONE_GROUP}{IN_FP8} --num-distributed-optimizer-instances 2 --optimizer sgd",
     15_803_740_160, 113_966_039_040),
    (8, f"{DENSE}{IN_FP8} --position-embedding-type rope --tensor-model-parallel-size 4",
     7_904_337_920, 14_248_222_720),
    (8, f"{DENSE}--bf16 --optimizer muon --tensor-model-parallel-size 8 --max-position-embeddings 32768",
     3_899_740_160, 16_383_467_520),
])  # fmt: skip
def test_weights_and_optimizer_take_what_megatrons_classes_allocate(
    gpus: int, job: str, weights: int, optimizer: int, tmp_path: Path
) -> None:
    """Of d98e8a64 (tests.support.megatron_bytes): empty ends of a buffer have no masters of FusedAdam; groups of one
    rank hold FP8; FP8 weights under FP32 training have two layouts; Muon takes a table of positions, and no norm."""
    path = tmp_path / "run.sh"
    queues = 8 if "fsdp" in job else 1
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS={queues}\ntorchrun --nproc-per-node {gpus} {job}\n")
    space, one = of_file(path, "h100")
    memory = memory_by_rank(space.job, one)
    assert (float(memory.weights[0]), float(memory.optimizer[0])) == pytest.approx((weights, optimizer), rel=2e-5)


@pytest.mark.parametrize(("name", "held"), [("megatron", 2.0), ("megatron@core_0.16", 4.0), ("primus", 4.0)])
def test_gradients_are_in_the_format_of_the_release(name: str, held: float) -> None:
    """core 0.16, which Primus runs, has fp32 where core 0.20 has the type of the weights."""
    framework = load_framework(name)
    row, _ = candidate_words(framework, {"micro_batch_size": 1, "global_batch_size": 64} | FSDP, None, 16)
    row = Candidates.from_words(row).row(0)
    found = decided_numbers(framework.of_dense, row, FSDP | {"bf16": True})
    numbers = [found.get(f"{kind}_gradient_bytes", 2.0) for kind in ("sharded", "shard")]
    assert numbers == [held, held]


def test_a_log_tells_sharding_and_offloading(tmp_path: Path) -> None:
    more = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params",
            "fine_grained_activation_offloading": True, "offload_modules": "['core_attn', 'attn_proj']"}  # fmt: skip
    lines = LOGS["megatron-lm"]()
    at = next(i for i, line in enumerate(lines) if " ..... " in line or " ...." in line)
    told = [*lines[:at], *(f"  {name} {'.' * 20} {value}" for name, value in more.items()), *lines[at:]]
    path = tmp_path / "run.log"
    path.write_text("\n".join(told))
    run = measured_run(read_log(path), SaidBeside(hardware="h100", model="llama3.1_8b"), load_cluster("h100", 1).stack)
    row = run.candidates.row(0)
    assert (row["sharding"], row["offload_modules"]) == ("megatron_fsdp", "core_attn+attn_proj")
