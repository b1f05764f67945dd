"""Faults seen in other projection tools, one test each: none of them may be ours."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.base.errors import ScheduleError
from primus_search.cost.parts.layer import core_attention, layer_operations
from primus_search.cost.parts.operations import LinearOp
from primus_search.cost.project import Projector
from primus_search.cost.projection import Step
from primus_search.cost.replicas import tied_gradient_s
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.schedule.registry import Algorithm, registered
from primus_search.values.candidates import Candidates, Floats, Fp8, Recompute, RecomputeMethod, degrees
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import number_of, with_numbers
from primus_search.values.model import Model
from primus_search.values.workload import Workload

LLAMA = load_model("llama3.1_8b")
H100 = load_cluster("h100", 2)
WORKLOAD = Workload(seq_length=8192, global_batch_size=64)


def step(model: Model = LLAMA, cluster: Cluster = H100, workload: Workload = WORKLOAD, **columns: object) -> Step:
    vocabulary = {key: columns.pop(key) for key in ("schedules", "layouts") if key in columns}
    return Projector(Job(model, cluster, workload)).step(Candidates.table(**vocabulary, **columns))  # type: ignore[arg-type]


def linear_shapes(**columns: object) -> list[tuple[float, float, float]]:
    c = Candidates.table(**columns)
    ops = layer_operations(Job(LLAMA, H100, WORKLOAD), LLAMA.kinds[0], c)
    return [
        tuple(float(np.broadcast_to(np.asarray(x, np.float64), (1,))[0]) for x in (o.m, o.n, o.k))  # type: ignore[misc]
        for o in ops
        if isinstance(o, LinearOp)
    ]


def test_tensor_parallelism_narrows_matrices_and_never_the_tokens() -> None:
    whole, split = linear_shapes(tp=1), linear_shapes(tp=4)
    assert [m for m, _, _ in whole] == [m for m, _, _ in split]
    assert all(n * k == pytest.approx(4 * sn * sk) for (_, n, k), (_, sn, sk) in zip(whole, split, strict=True))


def test_context_parallelism_is_not_free() -> None:
    """Twice the ranks per sample: half the replicas, twice the micro-batches; only the bubble may shrink for it."""
    found = step(pp=[2, 2], cp=[1, 2], micro_batch_size=1)
    busy = found.total - found.bubble
    assert busy[1] > busy[0]


def test_a_softmax_of_plain_torch_passes_over_its_scores_in_fp32_one_operation_after_the_other() -> None:
    """Cast 6, mask 5, softmax 8 and cast 6 bytes where one kernel moves 4; backward 6, 12, 5 and 6 for 6."""

    def core(is_fused: bool) -> tuple[Floats, Floats]:
        stack = with_numbers(H100.stack, {"attention_kernel": "unfused", "has_fused_softmax": is_fused})
        job = Job(LLAMA, replace(H100, stack=stack), WORKLOAD)
        forward, backward = core_attention(job, LLAMA.kinds[0], Candidates.table(tp=[1, 2])).seconds
        return np.asarray(forward), np.asarray(backward)

    rate = H100.accelerator.hbm_bytes_per_s * H100.accelerator.memory.softmax_efficiency
    scores = 32 / np.array([1, 2]) * 8192.0**2
    for slow, fused, passes in zip(core(False), core(True), (21.0, 23.0), strict=True):
        assert (slow - fused) * H100.accelerator.training_rate == pytest.approx(passes * scores / rate, rel=0.01)


def test_context_parallelism_divides_attention_by_its_degree_not_its_square() -> None:
    def core(cp: int) -> Floats:
        c = Candidates.table(cp=cp)
        return np.asarray(core_attention(Job(LLAMA, H100, WORKLOAD), LLAMA.kinds[0], c).seconds[0])

    assert core(1)[0] / core(4)[0] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("schedule,vpp", [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_as_many_or_fewer_micro_batches_than_stages_work(schedule: str, vpp: int, microbatches: int) -> None:
    workload = Workload(seq_length=8192, global_batch_size=4 * microbatches)
    found = step(workload=workload, pp=4, vpp=vpp, schedules=(schedule,))
    assert np.isfinite(found.total[0]) and found.total[0] > 0.0
    assert found.bubble[0] > 0.0


def test_vocabulary_is_the_models_own() -> None:
    small = replace(LLAMA, vocab_size=32000)
    assert step(small).embedding_and_head[0] < 0.4 * step().embedding_and_head[0]


def test_there_is_one_data_parallel_degree() -> None:
    """World is tp * cp * dp * pp whatever the experts do; micro-batches follow from it."""
    c = Candidates.table(tp=2, cp=2, pp=2, ep=[1, 2], micro_batch_size=1)
    d = degrees(c, world=H100.world, global_batch_size=64)
    assert d.dp.tolist() == [2, 2]
    assert d.microbatches.tolist() == [32, 32]
    assert d.edp.tolist() == [8, 4]


def test_uniform_recompute_repeats_every_layer_whatever_its_groups() -> None:
    full, group = int(Recompute.FULL), int(RecomputeMethod.UNIFORM)
    for pp in (1, 2):
        found = step(recompute=full, recompute_method=group, recompute_num_layers=[0, 1, 4], pp=pp).recompute
        assert found[0] > 0.0
        assert found == pytest.approx([found[0]] * 3)


def test_block_recompute_costs_in_proportion_to_its_layers_with_and_without_a_pipeline() -> None:
    full, block = int(Recompute.FULL), int(RecomputeMethod.BLOCK)
    for pp in (1, 2):
        found = step(recompute=full, recompute_method=block, recompute_num_layers=[0, 4, 8], pp=pp).recompute
        assert found[2] == pytest.approx(2 * found[1])
        assert found[0] == pytest.approx(found[1] * LLAMA.num_layers / pp / 4)


def test_zero_bubble_is_only_assumed_where_asked_for() -> None:
    plain = step(pp=4, schedules=("1f1b",))
    split = step(pp=4, schedules=("zb-h1",))
    m, p = 64 // 4, 4
    assert plain.bubble[0] / (plain.total[0] - plain.bubble[0]) == pytest.approx((p - 1) / m, rel=0.5)
    assert split.bubble[0] < 0.8 * plain.bubble[0]


def test_multi_token_prediction_costs_a_layer_and_a_head() -> None:
    deepseek = load_model("deepseek_v3")
    cluster = load_cluster("h100", 32)
    workload = Workload(seq_length=4096, global_batch_size=512)
    settings = {"ep": 32, "tp": 1, "micro_batch_size": 1}
    without = step(replace(deepseek, num_mtp_layers=0), cluster, workload, **settings).total[0]
    with_one = step(replace(deepseek, num_mtp_layers=1), cluster, workload, **settings).total[0]
    extra = with_one / without - 1.0
    assert 1.0 / 61 < extra < 5.0 / 61


def test_hops_between_stages_take_time() -> None:
    slow = replace(H100, network=replace(H100.network, nic_bytes_per_s=1e8, link_bytes_per_s=1e9, pod_bytes_per_s=1e8))
    assert step(pp=2, cluster=slow).bubble[0] > 1.5 * step(pp=2).bubble[0]


def test_bf16_pays_no_cast() -> None:
    """Casting costs FP8 something and BF16 nothing: an endlessly slow cast must not move BF16."""
    acc = H100.accelerator
    slow = replace(H100, accelerator=replace(acc, memory=replace(acc.memory, cast_efficiency=1e-4)))
    codes = [int(Fp8.NONE), int(Fp8.HYBRID)]
    fast_s, slow_s = step(fp8=codes).total, step(fp8=codes, cluster=slow).total
    assert slow_s[0] == fast_s[0]
    assert slow_s[1] > 2.0 * fast_s[1]


def test_fp8_is_faster_than_bf16_but_never_twice_as_fast() -> None:
    found = step(fp8=[int(Fp8.NONE), int(Fp8.DELAYED)], micro_batch_size=2).total
    assert 1.1 < found[0] / found[1] < 1.75


def test_a_schedule_with_as_many_chunks_as_it_is_not_made_of_is_refused_and_not_infinite() -> None:
    with pytest.raises(ScheduleError, match="dualpipev: vpp=1; this schedule is defined for 2"):
        step(pp=2, vpp=1, schedules=("dualpipev",))


@pytest.mark.parametrize("algorithm", registered(), ids=lambda a: a.name)
def test_every_schedule_has_a_finite_step(algorithm: Algorithm) -> None:
    chunks = (algorithm.virtual_stages or (1, 2))[-1]
    assert 0.0 < step(pp=2, vpp=chunks, schedules=(algorithm.name,)).total[0] < 3600.0


def test_a_tied_embedding_sums_its_gradients_over_first_and_last_stage() -> None:
    """Megatron's `_allreduce_word_embedding_grads`: V H / tp main gradients over two ranks, once per step."""
    model, cluster, workload = LLAMA, load_cluster("h100", 4), Workload(seq_length=4096, global_batch_size=64)
    tied = Job(replace(model, is_tied=True), cluster, workload)
    over_nic = Candidates.from_words({"pp": 4, "tp": 1, "micro_batch_size": 1})
    seconds = tied_gradient_s(tied, over_nic)[0]
    sent = model.vocab_size * model.hidden * number_of(cluster.stack, "gradient_bytes")
    rate = cluster.network.nic_bytes_per_s * cluster.stack.efficiencies.network_efficiency
    assert 1.0 <= seconds * rate / sent < 1.5
    assert tied_gradient_s(tied, Candidates.from_words({"pp": 4, "tp": 2}))[0] == pytest.approx(seconds / 2, rel=0.05)
    assert tied_gradient_s(tied, Candidates.from_words({"pp": 1, "tp": 1}))[0] == 0.0
    assert tied_gradient_s(tied, Candidates.from_words({"pp": 4, "vpp": 2, "schedule": "zbv"}))[0] == 0.0
    assert tied_gradient_s(Job(model, cluster, workload), over_nic)[0] == 0.0
