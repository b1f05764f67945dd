"""Scripts inside manifests, tasks and Makefiles, and those that a script writes or names by a path from above."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment

COMMAND = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 "
    "--max_seq_length 4096 --gradient_checkpointing True"
)
MANIFEST = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
            - name: pytorch
              env: [{{name: EACH, value: "8"}}]
              command: [torchrun, --nnodes=4, --nproc_per_node=$(EACH), train.py]
              args: [{", ".join(COMMAND.split())}]
"""
SHELL = f"""
apiVersion: batch/v1
kind: Job
---
spec:
  containers:
    - command: [/bin/bash, -c]
      args:
        - |
          export EACH=8
          torchrun --nnodes=4 --nproc_per_node=$EACH train.py {COMMAND}
"""
TASK = f"""
resources: {{accelerators: "H100:8"}}
envs: {{EACH: 8}}
setup: pip install transformers
run: |
  torchrun --nnodes=4 --nproc_per_node=$EACH train.py {COMMAND}
"""
RECIPES = f"""
EACH ?= 8
.PHONY: train
train:
\t@torchrun --nnodes=4 --nproc_per_node=$(EACH) train.py {COMMAND}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("job.yaml", MANIFEST), ("shell.yaml", SHELL), ("task.yaml", TASK), ("Makefile", RECIPES)],
)
def test_the_script_in_a_file_is_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    job = read_experiment(tmp_path / name)
    assert (job.world.gpus, job.world.per_node, job.seq_length, job.global_batch_size) == (32, 8, 4096, 64)
    assert job.model is not None and job.model.name == "llama2_7b"


def test_a_script_named_from_a_folder_above_is_followed(tmp_path: Path) -> None:
    for folder in ("train/jobs", "train/models"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "train/models/run.sh").write_text(f"torchrun --nnodes=4 --nproc_per_node=8 train.py {COMMAND}\n")
    start = tmp_path / "train/jobs/job.sbatch"
    start.write_text("#SBATCH --nodes=4\nsrun bash train/models/run.sh\ntorchrun train/models/run.sh\n")
    start.write_text("bash train/models/run.sh  # torchrun \n")
    assert read_experiment(start).world.gpus == 32


def test_a_recipe_in_a_command_that_a_script_writes_is_run(tmp_path: Path) -> None:
    path = tmp_path / "launcher.sh"
    path.write_text(
        "command=$(cat <<- EOM\n  cd /opt ;\n  python run_script.py --gpu h100 --model_recipe_name llama3_8b"
        ' --num_gpus 8 --micro_batch_size 2\nEOM\n)\necho "$command" > worker.sh\ntorchrun --no-python bash worker.sh\n'
    )
    assert read_experiment(path).row["micro_batch_size"] == 2


@pytest.mark.parametrize(
    "loop",
    [
        "until nvidia-smi; do sleep 2; done",
        "for (( i = 0; i <= nodes-1; i++ )); do echo $i; done",
        "while :; do sleep 1; done",
    ],
)
def test_a_loop_that_waits_for_the_machine_ends(tmp_path: Path, loop: str) -> None:
    path = tmp_path / "job.sh"
    path.write_text(
        f"nodes=$(( $(nvidia-smi | wc -l) - 2 ))\n{loop}\ntorchrun --nnodes=4 --nproc_per_node=8 train.py {COMMAND}\n"
    )
    assert read_experiment(path).world.gpus == 32


def test_a_job_of_devices_without_a_hardware_file_is_refused_by_their_name(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(
        f"source /usr/local/Ascend/ascend-toolkit/set_env.sh\ntorchrun --nproc_per_node=8 train.py {COMMAND}\n"
    )
    with pytest.raises(InputError, match="starts Ascend NPUs, for which no hardware file is"):
        read_experiment(path)


def test_a_file_of_one_recipe_is_that_recipe(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(
        "from megatron.bridge import ConfigContainer\ndef llama3_8b_pretrain_8gpu_h100_bf16_config():\n    ...\n"
    )
    assert read_experiment(path).world.gpus == 8
    path.write_text(path.read_text() + "def llama3_70b_pretrain_64gpu_h100_bf16_config():\n    ...\n")
    with pytest.raises(InputError, match="starts 2 recipes; name one"):
        read_experiment(path)


@pytest.mark.parametrize(
    "started", ["bash train.sh 2", "./train.sh 2", "srun -N 2 --label ./train.sh 2", "sh ./train.sh 2"]
)
def test_a_script_that_starts_one_beside_it_is_read_as_that(tmp_path: Path, started: str) -> None:
    (tmp_path / "train.sh").write_text(
        "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--per_device_train_batch_size $1 --max_seq_length 2048"
    )
    (tmp_path / "start.sh").write_text(f"echo begin\n{started}\n")
    job = read_experiment(tmp_path / "start.sh")
    assert (job.row["micro_batch_size"], job.seq_length, job.world.gpus) == (2, 2048, 8)


@pytest.mark.parametrize("started", ["bash -e ./inner.sh $ALL", "srun --label -N 4 box exec -B /a ./inner.sh $ALL"])
def test_options_that_a_script_hands_to_another_reach_its_program(tmp_path: Path, started: str) -> None:
    (tmp_path / "inner.sh").write_text('source /opt/activate\npython "$@"\n')
    (tmp_path / "run.sh").write_text(
        f'#SBATCH --nodes=4\n#SBATCH --gpus-per-node=mi250:8\nALL="pretrain_gpt.py {MEGATRON}"\n{started}\n'
    )
    job = read_experiment(tmp_path / "run.sh")
    assert (job.world.gpus, job.row["tp"], job.global_batch_size) == (32, 2, 64)


def test_processes_that_srun_starts_of_a_text_are_the_world(tmp_path: Path) -> None:
    started = f'srun -u -n32 --ntasks-per-node=8 bash -c "source x.sh; python pretrain_gpt.py {MEGATRON}"'
    (tmp_path / "run.sh").write_text(f"#SBATCH -N 4\nsrun -N1 -n1 bash -c hostname\n{started}\n")
    world = read_experiment(tmp_path / "run.sh").world
    assert (world.gpus, world.per_node) == (32, 8)


MEGATRON = (
    "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --num-layers 24 --hidden-size 2048"
)
MEGATRON += " --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257"


@pytest.mark.parametrize("folder", ["`pwd`", "$(pwd)", "."])
@pytest.mark.parametrize(
    ("recompute", "words"),
    [("--activations-checkpoint-method uniform", "full"), ("--checkpoint-activations", "full"), ("", "none")],
)
def test_a_job_that_a_script_submits_has_its_options_and_its_header(
    tmp_path: Path, folder: str, recompute: str, words: str
) -> None:
    (tmp_path / "config.sh").write_text(f'export PARAMS="{MEGATRON} ${{MORE}}"')
    (tmp_path / "srun.sh").write_text(
        "#SBATCH -t 0:30:00 --exclusive --mem=0 --ntasks-per-node=8\n#SBATCH --nodes=1\n"
        'CMD="python pretrain_gpt.py ${PARAMS}"\nsrun -l --container-image "a:b" sh -c "${CMD}"'
    )
    (tmp_path / "run.sh").write_text(
        f'MORE="{recompute}"\nNNODES=4\n. {folder}/config.sh\n'
        "sbatch -p ${PARTITION} -A ${ACCOUNT} --nodes=${NNODES} --export=PARAMS srun.sh\nexit 0"
    )
    job = read_experiment(tmp_path / "run.sh")
    assert (job.world.gpus, job.world.per_node, job.row["tp"]) == (32, 8, 2)
    assert job.row["recompute"] == words and job.global_batch_size == 64


@pytest.mark.parametrize(("given", "is_said"), [("", True), (" --moe-router-topk 2", False)])
def test_experts_a_token_by_default_are_said(tmp_path: Path, given: str, is_said: bool) -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MEGATRON} --train-iters 9 --num-experts 8{given}"
    (tmp_path / "run.sh").write_text(text)
    said = [note for note in read_experiment(tmp_path / "run.sh").assumed if note.startswith("moe_router_topk = 2")]
    assert bool(said) is is_said


PODS = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: {replicas}
      template:
        spec:
          containers:
            - command: [torchrun, --nproc_per_node={each}, --nnodes={replicas}, train.py]
              args: [{arguments}]
              resources: {{limits: {{nvidia.com/gpu: {each}}}}}
"""


@pytest.mark.parametrize(("replicas", "each", "gpus"), [("4", "8", 32), ("$NUM_NODES", "$GPU_PER_NODE", 0)])
def test_counts_of_a_manifest_that_hang_on_variables_are_not_known(
    replicas: str, each: str, gpus: int, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(PODS.format(replicas=replicas, each=each, arguments=", ".join(COMMAND.split())))
    assert read_experiment(path, 16).world.gpus == gpus
