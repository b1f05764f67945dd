"""Programs in Python whose settings stand in modules, classes and documents beside them."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment

TRAIN = """
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
model = AutoModelForCausalLM.from_pretrained({model}, torch_dtype=torch.bfloat16)
given = TrainingArguments(per_device_train_batch_size={batch}, gradient_accumulation_steps=2, bf16=True)
Trainer(model=model, args=given).train()
"""
CLASS = """
from dataclasses import dataclass, field
@dataclass
class Inner:
    batch: int = 4
@dataclass
class Settings:
    model: str = "mistralai/Mistral-7B-v0.1"
    inner: Inner = field(default_factory=Inner)
    def named(self):
        return self.model
"""
DOCUMENT = "model: {name: mistralai/Mistral-7B-v0.1}\nbatch: 4\n"
OF_DOCUMENT = """
import yaml, os
AT = 'a'
with open(os.path.join(os.path.dirname(__file__), 'conf', f'{AT}.yaml')) as f:
    cfg = yaml.safe_load(f)
"""
PARSED = """
from dataclasses import dataclass
import transformers
@dataclass
class Model:
    name: str = "mistralai/Mistral-7B-v0.1"
@dataclass
class Arguments(transformers.TrainingArguments):
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    bf16: bool = True
def main():
    model, given = transformers.HfArgumentParser((Model, Arguments)).parse_args_into_dataclasses()
    made = transformers.AutoModelForCausalLM.from_pretrained(model.name)
    transformers.Trainer(model=made, args=given).train()
main()
"""
HYDRA = """
import hydra
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
@hydra.main(config_path="conf", config_name="a")
def main(cfg):
    model = AutoModelForCausalLM.from_pretrained(cfg.model.name, torch_dtype=torch.bfloat16)
    given = TrainingArguments(
        per_device_train_batch_size=cfg["batch"], gradient_accumulation_steps=2, bf16=True)
    Trainer(model=model, args=given).train()
if __name__ == "__main__":
    main()
"""
PROGRAMS = {
    "constants": "from settings import MODEL as NAME, BATCH\n" + TRAIN.format(model="NAME", batch="BATCH"),
    "module": "import settings\n" + TRAIN.format(model="settings.MODEL", batch="settings.BATCH"),
    "class": CLASS + "c = Settings()\n" + TRAIN.format(model="c.model", batch="c.inner.batch"),
    "class beside": "from classes import Settings\nc = Settings()\n"
    + TRAIN.format(model="c.model", batch="c.inner.batch"),
    "class attribute": CLASS + TRAIN.format(model="Settings.model", batch="Inner.batch"),
    "document": OF_DOCUMENT + TRAIN.format(model="cfg['model']['name']", batch="cfg['batch']"),
    "function of a module": "from settings import loaded\n"
    + TRAIN.format(model="loaded('conf/a.yaml').model.name", batch="loaded('conf/a.yaml').batch"),
    "parser": PARSED,
    "hydra": HYDRA,
    "merged": CLASS.replace('"mistralai/Mistral-7B-v0.1"', '""')
    + "c = Settings()\nfor key, value in {'model': 'mistralai/Mistral-7B-v0.1'}.items():\n    setattr(c, key, value)\n"
    + TRAIN.format(model="c.model", batch="c.inner.batch"),
    "options": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch', default=4)\n"
    "p.add_argument('--smoke', action='store_true')\nargs = p.parse_args()\nif args.smoke:\n    args.batch = 1\n"
    + TRAIN.format(model="'mistralai/Mistral-7B-v0.1'", batch="args.batch"),
    "fire": "import fire\ndef main(batch=4):\n"
    + TRAIN.format(model="'mistralai/Mistral-7B-v0.1'", batch="batch").replace("\n", "\n    ")
    + "\nfire.Fire(main)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text(DOCUMENT)
    (tmp_path / "classes.py").write_text(CLASS)
    (tmp_path / "settings.py").write_text(
        "import yaml\nMODEL = 'mistralai/Mistral-7B-v0.1'\nBATCH = 2 * 2\n"
        "def loaded(path):\n    with open(path) as f:\n        return EasyDict(yaml.safe_load(f))\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", PROGRAMS)
def test_settings_beside_a_program_are_those_of_its_job(folder: Path, name: str) -> None:
    (folder / "train.py").write_text(PROGRAMS[name])
    job = read_experiment(folder / "train.py", 8)
    assert (job.model and job.model.name, job.row["micro_batch_size"]) == ("mistral_7b_v0.1", 4)
    assert job.global_batch_size == 64


def test_flags_count_over_classes_that_a_command_line_fills(folder: Path) -> None:
    (folder / "train.py").write_text(PARSED)
    words = ["--per_device_train_batch_size", "1", "--name", "gpt2"]
    job = read_experiment(folder / "train.py", 8, arguments=words)
    assert (job.model and job.model.name, job.row["micro_batch_size"]) == ("gpt2", 1)


@pytest.mark.parametrize(
    "text",
    [
        CLASS + "c = Settings(**read())\n" + TRAIN.format(model="c.model", batch="4"),
        CLASS
        + "c = Settings()\nfor key, value in read().items():\n    setattr(c, key, value)\n"
        + TRAIN.format(model="'gpt2'", batch="c.inner"),
        TRAIN.format(model="'gpt2'", batch="4, **read()"),
        OF_DOCUMENT.replace("'a'", "'absent'") + TRAIN.format(model="'gpt2'", batch="cfg['batch']"),
    ],
)
def test_what_a_document_may_have_changed_is_not_at_its_default(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text.replace("read()", "json.loads(sys.stdin.read())"))
    try:
        problems = str(read_experiment(folder / "train.py", 8).model_problems)
    except InputError as error:
        problems = str(error)
    assert "depends on" in problems or "which no preset is" in problems


def test_a_document_that_is_not_there_is_what_its_parts_depend_on(folder: Path) -> None:
    text = "from omegaconf import OmegaConf\ncfg = OmegaConf.load('conf/absent.yaml')\n"
    for batch in ("cfg.train.batch", "cfg['train']['batch']"):
        (folder / "train.py").write_text(text + TRAIN.format(model="cfg.name", batch=batch))
        with pytest.raises(InputError, match=r"depends on conf/absent.yaml, which is not beside the file: --args"):
            read_experiment(folder / "train.py", 8)


def test_a_call_counts_over_an_option_that_it_does_not_take(folder: Path) -> None:
    options = "p = ArgumentParser()\np.add_argument('--gradient_accumulation_steps', default=8)\n"
    (folder / "train.py").write_text(options + TRAIN.format(model="'gpt2'", batch="4"))
    assert read_experiment(folder / "train.py", 8).global_batch_size == 64


def test_modules_that_import_each_other_end(folder: Path) -> None:
    (folder / "train.py").write_text("from a import X\n" + TRAIN.format(model="X", batch="4"))
    (folder / "a.py").write_text("from b import X\nfrom b import f\ny = f()\n")
    (folder / "b.py").write_text("from a import X\nfrom a import y\ndef f():\n    from a import f\n    return f()\n")
    with pytest.raises(InputError):
        assert read_experiment(folder / "train.py", 8).model_problems
        raise InputError([])


RECIPES = """
import nemo_run as run
import lightning.pytorch as pl
from nemo import lightning as nl
from nemo.collections.llm.recipes.shared import made
def trainer(tensor_parallelism: int = 1, num_nodes: int = 1):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism)
    return run.Config(nl.Trainer, devices=8, num_nodes=num_nodes, strategy=strategy)
def pretrain_recipe(num_nodes: int = 2, tensor_parallelism: int = 4, global_batch_size=256, fn=pretrain) -> run.Partial:
    return run.Partial(fn, model=model(), trainer=trainer(tensor_parallelism, num_nodes),
        data=run.Config(MockDataModule, seq_length=4096, global_batch_size=global_batch_size, micro_batch_size=1))
def finetune_recipe(num_nodes: int = 1, peft_scheme: str = "lora") -> run.Partial:
    recipe = run.Partial(finetune, trainer=trainer(1, num_nodes))
    if peft_scheme is None or peft_scheme.lower() == "none":
        recipe.trainer.strategy.tensor_model_parallel_size = 2
    return recipe
"""
CONTAINER = """
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
from megatron.bridge.models.llama import Llama2ModelProvider7B
def configured(tensor_parallelism: int = 2, global_batch_size: int = 512) -> ConfigContainer:
    model = Llama2ModelProvider7B(tensor_model_parallel_size=tensor_parallelism)
    model.sequence_parallel = True
    return ConfigContainer(model=model, train=TrainingConfig(global_batch_size=global_batch_size, micro_batch_size=1),
        dataset=GPTDatasetConfig(sequence_length=4096), mixed_precision="bf16_mixed")
"""


def test_a_module_of_recipes_is_asked_for_one_which_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "llama3_8b.py"
    path.write_text(RECIPES)
    with pytest.raises(InputError, match=r"has 2 recipes: pretrain_recipe, finetune_recipe; name one: --args"):
        read_experiment(path)
    job = read_experiment(path, arguments=["--recipe", "pretrain_recipe", "--global_batch_size", "64"])
    assert (job.model and job.model.name, job.world.gpus, job.row["tp"]) == ("llama3_8b", 16, 4)
    assert (job.global_batch_size, job.seq_length) == (64, 4096)
    tuned = read_experiment(path, arguments=["--recipe", "finetune_recipe", "--peft_scheme", "none"])
    assert (tuned.row["tp"], tuned.tuning) == (2, {})
    assert read_experiment(path, arguments=["--recipe", "finetune_recipe"]).tuning["task"] == "lora"


def test_a_configuration_of_bridge_that_is_no_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(CONTAINER)
    job = read_experiment(path, 8)
    assert (job.model and job.model.name, job.row["tp"], job.row["sequence_parallel"]) == ("llama2_7b", 2, True)
    assert (job.global_batch_size, job.seq_length) == (512, 4096)
    assert read_experiment(path, 8, arguments=["train.global_batch_size=64"]).global_batch_size == 64
    path.write_text(CONTAINER + CONTAINER[CONTAINER.index("def configured") :].replace("configured", "other"))
    with pytest.raises(InputError, match=r"builds 2 configurations of Megatron-Bridge; name one: --args"):
        read_experiment(path, 8)
    path.write_text(CONTAINER.replace("int = 2, g", "int, g"))
    with pytest.raises(InputError, match=r"tensor_model_parallel_size depends on tensor_parallelism: --args"):
        read_experiment(path, 8)
    path.write_text(
        "from megatron.bridge.training.config import ConfigContainer\ndef configured() -> ConfigContainer:\n"
        "    return read('job')\n"
    )
    with pytest.raises(InputError, match="builds no configuration of Megatron-Bridge that can be followed"):
        read_experiment(path, 8)


LOOP = """
import argparse
import torch
from torch.distributed.fsdp import {sharding} as wrap
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--model-name", default="meta-llama/Llama-3.1-8B")
parser.add_argument("--batch-size", default=2)
parser.add_argument("--seq-length", default=2048)
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model_name), dtype=torch.bfloat16)
if args.recompute:
    model.gradient_checkpointing_enable()
model = wrap(model)
loader = DataLoader(data, batch_size=args.batch_size)
while True:
    for i, batch in enumerate(loader):
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
"""


def test_a_training_loop_is_the_job_of_its_loader_and_its_wrapper(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for sharding, is_sharded in (("fully_shard", True), ("FullyShardedDataParallel", True), ("SomethingElse", False)):
        path.write_text(LOOP.format(sharding=sharding))
        job = read_experiment(path, 8)
        assert (job.model and job.model.name, job.row["micro_batch_size"], job.seq_length) == ("llama3.1_8b", 2, 2048)
        assert (job.global_batch_size, job.row["sharding"]) == (16, "fsdp2" if is_sharded else "none")
        assert (job.row["state_format"], job.row["recompute"]) == ("bf16_all", "none")
    given = read_experiment(path, 8, arguments=["--recompute", "--batch-size", "4"])
    assert (given.row["recompute"], given.row["micro_batch_size"]) == ("full", 4)
    path.write_text(
        LOOP.format(sharding="fully_shard") + "import deepspeed\nengine = deepspeed.initialize(model=model)\n"
    )
    with pytest.raises(InputError, match="DeepSpeed's configuration of a loop of its own is not read"):
        read_experiment(path, 8)
    path.write_text(LOOP.format(sharding="fully_shard").replace("args.batch_size", "count()"))
    with pytest.raises(InputError, match=r"depends on count\(\)"):
        read_experiment(path, 8)


def test_numbers_of_a_loop_of_its_own_do_not_make_it_another_program(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    sizes = "batch_size = 2\nblock_size = 1024\nmax_iters = 600\n"
    path.write_text(f"{sizes}fabric = L.Fabric(devices=4, strategy=FSDPStrategy())\nfabric.backward(loss)\n")
    with pytest.raises(InputError, match="which is not read"):
        read_experiment(path, 8)


def test_a_loop_of_another_step_or_sharding_or_without_a_length_is_no_job(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = LOOP.format(sharding="FullyShardedDataParallel, ShardingStrategy, FullyShardedDataParallel")
    for strategy, is_read in (
        ("FULL_SHARD", True),
        ("SHARD_GRAD_OP", False),
        ("NO_SHARD", False),
        ("HYBRID_SHARD", False),
    ):
        path.write_text(text.replace("wrap(model)", f"wrap(model, sharding_strategy=ShardingStrategy.{strategy})"))
        if is_read:
            assert read_experiment(path, 8).row["sharding"] == "fsdp2"
        else:
            with pytest.raises(InputError, match="this sharding of a loop of its own is not read"):
                read_experiment(path, 8)
    path.write_text(text.replace("outputs.loss.backward()", "grpo_loss = f(outputs)\n        grpo_loss.backward()"))
    with pytest.raises(InputError, match="takes a step of its own of reinforcement learning"):
        read_experiment(path, 8)
    path.write_text(text.replace('"--seq-length", default=2048', '"--seed", default=1'))
    assert read_experiment(path, 8).seq_length is None


BUILT = """
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("mistralai/Mistral-7B-v0.1")
config = LlamaConfig(vocab_size={vocabulary}, hidden_size={hidden}, intermediate_size=2816, num_attention_heads=16,
    bos_token_id=tokenizer.bos_token_id)
config.num_hidden_layers = 12
model = LlamaForCausalLM(config)
given = TrainingArguments(per_device_train_batch_size=16, gradient_accumulation_steps=4, bf16=True)
Trainer(model=model, args=given).train()
"""


def test_a_configuration_that_a_program_builds_is_its_model(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for vocabulary in ("32000", "len(tokenizer)"):
        path.write_text(BUILT.format(vocabulary=vocabulary, hidden=1024))
        model = read_experiment(path, 8).model
        assert model is not None
        assert (model.hidden, model.num_layers, model.vocab_size) == (1024, 12, 32000)
    for vocabulary, hidden, why in (("count()", "1024", "vocab_size"), ("32000", "sized()", "hidden_size")):
        path.write_text(BUILT.format(vocabulary=vocabulary, hidden=hidden))
        assert f"{why} of its model depends on" in str(read_experiment(path, 8).model_problems)
    path.write_text(BUILT.format(vocabulary="32000", hidden=1024).replace("from transformers", "from own_models"))
    with pytest.raises(InputError):
        read_experiment(path, 8)


STARTS_DOCUMENT = """
import hydra
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
@hydra.main(config_path="conf", config_name="b", version_base=None)
def main(config):
    RayPPOTrainer(config=config).fit()
if __name__ == "__main__":
    main()
"""
MEGATRON = "from megatron.training import pretrain\nif __name__ == '__main__':\n    pretrain(provider, model, step)\n"
SIZED = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
OPTIONS = """
from transformers import HfArgumentParser
@dataclass
class ModelArguments:
    model_name_or_path: str = "gpt2"
    use_lora: bool = False
    lora_r: int = 64
def main():
    given, rest = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    start(given, rest)
main()
"""


def test_a_program_that_names_a_document_or_takes_a_command_line_is_the_job_of_that(folder: Path) -> None:
    path = folder / "main.py"
    path.write_text(STARTS_DOCUMENT)
    flags = ["data.max_prompt_length=512", "data.max_response_length=512"]
    (folder / "conf" / "b.yaml").write_text(
        "data: {train_batch_size: 64}\nalgorithm: {adv_estimator: grpo}\n"
        "actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}, actor: {strategy: fsdp, ppo_mini_batch_size: 32,"
        " ppo_micro_batch_size_per_gpu: 2}}\ntrainer: {n_gpus_per_node: 8, nnodes: 2}\n"
    )
    job = read_experiment(path, 8, arguments=[*flags, "trainer.nnodes=1"])
    assert (job.model and job.model.name, job.seq_length, job.world.gpus) == ("qwen2.5_7b", 1024, 8)
    path.write_text(MEGATRON)
    words = f"{SIZED} --micro-batch-size 4 --global-batch-size 32 --vocab-size 50304".split()
    with pytest.raises(InputError, match="wants arguments: primus-search project FILE --args '--num-layers N"):
        read_experiment(path, 8)
    job = read_experiment(path, 8, arguments=words)
    assert (job.framework.name, job.global_batch_size) == ("megatron", 32)
    path.write_text(OPTIONS)
    with pytest.raises(InputError, match="wants arguments: primus-search project FILE --args '--model_name_or_path"):
        read_experiment(path, 8)
    job = read_experiment(path, 8, arguments=["--per_device_train_batch_size", "4"])
    assert (job.model and job.model.name, job.row["micro_batch_size"], job.tuning) == ("gpt2", 4, {})


@pytest.mark.parametrize(
    ("text", "accumulated"),
    [
        ("match KIND:\n    case 'a' | 'b':\n        n = 4\n    case _:\n        n = 2\n", 4),
        ("match 'c':\n    case 'a':\n        n = 4\n    case 'c':\n        n = 2\n", 2),
        ("def chosen():\n    if there():\n        return 8\n    return 2\nn = chosen()\n", 0),
        ("def chosen():\n    if absent():\n        return None\n    return 2\nn = chosen()\n", 2),
    ],
)
def test_branches_of_a_program_give_a_value_where_only_one_may_be_taken(
    folder: Path, text: str, accumulated: int
) -> None:
    job = TRAIN.format(model="'gpt2'", batch="4").replace(
        "gradient_accumulation_steps=2", "gradient_accumulation_steps=n"
    )
    (folder / "train.py").write_text(f"KIND = 'b'\n{text}{job}")
    if accumulated:
        assert read_experiment(folder / "train.py", 8).global_batch_size == 32 * accumulated
        return
    with pytest.raises(InputError, match=r"depends on there\(\): --args '--gradient_accumulation_steps ..'"):
        read_experiment(folder / "train.py", 8)


def test_a_loop_that_splits_sequences_has_degrees_that_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for starts in (
        "apply_seq_parallel_monkey_patch('zigzag_ring_attn', 'llama')\n",
        "parser.add_argument('--parallel_mode', choices=['ulysses_attn'])\n",
    ):
        path.write_text(LOOP.format(sharding="fully_shard") + starts)
        with pytest.raises(InputError, match=r"degrees of a loop of its own are not read: give --set tp=.. or cp=.."):
            read_experiment(path, 8)


def test_a_loop_accumulates_as_often_as_its_optimizer_waits(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    step = "        if (i + 1) % EVERY == 0:\n            optimizer.step()\n"
    path.write_text("EVERY = 4\n" + LOOP.format(sharding="fully_shard").replace("        optimizer.step()\n", step))
    assert read_experiment(path, 8).global_batch_size == 64


def test_adapters_of_a_checkpoint_are_not_read_as_all_weights(folder: Path) -> None:
    text = TRAIN.format(model="'gpt2'", batch="4")
    start = (
        "from peft import PeftModel\nmodel = PeftModel.from_pretrained(model, 'saves/sft', is_trainable=True)\ngiven ="
    )
    (folder / "train.py").write_text(text.replace("given =", start))
    with pytest.raises(InputError, match="adapters of a checkpoint are trained, whose rank"):
        read_experiment(folder / "train.py", 8)


def test_a_program_that_trains_on_the_host_is_no_job_of_devices(folder: Path) -> None:
    text = TRAIN.format(model="'gpt2'", batch="4").replace("bf16=True", "use_cpu=True")
    (folder / "train.py").write_text(text)
    with pytest.raises(InputError, match="trains on the host's processors"):
        read_experiment(folder / "train.py", 8)


def test_a_program_that_is_not_read_says_which_options_it_requires(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config-file', required=True)\n"
    (tmp_path / "run.py").write_text(
        f"{text}p.add_argument('--seed', default=1)\nStarter(p.parse_args().config_file).train()\n"
    )
    with pytest.raises(InputError, match=r"wants arguments: primus-search project FILE --args '--config_file ..'$"):
        read_experiment(tmp_path / "run.py")
