"""What scripts and documents of the public were read as otherwise, by kind."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment
from tests.support.launched import assert_read

TUNE = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 --max_seq_length 2048"
SLURM = "#!/bin/bash\n#SBATCH --nodes={}\n#SBATCH --gres=gpu:{}\n"
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "header.sh": (f"{SLURM.format(1, 'a100:2')}accelerate launch sft.py {TUNE}", {"gpus": 2, "batch": 4}),
    "header_of_nodes.sh": (f"{SLURM.format(4, 4)}srun accelerate launch sft.py {TUNE}", {"gpus": 16, "batch": 32}),
    "first_node.sh": (f"{SLURM.format(4, 4)}python sft.py {TUNE}", {"gpus": 4}),
    "later.sh": (
        f"accelerate launch sft.py {TUNE}\nexport CUDA_VISIBLE_DEVICES=0\naccelerate launch -m lm_eval --model hf",
        {"gpus": 0},
    ),
    "before.sh": (
        f"export CUDA_VISIBLE_DEVICES=0,1\naccelerate launch sft.py {TUNE}\nexport CUDA_VISIBLE_DEVICES=0\nls",
        {"gpus": 2},
    ),
    "in_short.sh": (
        f"torchrun --nproc_per_node 8 sft.py {TUNE} --gradient_accumulation 4".replace("batch_size", "batch"),
        {"micro_batch_size": 2, "batch": 64},
    ),
    "both_names.sh": (
        "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 1 --fp16 "
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
        "--position-embedding-type rotary --micro-batch-size 1 --global-batch-size 8 --checkpoint-activations "
        "--recompute-granularity=full --recompute-method uniform",
        {"recompute": "full", "gpus": 8},
    ),
    "counts_arguments.sh": (
        f'if [ "$#" -lt 2 ]; then\n  echo "Usage: $0 NAME DIR"\n  exit 1\nfi\nwhile [ $# -gt 2 ]; do shift; done\n'
        f"torchrun --nproc_per_node 8 sft.py {TUNE} --output_dir $2",
        {"gpus": 8, "batch": 16},
    ),
    "grpo.sh": (
        "torchrun --nproc_per_node 8 src/grpo.py --output_dir <OUTPUT_DIR> --model_name_or_path <PATH-TO-Qwen2-VL-2B> "
        "--max_prompt_length 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 2",
        {"model": "qwen2.5_1.5b", "micro_batch_size": 1, "seq_length": 1536, "batch": 16},
    ),
    "ray.yaml": (
        "model_name_or_path: Qwen/Qwen3-4B\nfinetuning_type: full\ncutoff_len: 2048\nray_num_workers: 4\n",
        {"gpus": 4},
    ),
    "twice.yaml": (
        "train: {args: {per_device_train_batch_size: 2, gradient_checkpointing: true, max_length: 2048}}\n"
        "ds: {gradient_accumulation_steps: auto}\nopt: {gradient_accumulation_steps: 4}\n"
        "model: {main: {model_name_or_path: Qwen/Qwen3-8B, gradient_checkpointing: true}}\n"
        "export: {max_length: 2048}\n",
        {"recompute": "full", "seq_length": 2048, "batch": 128},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_public_file_is_the_job_that_it_starts(name: str, tmp_path: Path) -> None:
    text, expected = FILES[name]
    (tmp_path / name).write_text(text)
    assert_read(tmp_path / name, expected)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("slice.sh", f"{SLURM.format(1, 'h100_3g.40gb:1')}python sft.py {TUNE}", "a slice of a GPU"),
        (
            "counted.sh",
            f'[ "$#" -lt 2 ] && exit 1\nLORA=$2\ntorchrun --nproc_per_node 8 sft.py {TUNE} --lora_r $LORA',
            "depends on ",
        ),
        (
            "template.yaml",
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nper_device_train_batch_size: $BATCH_ROWS\n",
            "depends on BATCH_ROWS",
        ),
        (
            "profiles.yaml",
            "model_name_or_path: Qwen/Qwen3-8B\nsmall: {per_device_train_batch_size: 1}\n"
            "large: {per_device_train_batch_size: 8}\n",
            "depends on per_device_train_batch_size (of small, large)",
        ),
        (
            "presets.yaml",
            "per_device_train_batch_size: 2\nmine: {model_name_or_path: Qwen/Qwen3-8B}\njudge: {model_id: gpt2}\n"
            "other: {model_name_or_path: Qwen/Qwen3-4B}\n",
            "model_name_or_path (of mine, other)",
        ),
    ],
)
def test_what_a_public_file_leaves_open_is_said(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    try:
        problems = read_experiment(tmp_path / name, 8).model_problems
    except InputError as error:
        problems = tuple(error.problems)
    assert any(said in problem.what for problem in problems), problems


def test_a_new_model_is_that_of_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(
        '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, '
        '"intermediate_size": 1024, "vocab_size": 32000, "torch_dtype": "bfloat16"}'
    )
    command = "torchrun --nproc_per_node 8 run_clm.py --config_name /data/own.json --block_size 1024 --bf16"
    (tmp_path / "run.sh").write_text(f"{command} --per_device_train_batch_size 4")
    assert_read(tmp_path / "run.sh", {"model": "own", "seq_length": 1024, "state_format": "stack", "batch": 32})


def test_a_length_by_a_name_of_its_own_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"{TUNE.partition(' --max')[0]} --total_length 2048".replace(" --", "\n")[2:])
    text = (tmp_path / "own.yaml").read_text()
    (tmp_path / "own.yaml").write_text("\n".join(line.replace(" ", ": ", 1) for line in text.splitlines()))
    assert read_experiment(tmp_path / "own.yaml", 8).seq_length is None


def test_a_length_is_that_of_the_program_beside_a_script(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, TrainingArguments\n\n\n"
        "@dataclass\nclass OwnArguments:\n    model_name_or_path: str\n    max_seq_length: int = 4096\n\n\n"
        "own, training = HfArgumentParser((OwnArguments, TrainingArguments)).parse_args_into_dataclasses()\n"
    )
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 tune.py {TUNE.partition(' --max')[0]}")
    assert_read(tmp_path / "run.sh", {"seq_length": 4096})
