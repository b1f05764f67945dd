"""Groups of micro-batches in interleaving: larger ones hide hops and hold more."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import load_cluster
from primus_search.launch.read.megatron import candidate_words
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.workload import Workload

MODEL = load_model("llama3.1_70b")
CLUSTER = load_cluster("h100", 4)
WORK = Workload(seq_length=4096, global_batch_size=64)
GROUPS = [0, 4, 8, 16, 32]


def projected(slower: float = 1.0) -> Projection:
    """TP 8, PP 4 x 4 with groups of several sizes, on a fabric between nodes that is slower by a factor."""
    network = replace(CLUSTER.network, nic_bytes_per_s=CLUSTER.network.nic_bytes_per_s / slower)
    c = Candidates.table(schedules=("interleaved",), tp=8, pp=4, vpp=4, microbatch_group=GROUPS)
    return Projector(Job(MODEL, replace(CLUSTER, network=network), WORK)).project(c)


def test_groups_of_as_many_as_stages_are_the_default() -> None:
    found = projected()
    assert found.step.total[0] == found.step.total[1]
    assert found.memory.total[0] == found.memory.total[1]


def test_larger_groups_hide_slow_hops_and_hold_more() -> None:
    found = projected(slower=4.0)
    assert found.step.total[2] < found.step.total[1]
    assert (np.diff(found.memory.activations[1:]) > 0).all()
    # Rank 0 warms up with 2 (p - 1) + (v - 1) group chunks of v and holds one more.
    chunks = [2 * 3 + 3 * group + 1 for group in GROUPS[1:]]
    share = found.memory.activations[1:] / found.memory.activations[1]
    assert share == pytest.approx(np.array(chunks) / chunks[0], rel=0.02)


@pytest.mark.parametrize(("group", "batch", "expected"), [(4, 64, 0), (8, 64, 8), (6, 24, 0), (None, 64, 0)])
def test_a_group_that_megatron_needs_anyway_is_no_choice(group: int | None, batch: int, expected: int) -> None:
    """Of 6 micro-batches on 4 stages Megatron refuses groups of 4 and 5, which leave 2 and 1 over."""
    found = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "micro_batch_size": 4,
             "global_batch_size": batch, "num_virtual_stages_per_pipeline_rank": 4,
             "microbatch_group_size_per_vp_stage": group}  # fmt: skip
    row, _ = candidate_words(load_framework("megatron"), found, None, 32)
    assert row["microbatch_group"] == expected
