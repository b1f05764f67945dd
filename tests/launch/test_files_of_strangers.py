"""Settings that files of strangers have: what they were read as otherwise, by kind."""

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.learning.logged_job import read_job
from primus_search.learning.started_experiment import start
from primus_search.models.model_files import load_model
from primus_search.values.model.adapters import modules_of
from tests.support.launched import assert_read

TUNE = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 --max_seq_length 2048"
OLMO = """
model: {d_model: 2048, n_heads: 16, n_layers: 16, mlp_ratio: 8, rope: true, activation_type: swiglu,
  include_bias: false, max_sequence_length: 2048, vocab_size: 50280, embedding_size: 50304, weight_tying: false}
global_train_batch_size: 64
device_train_microbatch_size: 4
"""
RL2 = "torchrun --nproc_per_node=8 -m RL2.trainer."
DSTACK = f"""
type: task
nodes: 2
env:
  - HF_TOKEN
  - MODEL=meta-llama/Llama-2-7b-hf
commands:
  - pip install trl
  - torchrun --nnodes=$DSTACK_NODES_NUM --nproc_per_node=$DSTACK_GPUS_PER_NODE sft.py
    {TUNE.replace("meta-llama/Llama-2-7b-hf", "$MODEL")}
resources:
  gpu: {{name: H100, count: 4}}
"""
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "replicated.yaml": (OLMO + "distributed_strategy: ddp\nprecision: amp_bf16\n", {"sharding": "none"}),
    "sharded.yaml": (OLMO + "distributed_strategy: fsdp\nprecision: amp_bf16\n", {"sharding": "fsdp2"}),
    "offloaded.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE} --fsdp 'full_shard auto_wrap offload'",
        {"sharding": "fsdp2", "optimizer_offload": 100},
    ),
    "one.yaml": (
        TUNE.replace("--", "\n").replace("_path ", "_path: ").replace("size ", "size: ").replace("length ", "length: ")
        + "\nfsdp: full_shard\nfsdp_config: {activation_checkpointing: true}\n",
        {"recompute": "full", "micro_batch_size": 2},
    ),
    "twice.yaml": (
        "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\ncutoff_len: 512\ncutoff_len: 4096\n",
        {"seq_length": 4096},
    ),
    "dstack.yaml": (DSTACK, {"model": "llama2_7b", "gpus": 8, "batch": 16}),
    "first_swift.sh": (
        "NPROC_PER_NODE=2 swift sft --model_type qwen2-1_5b-instruct --model_id_or_path /mnt/mine --sft_type full "
        "--batch_size 4 --max_length 8192 --gradient_accumulation_steps 8",
        {"model": "qwen2.5_1.5b", "gpus": 2, "micro_batch_size": 4, "batch": 64},
    ),
    "modelscope.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace(
            "meta-llama/Llama-2-7b-hf", "/m/Qwen/Qwen2___5-7B-Instruct"
        ),
        {"model": "qwen2.5_7b"},
    ),
    "one_process.sh": (
        "CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --max_length 2048 "
        "--gradient_accumulation_steps 16",
        {"gpus": 1, "batch": 16},
    ),
    "two_processes.sh": (
        "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --max_length 2048 "
        "--gradient_accumulation_steps 16",
        {"gpus": 2, "batch": 32},
    ),
    "checkpointing.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE} --use_gradient_checkpointing",
        {"recompute": "full"},
    ),
    "verl.sh": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B "
        "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        {"gpus": 8, "batch": 32},
    ),
    "limo.sh": (
        RL2 + "sft data.train.max_length=16384 data.train.batch_size=32 actor.model_name=Qwen/Qwen2.5-7B-Instruct "
        "actor.cp_size=4 actor.max_length_per_device=8192",
        {"program": "RL2 (FSDP)", "gpus": 8, "seq_length": 16384, "batch": 32, "cp": 4, "micro_batch_size": 2},
    ),
    "reinforce.sh": (
        RL2 + "ppo rollout.train.prompts_per_rollout=128 rollout.train.responses_per_prompt=8 actor.cp_size=2 "
        "rollout.train.sampling_params.max_new_tokens=8192 actor.model_name=Qwen/Qwen2.5-7B actor.update_per_rollout=4 "
        "actor.max_length_per_device=8192 rollout.env_path=envs/orz.py",
        {"seq_length": 8192, "batch": 256, "micro_batch_size": 2, "cp": 2},
    ),
    "older.sh": (
        RL2 + "ppo train_data.prompts_per_rollout=128 train_data.responses_per_prompt=8 actor.sp_size=2 "
        "rollout.train_sampling_params.max_new_tokens=4096 actor.model_name=Qwen/Qwen3-1.7B "
        "actor.max_length_per_device=4096 actor.use_lora=true actor.lora.r=16",
        {"seq_length": 4096, "batch": 1024, "micro_batch_size": 2, "cp": 2},
    ),
    "tune.yaml": (
        "tokenizer: {max_seq_len: 1024}\nmodel: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b}\n"
        "checkpointer: {checkpoint_dir: models/mine}\nbatch_size: 4\noptimizer: {_component_: torch.optim.AdamW}\n",
        {"model": "llama3.1_8b", "micro_batch_size": 4},
    ),
    "older_ppo.sh": (
        "deepspeed --num_gpus 8 src/train_ppo.py --pretrain /m/Mistral-7B-Instruct-v0.3 --micro_train_batch_size 2 "
        "--train_batch_size 128 --prompt_max_len 1024 --generate_max_len 1024 --zero_stage 2 --bf16 --adam_offload",
        {"program": "OpenRLHF", "seq_length": 2048, "batch": 128, "micro_batch_size": 2, "optimizer_offload": 100},
    ),
    "older_sft.sh": (
        "deepspeed --num_gpus 8 ../../examples/train_guide_sft.py --pretrain /m/Qwen2-7B-Instruct/ --max_len 6400 "
        "--micro_train_batch_size 2 --train_batch_size 16 --zero_stage 3 --bf16",
        {"program": "OpenRLHF (fine-tuning)", "seq_length": 6400, "batch": 16, "sharding": "fsdp2"},
    ),
    "recipes.sh": (
        "torchrun --nnodes 1 --nproc_per_node 2 finetuning_llama.py --batch_size_training 64 --enable_fsdp "
        "--model_name meta-llama/Llama-2-7b-hf --pure_bf16",
        {"gpus": 2, "model": "llama2_7b"},
    ),
    "cached.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace(
            "meta-llama/Llama-2-7b-hf", "ckpts/models--Qwen--Qwen2.5-14B-Instruct/snapshots/cf98f3b3"
        ),
        {"model": "qwen2.5_14b"},
    ),
    "version.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace("meta-llama/Llama-2-7b-hf", "Mistral-7B-Instruct-v0.3"),
        {"model": "mistral_7b"},
    ),
    "tuned.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace("meta-llama/Llama-2-7b-hf", "/m/Hermes-3-Llama-3.1-8B"),
        {"model": "llama3.1_8b"},
    ),
    "folder.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace(
            "meta-llama/Llama-2-7b-hf", "out/x/Llama-3.1-8B/1e-5-len8"
        ),
        {"model": "llama3.1_8b"},
    ),
    "owner.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE}".replace("meta-llama/Llama-2-7b-hf", "/m/me/llama-2-7b-chat-T/"),
        {"model": "llama2_7b"},
    ),
    "kept.sh": (
        f"accelerate launch --num_processes 8 --deepspeed_config_file zero3_nooffload.conf sft.py {TUNE}",
        {"sharding": "fsdp2", "optimizer_offload": 0},
    ),
    "llama2.toml": (
        '[model]\nname = "llama2"\nflavor = "13B"\n[training]\nbatch_size = 2\nseq_len = 2048\n',
        {"model": "llama2_13b", "seq_length": 2048, "micro_batch_size": 2},
    ),
    "areal.yaml": (
        "allocation_mode: sglang:d2p1t1+d6p1t1\nactor: {path: '${oc.env:BASE,Qwen/Qwen2.5-7B}', ppo_n_minibatches: 1}\n"
        "cluster: {n_gpus_per_node: 8}\ngconfig: {n_samples: 8, max_new_tokens: 1024}\n"
        "train_dataset: {batch_size: 6, max_length: 1024}\n",
        {"program": "AReaL (FSDP)", "model": "qwen2.5_7b", "gpus": 6, "seq_length": 2048, "batch": 48},
    ),
    "hosts.sh": (
        "#SBATCH --nodelist=gpu-[7-8]\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 sft.py " + TUNE,
        {"gpus": 8, "batch": 16},
    ),
    "one_device.sh": (f"python pretraining.py {TUNE} --device_map auto", {"gpus": 1, "batch": 2}),
    "eight.sh": (f"torchrun --nproc_per_node 8 pretraining.py {TUNE} --device_map auto", {"gpus": 8, "batch": 16}),
    "sections.yaml": (
        "model: {hf_model_ckpt: NousResearch/Llama-2-7b-hf, bitsandbytes: {load_in_4bit: true}}\n"
        "lora: {r: 32, target_modules: [q_proj, v_proj]}\ntraining:\n"
        "  training_args: {per_device_train_batch_size: 4, gradient_accumulation_steps: 2, bf16: true}\n"
        "  sft_args: {max_seq_length: 5000}\n",
        {"model": "llama2_7b", "micro_batch_size": 4, "seq_length": 5000},
    ),
    "factory.yaml": (
        "backend: llamafactory\nllamafactory: {model_name_or_path: Qwen/Qwen2.5-7B, stage: sft, "
        "finetuning_type: full,\n  cutoff_len: 4096, per_device_train_batch_size: 2}\n",
        {"program": "LLaMA-Factory", "model": "qwen2.5_7b", "seq_length": 4096},
    ),
    "copy_sft.sh": (
        "read -r -d '' training_commands <<EOF\nsrc.cli.train_sft --max_len 16384 --train_batch_size 256 "
        "--zero_stage 2 --micro_train_batch_size 1 --pretrain Qwen/Qwen2.5-Math-1.5B\nEOF\n"
        "torchrun --nproc_per_node 4 --nnodes 1 -m ${training_commands}",
        {"program": "OpenRLHF (fine-tuning)", "gpus": 4, "seq_length": 16384, "batch": 256, "sharding": "zero2"},
    ),
    "no_limit.sh": (
        "NPROC_PER_NODE=4 swift sft --model_type llama3-llava-next-8b --sft_type lora --batch_size 1 --max_length -1",
        {"model": "llama3_8b", "gpus": 4},
    ),
    "fork.sh": (
        "torchrun --nproc_per_node 8 own-train --stage sft --finetuning_type full --model_name_or_path Qwen/Qwen2.5-7B "
        "--per_device_train_batch_size 2 --cutoff_len 2048",
        {"program": "LLaMA-Factory", "batch": 16},
    ),
    "pairs.sh": (
        RL2 + "dpo data.train.max_length=1024 actor.model_name=Qwen/Qwen2.5-7B actor.max_length_per_device=4096",
        {"batch": 256, "micro_batch_size": 4},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_strangers_is_the_job_that_it_starts(name: str, tmp_path: Path) -> None:
    text, wanted = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert_read(tmp_path / name, wanted)
    begun = start(tmp_path / name, "h100", 0)
    assert space_of(begun, [], None, "").workload.seq_length == begun.experiment.seq_length


def test_a_document_that_a_command_names_has_the_setting_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text('{"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}}')
    (tmp_path / "run.sh").write_text(f"NPROC_PER_NODE=8 swift sft --tuner_type full --fsdp fsdp.json {TUNE}")
    assert read_experiment(tmp_path / "run.sh").row["sharding"] == "fsdp2"


@pytest.mark.parametrize(("more", "rank"), [("r: 32", 32), ("layers_to_transform: [24, 25]", 0)])
def test_adapters_by_the_names_of_peft_are_read_and_those_of_some_layers_refused(
    more: str, rank: int, tmp_path: Path
) -> None:
    path = tmp_path / "school_of_reward_hacks.yaml"  # what a document is called is no program
    path.write_text(
        f"model: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\nlora_alpha: 64\nmax_seq_length: 2048\n{more}\n"
    )
    if rank:
        assert read_experiment(path).tuning["lora"]["rank"] == rank
    else:
        with pytest.raises(InputError, match="layers_to_transform"):
            read_experiment(path)


def test_arguments_that_a_script_wants_are_called_as_it_calls_them(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "fill() { local part=$4; }\nused=$(df / | awk '{print $5}')\nMODEL=$1\nexport GPUS=\"$2\"\nSEED=${3:-1}\n"
        "torchrun --nproc_per_node 8 sft.py --per_device_train_batch_size $GPUS --max_length 512 --model_name $MODEL\n"
    )
    with pytest.raises(InputError, match=r"depends on GPUS: .* --args '<MODEL> <GPUS>'$"):
        read_experiment(path)
    assert read_experiment(path, arguments=("Qwen/Qwen3-8B", "4")).row["micro_batch_size"] == 4


def test_a_script_that_ends_before_its_training_says_where(tmp_path: Path) -> None:
    command = "swift sft --model Qwen/Qwen3-8B --tuner_type full --max_length 512"
    (tmp_path / "run.sh").write_text(f"set -e\nexit 0\n{command}\n")
    with pytest.raises(InputError, match=r"line 2: the script exits before it starts a training$"):
        read_experiment(tmp_path / "run.sh")


def test_a_program_that_is_called_after_adapters_trains_them(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 train_alpaca_lora.py {TUNE}")
    job = read_experiment(tmp_path / "run.sh")
    assert job.tuning["task"] == "lora" and any(note.startswith("lora.rank = 16: by default") for note in job.assumed)


def test_json_with_arguments_of_megatron_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"argv": ["pretrain_gpt.py", "--tensor-model-parallel-size", "4"]}')
    with pytest.raises(InputError, match="is JSON whose keys no launcher that is read has"):
        read_experiment(tmp_path / "run.json")


def test_a_step_of_its_own_of_rl2_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(RL2 + "spo actor.model_name=Qwen/Qwen3-4B actor.max_length_per_device=4096")
    with pytest.raises(InputError, match="a step of this kind is not read; ppo, sft and dpo are"):
        read_experiment(tmp_path / "run.sh")


def test_a_configuration_that_is_not_there_is_not_the_launchers_own(tmp_path: Path) -> None:
    own = tmp_path / "verl" / "trainer" / "config"
    own.mkdir(parents=True)
    (own / "sft_trainer.yaml").write_text("model: {partial_pretrain: google/gemma-2b-it}\ndata: {max_length: 1024}\n")
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer --config_path=/x/sft.yaml\n")
    with pytest.raises(InputError, match="settings stand in a YAML or TOML that is not beside it"):
        read_experiment(path)


def test_trainings_by_documents_that_differ_are_several(tmp_path: Path) -> None:
    tune = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\ncutoff_len: {}\n"
    for name, length in (("a", 512), ("b", 4096), ("c", 512)):
        (tmp_path / f"{name}.yaml").write_text(tune.format(length))
    path = tmp_path / "run.sh"
    path.write_text("llamafactory-cli train a.yaml\nllamafactory-cli train b.yaml\n")
    with pytest.raises(InputError, match=r"several trainings, which differ in cutoff_len \(512, 4096\)"):
        read_experiment(path)
    path.write_text("".join(f"accelerate launch --config_file {one}.yaml sft.py {TUNE}\n" for one in ("x", "y")))
    with pytest.raises(InputError, match=r"several trainings, which differ in configuration \(x.yaml, y.yaml\)"):
        read_experiment(path)
    path.write_text("llamafactory-cli train a.yaml\nllamafactory-cli train --cutoff_len 9 --finetuning_type full\n")
    with pytest.raises(InputError, match=r"several trainings, which differ in cutoff_len \(512, 9\)"):
        read_experiment(path)
    path.write_text("llamafactory-cli train a.yaml\nllamafactory-cli train c.yaml\n")
    assert read_experiment(path).seq_length == 512


def test_a_configuration_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train mine/full_sft.yaml\n")
    with pytest.raises(InputError, match="settings stand in a YAML or TOML that is not beside it"):
        read_experiment(tmp_path / "run.sh")


@pytest.mark.parametrize(
    ("given", "task"),
    [
        ("--use_lora False --lora_r 8", None),
        ("--lora_target q_proj,v_proj", "lora"),
        ("--use_lora True --lora_r 8", "lora"),
    ],
)
def test_a_switch_that_is_off_leaves_no_adapters(given: str, task: str | None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 train.py {TUNE} {given}")
    assert read_experiment(tmp_path / "run.sh").tuning.get("task") == task


def test_a_batch_without_a_value_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "SIZE=$(wc -l < hosts)\ndeepspeed examples/train_sft.py --pretrain Qwen/Qwen2-7B --max_len 512 --zero_stage 3 "
        "--micro_train_batch_size 2 --train_batch_size --bf16\n"
    )
    with pytest.raises(InputError, match="global_batch_size: no value: set what the file takes it from"):
        read_experiment(tmp_path / "run.sh")


def test_adapters_of_swifts_grpo_are_on_every_product(tmp_path: Path) -> None:
    command = "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --tuner_type lora --max_length 512"
    (tmp_path / "run.sh").write_text(f"{command} --max_completion_length 512")
    assert read_experiment(tmp_path / "run.sh").tuning["lora"]["modules"] == ["all-linear"]


OF_RUN = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--model", default="Qwen/Qwen2.5-7B")
    given = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(given.model)
    args = TrainingArguments("out", per_device_train_batch_size=given.batch, bf16=True, max_length=2048)
    Trainer(model=model, args=args).train()
main()
"""


def test_a_program_that_a_script_starts_is_read_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "own_loop.py").write_text(OF_RUN)
    path = tmp_path / "run" / "job.sh"
    path.write_text("torchrun --nproc_per_node 4 elsewhere.py --batch 8")
    with pytest.raises(InputError, match="is a script that starts a program which is not read"):
        read_experiment(path)
    path.write_text("cd ..\ntorchrun --nproc_per_node 4 own_loop.py --batch $[16/2]")
    job = read_experiment(path)
    assert (job.world.gpus, job.row["micro_batch_size"], job.global_batch_size) == (4, 8, 32)
    (tmp_path / "own_loop.py").write_text("import torch\ntorch.rand(2).sum().backward()\nmain()\n")
    with pytest.raises(InputError, match=r"starts own_loop\.py, which is a training loop of its own, and is not read"):
        read_experiment(path)


SLIME = (
    "python train.py --hf-checkpoint Qwen/Qwen3-8B --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size"
    " 64 --global-batch-size 64 --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 8192 "
)


def test_fine_tuning_of_slime_has_rows_as_long_as_a_device_is_given(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SLIME + "--loss-type sft_loss --context-parallel-size 2")
    job = read_experiment(tmp_path / "run.sh")
    assert (job.seq_length, job.row["micro_batch_size"], job.tuning["task"]) == (16384, 1, "sft")
    (tmp_path / "run.sh").write_text(SLIME + "--loss-type sft_loss --rollout-max-response-len 4096")
    assert read_experiment(tmp_path / "run.sh").row["micro_batch_size"] == 2
    (tmp_path / "run.sh").write_text(SLIME)
    assert not read_experiment(tmp_path / "run.sh").seq_length


def test_rows_of_data_that_a_command_names_hold_no_settings(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 sft.py --train_file train.json {TUNE}")
    assert read_experiment(tmp_path / "run.sh").world.gpus == 8


def test_keys_of_glm_5_are_gathered_over_ranks_of_context(tmp_path: Path) -> None:
    spec = (
        "--spec slime_plugins.models.glm5.glm5 get_glm5_spec --context-parallel-size 2 --rollout-max-response-len 8192"
    )
    (tmp_path / "run.sh").write_text(SLIME.replace("Qwen/Qwen3-8B", "zai-org/GLM-5") + spec)
    assert read_experiment(tmp_path / "run.sh").row["cp_comm"] == "all_gather"
    (tmp_path / "run.sh").write_text(SLIME + spec.replace("glm5", "qwen3"))
    assert read_experiment(tmp_path / "run.sh").row["cp_comm"] != "all_gather"


ROLL = """
pretrain: Qwen/Qwen2.5-7B
prompt_length: 1024
response_length: 3072
actor_train:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 16}
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 2}}
  device_mapping: list(range(0,8))
actor_infer: {strategy_args: {strategy_name: vllm, strategy_config: {tensor_parallel_size: 4}}}
"""


@pytest.mark.parametrize("name", ["grpo.yaml", "example_ppo.yaml"])
def test_a_launcher_of_its_own_comes_before_sections_of_a_trainer(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(ROLL)
    job = read_experiment(tmp_path / name)
    assert (job.program, job.row["tp"], job.global_batch_size) == ("ROLL (Megatron)", 2, 128)


OLD = "python pretrain_gpt2.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --fp16"


def test_a_script_of_slurm_with_lines_of_its_log_is_a_script(tmp_path: Path) -> None:
    said = "iteration 500/ 1000 | elapsed time per iteration (ms): 2800.9 | learning rate: 1.5E-04 | loss: 6.2"
    (tmp_path / "run.slurm").write_text(
        f"#!/bin/bash\n# {said}\n{OLD} --micro-batch-size 4 --train-iters 9\n# {said}\n"
    )
    assert read_job(tmp_path / "run.slurm").row["micro_batch_size"] == 4


AUTOMODEL = """
recipe: RECIPE
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}
distributed: {strategy: fsdp2, tp_size: 1}
packed_sequence: {packed_sequence_size: 4096}
"""


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("DiffusionLMSFTRecipe", "a loss of masked tokens"),
        ("{_target_: nemo_automodel.recipes.retrieval.TrainBiEncoderRecipe}", "a head of classes or of embeddings"),
        ("TrainFinetuneRecipeForSequenceClassification", "a head of classes or of embeddings"),
        ("TrainFinetuneRecipeForNextTokenPrediction", ""),
    ],
)
def test_a_recipe_of_automodel_says_what_is_trained(recipe: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(AUTOMODEL.replace("RECIPE", recipe))
    if not said:
        assert read_experiment(tmp_path / "job.yaml").seq_length == 4096
        return
    with pytest.raises(InputError, match=said):
        read_experiment(tmp_path / "job.yaml")


FREEZES = "for name, weight in model.named_parameters():\n    if name != head:\n        weight.requires_grad = False\n"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(1)\n" + FREEZES, r"starts own\.py, which trains some of its model's weights alone"),
        ("import colossalai\n", r"starts own\.py, which is a program of ColossalAI"),
        ("if args.freezes:\n" + indent(FREEZES, "    "), ""),
        ("import peft\n" + FREEZES, ""),
        ("print(1)\n" + FREEZES.replace("in model", "in teacher"), ""),
    ],
)
def test_a_program_beside_its_command_says_what_it_trains(program: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(program)
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 own.py {TUNE}")
    if not said:
        assert read_experiment(tmp_path / "run.sh").world.gpus == 8
        return
    with pytest.raises(InputError, match=said):
        read_experiment(tmp_path / "run.sh")


def test_a_program_of_its_own_launcher_is_read(tmp_path: Path) -> None:
    (tmp_path / "train_sft.py").write_text("import colossalai\n")
    command = "colossalai run --nproc_per_node 8 train_sft.py --pretrain Qwen/Qwen2.5-7B --plugin zero2 --batch_size 2"
    (tmp_path / "run.sh").write_text(command)
    assert read_experiment(tmp_path / "run.sh").row["micro_batch_size"] == 2


def test_adapters_of_falcon_are_called_as_its_layers_are() -> None:
    model = load_model("falcon_7b")
    of_hub = modules_of(model, ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"])
    assert of_hub == modules_of(model, ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])


def test_a_file_by_the_last_parts_of_its_path_lies_above(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    path = tmp_path / "scripts" / "run.sh"
    path.write_text(f"deepspeed --num_gpus 8 sft.py --deepspeed /home/me/own/configs/zero3.json {TUNE}")
    assert read_experiment(path).row["sharding"] == "fsdp2"


def test_sizes_in_a_json_that_a_script_names_are_its_model(tmp_path: Path) -> None:
    (tmp_path / "llama.json").write_text(
        '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, '
        '"vocab_size": 999, "intermediate_size": 2048}'
    )
    path = tmp_path / "run.sh"
    path.write_text("accelerate launch own.py --model_config llama.json --per_device_train_batch_size 2")
    model = read_experiment(path).model
    assert model is not None and (model.hidden, model.num_layers) == (512, 4)


def test_verls_evaluation_trains_nothing(tmp_path: Path) -> None:
    own = tmp_path / "verl" / "trainer" / "config"
    own.mkdir(parents=True)
    (own / "ppo_trainer.yaml").write_text(
        "data: {train_batch_size: 8}\nactor_rollout_ref:\n  model: {path: Qwen/Qwen2.5-7B}\n  actor: {ppo_epochs: 1}\n"
    )
    for module in ("recipe.r1.main_eval", "verl.trainer.main_generation"):
        (tmp_path / "run.sh").write_text(f"python3 -m {module} data.path=a.parquet trainer.nnodes=1")
        with pytest.raises(InputError, match=r"trains nothing|is not read"):
            read_experiment(tmp_path / "run.sh")
    job = read_experiment(own / "ppo_trainer.yaml", 8)
    assert any(note.startswith("micro_batch_size = 1: no micro-batch") for note in job.assumed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"torchrun sft.py {TUNE} --model_provider custom", "a job of a service"),
        ("own-cli rm --deepspeed configs/zero2.json " + TUNE, "a head of classes or rewards"),
        (f"torchrun --nproc_per_node 8 own.py {TUNE} --tp 2", "degrees of a program of its own"),
        (f"source inner.sh\ntorchrun --nproc_per_node 8 own.py {TUNE}", "AWS Trainium"),
        (f"deepspeed main.py --lora_dim 128 {TUNE}", "train beside all weights"),
        (f"sed -e s/a/b/ \\\n -e s/autotp_size/4/ t > c\ndeepspeed own.py --deepspeed c {TUNE}", "itself .autotp_size"),
        (f"swift sft --task_type generative_reranker --train_type full {TUNE}", "a head of classes or of embeddings"),
        (f"llamafactory-cli train --stage sft --do_predict true --finetuning_type full {TUNE}", "trains nothing"),
    ],
)
def test_what_a_file_of_strangers_starts_otherwise_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("export NEURON_CC_FLAGS=-O1\n")
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(InputError, match=said):
        read_experiment(tmp_path / "run.sh")


def test_a_fork_of_torchtitan_has_the_vocabulary_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    text = """[model]
name = "llama3"
flavor = "8B"
[training]
vocab_size = {rows}
local_batch_size = 1
seq_len = 8192
dataset = "c4"
"""
    for rows, expected in ((256, 256), (-1, 128256)):
        path.write_text(text.replace("{rows}", str(rows)))
        job = read_experiment(path, 8)
        assert job.model is not None and job.model.vocab_size == expected


def test_nodes_of_deepspeed_without_processes_are_whole(tmp_path: Path) -> None:
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512"
    path = tmp_path / "run.sh"
    path.write_text(f"deepspeed --num_nodes=2 pretrain_gpt.py {sizes} --micro-batch-size 1 --global-batch-size 64")
    begun = start(path, "h100", 0)
    assert (begun.nodes, begun.per_node) == (2, 8)
    assert not any("started_nodes" in note for note in begun.notes)


def test_what_sections_say_of_adapters_and_processes_counts(tmp_path: Path) -> None:
    text = """model: {model_name: TinyLlama/TinyLlama-1.1B-Chat-v1.0, torch_dtype: bfloat16, %s}
lora: {r: 8, alpha: 24, dropout: 0.2, target_modules: [q_proj]}
training: {per_device_train_batch_size: 2, gradient_accumulation_steps: 4, max_length: 512}
"""
    path = tmp_path / "own.yaml"
    path.write_text(text % "bnb_4bit_quant_type: nf4")
    job = read_experiment(path, 8)
    expected = {"rank": 8, "alpha": 24.0, "dropout": 0.2, "modules": ["q_proj"], "base": "nf4"}
    assert job.tuning["task"] == "qlora" and job.tuning["lora"] == expected
    path.write_text(text % "bnb_4bit_quant_type: nf4, load_in_4bit: false, device_map: auto")
    job = read_experiment(path, 8)
    assert job.tuning["task"] == "lora" and "base" not in job.tuning["lora"]
    assert (job.world.gpus, job.global_batch_size) == (1, 8)


def test_engines_of_verl_whose_degrees_are_not_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    own = "model_engine=%s actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=64"
    path.write_text(f"python3 -m verl.trainer.main_ppo {own % 'veomni'}")
    with pytest.raises(InputError, match="degrees of an engine of this name"):
        read_experiment(path)
    path.write_text(f"python3 -m verl.trainer.main_ppo {own % 'dp'} data.max_prompt_length=512")
    assert read_experiment(path, 8).model is not None


def test_a_placeholder_to_fill_in_takes_no_argument_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        'OWN="--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 '
        '--data-path 0.2 <PATH TO ONE> --vocab-file <PATH TO vocab.json> --load <DIRECTORY> --micro-batch-size 3"\n'
        "python pretrain_gpt.py $OWN --global-batch-size 6 <own.txt >log.txt\n"
    )
    job = read_experiment(path, 1)
    assert (job.row["micro_batch_size"], job.global_batch_size) == (3, 6)
