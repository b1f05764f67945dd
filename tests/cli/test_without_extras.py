"""A search runs without torch, Ray and optuna; what needs one of them says how to get it."""

import subprocess
import sys
from pathlib import Path

import pytest

SPACE = """
model: tiny
hardware: mi355x
nodes: 1
workload: {seq_length: 1024, global_batch_size: 64}
space: {tp: [1, 2], pp: 1, cp: 1, micro_batch_size: 1, recompute: none}
"""
ABSENT = "import sys; sys.modules.update(dict.fromkeys(['torch', 'ray', 'optuna'])); "
MAIN = "from primus_search.cli import main; sys.argv = ['primus-search', *{words!r}]; main()"


def without_extras(*words: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process where the three libraries cannot be imported."""
    code = ABSENT + MAIN.format(words=list(words))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.in_turn
def test_a_search_needs_none_of_them_and_says_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    done = without_extras("run", str(tmp_path / "space.yaml"), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "torch is not installed: no row was re-validated" in " ".join(done.stdout.split())
    assert (tmp_path / "run" / "report.html").exists()
    for words, name in ((["--bench", "trace"], "torch"), (["--method", "tpe"], "optuna"), (["--engine", "ray"], "ray")):
        done = without_extras("run", str(tmp_path / "space.yaml"), "--out", str(tmp_path / name), *words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert f"this needs {name}, which is not installed: pip install 'primus-search[{name}]'" in done.stderr
