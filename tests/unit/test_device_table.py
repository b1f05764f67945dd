"""The sweep of a device and the GPU benchmark: their logic on a CPU, with shapes that take no time."""

import argparse

import pytest

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
