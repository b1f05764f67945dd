"""Faults of published memory projections, one test each: that we do not have them.

Numbers W.. are those of our list of weak points of AMD Primus' memory projection (memory_projection/simulate.py and
module_profilers/*), in the order of docs/cost/memory.md.
"""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.base.units import GB
from primus_search.cost.memory.activations import saved_tensors
from primus_search.cost.memory.chunk_memory import MemoryTable, memory_by_rank
from primus_search.cost.memory.share import Share
from primus_search.cost.projection import Memory
from primus_search.values.candidates import Candidates, Recompute, RecomputeMethod, Sharding
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.machine.stack import with_numbers
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import FLASH, HARDWARE, LITE, LLAMA_70B, cluster

WORK = Workload(seq_length=4096, global_batch_size=256)


def project(model: Model = LLAMA_70B, *, nodes: int = 8, work: Workload = WORK, stack=FLASH, **columns) -> Memory:
    return MemoryTable(Job(model, cluster(nodes, stack), work)).memory(Candidates.table(layouts=(BALANCED,), **columns))


def test_w3_tensor_parallelism_shards_weights_gradients_and_optimizer() -> None:
    m = project(tp=[1, 2, 4, 8], sharding=int(Sharding.NONE))
    for part in (m.weights, m.gradients, m.optimizer):
        assert part[0] / part == pytest.approx([1, 2, 4, 8], rel=2e-3)


def test_w3_expert_tensor_parallelism_shards_experts() -> None:
    m = project(LITE, ep=[4, 4], etp=[1, 2], tp=2, sequence_parallel=True, sharding=int(Sharding.NONE))
    experts = 26 * 64 / 4 * LITE.expert_params * 2
    assert m.weights[0] - m.weights[1] == pytest.approx(experts / 2)


def test_w3_fsdp2_shards_weights_and_gradients_too() -> None:
    # The closest tool says 342.8 GB for Llama-70B with FSDP2 on 8 devices, because 4 bytes per parameter stay whole.
    m = project(nodes=1, work=Workload(seq_length=4096, global_batch_size=8), sharding=int(Sharding.FSDP2),
                recompute=int(Recompute.FULL))  # fmt: skip
    assert float((m.weights + m.gradients + m.optimizer)[0]) / GB == pytest.approx(70.55 * 18 / 8, rel=0.01)
    assert m.total[0] / GB < 230


def test_fsdp2_holds_the_gathered_layers_it_works_on() -> None:
    m = project(sharding=[int(Sharding.DISTRIBUTED_OPTIMIZER), int(Sharding.FSDP2)], recompute=int(Recompute.FULL))
    layer = LLAMA_70B.layer_params(LLAMA_70B.kinds[0])
    assert m.collective_buffers[0] == 0 and m.collective_buffers[1] >= 2 * 2 * layer


def test_w4_mtp_modules_have_weights_activations_and_logits_on_the_last_stage() -> None:
    with_mtp = replace(LITE, num_mtp_layers=1)
    c = Candidates.table(pp=4, ep=2, layouts=(BALANCED,))
    work = Workload(seq_length=4096, global_batch_size=32)
    without, held = (memory_by_rank(Job(model, cluster(), work), c) for model in (LITE, with_mtp))
    assert held.weights[:3].tolist() == without.weights[:3].tolist()
    assert held.weights[3] - without.weights[3] == pytest.approx(
        2 * (with_mtp.mtp_params - 64 * LITE.expert_params / 2 + LITE.vocab_size * LITE.hidden)
    )
    assert held.activations[3] > without.activations[3]  # and an embedding of its own (Megatron-Core gpt_model.py)


def test_w5_optimizer_state_has_the_formats_the_stack_says() -> None:
    aware = with_numbers(FLASH, {"gradient_bytes": 2.0, "moment_bytes": 2.0})
    full, slim = project(tp=8, stack=FLASH), project(tp=8, stack=aware)
    assert slim.optimizer[0] / full.optimizer[0] == pytest.approx((4 + 2 * 2) / (4 + 2 * 4))
    assert slim.gradients[0] / full.gradients[0] == pytest.approx(0.5)
    assert project(tp=8).weights[0] / full.gradients[0] == pytest.approx(2.0 / 4.0)


def test_w6_the_optimizer_is_shared_by_dp_times_cp_and_experts_by_their_own_replicas() -> None:
    dense = project(tp=8, cp=[1, 2, 4])
    assert dense.optimizer[0] == pytest.approx(dense.optimizer)
    m = project(LITE, nodes=1, work=Workload(seq_length=4096, global_batch_size=64), ep=8)
    # 8 devices, EP 8: nobody else holds the same experts, so their 12 bytes per parameter are not divided.
    experts = 26 * 64 / 8 * LITE.expert_params
    dense_params = LITE.total_params - 26 * 64 * LITE.expert_params
    assert m.optimizer[0] == pytest.approx(12 * (experts + dense_params / 8))


def test_w6_micro_batch_size_and_data_parallelism_set_the_micro_batches_in_flight() -> None:
    # Global batch 32 on 8 devices with 8 stages: one replica, so 32 / mbs micro-batches; 1F1B holds min(8, that).
    work = Workload(seq_length=4096, global_batch_size=32)
    m = project(nodes=1, work=work, pp=8, micro_batch_size=[2, 4, 8])
    tokens_in_flight = np.array([8 * 2, 8 * 4, 4 * 8])
    assert m.activations / m.activations[0] == pytest.approx(tokens_in_flight / tokens_in_flight[0])


def test_w7_routed_copies_and_the_size_of_shared_experts_count() -> None:
    c, work = Candidates.table(ep=8, deepep=[False, True]), Workload(seq_length=4096, global_batch_size=8)
    s = Share(LITE, work, FLASH, c, 8)
    saved = {t.name: t.bytes for t in saved_tensors(LITE, FLASH, LITE.kinds[1], s, 4096)}
    copy = 2 * 6 * 4096 * 2048
    assert saved["expert input"].tolist() == [copy, copy]
    assert saved["permuted copies"].tolist() == [copy, 0]
    wider = replace(LITE, moe=replace(LITE.moe, shared_ffn_hidden=2 * 2816))
    more = {t.name: t.bytes for t in saved_tensors(wider, FLASH, wider.kinds[1], s, 4096)}
    assert more["shared experts inner"][0] == 2 * saved["shared experts inner"][0]


def test_w8_selective_recompute_drops_the_scores_but_not_queries_keys_and_values() -> None:
    unfused = with_numbers(FLASH, {"attention_kernel": "unfused", "has_dropout": True, "has_score_dropout": True})
    work = Workload(seq_length=4096, global_batch_size=8)
    kept = [
        project(nodes=1, work=work, tp=8, recompute=r, stack=unfused).activations[0]
        for r in (0, int(Recompute.CORE_ATTENTION))
    ]
    # One peak stands while the head runs, the other while a layer does: they differ by the inputs of norm and head too.
    head_inputs = 4 * 4096 * 8192 / 8
    assert kept[0] - kept[1] == pytest.approx(80 * 5 * 64 / 8 * 4096**2 + head_inputs)
    queries_keys_values = 80 * 2 * (64 + 2 * 8) * 128 / 8 * 4096
    assert kept[1] > queries_keys_values


def test_w8_a_recomputed_layer_comes_back_while_its_backward_runs() -> None:
    work = Workload(seq_length=65536, global_batch_size=8)
    m = project(nodes=1, work=work, recompute=int(Recompute.FULL), tp=8, sequence_parallel=True)
    assert m.recompute_workspace[0] > 0.05 * m.activations[0]


def test_w8_uniform_recompute_of_one_layer_at_a_time_recomputes_all_of_them() -> None:
    shared = {"tp": 8, "sequence_parallel": True, "recompute": int(Recompute.FULL)}
    m = project(**shared, recompute_method=int(RecomputeMethod.UNIFORM), recompute_num_layers=[0, 1, 4])
    assert m.activations[0] == m.activations[1] > m.activations[2]
    block = project(**shared, recompute_method=int(RecomputeMethod.BLOCK), recompute_num_layers=[1, 0])
    assert block.activations[0] > 3 * block.activations[1] == 3 * m.activations[0]


def test_w9_memory_knows_the_schedule() -> None:
    # Measured on Llama-2-7B, 8 stages (Primus pipeline study): six schedules, six different peaks, from V-Min 11.9 GB
    # over 1F1B 16.3 GB to interleaved 21.4 GB; the closest tool gives two numbers.
    names = ("v-min", "v-half", "1f1b", "interleaved")
    vpp = [2, 2, 1, 2]
    work = Workload(seq_length=4096, global_batch_size=64)
    m = MemoryTable(Job(LLAMA_70B, cluster(), work)).memory(
        Candidates.table(pp=8, vpp=vpp, schedule=np.arange(4), schedules=names, layouts=(BALANCED,))
    )
    assert (np.diff(m.activations) > 0).all()
    assert m.activations[2] / m.activations[1] == pytest.approx(8 / 5, rel=0.05)


def test_w9_every_stage_has_its_own_memory() -> None:
    work = Workload(seq_length=4096, global_batch_size=64)
    ranks = memory_by_rank(Job(LLAMA_70B, cluster(), work), Candidates.table(pp=8))
    assert (np.diff(ranks.activations[:-1]) < 0).all()
    one_unit = 10 * 8192 * 4096 * 2.0
    assert ranks.activations[0] - ranks.activations[6] > 6 * one_unit


def test_w9_the_head_of_a_v_schedule_is_on_rank_0() -> None:
    work = Workload(seq_length=4096, global_batch_size=64)
    c = Candidates.table(pp=4, vpp=[2], schedules=("zbv",))
    ranks = memory_by_rank(Job(LLAMA_70B, cluster(), work), c)
    loop = memory_by_rank(Job(LLAMA_70B, cluster(), work), Candidates.table(pp=4))
    matrix = 2.0 * LLAMA_70B.head_params
    assert ranks.weights[0] - ranks.weights[1] == pytest.approx(2 * matrix, rel=1e-3)
    assert loop.weights[3] - loop.weights[1] == pytest.approx(matrix, rel=1e-3)


def test_the_verdict_is_of_the_worst_rank_not_of_rank_0() -> None:
    # Eight stages, two micro-batches, full recompute: activations are small, head and logits decide on the last rank.
    work = Workload(seq_length=8192, global_batch_size=16)
    c = Candidates.table(pp=8, recompute=int(Recompute.FULL), micro_batch_size=8, loss_fusion=False)
    ranks = memory_by_rank(Job(LLAMA_70B, cluster(), work), c)
    assert ranks.total.argmax() == 7
    assert MemoryTable(Job(LLAMA_70B, cluster(), work)).memory(c).total[0] == pytest.approx(ranks.total[7], rel=1e-12)


def test_a_fused_loss_does_not_keep_the_logits_it_does_not_need() -> None:
    work = Workload(seq_length=65536, global_batch_size=8)
    m = project(
        nodes=1, work=work, tp=8, sequence_parallel=True, recompute=int(Recompute.FULL), loss_fusion=[False, True]
    )
    per_logit = m.logits[0] / (65536 * LLAMA_70B.vocab_size / 8)
    assert per_logit == pytest.approx(FLASH.memory.unfused_logit_bytes)
    assert m.total[1] < m.total[0]


def test_logits_and_embedding_are_not_multiplied_by_the_stages() -> None:
    # The closest tool multiplies the activations of a rank, embedding and logits among them, by the number of stages.
    work = Workload(seq_length=8192, global_batch_size=64)
    for pp in (2, 8):
        ranks = memory_by_rank(
            Job(LLAMA_70B, cluster(), work), Candidates.table(pp=pp, recompute=int(Recompute.FULL), loss_fusion=False)
        )
        assert ranks.logits[-1] == pytest.approx(8192 * 128256 * FLASH.memory.unfused_logit_bytes)
        assert not ranks.logits[:-1].any()


def test_a_shape_no_schedule_serves_fits_nowhere_and_is_finite() -> None:
    # DualPipeV needs at least two micro-batches per stage; 61 layers do not split evenly over 8 stages.
    work = Workload(seq_length=4096, global_batch_size=15)
    c = Candidates.table(pp=8, tp=8, vpp=[2, 1], schedule=[0, 1], schedules=("dualpipev", "1f1b"), layouts=(BALANCED,))
    m = MemoryTable(Job(LLAMA_70B, cluster(), work)).memory(c)
    assert np.isfinite(m.total).all() and np.isfinite(m.allocator_slack).all()
    assert m.total[0] > 1e3 * HARDWARE.accelerator.hbm_bytes > 1e3 * m.total[1]
