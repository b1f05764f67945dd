"""`project` of a candidate that breaks rules: all of them at once, blamed on what was given."""

from pathlib import Path

from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app

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
