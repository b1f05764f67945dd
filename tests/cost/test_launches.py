"""What the host takes of a layer: it launches again what backward repeats, and dispatches sharded tensors in Python."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.stage import pieces
from primus_search.files.hardware_files import load_cluster, load_stack
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Floats, Recompute
from primus_search.values.job import Job
from primus_search.values.machine.stack import with_numbers
from primus_search.values.workload import Workload

SETTINGS = (Recompute.CORE_ATTENTION, Recompute.OP_SAC, Recompute.FULL)


def layers(
    model: str, launch_s: float, moe_s: float = 0.0, factor: float = 1.0, **columns: int
) -> tuple[Floats, Floats]:
    """Seconds of the last kind of layer on H100: of its passes without recompute, and what each setting adds."""
    numbers = {"host_launch_s": launch_s, "host_moe_s": moe_s, "host_sync_s": 0.0, "host_race_power": 0.0}
    numbers["sharded_launch_factor"] = factor
    cluster = load_cluster("h100", 8)
    cluster = replace(cluster, stack=with_numbers(load_stack("megatron_core_2026"), numbers))
    job = Job(model=load_model(model), workload=Workload(seq_length=4096, global_batch_size=64), cluster=cluster)
    found = pieces(job, Candidates.table(recompute=[0, *map(int, SETTINGS)], **columns))
    return found.pass_s[found.num_kinds - 1, :, 0], found.recompute_s[-1, 1:]


@pytest.mark.parametrize("model", ["llama3_8b", "qwen3_30b_a3b"])
def test_what_backward_repeats_is_launched_again(model: str) -> None:
    slow, fast = 1.0, 0.0
    (forward, *_), (core, most, full) = layers(model, slow)
    assert full == pytest.approx(forward)
    assert 0.0 < core < most <= full
    _, on_device = layers(model, fast)
    assert np.all(on_device < 1e-3 * np.array([core, most, full]))


def test_bookkeeping_of_experts_comes_again_with_their_router() -> None:
    _, (core, most, full) = layers("qwen3_30b_a3b", 0.0, moe_s=1.0)
    assert core == pytest.approx(0.0, abs=1e-6)
    assert most == pytest.approx(full) == pytest.approx(1.0)


def test_a_host_that_the_device_outlasts_adds_nothing_to_recompute() -> None:
    _, free = layers("llama3_8b", 0.0, micro_batch_size=8)
    _, usual = layers("llama3_8b", 1e-6, micro_batch_size=8)
    assert np.array_equal(free, usual)


@pytest.mark.parametrize("name", ["torchtitan", "primus_torchtitan"])
def test_eager_operations_on_sharded_tensors_are_dearer_to_launch(name: str) -> None:
    stacks = [load_stack(f"{name}@{variant}") for variant in ("eager", "2026", "2026-eager")]
    eager, compiled, new = (stack.host.sharded_launch_factor for stack in stacks)
    assert eager == new > 5.0 and compiled == 1.0


def test_a_launch_on_sharded_tensors_costs_its_factor() -> None:
    for tp, times in ((1, 1.0), (2, 9.0)):
        (plain, plain_again), (dear, dear_again) = (layers("llama3_8b", 1.0, factor=f, tp=tp) for f in (1.0, 9.0))
        assert dear.sum() == pytest.approx(times * plain.sum())
        assert dear_again == pytest.approx(times * plain_again)
