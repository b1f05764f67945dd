"""Fits of kernel laws find the figures that made the data, refuse what it cannot tell, and say where it came from."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.cost.laws.collectives import Group, all_reduce_s
from primus_search.cost.laws.gemm import gemm_s
from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind as Named
from primus_search.files.search_path import names
from primus_search.measure.calibrate.hardware_edits import leaves, with_fitted
from primus_search.measure.calibrate.kernel_fit import MAX_FITTED, Calibration, calibrate, number_at
from primus_search.measure.calibrate.point_laws import PointTable
from primus_search.measure.calibrate.points import Direction, KernelKind, Point, read_points
from primus_search.measure.device.device_table import COLUMNS, to_csv
from primus_search.values.candidates import Fp8
from tools.docs.generated import count_fitted

ROOT = Path(__file__).parents[3]
H200 = load_hardware("h200").accelerator


def gemm_points(code: Fp8 = Fp8.NONE, *, noise: float = 0.03, is_burst: bool = False) -> list[Point]:
    """Products of many shapes with the seconds H200's law gives them, and a little noise."""
    random = np.random.default_rng(0)
    shapes = [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096, 16384) for k in (512, 2048, 8192, 16384)]
    blank = [
        Point(
            kind=KernelKind.GEMM,
            gpu="H200",
            code=code,
            direction=Direction.FORWARD,
            is_burst=is_burst,
            casts=0 if code is Fp8.NONE else 1,
            seconds=1.0,
            group=f"{n}x{k}",
            source="made here",
            m=float(m),
            n=float(n),
            k=float(k),
        )
        for m, n, k in shapes
    ]
    truth = PointTable(blank).predict_s(H200) * np.exp(noise * random.standard_normal(len(blank)))
    return [replace(point, seconds=float(seconds)) for point, seconds in zip(blank, truth, strict=True)]


def fitted(calibration: Calibration) -> dict[str, float]:
    return {f.path: f.value for stage in calibration.stages for f in stage.fitted}


def test_a_fit_finds_the_figures_that_made_the_data() -> None:
    start = replace(H200, gemm=replace(H200.gemm, bf16_efficiency=0.5, depth_overhead=10.0))
    found = fitted(calibrate(start, gemm_points()))
    assert found["gemm.bf16_efficiency"] == pytest.approx(H200.gemm.bf16_efficiency, rel=0.02)
    assert found["gemm.depth_overhead"] == pytest.approx(H200.gemm.depth_overhead, rel=0.15)


def test_a_short_benchmark_is_taken_at_its_own_clock() -> None:
    # The same seconds read as a short run on a cool device mean a lower sustained efficiency.
    settled = fitted(calibrate(H200, gemm_points()))["gemm.bf16_efficiency"]
    burst = fitted(calibrate(H200, [replace(p, is_burst=True) for p in gemm_points()]))["gemm.bf16_efficiency"]
    assert burst == pytest.approx(settled * H200.sustained_over_burst, rel=0.02)


def test_a_slow_path_does_not_bend_the_law() -> None:
    points = gemm_points()
    slow = [replace(p, seconds=p.seconds * 3.0) if i % 12 == 0 else p for i, p in enumerate(points)]
    found = fitted(calibrate(H200, slow))
    assert found["gemm.bf16_efficiency"] == pytest.approx(H200.gemm.bf16_efficiency, rel=0.04)


def test_what_no_point_depends_on_is_refused_and_left_alone() -> None:
    result = calibrate(H200, gemm_points(Fp8.BLOCKWISE))
    reasons = {r.path: r.reason for stage in result.stages for r in stage.refused}
    assert reasons["gemm.fp8_tensor_efficiency"] == "no point depends on it"
    assert reasons["gemm.bf16_efficiency"] == "no points of this device"
    assert result.accelerator.gemm.fp8_tensor_efficiency == H200.gemm.fp8_tensor_efficiency


def test_what_few_points_cannot_tell_is_refused() -> None:
    result = calibrate(H200, gemm_points()[:5])
    reasons = {r.path: r.reason for stage in result.stages for r in stage.refused}
    assert reasons["gemm.depth_overhead"] == "5 points are too few for 2 parameters"


def test_deep_products_alone_do_not_identify_the_price_of_depth() -> None:
    deep = [p for p in gemm_points() if p.k >= 8192]
    result = calibrate(H200, deep)
    assert "gemm.depth_overhead" not in fitted(result)
    assert "gemm.bf16_efficiency" in fitted(result)


def test_errors_are_those_of_points_left_out() -> None:
    # Pure noise of 3 % has a median absolute error of 2 %; a fit judged on its own points would report less.
    stage = calibrate(H200, gemm_points()).stages[0]
    assert 0.01 < stage.median_error < 0.035
    assert abs(stage.bias) < 0.02


def row(**given: str) -> dict[str, str]:
    blank = dict.fromkeys(
        "kind gpu dtype op m n k seq head_dim heads batch causal value unit source notes".split(),  # noqa: SIM905
        "",
    )
    return blank | {"kind": "gemm", "gpu": "H200", "dtype": "bf16", "op": "fwd", "unit": "TFLOP/s"} | given


def read(tmp_path: Path, *rows: dict[str, str]) -> list[Point]:
    path = tmp_path / "points.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read_points(path)


def test_a_row_becomes_the_call_it_timed(tmp_path: Path) -> None:
    size = {"m": "1024", "n": "2048", "k": "4096", "value": "100"}
    forward, backward = read(
        tmp_path,
        row(**size, notes="burst clocks; includes activation quantisation", dtype="fp8_tensorwise"),
        row(**size, op="bwd", notes="autograd op incl. on-the-fly quantisation", dtype="fp8_blockwise"),
    )
    flops = 2.0 * 1024 * 2048 * 4096
    assert (forward.code, forward.casts, forward.is_burst) == (Fp8.HYBRID, 1, True)
    assert forward.seconds == pytest.approx(flops / 100e12)
    assert (backward.code, backward.casts, backward.direction) == (Fp8.BLOCKWISE, 2, Direction.BACKWARD)
    assert backward.seconds == pytest.approx(2.0 * flops / 100e12)


def test_causal_attention_is_half_of_the_square(tmp_path: Path) -> None:
    shape = {"kind": "attention", "seq": "4096", "head_dim": "192/128", "heads": "64/8", "batch": "2", "value": "500"}
    source = {"source": "NVIDIA/cudnn-frontend@1"}
    (point,) = read(tmp_path, row(**shape, **source, causal="True"))
    assert (point.family, point.qk_dim, point.v_dim, point.kv_heads) == ("cudnn", 192, 128, 8)
    assert point.seconds == pytest.approx(2.0 * 2 * 64 * (192 + 128) * 4096 * 4096 / 2 / 500e12)


@pytest.mark.parametrize(
    "given",
    [
        {"op": "vendor_acceptance_floor"},
        {"op": "mamf_best_shape"},
        {"op": "fwd_average_llm_shapes"},
        {"op": "pytorch"},
        {"m": ""},
        {"unit": "us"},
        {"source": "systems/data/gb200/gemm/vllm/0.24.0"},
    ],
)
def test_thresholds_averages_and_host_bound_rows_are_no_points(tmp_path: Path, given: dict[str, str]) -> None:
    good = row(m="1024", n="2048", k="4096", value="100")
    assert len(read(tmp_path, good)) == 1
    assert read(tmp_path, good | given) == []


HARDWARE = (ROOT / "hardware" / "h200.yaml").read_text(encoding="utf-8")


def test_fitted_numbers_go_back_into_the_file_and_nothing_else_changes() -> None:
    calibration = calibrate(H200, gemm_points())
    written = with_fitted(HARDWARE, calibration, "2030-01-31")
    changed = [new for old, new in zip(HARDWARE.splitlines(), written.splitlines(), strict=True) if old != new]
    assert {line.split(":")[0].strip() for line in changed} == {"bf16_efficiency", "depth_overhead"}
    (leaf,) = [leaf for leaf in leaves(written) if leaf.path == "accelerator.gemm.bf16_efficiency"]
    assert float(leaf.value) == pytest.approx(fitted(calibration)["gemm.bf16_efficiency"], rel=1e-3)
    assert leaf.source.startswith("fitted 2030-01-31 to 36 BF16 GEMM points of made (bounds 0.05 to 1, standard error")


@pytest.mark.parametrize("name", [*names(Named.HARDWARE), *names(Named.STACK)])
def test_every_number_of_a_file_has_a_path_of_its_own(name: str) -> None:
    file = (names(Named.HARDWARE) | names(Named.STACK))[name]
    found = leaves(file.read_text(encoding="utf-8"))
    assert len({leaf.path for leaf in found}) == len(found) > 0


def test_a_file_without_the_number_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        with_fitted("accelerator:\n  gemm:\n", calibrate(H200, gemm_points()), "2030-01-31", "mine.yaml")
    assert "mine.yaml @ $.accelerator.gemm.bf16_efficiency: expected a line" in str(caught.value)


@pytest.mark.parametrize("name", names(Named.HARDWARE))
def test_no_device_has_more_than_twelve_fitted_numbers(name: str) -> None:
    assert count_fitted(names(Named.HARDWARE)[name].read_text(encoding="utf-8")) <= MAX_FITTED


@pytest.mark.parametrize("name", names(Named.STACK))
def test_no_stack_has_more_than_twelve_fitted_numbers(name: str) -> None:
    assert count_fitted(names(Named.STACK)[name].read_text(encoding="utf-8")) <= MAX_FITTED


def test_values_are_found_by_their_path() -> None:
    assert number_at(H200, "attention.kernels.cudnn.forward_efficiency") == (
        H200.attention.kernels["cudnn"].forward_efficiency
    )


def test_the_command_prints_errors_numbers_and_refusals(tmp_path: Path) -> None:
    sample = ROOT / "tests" / "oracle" / "data" / "kernel_points.csv"
    out = tmp_path / "mine.yaml"
    arguments = ["calibrate", "--measurements", str(sample), "--hardware", "h200", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (device,) = json.loads(result.output)
    assert (device["hardware"], device["gpu"]) == ("h200", "H200")
    assert {"name", "num_points", "median_error", "fitted", "refused"} <= set(device["stages"][0])
    assert load_hardware(str(out)).accelerator.name == "H200"


def test_the_command_refuses_a_missing_file_and_a_device_without_points(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["calibrate", "--measurements", str(tmp_path / "none.csv")])
    assert isinstance(missing.exception, InputError) and "no such file" in str(missing.exception)
    sample = ROOT / "tests" / "oracle" / "data" / "kernel_points.csv"
    foreign = CliRunner().invoke(app, ["calibrate", "--measurements", str(sample), "--hardware", "mi250x"])
    assert isinstance(foreign.exception, InputError) and "no points of MI250X" in str(foreign.exception)


def test_a_site_is_told_what_runs_slower_than_its_hardware_file(tmp_path: Path) -> None:
    """Recorded points: products at the file's speed, all-reduce in the node at 61 % of it."""
    hardware, size = load_hardware("h200"), float(1 << 28)
    blank = dict.fromkeys(COLUMNS, "") | {"gpu": "H200", "dtype": "bf16", "source": "recorded"}
    product = blank | {"kind": "gemm", "op": "fwd", "unit": "TFLOP/s", "m": 8192, "n": 4096, "k": 4096}
    expected_s = float(gemm_s(hardware.accelerator, 8192.0, 4096.0, 4096.0, Fp8.NONE))
    message_s = float(all_reduce_s(hardware.network, size, Group(8, 1)))
    reduce = blank | {"kind": "collective", "op": "all_reduce", "unit": "us", "num_gpus": 8, "message_bytes": int(size)}
    rows = [
        product | {"dtype": "fp32", "value": 10.0},
        product | {"value": 2.0 * 8192 * 4096 * 4096 / expected_s / 1e12},
        reduce | {"value": 1e6 * message_s / 0.61},
    ]
    table = tmp_path / "site.csv"
    table.write_text(to_csv(rows), encoding="utf-8")
    found = CliRunner().invoke(app, ["bench", "--site", str(table), "--hardware", "h200", "--json"])
    assert found.exit_code == 0, found.output
    products, messages = json.loads(found.stdout)["kinds"]
    assert json.loads(found.stdout)["rows_not_compared"] == 1
    assert products["share"] == pytest.approx(1.0, rel=1e-3) and not products["is_slow"]
    assert messages["what"] == "all-reduce in a node" and messages["is_slow"]
    assert messages["share"] == pytest.approx(0.61, rel=1e-3)
    text = CliRunner().invoke(app, ["bench", "--site", str(table), "--hardware", "h200"]).stdout
    assert "all-reduce in a node runs at 61% of what the file of h200 expects." in text
    assert "1 rows are of a kind or format that no law has: not compared." in text
    other = CliRunner().invoke(app, ["bench", "--site", str(table), "--hardware", "mi300x"])
    assert isinstance(other.exception, InputError) and "has no point of MI300X" in str(other.exception)
