"""What each knob gives DeepSeek-V2 on four MI355X nodes: the ladder AMD publishes, as its script runs it, and experts
that span nodes.

Source: AMD-AGI/Primus examples/moe_package, README.md and run_deepseek_v2_pretrain_mi355x.sh: PP 4, EP 8 (a node), 256
sequences of 4,096 tokens, micro-batch 1, one expert product after another; features in the order loss fusion, DeepEP,
sync-free stage 1, virtual stages (5). The README gives no figures but a chart; a gain of 35 % is quoted for DeepEP.
"""

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import DEFAULTS, Candidates, Floats, GroupedGemm
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.workload import Workload

Rung = dict[str, int | bool]

AS_PUBLISHED: Rung = {"pp": 4, "ep": 8, "grouped_gemm": int(GroupedGemm.LEGACY), "loss_fusion": False}
LADDER: tuple[Rung, ...] = ({"loss_fusion": True}, {"deepep": True}, {"sync_free_stage": 1}, {"vpp": 5, "schedule": 1})

OVER_TWO_NODES: Rung = {"pp": 2, "ep": 16, "loss_fusion": True}
STAGES: tuple[Rung, ...] = ({"deepep": True}, {"sync_free_stage": 1}, {"sync_free_stage": 2}, {"sync_free_stage": 3})


def gains_of(start: Rung, rungs: tuple[Rung, ...], global_batch_size: int) -> Floats:
    """Relative gain of every rung over the one before it."""
    rows = [start]
    for rung in rungs:
        rows.append(rows[-1] | rung)
    columns = {name: [row.get(name, default) for row in rows] for name, default in DEFAULTS.items()}
    table = Candidates.table(schedules=("1f1b", "interleaved"), layouts=(BALANCED,), **columns)
    workload = Workload(seq_length=4096, global_batch_size=global_batch_size)
    total = Projector(Job(load_model("deepseek_v2"), load_cluster("mi355x", 4), workload)).step(table).total
    return total[:-1] / total[1:] - 1.0


@pytest.fixture(scope="module")
def published() -> Floats:
    return gains_of(AS_PUBLISHED, LADDER, global_batch_size=256)


@pytest.fixture(scope="module")
def over_nodes() -> Floats:
    return gains_of(OVER_TWO_NODES, STAGES, global_batch_size=512)


def test_every_published_rung_gains_more_than_repeats_of_a_run_differ(published: Floats) -> None:
    assert published.min() > 0.01


def test_sync_free_stages_gain_more_than_virtual_ones_and_these_more_than_loss_fusion(published: Floats) -> None:
    loss_fusion, _, sync_free, virtual_stages = published
    assert sync_free > virtual_stages > loss_fusion


def test_deepep_is_the_largest_published_gain(published: Floats) -> None:
    assert published.argmax() == 1


@pytest.mark.xfail(strict=True, reason="5.4 % inside a node; DeepSeek-V2-Lite gains 13 % there, measured and projected")
def test_deepep_gains_as_much_as_amd_quotes(published: Floats) -> None:
    assert published[1] == pytest.approx(0.35, abs=0.1)


def test_deepep_is_the_largest_single_gain_where_experts_span_nodes(over_nodes: Floats) -> None:
    assert over_nodes.argmax() == 0
    assert 0.2 < over_nodes[0] < 0.7


def test_sync_free_stages_together_gain_less_than_deepep_over_nodes(over_nodes: Floats) -> None:
    assert over_nodes[0] > np.prod(1.0 + over_nodes[1:]) - 1.0 > 0.05


def test_every_sync_free_stage_adds_something_and_the_first_one_most(over_nodes: Floats) -> None:
    first, second, third = over_nodes[1:]
    assert first > second > 0.0
    assert first > third > 0.0
