"""Shell scripts as people write them: arrays, defaults, positional parameters, branches and quoted words."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.files.shell.bash import followed
from primus_search.launch.experiment_space import space_of
from primus_search.launch.read.experiments import is_experiment, read_experiment
from primus_search.launch.read.script_arguments import settings_in
from primus_search.learning.started_experiment import start

SIZES = """
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu --vocab-size 32000 --bf16
  --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 --global-batch-size 128
"""
ARRAYS = """#!/bin/bash
DTYPE=${DTYPE:-"fp8"}   # bf16 or "fp8"
NODES=2; GPUS=8
WORLD_SIZE=$(($GPUS*$NODES))
CHECKPOINT=${1:-"checkpoints/x"}
MODEL_ARGS=(
    --micro-batch-size 2    # of a replica
    # --pipeline-model-parallel-size 8
    SIZES
)
if [[ "$DTYPE" == "fp8" ]] || [[ -z "$NODES" ]]; then
    MODEL_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-recipe tensorwise"
    )
fi
if [ ! -f "$CHECKPOINT" ]; then echo "none: --overlap-grad-reduce"; fi
torchrun --nnodes $NODES --nproc_per_node ${GPUS} pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size 4 "$@"
""".replace("    SIZES", SIZES)
POSITIONAL = """
MODEL_SIZE=$1
TP=${2}
AC=${10}
if [ $MODEL_SIZE = 7B ]; then
LAYERS=32
elif [ $MODEL_SIZE = 70B ]; then
LAYERS=80
gqa="--group-query-attention --num-query-groups 8"
else
LAYERS=1
fi
OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
if [ $AC = full ] && [ $OVERLAP -eq 1 ]; then
  ac="--recompute-granularity full \\
      --recompute-method uniform --recompute-num-layers 1"
elif [ $AC = sel ]; then
  ac="--recompute-activations"
fi
options="--num-layers ${LAYERS} --hidden-size 4096 --num-attention-heads 32 --swiglu --vocab-size 32000 --bf16 \\
  --position-embedding-type rope --max-position-embeddings 2048 \\
  --micro-batch-size 1 --global-batch-size 64 --seq-length 2048 --tensor-model-parallel-size $TP"
cmd="torchrun --nproc_per_node 8 pretrain.py ${options} ${gqa} ${ac}"
echo ${cmd}
eval ${cmd}
"""
MAPPING = """
ENV_VARS: {TP: 2}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --tensor-model-parallel-size: ${TP}
  --use-distributed-optimizer: true
  --sequence-parallel: false
  --bf16: true
"""


def written(folder: Path, text: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1; f --x $a", ["f", "--x", "1"]),
        ("a=(--x 1 # no\n --y)\nf ${a[@]}", ["f", "--x", "1", "--y"]),
        ("f ${A:-3} ${B-'x y'}", ["f", "3", "x", "y"]),
        ('a="--x 1"\nb="$a --y 2"\nf $b', ["f", "--x", "1", "--y", "2"]),
        ("if [ 2 -gt 1 ]; then f 1; else f 2; fi", ["f", "1"]),
        ("if [[ a == b* ]]; then f 1\nelif [[ -n x ]]; then f 2\nelse f 3\nfi", ["f", "2"]),
        ("f $((2 * 3 + 1)) `date` $(date '+%Y')", ["f", "7"]),
        ("f '$a' \"$a\"", ["f", "$a", "\0a\0"]),
        ("case $A in\n  7B|8B) x=1;;\n  70B)\n    x=2\n    ;;\n  *) x=3 ;;\nesac\nf $x", ["f", "3"]),
        ('A=70B\ncase "$A" in 7B) x=1 ;; 70B) x=2 ;; *) x=3 ;; esac\nf $x', ["f", "2"]),
        ("a=\"--x '1'\"; echo $a; eval f $a", ["f", "--x", "1"]),
        ('cat <<EOT > c.json\n{"if": 1}\nEOT\nf 1', ["f", "1"]),
    ],
)
def test_words_are_those_that_bash_hands_over(text: str, words: list[str]) -> None:
    assert [word for command in followed(text).commands for word in command] == words


def test_arrays_defaults_comments_and_quoted_words(tmp_path: Path) -> None:
    found = read_experiment(written(tmp_path, ARRAYS))
    row = found.candidate.row(0)
    assert (row["tp"], row["pp"], row["fp8"], row["micro_batch_size"], found.world.gpus) == (4, 1, "hybrid", 2, 16)
    assert not row["overlap_grad_reduce"]


def test_positional_parameters_are_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, POSITIONAL)
    with pytest.raises(InputError, match="depends on MODEL_SIZE, TP: set them in the environment"):
        read_experiment(path)
    for name, value in {"MODEL_SIZE": "70B", "TP": "8", "AC": "full"}.items():
        monkeypatch.setenv(name, value)
    found = read_experiment(path)
    assert found.model is not None and (found.model.num_layers, found.model.num_kv_heads) == (80, 8)
    assert (found.row["tp"], found.row["recompute"]) == (8, "full")
    monkeypatch.setenv("MODEL_SIZE", "7B")
    monkeypatch.setenv("AC", "sel")
    found = read_experiment(path)
    assert found.model is not None and (found.model.num_layers, found.model.num_kv_heads) == (32, 32)
    assert found.row["recompute"] == "selective"


def test_arguments_as_a_mapping_and_a_vocabulary_that_is_assumed_and_said(tmp_path: Path) -> None:
    path = written(tmp_path, MAPPING, "model_config.yaml")
    found = read_experiment(path)
    assert (found.row["tp"], found.row["sharding"], found.row["sequence_parallel"]) == (
        2,
        "distributed_optimizer",
        False,
    )
    assert any(text.startswith("vocab_size = 50257") for text in found.assumed)
    begun = start(path, "h100", 1)
    assert any("vocab_size" in note for note in begun.notes)
    assert space_of(begun, ["vocab_size=128256"], None, "").model.vocab_size == 128256


COUNTED_ENDS = """torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 \\
  --pipeline-model-parallel-size 4 \\
  --num-layers LAYERS --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \\
  --hidden-size 4096 --num-attention-heads 32 --swiglu --vocab-size 32000 --bf16 --position-embedding-type rope \\
  --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 --global-batch-size 128
"""


def test_embedding_and_loss_that_count_as_layers_move_the_layers_of_the_ends(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(COUNTED_ENDS.replace("LAYERS", "30"))
    assert read_experiment(file).row["pipeline_layout"] == "balanced", "layers of its stages: 7, 8, 8, 7"
    file.write_text(COUNTED_ENDS.replace("LAYERS", "32"))
    with pytest.raises(InputError, match="32 layers and 2 counted ends do not divide over 4 virtual stages"):
        read_experiment(file)


DEEPSPEED = """
ZERO=2; CONFIG=ds.json
cat > $CONFIG <<EOF
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": $ZERO}}
EOF
deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 8 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --deepspeed_config=$CONFIG
"""


def test_the_json_of_deepspeed_is_read_where_a_script_writes_it_and_where_it_stands_beside(tmp_path: Path) -> None:
    path = written(tmp_path, DEEPSPEED)
    first = read_experiment(path, 8)
    text = DEEPSPEED.replace("cat > $CONFIG", "true > $OTHER")
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}')
    second = read_experiment(written(tmp_path, text.rstrip() + " --global-batch-size 64\n"), 8)
    for one in (first, second):
        assert (one.row["sharding"], one.row["micro_batch_size"], one.global_batch_size) == ("zero2", 4, 64)
        assert not any("deepspeed_config" in note for note in one.not_modelled)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (" --normalization rmsnorm --zero-stage 1", {"cp": 1, "sharding": "distributed_optimizer"}),
        (" --ds-sequence-parallel-size 2", {"cp": 2, "sharding": "zero2"}),
        (" --num-experts 8 --topk 1", {"etp": 1, "sharding": "zero2"}),
    ],
)
def test_arguments_of_deepspeed_alone_mean_those_of_megatron(
    tmp_path: Path, more: str, wanted: dict[str, object]
) -> None:
    filled = 'sed "s/MBSIZE/1/" template.json | sed "s/ZERO_STAGE/2/" > ds.json\n'
    text = DEEPSPEED.replace("$CONFIG", "ds.json").rstrip() + " --deepspeed --vocab-size 50257"
    (tmp_path / "run.sh").write_text(f"{filled}{text} --micro-batch-size 1 --global-batch-size 64 --bf16{more}\n")
    begun = start(tmp_path / "run.sh", "h100", 0)
    assert space_of(begun, [], None, "").model.num_layers == 8
    assert {key: begun.experiment.row[key] for key in wanted} == wanted


def test_experts_of_deepspeed_stand_in_every_second_layer(tmp_path: Path) -> None:
    text = DEEPSPEED.rstrip() + " --deepspeed --num-experts 16 --moe-expert-parallel-size 8"
    found = read_experiment(written(tmp_path, text), 16)
    assert found.model is not None and found.model.moe is not None
    assert (found.model.moe_layers, found.model.moe.top_k, found.row["ep"]) == ((False, True) * 4, 1, 8)
    several = read_experiment(written(tmp_path, text.replace("--num-experts 16", "--num-experts 16 32")), 16)
    assert several.model is None and "num_experts" in str(several.model_problems)
    with pytest.raises(InputError, match="mlp_type: residual"):
        read_experiment(written(tmp_path, text + " --mlp-type residual"), 16)


def test_a_branch_that_needs_a_variable_without_a_value_is_said(tmp_path: Path) -> None:
    text = "if [ $PR = fp8 ]; then FP8='--fp8-format hybrid'; fi\n"
    path = written(tmp_path, text + DEEPSPEED.replace("pretrain_gpt.py", "pretrain_gpt.py $FP8 $EXTRA_OPTIONS"))
    why = "PR has no value: branches that test it are read as if it were empty (changes fp8_format)"
    assert why in read_experiment(path, 8).assumed


def test_what_a_script_is_started_with_is_given_by_an_option(tmp_path: Path) -> None:
    given = [
        str(written(tmp_path, POSITIONAL)),
        "--hardware",
        "h100",
        "--nodes",
        "8",
        "--args",
        "70B 8 3 4 5 6 7 8 9 full",
    ]
    given.append("--json")
    before = dict(os.environ)
    result = CliRunner().invoke(app, ["project", *given])
    assert json.loads(result.stdout)["candidate"]["tp"] == 8, result.output
    assert dict(os.environ) == before
    assert start(Path(given[0]), "h100", 8, arguments=given[6].split()).experiment.row["tp"] == 8


@pytest.mark.parametrize(("extra", "rows"), [(2400, 102400), (467, 129280), (0, 163840)])
def test_a_tokenizer_type_of_several_models_is_told_by_its_extra_rows(extra: int, rows: int, tmp_path: Path) -> None:
    given = f"--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size {extra}"
    given += " --micro-batch-size 1 --max-position-embeddings 512"
    text = f"torchrun pretrain.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 {given}"
    model = read_experiment(written(tmp_path, text)).model
    assert model is not None and model.vocab_size == rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[training]\nbatch_size = 2\nseq_len = 4096\ntensor_parallel_degree = 2\n'
         '[experimental]\npipeline_parallel_degree = 4\ncontext_parallel_degree = 2\n'
         '[float8]\nenable_float8_linear = true\n', {"tp": 2, "pp": 4, "cp": 2, "fp8": "hybrid"}),
        ('converters = ["float8"]\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
         '[float8]\nrecipe_name = "rowwise"\n', {"micro_batch_size": 2, "fp8": "rowwise"}),
    ],
)  # fmt: skip
def test_names_of_earlier_releases_of_torchtitan(text: str, words: dict[str, object], tmp_path: Path) -> None:
    path = written(tmp_path, f'[model]\nname = "llama3"\nflavor = "8B"\n{text}', "job.toml")
    found = read_experiment(path, 64)
    assert words.items() <= found.row.items() and found.seq_length == 4096


def test_lists_and_layouts_of_functional_tests(tmp_path: Path) -> None:
    given = '  --recompute-modules: "[mlp layernorm]"\n  --recompute-granularity: selective\n'
    layout = "  --pipeline-model-parallel-size: 2\n  --pipeline-model-parallel-layout: Et*5\\\\|t*7L\n"
    row = read_experiment(written(tmp_path, MAPPING + given + layout, "model_config.yaml")).row
    assert (row["recompute"], row["pipeline_layout"]) == ("mlp+layernorm", "first=5,last=7")


@pytest.mark.parametrize(
    ("said", "batch", "noted"),
    [("--step-batch-size-schedule '0:384 200B:768 400B:1152'", 1152, "step_batch_size_schedule: 0:384 200B:768"),
     ("--step-batch-size-schedule '0:64,50B:256' --grpo-group-size 16", 256, "grpo_group_size: 16 (not priced: s")],
)  # fmt: skip
def test_a_schedule_of_batches_is_priced_at_its_last(said: str, batch: int, noted: str, tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 train.py {SIZES} --micro-batch-size 2 --train-samples 9 {said}".replace(
        "\n", " "
    )
    (tmp_path / "run.sh").write_text(text.replace("--global-batch-size 128", ""))
    found = read_experiment(tmp_path / "run.sh")
    assert found.global_batch_size == batch
    assert f"global_batch_size = {batch}: the last of step_batch_size_schedule" in found.assumed
    assert any(one.startswith(noted) for one in found.not_modelled)


def test_what_hangs_on_a_tokenizer_without_a_name_is_assumed_and_said(tmp_path: Path) -> None:
    text = "srun python pretrain.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --micro-batch-size 1 \\\n"
    text += "--max-position-embeddings 512 --tokenizer-type Llama2Tokenizer --tokenizer-model $1 --world-size $RANKS"
    found = read_experiment(written(tmp_path, text))
    assert not found.world
    assert found.assumed == ("vocab_size = 32000: the file names no vocabulary; --set vocab_size= changes it",)


RECIPE = """#!/bin/bash
#SBATCH --nodes=2
TP=${TP:-2}
ARGS="model.tensor_model_parallel_size=$TP train.global_batch_size=64"
torchrun --nnodes 2 --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config \\
  $ARGS train.micro_batch_size=2 dataset.seq_length=4096 checkpoint.save=null
"""


def test_a_script_that_runs_a_recipe_is_the_recipe_with_its_overrides(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(RECIPE)
    read, usual = read_experiment(script), read_experiment(Path("llama3_8b_pretrain_config"), 16)
    assert (read.world.gpus, read.seq_length, read.global_batch_size, read.row["tp"]) == (16, 4096, 64, 2)
    assert read.row | {"tp": 0, "micro_batch_size": 0} == usual.row | {"tp": 0, "micro_batch_size": 0}
    assert read.model == usual.model and is_experiment(script)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            ("llama3_8b", "llama3_9b"),
            "llama3_9b_pretrain_config is no recipe of Megatron-Bridge that is known; did you",
        ),
        (
            ("llama3_8b_pretrain_config \\\n", "exaone_moe_2_0_750b_a37_pretrain_config model.num_layers=8 \\\n"),
            "num_layers: another model than that of exaone_moe_2_0_750b_a37_pretrain_config",
        ),
        (("${TP:-2}", "$(nvidia-smi)"), "depends on "),
    ],
)
def test_a_recipe_that_is_not_read_whole_is_refused(changes: tuple[str, str], what: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(RECIPE.replace(*changes))
    with pytest.raises(InputError) as caught:
        read_experiment(script)
    assert what in str(caught.value)


def test_a_model_that_overrides_resize_is_the_recipes_with_those_sizes(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(RECIPE.replace("dataset.seq_length=4096", "model.num_layers=8 model.layernorm_epsilon=1e-6"))
    resized, usual = read_experiment(script).model, read_experiment(Path("llama3_8b_pretrain_config"), 16).model
    assert resized is not None and usual is not None
    assert (resized.num_layers, resized.constants.norm_epsilon) == (8, 1e-6)
    assert (resized.hidden, resized.vocab_size) == (usual.hidden, usual.vocab_size)


def test_a_vocabulary_is_padded_for_the_tensor_parallel_degree(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    text = (
        "torchrun p.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --vocab-size 131072"
    )
    script.write_text(
        f"{text} --max-position-embeddings 64 --tensor-model-parallel-size 8 --make-vocab-size-divisible-by 6400"
    )
    model = read_experiment(script, 8).model
    assert model is not None and model.vocab_size == 3 * 6400 * 8  # Megatron's _vocab_size_with_padding


def test_an_activation_with_trained_scales_is_refused_by_name(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    text = "torchrun p.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --vocab-size 128"
    script.write_text(f"{text} --max-position-embeddings 64 --tensor-model-parallel-size 1 --xielu")
    assert "xielu" in str(read_experiment(script, 8).model_problems)


def test_variables_before_a_command_hold_for_it_alone() -> None:
    script = (
        "CUDA_DEVICE_MAX_CONNECTIONS=8 python tools/preprocess_data.py\n"
        "SIZE=4096\nSIZE=512 python tools/warm_up.py\n"
        "{}torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size $SIZE --micro-batch-size 1\n"
        "CUDA_DEVICE_MAX_CONNECTIONS=32 python tools/notify.py\n"
    )
    found = settings_in(script.format(""), {})
    assert found["hidden_size"] == "4096" and "env_CUDA_DEVICE_MAX_CONNECTIONS" not in found
    found = settings_in(script.format("CUDA_DEVICE_MAX_CONNECTIONS=1 "), {})
    assert found["env_CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
