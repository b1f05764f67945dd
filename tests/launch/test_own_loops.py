"""Loops of nanoGPT, its configurations and commands, and programs in Python around a GPT-2 of their own."""

import random
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment
from tests.support.launched import assert_read

TRAIN = """
import os
from model import GPTConfig, GPT
wandb_log = False
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
max_iters = 600000
decay_lr = True
dtype = "bfloat16"
exec(open("configurator.py").read())
model = GPT(GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size))
"""
LAYERS = """
import torch.nn as nn
from dataclasses import dataclass
class LayerNorm(nn.Module): ...
class CausalSelfAttention(nn.Module): ...
class MLP(nn.Module): ...
class Block(nn.Module):
    def __init__(self, config):
        self.ln_1 = LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = MLP(config)
@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
class GPT(nn.Module):
    def __init__(self, config):
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
"""
LARGER = "wandb_log = True\nbatch_size = 6\nn_layer = 24\nn_head = 16\nn_embd = 1024\n"
LOOP = (
    LAYERS
    + """
import os, torch
import torch.distributed as dist
if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("nccl")
total_batch_size = 524288
B, T = 32, 1024
model = GPT(GPTConfig(vocab_size=50304, n_layer=24, n_head=16, n_embd=1024))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoaderLite(B=B, T=T)
for step in range(100):
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        logits, loss = model(loader.next_batch())
    loss.backward()
    optimizer.step()
"""
)
OWN = "training loop of torch around a GPT-2 of its own (program in Python)"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of nanoGPT with a configuration that names some of its settings."""
    (tmp_path / "config").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text(LAYERS)
    (tmp_path / "config" / "larger.py").write_text(LARGER)
    return tmp_path


def test_a_configuration_and_flags_are_laid_over_the_program(copy: Path) -> None:
    larger = {"program": "nanoGPT (DDP)", "seq_length": 1024, "batch": 240, "micro_batch_size": 6}
    (copy / "run.sh").write_text("torchrun --nproc_per_node=8 train.py config/larger.py\n")
    assert_read(copy / "run.sh", {**larger, "gpus": 8})
    (copy / "run.sh").write_text("python train.py config/larger.py --batch_size=2 --block_size=512\n")
    assert_read(copy / "run.sh", {"gpus": 1, "batch": 80, "micro_batch_size": 2, "seq_length": 512})
    job = read_experiment(copy / "train.py", 8, arguments=["config/larger.py", "--batch_size=4"])
    assert job.model is not None
    assert (job.model.num_layers, job.row["micro_batch_size"], job.global_batch_size) == (24, 4, 160)


def test_a_fork_without_processes_is_of_one_gpu(copy: Path) -> None:
    (copy / "train.py").write_text(f"{TRAIN}loss.backward()\n")
    for file in ("train.py", "config/larger.py"):
        (copy / "config" / "larger.py").write_text(
            LARGER + "block_size = 1024\nmax_iters = 9\ngradient_accumulation_steps = 8\n"
        )
        assert_read(copy / file, {"gpus": 1})
    (copy / "train.py").write_text(f"{TRAIN}init_process_group(backend='nccl')\nloss.backward()\n")
    assert_read(copy / "train.py", {"gpus": 0, "batch": 480})


def test_layers_of_a_checkpoint_count_before_those_of_the_file(copy: Path) -> None:
    (copy / "config" / "tune.py").write_text(
        "init_from = 'gpt2-xl'\nwandb_log = False\nmax_iters = 20\nbatch_size = 1\ngradient_accumulation_steps = 32\n"
    )
    job = read_experiment(copy / "config" / "tune.py", 8)
    assert job.model is not None
    assert (job.model.num_layers, job.model.hidden, job.model.vocab_size) == (48, 1600, 50257)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("use_deepspeed = True", "DeepSpeed or FSDP"),
        ("zero_stage = 2", "DeepSpeed or FSDP"),
        ("distill_ratio = 0.9", "a step of this kind"),
        ("n_kv_head = 4", "layers that nanoGPT does not have"),
        ("num_experts = 8", "layers that nanoGPT does not have"),
        ("use_muon = True", "an optimizer whose states"),
        ("optimizer = 'sophia'", "an optimizer whose states"),
        ("eval_only = True", "trains nothing"),
        ("model_args = dict(n_layer=n_layer, n_state=384)", "defines model_args.n_state"),
        ("class RotaryEmbedding(nn.Module): ...", "defines RotaryEmbedding, so that its layers may be others"),
    ],
)
def test_a_fork_with_another_step_or_layers_is_refused(copy: Path, line: str, why: str) -> None:
    (copy / "train.py").write_text(f"{TRAIN}{line}\n")
    for file in ("train.py", "run.sh"):
        (copy / "run.sh").write_text("torchrun --nproc_per_node=8 train.py config/larger.py\n")
        with pytest.raises(InputError, match=why):
            read_experiment(copy / file, 8)
    off = line.replace("True", "False").replace("= 2", "= 0").replace("0.9", "0.0").replace("= 8", "= 0")
    (copy / "train.py").write_text(f"{TRAIN}{off.replace('= 4', '= 0').replace('sophia', 'adamw')}\n")
    if "class" not in line and "dict" not in line:
        read_experiment(copy / "train.py", 8)


def test_layers_beside_a_program_are_those_that_are_trained(copy: Path) -> None:
    for other in ("class RMSNorm(nn.Module): ...\n", "@dataclass\nclass GPTConfig:\n    n_kv_head: int = 4\n"):
        (copy / "model.py").write_text(LAYERS + other)
        for file in ("train.py", "config/larger.py"):
            (copy / "config" / "larger.py").write_text(LARGER + TRAIN.partition("exec(")[0])
            with pytest.raises(InputError, match=r"layers may be others|layers that nanoGPT does not have"):
                read_experiment(copy / file, 8)


def test_layers_are_those_of_the_modules_that_a_program_imports(copy: Path) -> None:
    (copy / "models").mkdir()
    text = TRAIN.replace("from model import", "from models.model import") + "init_process_group()\nloss.backward()\n"
    (copy / "train.py").write_text(text)
    (copy / "models" / "model.py").write_text(f"from models.parts import Norm\n{LAYERS}")
    (copy / "models" / "parts.py").write_text("class Norm: ...\n")
    for file in ("train.py", "config/larger.py"):
        (copy / "config" / "larger.py").write_text(LARGER + TRAIN.partition("exec(")[0])
        read_experiment(copy / file, 8)
    (copy / "models" / "parts.py").write_text("import torch.nn as nn\nclass Norm(nn.Module): ...\n")
    for file in ("train.py", "config/larger.py"):
        with pytest.raises(InputError, match="defines Norm, so that its layers may be others"):
            read_experiment(copy / file, 8)


def test_a_gpt_2_that_a_program_defines_is_read_with_its_batch(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert_read(tmp_path / "loop.py", {"program": OWN, "seq_length": 1024, "batch": 512, "micro_batch_size": 32})
    job = read_experiment(tmp_path / "loop.py", 8)
    assert job.model is not None and (job.model.num_layers, job.model.hidden) == (24, 1024)


@pytest.mark.parametrize(
    ("at", "under", "why"),
    [
        (
            "class MLP(",
            "class RMSNorm(nn.Module): ...\nnorm = RMSNorm(8)\nclass MLP(",
            "layers that GPT-2 does not have",
        ),
        ("nn.ModuleList([", "nn.ModuleList([nn.RMSNorm(8)] + [", "layers that GPT-2 does not have"),
        ("torch.optim.AdamW", "torch.optim.SGD", "an optimizer whose states"),
        ("n_layer: int = 12", "n_kv_head: int = 4\n    n_layer: int = 12", "layers that nanoGPT does not have"),
    ],
)
def test_other_layers_and_states_of_an_own_model_are_refused(tmp_path: Path, at: str, under: str, why: str) -> None:
    (tmp_path / "loop.py").write_text(LOOP.replace(at, under))
    with pytest.raises(InputError, match=why):
        read_experiment(tmp_path / "loop.py", 8)


def test_a_loop_that_starts_no_processes_is_of_one(tmp_path: Path) -> None:
    alone = LOOP.replace("import torch.distributed as dist\n", "").replace('"RANK"', '"DEBUG"')
    alone = alone.replace('dist.init_process_group("nccl")', "pass")
    (tmp_path / "loop.py").write_text(alone)
    assert_read(tmp_path / "loop.py", {"gpus": 1, "batch": 512})
    loader = alone.replace("DataLoaderLite(B=B, T=T)", "torch.utils.data.DataLoader(rows, batch_size=64)")
    loader = loader.replace("total_batch_size = 524288", "model = nn.DataParallel(model)")
    (tmp_path / "loop.py").write_text(loader)
    job = read_experiment(tmp_path / "loop.py", 8)
    assert (job.row["micro_batch_size"], job.global_batch_size) == (8, 64)


ROOTS = ("os.environ['MODELS']", "args.models", "Path.home()", "folder()")


@pytest.mark.parametrize("seed", range(12))
def test_the_end_of_a_path_that_only_a_run_has_names_its_model(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root, name = rng.choice(ROOTS), "Qwen3-8B" + rng.choice(["", "/snapshots/master"])
    quoted = root.replace("'", '"')
    joined = (f"os.path.join({root}, 'hub', '{name}')", f"f'{{{quoted}}}/{name}'")
    path = rng.choice([*joined, f"{root} + '/{name}'", f"str({root} / '{name}')"])
    given = rng.choice([path, f"args.model_path or {path}"])
    (tmp_path / "tune.py").write_text(f"""
import argparse, os
from pathlib import Path
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--model-path", default=None)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained({given})
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=2048)).train()
""")
    job = read_experiment(tmp_path / "tune.py", 8)
    assert job.model is not None and job.model.name == "qwen3_8b"
