"""What runs around the experts of a MoE layer: permutations, launches, the framework's own grouped products."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from primus_search.cost.laws.expert_products import expert_products_s, with_experts_of
from primus_search.cost.laws.gemm import GemmPass, operand_cast_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import expert_operations
from primus_search.cost.parts.operations import GroupedLinear, Module, Part, tally
from primus_search.cost.parts.routing import permuted_rows
from primus_search.cost.traffic.expert_parallel import busiest_over_mean, destinations_of, distinct_destinations
from primus_search.evidence.published.convert import validated
from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Fp8, GroupedGemm
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import with_numbers
from primus_search.values.model import MixtureOfExperts, Model
from primus_search.values.workload import Workload

MOE = MixtureOfExperts(num_experts=256, top_k=8, expert_ffn_hidden=2048)
EVENLY = Workload(seq_length=4096, global_batch_size=64)
PLAIN = replace(with_numbers(load_stack("megatron_core_2026"), {"has_product_per_expert": False}), name="plain")


def test_a_dispatcher_that_delivers_to_ranks_saves_the_first_permutation() -> None:
    c = Candidates.table(ep=[1, 32, 32], deepep=[False, False, True])
    (alone, exchanged, delivered), backward = permuted_rows(MOE, EVENLY, PLAIN, c)
    assert alone == pytest.approx(2 * (1 / 8 + 1))
    assert exchanged == pytest.approx(2 * (1 / 8 + 1 + 2))
    assert delivered == pytest.approx(2 * (float(distinct_destinations(256, 8, np.array(32))) / 8 + 1))
    assert np.array_equal(backward, [alone, exchanged, delivered])


@pytest.mark.parametrize(("num_experts", "top_k", "parts"), [(256, 8, 64), (128, 8, 8), (128, 4, 64), (32, 4, 8)])
def test_experts_dealt_in_turn_lie_on_as_many_ranks_as_counting_them_says(
    num_experts: int, top_k: int, parts: int
) -> None:
    tokens = np.arange(4096)[:, None]
    ranks = (tokens * top_k + np.arange(top_k)) % num_experts // (num_experts // parts)
    counted = np.mean([len(set(of_token)) for of_token in ranks.tolist()])
    assert float(distinct_destinations(num_experts, top_k, np.array(parts), in_turn=True)) == pytest.approx(counted)
    assert counted < float(distinct_destinations(num_experts, top_k, np.array(parts)))


def test_permutation_in_separate_operations_moves_the_rows_three_times() -> None:
    c = Candidates.table(ep=8)
    eager = with_numbers(PLAIN, {"permutation": "separate"})
    thrice, once = (permuted_rows(MOE, EVENLY, stack, c)[0] for stack in (eager, PLAIN))
    assert thrice == pytest.approx(3 * once)


@pytest.mark.parametrize("experts", [2, 16])
def test_products_launched_expert_by_expert_cost_the_host_each(experts: int) -> None:
    acc = load_hardware("b200").accelerator
    linear = GroupedLinear(
        part=Part.EXPERTS, module=Module.EXPERTS, rows=512.0, groups=float(experts), n=4096.0, k=4096.0,
        precision=0, mode=int(GroupedGemm.TURBO),
    )  # fmt: skip
    one = tally([linear], acc=acc, stack=PLAIN, rows=1)
    each = tally([linear], acc=acc, stack=with_numbers(PLAIN, {"has_product_per_expert": True}), rows=1)
    assert np.all(one.kernels[:, Module.EXPERTS] == 1.0) and np.array_equal(each.kernels, experts * one.kernels)
    assert np.array_equal(one.seconds, each.seconds)


def test_experts_of_a_graphed_step_write_activation_and_casts_in_their_products() -> None:
    """MXFP8 experts under a graph of the whole step: one launch per product, two of the four casts, no activation and
    no clamp; by themselves, or in another precision, nothing of that."""
    hardware, stack = load_hardware("gb200"), load_stack("megatron_core_2026")
    acc = hardware.accelerator
    deepseek, gpt_oss = load_model("deepseek_v3"), load_model("gpt_oss_120b")

    def experts(model: Model, graph: Literal["none", "full"], precision: Fp8) -> tuple[float, float]:
        c = Candidates.table(ep=32, deepep=True, fp8=int(precision))
        workload, used = Workload(seq_length=4096, global_batch_size=256), with_numbers(stack, {"cuda_graph": graph})
        cluster = Cluster(accelerator=acc, network=hardware.network, stack=used, num_nodes=8)
        sizes = Share.of(Job(model, cluster, workload), c)
        work = tally(expert_operations(model, workload, used, c, sizes), acc=acc, stack=used, rows=1)
        return float(work.seconds[:, Part.EXPERTS].sum()), float(work.kernels.sum())

    separate_s, launches = experts(deepseek, "none", Fp8.MXFP8)
    joined_s, fewer = experts(deepseek, "full", Fp8.MXFP8)
    elements = 32768.0 * 2048.0  # routed rows times inner size
    hidden, gradient = operand_cast_s(acc, np.array([1.0, 2.0]) * elements, 1.0, np.array(int(Fp8.MXFP8)), False)[0]
    activation = (3.0 + 5.0) * elements * 2.0 / acc.memory.stream_efficiency / acc.hbm_bytes_per_s
    saved = hidden + gradient + activation / stack.efficiencies.memory_efficiency
    assert separate_s - joined_s == pytest.approx(saved, rel=0.05)
    assert fewer < launches - 2 * 8 * 3
    for precision in (Fp8.NONE, Fp8.HYBRID):
        assert experts(deepseek, "full", precision) == experts(deepseek, "none", precision)
    rows = 4096.0 * 4.0 * 2880.0  # of 4 experts per rank, inner size as large as the hidden one
    clamp = (
        (16.0 + 24.0) * rows / acc.memory.stream_efficiency / acc.hbm_bytes_per_s / stack.efficiencies.memory_efficiency
    )
    clamped_s, joined_s = experts(gpt_oss, "none", Fp8.MXFP8)[0], experts(gpt_oss, "full", Fp8.MXFP8)[0]
    assert clamped_s - joined_s > clamp


@pytest.mark.parametrize(
    ("name", "passes", "launches"), [("torchtitan", 2.0, 1.0), ("torchtitan@eager", 4.0 + 2.0 * 4.0 + 49.0, 19.0)]
)
def test_biases_and_clamps_of_torchs_experts_cost_what_their_kernels_move(
    name: str, passes: float, launches: float
) -> None:
    """Beyond a model without them, compiled: the addition of the output's bias; eager: the rows of both biases, their
    additions and every step of the activation. Gradients of biases are scattered either way."""
    hardware, stack, model = load_hardware("h200"), load_stack(name), load_model("gpt_oss_120b")
    acc, moe = hardware.accelerator, model.moe
    assert moe is not None

    def work(of: Model) -> tuple[float, float]:
        cluster = Cluster(accelerator=acc, network=hardware.network, stack=stack, num_nodes=1)
        workload, c = Workload(seq_length=4096, global_batch_size=8), Candidates.table()
        sizes = Share.of(Job(of, cluster, workload), c)
        done = tally(expert_operations(of, workload, stack, c, sizes), acc=acc, stack=stack, rows=1)
        return float(done.seconds[:, Part.EXPERTS].sum()), float(done.kernels.sum())

    without = replace(model, has_linear_bias=False, activation_clamp=0.0)
    (biased_s, kernels), (plain_s, fewer) = work(model), work(without)
    rows_bytes, latency_s = 4096.0 * moe.top_k * 2880.0 * 2.0, acc.memory.latency_s  # inner size as large as the hidden
    elementwise_s = passes * rows_bytes / bandwidth_bytes_per_s(acc, Stream.ELEMENTWISE) + launches * latency_s
    scattered_s = 9.0 * (1.0 + 2.0) * rows_bytes / bandwidth_bytes_per_s(acc, Stream.GATHER) + 2.0 * latency_s
    expected_s = elementwise_s / stack.efficiencies.memory_efficiency + scattered_s
    assert biased_s - plain_s == pytest.approx(expected_s, rel=1e-6)
    assert kernels - fewer == launches + 2.0


def test_no_framework_runs_its_experts_above_the_peak_of_the_device() -> None:
    """BF16 and FP8 experts of a large MoE layer, with every rate that a stack and a device put on them."""
    rows, groups, n, k = 8192.0, 8.0, 4096.0, 7168.0
    for name, stack_name in (("gb200", "megatron_core_2026"), ("h100", "nemo_2024"), ("b300", "megatron_core_2026")):
        acc, stack = load_hardware(name).accelerator, load_stack(stack_name)
        seconds = float(expert_products_s(with_experts_of(acc, stack), rows, groups, n, k))
        achieved = (
            2.0 * rows * groups * n * k / seconds * stack.efficiencies.grouped_gemm_efficiency * acc.training_rate
        )
        assert achieved < 0.95 * acc.bf16_peak_flops_per_s


def test_a_stack_that_brings_no_experts_of_its_own_uses_those_of_the_device() -> None:
    acc = load_hardware("mi355x").accelerator
    assert with_experts_of(acc, load_stack("primus_megatron")) == acc


CUTLASS_US = {
    (8192.0, 5120.0): (40463.0, 35494.5, 38879.3, 35714.6),
    (1536.0, 5120.0): (6353.06, 6511.65, 6455.2, 7716.13),
    (2048.0, 7168.0): (11758.0, 15012.9, 14904.2, 13178.0),
}
"""Microseconds of torch._grouped_mm on B200, forward and backward of 128,000 rows in 1, 2, 4 and 8 groups, by sizes of
output and input: pytorch/ao torchao/prototype/moe_training/README.md of 2025-10."""


def test_grouped_products_of_torch_take_as_long_as_measured() -> None:
    acc = with_experts_of(load_hardware("b200").accelerator, load_stack("torchtitan"))
    errors = [
        sum(float(expert_products_s(acc, 128_000.0 / groups, groups, *size, gemm_pass=one)) for one in GemmPass)
        / (1e-6 * measured_us)
        - 1.0
        for size, times in CUTLASS_US.items()
        for groups, measured_us in zip((1.0, 2.0, 4.0, 8.0), times, strict=True)
    ]
    assert abs(np.median(errors)) < 0.03
    assert np.abs(errors).max() < 0.16


@pytest.mark.parametrize("device", ["b200", "b300", "gb200", "gb300", "h100", "h200", "mi355x"])
def test_only_stacks_that_call_torchs_products_run_at_its_rate(device: str) -> None:
    acc = load_hardware(device).accelerator
    for name in ("torchtitan", "automodel", "megatron_core_2026", "xtuner"):
        stack = load_stack(name)
        own = stack.experts.expert_gemm_share or acc.grouped_gemm.factor
        torchs = acc.grouped_gemm.cutlass_factor or own
        assert with_experts_of(acc, stack).grouped_gemm.factor == (torchs if name == "torchtitan" else own)


def test_one_rank_that_has_every_expert_is_not_busier_than_the_mean() -> None:
    workload = Workload(seq_length=4096, global_batch_size=64, routing_imbalance=1.5, routing_spread=0.4)
    for plain in (replace(workload, routing_spread=0.0), replace(workload, pads_to_capacity=True)):
        assert busiest_over_mean(MOE, plain, Candidates.table(ep=[1, 4])).tolist() == [1.0, 1.5]


@pytest.mark.parametrize("spread", [0.1, 0.4, 0.8])
def test_the_busiest_rank_is_as_busy_as_drawn_loads_say(spread: float) -> None:
    """4,000 draws of log-normal loads of the experts, dealt to ranks in blocks as Megatron does."""
    loads = np.random.default_rng(7).lognormal(sigma=spread, size=(4000, MOE.num_experts))
    degrees = [ep for ep in (2, 8, 32, 128) if ep <= MOE.num_experts]
    workload = Workload(seq_length=4096, global_batch_size=64, routing_spread=spread)
    ranks = [loads.reshape(4000, ep, -1).sum(axis=2) for ep in degrees]
    drawn = [float((rank.max(axis=1) / rank.mean(axis=1)).mean()) for rank in ranks]
    assert busiest_over_mean(MOE, workload, Candidates.table(ep=degrees)) == pytest.approx(drawn, rel=0.06)


def test_torchs_grouped_experts_move_more_rows_than_separate_operations_unless_a_dispatcher_does_it() -> None:
    """Counted from what torchtitan writes down; gradients of gathers and of the FP32 weighing weigh most."""
    c = Candidates.table(ep=[1, 8, 8], deepep=[False, False, True])
    torch_like, separate = (with_numbers(PLAIN, {"permutation": kind}) for kind in ("indexed", "separate"))
    forward, backward = permuted_rows(MOE, EVENLY, torch_like, c)
    assert forward[:2] == pytest.approx(14 + 1 / 8) and backward[:2] == pytest.approx(37 + 1 / 8)
    apart, _ = permuted_rows(MOE, EVENLY, separate, c)
    assert np.all(forward[:2] + backward[:2] > 2 * apart[:2]) and forward[2] == backward[2] == apart[2]


def test_groups_of_tokens_that_are_not_padded_move_fewer_rows_least_where_a_rank_has_every_expert() -> None:
    """pytorch/torchtitan#2774: no row is appended or dropped; without an exchange one gather is in experts' order."""
    c = Candidates.table(ep=[1, 8, 8], deepep=[False, False, True])
    padded, plain = (
        np.array(permuted_rows(MOE, EVENLY, with_numbers(PLAIN, {"permutation": kind}), c))
        for kind in ("indexed", "indexed_unpadded")
    )
    assert (padded - plain).tolist() == [pytest.approx([7, 2, 0]), pytest.approx([14, 3, 0])]


def test_torchtitans_permutation_takes_as_long_as_its_kernels_were_measured() -> None:
    """Qwen3-30B-A3B's sizes, 65,536 tokens on H100: weighing alone 5.26 ms forward and 11.42 backward (bmm benchmark),
    four and nine of the 14 and 37 rows."""
    h100 = load_hardware("h100").accelerator
    rows = 65536.0 * 8 * 2048 * 2
    assert 4 * rows / bandwidth_bytes_per_s(h100, Stream.GATHER) == pytest.approx(5.26e-3, rel=0.05)
    assert 9 * rows / bandwidth_bytes_per_s(h100, Stream.GATHER) == pytest.approx(11.42e-3, rel=0.05)
    b200, mi355x = (load_hardware(name).accelerator for name in ("b200", "mi355x"))
    gathered = 196608.0 * 2048 * 2
    assert 9 * gathered / bandwidth_bytes_per_s(b200, Stream.GATHER) == pytest.approx(1.848e-3, rel=0.05)
    assert 9 * gathered / bandwidth_bytes_per_s(mi355x, Stream.GATHER) == pytest.approx(1.804e-3, rel=0.1)


def moe_step(tmp_path: Path, **cells: str):
    """One projected run of Qwen3-30B-A3B on a node of H200, read as a row of a table."""
    row = {
        "source": "pytorch/torchtitan (2025-12)", "model": "Qwen3-30B-A3B", "num_layers": "48", "hidden": "2048",
        "ffn_hidden": "6144", "heads": "32", "kv_heads": "4", "head_dim": "128", "vocab": "151936",
        "num_experts": "128", "topk": "8", "moe_ffn": "768", "gpu": "H200", "gpus": "8", "ep": "8",
        "fsdp": "fsdp2", "seq_len": "4096", "mbs": "2", "gbs": "16", "precision": "bf16", "recompute": "none",
        "tokens_per_s_per_gpu": "6000",
    } | cells  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    (found,) = validated(path).rows
    return found


def test_a_benchmarks_gate_that_deals_experts_in_turn_spares_a_fused_dispatcher_most_of_its_way(tmp_path: Path) -> None:
    """128 experts on eight ranks, eight each: a token's lie on one rank instead of 5.4 (NeMo Automodel's fake gate)."""
    cells = {"source": "NVIDIA-NeMo/Automodel docs", "flags": "dispatcher=deepep"}
    even, in_turn = (moe_step(tmp_path, **cells, notes=notes) for notes in ("", "fake balanced gate"))
    assert even.run.cluster.stack.name == "automodel" and not even.run.cluster.stack.is_assumed
    ratio = in_turn.projection.step.expert_comm / even.projection.step.expert_comm
    assert 1 / 5.5 < float(ratio[0]) < 0.4


def test_recompute_by_operation_repeats_the_exchange_of_experts(tmp_path: Path) -> None:
    """torchtitan's list of what to keep names no all-to-all: models/qwen3/infra/parallelize.py."""
    kept, again = (moe_step(tmp_path, recompute=word).projection.step for word in ("none", "op-SAC"))
    forward = float(kept.expert_comm[0]) / 2
    assert float(again.recompute[0]) > forward + 0.5 * float(kept.routing[0]) * 14 / 51


def test_eager_runs_copy_what_they_gather(tmp_path: Path) -> None:
    new = moe_step(tmp_path, flags="torch.compile").run.cluster.stack
    old = moe_step(tmp_path, flags="no compile").run.cluster.stack
    assert (new.kernels.attention_kernel, new.communication.copies_gathered) == ("cudnn", False)
    assert (old.kernels.attention_kernel, old.communication.copies_gathered) == ("cudnn", True)
    split = {"tp": "4", "ep": "2", "etp": "4", "sequence_parallel": "yes"}
    eager, compiled = (moe_step(tmp_path, flags=word, **split).projection.step for word in ("no compile", ""))
    assert float(eager.tensor_comm[0]) > 1.1 * float(compiled.tensor_comm[0])


@pytest.mark.daily(1)
@pytest.mark.parametrize("parts", [2, 8, 16, 64])
def test_group_limited_routing_reaches_as_many_parts_as_drawing_says(parts: int) -> None:
    """DeepSeek-V3: 4 of 8 groups, then 8 of their 128 experts."""
    rng = np.random.default_rng(0)
    reached = []
    for _ in range(8000):
        groups = rng.choice(8, 4, replace=False)
        experts = (groups[:, None] * 32 + np.arange(32)).ravel()
        reached.append(len(set(rng.choice(experts, 8, replace=False) // (256 // parts))))
    limited = replace(MOE, num_groups=8, top_groups=4)
    mean = float(destinations_of(limited, np.array(parts)))
    assert mean == pytest.approx(np.mean(reached), rel=0.01)
    assert mean <= float(destinations_of(MOE, np.array(parts)))
    assert parts != 8 or mean < 4.0


def test_groups_that_limit_nothing_change_nothing() -> None:
    parts = np.array([1, 2, 8, 32])
    for moe in (MOE, replace(MOE, num_groups=1, top_groups=1), replace(MOE, num_groups=8, top_groups=8)):
        assert np.array_equal(destinations_of(moe, parts), distinct_destinations(256, 8, parts))
