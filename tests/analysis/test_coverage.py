"""Which parts of a projection rest on measured ranges: by shape, precision, device, scale and stack."""

from dataclasses import replace
from typing import Any

import pytest

from primus_search.analysis.coverage import Covered, coverage
from primus_search.cost.confidence.regimes import had_regime
from primus_search.cost.confidence.uncertainty import UNKNOWN, band
from primus_search.files.evidence_files import load_ranges
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Fp8, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import CudaGraph
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.ranges import Range, Ranges
from primus_search.values.workload import Workload

MODEL = load_model("llama3_70b")
GB80 = 60e9


def parts_of(
    cluster: Cluster, *, ranges: Ranges | None = None, model: str = "llama3_70b", **knobs: object
) -> dict[str, Covered]:
    one = Candidates.table(**({"tp": 8} | knobs))  # type: ignore[arg-type]
    workload = Workload(seq_length=8192, global_batch_size=cluster.world)
    found = coverage(Job(load_model(model), cluster, workload), one, GB80, load_ranges() if ranges is None else ranges)
    return {part.part: part for part in found}


def box(*, points: int = 10, low: tuple[float, ...], high: tuple[float, ...]) -> Range:
    return Range(points=points, low=low, high=high, source="a test")


def test_a_range_reaches_one_octave_beyond_its_ends() -> None:
    known = box(low=(1024.0, 64.0), high=(4096.0, 128.0))
    assert known.outside((512.0, 256.0)) is None
    assert known.outside((511.0, 128.0)) == 0
    assert known.outside((1024.0, 257.0)) == 1


def test_common_shapes_on_a_measured_device_are_calibrated() -> None:
    parts = parts_of(load_cluster("h100", 4, "nemo_2024"))
    assert [name for name, part in parts.items() if part.is_calibrated] == [
        *("GEMM", "attention", "collectives", "regime", "stack")
    ]
    assert parts["GEMM"].why == "376 points of H100"
    assert parts["memory"].why == "no dense peak memory measured on H100"


def test_a_device_nobody_measured_is_extrapolated_in_every_part() -> None:
    parts = parts_of(load_cluster("mi250x", 4), model="mixtral_8x7b", tp=1, ep=8)
    assert set(parts) == {"GEMM", "attention", "grouped GEMM", "collectives", "memory", "regime", "stack"}
    assert [name for name, part in parts.items() if part.is_calibrated] == []
    assert parts["stack"].why.endswith("was never fitted to MoE runs on MI250X")


def test_a_regime_that_no_run_had_is_named() -> None:
    """Runs with Megatron-FSDP on H100 accumulated, and one that had one micro-batch a step kept its activations."""
    how: dict[str, Any] = {"tp": 1, "sharding": int(Sharding.MEGATRON_FSDP), "recompute": int(Recompute.FULL)}
    parts = parts_of(load_cluster("h100", 16), **how)
    words = "no dense run with Megatron-FSDP, full recompute, one micro-batch a step measured on H100"
    assert (parts["regime"].is_calibrated, parts["regime"].why) == (False, words)
    assert parts_of(load_cluster("h100", 16), tp=1)["regime"].is_calibrated
    job = Job(MODEL, load_cluster("h100", 16), Workload(seq_length=8192, global_batch_size=1024))
    table = Candidates.table(sharding=[int(Sharding.FSDP2), int(Sharding.MEGATRON_FSDP)], recompute=how["recompute"])
    assert had_regime(job, table, load_ranges()).tolist() == [True, False]


def test_memory_of_a_graph_of_the_whole_iteration_rests_on_one_pair() -> None:
    """Of experts, and where the stack's pool grows with it: XLA plans the step's buffers."""
    cluster, graph = load_cluster("b200", 4), {"tp": 1, "ep": 8, "cuda_graph": int(CudaGraph.FULL)}
    said = parts_of(cluster, model="qwen3_30b_a3b", **graph)["memory of the graph"]
    assert (said.is_calibrated, said.why) == (False, "one published pair of runs")
    for model, knobs in (("qwen3_30b_a3b", graph | {"cuda_graph": 0}), ("llama3_70b", graph | {"ep": 1})):
        assert "memory of the graph" not in parts_of(cluster, model=model, **knobs)


def test_a_precision_without_points_is_named() -> None:
    parts = parts_of(load_cluster("h100", 4), fp8=int(Fp8.MXFP8))
    assert (parts["GEMM"].is_calibrated, parts["GEMM"].why) == (False, "no mxfp8 GEMM measured on H100")


def test_what_lies_outside_says_by_how_much() -> None:
    ranges = {"H100": {"gemm/bf16": box(low=(64.0, 64.0, 64.0), high=(512.0, 1e5, 1e5)),
                       "collectives/inside": box(low=(1.0,), high=(8.0,)),
                       "collectives/across": box(low=(1.0,), high=(16.0,))}}  # fmt: skip
    parts = parts_of(load_cluster("h100", 512), ranges=ranges)
    assert parts["GEMM"].why == "8,192 rows, measured 64 to 512"
    assert parts["collectives"].why == "512 nodes, measured 1 to 16"
    assert not parts["attention"].is_calibrated


def test_a_stack_is_calibrated_only_for_runs_like_those_it_was_fitted_to() -> None:
    cluster = load_cluster("h100", 4, "torchtitan")
    kinds = {"H100/dense/bf16": box(points=7, low=(1.0, 4096.0), high=(64.0, 8192.0))}
    assert parts_of(cluster, ranges={"torchtitan": kinds})["stack"].why == "torchtitan fitted to 7 dense runs on H100"
    low = parts_of(cluster, ranges={"torchtitan": kinds}, fp8=int(Fp8.HYBRID))["stack"]
    assert low.why == "torchtitan was never fitted to dense runs on H100 in low precision"
    large = parts_of(load_cluster("h100", 128, "torchtitan"), ranges={"torchtitan": kinds})["stack"]
    assert (large.is_calibrated, large.why) == (False, "1,024 GPUs, measured 1 to 64")


def test_every_shipped_range_has_points_sizes_and_a_source() -> None:
    found = load_ranges()
    assert {"H100", "MI355X", "GB200", "primus_megatron"} <= set(found)
    for kinds in found.values():
        for kind, known in kinds.items():
            assert bool(known.low) is not kind.startswith("regime/")
            assert known.points > 0 and known.source


def test_a_range_that_is_no_box_is_refused() -> None:
    with pytest.raises(ValueError, match="low and high"):
        box(low=(2.0,), high=(1.0,))


@pytest.mark.parametrize("name", ["hyper-connections", "per-layer embeddings"])
def test_streams_and_embeddings_of_every_layer_are_extrapolated(name: str) -> None:
    model = replace(MODEL, hyper_streams=4) if "hyper" in name else replace(MODEL, per_layer_embedding=256)
    job = Job(model, load_cluster("h100", 1), Workload(seq_length=8192, global_batch_size=8))
    found = {part.part: part for part in coverage(job, Candidates.table(tp=8), GB80, load_ranges())}
    assert not found["mixers"].is_calibrated and name in found["mixers"].why


@pytest.mark.parametrize("stack", [None, "nemo_2024"])
@pytest.mark.parametrize("fp8", [Fp8.NONE, Fp8.HYBRID])
def test_a_model_with_mixers_nobody_measured_has_the_widest_band_and_no_runs(fp8: Fp8, stack: str | None) -> None:
    cluster = load_cluster("h100", nodes=32, stack=stack)
    plain, hybrid = load_model("llama3_8b"), load_model("nemotron_h_56b")
    named, found = band(cluster, plain, fp8), band(cluster, hybrid, fp8)
    assert (named.runs > 0.0) == (stack is not None) and found.runs == 0.0
    assert found.low <= min(named.low, UNKNOWN.low) and found.high >= max(named.high, UNKNOWN.high)
