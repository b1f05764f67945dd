"""Traffic of every kind of parallelism: what is sent, and what compute can and cannot hide of it."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.laws.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from primus_search.cost.laws.gemm import quantize_s
from primus_search.cost.project import Projector
from primus_search.cost.traffic.comm_table import LayerTraffic, exposed_s
from primus_search.cost.traffic.context_parallel import context_parallel
from primus_search.cost.traffic.data_parallel import DataParallel, bucket_params, data_parallel
from primus_search.cost.traffic.expert_parallel import expert_parallel, steady_share
from primus_search.cost.traffic.sharded_weights import sharded_layer
from primus_search.cost.traffic.tensor_parallel import tensor_parallel
from primus_search.files.hardware_files import load_hardware
from primus_search.values.candidates import Candidates, CpComm, Fp8, Recompute, Sharding, degrees
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack, with_numbers
from primus_search.values.model import LayerKind, MixtureOfExperts, Model
from primus_search.values.workload import Workload
from tests.support.plain_stack import plain_stack

HARDWARE = load_hardware("h100")
H100 = HARDWARE.network
MI355X = load_hardware("mi355x").network
PLAIN = plain_stack("flash3", context_overlap=0.0)
MODEL = Model(
    name="small moe",
    num_layers=4,
    hidden=4096,
    ffn_hidden=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=32000,
    moe=MixtureOfExperts(num_experts=64, top_k=4, expert_ffn_hidden=2048),
    moe_layers=(False, True, True, True),
)
DENSE, MOE = LayerKind(False, 0), LayerKind(True, 0)
WORKLOAD = Workload(seq_length=8192, global_batch_size=512)
TOKEN_BYTES = 8192 * 4096 * 2.0


def job(stack: Stack, *, model: Model = MODEL, network: Network = H100, workload: Workload = WORKLOAD) -> Job:
    cluster = Cluster(accelerator=HARDWARE.accelerator, network=network, stack=stack, num_nodes=32)
    return Job(model, cluster, workload)


def tensor(c: Candidates, kind: LayerKind = DENSE, stack: Stack = PLAIN, network: Network = H100, compute: float = 0.0):
    return tensor_parallel(job(stack, network=network), kind, c, compute)


def gradients(c: Candidates, *, stack: Stack = PLAIN, world: int = 256, compute: float = 0.0) -> DataParallel:
    d = degrees(c, world=world, global_batch_size=WORKLOAD.global_batch_size)
    return data_parallel(
        job(stack),
        c,
        d,
        dense_params=np.full(len(c), 1e9),
        expert_params=np.full(len(c), 2e9),
        backward_s=compute,
        forward_s=compute,
    )


def sharded(
    c: Candidates, *, stack: Stack = PLAIN, world: int = 256, forward_s: float = 0.0, backward_s: float = 0.0
) -> LayerTraffic:
    d = degrees(c, world=world, global_batch_size=WORKLOAD.global_batch_size)
    return sharded_layer(
        job(stack),
        c,
        d,
        dense_params=np.full(len(c), 4e8),
        expert_params=np.full(len(c), 8e8),
        trained_dense=np.full(len(c), 4e8),
        trained_experts=np.full(len(c), 8e8),
        forward_s=forward_s,
        backward_s=backward_s,
    )


# --- hiding ---------------------------------------------------------------------------------------------------------


def test_compute_hides_at_most_its_own_time() -> None:
    assert exposed_s(3.0, 1.0, overlap=1.0) == 2.0
    assert exposed_s(3.0, 10.0, overlap=1.0) == 0.0
    assert exposed_s(3.0, 10.0, overlap=0.5) == 1.5


# --- tensor parallel ------------------------------------------------------------------------------------------------


def test_sequence_parallel_gathers_and_scatters_around_each_block() -> None:
    got = tensor(Candidates.table(tp=8))
    gather, scatter = (f(H100, TOKEN_BYTES, Group(8, 1)) for f in (all_gather_s, reduce_scatter_s))
    assert got.forward.seconds == pytest.approx(2 * (gather + scatter))
    assert got.backward.seconds == pytest.approx(4 * gather + 2 * scatter)
    assert got.forward.count == 4


def test_without_sequence_parallel_each_block_all_reduces() -> None:
    got = tensor(Candidates.table(tp=8, sequence_parallel=False))
    assert got.forward.seconds == pytest.approx(2 * all_reduce_s(H100, TOKEN_BYTES, Group(8, 1)))
    assert got.backward.seconds == got.forward.seconds


def test_an_moe_layer_without_shared_experts_splits_only_its_attention() -> None:
    c = Candidates.table(tp=4, ep=8)
    assert tensor(c, MOE).forward.seconds == pytest.approx(tensor(c, DENSE).forward.seconds / 2)


def test_context_parallelism_divides_tensor_parallel_messages() -> None:
    c = Candidates.table(tp=8, cp=[1, 2])
    assert tensor(c).forward.message_bytes.tolist() == [TOKEN_BYTES, TOKEN_BYTES / 2]


def test_tensor_parallel_traffic_follows_the_links_of_the_hardware_file() -> None:
    """[W14] [W20] Time follows the given network, and on a mesh the links of the group, not a default topology."""
    slow = replace(MI355X, link_bytes_per_s=MI355X.link_bytes_per_s / 2)
    c = Candidates.table(tp=[2, 8])
    assert (tensor(c, network=slow).forward.seconds > 1.8 * tensor(c, network=MI355X).forward.seconds).all()
    pair, full = tensor(c, network=MI355X).forward.seconds
    assert pair > 2 * full, "two devices of a mesh share one link of seven"


def test_backward_gathers_hide_behind_gemms_only_where_the_stack_runs_them_so() -> None:
    overlapping = with_numbers(PLAIN, {"tensor_async_overlap": 1.0})
    c = Candidates.table(tp=8)
    exposed = tensor(c, stack=overlapping, compute=1.0).backward.exposed_s
    assert tensor(c, stack=PLAIN, compute=1.0).backward.exposed_s == tensor(c).backward.seconds
    assert exposed == pytest.approx(2 * all_gather_s(H100, TOKEN_BYTES, Group(8, 1)))


def test_user_buffers_hide_nothing_over_nics() -> None:
    """They are memory that one NVLink domain shares: a node of eight H100, a rack of GB200."""
    rack = load_hardware("gb200").network
    hiding = with_numbers(PLAIN, {"switched_tensor_overlap": 0.8})
    for network, tp, hides in ((H100, 8, True), (H100, 16, False), (rack, 16, True)):
        both = Candidates.table(tp=tp, sequence_parallel=True, tp_overlap=[False, True])
        plain_s, hidden_s = tensor(both, stack=hiding, network=network, compute=1.0).forward.exposed_s
        assert bool(hidden_s < plain_s) is hides


def test_fp8_gathers_move_half_the_bytes() -> None:
    stack = with_numbers(PLAIN, {"has_fp8_tensor_gather": True})
    c = Candidates.table(tp=8, fp8=[int(Fp8.NONE), int(Fp8.HYBRID)])
    bf16, fp8 = tensor(c, stack=stack).forward.seconds
    assert 0.7 < fp8 / bf16 < 0.9


# --- context parallel -----------------------------------------------------------------------------------------------


def context(c: Candidates, *, comm: str = "p2p", overlap: float = 0.0, attention_s: float = 0.0):
    stack = with_numbers(PLAIN, {"cp_comm": comm, "context_overlap": overlap})
    return context_parallel(job(stack), c, forward_s=attention_s, backward_s=attention_s)


@pytest.mark.parametrize("way", [way for way in CpComm if way is not CpComm.STACK])
def test_context_parallel_is_not_free(way: CpComm) -> None:
    """[W12] [W16] Splitting a sequence costs the exchange of keys and values, in forward and in backward."""
    got = context(Candidates.table(cp=[1, 2, 8], cp_comm=int(way)))
    assert got.forward.seconds[0] == got.backward.seconds[0] == 0.0
    key_value_bytes = 8192 / 8 * 8 * 2 * 128 * 2.0
    assert got.forward.seconds[2] > key_value_bytes / H100.link_bytes_per_s
    assert (got.backward.seconds >= got.forward.seconds).all()


def test_a_ring_passes_keys_and_values_on_for_all_but_one_step() -> None:
    got = context(Candidates.table(cp=4, tp=2))
    assert got.forward.count == 3
    assert got.forward.message_bytes == 8192 / 4 * (8 / 2) * (128 + 128) * 2.0


def test_a_ring_step_hides_behind_its_own_share_of_attention_only() -> None:
    """A long attention hides the whole ring; one that is short at each step cannot, however long it is in total."""
    c = Candidates.table(cp=8)
    total = float(context(c).forward.seconds[0])
    assert context(c, overlap=1.0, attention_s=100 * total).forward.exposed_s == pytest.approx(0.0, abs=1e-12)
    half = context(c, overlap=1.0, attention_s=total / 2).forward.exposed_s
    assert half == pytest.approx(total - 7 / 8 * total / 2)


def test_keys_and_values_cross_in_collectives_of_their_own() -> None:
    """TransformerEngine flash_attn_a2a_communicate: one all-to-all each of q, k and v, and one of the output."""
    got = context(Candidates.table(cp=8, cp_comm=int(CpComm.A2A))).forward
    tokens, group = 8192 / 8, Group(8, 1)
    queries, keys = tokens * 32 * 128 * 2.0, tokens * 8 * 128 * 2.0
    four = 2 * all_to_all_s(H100, queries, group) + 2 * all_to_all_s(H100, keys, group)
    assert got.count == 4 and got.seconds == pytest.approx(four)
    assert got.count * got.message_bytes == pytest.approx(2 * queries + 2 * keys)


def test_an_all_to_all_inside_a_ring_sends_each_part_over_its_own_links() -> None:
    """16 ranks on nodes of 8: heads for tokens inside the node, one step of the ring between the nodes."""
    got = context(Candidates.table(cp=16, cp_comm=int(CpComm.A2A8_P2P)))
    tokens = 8192 / 16
    queries, keys = tokens * 32 * 128 * 2.0, tokens * 8 * 128 * 2.0
    inside = 2 * (all_to_all_s(H100, queries, Group(8, 1)) + all_to_all_s(H100, keys, Group(8, 1)))
    one, two = (send_s(H100, part * 2 * keys, Group(2, 8)) for part in (1, 2))
    assert got.forward.seconds == pytest.approx(inside + one)
    assert got.backward.seconds == pytest.approx(inside + two + one)
    assert got.forward.count == 4 + 1 and got.backward.count == 4 + 2
    assert got.forward.count * got.forward.message_bytes == pytest.approx(2 * queries + 2 * keys + 2 * keys)


@pytest.mark.parametrize("way", [way for way in CpComm if way.inner_ranks])
def test_an_all_to_all_of_every_rank_leaves_no_ring(way: CpComm) -> None:
    c = Candidates.table(cp=way.inner_ranks, cp_comm=[int(way), int(CpComm.A2A)])
    got = context(c, overlap=0.5, attention_s=1e-3)
    for sent in (got.forward, got.backward):
        assert sent.seconds[0] == sent.seconds[1] and sent.exposed_s[0] == sent.exposed_s[1]


def test_a_step_of_a_ring_of_groups_hides_behind_the_attention_of_that_step() -> None:
    c = Candidates.table(cp=16, cp_comm=int(CpComm.A2A4_P2P))
    shown, hidden = context(c).forward, context(c, overlap=1.0, attention_s=1e-5).forward
    assert shown.exposed_s - hidden.exposed_s == pytest.approx(3 * 1e-5 / 4)
    free = context(c, overlap=1.0, attention_s=1.0).forward.exposed_s
    ring_s = 3 * send_s(H100, 8192 / 16 * 8 * 2 * 128 * 2.0, Group(4, 4))
    assert shown.seconds - free == pytest.approx(ring_s), "the all-to-all is never hidden"


# --- expert parallel ------------------------------------------------------------------------------------------------


def experts(
    c: Candidates, *, stack: Stack = PLAIN, workload: Workload = WORKLOAD, shared: float = 0.0, rest: float = 0.0
):
    return expert_parallel(
        job(stack, workload=workload),
        c,
        shared_expert_s=shared,
        forward_s=rest,
        backward_s=rest,
    )


def test_dispatch_and_combine_move_every_routed_token_of_the_rank() -> None:
    c = Candidates.table(ep=8, tp=2, cp=2)
    routed = 8192 / 2 / 2 * 4 * 4096 * 2.0
    assert experts(c).forward.message_bytes == routed
    assert experts(c).forward.seconds == pytest.approx(2 * all_to_all_s(H100, routed, Group(8, 1)))


def test_experts_over_two_nodes_pay_the_nics() -> None:
    one, two = experts(Candidates.table(ep=[8, 16])).forward.seconds
    assert two > 3 * one


def test_deepep_gains_most_between_nodes() -> None:
    c = Candidates.table(ep=[8, 32, 8, 32], deepep=[False, False, True, True])
    near, far, near_fused, far_fused = experts(c).forward.seconds
    assert far_fused < 0.75 * far
    assert far - far_fused > near - near_fused


def test_hidden_traffic_never_exceeds_the_compute_it_hides_behind() -> None:
    """[W15] Shared experts and the other batch hide different seconds: together no more than both compute."""
    stack = with_numbers(PLAIN, {"shared_expert_overlap": True, "expert_overlap": 1.0})
    c = Candidates.table(ep=32, deepep=[False, True])
    got = experts(c, stack=stack, shared=1e-4, rest=2e-4).forward
    assert got.seconds - got.exposed_s == pytest.approx(3e-4)
    assert (got.exposed_s > 0).all()
    flooded = experts(c, stack=stack, shared=1.0, rest=1.0).forward
    assert flooded.exposed_s == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("pp", "vpp", "microbatches", "share"), [(8, 2, 16, 23 / 39), (4, 4, 32, 115 / 131), (1, 1, 5, 4 / 5)]
)
def test_exchange_hides_in_the_steady_phase_alone(pp: int, vpp: int, microbatches: int, share: float) -> None:
    """Of its last rank Megatron overlaps all chunk passes but (V - 1) pp + 1; the pipeline takes m V + pp - 1."""
    here = {"pp": pp, "vpp": vpp, "ep": 8, "micro_batch_size": 1, "exchange_overlap": True}
    c = Candidates.from_words(here)
    batch = int(microbatches * degrees(c, world=256, global_batch_size=256).dp[0])
    on = job(with_numbers(PLAIN, {"batch_expert_overlap": 1.0}), workload=replace(WORKLOAD, global_batch_size=batch))
    assert steady_share(on, c) == pytest.approx(share)
    found = expert_parallel(on, c, forward_s=1e9).forward
    assert found.exposed_s == pytest.approx((1.0 - share) * found.seconds)
    alone = Candidates.from_words(here | {"exchange_overlap": False})
    assert steady_share(on, alone) == 1.0


def test_an_uneven_router_makes_everyone_wait_for_the_busiest_rank() -> None:
    c = Candidates.table(ep=8)
    natural = replace(WORKLOAD, routing_imbalance=1.3)
    assert experts(c, workload=natural).forward.seconds == pytest.approx(1.3 * experts(c).forward.seconds)


def test_a_split_expert_gathers_what_its_ranks_received() -> None:
    c = Candidates.table(ep=4, etp=[1, 2], tp=2)
    whole, split = experts(c).forward.seconds
    rows = 8192 / 2 * 4 * 4096 * 2.0 * 2
    inside = all_gather_s(H100, rows, Group(2, 1)) + reduce_scatter_s(H100, rows, Group(2, 1))
    beside = 2 * all_to_all_s(H100, rows / 2, Group(4, 2))
    assert split == pytest.approx(inside + beside)
    assert split > whole


def test_tokens_gathered_before_routing_travel_from_every_rank_of_an_expert() -> None:
    """Four ranks of an expert dispatch what one of them would, and gather tokens instead of their routed copies."""
    c = Candidates.table(ep=2, etp=4, tp=4)
    before = experts(c, stack=with_numbers(PLAIN, {"gathers_before_experts": True})).forward
    tokens = 8192 * 4096 * 2.0
    inside = all_gather_s(H100, tokens, Group(4, 1)) + reduce_scatter_s(H100, tokens, Group(4, 1))
    assert before.seconds == pytest.approx(2 * all_to_all_s(H100, tokens * 4, Group(2, 4)) + inside)
    assert before.message_bytes == 4 * experts(c).forward.message_bytes


# --- data parallel --------------------------------------------------------------------------------------------------


def test_dense_and_expert_gradients_go_over_their_own_groups() -> None:
    """[W6] [W19] Dense replicas are dp * cp ranks, expert replicas world / (etp ep pp), whatever tp and cp are."""
    c = Candidates.table(tp=2, cp=2, ep=8, pp=2, overlap_grad_reduce=False)
    got = gradients(c, stack=with_numbers(PLAIN, {"gradient_bucket_params": 1e12}))
    assert got.dense_gradients.seconds == pytest.approx(reduce_scatter_s(H100, 4e9, Group(64, 2)))
    assert got.expert_gradients.seconds == pytest.approx(reduce_scatter_s(H100, 8e9, Group(16, 8)))
    assert got.dense_weights.seconds == pytest.approx(all_gather_s(H100, 2e9, Group(64, 2)))


def test_copies_of_the_optimizer_scatter_inside_each_and_reduce_their_shards_across() -> None:
    c = Candidates.table(ep=8, overlap_grad_reduce=False)
    got = gradients(c, stack=with_numbers(PLAIN, {"gradient_bucket_params": 1e12, "optimizer_copies": 4.0}))
    inside, across = Group(64, 1), Group(4, 64)
    second = reduce_scatter_s(H100, 4e9, inside) + all_reduce_s(H100, 4e9 / 64, across)
    assert got.dense_gradients.seconds == pytest.approx(second)
    assert got.dense_weights.seconds == pytest.approx(all_gather_s(H100, 2e9, inside))
    second = reduce_scatter_s(H100, 8e9, Group(8, 8)) + all_reduce_s(H100, 1e9, Group(4, 64))
    assert got.expert_gradients.seconds == pytest.approx(second)


def test_without_a_distributed_optimizer_gradients_are_all_reduced_and_no_weights_move() -> None:
    c = Candidates.table(sharding=int(Sharding.NONE), overlap_grad_reduce=False)
    got = gradients(c, stack=with_numbers(PLAIN, {"gradient_bucket_params": 1e12}))
    assert got.dense_gradients.seconds == pytest.approx(all_reduce_s(H100, 4e9, Group(256, 1)))
    assert got.dense_weights.seconds == got.expert_weights.seconds == 0.0


def test_the_last_bucket_of_gradients_is_never_hidden() -> None:
    c = Candidates.table(overlap_grad_reduce=[False, True])
    open_, hidden = gradients(
        c, stack=with_numbers(PLAIN, {"gradient_overlap": 1.0}), compute=1e3
    ).dense_gradients.exposed_s
    total = gradients(c).dense_gradients
    assert open_ == total.seconds[0]
    assert hidden == pytest.approx(total.seconds[1] / total.count[1])


def test_sharded_rows_leave_gradients_to_the_layers() -> None:
    c = Candidates.table(sharding=[int(Sharding.FSDP2), int(Sharding.HSDP)], shard_group=[0, 8])
    found = gradients(c)
    for sent in (found.dense_gradients, found.expert_gradients, found.dense_weights, found.expert_weights):
        assert sent.exposed_s.tolist() == [0.0, 0.0]


# --- sharded weights ------------------------------------------------------------------------------------------------


def test_a_layer_is_gathered_twice_and_scattered_once() -> None:
    c = Candidates.table(sharding=int(Sharding.FSDP2), ep=8)
    got = sharded(c)
    gather = all_gather_s(H100, 8e8, Group(256, 1)) + all_gather_s(H100, 16e8, Group(32, 8))
    scatter = reduce_scatter_s(H100, 16e8, Group(256, 1)) + reduce_scatter_s(H100, 32e8, Group(32, 8))
    assert got.forward.seconds == pytest.approx(gather)
    assert got.backward.seconds == pytest.approx(gather + scatter)


def test_what_shows_of_a_layer_is_what_its_neighbour_cannot_cover() -> None:
    c = Candidates.table(sharding=int(Sharding.FSDP2))
    bare = sharded(c)
    some = sharded(c, forward_s=float(bare.forward.seconds[0]) / 2)
    assert some.forward.exposed_s == pytest.approx(bare.forward.seconds * (1 - PLAIN.sharding.shard_overlap / 2))


def test_lists_of_tensors_cost_the_host_a_launch_per_parameter_and_peer() -> None:
    c = Candidates.table(sharding=[int(Sharding.NONE), int(Sharding.FSDP2)])
    bare, listed = sharded(c), sharded(c, stack=with_numbers(PLAIN, {"listed_params": 4.0}))
    each = np.array([0.0, 4.0 * 255 * PLAIN.host.host_launch_s])
    assert listed.forward.seconds - bare.forward.seconds == pytest.approx(each)
    assert listed.backward.seconds - bare.backward.seconds == pytest.approx(2.0 * each)


def test_weights_freed_by_recompute_are_gathered_a_third_time() -> None:
    c = Candidates.table(sharding=int(Sharding.FSDP2), recompute=[0, int(Recompute.FULL)])
    bare = sharded(c).backward.seconds
    freed, kept = (sharded(c, stack=with_numbers(PLAIN, {"reuse_params": most})) for most in (1.2e9, 2.4e9))
    assert freed.backward.seconds - bare == pytest.approx(np.array([0.0, 0.5]) * freed.forward.seconds)
    assert kept.backward.seconds == pytest.approx(bare), "layers of half the reuse distance stay"


def test_hybrid_sharding_gathers_inside_its_group_and_reduces_across() -> None:
    c = Candidates.table(sharding=[int(Sharding.FSDP2), int(Sharding.HSDP)], shard_group=[0, 8])
    full, hybrid = sharded(c).forward.seconds
    assert hybrid == pytest.approx(float(all_gather_s(H100, 24e8, Group(8, 1)))), "over NVLink, in seven hops"
    assert full == pytest.approx(float(all_gather_s(H100, 24e8, Group(256, 1))))
    inside = reduce_scatter_s(H100, 48e8, Group(8, 1)) + all_reduce_s(H100, 6e8, Group(32, 8))
    gathers = sharded(c).forward.seconds[1]
    assert sharded(c).backward.seconds[1] == pytest.approx(gathers + inside)


def test_a_layer_is_one_message_where_experts_have_the_replicas_of_the_dense_weights() -> None:
    c = Candidates.table(ep=[1, 8], sharding=int(Sharding.FSDP2))
    got = sharded(c).forward
    assert got.count.tolist() == [1.0, 2.0]
    apart = all_gather_s(H100, 8e8, Group(256, 1)) + all_gather_s(H100, 16e8, Group(32, 8))
    assert got.seconds == pytest.approx(np.array([float(all_gather_s(H100, 24e8, Group(256, 1))), float(apart)]))


def test_weights_of_fp4_are_gathered_in_bf16_and_cast_for_each_pass() -> None:
    """Closed form: 2 bytes gathered in place of 1, and a cast with nothing to hide behind; FP8 likewise on software
    that gathers BF16. Source: NVIDIA/Megatron-LM#4005 brings native FP4 weights to replicas alone."""
    c = Candidates.table(fp8=[int(Fp8.NONE), int(Fp8.MXFP8), int(Fp8.NVFP4)], sharding=int(Sharding.MEGATRON_FSDP))
    gathers_low = with_numbers(PLAIN, {"has_fp8_param_gather": True})
    for stack, is_low in ((PLAIN, [False, False, False]), (gathers_low, [False, True, False])):
        got = sharded(c, stack=stack, forward_s=1e3).forward
        assert got.message_bytes == pytest.approx(np.where(is_low, 12e8, 24e8))
        cast_s = np.where(is_low, 0.0, quantize_s(HARDWARE.accelerator, 12e8, c.fp8, layouts=1))
        assert got.exposed_s == pytest.approx((1 - stack.sharding.shard_overlap) * got.seconds + cast_s)


def test_rows_that_do_not_shard_weights_pay_nothing() -> None:
    got = sharded(Candidates.table(sharding=[0, 1, 2]))
    assert got.forward.seconds.tolist() == got.backward.seconds.tolist() == [0.0, 0.0, 0.0]


def test_buckets_grow_with_the_data_parallel_size() -> None:
    grown = with_numbers(PLAIN, {"gradient_bucket_params": 4e7, "bucket_params_per_rank": 1e6})
    ranks, held = np.array([1, 40, 64, 256]), np.full(4, 1.0e9)
    assert bucket_params(grown, ranks, held).tolist() == [4e7, 4e7, 6.4e7, 2.56e8]
    assert (bucket_params(PLAIN, ranks, held) == PLAIN.sharding.gradient_bucket_params).all()


def test_a_number_of_buckets_divides_the_parameters_of_a_rank() -> None:
    divided = with_numbers(PLAIN, {"gradient_bucket_params": 4e7, "gradient_buckets": 48.0})
    assert bucket_params(divided, np.array([1, 256]), np.array([4.8e9, 4.8e9 + 47])).tolist() == [1e8, 1e8]
    got = gradients(Candidates.table(sharding=1), stack=with_numbers(PLAIN, {"gradient_buckets": 10.0}))
    assert [*got.dense_gradients.count, *got.expert_gradients.count] == [4.0, 7.0]


@pytest.mark.parametrize("sharding", [Sharding.FSDP2, Sharding.HSDP])
def test_torch_gathers_once_a_step_under_a_pipeline_and_keeps_whole_gradients(sharding: Sharding) -> None:
    """torch/distributed/pipelining/stage.py: neither gathers nor reductions before the last micro-batch."""
    columns = {"pp": [4, 4, 4], "sharding": [sharding, Sharding.ZERO2, Sharding.DISTRIBUTED_OPTIMIZER]}
    table = Candidates.table(**columns, shard_group=[8 * (sharding is Sharding.HSDP)] * 3)
    here = job(PLAIN)
    step, memory = Projector(here).step(table), Projector(here).memory(table)
    assert not step.shard_comm.any()
    assert step.total[0] == step.total[1]
    assert memory.optimizer[0] == memory.optimizer[1]
    assert memory.gradients[0] == memory.gradients[2] > memory.gradients[1]
    assert Projector(job(with_numbers(PLAIN, {"gathers_once": False}))).step(table).shard_comm[0] > 0.0
    for keeps in (table.take([0]), Candidates.table(pp=[4], sharding=[Sharding.MEGATRON_FSDP])):
        alone = replace(keeps, pp=np.array([1]))
        assert Projector(here).step(alone).gradient_comm == 0.0
    assert Projector(here).step(keeps).shard_comm > 0.0
