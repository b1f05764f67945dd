"""Settings of other launchers that make another job than their file's usual one: tasks, optimizers, sizes, devices."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.cost.project import Projector
from primus_search.launch.experiment import Experiment
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.launcher_table import launchers
from primus_search.launch.read.launchers import _role
from primus_search.learning.started_experiment import start
from primus_search.space import Enumerator

TRAINER = """
model_name_or_path: meta-llama/Llama-2-7b-hf
max_seq_length: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
"""
CHAT = """
deepspeed main.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 8 --max_seq_len 512 \\
  --gradient_accumulation_steps 1 --zero_stage 3
"""
TUNER = """
pretrained_model_name_or_path = "meta-llama/Llama-2-7b-hf"
max_length = 2048
batch_size = 1
accumulative_counts = 16
model = dict(type=SupervisedFinetune)
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 512
micro_batch_size: 2
"""
FOUNDRY = """
max_seq_len: 4096
global_train_batch_size: 64
device_train_microbatch_size: 1
model: {name: hf_causal_lm, pretrained_model_name_or_path: meta-llama/Llama-2-7b-hf}
train_loader: {name: finetuning, dataset: {packing_ratio: null}}
optimizer: {name: decoupled_adamw}
"""
TORCHTUNE = """
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}
tokenizer: {max_seq_len: 4096}
batch_size: 2
optimizer: {_component_: torch.optim.AdamW}
"""
SWIFT = """
NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 --num_generations 8 \\
  --max_completion_length 1024 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --deepspeed zero3
"""
NEOX = """
{
  "pipe_parallel_size": 1, "model_parallel_size": 1, "num_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
  "seq_length": 2048, "max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "Adam"}, "hidden_dropout": 0.0, "attention_dropout": 0.0
}
"""
ACTOR = """
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct algorithm.adv_estimator=grpo \\
  data.max_prompt_length=512 data.max_response_length=1536 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
  actor_rollout_ref.actor.ppo_micro_batch_size=32 actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 trainer.nnodes=1 trainer.n_gpus_per_node=8
"""
PRIME_RL = """
[deployment]
num_train_gpus = 4
[model]
name = "Qwen/Qwen3-1.7B"
[orchestrator]
batch_size = 512
seq_len = 8192
[trainer.model]
seq_len = 16384
"""
FLAGSCALE = """
experiment: {runner: {nnodes: 1, nproc_per_node: 8}}
system: {tensor_model_parallel_size: 1, precision: {bf16: true}}
model: {num_layers: 8, hidden_size: 4096, num_attention_heads: 32, seq_length: 2048, max_position_embeddings: 2048,
  micro_batch_size: 1, global_batch_size: 64, swiglu: true, multiple_of: 256}
"""
LEVANTER = """
data: {tokenizer: meta-llama/Llama-2-7b-hf}
model: {type: llama, hidden_dim: 768, intermediate_dim: 2048, num_heads: 12, num_kv_heads: 12, num_layers: 12,
  seq_len: 1024}
trainer: {train_batch_size: 256, mp: "p=f32,c=bfloat16"}
"""
ROLL = """
pretrain: Qwen/Qwen3-8B
prompt_length: 1024
response_length: 1024
num_gpus_per_node: 8
adv_estimator: gae
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 16}
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 1}}
  device_mapping: list(range(0, 8))
critic: {device_mapping: "list(range(8, 16))"}
"""
AUTOMODEL = """
step_scheduler: {global_batch_size: 64, local_batch_size: 2}
model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1}
dataset: {seq_length: 2048}
optimizer: {_target_: torch.optim.Adam}
ci: {nproc_per_node: 4, nodes: 2}
"""
MAXTEXT = """
python3 MaxText/train.py MaxText/configs/base.yml model_name=mixtral-8x7b per_device_batch_size=4 max_target_length=1024
"""
VEOMNI = """
model: {model_path: ./Qwen3-30B-A3B-merge}
data: {data_type: conversation, max_seq_len: 4096}
train: {global_batch_size: 64, micro_batch_size: 2, accelerator: {ulysses_size: 2, ep_size: 4, dp_replicate_size: 2}}
"""
PRIMUS = """
modules:
  pre_trainer: {framework: maxtext, model: llama3_70B.yaml, overrides: {per_device_batch_size: 2}}
"""


def job(folder: Path, name: str, text: str) -> Experiment:
    (folder / name).write_text(text, encoding="utf-8")
    return read_experiment(folder / name, 8)


DPO: dict[str, tuple[str, str]] = {
    "loss": ("train.yaml", TRAINER + "loss_type: dpo_norm\n"),
    "prompts": ("train.yaml", TRAINER + "beta: 0.05\nmax_prompt_length: 512\n"),
    "model": ("train.py", TUNER.replace("SupervisedFinetune", "DPO")),
}


@pytest.mark.parametrize("name", DPO)
def test_preferences_of_a_file_are_pairs_with_a_reference(tmp_path: Path, name: str) -> None:
    file, text = DPO[name]
    plain = job(tmp_path, file, TRAINER if file == "train.yaml" else TUNER)
    read = job(tmp_path, file, text)
    assert (read.tuning["task"], read.tuning["policy"]["reference"]) == ("dpo", "resident")
    assert plain.global_batch_size and read.global_batch_size == 2 * plain.global_batch_size
    assert read.row["micro_batch_size"] == 2 * plain.row.get("micro_batch_size", 1)


@pytest.mark.parametrize(
    ("name", "text", "reference", "length"),
    [("train.sh", SWIFT, "resident", 3072), ("train.sh", SWIFT + " --beta 0.0", "none", 3072),
     ("train.yaml", TRAINER + "num_generations: 8\nmax_prompt_length: 512\n", "none", 1024),
     ("train.yaml", TRAINER + "num_generations: 8\nmax_prompt_length: 512\nbeta: 0.1\n", "resident", 1024)],
)  # fmt: skip
def test_rollouts_of_a_trainer_are_rows_of_prompt_and_completion(
    tmp_path: Path, name: str, text: str, reference: str, length: int
) -> None:
    read = job(tmp_path, name, text.replace("\n --beta", " --beta"))
    assert (read.tuning["task"], read.tuning["policy"]["reference"], read.seq_length) == ("grpo", reference, length)
    assert read.global_batch_size == 64


REFUSED: dict[str, tuple[str, str, str]] = {
    "rewards": ("train.sh", CHAT.replace("--zero_stage", "--num_padding_at_beginning 0 --zero_stage"), "reward model"),
    "reward class": ("train.py", TUNER.replace("SupervisedFinetune", "RewardModel"), "reward model"),
    "odds": ("train.py", TUNER.replace("SupervisedFinetune", "ORPO"), "loss of this kind"),
    "distillation": ("train.sh", SWIFT.replace("grpo", "gkd"), "rlhf_type: gkd: a step of this kind is not read"),
    "distillation of Megatron": (
        "train.sh",
        "megatron rlhf --rlhf_type gkd --model Qwen/Qwen2.5-0.5B --micro_batch_size 2\n",
        "gkd: a step of",
    ),
    "masked tokens": ("train.yaml", AXOLOTL + "plugins: [axolotl.integrations.diffusion.DiffusionPlugin]\n", "masked"),
    "merge": (
        "train.yaml",
        "model_name_or_path: x\nfinetuning_type: lora\nexport_dir: models/x\n",
        "nothing is trained",
    ),
    "encoder": ("train.sh", "torchrun pretrain_bert.py --num-layers 24 --micro-batch-size 4\n", "trains BERT, T5"),
    "images": ("train.sh", "torchrun train.py --num-layers 24 --micro-batch-size 4 --img-h 336\n", "images and text"),
    "TPUs": ("train.sh", "export LIBTPU_INIT_ARGS=--xla_x=1\n" + MAXTEXT, "starts TPUs"),
    "policies of torchtune": (
        "t.yaml",
        TORCHTUNE + "loss: {_component_: torchtune.dev.rl.loss.GRPOSimpleLoss}\n",
        "a step of this kind",
    ),
    "data of Megatron": (
        "train.sh",
        "torchrun tools/retro/preprocess_data.py --num-layers 2 --micro-batch-size 1\n",
        "prepares data",
    ),
    "other devices": ("t.yaml", TORCHTUNE + "device: xpu\n", "starts devices for which no hardware file is"),
    "NPUs": ("train.sh", "export HCCL_CONNECT_TIMEOUT=9\n" + CHAT, "starts Ascend NPUs"),
    "prefixes": ("train.sh", CHAT.replace("--zero", "--pre_seq_len 128 --zero"), "pre_seq_len: 128 trains a part"),
    "sizes of a program": (
        "train.sh",
        "torchrun train.py --model-provider llava_vlm --num-layers 2 --micro-batch-size 1\n",
        "its program",
    ),
    "another program of EasyLM": (
        "train.sh",
        "python3 -m EasyLM.models.llama.llama_train_ppo --mesh_dim='1,1,1' --load_llama_config_policy='7b'\n",
        "a program which is not read",
    ),
    "teacher": ("train.yaml", AUTOMODEL + "teacher_model: {pretrained_model_name_or_path: x}\n", "a teacher"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_head_loss_or_device_is_refused_by_its_setting(tmp_path: Path, name: str) -> None:
    file, text, why = REFUSED[name]
    with pytest.raises(InputError, match=why):
        job(tmp_path, file, text)


NOTED: dict[str, tuple[str, str, str]] = {
    "bits": ("train.yaml", AXOLOTL + "optimizer: adamw_torch_8bit\n", "optimizer: adamw_torch_8bit (not priced: less"),
    "lion": ("train.yaml", FOUNDRY.replace("_adamw", "_lionw"), "optimizer.name: decoupled_lionw (not priced: less"),
    "pages": ("t.yaml", TORCHTUNE.replace("torch.optim.", "bnb.optim.Paged"), "optimizer._component_: bnb.optim.Paged"),
    "plugin": (
        "train.yaml",
        AXOLOTL + "plugins: [axolotl.integrations.liger.LigerPlugin]\n",
        "plugins: ['axolotl.inte",
    ),
    "paged": ("train.yaml", TRAINER + "optim: paged_adamw_8bit\n", "optim: paged_adamw_8bit (not priced: less or more"),
    "sm3": ("train.yml", NEOX.replace("Adam", "sm3"), "optimizer.type: sm3 (not priced: less or more memory"),
    "muon": (
        "train.yaml",
        AUTOMODEL.replace("torch.optim.Adam", "x.Dion"),
        "optimizer._target_: x.Dion (not priced: less",
    ),
    "base": (
        "t.yaml",
        TRAINER.replace("Llama-2-7b-hf", "Llama-2-7b-hf-GPTQ"),
        "meta-llama/Llama-2-7b-hf-GPTQ: weights in",
    ),
    "words without a value": ("train.sh", CHAT.rstrip() + " --hosts a $HEAD b\n", "hosts: ['a', '$HEAD', 'b']"),
    "critic": ("train.yaml", ROLL, "critic.device_mapping: list(range(8, 16)) (not priced: less memory, faster"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_is_not_priced_is_said_whatever_pattern_without_effect_it_fits(tmp_path: Path, name: str) -> None:
    file, text, note = NOTED[name]
    assert any(one.startswith(note) for one in job(tmp_path, file, text).not_modelled)


@pytest.mark.parametrize("name", launchers())
def test_a_setting_with_an_effect_is_noted_whatever_wider_pattern_it_fits(name: str) -> None:
    """A row of `effects` that no key can reach is a setting that nobody is told of."""
    launcher = launchers()[name]
    read = {*launcher.translated, *launcher.renamed, *launcher.refused}
    always = (row.replace("*", "x") for row in launcher.effects if " where " not in row)
    assert not [key for key in always if key not in read and _role(launcher, key, set()) != "noted"]


@pytest.mark.parametrize(
    ("text", "key"),
    [(AXOLOTL + "optimizer: adamw_torch_fused\n", "optimizer"), (FOUNDRY, "optimizer"), (TORCHTUNE, "optimizer"),
     (NEOX, "optimizer"), (AUTOMODEL, "optimizer"), (TRAINER + "optim: adamw_torch\n", "optim"),
     (NEOX, "hidden_dropout"), (NEOX, "attention_dropout")],
)  # fmt: skip
def test_what_is_priced_as_it_stands_is_not_said(tmp_path: Path, text: str, key: str) -> None:
    assert not [one for one in job(tmp_path, "train.yml", text).not_modelled if one.startswith(key)]


SIZES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "micro-batch of all ranks": ("train.sh", ACTOR, {"micro_batch_size": 8, "cp": 2, "batch": 256}),
    "rollouts in rows": ("train.toml", PRIME_RL, {"batch": 256, "seq_length": 16384}),
    "rollouts as rows": ("train.toml", PRIME_RL.replace("seq_len = 8192", ""), {"batch": 512, "seq_length": 16384}),
    "weights in FP32": ("train.yaml", LEVANTER, {"state_format": "fp32_all", "batch": 256}),
    "weights in FP32 by default": ("train.sh", MAXTEXT, {"state_format": "fp32_all", "batch": 32}),
    "weights in BF16": (
        "train.sh",
        MAXTEXT.replace("per_dev", "weight_dtype=bfloat16 per_dev"),
        {"state_format": "stack"},
    ),
    "degrees of VeOmni": (
        "t.yaml",
        VEOMNI,
        {"seq_length": 4096, "cp": 2, "ep": 4, "shard_group": 4, "recompute": "full"},
    ),
    "weights of Primus": ("train.yaml", PRIMUS, {"state_format": "stack", "batch": 16}),
    "rows of packs": (
        "train.yaml",
        AUTOMODEL.replace("dataset: {seq_length: 2048}", "packed_sequence: {pack_size: 4096}"),
        {"seq_length": 4096},
    ),
    "rollouts of fewer prompts than a mini-batch": (
        "train.sh",
        ACTOR.replace(
            "ppo_mini_batch_size", "x=1 data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size"
        ),
        {"batch": 64},
    ),
    "sequences of ms-swift": (
        "args.json",
        """{"model": "Qwen/Qwen2.5-7B", "tuner_type": "full", "lora_rank": 8, "target_modules": ["all-linear"],
        "per_device_train_batch_size": 2, "max_length": 4096, "gradient_accumulation_steps": 2, "fsdp": "full_shard",
        "sequence_parallel_size": 2, "gradient_checkpointing": 1, "num_processes": 8}""",
        {"cp": 2, "batch": 16, "recompute": "full", "sharding": "fsdp2"},
    ),
    "steps of a rollout": (
        "train.sh",
        "python train.py --hf-checkpoint Qwen/Qwen3-4B --tensor-model-parallel-size 2 --rollout-batch-size 128 "
        "--n-samples-per-prompt 8 --num-steps-per-rollout 4 --rollout-max-response-len 4096 --micro-batch-size 1\n",
        {"batch": 256},
    ),
    "micro-batches by tokens": (
        "train.sh",
        "python -m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Llama-2-7b-hf --train_batch_size 128 "
        "--micro_train_batch_size 4 --prompt_max_len 1024 --generate_max_len 1024 --actor_num_gpus_per_node 8 "
        "--use_dynamic_batch --train_max_tokens_per_gpu 16384\n",
        {"micro_batch_size": 8},
    ),
    "ZeRO": ("train.sh", CHAT, {"sharding": "fsdp2", "seq_length": 512, "batch": 64}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_other_keys_give(tmp_path: Path, name: str) -> None:
    file, text, sizes = SIZES[name]
    read = job(tmp_path, file, text)
    found = {**read.row, "seq_length": read.seq_length, "batch": read.global_batch_size}
    assert {key: found[key] for key in sizes} == sizes


@pytest.mark.parametrize(
    ("tuner", "task", "trained"),
    [
        ("lora --target_modules linear_qkv linear_fc1 linear_fc2", "lora", 3 * 10**8),
        ("lora --target_modules linear_qkv", "lora", 10**6),
        ("lora", "lora", 3 * 10**8),
        ("full", "pretrain", 10**10),
    ],
)
def test_each_expert_of_ms_swift_has_adapters_of_its_own(tmp_path: Path, tuner: str, task: str, trained: int) -> None:
    text = "megatron sft --model Qwen/Qwen3-30B-A3B --max_length 2048 --lora_rank 8 --tuner_type " + tuner
    (tmp_path / "train.sh").write_text("NPROC_PER_NODE=8 " + text + "\n", encoding="utf-8")
    space = space_of(start(tmp_path / "train.sh", "h100", 0), [], None, "")
    assert space.workload.task == task
    assert trained < space.model.trained_params < 10 * trained


def test_a_document_that_a_document_names_is_read_where_it_stands_beside(tmp_path: Path) -> None:
    config = '{"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 4}, "train_batch_size": "auto"}'
    (tmp_path / "ds_tp.json").write_text(config, encoding="utf-8")
    read = job(tmp_path, "train.yaml", "finetuning_type: full\ndeepspeed: conf/ds_tp.json\n" + TRAINER)
    assert (read.row["tp"], read.row["sharding"], read.global_batch_size) == (4, "zero2", 16)


@pytest.mark.parametrize(("model", "trained"), [("openai/gpt-oss-20b", 4 * 10**6), ("Qwen/Qwen3-30B-A3B", 3 * 10**8)])
def test_experts_that_are_one_tensor_have_no_adapters(tmp_path: Path, model: str, trained: int) -> None:
    text = TRAINER.replace("meta-llama/Llama-2-7b-hf", model) + "finetuning_type: lora\nlora_target: all\n"
    (tmp_path / "train.yaml").write_text(text, encoding="utf-8")
    adapted = space_of(start(tmp_path / "train.yaml", "h100", 0), [], None, "").model.trained_params
    assert trained / 2 < adapted < 2 * trained


def test_devices_of_a_file_are_those_it_names(tmp_path: Path) -> None:
    world = job(tmp_path, "train.yaml", AUTOMODEL).world
    assert (world.gpus, world.per_node) == (8, 4)
    assert job(tmp_path, "train.yaml", AUTOMODEL.replace(", nodes: 2", "")).world.gpus == 4
    assert job(tmp_path, "train.yaml", AUTOMODEL.replace("nodes: 2", "nodes: TO_BE_FILLED")).world.gpus == 0


@pytest.mark.parametrize(("more", "inner"), [("", 11008), (", hidden_dim_multiplier: 1.3", 14336)])
def test_a_gated_feed_forward_is_rounded_up_to_its_multiple(tmp_path: Path, more: str, inner: int) -> None:
    read = job(tmp_path, "train.yaml", FLAGSCALE.replace("multiple_of: 256", f"multiple_of: 256{more}"))
    assert read.model is not None and read.model.ffn_hidden == inner


def test_packed_samples_fill_rows_and_others_are_padded(tmp_path: Path) -> None:
    packed = job(tmp_path, "train.yaml", FOUNDRY.replace("ratio: null", "ratio: auto"))
    assert packed.workload != job(tmp_path, "train.yaml", FOUNDRY).workload


@pytest.mark.parametrize(("text", "stores"), [
    (f"{TRAINER}finetuning_type: full\nflash_attn: disabled\n", True),
    (f"{TRAINER}finetuning_type: full\nflash_attn: fa2\n", False),
    (f"{TRAINER}finetuning_type: full\nattn_implementation: eager\n", True),
    (f"{AXOLOTL}datasets: []\neager_attention: true\n", True),
    (f"{AXOLOTL}datasets: []\nattn_implementation: sdpa\n", False),
])  # fmt: skip
def test_eager_attention_stores_its_scores(text: str, stores: bool, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    begun = start(path, "h100", 1)
    kernels = space_of(begun, [], None, "").cluster.stack.kernels
    assert (kernels.attention_kernel == "unfused") is stores
    assert not [note for note in begun.experiment.not_modelled if "attn" in note or "attention" in note]


@pytest.mark.parametrize(("is_on", "length", "runs"), [
    (False, 2048, True), (False, 8192, False), (True, 4096, True), (True, 16384, True), (True, 32768, False),
])  # fmt: skip
def test_fused_kernels_of_liger_let_longer_sequences_run(is_on: bool, length: int, runs: bool, tmp_path: Path) -> None:
    """README of linkedin/Liger-Kernel: 8 sequences of Llama 3 8B a device run out at 4K on 8 A100; with it 16K runs."""
    path = tmp_path / "job.yaml"
    path.write_text(
        f"model_name_or_path: meta-llama/Meta-Llama-3-8B\nfinetuning_type: full\npure_bf16: true\nfsdp: full_shard\n"
        f"cutoff_len: {length}\nper_device_train_batch_size: 8\nenable_liger_kernel: {str(is_on).lower()}\n"
    )
    begun = start(path, "a100_80", 1)
    space = space_of(begun, [], None, "")
    started = space.job_on(space.clusters[0])
    memory = Projector(started).project(begun.experiment.candidate).memory
    assert (float(memory.total[0]) < 1.05 * started.cluster.accelerator.hbm_bytes) is runs


AXOLOTL_LIGER = {
    "liger_fused_linear_cross_entropy": ("loss_chunks", 8), "liger_rms_norm": ("has_fused_norm", True),
    "liger_rope": ("has_fused_rope", True), "liger_glu_activation": ("has_fused_activation", True),
}  # fmt: skip


@pytest.mark.parametrize("key", AXOLOTL_LIGER)
def test_each_kernel_of_liger_has_its_own_switch_in_axolotl(key: str, tmp_path: Path) -> None:
    read = job(tmp_path, "job.yaml", f"{AXOLOTL}datasets: []\n{key}: true\n")
    number, value = AXOLOTL_LIGER[key]
    assert read.numbers == {number: value} and not [note for note in read.not_modelled if "liger" in note]


BY_SIZE = (
    'case "{subject}" in\n  8B) {one} ;;\n  70B) {other} ;;\n  *) echo "Usage: $0 SIZE"; exit 1 ;;\nesac\n{command}'
)
COMMANDS = {
    "ms-swift": ("M=Qwen/Qwen3-8B", "M=Qwen/Qwen3-32B", "megatron sft --model $M --max_length 4096 --dataset d"),
    "Trainer": (
        "M=Qwen/Qwen3-8B",
        "M=Qwen/Qwen3-32B",
        "torchrun --nproc_per_node 8 sft.py --model_name_or_path $M --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 2 --max_seq_length 4096",
    ),
    "recipes": (
        "R=llama3_8b_pretrain_config",
        "R=llama3_70b_pretrain_config",
        'srun --nodes 1 bash -c "python scripts/training/run_recipe.py --recipe $R --mode pretrain"',
    ),
}


@pytest.mark.parametrize("subject", ["$1", "$SIZE", "${1:?Usage: sbatch $0 SIZE}"])
@pytest.mark.parametrize("launcher", COMMANDS)
def test_what_a_script_is_started_with_is_asked_for_where_it_chooses_the_model(
    launcher: str, subject: str, tmp_path: Path
) -> None:
    one, other, command = COMMANDS[launcher]
    path = tmp_path / "job.sh"
    path.write_text(BY_SIZE.format(subject=subject, one=one, other=other, command=command))
    with pytest.raises(InputError, match=r"depends on (?:\$1: .*--args '<1>'|SIZE)"):
        read_experiment(path, 8)
    if "1" in subject:
        sizes = [read_experiment(path, 8, arguments=[size]).model for size in ("8B", "70B")]
        assert None not in sizes and len({one.num_layers for one in sizes if one}) == 2


def test_a_branch_that_changes_no_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    command = COMMANDS["Trainer"][2].replace("$M", "Qwen/Qwen3-8B")
    path.write_text(f'X=\nif [ "$KEEP" = yes ]; then X="--gradient_checkpointing false"; fi\n{command} $X')
    notes = read_experiment(path, 8).assumed
    assert "KEEP has no value: read as if it were empty (changes gradient_checkpointing)" in notes


@pytest.mark.parametrize("program", [
    "deepspeed --num_gpus 4 src/train_bash.py", "torchrun --nproc_per_node 4 src/train.py",
    "torchrun --nproc_per_node 4 -m llmtuner.cli", "accelerate launch --num_processes 4 src/train.py",
])  # fmt: skip
def test_llama_factory_is_read_by_its_own_names_whatever_starts_it(program: str, tmp_path: Path) -> None:
    command = f"{program} --do_train --model_name_or_path meta-llama/Llama-2-7b-hf --finetuning_type lora --stage "
    sizes = " --per_device_train_batch_size 2 --lora_target q_proj,v_proj"
    read = job(tmp_path, "job.sh", f"{command}sft{sizes}")
    assert (read.program, read.world.gpus, read.seq_length) == ("LLaMA-Factory", 4, 2048)
    assert read.tuning["task"] == "lora" and read.row["recompute"] == "full"
    with pytest.raises(InputError, match="stage: cls: a step of this kind is not read"):
        job(tmp_path, "job.sh", f"{command}cls{sizes}")


@pytest.mark.parametrize(("degrees", "gpus", "shards"), [
    ({"dp_shard_size": 4, "dp_replicate_size": 2, "tensor_parallel_size": 2}, 16, 4),
    ({"dp_shard_size": 4, "context_parallel_size": 2, "dp_replicate_size": 2}, 16, 8), ({"dp_shard_size": 4}, 4, 0),
])  # fmt: skip
def test_degrees_of_axolotl_that_name_every_rank_are_its_gpus(
    degrees: dict[str, int], gpus: int, shards: int, tmp_path: Path
) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in degrees.items())
    read = job(tmp_path, "job.yaml", f"{AXOLOTL}datasets: []\nfsdp_version: 2\n{text}")
    assert (read.world.gpus, read.row.get("shard_group", 0)) == (gpus, shards)


@pytest.mark.parametrize(("option", "layers"), [("1", 0), ("2", 16), ("4", 8)])
def test_every_nth_layer_of_torchtitan_is_recomputed(option: str, layers: int, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        f'[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{option}"\n'
    )
    begun = start(path, "h100", 1)
    row = begun.experiment.row
    assert (row["recompute"], row.get("recompute_num_layers", 0)) == ("full", layers)
    assert len(Enumerator(space_of(begun, [], None, "")).chunk(0, 1).candidates) == 1


@pytest.mark.parametrize(("axes", "gpus"), [
    ("dcn_fsdp_parallelism=128 ici_fsdp_parallelism=8", 1024), ("ici_fsdp_parallelism=8", 0),
    ("dcn_data_parallelism=4 ici_fsdp_parallelism=8", 32),
])  # fmt: skip
def test_axes_of_maxtext_over_slices_are_its_gpus(axes: str, gpus: int, tmp_path: Path) -> None:
    sizes = "model_name=llama3.1-8b per_device_batch_size=1 max_target_length=8192"
    read = job(tmp_path, "job.sh", f"python3 -m MaxText.train MaxText/configs/base.yml hardware=gpu {sizes} {axes}")
    assert read.world.gpus == gpus and read.global_batch_size == (gpus or 8)


@pytest.mark.parametrize(("flags", "task", "reference"), [
    ("", "grpo", "none"), ("--colocate_actor_ref", "grpo", "resident"), ("--colocate_all_models", "ppo", "resident"),
    ("--colocate_critic_reward --colocate_actor_ref", "grpo", "resident"), ("--train.colocate_all", "ppo", "resident"),
])  # fmt: skip
def test_models_of_openrlhf_on_devices_of_their_own_are_not_on_the_policys(
    flags: str, task: str, reference: str, tmp_path: Path
) -> None:
    sizes = "--train_batch_size 128 --micro_train_batch_size 4 --prompt_max_len 1024 --generate_max_len 1024"
    command = f"python -m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Llama-2-7b-hf {sizes} --init_kl_coef 0.01"
    read = job(tmp_path, "job.sh", f"{command} --actor_num_gpus_per_node 8 {flags}\n")
    assert (read.tuning["task"], read.tuning["policy"]["reference"]) == (task, reference)


ENGINES = {
    "megatron": (
        "engine=megatron engine.tensor_model_parallel_size=4 data.max_token_len_per_gpu=4096 "
        "+engine.override_transformer_config.recompute_granularity=full "
        "+engine.override_transformer_config.recompute_method=uniform "
        "+engine.override_transformer_config.recompute_num_layers=1",
        {"tp": 4, "micro_batch_size": 2, "recompute": "full", "sharding": "distributed_optimizer"},
    ),
    "fsdp": (
        "engine=fsdp engine.ulysses_sequence_parallel_size=2 data.use_dynamic_bsz=false "
        "data.micro_batch_size_per_gpu=8 model.enable_gradient_checkpointing=false",
        {"cp": 2, "micro_batch_size": 8, "recompute": "none", "sharding": "fsdp2"},
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_fine_tuning_of_verl_is_read_by_its_engine(engine: str, tmp_path: Path) -> None:
    flags, wanted = ENGINES[engine]
    command = "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B"
    read = job(tmp_path, "job.sh", f"{command} data.max_length=2048 data.train_batch_size=64 {flags}\n")
    assert {key: read.row[key] for key in wanted} == wanted
    assert (read.world.gpus, read.seq_length, read.global_batch_size) == (8, 2048, 64)
    with pytest.raises(InputError, match="engine: veomni: an engine of this name is not read"):
        job(tmp_path, "job.sh", f"{command} engine=veomni\n")


def test_programs_of_nemo_rl_without_a_configuration_have_their_own(tmp_path: Path) -> None:
    own = tmp_path / "examples" / "configs" / "dpo.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "policy: {model_name: meta-llama/Llama-3.2-1B, train_global_batch_size: 128, max_total_sequence_length:"
        " 1024, train_micro_batch_size: 2, dtensor_cfg: {enabled: true}}\ncluster: {gpus_per_node: 8, num_nodes: 1}\n"
        "dpo: {max_num_steps: 3}\n"
    )
    command = 'uv run examples/run_dpo.py policy.model_name=Qwen/Qwen3-0.6B cluster.gpus_per_node=2 "$@"\n'
    read = job(tmp_path, "job.sh", command)
    assert read.model is not None and read.model.name == "qwen3_0.6b"
    assert (read.world.gpus, read.seq_length, read.row["micro_batch_size"]) == (2, 1024, 4)


def _suite(tmp_path: Path) -> Path:
    own = "policy: {{model_name: Qwen/Qwen3-0.6B, train_global_batch_size: 128, max_total_sequence_length: 1024,"
    own += " train_micro_batch_size: 2, {}_cfg: {{enabled: true}}}}\ncluster: {{gpus_per_node: 8, num_nodes: 1}}\n"
    configs = tmp_path / "examples" / "configs"
    (configs / "recipes" / "llm" / "performance").mkdir(parents=True)
    (configs / "recipes" / "llm" / "performance" / "grpo-own.v2.yaml").write_text(
        f"{own.format('dtensor')}grpo: {{num_generations_per_prompt: 4}}"
    )
    (configs / "sft.yaml").write_text(f"{own.format('dtensor')}sft: {{max_num_steps: 3}}\n")
    (configs / "grpo_megatron.yaml").write_text(f"{own.format('megatron')}grpo: {{num_generations_per_prompt: 4}}\n")
    suites = tmp_path / "tests" / "test_suites" / "llm" / "performance"
    suites.mkdir(parents=True)
    return suites


def test_a_test_of_nemo_rl_has_the_document_of_its_name(tmp_path: Path) -> None:
    command = "source $SCRIPT_DIR/common.env\nNUM_NODES=1\nuv run examples/run_grpo.py --config $CONFIG_PATH"
    read = job(_suite(tmp_path), "grpo-own.v2.sh", f"{command} cluster.gpus_per_node=4 $@\n")
    assert read.model is not None and read.model.name == "qwen3_0.6b"
    assert (read.world.gpus, read.seq_length, "policy" in read.tuning) == (4, 1024, True)


def test_trainings_of_two_kinds_of_policies_are_several(tmp_path: Path) -> None:
    _suite(tmp_path)
    sft, grpo = "uv run examples/run_sft.py", "uv run run_grpo.py --config examples/configs/grpo_megatron.yaml"
    for runs in ((sft, grpo), (grpo, sft)):
        with pytest.raises(InputError, match="starts several trainings"):
            job(tmp_path, "all.sh", "\n".join(runs) + "\n")
    assert "policy" in job(tmp_path, "one.sh", f"{grpo}\n").tuning


LOSSES = {
    "linear_ce.FusedLinear": (True, 8.0),
    "te_parallel_ce.TEParallel": (True, 1.0),
    "masked_ce.Masked": (False, 1.0),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_of_automodel_is_that_which_it_names(loss: str, tmp_path: Path) -> None:
    read = job(
        tmp_path,
        "job.yaml",
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler: {global_batch_size: 64, local_batch_size: 1}\n"
        "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained,"
        " pretrained_model_name_or_path: Qwen/Qwen3-0.6B}\ndistributed: {strategy: fsdp2}\n"
        f"loss_fn: {{_target_: nemo_automodel.components.loss.{loss}CrossEntropy}}\ndataset: {{seq_length: 2048}}\n",
    )
    assert (read.row["loss_fusion"], read.numbers.get("loss_chunks", 1.0)) == LOSSES[loss]


def test_post_training_of_neox_is_read_by_its_kind(tmp_path: Path) -> None:
    def read(kind: str) -> Experiment:
        return job(tmp_path, "job.yml", NEOX.replace('"hidden_dropout"', f'"train_impl": "{kind}", "hidden_dropout"'))

    assert read("dpo").tuning["task"] == "dpo" and read("dpo").row["micro_batch_size"] == 8
    assert "task" not in read("normal").tuning and read("normal").row["micro_batch_size"] == 4
    with pytest.raises(InputError, match="train_impl: kto: a step of this kind is not read"):
        read("kto")


def test_a_precision_that_is_not_priced_is_named_by_llm_foundry(tmp_path: Path) -> None:
    assert not [
        note for note in job(tmp_path, "a.yaml", f"{FOUNDRY}precision: amp_bf16\n").not_modelled if "prec" in note
    ]
    assert [note for note in job(tmp_path, "a.yaml", f"{FOUNDRY}precision: fp32\n").not_modelled if "FP32" in note]


def test_fine_tuning_of_nemo_aligner_is_read_with_a_model(tmp_path: Path) -> None:
    path = tmp_path / "sft.sh"
    path.write_text(
        "torchrun --nproc_per_node=8 $GPFS/examples/nlp/gpt/train_gpt_sft.py --config-name=gpt_sft trainer.num_nodes=1 "
        "trainer.devices=8 model.data.train_ds.max_seq_length=2048 model.data.train_ds.micro_batch_size=2 "
        "model.data.train_ds.global_batch_size=64 ++model.tensor_model_parallel_size=2\n"
    )
    read = start(path, "h100", 0, model="llama3_8b").experiment
    assert (read.row["tp"], read.row["micro_batch_size"], read.global_batch_size, read.seq_length) == (2, 2, 64, 2048)


def test_a_configuration_below_a_folder_of_no_value_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "configs"
    folder.mkdir(parents=True)
    (folder / "train.yaml").write_text(TRAINER)
    read = job(tmp_path, "job.sh", "torchrun --nproc_per_node 8 sft.py --config $ROOT/examples/configs/train.yaml\n")
    assert (read.seq_length, read.row["micro_batch_size"]) == (2048, 2)


def test_options_that_a_script_may_be_started_with_are_left_out_without_them(tmp_path: Path) -> None:
    options = (
        'M=Qwen/Qwen3-8B\nwhile [[ "$1" != "" ]]; do case $1 in -m) shift; M=$1 ;; *) exit 1 ;; esac; shift; done\n'
    )
    path = tmp_path / "job.sh"
    path.write_text(options + COMMANDS["Trainer"][2])
    layers = [
        one.num_layers
        for given in ((), ("-m", "Qwen/Qwen3-32B"))
        if (one := read_experiment(path, 8, None, given).model)
    ]
    assert layers == [36, 64]


@pytest.mark.parametrize(("stage", "sharding"), [(0, "none"), (1, "distributed_optimizer"), (3, "fsdp2")])
def test_the_stage_that_a_document_has_wins_over_what_its_name_says(stage: int, sharding: str, tmp_path: Path) -> None:
    (tmp_path / "zero2.json").write_text(f'{{"zero_optimization": {{"stage": {stage}}}}}')
    assert (
        job(tmp_path, "train.yaml", "finetuning_type: full\ndeepspeed: zero2.json\n" + TRAINER).row["sharding"]
        == sharding
    )


def test_a_micro_batch_that_does_not_divide_the_batch_of_a_replica_is_said(tmp_path: Path) -> None:
    text = "recipe: TrainFinetuneRecipe\nstep_scheduler: {global_batch_size: 64, local_batch_size: 8}\n"
    text += "model: {pretrained_model_name_or_path: meta-llama/Llama-3.2-1B}\ndistributed: {strategy: fsdp2}\n"
    (tmp_path / "a.yaml").write_text(text)
    found = [read_experiment(tmp_path / "a.yaml", gpus) for gpus in (8, 64)]
    assert [one.row["micro_batch_size"] for one in found] == [8, 1]
    said = "micro_batch_size = 1: 8 do not divide a replica's share of the batch"
    assert [said in one.assumed for one in found] == [False, True]


def test_a_pipeline_that_is_emptied_several_times_a_step_is_said(tmp_path: Path) -> None:
    """Under pipeline stages Automodel's local batch is what fills the pipeline once, elsewhere the micro-batch."""
    stages = "distributed: {strategy: fsdp2, pp_size: 2, pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 1}}\n"
    for extra, size, is_said in ((stages, 1, True), ("distributed: {strategy: fsdp2}\n", 4, False)):
        file = tmp_path / "train.yaml"
        file.write_text(EMPTIED + extra)
        found = read_experiment(file, 8)
        assert found.row["micro_batch_size"] == size
        assert any("local_batch_size: 4 (not priced: slower" in note for note in found.not_modelled) is is_said


@pytest.mark.parametrize("section", ["  pipeline: {%s}", "autopipeline: {%s}"])  # since 2026, before
def test_stages_of_automodel_are_those_of_either_section(section: str, tmp_path: Path) -> None:
    stages = section % "pp_schedule: interleaved1f1b, pp_microbatch_size: 1, layers_per_stage: 2"
    (tmp_path / "train.yaml").write_text(EMPTIED + f"distributed:\n  strategy: fsdp2\n  pp_size: 4\n{stages}\n")
    row = read_experiment(tmp_path / "train.yaml", 8).row
    assert (row["pp"], row["vpp"], row["schedule"], row["micro_batch_size"]) == (4, 4, "interleaved", 1)


@pytest.mark.parametrize(("processes", "is_said"), [("", True), ("NPROC_PER_NODE=4 ", False)])
def test_layers_over_several_devices_are_those_of_one_process(processes: str, is_said: bool, tmp_path: Path) -> None:
    """ms-swift lays a model over the devices of a process that it starts alone."""
    command = "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --max_length 2048"
    (tmp_path / "run.sh").write_text(f"{processes}CUDA_VISIBLE_DEVICES=0,1,2,3 {command}")
    said = [one for one in read_experiment(tmp_path / "run.sh").assumed if "device_map" in one]
    assert bool(said) is is_said


@pytest.mark.parametrize(
    ("degrees", "wanted"),
    [("d8p1t1", ("any", 8, 1, 1)), ("d2p2t2", ("megatron", 8, 2, 2)), ("megatron:d4", ("megatron", 4, 1, 1)),
     ("fsdp:d4t2", ("any", 8, 2, 1))],
)  # fmt: skip
def test_fine_tuning_of_areal_before_2026_is_read_by_its_allocation(
    degrees: str, wanted: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "sft.yaml").write_text(AREAL_SFT.replace("DEGREES", degrees))
    found = read_experiment(tmp_path / "sft.yaml")
    assert (found.framework.name, found.world.gpus, found.row["tp"], found.row["pp"]) == wanted
    assert (found.global_batch_size, found.seq_length, found.tuning) == (128, 4096, {})


AREAL_SFT = """
allocation_mode: DEGREES
model: {path: Qwen/Qwen3-1.7B, gradient_checkpointing: false, mb_spec: {max_tokens_per_mb: 4096}}
train_dataset: {batch_size: 128, path: openai/gsm8k, type: sft}
saver: {freq_epochs: 1}
"""
EMPTIED = """
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
packed_sequence: {packed_sequence_size: 4096}
dataset: {_target_: nemo_automodel.components.datasets.llm.hellaswag.HellaSwag}
"""
