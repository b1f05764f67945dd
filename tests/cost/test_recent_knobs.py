"""Knobs of 2026 against published runs and pairs; docs/dev/knobs.md lists them with their errors."""

from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.parts.optimizer import host_update_s
from primus_search.cost.project import Projector
from primus_search.declare.hardware_files import load_cluster
from primus_search.declare.model_files import load_model
from primus_search.runs.published import validated
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.workload import Workload

DATA = Path(__file__).parents[1] / "oracle" / "data"


def test_mxfp4_on_instinct_is_within_5_percent_of_the_clean_run() -> None:
    """Source: DaiXindi-AMD/Lumen docs/mxfp4_training_report.md section 4.6: Qwen3-8B on 8 MI350X, TE MXFP4 in all
    layers, 22,990 tokens/s/GPU; projected as NVFP4 before (4.5 % off)."""
    outcome = validated(DATA / "amd_runs.csv")
    (row,) = (row for row in outcome.rows if row.run.id == "ah-022")
    assert row.run.candidates.row(0)["fp8"] == "mxfp4"
    assert row.predicted == pytest.approx(22990.2, rel=0.05)


def test_an_optimizer_on_the_host_costs_and_saves_what_megatron_bridge_measured() -> None:
    """Source: NVIDIA-NeMo/Megatron-Bridge#3062 and docs/training/cpu-offloading.md: Qwen3-30B-A3B on 16 H100, TP2 PP2
    EP4, global batch 8: 1.9 times the step at 25 %, 4.2 times at 100 %; 3.8 GB saved per 25 %, 15.3 GB in all.

    The rate of the host is from NVIDIA-NeMo/RL#3628, another model on one device.
    """
    c = Candidates.table(tp=2, pp=2, ep=4, optimizer_offload=[0, 25, 100])
    job = Job(load_model("qwen3_30b_a3b"), load_cluster("h100", 2), Workload(seq_length=4096, global_batch_size=8))
    projection = Projector(job).project(c)
    assert projection.step.total / projection.step.total[0] == pytest.approx([1.0, 1.9, 4.2], rel=0.1)
    saved_gigabytes = (projection.memory.optimizer[0] - projection.memory.optimizer) / 1e9
    assert saved_gigabytes == pytest.approx([0.0, 3.8, 15.3], rel=0.02)


def test_half_of_an_optimizer_on_the_host_takes_what_nemo_rl_measured() -> None:
    """Source: NVIDIA-NeMo/RL#3628: Qwen3-0.6B on one H100, 0.752 s, 1.187 s with half on the host, 1.678 s with all."""
    more_s = host_update_s(load_cluster("h100", 1).network, 0.596e9 * np.array([0.5, 1.0]))
    assert more_s == pytest.approx([1.187 - 0.752, 1.678 - 0.752], rel=0.1)
