"""The sweep of a device and the GPU benchmark: their logic on a CPU, with shapes that take no time."""

import argparse

import pytest

from primus_search.calibrate.provenance import with_tables
from primus_search.cli.calibrate import beside, measured_table
from primus_search.cost.gemm import gemm_s
from primus_search.declare.hardware import load_hardware
from primus_search.measure.device_table import COLUMNS, measure_device
from tests.bench import bench_gpu


def test_a_sweep_is_a_csv_that_calibrate_reads(tmp_path):
    from primus_search.calibrate.points import Kind, read_points

    path = tmp_path / "host.csv"
    assert measure_device(path, kind="cpu", gpu="H100", sweep="tiny") == []
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    points = read_points(path)
    assert {point.kind for point in points} == {Kind.GEMM, Kind.ATTENTION, Kind.GROUPED_GEMM}
    assert all(point.seconds > 0 for point in points)


def test_a_sweep_becomes_the_table_of_a_hardware_file_and_moves_its_projections(tmp_path):
    """What `calibrate --device` does, with a sweep that takes no time on a device that is not the file's."""
    table = measured_table("cpu", tmp_path / "sweep.csv", "h100", None, sweep="tiny")
    text = load_hardware("h100").path.read_text(encoding="utf-8")
    out = tmp_path / "hardware" / "mine.yaml"
    out.parent.mkdir()
    text = with_tables(text, beside(out, table))
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


@pytest.mark.slow
def test_the_gpu_benchmark_measures_and_reports_layers(tmp_path, capsys):
    options = argparse.Namespace(hardware="h100", sweep="tiny", out=tmp_path)
    assert bench_gpu.run(options, "cpu") == 0
    assert "layers: median error" in capsys.readouterr().out
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".jsonl"]
