"""What runs around the experts of a MoE layer: permutations, launches, the framework's own grouped products."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.candidates import Candidates, GroupedGemm
from primus_search.cost.expert_parallel import distinct_destinations
from primus_search.cost.grouped_gemm import grouped_gemm_s, with_experts_of
from primus_search.cost.routing import busiest_over_mean, permuted_rows
from primus_search.cost.work import GroupedLinear, Module, Part, tally
from primus_search.declare.hardware import load_hardware, load_stack
from primus_search.model import MixtureOfExperts
from primus_search.workload import Workload

MOE = MixtureOfExperts(num_experts=256, top_k=8, expert_ffn_hidden=2048)
EVENLY = Workload(seq_length=4096, global_batch_size=64)
PLAIN = replace(load_stack("megatron_core_2026"), name="plain", has_product_per_expert=False)


def test_a_dispatcher_that_delivers_to_ranks_saves_the_first_permutation() -> None:
    c = Candidates.table(ep=[1, 32, 32], deepep=[False, False, True])
    alone, exchanged, delivered = permuted_rows(MOE, EVENLY, PLAIN, c)
    assert alone == pytest.approx(1 / 8 + 1)
    assert exchanged == pytest.approx(1 / 8 + 1 + 2)
    assert delivered == pytest.approx(float(distinct_destinations(256, 8, np.array(32))) / 8 + 1)


@pytest.mark.parametrize(("num_experts", "top_k", "parts"), [(256, 8, 64), (128, 8, 8), (128, 4, 64), (32, 4, 8)])
def test_experts_dealt_in_turn_lie_on_as_many_ranks_as_counting_them_says(
    num_experts: int, top_k: int, parts: int
) -> None:
    tokens = np.arange(4096)[:, None]
    ranks = (tokens * top_k + np.arange(top_k)) % num_experts // (num_experts // parts)
    counted = np.mean([len(set(of_token)) for of_token in ranks.tolist()])
    assert float(distinct_destinations(num_experts, top_k, parts, in_turn=True)) == pytest.approx(counted)
    assert counted < float(distinct_destinations(num_experts, top_k, parts))


def test_permutation_in_separate_operations_moves_the_rows_three_times() -> None:
    c = Candidates.table(ep=8)
    eager = replace(PLAIN, has_fused_permute=False)
    assert permuted_rows(MOE, EVENLY, eager, c) == pytest.approx(3 * permuted_rows(MOE, EVENLY, PLAIN, c))


@pytest.mark.parametrize("experts", [2, 16])
def test_products_launched_expert_by_expert_cost_the_host_each(experts: int) -> None:
    acc = load_hardware("b200").accelerator
    linear = GroupedLinear(
        part=Part.EXPERTS, module=Module.EXPERTS, rows=512.0, groups=float(experts), n=4096.0, k=4096.0,
        precision=0, mode=int(GroupedGemm.TURBO),
    )  # fmt: skip
    one = tally([linear], acc=acc, stack=PLAIN, rows=1)
    each = tally([linear], acc=acc, stack=replace(PLAIN, has_product_per_expert=True), rows=1)
    assert np.all(one.kernels == 1.0) and np.all(each.kernels == experts)
    assert np.array_equal(one.seconds, each.seconds)


def test_no_framework_runs_its_experts_above_the_peak_of_the_device() -> None:
    """BF16 and FP8 experts of a large MoE layer, with every rate that a stack and a device put on them."""
    rows, groups, n, k = 8192.0, 8.0, 4096.0, 7168.0
    for name, stack_name in (("gb200", "megatron_core_2026"), ("h100", "nemo_2024"), ("b300", "megatron_fsdp_2026")):
        acc, stack = load_hardware(name).accelerator, load_stack(stack_name)
        seconds = float(grouped_gemm_s(with_experts_of(acc, stack), rows, groups, n, k))
        achieved = 2.0 * rows * groups * n * k / seconds * stack.grouped_gemm_efficiency * acc.training_rate
        assert achieved < 0.95 * acc.bf16_peak_flops_per_s


def test_a_stack_that_brings_no_experts_of_its_own_uses_those_of_the_device() -> None:
    acc = load_hardware("mi355x").accelerator
    assert with_experts_of(acc, load_stack("primus_megatron")) == acc


def test_one_rank_that_has_every_expert_is_not_busier_than_the_mean() -> None:
    workload = Workload(seq_length=4096, global_batch_size=64, routing_imbalance=1.5)
    assert busiest_over_mean(workload, Candidates.table(ep=[1, 4])).tolist() == [1.0, 1.5]
