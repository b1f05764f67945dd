"""Numbers that no run has (infinite, of thousands of digits, superscripts), wherever other programs print one."""

import csv
import math
import random
import re
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.base.guards.values import LARGEST, finite_number, whole_number
from primus_search.evidence.published.convert import validated
from primus_search.files.hardware_files import load_stack
from primus_search.learning.collected_runs import read_files
from primus_search.learning.logged_job import read_job
from primus_search.learning.logged_run import SaidBeside, measured_run
from tests.support.written_logs import LOGS

HOSTILE = (
    "9" * 400, "9" * 5000, "1" + "0" * 30, "1e400", "1e-400", "1e-300", "-1", "-0", "inf", "nan", "1.2.3", "0", "0.0",
    "\u00b2", "1\u00b2", "\u0663", "\u2460", "\u5341", "9" * 18, "1,0", "0x10", "1_0", "", "99999999999",
)  # fmt: skip
NUMBER = re.compile(r"\d+(?:\.\d+)?")
HANDED = Path(__file__).parents[2].parent / "shared/handed_over/inputs/faults"
SAID = SaidBeside(hardware="mi355x", model="llama3_8b")
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
LAYERS=${LAYERS:-32}; shift 1
GBS=$((8 * 16)); NAME=${LAYERS:0:2}
ARGS=(--num-layers $LAYERS --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size $GBS
  --window-size 128,0 --vocab-size 32000 --tokenizer-type NullTokenizer)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py "${ARGS[@]}" $1 ${2:-3}
"""
JOB = """[parallelism]
tensor_parallel_degree = 2
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 4096
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[model]
name = "llama3"
flavor = "8B"
"""


def damaged(rng: random.Random, text: str) -> str:
    """A text with hostile numbers in place of one to three of its own, all alike ones or a single one."""
    for _ in range(rng.randint(1, 3)):
        found = rng.choice(list(NUMBER.finditer(text)))
        hostile = rng.choice(HOSTILE)
        head, tail = text[: found.start()], text[found.end() :]
        text = text.replace(found[0], hostile) if rng.random() < 0.3 else head + hostile + tail
    return text


def use(path: Path) -> None:
    """Read a log or a launch file as the commands do; only `InputError` may come of it."""
    stack = load_stack("megatron_core_2026")
    try:
        for reading in read_files([path]).runs:
            assert reading.step_s is None or 0.0 < reading.step_s < math.inf
            measured_run(reading, SAID, stack)
            measured_run(reading, SaidBeside(hardware="mi355x"), stack)
    except InputError as error:
        assert len(str(error)) < 5000


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", sorted(LOGS))
def test_no_log_spoils_a_command(name: str, tmp_path: Path) -> None:
    rng, text, path = random.Random(name), "\n".join(LOGS[name]()) + "\n", tmp_path / "a.log"
    for _ in range(30):
        path.write_text(damaged(rng, text), encoding="utf-8")
        use(path)


def test_records_of_other_trainers(tmp_path: Path) -> None:
    """JSON lines and a state file: numbers there need no pattern to be read."""
    rng = random.Random(5)
    line = (
        '{"current_steps": 30, "total_steps": 100, "elapsed_time": "0:01:40", "memory(GiB)": 50.5,'
        ' "tokens_per_gpu_per_sec": 900.5, "tokens_global_per_sec": 7204}'
    )
    swift = "{'global_step/max_steps': '30/100', 'elapsed_time': '1m 40s', 'memory(GiB)': 50.5, 'train_loss': 1.5}"
    head = "***** Running training *****\n  Gradient Accumulation steps = 4\n  Total train batch size = 64\n"
    state = (
        '{"log_history": [{"step": 100, "train_runtime": 250.5, "train_steps_per_second": 0.4}], "train_batch_size": 4}'
    )
    for _ in range(30):
        path = tmp_path / "a.log"
        path.write_text(head + "\n".join(damaged(rng, rng.choice((line, swift))) for _ in range(8)), encoding="utf-8")
        use(path)
        path = tmp_path / "trainer_state.json"
        path.write_text(damaged(rng, state), encoding="utf-8")
        use(path)


@pytest.mark.parametrize(("name", "text"), [("a.sh", SCRIPT), ("a.toml", JOB)])
def test_no_launch_file_spoils_a_command(name: str, text: str, tmp_path: Path) -> None:
    rng, path = random.Random(name), tmp_path / name
    for _ in range(60):
        path.write_text(damaged(rng, text), encoding="utf-8")
        try:
            read_job(path)
        except InputError as error:
            assert len(str(error)) < 5000


def test_no_table_spoils_a_command(tmp_path: Path) -> None:
    rng, path = random.Random(9), tmp_path / "runs.csv"
    row = {
        "model": "llama3_8b", "gpu": "MI300X", "num_gpus": "8", "tp": "1", "seq_length": "8192", "num_layers": "32",
        "micro_batch_size": "4", "global_batch_size": "128", "tokens_per_s_per_gpu": "9000.5", "peak_memory_GiB": "99",
    }  # fmt: skip
    for _ in range(8):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            for _ in range(3):
                one = rng.choice([name for name in row if row[name][0].isdigit()])
                writer.writerow(row | {one: rng.choice(HOSTILE)})
        try:
            validated(path)
        except InputError as error:
            assert len(str(error)) < 20_000


@pytest.mark.skipif(not HANDED.is_dir(), reason="no ../shared here")
@pytest.mark.parametrize("name", ["superscript.log", "inf_batch.log", "inf_iteration.log", "digits_5000.log"])
def test_logs_that_ended_learn(name: str) -> None:
    use(HANDED / name)


def test_one_conversion() -> None:
    assert [whole_number(text) for text in ("42", "\u00b2", "9" * 19, "-1", "", "1.0")] == [42, *[None] * 5]
    assert [finite_number(one) for one in ("1e400", "nan", "inf", 10**400, None, "1.2.3", "1e-320")] == [None] * 7
    assert [finite_number(one) for one in ("0", "-2.5", 3, LARGEST)] == [0.0, -2.5, 3.0, LARGEST]
