"""Jobs of launchers with few files each, read through their tables: what a file is, and what it leaves open."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.learning.started_experiment import start
from tests.support.launched import assert_read

TUNE = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2"
FILES = {
    "paddle.json": """{"model_name_or_path": "meta-llama/Meta-Llama-3-8B", "input_dir": "./data",
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": -1, "sharding": "stage2", "sequence_parallel": 0, "max_seq_length": 4096,
        "recompute": true, "bf16": true, "fp16_opt_level": "O2"}""",
    "paddle_dpo.json": """{"model_name_or_path": "meta-llama/Meta-Llama-3-8B", "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 8, "max_seq_len": 4096, "loss_type": "sigmoid", "tensor_parallel_degree": 8,
        "sharding": "stage1", "bf16": true, "fp16_opt_level": "O2", "amp_master_grad": true}""",
    "oat.sh": """deepspeed --module oat.experiment.run_offline --gpus 8 --gradient-checkpointing --algo DPO \\
        --pretrain Qwen/Qwen2.5-7B --ref-offload --zero-stage 3 --prompt_max_length 1800 --generate_max_length 1000 \\
        --train_batch_size 128 --train_batch_size_per_device 2""",
    "oat_sft.sh": """deepspeed --module oat.experiment.run_offline --gpus 4 --algo SFT --pretrain Qwen/Qwen2.5-1.5B \\
        --max_model_len 4096 --train_batch_size 64""",
    "halos.sh": """srun bash -c "accelerate launch --config_file deep/fsdp.yaml launch.py loss=dpo model=llama \\
        ++model.name_or_path=meta-llama/Meta-Llama-3-8B ++model.batch_size=32" """,
    "colossal.sh": """colossalai run --nproc_per_node 8 --hostfile hosts train_sft.py --pretrain Qwen/Qwen2.5-7B \\
        --plugin zero2 --batch_size 4 --max_len 4096 --grad_checkpoint""",
    "pipeline.sh": """colossalai run --nproc_per_node 8 train.py --model_name mistralai/Mixtral-8x7B-v0.1 \\
        --plugin hybrid --batch_size 8 --zero_stage 1 --pp_size 2 --ep_size 4""",
    "fms.sh": """torchrun --nnodes=2 --nproc_per_node=8 main_training_llama.py --model_variant=llama3_8b \\
        --sharding_strategy=hsdp --batch_size=2 --fsdp_activation_checkpointing=True""",
    "gpt_config.yaml": """
language_model: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, num_query_groups: 8,
  ffn_hidden_size: 14336,
  activation_func: swiglu, add_bias_linear: False, hidden_dropout: 0.0, attention_dropout: 0.0}
model_parallel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 4, sequence_parallel: True, bf16: True}
micro_batch_size: 2
global_batch_size: 128
seq_length: 4096
vocab_size: 128256
untie_embeddings_and_output_weights: True
position_embedding_type: rope
normalization: RMSNorm
use_distributed_optimizer: True
""",
    "lingua.yaml": """
distributed: {fsdp_type: full_shard, tp_size: 1, dp_shard: 8, dp_replicate: 2}
model: {dim: 2048, n_layers: 25, n_heads: 16}
data: {batch_size: 4, seq_len: 4096}
""",
    "picotron.json": """{"distributed": {"tp_size": 2, "pp_size": 2, "dp_size": 2, "cp_size": 1, "pp_engine": "afab"},
        "model": {"name": "HuggingFaceTB/SmolLM2-360M", "num_hidden_layers": 32},
        "training": {"seq_length": 1024, "micro_batch_size": 4, "gradient_accumulation_steps": 8}}""",
    "nano.py": """
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
max_iters = 600000
lr_decay_iters = 600000
""",
    "easy.sh": """python -m EasyLM.models.llama.llama_train --mesh_dim='1,-1,4' --load_llama_config='7b' \\
        --train_dataset.type=json --update_llama_config='' --optimizer.accumulate_gradient_steps=4 \\
        --train_dataset.json_dataset.seq_length=2048 --train_dataset.json_dataset.batch_size=2048""",
    "easy_named.sh": """python -m EasyLM.models.llama.llama_train --mesh_dim='dp:2,fsdp:-1,mp:1' \\
        --llama.base_model=llama3_8b --train_dataset.huggingface_dataset.batch_size=64 --llama.remat_policy=''""",
    "alpaca.sh": "python finetune.py --base_model 'meta-llama/Llama-2-7b-hf'",
    "plain.sh": f"python run_clm.py {TUNE} --block_size 1024 --gradient_accumulation_steps 4",
    "cookbook.sh": """torchrun --nnodes=2 --nproc_per_node=8 getting-started/finetuning/finetuning.py --enable_fsdp \\
        --model_name meta-llama/Llama-3.1-8B --batch_size_training 8 --fsdp_config.pure_bf16 --use_fast_kernels""",
    "cookbook_lora.sh": """python -m llama_cookbook.finetuning --use_peft --quantization 8bit --model_name \\
        meta-llama/Llama-2-7b-hf --batching_strategy padding --context_length 2048""",
    "mistral.yaml": """
data: {instruct_data: ""}
model_id_or_path: mistralai/Mistral-7B-v0.3
lora: {rank: 64}
seq_len: 32768
batch_size: 1
optim: {lr: 6.e-5, pct_start: 0.05}
""",
    "hyperpod.yaml": """
run: {model_type: llm_finetuning_aws}
scale_config: {2: {trainer: {num_nodes: 2}, training_config: {training_args: {train_batch_size: 256}}}}
trainer: {devices: 8, num_nodes: 2}
training_config:
  model_config: {model_name_or_path: Qwen/Qwen3-8B, peft_config: {peft_type: lora, r: 16, target_modules: all-linear}}
  training_args:
    gradient_checkpointing: true
    max_len: 4096
    micro_train_batch_size: 2
    train_batch_size: 128
    strategy: {fsdp_config: {sharding_strategy: HYBRID_SHARD}}
    trainer_type: sft
""",
    "hyperpod_verl.yaml": """
trainer: {devices: 8, num_nodes: 1}
training_config:
  actor_rollout_ref:
    model: {path: Qwen/Qwen3-1.7B, enable_gradient_checkpointing: true}
    actor: {fsdp_config: {fsdp_size: -1}, ppo_micro_batch_size_per_gpu: 2, ppo_mini_batch_size: 32,
            use_dynamic_bsz: true, ppo_max_token_len_per_gpu: 24576}
    rollout: {n: 8}
  algorithm: {adv_estimator: grpo}
  data: {max_prompt_length: 512, max_response_length: 1024, train_batch_size: 128}
""",
    "rlhf.sh": """NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_length 1000 \\
        --max_completion_length 8192 --global_batch_size 64 --micro_batch_size 1 --tensor_model_parallel_size 2""",
    "dpo.sh": """NPROC_PER_NODE=8 megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --max_length 1000 \\
        --global_batch_size 64 --micro_batch_size 1 --tensor_model_parallel_size 2""",
    "fsdp_src.sh": """srun torchrun --nproc_per_node=8 --nnodes=2 ../src/train.py --max_context_width=8192 \\
        --num_layers=32 --num_key_value_heads=8 --intermediate_size=14336 --hidden_width=4096 --num_heads=32 \\
        --model_type=llama_v3 --train_batch_size=1 --sharding_strategy=full --offload_activations=1""",
    "pairs.sh": """deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --train.batch_size 256 \\
        --train.micro_batch_size 1 --model.model_name_or_path Qwen/Qwen3-8B --data.max_len 8192 --ds.zero_stage 3""",
    "squad.yaml": """
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model: {pretrained_model_name_or_path: google/gemma-7b, attn_implementation: eager}
distributed: {strategy: fsdp2, tp_size: 1}
dataset: {seq_length: 2048}
""",
    "launch.sh": "uv run python -m accelerate.commands.launch --num_processes 1 open_instruct/finetune.py " + TUNE,
    "fsdp.yaml": "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\nnum_processes: 4\n",
}
JOBS: dict[str, dict[str, Any]] = {
    "paddle.json": {"program": "PaddleNLP", "seq_length": 4096, "batch": 128, "tp": 2, "sharding": "zero2",
                    "sequence_parallel": False, "recompute": "full", "state_format": "bf16_reduction", "pp": 1},
    "paddle_dpo.json": {"batch": 16, "micro_batch_size": 1, "tp": 8, "state_format": "fp32_all"},
    "oat.sh": {"program": "oat (offline)", "gpus": 8, "seq_length": 2800, "batch": 256, "micro_batch_size": 4,
               "sharding": "fsdp2", "recompute": "full"},
    "oat_sft.sh": {"gpus": 4, "seq_length": 4096, "batch": 64, "micro_batch_size": 1, "sharding": "zero2"},
    "halos.sh": {"program": "HALOs (FSDP under accelerate)", "gpus": 4, "seq_length": 1250, "batch": 64,
                 "state_format": "bf16_all",
                 "micro_batch_size": 16, "sharding": "fsdp2"},
    "colossal.sh": {"program": "ColossalAI", "gpus": 0, "seq_length": 4096, "batch": 512, "micro_batch_size": 4,
                    "sharding": "zero2", "recompute": "full"},
    "pipeline.sh": {"model": "mixtral_8x7b", "gpus": 8, "seq_length": 2048, "batch": 32, "micro_batch_size": 1, "pp": 2,
                    "ep": 4, "sharding": "distributed_optimizer"},
    "fms.sh": {"model": "llama3_8b", "gpus": 16, "seq_length": 4096, "batch": 32, "sharding": "hsdp", "shard_group": 8,
               "recompute": "full", "state_format": "bf16_reduction"},
    "gpt_config.yaml": {"program": "Megatron-LM (--yaml-cfg)", "batch": 128, "tp": 2, "pp": 4, "micro_batch_size": 2,
                        "sharding": "distributed_optimizer", "seq_length": 4096},
    "lingua.yaml": {"program": "Meta Lingua", "gpus": 16, "seq_length": 4096, "batch": 64, "sharding": "hsdp",
                    "shard_group": 8},
    "picotron.json": {"gpus": 8, "batch": 64, "tp": 2, "pp": 2, "schedule": "gpipe", "sharding": "none"},
    "nano.py": {"program": "nanoGPT (DDP)", "seq_length": 1024, "batch": 480, "micro_batch_size": 12,
                "sharding": "none"},
    "easy.sh": {"model": "llama_7b", "seq_length": 2048, "batch": 8192, "tp": 4, "sharding": "fsdp2",
                "micro_batch_size": 512, "state_format": "fp32_all", "recompute": "full"},
    "easy_named.sh": {"model": "llama3_8b", "seq_length": 1024, "batch": 64, "tp": 1, "sharding": "hsdp",
                      "shard_group": 8, "recompute": "none"},
    "alpaca.sh": {"model": "llama2_7b", "seq_length": 256, "batch": 128, "micro_batch_size": 4, "recompute": "full"},
    "plain.sh": {"program": "Hugging Face Trainer", "seq_length": 1024, "micro_batch_size": 2},
    "rlhf.sh": {"gpus": 8, "seq_length": 9192, "batch": 64, "micro_batch_size": 1, "tp": 2},
    "dpo.sh": {"gpus": 8, "seq_length": 1000, "batch": 128, "micro_batch_size": 2, "tp": 2},
    "fsdp_src.sh": {"gpus": 16, "seq_length": 8192, "batch": 16, "micro_batch_size": 1, "sharding": "fsdp2",
                    "recompute": "full"},
    "pairs.sh": {"gpus": 8, "seq_length": 8192, "batch": 512, "micro_batch_size": 2, "sharding": "fsdp2"},
    "squad.yaml": {"model": "gemma_7b", "seq_length": 2048, "batch": 64, "micro_batch_size": 4},
    "launch.sh": {"program": "Hugging Face Trainer", "gpus": 1, "micro_batch_size": 2},
    "cookbook.sh": {"model": "llama3.1_8b", "gpus": 16, "seq_length": 4096, "batch": 128, "sharding": "fsdp2",
                    "state_format": "bf16_all", "recompute": "full"},
    "cookbook_lora.sh": {"model": "llama2_7b", "seq_length": 2048, "micro_batch_size": 4, "recompute": "none",
                         "sharding": "none"},
    "mistral.yaml": {"program": "mistral-finetune", "seq_length": 32768, "micro_batch_size": 1, "recompute": "full"},
    "hyperpod.yaml": {"gpus": 16, "seq_length": 4096, "batch": 128, "micro_batch_size": 2, "sharding": "hsdp",
                      "shard_group": 8, "recompute": "full"},
    "hyperpod_verl.yaml": {"gpus": 8, "seq_length": 1536, "batch": 256, "micro_batch_size": 16, "recompute": "full"},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "scripts").mkdir()
    for name, text in FILES.items():
        (tmp_path / ("deep" if name == "fsdp.yaml" else "scripts") / name).write_text(text, encoding="utf-8")
    return tmp_path / "scripts"


@pytest.mark.parametrize("name", JOBS)
def test_a_file_is_the_job_that_it_starts(folder: Path, name: str) -> None:
    assert_read(folder / name, JOBS[name])


@pytest.mark.parametrize("name", JOBS)
def test_a_file_is_priced(folder: Path, name: str) -> None:
    begun = start(folder / name, "h100", 0)
    assert space_of(begun, [], None, "").workload.seq_length == begun.experiment.seq_length


def test_eager_attention_of_automodel_is_priced(folder: Path) -> None:
    assert read_experiment(folder / "squad.yaml").numbers["attention_kernel"] == "unfused"


def test_a_default_of_a_launcher_is_not_said_where_the_file_has_another(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64"
    actor = " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.model.path=Qwen/Qwen3-8B"
    (tmp_path / "run.sh").write_text(command + actor + " trainer.n_gpus_per_node=8", encoding="utf-8")
    assert not any("gae" in note for note in read_experiment(tmp_path / "run.sh").not_modelled)


@pytest.mark.parametrize("given", ["", " --max_seq_length 2048"])
def test_a_length_that_a_file_leaves_open_is_assumed_and_said(tmp_path: Path, given: str) -> None:
    (tmp_path / "tune.sh").write_text(f"torchrun --nproc_per_node 8 sft.py {TUNE}{given}", encoding="utf-8")
    job = read_experiment(tmp_path / "tune.sh")
    assert job.seq_length == (2048 if given else 1024)
    assert any("seq_length = 1024: the file cuts no row" in note for note in job.assumed) is not bool(given)


def test_a_model_without_a_value_is_none(folder: Path) -> None:
    path = folder / "colossal.sh"
    path.write_text(FILES["colossal.sh"].replace("Qwen/Qwen2.5-7B", "$NOWHERE").replace("$NOWHERE", ""))
    with pytest.raises(InputError, match="names no model; give --model a preset"):
        start(path, "h100", 1)


def test_a_length_by_a_name_of_its_own_is_not_assumed(tmp_path: Path) -> None:
    (tmp_path / "tune.sh").write_text(f"torchrun --nproc_per_node 8 sft.py {TUNE} --max_text_length 300")
    assert read_experiment(tmp_path / "tune.sh").seq_length is None
    (tmp_path / "tune.sh").write_text(f"python sft.py {TUNE} --source_max_len 16 --target_max_len 512")
    assert read_experiment(tmp_path / "tune.sh").seq_length == 528


def test_a_trainer_without_a_configuration_says_that_nothing_is_sharded(folder: Path) -> None:
    said = [note for note in read_experiment(folder / "plain.sh").assumed if note.startswith("sharding = none")]
    assert len(said) == 1 and "accelerate or DeepSpeed" in said[0]


def test_a_module_that_no_model_has_is_refused_in_words(tmp_path: Path) -> None:
    given = " --use_lora True --lora_r 8 --lora_target_modules auto"
    (tmp_path / "tune.sh").write_text(f"torchrun --nproc_per_node 8 train.py {TUNE}{given}", encoding="utf-8")
    with pytest.raises(InputError, match="modules auto; known: "):
        space_of(start(tmp_path / "tune.sh", "h100", 0), [], None, "")


def test_the_vocabulary_that_a_file_of_nemo_overrides_is_the_models(tmp_path: Path) -> None:
    (tmp_path / "qwen.yaml").write_text("""
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model: {micro_batch_size: 1, global_batch_size: 8, tensor_model_parallel_size: 1, encoder_seq_length: 4096,
  num_layers: 40, hidden_size: 2560, ffn_hidden_size: 6912, num_attention_heads: 20, activation: fast-swiglu,
  normalization: rmsnorm, bias: false, position_embedding_type: rope, share_embeddings_and_output_weights: false,
  make_vocab_size_divisible_by: 128, override_vocab_size: 151936}
""")
    model = read_experiment(tmp_path / "qwen.yaml").model
    assert model is not None and model.vocab_size == 151936


def test_a_batch_that_a_node_cannot_share_is_of_fewer_gpus(tmp_path: Path) -> None:
    text = (
        "trainer: {train_batch_size: 4, per_device_parallelism: 1}\nmodel: {type: gpt2, hidden_dim: 768, num_heads: 12"
    )
    (tmp_path / "small.yaml").write_text(text + ", num_layers: 12, seq_len: 1024}\n", encoding="utf-8")
    begun = start(tmp_path / "small.yaml", "h100", 0)
    assert (begun.nodes, begun.per_node, begun.experiment.global_batch_size) == (1, 4, 4)


def test_a_step_with_a_value_model_of_nemo_rl_is_ppo(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text("""
ppo: {num_prompts_per_step: 64}
policy: {model_name: Qwen/Qwen2.5-1.5B-Instruct, train_global_batch_size: 64, train_micro_batch_size: 4,
  max_total_sequence_length: 1024, dtensor_cfg: {enabled: true, tensor_parallel_size: 1}}
cluster: {gpus_per_node: 8, num_nodes: 1}
""")
    assert read_experiment(tmp_path / "ppo.yaml").tuning["task"] == "ppo"


def test_losses_of_pairs_are_steps_of_dpo(tmp_path: Path) -> None:
    (tmp_path / "tune.sh").write_text(
        f"torchrun --nproc_per_node 8 run.py {TUNE} --loss_type apo_zero", encoding="utf-8"
    )
    assert read_experiment(tmp_path / "tune.sh").tuning["task"] == "dpo"


@pytest.mark.parametrize("given", ["--task DPO", "--tuner_type adalora", "--train_type longlora"])
def test_a_step_or_a_tuner_of_another_kind_is_refused_by_its_setting(tmp_path: Path, given: str) -> None:
    (tmp_path / "tune.sh").write_text(f"torchrun --nproc_per_node 8 train.py {TUNE} {given}", encoding="utf-8")
    with pytest.raises(InputError, match=given.split()[1]):
        read_experiment(tmp_path / "tune.sh")


def test_parts_of_a_job_that_are_not_modelled_are_refused_by_their_setting(tmp_path: Path) -> None:
    hetero = "system: {tensor_model_parallel_size: 4}\nmodel: {num_layers: 32, hetero: {enable_hetero: true}}\n"
    factory = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\nuse_kt: true\n"
    for text, said in ((hetero, "stages of different devices"), (factory, "experts run on the processor")):
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_experiment(tmp_path / "job.yaml")


@pytest.mark.parametrize("name", ["ppo_training", "reward_modeling", "run_mlm"])
def test_a_step_that_is_no_fine_tuning_is_known_by_its_program(folder: Path, name: str) -> None:
    path = folder / "plain.sh"
    path.write_text(FILES["plain.sh"].replace("run_clm", name), encoding="utf-8")
    with pytest.raises(InputError, match=f"program or file: {name}: .* is priced by primus-search project --model"):
        read_experiment(path)


def test_several_trainings_that_differ_are_listed_and_those_alike_are_one(tmp_path: Path) -> None:
    path = tmp_path / "tune.sh"
    path.write_text(
        f"for lr in 1e-5 2e-5; do torchrun --nproc_per_node 8 sft.py {TUNE} --max_length 512 --lr $lr; done\n"
        "python evaluate.py --model_name_or_path gpt2"
    )
    assert read_experiment(path).world.gpus == 8
    path.write_text(f"torchrun sft.py {TUNE} --max_length 512\ntorchrun sft.py {TUNE} --max_length 1024")
    with pytest.raises(InputError, match=r"several trainings, which differ in max_length \(512, 1024\): leave one"):
        read_experiment(path)
    assert [read_experiment(path, arguments=["--training", one]).seq_length for one in "12"] == [512, 1024]
    further = TUNE.replace("Llama-2-7b-hf", "Llama-2-7b-chat-hf")
    assert further != TUNE
    path.write_text(f"torchrun sft.py {TUNE} --max_length 512\ntorchrun sft.py {further} --max_length 512")
    assert read_experiment(path).model is not None


ADAPTERS = {
    "qlora.sh": ("python qlora.py --model_name_or_path huggyllama/llama-7b --lora_modules all --bits 4", 64, "nf4"),
    "fsdp.sh": (
        "python train.py --model_name meta-llama/Llama-2-7b-hf --train_type hqq_lora --context_length 512",
        64,
        "nf4",
    ),
    "trainer.sh": (f"torchrun --nproc_per_node 8 finetune.py {TUNE} --use_lora --max_length 512", 16, None),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_by_default_are_said(tmp_path: Path, name: str) -> None:
    text, rank, base = ADAPTERS[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    job = read_experiment(tmp_path / name, 8)
    assert (job.tuning["lora"]["rank"], job.tuning["lora"].get("base")) == (rank, base)
    assert any(note.startswith(f"lora.rank = {rank}: by default of ") for note in job.assumed)


def test_what_deepspeed_leaves_to_the_trainer_is_the_trainers(folder: Path) -> None:
    (folder / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": "auto"}')
    path = folder / "plain.sh"
    path.write_text(FILES["plain.sh"].replace("python", "deepspeed --num_gpus 8") + " --deepspeed zero3.json")
    job = read_experiment(path)
    assert (job.global_batch_size, job.row["sharding"]) == (64, "fsdp2")


def test_a_configuration_by_name_that_decides_the_actor_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "ppo.sh").write_text(
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_mini_batch_size=128 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    )
    with pytest.raises(InputError, match="tensor_model_parallel_size=N to the command"):
        read_experiment(tmp_path / "ppo.sh")


@pytest.mark.parametrize("program", ["tasks/main.py", "../tools/run_text_generation_server.py", "tasks/msdp/main.py"])
def test_programs_of_megatron_that_train_no_decoder_are_refused(tmp_path: Path, program: str) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun {program} --micro-batch-size 8 --tensor-model-parallel-size 1")
    with pytest.raises(InputError, match="a job of its sizes is priced by primus-search project --model MODEL"):
        read_experiment(tmp_path / "run.sh")


@pytest.mark.parametrize(
    ("started", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=3 python sft.py", 1),
        ("export CUDA_VISIBLE_DEVICES=0,1,2,3\npython sft.py", 4),
        ("deepspeed --include localhost:4,5 sft.py", 2),
        ("deepspeed --include=localhost:4,5 --master_port 1 sft.py", 2),
        ("accelerate launch --gpu_ids 0,1,2 sft.py", 3),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 8 sft.py", 8),
        ("python sft.py", 0),
    ],
)
def test_devices_that_a_command_or_its_environment_lists_are_its_world(
    tmp_path: Path, started: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "tune.sh").write_text(f"{started} {TUNE} --max_seq_length 512")
    assert read_experiment(tmp_path / "tune.sh").world.gpus == gpus


@pytest.mark.parametrize(("started", "gpus"), [("python", 1), ("torchrun --nproc_per_node=4", 4)])
def test_one_process_has_one_device(tmp_path: Path, started: str, gpus: int) -> None:
    (tmp_path / "run.sh").write_text(f"{started} qlora.py --model_name_or_path huggyllama/llama-7b")
    job = read_experiment(tmp_path / "run.sh", 8)
    assert (job.world.gpus, job.global_batch_size) == (gpus, 16 * gpus)


def test_a_document_that_is_not_there_is_named(folder: Path) -> None:
    path = folder / "halos.sh"
    assert not any("is not beside" in note for note in read_experiment(path).assumed)
    path.write_text(FILES["halos.sh"].replace("deep/fsdp.yaml", "elsewhere/fsdp.yaml"))
    assert any(note.startswith("elsewhere/fsdp.yaml is not beside the file") for note in read_experiment(path).assumed)


VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=256 actor_rollout_ref.model.path=Qwen/Qwen2-7B "
    "actor_rollout_ref.actor.ppo_micro_batch_size=16 trainer.n_gpus_per_node=8"
)


def test_the_launchers_own_document_lies_beneath_a_command(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "run.sh").write_text(VERL)
    alone = read_experiment(tmp_path / "examples" / "run.sh")
    assert alone.row["recompute"] == "full" and any(note.startswith("recompute = full") for note in alone.assumed)
    own = tmp_path / "verl" / "trainer" / "config"
    own.mkdir(parents=True)
    (own / "ppo_trainer.yaml").write_text(
        "data: {max_prompt_length: 256, max_response_length: 256}\nactor_rollout_ref:\n"
        "  model: {path: ~/x, enable_gradient_checkpointing: False}\n"
        "  actor: {ppo_micro_batch_size_per_gpu: null, ppo_mini_batch_size: 128}\n"
    )
    job = read_experiment(tmp_path / "examples" / "run.sh")
    assert (job.row["recompute"], job.row["micro_batch_size"]) == ("none", 2)
    assert (job.seq_length, job.global_batch_size) == (512, 128)
    (own / "ppo_trainer.yaml").write_text("defaults: [actor]\ndata: {max_prompt_length: 1}\n")
    assert read_experiment(tmp_path / "examples" / "run.sh").seq_length == alone.seq_length


@pytest.mark.parametrize(
    ("given", "formats", "is_unsaid"),
    [
        ("--bf16 True", "stack", False),
        ("--bf16 True --torch_dtype bfloat16", "bf16_all", False),
        ("--bf16 True --torch_dtype bfloat16 --deepspeed ds_z3.json", "stack", False),
        ("--bf16 True --torch_dtype bfloat16 --use_peft True", "stack", False),
        ("", "stack", True),
    ],
)
def test_formats_of_a_trainer_are_those_its_weights_are_loaded_in(
    tmp_path: Path, given: str, formats: str, is_unsaid: bool
) -> None:
    (tmp_path / "tune.sh").write_text(f"torchrun --nproc_per_node 8 sft.py {TUNE} --max_seq_length 512 {given}")
    job = read_experiment(tmp_path / "tune.sh")
    assert job.row["state_format"] == formats
    assert any(note.startswith("precision = bf16") and "--set" not in note for note in job.assumed) is is_unsaid


LORA = {
    "torchtune": (
        "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n  lora_rank: 8\n"
        "checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}\ndtype: bf16\nbatch_size: 2\n"
    ),
    "LitGPT": "checkpoint_dir: checkpoints/meta-llama/Llama-3.2-3B\nprecision: bf16-true\nlora_r: 32\n"
    "train: {global_batch_size: 8, micro_batch_size: 1, max_seq_length: 512}\n",
    "HALOs (FSDP under accelerate)": "accelerate launch launch.py loss=sft model=llama ++model.use_peft=true "
    "++model.name_or_path=meta-llama/Meta-Llama-3-8B",
    "LLaMA-Factory": "model_name_or_path: meta-llama/Meta-Llama-3-8B\nfinetuning_type: lora\npure_bf16: true\n"
    "cutoff_len: 2048\nper_device_train_batch_size: 1\n",
}


@pytest.mark.parametrize(
    ("title", "formats"),
    [
        ("torchtune", "bf16_all"),
        ("LitGPT", "bf16_all"),
        ("LLaMA-Factory", "stack"),
        ("HALOs (FSDP under accelerate)", "stack"),
    ],
)
def test_adapters_of_peft_are_in_fp32_others_in_the_type_of_the_model(tmp_path: Path, title: str, formats: str) -> None:
    """torchtune recipes/lora_finetune_distributed.py: "gradients and optimizer states are in bfloat16"; LitGPT
    litgpt/finetune/lora.py: `fabric.init_module`; peft: `autocast_adapter_dtype`."""
    path = tmp_path / ("tune.sh" if "launch.py" in LORA[title] else "tune.yaml")
    path.write_text(LORA[title])
    job = read_experiment(path, 8)
    assert (job.program, job.tuning["task"], job.row["state_format"]) == (title, "lora", formats)


def test_what_a_batch_depends_on_is_named(tmp_path: Path) -> None:
    text = f"STEPS=$((64 / $(nvidia-smi -L | wc -l)))\ntorchrun sft.py {TUNE} --gradient_accumulation_steps $STEPS"
    (tmp_path / "tune.sh").write_text(text)
    with pytest.raises(InputError, match="depends on STEPS: set them"):
        read_experiment(tmp_path / "tune.sh")


def test_a_program_that_generates_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python qlora.py --model_name_or_path huggyllama/llama-7b --predict_with_generate")
    with pytest.raises(InputError, match="predict_with_generate: True: generates, which trains nothing"):
        read_experiment(tmp_path / "run.sh")


@pytest.mark.parametrize("module", ["train_rm", "train_kto", "train_kd", "train_prm"])
def test_a_module_that_is_started_says_which_step_it_is(tmp_path: Path, module: str) -> None:
    path = tmp_path / "run.sh"
    text = "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B --train_batch_size 256 --max_len 2048"
    path.write_text(f"{text} --micro_train_batch_size 2")
    assert read_experiment(path, 8).global_batch_size == 256
    path.write_text(text.replace("train_sft", module))
    with pytest.raises(InputError, match=f"program or file: openrlhf.cli.{module}: .* is not "):
        read_experiment(path, 8)


@pytest.mark.parametrize("name", ["zephyr-orpo", "out/kto-7b", "llama3_simpo"])
def test_a_step_that_is_not_read_is_known_by_the_name_of_its_output(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config_full.yaml"
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 2\nmax_length: 2048\n"
    path.write_text(f"{text}output_dir: data/zephyr-sft\n")
    assert read_experiment(path, 8).seq_length == 2048
    path.write_text(f"{text}output_dir: {name}\n")
    with pytest.raises(InputError, match=r"output_dir: .* a step of this kind is not read"):
        read_experiment(path, 8)


def test_fine_tuning_of_verl_has_the_recompute_of_its_copy(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.micro_batch_size=8 "
    (tmp_path / "run.sh").write_text(f"{text}model.partial_pretrain=Qwen/Qwen2.5-7B")
    alone = read_experiment(tmp_path / "run.sh")
    assert alone.row["recompute"] == "full" and any(note.startswith("recompute = full") for note in alone.assumed)
    own = tmp_path / "verl" / "trainer" / "config"
    own.mkdir(parents=True)
    (own / "sft_trainer.yaml").write_text("model: {enable_gradient_checkpointing: False}\ndata: {max_length: 512}")
    job = read_experiment(tmp_path / "run.sh")
    assert (job.row["recompute"], job.row["micro_batch_size"], job.seq_length) == ("none", 1, 512)


def test_a_name_that_no_file_can_have_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"bash {'x' * 400}.sh\ntorchrun --nproc_per_node 8 sft.py {TUNE} --max_length 512")
    assert read_experiment(tmp_path / "run.sh").world.gpus == 8


def test_a_deepspeed_configuration_whose_stage_is_not_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "tune.sh").write_text(
        f"deepspeed --num_gpus 8 sft.py {TUNE} --max_length 512 --deepspeed PATH-TO-CONFIG"
    )
    notes = read_experiment(tmp_path / "tune.sh").not_modelled
    assert any("its name does not say the stage" in note for note in notes)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("sft", ("lora", 16, 1, "full")),
        ("sft --per_device_train_batch_size 4", ("lora", 32, 4, "full")),
        ("sft --train_type full --gradient_checkpointing false --gradient_accumulation_steps 4", (None, 32, 1, "none")),
        ("rlhf --rlhf_type grpo --max_completion_length 512 --per_device_train_batch_size 4", ("grpo", 32, 4, "full")),
        ("rlhf --rlhf_type dpo --tuner_type lora", ("dpo", 32, 2, "full")),
    ],
)
def test_what_ms_swift_takes_where_a_command_is_silent(tmp_path: Path, given: str, wanted: tuple[object, ...]) -> None:
    (tmp_path / "run.sh").write_text(
        f"NPROC_PER_NODE=8 swift {given} --model Qwen/Qwen2.5-7B-Instruct --max_length 1024"
    )
    job = read_experiment(tmp_path / "run.sh")
    read = (job.tuning.get("task"), job.global_batch_size, job.row["micro_batch_size"], job.row["recompute"])
    assert read == wanted
    assert ("lora" in job.tuning) is ("full" not in given.split())


OLD_SWIFT = " --sft_type lora --lora_target_modules {} --max_length 1024 --batch_size 1 --gradient_accumulation_steps 8"


@pytest.mark.parametrize(
    ("command", "modules", "wanted"),
    [
        ("torchrun --nproc_per_node=2 llm_sft.py --model_type qwen1half-4b", "DEFAULT", ("qwen1.5_4b", "lora", 16)),
        ("python llm_dpo.py --model_id_or_path X/Mistral-7B-Instruct-v0.1", "ALL", ("mistral_7b_v0.1", "dpo", 16)),
        ("NPROC_PER_NODE=2 swift dpo --model_type yi-6b-chat", "ALL", ("yi_6b", "dpo", 32)),
    ],
)  # fmt: skip
def test_commands_of_ms_swift_before_2024_are_read(
    command: str, modules: str, wanted: tuple[str, str, int], tmp_path: Path
) -> None:
    (tmp_path / "sft.sh").write_text(command + OLD_SWIFT.format(modules))
    job = read_experiment(tmp_path / "sft.sh")
    assert job.model is not None
    assert (job.model.name, job.tuning["task"], job.global_batch_size) == wanted
    assert job.tuning["lora"]["modules"] == (["all-linear"] if modules == "ALL" else ["q_proj", "k_proj", "v_proj"])


def test_a_length_that_a_formula_reads_is_not_said(tmp_path: Path) -> None:
    command = "megatron rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --max_length 8192 --global_batch_size 16"
    (tmp_path / "dpo.sh").write_text(f"NPROC_PER_NODE=4 {command}")
    job = read_experiment(tmp_path / "dpo.sh")
    assert job.seq_length == 8192 and not [one for one in job.not_modelled if "max_length" in one]


def test_pairs_that_a_launcher_counts_by_default_are_two_rows_each(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "deepspeed --module oat.experiment.run_offline --gpus 8 --pretrain Qwen/Qwen2.5-7B"
    )
    job = read_experiment(tmp_path / "run.sh")
    assert (job.tuning["task"], job.global_batch_size, job.row["micro_batch_size"]) == ("dpo", 256, 2)
