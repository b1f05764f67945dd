"""Files of the launchers' own repositories: scripts of many arguments, forks of Megatron, torchtitan's experiments."""

import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_search.base.errors import InputError
from primus_search.files.known_keys import key_table
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.script_arguments import started_with
from primus_search.learning.started_experiment import start
from primus_search.models.presets import presets
from primus_search.models.registered import part_called

SCRIPT = """ENV=$1
SIZE=$2
BATCH=$3
GLOBAL=${4}
A5=$5
A6=$6
A7=$7
A8=$8
A9=$9
TP=${10}
PP=${11}
if [ $SIZE = 1B ]; then
LAYERS=16
fi
options=" --num-layers ${LAYERS} --hidden-size 2048 --num-attention-heads 16 --seq-length 2048
  --max-position-embeddings 2048 --micro-batch-size ${BATCH} --global-batch-size ${GLOBAL}
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --train-iters 10"
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${options}
"""


def _read(path: Path, text: str, *arguments: str) -> Experiment:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read_experiment(path, 8, arguments=arguments)


def test_a_script_names_every_argument_that_it_wants_and_is_read_with_them(tmp_path: Path) -> None:
    line = "--args '<ENV> <SIZE> <BATCH> <GLOBAL> <A5> <A6> <A7> <A8> <A9> <TP> <PP>'"
    with pytest.raises(InputError, match=re.escape(line)):
        _read(tmp_path / "run.sh", SCRIPT)
    one = _read(tmp_path / "run.sh", SCRIPT, *["dsw", "1B", "2", "16", "a", "b", "c", "d", "e", "2", "4"])
    assert (one.row["tp"], one.row["pp"], one.row["micro_batch_size"], one.global_batch_size) == (2, 4, 2, 16)


@given(st.lists(st.from_regex(r"[A-Z]{2,6}", fullmatch=True), min_size=1, max_size=40, unique=True), st.booleans())
def test_as_many_arguments_are_named_as_a_script_reads(names: list[str], has_braces: bool) -> None:
    text = "\n".join(
        f"{name}=${{{place}}}" if has_braces or place > 9 else f'{name}="$" {name}=${place}'
        for place, name in enumerate(names, 1)
    )
    assert started_with(text) == f"primus-search project FILE --args '{' '.join(f'<{name}>' for name in names)}'"


def test_arguments_with_a_default_and_digits_behind_the_first_are_none() -> None:
    assert started_with("TP=${10:-2}\nPORT=$10") == ""


PATCHED = """
torchrun --nproc_per_node 8 finetune.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 2 --epochs 2 --tensor-model-parallel-size 4 --train-data-path a \\
  --data-path b --position-embedding-type {} --patch-tokenizer-type LLamaTokenizer
"""


@pytest.mark.parametrize("positions", ["rotary", "alibi", "rope"])
def test_arguments_of_pais_patch_mean_those_of_megatron(tmp_path: Path, positions: str) -> None:
    one = _read(tmp_path / "run.sh", PATCHED.format(positions))
    assert (one.row["tp"], one.global_batch_size) == (4, 4)  # a micro-batch of both replicas: epochs are a training's


TITAN = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.FAMILY import model_registry
from torchtitan.trainer import Trainer


def made() -> RETURNS:
    return BODY
"""
TRAINER = (
    'Trainer.Config(model_spec=model_registry("FLAVOR"), parallelism=ParallelismConfig(PARALLEL), '
    "training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4096, max_context_length=2048, "
    "disable_cuda_graphs=True))"
)


USUAL = {"family": "llama3", "flavor": "8B", "parallel": "", "returns": "Trainer.Config"}


def _titan(path: Path, body: str, **given: str) -> Experiment:
    text = TITAN.replace("BODY", body)
    for name, value in {**USUAL, **given}.items():
        text = text.replace(name.upper(), value)
    return _read(path / "config_registry.py", text, "--config", "made")


def test_a_configuration_that_is_made_of_a_trainers_is_that_trainers(tmp_path: Path) -> None:
    body = f"to_graph_trainer_config({TRAINER}, model_registry)"
    one, plain = (_titan(tmp_path, each, returns="GraphTrainer.Config") for each in (body, TRAINER))
    assert one.model == plain.model and one.row == plain.row and one.global_batch_size == plain.global_batch_size


def test_micro_batches_of_a_pipeline_are_as_many_as_it_takes(tmp_path: Path) -> None:
    one = _titan(tmp_path, TRAINER, parallel="pipeline_parallel_degree=2, num_pp_microbatches=4")
    assert (one.row["pp"], one.row["micro_batch_size"], one.global_batch_size) == (2, 2, 4 * 2 * 4)
    assert not any("num_pp_microbatches" in note for note in one.not_modelled)
    flat = _titan(tmp_path, TRAINER, parallel="num_pp_microbatches=4")
    assert (flat.row["micro_batch_size"], flat.global_batch_size) == (2, 16)


POLICY = """Controller.Config(
    model_spec=model_registry("4B", attn_backend="varlen"),
    async_loop=AsyncLoopConfig(num_prompts_per_train_step=4, num_samples_per_prompt=16,
        batcher=Batcher.Config(batch=BatchConfig(local_batch_size=1, seq_len=10240))),
    trainer=PolicyTrainer.Config(training=TrainingConfig(), ac_config=FullAC.Config(),
        parallelism=ParallelismConfig(data_parallel_shard_degree=1, tensor_parallel_degree=2)),
    generator=VLLMGenerator.Config(parallelism=InferenceParallelismConfig(tensor_parallel_degree=1)))"""


def test_the_trainer_of_a_policy_is_read_with_the_samples_of_a_step(tmp_path: Path) -> None:
    one = _titan(tmp_path, POLICY, family="qwen3", returns="Controller.Config")
    assert (one.row["tp"], one.row["micro_batch_size"], one.seq_length, one.global_batch_size) == (2, 1, 10240, 64)
    assert one.row["recompute"] == "full" and one.model == presets()["qwen3_4b"].model
    assert any("rollouts" in note for note in one.assumed)


def test_a_policy_of_an_older_release_has_no_length(tmp_path: Path) -> None:
    body = POLICY.replace("async_loop=AsyncLoopConfig(", "num_prompts_per_step=5, async_loop=AsyncLoopConfig(")
    with pytest.raises(InputError, match=r"before 0\.3\.0"):
        _titan(tmp_path, body, family="qwen3", returns="Controller.Config")


MODES = {
    'mode="full"': "full",
    'mode="none"': "none",
    'mode="selective"': "op_sac",
    "": "op_sac",
    'mode="selective", selective_ac_option="op"': "op_sac",
}


@pytest.mark.parametrize("mode", MODES)
def test_recompute_by_its_mode_is_that_of_its_class_in_an_older_release(mode: str, tmp_path: Path) -> None:
    own = TRAINER.replace("disable_cuda_graphs=True)", f"), activation_checkpoint=ActivationCheckpointConfig({mode}")
    one = _titan(tmp_path, f"{own})")
    assert one.row["recompute"].removeprefix("recompute:") == MODES[mode] and one.row["cuda_graph"] == "none"


def test_a_loss_in_pieces_is_that_of_its_older_name(tmp_path: Path) -> None:
    older, now = (
        _titan(tmp_path, TRAINER.replace("parallelism=", f"loss={name}.Config(), parallelism="))
        for name in ("ChunkedCELoss", "ChunkedLossWrapper")
    )
    assert older.numbers == now.numbers and older.numbers["loss_chunks"] == 8


def test_recompute_of_every_second_layer_is_refused(tmp_path: Path) -> None:
    own = 'activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="2")'
    with pytest.raises(InputError, match="selective 2 is not modelled"):
        _titan(tmp_path, TRAINER.replace("disable_cuda_graphs=True)", f"), {own}"))


def test_a_copy_of_torchtitan_before_cuda_graphs_has_none(tmp_path: Path) -> None:
    body = TRAINER.replace(", disable_cuda_graphs=True", "")
    own = tmp_path / "torchtitan" / "config" / "configs.py"
    own.parent.mkdir(parents=True)
    graphs = {}
    for text in ("seq_len: int = 2048", "disable_cuda_graphs: bool = False"):
        own.write_text(text)
        folder = tmp_path / "torchtitan" / "models" / "llama3"
        folder.mkdir(parents=True, exist_ok=True)
        graphs[text[:3]] = _titan(folder, body).row["cuda_graph"]
    assert graphs == {"seq": "none", "dis": "full"}


def test_the_back_end_for_models_of_transformers_has_the_model_that_it_names(tmp_path: Path) -> None:
    body = TRAINER.replace("Trainer.Config(", 'TransformersBackendConfig(hf_model="Qwen/Qwen3-0.6B", ')
    made = partial(_titan, tmp_path, body, family="transformers_modeling_backend", returns="TransformersBackendConfig")
    one = made(flavor="full")
    assert one.model == presets()["qwen3_0.6b"].model
    with pytest.raises(InputError, match="give --model"):
        _refused(made(flavor="debugmodel"))


def _refused(one: Experiment) -> None:
    if one.model is None:
        raise InputError(one.model_problems)


PARTS = key_table("torchtitan_parts")


@pytest.mark.parametrize("flavor", [f"{family}:{flavor}" for family, held in PARTS.items() for flavor in held])
def test_a_flavor_with_a_tower_is_a_presets_language_model_but_for_its_fields(tmp_path: Path, flavor: str) -> None:
    family, _, name = flavor.partition(":")
    found, fields = part_called(flavor), PARTS[family][name]
    assert found is not None and found.num_mtp_layers == 0 and not found.is_tied
    assert found.num_layers == fields.get("num_hidden_layers", presets()[fields["preset"]].model.num_layers)
    one = _titan(tmp_path, TRAINER, family=family, flavor=name)
    assert one.model == found and any("tower" in note for note in one.assumed)


RUNNER = '''"""Run a recipe.

    run.py --recipe llama3_8b_pretrain_config
"""
from megatron.bridge.training.config import ConfigContainer


def _load(args) -> ConfigContainer:
    return load_recipe(args.recipe)


parser.add_argument(
    "--recipe", help="Complete recipe function name."
)
if __name__ == "__main__":
    pretrain(_load(parser.parse_args()))
'''


def test_a_program_that_is_given_a_recipe_is_that_recipe_and_not_an_example_of_its_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"project run\.py --args '--recipe NAME'"):
        _read(tmp_path / "run.py", RUNNER)
    for name in ("llama32_1b_pretrain_config", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"):
        one, shipped = _read(tmp_path / "run.py", RUNNER, "--recipe", name), read_experiment(Path(name), 16)
        assert one.model == shipped.model and one.row["ep"] == shipped.row["ep"]


def test_a_script_that_hands_its_arguments_on_says_that_it_wants_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="project FILE --args '--recipe NAME'"):
        _read(tmp_path / "train.sh", 'exec python "${DIR}/setup_experiment.py" "$@"')


MAXTEXT = "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3-8b per_device_batch_size=2 {}\n"


def test_adapters_of_maxtext_have_a_rank_and_every_matrix(tmp_path: Path) -> None:
    text = MAXTEXT.format("lora.enable_lora=True lora.lora_rank=16 lora.lora_alpha=32.0")
    one = _read(tmp_path / "run.sh", text)
    assert (one.tuning["task"], one.tuning["lora"]["rank"]) == ("lora", 16)
    assert not _read(tmp_path / "run.sh", MAXTEXT.format("lora.enable_lora=False lora.lora_rank=0")).tuning
    with pytest.raises(InputError, match="use_dpo"):
        _read(tmp_path / "run.sh", MAXTEXT.format("use_dpo=True"))


def test_values_over_maxtexts_base_say_that_a_command_names_the_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"values over MaxText's base\.yml without a model"):
        _read(tmp_path / "sft.yml", "base_config: base.yml\nuse_sft: true\nlearning_rate: 2.e-5\n")


def test_a_launcher_of_primus_wants_its_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'if [ -z "$EXP" ]; then\n exit 1\nfi\n./primus-cli direct -- train pretrain --config "$EXP"\nexit $?\n'
    monkeypatch.delenv("EXP", raising=False)
    with pytest.raises(InputError, match="EXP=FILE before the command"):
        _read(tmp_path / "run_pretrain.sh", text)


def test_hardware_that_a_files_name_says_is_known(tmp_path: Path) -> None:
    path = tmp_path / "config_MI355X_1x8x1_tp1.sh"
    path.write_text(MAXTEXT.format("hardware=gpu"), encoding="utf-8")
    assert start(path, "", 1).hardware == "mi355x"


PROGRAMS = ("./train.py", "train.py", "-m torchtitan.train", "torchtitan/train.py", "./run_llama_train.sh")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_way_that_torchtitan_is_started_over_a_job_file_is_one(tmp_path: Path, program: str) -> None:
    job = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\n'
    (tmp_path / "job.toml").write_text(job, encoding="utf-8")
    command = f"srun torchrun --nnodes 4 --nproc_per_node 8 {program} --job.config_file $CONFIG_FILE"
    one = _read(tmp_path / "multinode.slurm", f'CONFIG_FILE=${{CONFIG_FILE:-"./job.toml"}}\n{command}\n')
    assert (one.row["micro_batch_size"], one.framework.launcher) == (2, "torchtitan")
