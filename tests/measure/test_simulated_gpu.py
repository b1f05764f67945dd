"""The whole path of a GPU, at full size, on a device whose law is known (`simulated_gpu`): what is projected from the
sweep must be what the same device takes for layers and training steps, but for what the fit cannot know."""

import argparse
import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.files.hardware_files import load_hardware
from primus_search.measure.calibrate.kernel_fit import calibrate_hardware
from primus_search.measure.calibrate.points import read_points
from primus_search.measure.device import device_table as sweeps
from primus_search.measure.device import timing, torch_device
from primus_search.measure.device.device_info import CUDA
from primus_search.measure.device.device_table import measure_device
from primus_search.measure.device.torch_device import placed
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.products import precise8
from primus_search.measure.modules.shard import Shard
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Fp8
from tests.bench import bench_gpu
from tests.support.simulated_gpu import simulated
from tests.support.single_device import first_layers

NOISE = 0.02  # standard deviation of ln(seconds) of every kernel
NO_TIME = 1e-9  # seconds: one repeat of everything


def known_device():
    """An H200 whose kernels run at other rates than its hardware file says."""
    acc = load_hardware("h200").accelerator
    gemm = replace(
        acc.gemm, bf16_efficiency=0.68, depth_overhead=180.0, backward_factor=0.9, fp8_tensor_efficiency=0.62
    )
    sdpa = replace(acc.attention.kernels["sdpa"], forward_efficiency=0.62, backward_efficiency=0.55)
    attention = replace(acc.attention, kernels=acc.attention.kernels | {"sdpa": sdpa})
    grouped = replace(acc.grouped_gemm, factor=0.8, backward_factor=0.85)
    return replace(acc, gemm=gemm, attention=attention, grouped_gemm=grouped)


@pytest.fixture
def at_once(monkeypatch):
    """Nothing is repeated and nothing waited for: a simulated clock needs neither."""
    monkeypatch.setattr(torch_device, "HEAT_S", 0.0)
    monkeypatch.setattr(timing, "MIN_REPEATS", 1)
    monkeypatch.setitem(sweeps.SWEEPS, "full", replace(sweeps.SWEEPS["full"], budget_s=NO_TIME))
    quick = replace(bench_gpu.SCALES["full"], layer_s=NO_TIME, stream_s=NO_TIME)
    monkeypatch.setitem(bench_gpu.SCALES, "full", quick)
    return monkeypatch


def swept(at_once, path, **how):
    with simulated(at_once, known_device(), **how):
        missing = measure_device(path, kind=CUDA, gpu="H200", sweep="full")
    assert missing == ["collectives: this node has 1 device"]
    return calibrate_hardware("h200", read_points(path), "H200", is_own_sweep=True).calibration


def test_a_sweep_of_a_known_device_gives_its_law_back_and_says_how_well(at_once, tmp_path):
    found = swept(at_once, tmp_path / "sweep.csv", noise=NOISE)
    true, fitted = known_device(), found.accelerator
    assert fitted.gemm.bf16_efficiency == pytest.approx(true.gemm.bf16_efficiency, rel=0.03)
    assert fitted.gemm.fp8_tensor_efficiency == pytest.approx(true.gemm.fp8_tensor_efficiency, rel=0.03)
    sdpa, wanted = fitted.attention.kernels["sdpa"], true.attention.kernels["sdpa"]
    assert sdpa.forward_efficiency == pytest.approx(wanted.forward_efficiency, rel=0.03)
    assert sdpa.backward_efficiency == pytest.approx(wanted.backward_efficiency, rel=0.03)
    assert fitted.grouped_gemm.factor == pytest.approx(true.grouped_gemm.factor, rel=0.05)
    names = {stage.name for stage in found.stages}
    assert names == {"BF16 GEMM", "FP8 GEMM", "attention", "BF16 grouped GEMM"}
    assert all(0.25 * NOISE < stage.median_error < 3.0 * NOISE for stage in found.stages)
    assert sum(len(stage.fitted) for stage in found.stages) <= 12


@pytest.mark.in_turn
def test_a_device_that_obeys_no_law_is_noticed_by_the_points_left_out(at_once, tmp_path):
    """Kernels three times slower or faster at random: no fit may call that well understood."""
    found = swept(at_once, tmp_path / "sweep.csv", noise=1.0)
    assert all(stage.median_error > 0.2 for stage in found.stages)


@pytest.mark.in_turn
def test_calibrating_a_device_twice_writes_the_same_file_which_says_where_its_numbers_are_from(at_once, tmp_path):
    out, table = tmp_path / "hardware" / "mine.yaml", tmp_path / "sweep.csv"
    out.parent.mkdir()
    command = ["calibrate", "--device", "cuda", "--hardware", "h200", "--measurements", str(table), "--out", str(out)]
    written = []
    for _ in range(2):
        with simulated(at_once, known_device(), noise=NOISE):
            found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, found.output
        written.append(out.read_text(encoding="utf-8"))
    assert written[0] == written[1]
    assert "BF16 GEMM: 92 points; left out: median error" in found.output
    mine, plain = load_hardware(str(out)), load_hardware("h200")
    sources = {one.path: one.source for one in mine.sources}
    assert sources["accelerator.gemm.bf16_efficiency"].startswith("fitted 20")
    assert "BF16 GEMM points of measured (bounds" in sources["accelerator.gemm.bf16_efficiency"]
    assert mine.accelerator.gemm.bf16_efficiency == pytest.approx(known_device().gemm.bf16_efficiency, rel=0.03)
    assert mine.accelerator.footprint == plain.accelerator.footprint and mine.network == plain.network
    assert mine.accelerator.tables and not plain.accelerator.tables


def test_a_layer_with_a_window_runs_on_a_gpu_by_packed_attention(at_once):
    """Its kernel takes packed sequences: shapes and gradients go through, and no score is stored."""
    model = replace(load_model("llama3.1_8b"), num_layers=1, windows=(1024,), moe_layers=(False,))
    shard = Shard(micro_batch_size=2, seq_length=4096)
    with simulated(at_once, known_device()) as gpu, placed(CUDA, "bfloat16"):
        layer = Layer(model, shard, model.kinds[0])
        x = torch.randn(2, 4096, model.hidden, requires_grad=True)
        layer(x).backward(torch.ones_like(x))
        assert x.grad is not None and x.grad.shape == x.shape
    assert {"torch_attn::_varlen_attn", "torch_attn::_varlen_attn_backward"} <= set(gpu.seconds_by_op)
    assert gpu.peak < 2 * 4096 * 4096 * model.num_heads * 2.0 + 4e9


AMD = {"name": "AMD Instinct MI300X", "gcn": "gfx942:sramecc+:xnack-"}


@pytest.mark.parametrize(("device_of", "e4m3"), [({}, torch.float8_e4m3fn), (AMD, torch.float8_e4m3fnuz)])
def test_every_layer_of_a_latent_mixture_runs_in_fp8_on_both_makers_devices(at_once, device_of, e4m3):
    """Formats and layouts are checked by torch's own rules for its scaled product; heads of two dimensions are padded
    where flash attention wants one."""
    model = first_layers(load_model("deepseek_v2_lite"), 2)
    shard = Shard(micro_batch_size=1, seq_length=4096, fp8=Fp8.HYBRID)
    with simulated(at_once, known_device(), **device_of) as gpu, placed(CUDA, "bfloat16"):
        assert precise8(torch.randn(16, 16))[0].dtype is e4m3
        for kind in model.kinds:
            x = torch.randn(1, 4096, model.hidden, requires_grad=True)
            layer = Layer(model, shard, kind)
            layer(x).backward(torch.ones_like(x))
            assert x.grad is not None and all(
                p.grad is not None and p.grad.shape == p.shape for p in layer.parameters()
            )
    assert gpu.seconds_by_op["aten::_scaled_mm"] > 0.0
    assert ("aten::constant_pad_nd" in gpu.seconds_by_op) == bool(device_of)


@pytest.mark.in_turn
@pytest.mark.slow
def test_layers_steps_and_memory_of_a_known_device_are_projected_within_what_is_wanted(at_once, tmp_path):
    options = argparse.Namespace(hardware="", sweep="full", out=tmp_path, minutes=10.0)
    models = [load_model("llama3.1_8b"), load_model("mixtral_8x7b")]
    with simulated(at_once, known_device(), noise=NOISE):
        assert bench_gpu.run(options, CUDA, models) == 0
    facts = json.loads((tmp_path / "nvidia-h200.json").read_text())
    assert facts["hardware"] == "h200" and all(facts["holds"].values()), facts["median_errors"]
    plain = [row for row in facts["layers"] if row["name"].endswith("bf16")]
    assert len(plain) == 2 and all(abs(row["projected_s"] / row["measured_s"] - 1.0) < 0.04 for row in plain)
    assert facts["median_errors"]["step_with_measured_layers"] < 0.02
    assert [row["name"] for row in facts["steps"]] == ["llama3.1_8b, 4 layers", "mixtral_8x7b, 4 layers"]
