"""The sweep of a device and the GPU benchmark: their logic on a CPU, with shapes that take no time."""

import argparse
import contextlib
import io
import json

import pytest

from primus_search.cli.calibrate import beside, measured_table
from primus_search.cost.laws.gemm import gemm_s
from primus_search.files.hardware_files import load_hardware
from primus_search.measure.calibrate.hardware_edits import with_tables
from primus_search.measure.device.device_table import COLUMNS, SWEEPS, to_csv
from tests.bench import bench_gpu
from tests.support.simulated_gpu import run_here
from tools.truth.training import SMALLEST


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """What `calibrate --device` makes of a sweep that takes no time, on a device that is not the file's."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        table = measured_table("cpu", tmp_path_factory.mktemp("swept") / "host.csv", "h100", None, sweep="tiny")
    assert said.getvalue() == "", "nothing is left out"
    return table


@pytest.mark.in_turn("swept")
def test_a_sweep_is_a_csv_that_calibrate_reads(swept):
    from primus_search.measure.calibrate.points import KernelKind, read_points

    assert swept.read_text().splitlines()[0] == ",".join(COLUMNS)
    points = read_points(swept)
    assert {point.kind for point in points} == {KernelKind.GEMM, KernelKind.ATTENTION, KernelKind.GROUPED_GEMM}
    assert all(point.seconds > 0 for point in points)


@pytest.mark.in_turn("swept")
def test_a_sweep_becomes_the_table_of_a_hardware_file_and_moves_its_projections(swept, tmp_path):
    text = load_hardware("h100").path.read_text(encoding="utf-8")
    out = tmp_path / "hardware" / "mine.yaml"
    out.parent.mkdir()
    text = with_tables(text, beside(out, swept))
    assert with_tables(text, "tables/mine.csv") == text
    out.write_text(text, encoding="utf-8")
    mine, plain = load_hardware(str(out)), load_hardware("h100")
    assert {one.kind for one in mine.network.tables} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send",
    }  # fmt: skip
    assert {one.kind for one in mine.accelerator.tables} >= {"gemm/bf16/fwd", "gemm/bf16/bwd", "attention/sdpa/fwd"}
    seconds, law = gemm_s(mine.accelerator, 64, 64, 64), gemm_s(plain.accelerator, 64, 64, 64)
    assert seconds == pytest.approx(mine.accelerator.tables.of("gemm/bf16/fwd").seconds[0])
    assert seconds != law
    assert gemm_s(mine.accelerator, 8192, 8192, 8192) == gemm_s(plain.accelerator, 8192, 8192, 8192)
    assert any("measured on" in one.source for one in mine.sources if one.path == "tables")


def test_without_an_accelerator_the_gpu_benchmark_says_so_and_ends_well(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert bench_gpu.main([]) == 0
    assert capsys.readouterr().out == "no CUDA or ROCm device on this machine: nothing measured\n"


def flat_sweep(path, *, kind, gpu, sweep):
    """The whole sweep of a device that runs each kind of kernel at one rate, whatever the shape, as a CSV."""
    rows = []

    def add(name, shape, rates):
        common = {"kind": name, "gpu": gpu, "unit": "TFLOP/s", "source": "made up", "notes": "trust=A; sustained"}
        rows.extend(common | shape | {"dtype": dtype, "op": op, "value": rate} for dtype, op, rate in rates)

    for m, n, k in SWEEPS["full"].gemms:
        rates = [("bf16", "fwd", 600.0), ("bf16", "bwd", 560.0), ("fp8_tensorwise", "fwd", 1000.0)]
        add("gemm", {"m": m, "n": n, "k": k}, rates)
    for batch, heads, _, seq, dim, _ in SWEEPS["full"].attention:
        shape = {"seq": seq, "head_dim": dim, "heads": heads, "batch": batch, "causal": "true"}
        add("attention", shape, [("bf16", "fwd_torch_sdpa", 500.0), ("bf16", "bwd_torch_sdpa", 420.0)])
    for groups, tokens, n, k in SWEEPS["full"].experts:
        shape = {"m": tokens, "n": n, "k": k, "batch": groups}
        add("grouped_gemm", shape, [("bf16", "fwd", 500.0), ("bf16", "bwd", 450.0)])
    path.write_text(to_csv(rows), encoding="utf-8")
    return ["collectives: this node has 1 device"]


@pytest.mark.in_turn
@pytest.mark.slow
def test_the_gpu_benchmark_reports_layers_steps_and_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("primus_search.measure.device.device_table.measure_device", flat_sweep)
    monkeypatch.setattr("primus_search.measure.candidate_bench.devices_of_host", lambda: (1, 1))
    run_here(monkeypatch)
    options = argparse.Namespace(hardware="h100", sweep="tiny", out=tmp_path, minutes=10.0)
    assert bench_gpu.run(options, "cpu", [SMALLEST]) == 0
    assert "layer: median error" in capsys.readouterr().out
    (facts,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    names = [row["name"] for row in facts["layers"]]
    assert names[:2] == ["smallest dense bf16", "smallest moe bf16"]
    # FP8 runs, or is named as missing: which of the two is the device's affair
    assert len(names) == 4 or any("smallest fp8: missing kernel" in line for line in facts["not_measured"])
    assert [row["name"] for row in facts["steps"]] == ["smallest, 2 layers"]
    assert all(row["trained_s"] > 0 and row["composed_s"] > 0 for row in facts["steps"])
    assert facts["not_measured"][0] == "collectives: this node has 1 device"
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".jsonl", ".json"}


def test_errors_of_a_device_are_medians_and_hold_only_where_something_was_measured():
    layers = [{"measured_s": 1.0, "projected_s": value} for value in (1.04, 0.95, 1.5)]
    step = {"trained_s": 2.0, "projected_s": 2.2, "composed_s": 2.02, "allocated_bytes": 0.0, "projected_bytes": 1.0}
    evidence = bench_gpu.Evidence(machine={}, layers=layers, steps=[step])
    medians = evidence.medians()
    assert medians["layer"] == pytest.approx(0.05)
    assert medians["step"] == pytest.approx(0.10)
    assert medians["step_with_measured_layers"] == pytest.approx(0.01)
    assert medians["memory"] is None
    assert evidence.as_json()["holds"] == {"layer": True, "step": False, "memory": False}


@pytest.mark.parametrize(
    ("device", "file"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA A100-SXM4-40GB", "a100_40"),
        ("NVIDIA A100-SXM4-80GB", "a100_80"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA T4", ""),
    ],
)
def test_a_device_finds_the_hardware_file_that_is_named_like_it(device, file):
    assert bench_gpu.hardware_for(bench_gpu.device_slug(device)) == file


COMMITTED = [
    path for path in (bench_gpu.ROOT / "results" / "measurements").glob("*.json") if not path.stem.startswith("truth")
]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_measurements_of_a_device_hold_what_is_wanted(path):
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert facts["device"] and "driver" in facts["versions"] and facts["date"]
    assert all(facts["holds"].values()), facts["median_errors"]
