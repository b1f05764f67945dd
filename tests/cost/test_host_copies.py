"""Offloaded inputs of modules: what leaves the device, and what of the copies shows beside compute."""

from dataclasses import replace

import pytest

from primus_search.analysis.breakdown import stages_of, traffic
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Offload, Recompute
from primus_search.values.job import Job
from primus_search.values.model import Model
from primus_search.values.workload import Workload

MODEL = load_model("qwen3_30b_a3b")
CLUSTER = load_cluster("h100", 2)
WORK = Workload(seq_length=4096, global_batch_size=64)
LAYERS, TOKENS, TOP_K, HIDDEN, INNER = 48, 4096, 8, 2048, 768


def projected(
    modules: Offload, *, rate: float, recompute: Recompute = Recompute.NONE, model: Model = MODEL
) -> Projection:
    network = replace(CLUSTER.network, host_copy_bytes_per_s=rate)
    c = Candidates.table(ep=16, offload_modules=int(modules), recompute=int(recompute))
    return Projector(Job(model, replace(CLUSTER, network=network), WORK)).project(c)


def test_a_fast_link_hides_every_copy() -> None:
    away, usual = (projected(modules, rate=1e15) for modules in (Offload.EXPERT_FC1, Offload.NONE))
    assert away.step.host_copies[0] == usual.step.host_copies[0] == 0.0
    assert away.step.total[0] == usual.step.total[0]


def test_offloaded_inputs_leave_the_device() -> None:
    """A micro-batch of 4,096 tokens, 8 times routed: rows of 2,048 and of gate and up of 768, BF16, in 48 layers."""
    away, usual = (projected(modules, rate=52e9) for modules in (Offload.EXPERT_FC1 | Offload.MOE_ACT, Offload.NONE))
    moved = LAYERS * TOKENS * TOP_K * (HIDDEN + 2 * INNER) * 2
    assert usual.memory.activations[0] - away.memory.activations[0] == pytest.approx(moved, rel=1e-9)


def test_a_slow_link_shows_both_directions_of_what_compute_does_not_cover() -> None:
    found = {rate: projected(Offload.EXPERT_FC1, rate=rate).step for rate in (1e9, 0.5e9)}
    copy_s = 2 * LAYERS * 4 * TOKENS * TOP_K * HIDDEN * 2 / 1e9  # 4 micro-batches, to the host and back
    more_s = float(found[0.5e9].host_copies[0] - found[1e9].host_copies[0])
    assert more_s == pytest.approx(copy_s, rel=1e-9)
    covered = float(sum(found[1e9].__getattribute__(part)[0] for part in ("attention", "experts", "norms", "routing")))
    assert copy_s - covered * 1.5 < float(found[1e9].host_copies[0]) < copy_s


def test_offloaded_inputs_of_recomputed_layers_leave_the_device_but_for_two_and_travel_both_ways() -> None:
    away, slow, usual = (
        projected(modules, rate=rate, recompute=Recompute.FULL, model=replace(MODEL, vocab_size=1024))
        for modules, rate in ((Offload.LAYER_INPUT, 2e6), (Offload.LAYER_INPUT, 1e6), (Offload.NONE, 1e6))
    )
    one = TOKENS * HIDDEN * 2
    assert usual.memory.activations[0] - away.memory.activations[0] == pytest.approx(LAYERS * one, rel=1e-9)
    assert away.memory.recompute_workspace[0] - usual.memory.recompute_workspace[0] == pytest.approx(2 * one)
    copy_s = 2 * LAYERS * 4 * one / 2e6
    assert float(slow.step.host_copies[0] - away.step.host_copies[0]) == pytest.approx(copy_s, rel=1e-9)


def test_the_traffic_table_lists_the_copies() -> None:
    c = Candidates.table(ep=16, offload_modules=int(Offload.EXPERT_FC1))
    job = Job(MODEL, CLUSTER, WORK)
    sent = traffic(job, c, stages_of(job, c), Projector(job).project(c))
    assert [one.operation for one in sent if one.part == "host_copies"] == [
        "activations to the host",
        "activations from the host",
    ]
