"""`project`: one screen; a candidate that breaks rules has all of them named, blamed on what was given."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.report.short_text import COLUMNS, LINES

SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 \
--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 \
--tensor-model-parallel-size 1 --pipeline-model-parallel-size 8 --vocab-size 32000 --bf16
"""


def refused(*words: str) -> InputError:
    found = CliRunner().invoke(app, ["project", *words]).exception
    assert isinstance(found, InputError)
    return found


def test_a_file_that_is_not_legal_is_named_and_not_set(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    found = refused(str(script), "--nodes", "1", "--hardware", "h100")
    assert {problem.where for problem in found.problems} == {str(script)}
    assert "--set" not in str(found).partition(" - ")[0]


def test_every_broken_rule_is_said_at_once() -> None:
    sets = ["pp=3", "sync_free_stage=1"]
    words = [word for text in sets for word in ("--set", text)]
    found = refused("--model", "llama3_8b", "--hardware", "h100", "--nodes", "3", *words)
    assert len(found.problems) > 1
    assert all(problem.where == "--set" for problem in found.problems)


JOBS = (
    [
        "--model",
        "deepseek_v3",
        "--hardware",
        "h100",
        "--nodes",
        "32",
        "--set",
        "pp=4",
        "--set",
        "ep=8",
        "--set",
        "pipeline_layout=balanced",
    ],
    ["--model", "llama3_8b", "--hardware", "a100_40", "--nodes", "1", "--set", "workload.task=lora"],
    ["--model", "qwen3.5_122b_a10b", "--hardware", "mi355x", "--nodes", "2", "--set", "ep=8"],
    ["--recipe", "llama3_70b_pretrain_64gpu_gb200_fp8cs_config"],
    ["SCRIPT", "--hardware", "h100", "--nodes", "2"],
)


@pytest.mark.parametrize("job", JOBS, ids=lambda words: words[1])
def test_a_candidate_is_one_screen_whose_totals_are_those_of_its_json(job: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.replace("--pipeline-model-parallel-size 8", "--pipeline-model-parallel-size 4"))
    words = ["project", *(word.replace("SCRIPT", str(script)) for word in job)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    figures = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    total = next(line.split() for line in reversed(lines) if line.startswith("total "))
    assert float(total[1].replace(",", "")) == pytest.approx(1e3 * figures["step"]["total_s"], abs=0.01)
    assert float(total[4].replace(",", "")) == pytest.approx(figures["memory"]["total_bytes"] / 1e9, abs=0.01)
    for name in (figures["job"]["layout"].split()[0], figures["memory_verdict"], f"{figures['job']['gpus']:,} "):
        assert name in done.stdout
    left = [*figures["notes"], *figures.get("not_modelled", ()), *filter(None, [figures["measured_kernels"]])]
    named = sum(line.startswith(("NOTE ", "STOPS")) for line in lines)
    more = next((int(line.split()[0]) for line in lines if "more note" in line), 0)
    assert named + more == len(left)
