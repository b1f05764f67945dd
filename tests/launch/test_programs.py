"""Jobs in programs in Python, whose calls are followed by the syntax tree and never run, in lists of variables, and in
YAML of few files each.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.files.python.python_program import Program
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.launcher_documents import of_program
from primus_search.values.model.adapters import DEFAULT_MODULES
from tests.support.launched import assert_read

RECIPE = """
import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed

def configure(nodes: int = 1, gpus: int = 8):
    recipe = llm.llama3_70b.pretrain_recipe(dir="/out", num_nodes=nodes, num_gpus_per_node=gpus)
    recipe.trainer.strategy.tensor_model_parallel_size = 8
    recipe.data.global_batch_size = 256
    return recipe

if __name__ == "__main__":
    run.run(configure(nodes=8), executor=run.LocalExecutor())
"""
TUNED = """
from nemo.collections import llm
recipe = llm.llama3_70b.finetune_recipe(num_nodes=1, num_gpus_per_node=8, peft_scheme={scheme})
"""
PERFORMANCE = """
from nemo.collections.llm.recipes.llama31_405b import pretrain_recipe
from helpers import set_primary_perf_configs

def recipe(nodes: int = 32):
    made = pretrain_recipe(performance_mode=True)
    return set_primary_perf_configs(
        made, "pre_train", num_nodes=nodes, num_gpus_per_node=8, mbs=1, gbs=256, tp_size=8, pp_size=8, cp_size=2,
        vp_size=8, ep_size=1, compute_dtype="fp8", fp8_recipe="cs", use_mcore_fsdp=False, recompute_layers=0)
"""
OLMO = """
from functools import partial
from olmo_core.internal.experiment import build_config, main
SEQUENCE_LENGTH = 4096

def build_model_config(common):
    return TransformerConfig.olmo2_7B(vocab_size=common.tokenizer.padded_vocab_size())

def build_train_module_config(common):
    size = 2 * common.max_sequence_length
    return TransformerTrainModuleConfig(
        rank_microbatch_size=size,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp),
        ac_config=TransformerActivationCheckpointingConfig(mode=TransformerActivationCheckpointingMode.full),
        optim=SkipStepAdamWConfig(lr=3e-4))

if __name__ == "__main__":
    main(config_builder=partial(
        build_config, global_batch_size=1024 * SEQUENCE_LENGTH, max_sequence_length=SEQUENCE_LENGTH,
        model_config_builder=build_model_config, train_module_config_builder=build_train_module_config))
"""
TRAINER = """
import argparse
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer

class Tuning:
    def __init__(self, args):
        self.name = args.model_name

    def train(self):
        model = AutoModelForCausalLM.from_pretrained(self.name, torch_dtype=torch.bfloat16)
        given = TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True)
        SFTTrainer(model=model, args=given, max_seq_length=2048).train()

parser = argparse.ArgumentParser()
parser.add_argument("--model_name", default="mistralai/Mistral-7B-v0.1")
Tuning(parser.parse_args()).train()
"""
SLOTH = """
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-4B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"])
trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4))
"""
GRPO = """
from trl import GRPOConfig, GRPOTrainer
config = dict(per_device_train_batch_size=8, max_prompt_length=512, max_completion_length=1024, bf16=True)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=GRPOConfig(**config), reward_funcs=score)
"""
TINY = """
model_name = "tiny_LLaMA_1b"
num_of_devices = 8
global_batch_size = 512
micro_batch_size = 8
batch_size = global_batch_size // num_of_devices

def setup(devices=8, tpu=False):
    if tpu:
        import torch_xla.core.xla_model as xm
    strategy = FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy=None)
"""
MLPERF = """
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MODEL_SIZE="405b"
export MINIBS=72
export TENSOR_MODEL_PARALLEL=2 PIPELINE_MODEL_PARALLEL=8 INTERLEAVED_PIPELINE=8 CONTEXT_PARALLEL=2
export DGXNNODES=128
export DGXNGPU=4
"""
MLPERF_LORA = "export MINIBS=1 CP=8 TP=1 PP=1 SP=0 MBS=1 FP8=True ACG=full ACM=block ACL=21\nexport DGXNNODES=9\n"
FAST_LLM = """
training: {train_iters: 100}
data: {micro_batch_size: 8192, maximum_document_length: 4096}
schedule: {depth_first_micro_batches: 4}
model:
  base_model:
    hidden_size: 4096
    tied_embedding_weight: false
    embeddings: {vocab_size: 32000}
    decoder:
      num_blocks: 32
      block:
        mixer: {type: attention, heads: 32, head_groups: 8, head_size: 128, add_linear_biases: false}
        mlp: {intermediate_size: 14336, gated: true, activation: silu, add_linear_biases: false}
        normalization: {type: rms_norm}
  multi_stage: {zero_stage: 2}
  distributed: {tensor_parallel: 2}
"""
FAST_LLM_OLDER = """
training: {train_iters: 100}
batch: {sequence_length: 4096, micro_batch_size: 2, batch_size: 64}
pretrained: {format: mistral, path: mistralai/Mistral-7B-v0.1}
model: {multi_stage: {zero_stage: 3}, distributed: {training_dtype: bf16}}
"""
FAIRSEQ2 = """
model: {name: llama3_2_1b}
dataset: {max_seq_len: 4096, max_num_tokens: 8192}
trainer: {activation_checkpointing: {mode: layerwise}, grad_accumulation: {num_batches: 2}}
regime: {num_steps: 1000}
"""
SLOTH_GRPO = SLOTH.replace("SFTConfig(", "GRPOConfig(num_generations=6, ").replace("SFT", "GRPO")
FILES = {
    "fast.yaml": FAST_LLM,
    "fast_older.yaml": FAST_LLM_OLDER,
    "fairseq2.yaml": FAIRSEQ2,
    "config.sh": MLPERF,
    "config_lora.sh": MLPERF_LORA,
    "recipe.py": RECIPE,
    "performance.py": PERFORMANCE,
    "full.py": TUNED.format(scheme="None"),
    "lora.py": TUNED.format(scheme="'lora'"),
    "olmo.py": OLMO,
    "tune.py": TRAINER,
    "sloth.py": SLOTH,
    "sloth_grpo.py": SLOTH_GRPO,
    "grpo.py": GRPO,
    "tiny.py": TINY,
}
JOBS: dict[str, dict[str, Any]] = {
    "recipe.py": {"program": "NeMo 2 (recipe in Python)", "seq_length": 8192, "batch": 256, "gpus": 64, "tp": 8,
                  "pp": 4, "vpp": 5, "cp": 2, "micro_batch_size": 1, "sharding": "distributed_optimizer"},
    "performance.py": {"program": "NeMo 2 (recipe in Python)", "seq_length": 8192, "batch": 256, "gpus": 256, "tp": 8,
                       "pp": 8, "vpp": 8, "cp": 2, "fp8": "hybrid", "sequence_parallel": True},
    "full.py": {"program": "NeMo 2 (fine-tuning recipe in Python)", "tp": 8, "pp": 4, "batch": 128, "seq_length": 2048},
    "lora.py": {"program": "NeMo 2 (LoRA recipe in Python)", "tp": 8, "pp": 1, "batch": 128, "gpus": 8},
    "olmo.py": {"program": "OLMo-core (FSDP)", "seq_length": 4096, "batch": 1024, "micro_batch_size": 2,
                "recompute": "full"},
    "tune.py": {"program": "Hugging Face Trainer (program in Python)", "seq_length": 2048, "micro_batch_size": 2,
                "batch": 128, "state_format": "bf16_all", "recompute": "none"},
    "sloth.py": {"program": "Unsloth (program in Python)", "seq_length": 2048, "batch": 8, "micro_batch_size": 2},
    "sloth_grpo.py": {"program": "Unsloth (GRPO, program in Python)", "seq_length": 2048, "batch": 24,
                      "micro_batch_size": 6},
    "config.sh": {"program": "MLPerf (NeMo, variables of a configuration)", "seq_length": 8192, "batch": 1152,
                  "gpus": 512, "tp": 2, "pp": 8, "vpp": 8, "cp": 2, "micro_batch_size": 2},
    "config_lora.sh": {"program": "MLPerf (NeMo, LoRA of Llama 2 70B, variables of a configuration)", "batch": 9,
                       "gpus": 72, "cp": 8, "recompute": "full", "recompute_num_layers": 21},
    "fast.yaml": {"program": "Fast-LLM", "seq_length": 4096, "micro_batch_size": 2, "batch": 64, "tp": 2},
    "fast_older.yaml": {"program": "Fast-LLM (a pretrained model)", "seq_length": 4096, "batch": 64,
                        "sharding": "fsdp2"},
    "fairseq2.yaml": {"program": "fairseq2", "seq_length": 4096, "micro_batch_size": 2, "batch": 64,
                      "recompute": "full"},
    "tiny.py": {"program": "TinyLlama (lit-gpt, FSDP)", "seq_length": 2048, "batch": 512,
                "micro_batch_size": 8, "gpus": 8, "sharding": "fsdp2"},
    "grpo.py": {"program": "Hugging Face Trainer (GRPO, program in Python)", "seq_length": 1536, "batch": 128},
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_a_program_is_the_job_that_its_calls_configure(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (tmp_path / "config_common.sh").write_text("export MICRO_BATCH_SIZE=2")
    assert_read(tmp_path / name, JOBS[name])


def test_adapters_of_programs_have_their_rank_modules_and_base(tmp_path: Path) -> None:
    (tmp_path / "sloth.py").write_text(SLOTH)
    lora = {"rank": 32, "alpha": 64.0, "dropout": 0, "modules": ["q_proj", "v_proj"], "base": "nf4"}
    assert read_experiment(tmp_path / "sloth.py").tuning == {"task": "qlora", "lora": lora}
    (tmp_path / "sloth.py").write_text(SLOTH.replace("max_seq", "load_in_4bit=False, max_seq"))
    assert read_experiment(tmp_path / "sloth.py").tuning["task"] == "lora"


@pytest.mark.parametrize(
    ("recipe", "asked", "rank", "alpha", "modules"),
    [
        ("llama3_70b", "", 16, 32, list(DEFAULT_MODULES)),
        ("llama31_nemotron_70b", "", 16, 32, list(DEFAULT_MODULES)),
        ("llama31_8b", "", 8, 16, list(DEFAULT_MODULES)),
        ("llama31_8b", ", performance_mode=True", 8, 16, ["linear_qkv"]),
        ("llama33_nemotron_super_49b", "", 8, 16, list(DEFAULT_MODULES)),
        ("qwen25_72b", "", 32, 32, list(DEFAULT_MODULES)),
        ("mixtral_8x22b", "", 32, 32, ["linear_qkv", "linear_proj"]),
    ],
)
def test_adapters_of_a_recipe_are_those_that_it_sets(
    recipe: str, asked: str, rank: int, alpha: int, modules: list[str], tmp_path: Path
) -> None:
    """nemo/collections/llm/recipes of NVIDIA/NeMo 8cfedd72, and the defaults of peft/lora.py."""
    text = TUNED.format(scheme=f"'lora'{asked}").replace("llama3_70b", recipe)
    (tmp_path / "lora.py").write_text(text)
    lora = read_experiment(tmp_path / "lora.py").tuning["lora"]
    assert (lora["rank"], lora["alpha"], lora["modules"]) == (rank, alpha, modules)


def test_modules_that_a_function_finds_are_all_linear_layers(tmp_path: Path) -> None:
    find = """
def find_all_linear_names(model):
    names = set()
    for name, module in model.named_modules():
        names.add(name.split(".")[-1])
    return list(names)
"""
    adapters = "LoraConfig(r=4, target_modules=find_all_linear_names(model))\n"
    (tmp_path / "tune.py").write_text("from peft import LoraConfig\n" + find + TRAINER + adapters)
    assert read_experiment(tmp_path / "tune.py").tuning["lora"]["modules"] == ["all-linear"]
    (tmp_path / "tune.py").write_text(
        "from peft import LoraConfig\n" + TRAINER + adapters.replace("find_all_linear_names", "chosen")
    )
    with pytest.raises(InputError, match=r"target_modules depends on chosen\(\): give the names of modules"):
        read_experiment(tmp_path / "tune.py")


@pytest.mark.parametrize(
    ("at", "under", "why"),
    [
        ("given = ", "given = TrainingArguments(per_device_train_batch_size=count()) or ", "depends on "),
        (
            "model = Auto",
            "if cuda():\n            LoraConfig(r=16)\n        model = Auto",
            r"depends on cuda\(\): --args",
        ),
        ("model = Auto", "VeraConfig()\n        model = Auto", "VeraConfig: peft trains a part"),
        ("SFTTrainer(", "KTOTrainer(", "KTOTrainer: .* is not read; fine-tuning, dpo and grpo are"),
        ("per_device_train_batch_size=2", "per_device_train_batch_size=hosts()", r"depends on hosts\(\): --args"),
        ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "no decoder of text"),
    ],
)
def test_what_only_a_run_has_or_is_not_modelled_is_refused(tmp_path: Path, at: str, under: str, why: str) -> None:
    text = TRAINER.replace("import LoraConfig", "import LoraConfig, VeraConfig")
    text = text.replace("import SFTTrainer", "import KTOTrainer, SFTTrainer").replace(at, under)
    text = text.replace("import AutoModelForCausalLM", "import AutoModelForCausalLM, AutoModelForSeq2SeqLM")
    (tmp_path / "tune.py").write_text(text)
    with pytest.raises(InputError, match=why):
        read_experiment(tmp_path / "tune.py", 8)


def test_names_of_a_program_do_not_hide_its_calls(tmp_path: Path) -> None:
    names = "model_name = 'gpt2'\nper_device_train_batch_size = 1\npeft_config = LoraConfig(r=4)\n"
    (tmp_path / "tune.py").write_text("from peft import LoraConfig\n" + names + TRAINER)
    job = read_experiment(tmp_path / "tune.py", 8)
    assert (job.row["micro_batch_size"], job.tuning["task"]) == (2, "lora")


def test_what_trains_nothing_or_no_gpu_is_no_job(tmp_path: Path) -> None:
    text = TRAINER.replace("per_device_train_batch_size=2, gradient_accumulation_steps=4, ", "").replace(
        ").train()", ")"
    )
    (tmp_path / "rate.py").write_text(text + "\ntrainer.evaluate()\n")
    with pytest.raises(InputError, match="is not run"):
        read_experiment(tmp_path / "rate.py")
    (tmp_path / "tune.py").write_text("from optimum.tpu import fsdp_v2\n" + TRAINER)
    with pytest.raises(InputError, match="starts TPUs"):
        read_experiment(tmp_path / "tune.py")


def test_arguments_give_what_only_a_run_has(tmp_path: Path) -> None:
    text = OLMO.replace(
        "    return TransformerTrain", "    if all(common.names):\n        size *= 2\n    return TransformerTrain"
    )
    (tmp_path / "olmo.py").write_text(text)
    with pytest.raises(InputError, match=r"on all\(common.names\): --args '--rank_microbatch_size ..' gives them"):
        read_experiment(tmp_path / "olmo.py")
    job = read_experiment(tmp_path / "olmo.py", 8, arguments=["--rank_microbatch_size", "16384"])
    assert job.row["micro_batch_size"] == 4


def test_an_option_that_a_program_asks_for_by_its_name_is_there(tmp_path: Path) -> None:
    text = TRAINER.replace("per_device_train_batch_size=2", "per_device_train_batch_size=rows")
    asked = "rows = args.rows if hasattr(args, 'rows') and args.rows != 1 else 4\n"
    for default, line, rows in ((1, asked, 4), (6, asked, 6), (3, "rows = getattr(args, 'rows', 9)\n", 3)):
        lines = "import argparse\nparser = argparse.ArgumentParser()\n"
        lines += f"parser.add_argument('--rows', type=int, default={default})\nargs = parser.parse_args()\n{line}"
        (tmp_path / "tune.py").write_text(lines + text)
        assert read_experiment(tmp_path / "tune.py", 8).row["micro_batch_size"] == rows


@pytest.mark.parametrize("change", ["sizes.update({'rows': 8})", "sizes.update(rows=8)", "sizes['rows'] = 8"])
def test_what_a_test_without_an_answer_changes_in_a_mapping_only_a_run_has(tmp_path: Path, change: str) -> None:
    text = TRAINER.replace("per_device_train_batch_size=2", "per_device_train_batch_size=sizes['rows']")
    (tmp_path / "tune.py").write_text(f"sizes = {{'rows': 2}}\n{change}\n{text}")
    assert read_experiment(tmp_path / "tune.py", 8).row["micro_batch_size"] == 8
    (tmp_path / "tune.py").write_text(f"sizes = {{'rows': 2}}\nif memory() > 40:\n    {change}\n{text}")
    with pytest.raises(InputError, match=r"depends on memory\(\) > 40"):
        read_experiment(tmp_path / "tune.py", 8)


def test_rows_are_cut_at_the_length_of_a_programs_own(tmp_path: Path) -> None:
    text = TRAINER.replace("max_length=2048", "").replace("max_seq_length=2048", "")
    cut = "def rows(one):\n    MAX_LEN = 384\n    ids = one[:MAX_LEN]\n    return ids[:COUNT]\nCOUNT = 3\n"
    (tmp_path / "tune.py").write_text(cut + text)
    assert read_experiment(tmp_path / "tune.py", 8).seq_length == 384
    (tmp_path / "tune.py").write_text(text + cut.replace("384", "size()"))
    assert read_experiment(tmp_path / "tune.py", 8).seq_length == 1024
    (tmp_path / "sizes.py").write_text("LEN_Q = 256\nLEN_A = 256 - 2\nLEN_ALL = LEN_Q + LEN_A\n")
    parts = "from sizes import LEN_A, LEN_ALL, LEN_Q\n"
    parts += "def rows(q, a):\n    return q[:LEN_Q] + a[:LEN_A]\n"
    (tmp_path / "tune.py").write_text(parts + text)
    with pytest.raises(InputError, match=r"depends on LEN_A and LEN_Q: --args '--globals.cut \.\.' gives"):
        read_experiment(tmp_path / "tune.py", 8)
    assert read_experiment(tmp_path / "tune.py", 8, arguments=["--globals.cut", "500"]).seq_length == 500
    (tmp_path / "tune.py").write_text(f"{parts}def all():\n    return min(LEN_ALL, 9)\n{text}")
    assert read_experiment(tmp_path / "tune.py", 8).seq_length == 510


@pytest.mark.parametrize(("words", "answer"), [("(y/n): ", "y"), ("[Y/n] ", "y"), ("(yes/no)? ", "yes")])
def test_a_program_that_asks_whether_to_start_is_started(tmp_path: Path, words: str, answer: str) -> None:
    asked = f"answer = '{answer}' if '--auto' in sys.argv else input('Start? {words}').strip().lower()\n"
    text = TRAINER.replace("Tuning(parser", f"import sys\n{asked}if answer == '{answer}':\n    Tuning(parser")
    (tmp_path / "tune.py").write_text(text)
    assert read_experiment(tmp_path / "tune.py", 8).row["micro_batch_size"] == 2


@pytest.mark.parametrize("words", ["Model directory/name: ", "Any/none or a path: "])
def test_no_yes_is_taken_for_the_answer_to_another_question(tmp_path: Path, words: str) -> None:
    (tmp_path / "tune.py").write_text(TRAINER.replace("Tuning(parser", f"batch = input({words!r})\nTuning(parser", 1))
    program = Program.of(tmp_path / "tune.py", (tmp_path / "tune.py").read_text())
    program.started({})
    assert program.names["batch"] != "y"


def test_arguments_of_a_program_stand_for_the_defaults_of_its_command_line(tmp_path: Path) -> None:
    batch = """parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--base", required=True)
parser.add_argument("--targets", default="q_proj, v_proj,")
args = parser.parse_args()
LoraConfig(r=int("8"), target_modules=[one.strip() for one in args.targets.split(",") if one.strip()])
Tuning("""
    text = TRAINER.replace("batch_size=2", "batch_size=int(args.batch)").replace("self.name, t", "args.base, t")
    (tmp_path / "tune.py").write_text("from peft import LoraConfig\n" + text.replace("Tuning(", batch))
    with pytest.raises(InputError, match=r"depends on --base: --args '--base ..' gives them"):
        read_experiment(tmp_path / "tune.py", 8)
    words = ["--base", "mistralai/Mistral-7B-v0.1"]
    job = read_experiment(tmp_path / "tune.py", 8, arguments=words)
    assert (job.row["micro_batch_size"], job.model and job.model.name) == (4, "mistral_7b_v0.1")
    assert (job.tuning["lora"]["rank"], job.tuning["lora"]["modules"]) == (8, ["q_proj", "v_proj"])
    assert read_experiment(tmp_path / "tune.py", 8, arguments=[*words, "--batch=1"]).row["micro_batch_size"] == 1


def test_a_program_of_endless_lists_ends_in_time(tmp_path: Path) -> None:
    nested = "[0 for a in x]"
    for name in "bcdefgh":
        nested = f"[{nested} for {name} in x]"
    grown = ("a = 'ab'\n" + "a = a + a\n" * 60, "a = [1]\n" + "a = a + a\n" * 60, "a = 1\n" + "a = [a, a]\n" * 60)
    for text in (f"x = [0] * 9999\ny = {nested}\n", *grown, "a = {}\n" + "a = {**a, 'k': [a, a]}\n" * 60):
        (tmp_path / "tune.py").write_text(text + TRAINER)
        with suppress(InputError):
            read_experiment(tmp_path / "tune.py", 8)


def test_a_mode_by_its_place_is_read_as_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "olmo.py").write_text(
        OLMO.replace("(mode=TransformerA", "(TransformerA").replace("(name=Data", "(Data")
    )
    assert read_experiment(tmp_path / "olmo.py", 8).row["recompute"] == "full"


def test_the_number_of_processes_is_that_of_the_command(tmp_path: Path) -> None:
    sized = (
        "    if get_world_size() >= 16:\n        size = max(common.max_sequence_length, 1)\n    return TransformerTrain"
    )
    (tmp_path / "olmo.py").write_text(OLMO.replace("    return TransformerTrain", sized))
    with pytest.raises(InputError, match=r"depends on get_world_size\(\) >= 16: .*, --nodes the processes"):
        read_experiment(tmp_path / "olmo.py")
    assert read_experiment(tmp_path / "olmo.py", 8).row["micro_batch_size"] == 2
    assert read_experiment(tmp_path / "olmo.py", 16).row["micro_batch_size"] == 1


def test_a_setting_given_twice_has_no_value_and_a_default_of_the_command_line_has() -> None:
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-n", "--nodes", type=int, default=2 ** 3)
args = parser.parse_args()
settings = {"seed": 3}
Job.Config(nodes=args.nodes * 2, seed=settings.get("seed", 1), name=str(args.nodes))
Job.Config(seed=4)
def never(path, count: int = 5): Job.other(count=count, place=path)
def cut(rows, tokenizer, length=512): tokenizer(rows, max_length=length)
rows = load().map(lambda rows: cut(rows, tokenizer, 768))
"""
    found = of_program(Path("job.py"), text)
    assert (found["Job.Config.nodes"], found["Job.Config.name"], found["Job.other.count"]) == (16, 8, 5)
    assert found["tokenizer.max_length"] == 768
    assert found["Job.Config.seed"] == "\0Job.Config.seed\0"
    assert found["other.place"] == "\0path\0"
