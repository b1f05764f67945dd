"""One setting of a real file at a time set to another value: a number moves, a note names it, or it cannot act."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from primus_search.launch.read.experiments import read_experiment
from tests.support import mutations
from tests.support.judge.checkouts import required
from tests.support.mutations import left_out, mutated, of_script, other_values, priced_files

FILES = {"megatron": (1, 24), "primus": (1, 24), "torchtitan": (2, 20), "job": (1, 12), "recipe": (1, 24)}
"""Files of a day and of the whole: Megatron-LM and Primus need their sources."""
SOURCES = {"megatron": "megatron@core_0.20", "primus": "primus"}
SETTINGS = {"day": (14, 4), "whole": (100, 20)}
"""Settings that are changed of a file: of those that it gives, and of those that it leaves out."""
LEAST = {"day": 5, "whole": 8}
"""Of a file in the mean: some configurations give two settings."""


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "part", [pytest.param("day", marks=pytest.mark.slow), pytest.param("whole", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("kind", FILES)
def test_no_setting_of_a_real_file_is_silent(kind: str, part: str, tmp_path: Path) -> None:
    if kind in SOURCES and required(SOURCES[kind]) is None:
        pytest.skip(f"needs sources of {SOURCES[kind]}")
    rng, answers, silent = random.Random(f"{os.environ['TEST_DAY']} {kind}"), Counter[str](), list[str]()
    wanted = FILES[kind][part == "whole"]
    files = list(priced_files(getattr(mutations, f"{kind}_files")(tmp_path, rng), wanted))
    for file in files:
        for key, value, answer in mutated(file, rng, *SETTINGS[part]):
            answers[answer] += 1
            silent += [f"{file.name} {key}: {value}: {answer}"] if answer in ("silent", "unknown") else []
    assert not silent, "\n".join([str(dict(answers)), *silent])
    assert len(files) == wanted and answers.total() >= LEAST[part] * wanted
    assert answers["moved"] and answers["named"]


def test_a_degree_that_is_left_out_is_set_to_another_than_it_has(tmp_path: Path) -> None:
    """Experts are cut over the ranks that cut the rest, and a list is a word for each of its parts."""
    (tmp_path / "job.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
        "--num-experts 8 --tensor-model-parallel-size 2 --seq-length 64 --micro-batch-size 1 --global-batch-size 8"
    )
    file = of_script(read_experiment(tmp_path / "job.sh", 8), "job.sh", tmp_path / "run.sh")
    degree = left_out(file)["expert_tensor_parallel_size"]
    assert degree == 2 and 2 not in other_values(file, "expert_tensor_parallel_size", degree)
    assert file.read({"cuda_graph_scope_deprecated": ["attn", "moe"]}, 8).written["cuda_graph_scope"] == ["attn", "moe"]
