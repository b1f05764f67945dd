"""What ranks hold, update and send: both ends of a model on one rank, offloaded state, racks cut by a stage."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from primus_search.base.units import BF16_BYTES
from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.pipeline import far_hops
from primus_search.cost.replicas import UPDATE, params_per_rank, replica_terms
from primus_search.cost.stage import MeasuredLayers
from primus_search.cost.traffic.sharded_weights import sharded_layer
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.schedule import ranks_of
from primus_search.values.candidates import Candidates, PipelineOrder, Sharding
from primus_search.values.job import Job
from primus_search.values.workload import Workload

V_SCHEDULES = ("zbv", "v-half", "v-min")


def job_of(name: str, hardware: str = "h100", nodes: int = 1) -> Job:
    return Job(load_model(name), load_cluster(hardware, nodes), Workload(seq_length=4096, global_batch_size=128))


@pytest.mark.parametrize("model", ["llama3.2_1b", "qwen3_0.6b"])
@pytest.mark.parametrize(("schedule", "pp", "vpp"), [*((name, 2, 2) for name in V_SCHEDULES), ("1f1b", 1, 1)])
def test_a_tied_matrix_is_held_once_by_the_rank_with_both_ends(model: str, schedule: str, pp: int, vpp: int) -> None:
    job, c = job_of(model), Candidates.table(pp=pp, vpp=vpp, schedules=(schedule,))
    untied = replace(job, model=replace(job.model, is_tied=False))
    (tied,), (apart,) = params_per_rank(job, c)[0], params_per_rank(untied, c)[0]
    assert job.model.is_tied and apart - tied == pytest.approx(job.model.head_params)


def test_a_tied_matrix_is_held_by_both_ranks_of_its_ends() -> None:
    job, c = job_of("llama3.2_1b"), Candidates.table(pp=2, schedules=("1f1b",))
    untied = replace(job, model=replace(job.model, is_tied=False))
    assert params_per_rank(job, c)[0] == pytest.approx(params_per_rank(untied, c)[0])


def test_a_measured_optimizer_updates_the_part_on_the_device_alone() -> None:
    job, c = job_of("llama3.1_8b"), Candidates.table(optimizer_offload=[0, 50, 100])
    measured = MeasuredLayers(optimizer_s_per_param=1e-12)
    timed, law = replica_terms(job, c, measured)[:, UPDATE], replica_terms(job, c, None)[:, UPDATE]
    assert timed[2] == law[2]  # nothing is on the device
    assert timed[1] == pytest.approx(0.5 * (timed[0] + timed[2]), rel=1e-9)


@pytest.mark.parametrize("sharding", [Sharding.DISTRIBUTED_OPTIMIZER, Sharding.FSDP2, Sharding.HSDP])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (2, 1, 2), (4, 1, 1), (4, 1, 2), (2, 8, 1), (4, 4, 1)])
def test_the_optimizer_updates_the_states_that_memory_holds(sharding: Sharding, tp: int, ep: int, etp: int) -> None:
    """The share that is updated of experts and of the dense part is that of their states in memory."""
    group = 4 * (sharding == Sharding.HSDP)
    job, c = (
        job_of("qwen3_30b_a3b", nodes=2),
        Candidates.table(tp=tp, ep=ep, etp=etp, sharding=sharding, shard_group=group),
    )
    (owned,) = replica_terms(job, c, MeasuredLayers(optimizer_s_per_param=1.0))[:, UPDATE]
    whole = Candidates.table(tp=tp, ep=ep, etp=etp, sharding=Sharding.NONE)
    (all_of,) = replica_terms(job, whole, MeasuredLayers(optimizer_s_per_param=1.0))[:, UPDATE]
    held, whole_held = (memory_by_rank(job, one).optimizer.max() for one in (c, whole))
    assert owned / all_of == pytest.approx(held / whole_held, rel=1e-3)


def test_torch_gathers_experts_without_ranks_of_their_own_with_their_layer() -> None:
    """One message of a layer where Megatron-FSDP, whose experts have replicas of their own, sends two."""
    job = job_of("qwen3_30b_a3b", nodes=2)
    c = Candidates.table(tp=4, ep=1, etp=1, sharding=[Sharding.FSDP2, Sharding.MEGATRON_FSDP])
    params = {name: np.full(2, 1e8) for name in ("dense_params", "expert_params", "trained_dense", "trained_experts")}
    got = sharded_layer(job, c, job.degrees(c), **params, forward_s=0.0, backward_s=0.0)
    assert got.forward.count.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("pp", "vpp", "schedule"), [(2, 1, "1f1b"), (8, 1, "1f1b"), (4, 2, "zbv"), (4, 4, "interleaved")]
)
@pytest.mark.parametrize("domain", [4, 6, 8, 12, 72])
def test_a_hop_is_far_where_any_two_devices_of_it_are_in_different_domains(
    pp: int, vpp: int, schedule: str, domain: int
) -> None:
    cluster = load_cluster("h100", 16)
    cluster = replace(cluster, network=replace(cluster.network, domain_size=domain))
    order = PipelineOrder(schedule, pp, vpp)
    ranks, size = ranks_of(order)[: pp * vpp], cluster.world // pp
    domains = [[(rank * size + i) // domain for i in range(size)] for rank in ranks]
    assert far_hops(cluster, order).tolist() == [one != other for one, other in itertools.pairwise(domains)]


@pytest.mark.parametrize("model", ["llama3.1_8b", "qwen3_0.6b", "qwen3_30b_a3b"])
@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("dualpipe", 1), ("dualpipev", 2)]
)
def test_a_rank_updates_the_parameters_that_memory_counts_on_it(model: str, schedule: str, vpp: int) -> None:
    job, c = job_of(model), Candidates.table(pp=2, vpp=vpp, schedules=(schedule,))
    dense, expert = params_per_rank(job, c)
    assert BF16_BYTES * (dense[0] + expert[0]) == pytest.approx(memory_by_rank(job, c).weights.max(), rel=1e-4)
