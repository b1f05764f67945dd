"""From a question of fine-tuning to a launch file in two commands, which its framework accepts and which reads back."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from tests.support.judge.checkouts import required
from tests.support.launched import verdicts

pytestmark = pytest.mark.slow
LENGTHS = "workload.document_length={quantiles: {p10: 300, p50: 1200, p90: 8000, p100: 32768}}"
LORA = ["ask", "llama3.3_70b", "mi300x", "--nodes", "1", "--seq", "8192", "--batch", "64", "--task", "lora"]
SFT = ["ask", "qwen3_30b_a3b", "h100", "--nodes", "2", "--seq", "32768", "--batch", "64", "--task", "sft"]
QUICK = ["--bench", "off"]
PACKED = ["--set", LENGTHS, "--set", "workload.packing=whole"]


def exported(words: list[str], name: str, folder: Path) -> Path:
    """The launch file of the recommended row of a question."""
    for command in ([*words, *QUICK, "--out", str(folder / "run")], ["export", str(folder / "run"), "A"]):
        done = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
    return folder / "run" / "exports" / "1" / name


def accepted(file: Path, *judges: str) -> None:
    for judge in judges:
        answers = verdicts(judge, [file]) if required(judge) is not None else []
        assert all(one["accepted"] for one in answers), answers


@pytest.mark.in_turn
def test_adapters_of_llama_70b_on_one_node_of_mi300x(tmp_path: Path) -> None:
    file = exported(LORA, "primus.yaml", tmp_path)
    accepted(file, "primus")
    read = space_of(start(file, "mi300x", 1), [], None, "").workload
    assert read.task == "lora" and read.adapters is not None and read.adapters.rank == 32
    assert (read.seq_length, read.global_batch_size) == (8192, 64)


@pytest.mark.in_turn
def test_qwen3_30b_packed_to_32k_on_two_nodes_of_h100(tmp_path: Path) -> None:
    file = exported([*SFT, *PACKED], "megatron.sh", tmp_path)
    accepted(file, "megatron@core_0.20", "megatron@core_0.16")
    text = file.read_text(encoding="utf-8")
    assert "rows packed as whole" in text and text.count("workload.document_length") == 1
    begun = start(file, "h100", 2)
    read = space_of(begun, PACKED[1::2], None, "").workload
    assert (read.seq_length, read.packing, begun.world) == (32768, "whole", 16)
