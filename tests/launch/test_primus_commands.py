"""Scripts that start an experiment of Primus: its file, settings and variables of the command over it, its GPUs."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment

EXPERIMENT = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      seq_length: 8192
      micro_batch_size: 1
      global_batch_size: 128
      mtp_num_layers: 1
"""
CLI = """
export PRIMUS_TP=4
[ -n "$MBS" ] || MBS=2
./primus-cli slurm srun -N 4 --partition gpus -- --image rocm/primus -- --patch fix.sh -- train pretrain \\
    --config exp/llama.yaml --micro_batch_size $MBS --mtp_num_layers None --recompute_granularity 'full' \\
    --recompute_method uniform --recompute_num_layers 1
"""
OLDER = """
export NNODES=2 GPUS_PER_NODE=4
if [ ! -d third_party ] || [ -z "$(ls -A third_party)" ]; then
    exit 1
fi
EXP=exp/llama.yaml bash ./examples/run_pretrain.sh --global_batch_size 64
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "llama.yaml").write_text(EXPERIMENT)
    (tmp_path / "fix.sh").write_text("echo patched")
    return tmp_path


def test_settings_of_a_command_lie_over_those_of_its_experiment(folder: Path) -> None:
    (folder / "run.sh").write_text(CLI)
    job = read_experiment(folder / "run.sh")
    assert job.framework.name == "primus"
    assert (job.world.gpus, job.world.per_node) == (32, 8)
    assert {key: job.row[key] for key in ("tp", "micro_batch_size", "recompute")} == {
        "tp": 4,
        "micro_batch_size": 2,
        "recompute": "full",
    }
    assert job.model is not None and job.model.num_mtp_layers == 0


def test_a_variable_names_the_experiment_and_others_its_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run.sh").write_text(OLDER)
    job = read_experiment(folder / "run.sh")
    assert (job.world.gpus, job.global_batch_size, job.row["tp"]) == (8, 64, 1)
    (folder / "run.sh").write_text("bash examples/run_slurm_pretrain.sh")
    with pytest.raises(InputError, match="depends on EXP, its experiment: set it in the environment"):
        read_experiment(folder / "run.sh")
    monkeypatch.setenv("EXP", "exp/llama.yaml")
    assert read_experiment(folder / "run.sh").global_batch_size == 128


def test_the_starter_beside_a_script_is_its_command_and_not_followed(folder: Path) -> None:
    (folder / "run_pretrain.sh").write_text('[ -f "$EXP" ] || exit 1\ntorchrun primus/cli/main.py train --config $EXP')
    (folder / "run.sh").write_text("EXP=exp/llama.yaml NNODES=2 bash ./run_pretrain.sh --micro_batch_size 2")
    job = read_experiment(folder / "run.sh")
    assert (job.row["micro_batch_size"], job.world.gpus) == (2, 16)


def test_a_script_that_only_starts_another_is_that_with_its_variables(folder: Path) -> None:
    """The inner one stops where a folder is not there, which is not known before it runs."""
    (folder / "inner.sh").write_text(
        'if [ ! -d "$BACKEND_PATH" ]; then\n  exit 1\nfi\n'
        "primus-cli direct -- train pretrain --config exp/llama.yaml --micro_batch_size $MBS"
        " --recompute_num_layers $LAYERS --recompute_granularity full --recompute_method block"
    )
    outer = (
        'D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nexport MBS=4 LAYERS=%d\nexec "${D}/inner.sh" 2>&1 | tee log'
    )
    for layers, kept in ((2, "full"), (0, "none")):
        (folder / "run.sh").write_text(outer % layers)
        job = read_experiment(folder / "run.sh")
        assert (job.row["micro_batch_size"], job.row["recompute"]) == (4, kept)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "export R=$(python3 - 4 <<'PY'\nprint(4)\nPY\n)\n"
            "primus-cli direct -- train pretrain --config exp/llama.yaml --micro_batch_size $R",
            r"depends on R \(micro_batch_size\): set it in",
        ),
        (
            "primus-cli direct -- projection memory --config exp/llama.yaml",
            "starts no experiment of Primus",
        ),
        (
            "primus-cli direct -- train pretrain --config exp/other.yaml",
            "starts exp/other.yaml, which is not beside it",
        ),
        (
            "primus-cli direct -- train pretrain --config exp/llama.yaml --seq_length $LONG",
            r"depends on LONG \(seq_length\): set it in",
        ),
        (
            "echo stop; exit 1\nprimus-cli direct -- train pretrain --config exp/llama.yaml",
            "it exits in line 1",
        ),
    ],
)
def test_what_a_command_lacks_is_named(folder: Path, text: str, why: str) -> None:
    (folder / "run.sh").write_text(text)
    with pytest.raises(InputError, match=why):
        read_experiment(folder / "run.sh")


def test_variables_that_name_an_experiment_are_its_job(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").write_text(EXPERIMENT)
    path = tmp_path / "config_MI355X.sh"
    path.write_text(
        "export NNODES=2\nexport GPUS_PER_NODE=8\nexport EXP=${PRIMUS_PATH}/llama.yaml\nexport PRIMUS_TP=8\n"
    )
    read = read_experiment(path)
    assert (read.world.gpus, read.row["tp"], read.global_batch_size) == (16, 8, 128)
