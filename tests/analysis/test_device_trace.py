"""Traces of profilers are read into the parts that they hold, whatever wrote them; damaged ones say what is wrong."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.analysis.slow_jobs import device_trace
from primus_search.analysis.slow_jobs.device_trace import DeviceWork, kind_of, read_trace
from primus_search.base.errors import InputError
from primus_search.cli import app

KERNELS = [
    # name, begin, microseconds: two streams, the exchange half hidden, a gap of 20 behind it
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 0, 100),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", 100, 50),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 120, 60),
    ("void at::native::vectorized_elementwise_kernel<4>", 200, 30),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", 230, 70),
]
PARTS = {"gemm_s": 170e-6, "attention_s": 50e-6, "other_s": 30e-6, "exchange_s": 30e-6, "idle_s": 20e-6,
         "hidden_exchange_s": 30e-6}  # fmt: skip


def kineto(path: Path, kernels: list[tuple[str, float, float]] = KERNELS, steps: int = 0) -> Path:
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 9.0, "pid": 1, "tid": 1}]
    events += [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1e9 + begin, "dur": lasts, "pid": 0, "tid": 7}
        for name, begin, lasts in kernels
    ]
    for number in range(steps):
        events.append({"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number}", "pid": 0, "tid": 7,
                       "ts": 1e9 + number * 400, "dur": 400})  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def parts(path: Path) -> dict[str, float]:
    step = read_trace(path)
    return {name: getattr(step, name) for name in PARTS}


def test_a_packed_trace_gives_the_same_parts(tmp_path: Path) -> None:
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(kineto(tmp_path / "kineto.json").read_bytes()))
    for path in (tmp_path / "kineto.json", packed):
        assert parts(path) == pytest.approx(PARTS, rel=1e-6, abs=1e-9), path.name
        assert read_trace(path).total_s == pytest.approx(300e-6)


def test_steps_that_the_trace_marks_are_averaged_and_wait_until_they_end(tmp_path: Path) -> None:
    twice = [*KERNELS, *((name, begin + 400, lasts) for name, begin, lasts in KERNELS)]
    step = read_trace(kineto(tmp_path / "two.json", twice, steps=2))
    assert step.steps == 2
    assert step.total_s == pytest.approx(400e-6)
    assert step.gemm_s == pytest.approx(PARTS["gemm_s"])
    assert step.idle_s == pytest.approx(120e-6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", DeviceWork.GEMM),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>",
            DeviceWork.GEMM,
        ),
        ("aten::linear", DeviceWork.OTHER),
        ("aten::addmm", DeviceWork.GEMM),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128", DeviceWork.ATTENTION),
        ("void ck_tile::kentry<FmhaFwdKernel<...>>", DeviceWork.ATTENTION),
        ("rcclDevKernel_Generic_1(ncclDevKernelArgsStorage)", DeviceWork.EXCHANGE),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>", DeviceWork.EXCHANGE),
        ("void at::native::reduce_kernel<512, 1>", DeviceWork.OTHER),
        ("multi_tensor_apply_kernel<AdamFunctor>", DeviceWork.OTHER),
    ],
)
def test_kernels_are_known_by_name(name: str, kind: DeviceWork) -> None:
    assert kind_of(name) is kind


def test_a_training_on_the_cpu_is_read_within_2_percent_of_its_parts(tmp_path: Path) -> None:
    """torch's own sums over the events of the very profile that the trace was written from."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 2, 512, batch_first=True, dropout=0.0)
    optimizer, x = torch.optim.SGD(layer.parameters(), lr=1e-3), torch.randn(2, 128, 128)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2, repeat=1)
    ) as profiler:
        for _ in range(3):
            layer(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    path = tmp_path / "cpu.json.gz"
    profiler.export_chrome_trace(str(path))
    sums = {one.key: one.cpu_time_total / 1e6 / 2 for one in profiler.key_averages()}
    spans = [one.time_range for one in profiler.events() if one.name.startswith("ProfilerStep")]
    step = read_trace(path)
    outermost = "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    assert (step.steps, step.ran_on, step.exchange_s) == (2, "cpu", 0.0)
    slack = 0.02 * step.total_s
    whole_us = max(span.end for span in spans) - min(span.start for span in spans)  # with what lies between two steps
    assert step.total_s == pytest.approx(whole_us / 1e6 / 2, abs=slack)
    assert step.gemm_s == pytest.approx(sums.get("aten::mm", 0.0) + sums.get("aten::addmm", 0.0), abs=slack)
    assert step.attention_s == pytest.approx(sum(sums[name] for name in outermost), abs=slack)
    assert step.idle_s >= 0.0


BROKEN = {
    "cut.json": (b'{"traceEvents": [{"ph": "X", "cat"', "is no complete JSON"),
    "deep.json": (b"[" * 100_000, "is no complete JSON"),
    "list.json": (b'{"events": []}', "has no list of traceEvents"),
    "empty.json": (b'{"traceEvents": []}', "holds no kernels and no operators"),
    "time.json": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": NaN}]}', "has no time"),
    "text.json": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1}]}', "has no time"),
    "back.json": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}', "has no time"),
    "cut.json.gz": (gzip.compress(b'{"traceEvents": []}' * 99)[:-20], "is a gzip file that ends too early"),
    "bad.json.gz": (b"\x1f\x8b" + b"x" * 40, "is a damaged gzip file"),
    "other.csv": (b"a,b\n1,2\n", "is no trace in JSON"),
    "bytes": (b"\xff\xfe\x00\x01" * 9, "is not UTF-8 text"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_trace_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert message in str(caught.value)


def test_a_trace_that_unpacks_to_too_much_is_refused_while_it_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_trace, "LIMIT", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (1 << 26)))
    with pytest.raises(InputError) as caught:
        read_trace(tmp_path / "bomb.json.gz")
    assert "unpacks to more than 1,048,576 bytes" in str(caught.value)


def test_project_shows_a_traced_step_beside_the_projected_one(tmp_path: Path) -> None:
    command = ["project", "--model", "llama3_8b", "--hardware", "mi300x", "--nodes", "1", "--set", "tp=2", "--set",
               "pp=2", "--set", "recompute={full: all}", "--against", str(kineto(tmp_path / "step.json"))]  # fmt: skip
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    for step in (found["trace"]["projected"], found["trace"]["traced"]):
        total = step.pop("total_s")
        assert sum(step.values()) == pytest.approx(total)
        assert min(step.values()) >= 0.0
    assert total == pytest.approx(300e-6)
    projected = found["trace"]["projected"]
    whole = found["step"]
    assert sum(projected.values()) == pytest.approx(whole["total_s"])
    assert 0.5 * whole["mlp_s"] < projected["gemm_s"] < whole["total_s"]
    assert projected["exchange_s"] == pytest.approx(whole["tensor_comm_s"] + whole["gradient_comm_s"])
    shown = CliRunner().invoke(app, command)
    assert "step by kernels" in shown.stdout
    assert "GEMM" in shown.stdout
