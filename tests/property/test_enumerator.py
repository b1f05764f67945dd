"""The enumerator against a plain loop over the whole grid with legality written a second time, row by row."""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.space import AXES, Axis, Constraint, Enumerator, Space
from primus_search.values.candidates import (
    CpComm,
    CudaGraph,
    DispatchBackend,
    Fp8,
    GroupedGemm,
    Offload,
    Recompute,
    RecomputeMethod,
    Sharding,
)
from primus_search.values.knobs import StateFormat
from primus_search.values.knobs.values import Optimizer
from primus_search.values.layout import BALANCED, EVEN, Layout, layout_string
from primus_search.values.machine.network import Network

CHOICES: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 3, 4, 8, 16),
    "sequence_parallel": (True, False),
    "pp": (1, 2, 4, 8),
    "cp": (1, 2, 4),
    "ep": (1, 2, 4, 8, 3),
    "etp": (1, 2, 4),
    "micro_batch_size": (1, 2, 3, 4),
    "vpp": (1, 2, 3, 4),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1", "dualpipev"),
    "microbatch_group": (0, 2, 3, 4, 8),
    "pipeline_layout": (EVEN, BALANCED, Layout("ends", first=1, last=1), Layout("ends", first=2)),
    "fp8": (Fp8.NONE, Fp8.HYBRID, Fp8.MXFP8, Fp8.NVFP4),
    "recompute": (Recompute.NONE, Recompute.CORE_ATTENTION, Recompute.FULL, Recompute.MLA_UP_PROJ),
    "recompute_num_layers": (0, 1, 2, 4),
    "recompute_method": (RecomputeMethod.UNIFORM, RecomputeMethod.BLOCK),
    "offload_layers": (0, 1, 4),
    "offload_modules": (Offload.NONE, Offload.EXPERT_FC1 | Offload.MOE_ACT, Offload.ATTN_PROJ, Offload.CORE_ATTN),
    "sharding": tuple(Sharding),
    "shard_group": (0, 2, 4),
    "deepep": (False, True),
    "grouped_gemm": tuple(GroupedGemm),
    "sync_free_stage": (0, 1, 2, 3),
    "loss_fusion": (True, False),
    "overlap_grad_reduce": (True, False),
    "exchange_overlap": (False, True),
    "cuda_graph": tuple(CudaGraph),
    "tp_overlap": (False, True),
    "cp_comm": tuple(CpComm),
    "hybrid_cp": (False, True),
    "state_format": tuple(StateFormat),
    "optimizer": tuple(Optimizer),
    "optimizer_offload": (0, 50),
    "fp8_attention": (False, True),
    "dispatch_backend": tuple(DispatchBackend),
}
ROWS_OF_GRID = 20_000


def random_space(seed: int) -> Space:
    """A space of at most ROWS_OF_GRID raw rows around one plain legal row: values legal or not, in any order."""
    rng = random.Random(seed)
    model = rng.choice(["tiny", "tiny_moe"])
    data = {
        "model": model,
        "hardware": rng.choice(["mi355x", "h100", "a100_80", "b200"]),
        "nodes": rng.choice([1, 2, 4]),
    }
    space = make_space(
        data | {"framework": "any", "workload": {"seq_length": 256, "global_batch_size": rng.choice([32, 64, 96])}}
    )
    base = {name: choices[0] for name, choices in CHOICES.items()} | {"sharding": Sharding.DISTRIBUTED_OPTIMIZER}
    axes, rows = {name: [base[name]] for name in AXES}, 1
    for name in rng.sample(AXES, len(AXES)):
        others = [choice for choice in CHOICES[name] if choice != base[name]]
        wanted = [base[name], *rng.sample(others, rng.randint(0, len(others)))]
        if rows * len(wanted) <= ROWS_OF_GRID:
            axes[name], rows = rng.sample(wanted, len(wanted)), rows * len(wanted)
    constraints = rng.choice([(), ("tp * ep <= 8",), ("not (fp8 == 'hybrid' and micro_batch_size == 1)", "dp >= 2")])
    return Space(
        name="random",
        model=space.model,
        workload=space.workload,
        clusters=(
            replace(space.clusters[0], axes=tuple(Axis(name=n, values=tuple(values)) for n, values in axes.items())),
        ),
        constraints=tuple(Constraint(text=text) for text in constraints),
        search=space.search,
    )


def is_legal(space: Space, r: dict[str, Any], first: dict[str, Any]) -> bool:
    """The rules of Megatron-LM, Primus and torchtitan for one row, in plain Python; `first` = first values of axes."""
    m, w, cluster = space.model, space.workload, space.cluster
    world = cluster.world
    experts = m.moe.num_experts if m.moe else 1
    if m.num_heads % r["tp"] or m.hidden % r["tp"] or m.ffn_hidden % r["tp"]:
        return False
    if m.moe and m.moe.shared_ffn_hidden % r["tp"]:
        return False
    if m.num_kv_heads % r["tp"] and r["tp"] % m.num_kv_heads:
        return False
    if experts % r["ep"] or (m.moe.expert_ffn_hidden if m.moe else 1) % r["etp"]:
        return False
    if r["cp"] > 1 and w.seq_length % (2 * r["cp"]):
        return False
    if r["sequence_parallel"] and w.seq_length % (r["tp"] * r["cp"]):
        return False
    if r["cp_comm"] == CpComm.A2A and (m.num_heads % (r["tp"] * r["cp"]) or m.num_kv_heads % (r["tp"] * r["cp"])):
        return False
    if r["hybrid_cp"] and r["cp_comm"] not in (CpComm.STACK, CpComm.P2P):
        return False
    inner = CpComm(r["cp_comm"]).inner_ranks
    if inner and (
        r["cp"] % inner or inner == r["cp"] or m.num_heads % (r["tp"] * inner) or m.num_kv_heads % (r["tp"] * inner)
    ):
        return False
    if m.moe and r["tp"] > 1 and not r["sequence_parallel"]:
        return False
    if world % (r["tp"] * r["cp"] * r["pp"]) or world % (r["etp"] * r["ep"] * r["pp"]):
        return False
    dp, edp = world // (r["tp"] * r["cp"] * r["pp"]), world // (r["etp"] * r["ep"] * r["pp"])
    if w.global_batch_size % (r["micro_batch_size"] * dp):
        return False
    microbatches = w.global_batch_size // (r["micro_batch_size"] * dp)
    return (
        _pipeline_is_legal(space, r, microbatches)
        and _recompute_is_legal(space, r)
        and _experts_are_legal(space, r)
        and _sharding_is_legal(r, first, dp, edp if space.model.is_moe else 1, space.model.is_moe)
        and _format_exists(cluster.accelerator, r["fp8"])
        and _host_updates(cluster.network, r["optimizer_offload"])
        and (not r["fp8_attention"] or _fp8_attention_exists(cluster.accelerator, r["fp8"]))
        and _constraints_hold(space, r, dp)
    )


def _pipeline_is_legal(space: Space, r: dict[str, Any], microbatches: int) -> bool:
    plain = [s for s in space.axis("schedule").values if s in ("1f1b", "gpipe", "zb-h1")]
    if r["pp"] == 1 and (r["vpp"] != 1 or not plain or r["schedule"] != plain[0]):
        return False
    if r["schedule"] == "interleaved" and (r["vpp"] < 2 or microbatches % r["pp"]):
        return False
    if r["schedule"] == "dualpipev" and r["vpp"] != 2:
        return False
    if r["schedule"] in ("1f1b", "gpipe", "zb-h1") and r["vpp"] != 1:
        return False
    group, rest = r["microbatch_group"], microbatches % (r["microbatch_group"] or 1)
    if group and (not r["pp"] <= group <= microbatches or 0 < rest < r["pp"]):
        return False
    if group == r["pp"] and 0 in space.axis("microbatch_group").values and microbatches % group == 0:
        return False
    layouts = space.axis("pipeline_layout").values
    told = [layout_string(space.model, r["pp"] * r["vpp"], one) for one in layouts]
    mine = told[layouts.index(r["pipeline_layout"])]
    return mine is not None and told.index(mine) == layouts.index(r["pipeline_layout"])


def _fullest(space: Space, r: dict[str, Any]) -> int:
    text = layout_string(space.model, r["pp"] * r["vpp"], r["pipeline_layout"])
    assert text is not None
    return max(part.count("t") for part in text.split("|"))


def _recompute_is_legal(space: Space, r: dict[str, Any]) -> bool:
    if r["recompute"] == Recompute.MLA_UP_PROJ and space.model.latent is None:
        return False
    if r["recompute"] != Recompute.NONE and r["schedule"] in ("zb-h1", "dualpipev"):
        return False
    if r["offload_modules"] and (r["recompute"] == Recompute.FULL or r["offload_layers"]):
        return False
    if r["offload_modules"] == Offload.ATTN_PROJ or (not space.model.is_moe and r["offload_modules"] & Offload.MOE_ACT):
        return False
    most, count = _fullest(space, r), r["recompute_num_layers"]
    if count > most or r["offload_layers"] > most:
        return False
    is_double = r["recompute_method"] == RecomputeMethod.BLOCK and count == most
    return not (count > 0 and is_double and 0 in space.axis("recompute_num_layers").values)


def _experts_are_legal(space: Space, r: dict[str, Any]) -> bool:
    has_traffic = space.model.is_moe and r["ep"] > 1
    if (r["deepep"] or r["sync_free_stage"] or r["exchange_overlap"]) and not has_traffic:
        return False
    if r["exchange_overlap"] and (r["recompute"] == Recompute.FULL or (r["pp"] > 1 and r["schedule"] != "interleaved")):
        return False
    if not _graph_is_legal(space, r):
        return False
    return r["sync_free_stage"] < 2 or (r["deepep"] and r["grouped_gemm"] == GroupedGemm.TURBO)


def _graph_is_legal(space: Space, r: dict[str, Any]) -> bool:
    graph, is_sharded = r["cuda_graph"], r["sharding"] >= Sharding.ZERO2
    if graph == CudaGraph.NONE:
        return True
    if graph == CudaGraph.FULL:
        has_sizes_on_device = space.cluster.accelerator.arch not in ("sm80", "sm90")
        is_one_kernel = has_sizes_on_device and r["fp8"] in (Fp8.MXFP8, Fp8.NVFP4) and r["etp"] == 1
        hybrid = {DispatchBackend.HYBRIDEP} | ({DispatchBackend.STACK} if _is_hybrid(space) else set())
        is_fused = bool(r["deepep"]) and r["dispatch_backend"] in hybrid
        return not is_sharded and (not space.model.is_moe or (is_fused and is_one_kernel))
    return space.model.is_moe and not is_sharded and r["recompute"] != Recompute.FULL and not r["offload_layers"]


def _is_hybrid(space: Space) -> bool:
    return space.cluster.stack.memory.group_buffer_copies > 0


def _sharding_is_legal(r: dict[str, Any], first: dict[str, Any], dp: int, edp: int, has_experts: bool) -> bool:
    if r["sharding"] in (Sharding.ZERO2, Sharding.MEGATRON_FSDP) and r["pp"] > 1:
        return False
    replicas = dp * r["cp"]
    if r["sharding"] == Sharding.HSDP and (
        r["shard_group"] < 2 or r["shard_group"] >= replicas or replicas % r["shard_group"]
    ):
        return False
    if r["sharding"] == Sharding.HSDP and has_experts and edp % (replicas // r["shard_group"]):
        return False
    if replicas == 1 and edp == 1:
        return bool(r["sharding"] == first["sharding"] and r["overlap_grad_reduce"] == first["overlap_grad_reduce"])
    return True


def _host_updates(network: Network, percent: int) -> bool:
    return percent == 0 or bool(network.host_copy_bytes_per_s and network.host_update_bytes_per_s)


def _fp8_attention_exists(accelerator: Any, fp8: Fp8) -> bool:
    return "cudnn_fp8" in accelerator.attention.kernels and fp8 in (Fp8.HYBRID, Fp8.MXFP8, Fp8.NVFP4)


def _format_exists(accelerator: Any, fp8: Fp8) -> bool:
    if fp8 == Fp8.NONE:
        return True
    if fp8 == Fp8.MXFP8:
        return bool(accelerator.fp4_peak_flops_per_s)
    if fp8 == Fp8.MXFP4:
        return bool(accelerator.fp4_peak_flops_per_s) and accelerator.vendor.lower() == "amd"
    if fp8 == Fp8.NVFP4:
        return bool(accelerator.fp4_peak_flops_per_s) and accelerator.vendor.lower() == "nvidia"
    return bool(accelerator.fp8_peak_flops_per_s)


def _constraints_hold(space: Space, r: dict[str, Any], dp: int) -> bool:
    held = {
        "tp * ep <= 8": r["tp"] * r["ep"] <= 8,
        "not (fp8 == 'hybrid' and micro_batch_size == 1)": not (r["fp8"] == Fp8.HYBRID and r["micro_batch_size"] == 1),
        "dp >= 2": dp >= 2,
    }
    return all(held[constraint.text] for constraint in space.constraints)


def _with_idle_axes(space: Space, r: dict[str, Any], first: dict[str, Any]) -> dict[str, Any] | None:
    """The row with axes that have no effect at rest; None when it is not the one row that stands for all of these."""
    row = dict(r)
    full = r["recompute"] == Recompute.FULL
    idle = {
        "recompute_num_layers": (not full, 0),
        "recompute_method": (not full or r["recompute_num_layers"] == 0, RecomputeMethod.UNIFORM),
        "microbatch_group": (r["schedule"] != "interleaved" or r["pp"] == 1, 0),
        "shard_group": (r["sharding"] != Sharding.HSDP, 0),
        "grouped_gemm": (not space.model.is_moe, GroupedGemm.TURBO),
        "sequence_parallel": (r["tp"] == 1, False),
        "tp_overlap": (r["tp"] == 1 or not r["sequence_parallel"], False),
        "cp_comm": (r["cp"] == 1, CpComm.STACK),
        "hybrid_cp": (r["cp"] == 1, False),
        "dispatch_backend": (not r["deepep"], DispatchBackend.STACK),
    }
    for name, (is_idle, neutral) in idle.items():
        if is_idle:
            if r[name] != first[name]:
                return None
            row[name] = neutral
    return row


def brute_force(space: Space) -> set[tuple[Any, ...]]:
    axes = {axis.name: axis.values for axis in space.axes}
    first = {name: values[0] for name, values in axes.items()}
    found = set()
    for values in itertools.product(*(axes[name] for name in AXES)):
        row = _with_idle_axes(space, dict(zip(AXES, values, strict=True)), first)
        if row is not None and is_legal(space, row, first):
            found.add(tuple(row[name] for name in AXES))
    return found


def enumerated(space: Space, rows: int) -> list[tuple[Any, ...]]:
    enumerator, found = Enumerator(space), []
    for start in range(0, enumerator.size, rows):
        c = enumerator.chunk(start, start + rows).candidates
        words = {"schedule": c.schedules, "pipeline_layout": c.layouts}
        for i in range(len(c)):
            row = {name: column[i].item() for name, column in c.columns().items()}
            row |= {name: vocabulary[row[name]] for name, vocabulary in words.items()}
            found.append(tuple(row[name] for name in AXES))
    return found


@pytest.mark.daily(10)
@pytest.mark.parametrize("seed", range(24))
def test_every_legal_row_is_listed_once_and_no_other(seed: int) -> None:
    space = random_space(seed)
    found = enumerated(space, rows=997)
    assert len(found) == len(set(found)) > 0
    assert set(found) == brute_force(space)


@pytest.mark.daily(10)
@pytest.mark.parametrize("seed", range(24))
def test_every_raw_row_is_either_legal_or_counted_under_one_rule(seed: int) -> None:
    enumerator = Enumerator(random_space(seed))
    assert enumerator.raw_size == enumerator.size + sum(enumerator.removed.values())
    assert set(enumerator.removed) <= set(enumerator.reasons)


@pytest.mark.daily(4)
@pytest.mark.parametrize("seed", range(8))
def test_rows_do_not_depend_on_the_size_of_chunks_and_can_be_fetched_by_number(seed: int) -> None:
    space = random_space(seed)
    assert enumerated(space, 1) == enumerated(space, 64) == enumerated(space, 10**9)
    enumerator = Enumerator(space)
    if enumerator.size:
        numbers = np.random.default_rng(seed).integers(0, enumerator.size, 20)
        whole = enumerator.chunk(0, enumerator.size).candidates
        for name, column in enumerator.rows(numbers).columns().items():
            assert (column == whole.columns()[name][numbers]).all()


def test_a_constraint_over_very_many_combinations_filters_rows_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    space = random_space(3)
    text = "tp * micro_batch_size + recompute_num_layers * offload_layers + sync_free_stage <= 6"
    limited = Space(
        **{f: space.__getattribute__(f) for f in ("name", "model", "workload", "clusters")},
        constraints=(Constraint(text=text),),
    )
    tabulated = enumerated(limited, 100)
    monkeypatch.setattr("primus_search.space.enumerate.CROSS_LIMIT", 0)
    enumerator = Enumerator(limited)
    removed = [sum(enumerator.chunk(start, start + 100).removed.values()) for start in range(0, enumerator.size, 100)]
    assert enumerated(limited, 100) == tabulated
    assert enumerator.size - sum(removed) == len(tabulated)


def test_a_grid_of_ten_thousand_million_rows_costs_what_its_legal_rows_cost() -> None:
    data = {"model": "mixtral_8x22b", "hardware": "mi355x", "nodes": 32}
    space = make_space(data | {"framework": "any", "workload": {"seq_length": 8192, "global_batch_size": 1024}})
    wide = {"recompute_num_layers": tuple(range(32)), "offload_layers": (0, 1, 2, 3)}
    enumerator = Enumerator(
        space, space.clusters[0].with_axes([Axis(name=name, values=values) for name, values in wide.items()])
    )
    assert enumerator.raw_size > 10**10
    assert 10**6 < enumerator.size < enumerator.raw_size // 50
