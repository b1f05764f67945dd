"""A stack and an accelerator are one file each: docs/dev/adding.md, in a temporary tree."""

from pathlib import Path

import pytest

from primus_search.cost.project import project
from primus_search.files.hardware_files import load_cluster
from primus_search.files.search_path import HOME_VARIABLE, FileKind, names
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.workload import Workload

STACK = """\
name: toy
extends: primus_megatron
efficiencies:
  gemm_efficiency: {value: 0.5, source: "toy"}
"""
DEVICE = """\
name: TOY
extends: mi300x
default_stack: toy
accelerator:
  hbm_GB: {value: 500, source: "toy"}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hardware" / "stacks").mkdir(parents=True)
    (tmp_path / "hardware" / "stacks" / "toy.yaml").write_text(STACK)
    (tmp_path / "hardware" / "toy.yaml").write_text(DEVICE)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    return tmp_path


def step_s(hardware: str, stack: str) -> float:
    cluster = load_cluster(hardware, 1, stack)
    work = Workload(seq_length=4096, global_batch_size=64)
    return float(project(load_model("llama3_8b"), cluster, work, Candidates.table(sharding=1)).step.total[0])


def test_a_stack_of_one_file_is_known_and_moves_the_step(home: Path) -> None:
    assert "toy" in names(FileKind.STACK)
    assert step_s("mi300x", "toy") > 1.2 * step_s("mi300x", "primus_megatron")


def test_an_accelerator_of_one_file_is_known_and_has_its_own_numbers(home: Path) -> None:
    cluster, parent = load_cluster("toy", 1), load_cluster("mi300x", 1)
    assert (cluster.accelerator.name, cluster.stack.name) == ("TOY", "toy")
    assert cluster.accelerator.hbm_bytes == 500e9
    assert cluster.accelerator.gemm == parent.accelerator.gemm
    assert step_s("toy", "primus_megatron") == step_s("mi300x", "primus_megatron")
