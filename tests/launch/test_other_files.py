"""What is said of a file that starts no job which is read."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment

SAID = {
    "train.py": ("from transformers import TrainingArguments", "is Python (Hugging Face Trainer), which is not run"),
    "llm.py": ("from nemo.collections import llm\nllm.train()", "starts no pretrain_recipe or finetune_recipe"),
    "own.py": (
        "import megatron.bridge\ndef own() -> ConfigContainer: ...",
        "configuration of Megatron-Bridge that is of no shipped recipe",
    ),
    "jax.py": ("import easydel as ed\ned.SFTTrainer()", "is a program of EasyDeL (JAX)"),
    "cloud.py": ("import sagemaker\nHuggingFace(entry_point='a.py')", "give the program that it starts"),
    "modal.py": ("import modal\napp = modal.App()", "starts a job on Modal"),
    "ray.py": ("from ray.train.torch import TorchTrainer", "starts workers of Ray Train"),
    "parsed.py": ("parser = HfArgumentParser(TrainingArguments)", "takes its job from the command line"),
    "light.py": ("class Net(LightningModule): ...", "is a program of Lightning with a model of its own"),
    "loop.py": ("class Net(nn.Module): ...\nloss.backward()", "is a training loop with a model of its own"),
    "classes.py": ("@dataclass\nclass Own:\n    batch_size: int = 4", "is a module of classes of settings"),
    "ds.json": ('{"zero_optimization": {"stage": 3}}', "is DeepSpeed's JSON, which names no model"),
    "config.json": ('{"model_type": "llama"}', "is a model's config.json: give it as --model"),
    "fsdp.yaml": ("compute_environment: LOCAL_MACHINE", "is accelerate's YAML, which names no model"),
    "pod.yaml": ("apiVersion: v1\nkind: Pod", "is a manifest of Kubernetes"),
    "space.yaml": ("model: llama3_8b\nworkload: {}", "primus-search run searches it"),
    "job.sbatch": ("#SBATCH --nodes 4\nsrun bash inner.sh", "is a Slurm wrapper: give the script or file"),
    "other.yaml": ("tp_size: 4\ncutoff_len: 2048", "is a YAML of no launcher that is read, with tp_size, cutoff_len"),
    "base_model.yaml": ("name_or_path: ???\nbatch_size: 32", "is the part of a configuration that names a model"),
    "kd.sh": ("deepspeed pretrain_gpt.py --num-layers 4 --kd --num-layers-teacher 8", "distils a teacher (--kd"),
    "generate.sh": (
        "python -m torch.distributed.run examples/generate_samples_gpt.py --num-layers 24 --micro-batch-size 400",
        "generates, quantises or evaluates, and trains nothing",
    ),
    "flux.toml": ('[model]\nname = "flux"\n[training]\nlocal_batch_size = 4', "makes images or video"),
    "flux.py": ("from megatron.bridge.diffusion.flux import A\ndef own() -> ConfigContainer: ...", "makes images or"),
    "matrix.yaml": ("ConfigContainer: {}\nperf_matrix:\n  h100: {}", "is a matrix of jobs of Megatron-Bridge's"),
    "given.sh": (
        "torchrun -m lm_engine.finetune --config ${1}",
        "takes its configuration as an argument: primus-search",
    ),
    "blocks.yml": ("model_args: {}\ntraining_parameters: {}", "is a YAML of dolomite-engine"),
    "wait.sh": ("sleep 5\nown-tool go", "is no job file or script that is read, with sleep, own-tool"),
    "run.sh": ("python tool.py", "is a script that starts a program which is not read"),
    "generation.yaml": ("rollout: {n: 1}\ntrainer: {nnodes: 1}", "is of generation (rollouts of verl)"),
    "actor.yaml": ("_target_: verl.workers.config.ActorConfig\nstrategy: fsdp", "is a part of verl's configuration"),
    "resnet.yml": ("model: resnet50\nbatch: 8", "trains a model that is no decoder of text"),
    "fairseq.yaml": ("regime: {num_steps: 5}\nmodel: {family: gemma3n}", "is a YAML of fairseq2"),
    "jet.yaml": ("format_version: 1\nspec: {model: gpt}\npip install own", "is a list of Megatron's test jobs (JET)"),
    "cut.sh": ("pip install own\nPER_DEVICE_BATCH_SIZE=1\nLR=5", "sets the variables of a job whose command is not"),
    "setup.sh": ("pip install own\npytest tests", "prepares machines or runs tests"),
    "tuned.sh": ("pip install own\npython my_train.py", "is a script that starts a program which is not read"),
    "sound.yaml": ("model: {diarizer: x}\nbatch: 5", "trains a model of sound"),
    "results.json": ('{"results": {"accuracy": 0.5}}', "is JSON of results"),
    "settings.json": ('{"a": 1}', "is JSON whose keys no launcher that is read has"),
    "sets.yaml": ("cache_options: {batch_size: 128}\ntrain_urls: []", "lists data sets, and starts nothing"),
    "rwkv.yaml": ("# see RWKV-LM-V7\nmodel: {num_layers: 4}", "trains RWKV, whose layers are not modelled"),
    "lora.yaml": ("extends:\n  - base.yaml\nlora: {dim: 32}\nglobal_batch_size: 8", "changes another file of Primus"),
    "vars.sh": ("# sizes\nexport TP=4\nif [ $X = 1 ]; then\n  A=b\nfi\n", "only sets variables, which starts nothing"),
    "llmft.yaml": ("scale_config:\n  1: {lr: 0.1, batch_size: 8}", "give the whole one of its name"),
    "elsewhere.sh": ("python3 -m own.train conf/a.yml steps=3 $@", "starts a program whose settings stand in a YAML"),
    "t5.gin": ("include 't5x/configs/runs/finetune.gin'", "is gin (T5X, JAX), whose models have an encoder"),
    "t5.sh": ("python3 t5x/train.py --gin_file=a.gin", "starts T5X (JAX), whose models have an encoder"),
    "20b.yaml": ("train_settings:\n  model_size_in_b: 20", "is a search of NeMo's auto configurator"),
    "engine.yaml": ("llm_api_args: {}\ntp_size: 4", "is of an engine that serves models"),
    "grpo.sh": ("uv run mason.py -- uv run open_instruct/grpo.py --beta 0", "starts GRPO of open-instruct"),
    "nemo.yaml": ("MODEL_ARGS:\n  trainer.strategy.context_parallel_size: 1", "sets values over a recipe of NeMo 2"),
    "eval.yaml": ("icl_tasks: []\nmodels: [{model_name: x}]", "is of generation or evaluation"),
    "forms.yaml": ("context:\n  device_target: Ascend", "starts devices for which no hardware file is"),
    "fast.yaml": ("training: {}\nmodel:\n  base_model: {}", "is a YAML of Fast-LLM"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_file_that_is_no_job_is_called_what_it_is(tmp_path: Path, name: str) -> None:
    text, said = SAID[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_experiment(tmp_path / name)
    message = str(caught.value)
    assert said in message
    assert "primus-search project --model MODEL --hardware NAME --nodes N --set " in message


def test_the_script_that_names_a_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "scripts").mkdir()
    path = tmp_path / "configs" / "zero3.json"
    path.write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    (tmp_path / "scripts" / "other.sh").write_text("deepspeed a.py --deepspeed zero2.json", encoding="utf-8")
    (tmp_path / "scripts" / "sft.sh").write_text("deepspeed a.py --deepspeed configs/zero3.json", encoding="utf-8")
    with pytest.raises(InputError, match=r"its script is read: sft\.sh; the same job"):
        read_experiment(path)


def test_sizes_that_stand_in_a_file_are_in_the_command(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("tp_size: 4\npipeline-model-parallel-size: 2\ncutoff_len: 2048\n", encoding="utf-8")
    with pytest.raises(InputError, match="--set tp=4 --set pp=2 --set seq_length=2048"):
        read_experiment(path)


def test_a_script_that_wants_arguments_gets_the_line_with_them(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("torchrun p.py --tensor-model-parallel-size $2 --micro-batch-size 1", encoding="utf-8")
    with pytest.raises(InputError, match="primus-search project FILE --args '<1> <2>'"):
        read_experiment(path)
