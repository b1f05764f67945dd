"""Jobs of other launchers read through their tables: a small file of each, and what the job is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.base.errors import InputError
from primus_search.base.guards.values import whole_number
from primus_search.files.framework_files import load_framework
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.launcher_formulas import NUMBER, names_in
from primus_search.launch.read.launcher_table import launchers
from primus_search.launch.read.primus_experiments import BACK_ENDS
from primus_search.learning.started_experiment import start
from primus_search.models.preset_names import model_named
from primus_search.models.presets import load_preset
from primus_search.space.context import FACTS
from primus_search.values.candidates import DEFAULTS
from primus_search.values.machine.framework import ANY
from primus_search.values.machine.stack import GROUP_OF
from primus_search.values.tasks import Policy
from tests.support.daily import today_or_all
from tests.support.launched import assert_read

SWIFT = """
NPROC_PER_NODE=4 NNODES=2 \\
megatron sft \\
    --model Qwen/Qwen2.5-32B-Instruct \\
    --dataset one.jsonl two.jsonl --save_safetensors true --packing true \\
    --tensor_model_parallel_size 4 --sequence_parallel true --pipeline_model_parallel_size 2 \\
    --micro_batch_size 1 --global_batch_size 64 --max_length 32768 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --attention_backend flash
"""
VERL = """
prompt=1024
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \\
  actor_rollout_ref.model.path=$HOME/models/Qwen3-30B-A3B actor_rollout_ref.actor.strategy=megatron \\
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
  +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
  +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \\
  +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \\
  data.max_prompt_length=$prompt data.max_response_length=$((1024 * 3)) \\
  actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
  trainer.nnodes=4 trainer.n_gpus_per_node=8 $@
"""
VERL_FSDP = """
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  data.max_prompt_length=512 \\
  data.max_response_length=1536 actor_rollout_ref.actor.use_dynamic_bsz=True \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9000 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.actor.fsdp_config.param_offload=False \\
  actor_rollout_ref.model.enable_gradient_checkpointing=True trainer.nnodes=1 trainer.n_gpus_per_node=8
"""
SLIME = """
MODEL_ARGS=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope
  --disable-bias-linear --vocab-size 128256
  --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0)
PERF_ARGS=(--tensor-model-parallel-size 2 --sequence-parallel --use-dynamic-batch-size --max-tokens-per-gpu 9216)
ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \\
  --colocate ${MODEL_ARGS[@]} ${PERF_ARGS[@]} --hf-checkpoint /root/Llama --load $NOWHERE/x --rollout-batch-size 32 \\
  --n-samples-per-prompt 8 --rollout-max-response-len 4096 --global-batch-size 256 ${EVAL_ARGS[@]}
"""
NEMO_RL = """
defaults: base.yaml
policy:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  train_global_batch_size: 512
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  megatron_cfg: {enabled: true, pipeline_model_parallel_size: 2, activation_checkpointing: false}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""
NEMO_RL_BASE = """
policy:
  megatron_cfg: {enabled: false, recompute_granularity: full, tensor_model_parallel_size: 4, sequence_parallel: true,
    peft: {enabled: false, dim: 8}, optimizer: {use_distributed_optimizer: true, lr: 1.0e-6}}
  dtensor_cfg: {enabled: false}
"""
AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 128, local_batch_size: 4}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 1, cp_size: 1, ep_size: 8, activation_checkpointing: true}
model:
  config: {pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B}
  backend: {dispatcher: deepep, experts: gmm}
dataset: {seq_len: 4096}
"""
MAXTEXT = """
base_config: base.yml
model_name: llama3.1-70b
hardware: gpu
remat_policy: full
per_device_batch_size: 4
max_target_length: 8192
ici_fsdp_parallelism: 8
dcn_data_parallelism: 2
quantization: fp8
"""
NEOX = """
{
  "pipe-parallel-size": 2, "model-parallel-size": 4,
  "num_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "seq_length": 2048, "max_position_embeddings": 2048,
  "pos_emb": "rotary", "rotary_pct": 1, "no_weight_tying": true, "norm": "rmsnorm", "activation": "swiglu",
  "intermediate_size": 40960, "mlp_multiple_of": 256, "use_bias_in_attn_linear": false, "use_bias_in_mlp": false,
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000}, "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8, "checkpoint_activations": true, "hidden_dropout": 0, "attention_dropout": 0,
}
"""
NANOTRON = """
model:
  model_config: {hidden_size: 4096, intermediate_size: 14336, num_attention_heads: 32, num_hidden_layers: 32,
    num_key_value_heads: 8,
    vocab_size: 128256, max_position_embeddings: 8192, is_llama_config: true, rope_interleaved: false}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}
parallelism: {dp: 8, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}
tokens: {micro_batch_size: 1, sequence_length: 4096, batch_accumulation_per_replica: 4}
"""
FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
use_unsloth_gc: true
"""
FACTORY_MEGATRON = (
    FACTORY.replace("use_unsloth_gc: true\n", "") + "tensor_model_parallel_size: 2\nsequence_parallel: true\n"
)
TRAINER = """
accelerate launch --config_file fsdp.yaml --num_machines 2 --num_processes 16 \\
  train.py --model_name_or_path meta-llama/Llama-2-7b-hf \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 4096 --gradient_checkpointing True
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: offload
fsdp_version: 2
fsdp_config: {transformer_layer_cls_to_wrap: LlamaDecoderLayer}
context_parallel_size: 2
"""
LITGPT = """
checkpoint_dir: checkpoints/google/gemma-2-9b
devices: 4
num_nodes: 2
lora_r: 8
lora_query: true
lora_mlp: true
quantize: bnb.nf4
train: {global_batch_size: 64, micro_batch_size: 2, max_seq_length: 512}
"""
TORCHTUNE = """
model: {_component_: torchtune.models.llama3_1.llama3_1_70b}
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-70B-Instruct/}
tokenizer: {max_seq_len: 4096}
batch_size: 2
tensor_parallel_dim: 2
gradient_accumulation_steps: 1
enable_activation_checkpointing: True
enable_activation_offloading: True
"""
OPENRLHF = """
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft --data.max_len 2048 --train.batch_size 256 --train.micro_batch_size 2 \\
   --model.model_name_or_path meta-llama/Meta-Llama-3-8B --ds.zero_stage 3 --model.gradient_checkpointing_enable
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
"""
SKYRL = """
IFS=',' read -r PROMPT ANSWER <<< "1024,3072"
uv run --isolated -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-7B-Instruct \\
  trainer.strategy=fsdp2 trainer.placement.policy_num_gpus_per_node=8 trainer.policy_mini_batch_size=64 \\
  trainer.micro_train_batch_size_per_gpu=2 trainer.max_prompt_length=$PROMPT generator.n_samples_per_prompt=4 \\
  generator.sampling_params.max_generate_length=$ANSWER generator.inference_engine.tensor_parallel_size=2
"""
NEMO_1 = """
trainer: {num_nodes: 2, devices: 8}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 4096
  max_position_embeddings: ${model.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  optim: {name: distributed_fused_adam}
"""
FLAGSCALE = """
defaults: [_self_, {train: one}]
experiment: {runner: {nnodes: 2, nproc_per_node: 8}}
"""
FLAGSCALE_ONE = """
system: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 1, precision: {bf16: true}}
model: {num_layers: 8, hidden_size: 1024, num_attention_heads: 16, seq_length: 4096, max_position_embeddings: 4096,
  micro_batch_size: 1, global_batch_size: 128}
"""
XTUNER = """
pretrained_model_name_or_path = "meta-llama/Llama-2-7b-hf"
max_length, pack_to_max_length = 2048, True
max_length = 2048
batch_size = 1
accumulative_counts = 16
model = dict(type=SupervisedFinetune, lora=dict(type=LoraConfig, r=64, lora_alpha=16))
"""
PRIME_RL = """
seq_len = 8192
[deployment]
num_train_gpus = 2
[model]
name = "PrimeIntellect/Qwen3-1.7B-Wordle-SFT"
[orchestrator]
batch_size = 512
[trainer.model]
cp = 2
"""
AREAL = """
cluster: {n_nodes: 2, n_gpus_per_node: 8}
gconfig: {n_samples: 4, max_new_tokens: 3072}
actor: {backend: "megatron:d2p2t4", path: Qwen/Qwen2.5-7B-Instruct, gradient_checkpointing: true, ppo_n_minibatches: 2,
  mb_spec: {max_tokens_per_mb: 8192}}
ref: {backend: "${actor.backend}"}
train_dataset: {batch_size: 64, max_length: 1024}
"""
ROLL = """
pretrain: Qwen/Qwen3-30B-A3B
prompt_length: 1024
response_length: 7168
num_gpus_per_node: 8
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 16}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,
      expert_model_parallel_size: 8, recompute_granularity: full}
  device_mapping: list(range(0, 32))
"""
INTERNEVO = """
SEQ_LEN = 4096
HIDDEN = 4096
data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=2)
model = dict(checkpoint=True, num_attention_heads=32, vocab_size=103168, hidden_size=HIDDEN, num_layers=32,
    mlp_ratio=8 / 3, num_kv_attention_heads=8, no_bias=True, norm_type="rmsnorm", layer_norm_epsilon=1e-5)
parallel = dict(zero1=dict(size=-1), tensor=dict(size=2, mode="msp"), pipeline=dict(size=1), weight=dict(size=1))
"""
LEVANTER = """
model: {type: gpt2, hidden_dim: 768, num_heads: 12, num_layers: 12, seq_len: 1024}
trainer: {train_batch_size: 512, per_device_parallelism: 4}
"""
ACCELERATE = "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\nnum_processes: 8\n"
FILES = {
    "swift.sh": SWIFT,
    "verl.sh": VERL,
    "verl_fsdp.sh": VERL_FSDP,
    "slime.sh": SLIME,
    "nemo_rl.yaml": NEMO_RL,
    "automodel.yaml": AUTOMODEL,
    "maxtext.yml": MAXTEXT,
    "neox.yml": NEOX,
    "nanotron.yaml": NANOTRON,
    "factory.yaml": FACTORY,
    "factory_megatron.yaml": FACTORY_MEGATRON,
    "trainer.sh": TRAINER,
    "axolotl.yaml": AXOLOTL,
    "litgpt.yaml": LITGPT,
    "torchtune.yaml": TORCHTUNE,
    "openrlhf.sh": OPENRLHF,
    "skyrl.sh": SKYRL,
    "nemo_1.yaml": NEMO_1,
    "flagscale.yaml": FLAGSCALE,
    "xtuner.py": XTUNER,
    "prime_rl.toml": PRIME_RL,
    "levanter.yaml": LEVANTER,
    "areal.yaml": AREAL,
    "roll.yaml": ROLL,
    "internevo.py": INTERNEVO,
    "base.yaml": NEMO_RL_BASE,
    "fsdp.yaml": ACCELERATE,
}
JOBS: dict[str, dict[str, Any]] = {
    "swift.sh": {
        "program": "ms-swift (megatron sft, megatron pt)",
        "model": "qwen2.5_32b",
        "gpus": 8,
        "seq_length": 32768,
        "batch": 64,
        "tp": 4,
        "pp": 2,
        "sequence_parallel": True,
        "recompute": "full",
        "sharding": "distributed_optimizer",
    },
    "verl.sh": {
        "program": "verl (Megatron actor)",
        "model": "qwen3_30b_a3b",
        "gpus": 32,
        "seq_length": 4096,
        "batch": 256,
        "tp": 4,
        "pp": 2,
        "ep": 4,
        "recompute": "full",
    },
    "verl_fsdp.sh": {
        "model": "qwen2.5_7b",
        "gpus": 8,
        "seq_length": 2048,
        "batch": 256,
        "micro_batch_size": 4,
        "sharding": "fsdp2",
        "recompute": "full",
    },
    "levanter.yaml": {"program": "Levanter (GPT-2)", "seq_length": 1024, "batch": 512, "micro_batch_size": 4},
    "prime_rl.toml": {"model": "qwen3_1.7b", "gpus": 2, "seq_length": 8192, "batch": 512, "cp": 2, "recompute": "full"},
    "areal.yaml": {
        "model": "qwen2.5_7b",
        "gpus": 16,
        "seq_length": 4096,
        "batch": 128,
        "tp": 4,
        "pp": 2,
        "micro_batch_size": 2,
        "recompute": "full",
    },
    "roll.yaml": {
        "model": "qwen3_30b_a3b",
        "gpus": 32,
        "seq_length": 8192,
        "batch": 128,
        "tp": 2,
        "pp": 2,
        "ep": 8,
        "recompute": "full",
    },
    "internevo.py": {
        "gpus": 0,
        "seq_length": 4096,
        "batch": 64,
        "tp": 2,
        "sequence_parallel": True,
        "micro_batch_size": 2,
        "recompute": "full",
    },
    "slime.sh": {"gpus": 16, "seq_length": 4096, "batch": 256, "tp": 2, "micro_batch_size": 2},
    "nemo_rl.yaml": {"model": "llama3.1_8b", "gpus": 16, "batch": 512, "tp": 4, "pp": 2, "recompute": "none"},
    "automodel.yaml": {
        "model": "qwen3_30b_a3b",
        "gpus": 0,
        "batch": 128,
        "ep": 8,
        "deepep": True,
        "recompute": "full",
        "sharding": "fsdp2",
    },
    "maxtext.yml": {
        "model": "llama3.1_70b",
        "gpus": 16,
        "seq_length": 8192,
        "batch": 64,
        "sharding": "hsdp",
        "shard_group": 8,
        "fp8": "delayed",
        "recompute": "full",
    },
    "neox.yml": {
        "seq_length": 2048,
        "batch": 64,
        "tp": 4,
        "pp": 2,
        "recompute": "full",
        "sharding": "distributed_optimizer",
    },
    "nanotron.yaml": {
        "gpus": 16,
        "seq_length": 4096,
        "batch": 32,
        "tp": 2,
        "sequence_parallel": True,
        "sharding": "distributed_optimizer",
    },
    "factory.yaml": {
        "model": "llama3_8b",
        "batch": 128,
        "sharding": "fsdp2",
        "recompute": "full",
        "offload_modules": "layer_input",
    },
    "factory_megatron.yaml": {
        "program": "LLaMA-Factory (Megatron back end)",
        "model": "llama3_8b",
        "batch": 64,
        "tp": 2,
    },
    "trainer.sh": {
        "model": "llama2_7b",
        "gpus": 16,
        "seq_length": 4096,
        "batch": 128,
        "sharding": "fsdp2",
        "recompute": "full",
    },
    "axolotl.yaml": {
        "model": "llama3_8b",
        "seq_length": 8192,
        "batch": 64,
        "cp": 2,
        "recompute": "full",
        "offload_modules": "layer_input",
        "sharding": "fsdp2",
    },
    "litgpt.yaml": {
        "model": "gemma2_9b",
        "gpus": 8,
        "seq_length": 512,
        "batch": 64,
        "micro_batch_size": 2,
        "recompute": "full",
    },
    "torchtune.yaml": {
        "model": "llama3.1_70b",
        "seq_length": 4096,
        "batch": 16,
        "tp": 2,
        "recompute": "full",
        "offload_modules": "layer_input",
    },
    "openrlhf.sh": {
        "model": "llama3_8b",
        "gpus": 8,
        "seq_length": 2048,
        "batch": 256,
        "sharding": "fsdp2",
        "recompute": "full",
    },
    "skyrl.sh": {"model": "qwen2.5_7b", "gpus": 8, "seq_length": 4096, "batch": 256, "micro_batch_size": 2, "tp": 1},
    "nemo_1.yaml": {"gpus": 16, "seq_length": 4096, "batch": 128, "tp": 2, "sharding": "distributed_optimizer"},
    "flagscale.yaml": {"gpus": 16, "seq_length": 4096, "batch": 128, "tp": 4},
    "xtuner.py": {"model": "llama2_7b", "seq_length": 2048, "batch": 256, "sharding": "zero2"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", "/home/someone")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "one.yaml").write_text(FLAGSCALE_ONE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", JOBS)
def test_a_file_of_a_launcher_is_the_job_that_it_starts(folder: Path, name: str) -> None:
    assert_read(folder / name, JOBS[name])


@pytest.mark.parametrize("name", JOBS)
def test_a_file_of_a_launcher_is_priced(folder: Path, name: str) -> None:
    begun = start(folder / name, "h100", 0)
    assert f"read as a job of {begun.experiment.program}, by the rules of " in begun.notes[0]
    assert replace(space_of(begun, [], None, "").model, adapters=None) == begun.experiment.model


ADAPTERS = {
    "swift.sh": ("--dataset", "--tuner_type lora --lora_rank 64 --dataset", 64, ["linear_qkv"]),
    "verl.sh": (
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.model.lora_rank=32",
        32,
        ["linear_qkv"],
    ),
    "nemo_rl.yaml": (
        "activation_checkpointing: false",
        "peft: {enabled: true, dim: 16, target_modules: [linear_proj]}",
        16,
        ["linear_proj"],
    ),
    "automodel.yaml": ("dataset:", "peft: {_target_: lora.PeftConfig, dim: 4}\ndataset:", 4, ["linear_q"]),
    "factory.yaml": (
        "finetuning_type: full",
        "finetuning_type: lora\nlora_target: q_proj,v_proj",
        8,
        ["linear_q", "linear_v"],
    ),
    "trainer.sh": ("--gradient_checkpointing True", "--use_peft True --lora_r 4", 4, ["linear_q", "linear_v"]),
    "slime.sh": ("--colocate", "--colocate --lora-rank 16", 16, ["linear_qkv"]),
    "axolotl.yaml": ("base_model", "adapter: lora\nlora_r: 32\nlora_target_linear: true\nbase_model", 32, ["linear_q"]),
    "torchtune.yaml": (
        "_component_:",
        "lora_rank: 8, lora_attn_modules: [q_proj, output_proj], apply_lora_to_mlp: True, _component_:",
        8,
        ["linear_q", "linear_proj", "linear_fc2"],
    ),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_a_file_are_those_of_its_workload(folder: Path, name: str) -> None:
    *change, rank, trained = ADAPTERS[name]
    (folder / name).write_text(FILES[name].replace(*change), encoding="utf-8")
    assert read_experiment(folder / name, 16).tuning["lora"]["rank"] == rank
    space = space_of(start(folder / name, "h100", 0), [], None, "")
    assert space.workload.task == {"verl.sh": "ppo", "slime.sh": "grpo"}.get(name, "lora")
    assert space.model.adapters is not None and space.model.adapters.rank == rank
    assert set(trained) <= set(space.model.adapters.modules)


POLICIES: dict[str, tuple[str, tuple[str, str], str, Policy, int]] = {
    "critic": ("verl.sh", ("", ""), "ppo", Policy(reference="none"), 256),
    "kl": (
        "verl.sh",
        (
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.free_cache_engine=False "
            "actor_rollout_ref.actor.ppo_epochs=2",
        ),
        "grpo",
        Policy(reference="resident", epochs=2, gpu_memory_utilization=0.6),
        256,
    ),
    "engine gives memory back": (
        "verl_fsdp.sh",
        ("trainer.nnodes=1", "trainer.nnodes=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.6"),
        "ppo",
        Policy(reference="none"),
        256,
    ),
    "slime": ("slime.sh", ("--colocate", "--colocate --use-kl-loss"), "grpo", Policy(reference="host"), 256),
    "pairs": (
        "nemo_rl.yaml",
        ("cluster:", "dpo: {reference_policy_kl_penalty: 0.05, max_num_epochs: 1}\ncluster:"),
        "dpo",
        Policy(reference="host"),
        1024,
    ),
    "groups": (
        "nemo_rl.yaml",
        ("cluster:", "grpo: {num_prompts_per_step: 32}\ncluster:"),
        "grpo",
        Policy(reference="none"),
        512,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_of_a_file_is_that_of_its_workload(folder: Path, name: str) -> None:
    file, change, task, policy, batch = POLICIES[name]
    (folder / file).write_text(FILES[file].replace(*change), encoding="utf-8")
    workload = space_of(start(folder / file, "h100", 0), [], None, "").workload
    assert (workload.task, workload.policy, workload.global_batch_size) == (task, policy, batch)


def test_supervised_files_of_a_launcher_of_policies_are_sft(folder: Path) -> None:
    (folder / "nemo_rl.yaml").write_text(NEMO_RL + "sft: {max_num_steps: 10}\n", encoding="utf-8")
    assert space_of(start(folder / "nemo_rl.yaml", "h100", 0), [], None, "").workload.task == "sft"


def test_weights_in_four_bits_are_those_of_qlora(folder: Path) -> None:
    text = FILES["factory.yaml"].replace("finetuning_type: full", "finetuning_type: lora\nquantization_bit: 4")
    (folder / "factory.yaml").write_text(text, encoding="utf-8")
    space = space_of(start(folder / "factory.yaml", "h100", 0), [], None, "")
    assert (space.workload.task, space.model.adapters.base.name) == ("qlora", "nf4")


@pytest.mark.parametrize(("name", "given"), {"factory.yaml": "finetuning_type: freeze", "trainer.sh": "--x"}.items())
def test_a_part_of_the_weights_is_refused_by_the_setting_that_trains_it(folder: Path, name: str, given: str) -> None:
    old, new = ("finetuning_type: full", given) if name == "factory.yaml" else (
        "--gradient_checkpointing True", "--tuner_type boft")  # fmt: skip
    (folder / name).write_text(FILES[name].replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match="trains a part of the weights that is not modelled"):
        read_experiment(folder / name, 16)


VERL_SFT = """
if [ "$#" -lt 2 ]; then
    echo "Usage: run.sh <nproc_per_node> <save_path>"
    exit 1
fi
torchrun --standalone --nnodes=1 --nproc_per_node=$1 -m verl.trainer.fsdp_sft_trainer \\
    data.train_batch_size=128 data.micro_batch_size_per_gpu=2 data.max_length=2048 \\
    +data.response_dict_keys=['answer'] \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct model.lora_rank=16 model.target_modules=all-linear \\
    trainer.default_local_dir=$2
"""


def test_a_script_that_wants_arguments_is_read_with_them_and_asks_for_those_that_count(folder: Path) -> None:
    (folder / "tune.sh").write_text(VERL_SFT.replace("lora_rank=16", "lora_rank=$2"), encoding="utf-8")
    with pytest.raises(InputError, match=r"depends on .*--args '<nproc_per_node> <lora_rank>'"):
        read_experiment(folder / "tune.sh")
    (folder / "tune.sh").write_text(VERL_SFT, encoding="utf-8")
    assert read_experiment(folder / "tune.sh", 2).world.gpus == 0
    read = read_experiment(folder / "tune.sh", arguments=("4", "out"))
    assert read.world.gpus == 4 and read.row["micro_batch_size"] == 2 and read.seq_length == 2048
    assert read.tuning["lora"]["rank"] == 16 and read.model is not None and read.model.name == "qwen2.5_0.5b"


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        (
            "'*_proj'",
            {"linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"},
        ),
        ("'model.layers.*.[qv]_proj'", None),
        ("'*.[a-z]_proj'", None),
        ("'*attn*.q_proj' v_proj", {"linear_q", "linear_v"}),
        ("'model.layers.0.*_proj'", None),
        (r"'model.language_model.layers.[\d]+.(mlp|self_attn).(q|v)_proj'", {"linear_q", "linear_v"}),
        (r"'model\.layers\.\d+\.self_attn\.o_proj'", {"linear_proj"}),
        (r"'model.layers.[0-3].self_attn.o_proj'", None),
    ],
)
def test_a_pattern_of_modules_is_those_that_it_matches(folder: Path, pattern: str, modules: set[str] | None) -> None:
    text = FILES["swift.sh"].replace("--dataset", f"--tuner_type lora --target_modules {pattern} --dataset")
    (folder / "swift.sh").write_text(text, encoding="utf-8")
    if modules is None:
        with pytest.raises(InputError, match="is a pattern of layers; name modules"):
            read_experiment(folder / "swift.sh", 16)
    else:
        space = space_of(start(folder / "swift.sh", "h100", 2), [], None, "")
        assert set(space.workload.adapters.modules) == modules  # type: ignore[union-attr]


def test_a_pattern_of_modules_is_refused_in_words(folder: Path) -> None:
    text = FILES["swift.sh"].replace("--dataset", "--tuner_type lora --target_modules '^model.*q_proj$' --dataset")
    (folder / "swift.sh").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="is a pattern of layers; name modules"):
        read_experiment(folder / "swift.sh", 16)


MEGATRON = (
    "torchrun --nproc_per_node 8 finetune.py --micro-batch-size 1 --global-batch-size 64 --num-layers 32 "
    "--hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 128000 "
    "--untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --bf16 "
    "--tokenizer-type NullTokenizer "
)


def test_adapters_of_a_script_of_megatron_are_read_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON + "--lora-rank 16 --lora-target-modules linear_qkv")
    space = space_of(start(path, "h100", 1), [], None, "")
    assert space.workload.task == "lora"
    assert space.model.trained_params == 32 * 16 * (4096 + 6144)
    path.write_text(MEGATRON + "--peft-type dora")
    with pytest.raises(InputError, match="peft_type: dora trains a part of the weights"):
        read_experiment(path)


def test_sizes_beside_the_name_of_a_model_are_another_model(folder: Path) -> None:
    (folder / "maxtext.yml").write_text(MAXTEXT + "base_num_decoder_layers: 5\n", encoding="utf-8")
    problems = read_experiment(folder / "maxtext.yml", 16).model_problems
    assert "base_num_decoder_layers: 5: another model than llama3.1-70b; give --model" in problems[0].what


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("x/hf-meta-llama3-8B", "llama3_8b"),
        ("OpenBuddy/openbuddy-llama2-70b-v10.1-bf16", "llama2_70b"),
        ("llama3-8b-vision", ""),
        ("eachadea/vicuna-7b-1.1", "llama_7b"),
        ("PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT", "qwen3_0.6b"),
        ("/root/Moonlight-16B-A3B-Instruct-INT4", "moonlight_16b"),
        ("llama2_7b", "llama2_7b"),
        ("llama2-7b", "llama2_7b"),
        ("/cache/models--Qwen--Qwen2.5-7B", "qwen2.5_7b"),
        ("pretrained/EleutherAI_pythia-6.9b-deduped", "pythia_6.9b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama3.1_8b"),
        ("nvidia/Llama-3.1-8B-Minitron-4B-Width", ""),
        ("Qwen/Qwen3-Embedding-8B", ""),
        ("x/Llama-3.2-3B-Instruct-2layers", ""),
    ],
)
def test_a_name_that_begins_with_that_of_a_model_has_its_layers(name: str, preset: str) -> None:
    found = model_named(name, {})
    assert (found.name if found else "") == preset


@given(st.integers(1, 10**12))
def test_a_count_may_have_underscores_as_python_has_them(count: int) -> None:
    assert whole_number(f"{count:_}") == count
    assert whole_number(f"{count}_") is None


def test_a_value_of_another_key_is_filled_in_by_its_place(folder: Path) -> None:
    nemo = NEMO_1.replace("${model.encoder_seq_length}", "${.encoder_seq_length}")
    (folder / "nemo_1.yaml").write_text(nemo.replace("encoder_seq_length: 4096", "encoder_seq_length: 8192"))
    assert read_experiment(folder / "nemo_1.yaml").seq_length == 8192
    (folder / "nemo_1.yaml").write_text(nemo.replace("${.encoder", "${training.model.encoder"))
    assert read_experiment(folder / "nemo_1.yaml").seq_length == 4096


def test_a_variable_without_a_value_is_named_where_it_counts(folder: Path) -> None:
    (folder / "swift.sh").write_text(SWIFT.replace("_parallel_size 4", "_parallel_size $TP"), encoding="utf-8")
    with pytest.raises(InputError, match="depends on TP: set them in the environment"):
        read_experiment(folder / "swift.sh")


def test_devices_that_only_generate_are_no_part_of_the_step(folder: Path) -> None:
    apart = "  generation: {colocated: {enabled: false, resources: {num_nodes: 1}}}\ncluster:"
    (folder / "nemo_rl.yaml").write_text(NEMO_RL.replace("cluster:", apart), encoding="utf-8")
    assert read_experiment(folder / "nemo_rl.yaml").world.gpus == 8


@pytest.mark.parametrize("count", today_or_all(30, 100))
def test_a_renamed_degree_is_that_of_the_contract(count: int, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"

    @settings(max_examples=count)
    @given(tp=st.sampled_from([1, 2, 4, 8]), nodes=st.integers(1, 9), micro=st.integers(1, 4))
    def check(tp: int, nodes: int, micro: int) -> None:
        text = SWIFT.replace("_model_parallel_size 4", f"_model_parallel_size {tp}")
        text = text.replace("NNODES=2", f"NNODES={nodes}").replace("batch_size 1", f"batch_size {micro}")
        path.write_text(text, encoding="utf-8")
        job = read_experiment(path)
        read = (job.row["tp"], job.world.gpus, job.world.per_node, job.row["micro_batch_size"])
        assert read == (tp, 4 * nodes, 4, micro)

    check()


def test_every_table_means_names_that_exist() -> None:
    sizes = {"seq_length", "global_batch_size", "copies", "packed", "gpus", "num_layers"}
    for name, one in launchers().items():
        assert one.source and (one.program or one.where or name in BACK_ENDS.values()), name
        if one.contract == ANY:
            meant = {*one.renamed.values(), *(key for key in one.formulas if not key.startswith(f"{one.config}."))}
            meant |= {key for words in one.translated.values() for means in words.values() for key in means}
            between = names_in(one)
            numbers = {f"{NUMBER}{field}" for field in GROUP_OF}
            assert meant <= {*DEFAULTS, *sizes, *between, *numbers}, name


PRIMUS_MAXTEXT = """
modules:
  pre_trainer:
    framework: maxtext
    config: pre_trainer.yaml
    model: llama3_70B.yaml
    overrides: {per_device_batch_size: 2, max_target_length: 8192, remat_policy: full, ici_fsdp_parallelism: -1}
"""
PRIMUS_BRIDGE = """
modules:
  post_trainer:
    framework: megatron_bridge
    model: qwen3_32b.yaml
    overrides: {hf_path: Qwen/Qwen3-32B, peft: none, tensor_model_parallel_size: 2, sequence_parallel: true,
      global_batch_size: 8, micro_batch_size: 1, seq_length: 8192}
"""


@pytest.mark.parametrize(
    ("text", "model", "batch"), [(PRIMUS_MAXTEXT, "llama3_70b", 32), (PRIMUS_BRIDGE, "qwen3_32b", 8)]
)
def test_back_ends_of_primus_are_read_by_their_tables(tmp_path: Path, text: str, model: str, batch: int) -> None:
    (tmp_path / "exp.yaml").write_text(text, encoding="utf-8")
    job = read_experiment(tmp_path / "exp.yaml", 16)
    assert job.model is not None
    assert (job.model.name, job.global_batch_size, job.seq_length) == (model, batch, 8192)


@pytest.mark.parametrize(
    ("recipe", "peft", "is_fused"),
    [("qwen.qwen3", "lora", True), ("llama.llama3", "lora", False), ("llama.llama3", "none", True)],
)
def test_the_loss_of_bridge_in_primus_is_its_recipes(recipe: str, peft: str, is_fused: bool, tmp_path: Path) -> None:
    own = PRIMUS_BRIDGE.replace("peft: none", f"recipe: {recipe}, peft: {peft}")
    for said, wanted in (("", is_fused), ("cross_entropy_loss_fusion: true, ", True)):
        (tmp_path / "exp.yaml").write_text(own.replace("{hf_path", f"{{{said}hf_path"), encoding="utf-8")
        job = read_experiment(tmp_path / "exp.yaml", 16)
        assert job.row["loss_fusion"] is wanted
        assert not [note for note in job.not_modelled if "tuned" in note]


def test_mixed_layers_of_bridge_in_primus_have_their_spec(tmp_path: Path) -> None:
    folder = tmp_path / "primus" / "configs" / "models" / "megatron"
    folder.mkdir(parents=True)
    sizes = "is_hybrid_model: true\nhybrid_attention_ratio: 0.25\nnum_layers: 8\nhidden_size: 1024\n"
    sizes += "ffn_hidden_size: 4096\nnum_attention_heads: 8\nmamba_num_groups: 8\nswiglu: true\n"
    sizes += "max_position_embeddings: 4096\nmamba_state_dim: 64\nmamba_head_dim: 64\nvocab_size: 32000\n"
    (folder / "own_mixed.yaml").write_text(sizes, encoding="utf-8")
    own = PRIMUS_BRIDGE.replace("qwen3_32b.yaml", "own_mixed.yaml").replace("hf_path: Qwen/Qwen3-32B, ", "")
    (tmp_path / "exp.yaml").write_text(own, encoding="utf-8")
    model = read_experiment(tmp_path / "exp.yaml", 16).model
    assert model is not None and len(model.kinds) > 1


@pytest.mark.parametrize("model", ["deepseek_v4_flash", "deepseek_v4_pro"])
def test_primus_runs_compressed_attention_without_context_parallelism(model: str) -> None:
    rule = next(one for one in load_framework("primus").requires if one.name == "compressed_attention_whole_sequence")
    assert rule.holds == "not has_compressed_attention or cp == 1"
    assert FACTS["has_compressed_attention"](load_preset(model).model)
    assert not FACTS["has_compressed_attention"](load_preset("deepseek_v3.2").model)
