"""What a log prints of its device is used: memory other than its file's, the world of a rank, and what it left out."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.learning.collected_runs import read_files
from primus_search.learning.readers import read_log

HEAD = "[20260101 10:00:00][rank-1/16][INFO ] CUDA capacity: AMD Instinct MI350X with {}GiB memory\n"
STEP = "[20260101 10:00:31][rank-1/16][INFO ] step:  {}  loss: 12.2  memory: 140.10GiB(95.29%)  tps: 530  tflops: 30\n"
TITAN = """\
[rank0]:[titan] 2026-01-02 20:23:02,470 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
[rank0]:[titan] 2026-01-02 20:23:02,471 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]
{}[rank0]:[titan] 2026-01-02 20:23:48,470 - root - INFO - step:  1  memory: 40.10GiB(50.70%)  tps: 310  tflops: 3.79
[rank0]:[titan] 2026-01-02 20:24:06,144 - root - INFO - step: 10  memory: 61.40GiB(77.62%)  tps: 9,100  tflops: 158.00
"""
SAMPLES = (
    "[rank0]:[titan] 2026-01-02 20:23:03,000 - root - INFO - "
    "local batch size 1, global batch size 8, sequence length 8192\n"
)
STARTED = "[rank0]:[titan] 2026-01-02 20:23:09,000 - root - INFO - Training starts at step 1\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("gib", [251.98, 191.45])
def test_memory_that_a_log_prints_is_said(tmp_path: Path, gib: float) -> None:
    log = written(tmp_path, HEAD.format(gib) + STEP.format(1))
    shown = CliRunner().invoke(app, ["learn", str(log), "--hardware", "mi350x", "--dry-run"]).stdout
    assert f"device memory {gib:.2f} GiB" in shown and f"--set hardware.hbm_GiB={gib:.2f}" in shown
    reading = read_log(log)
    assert (reading.gpus, reading.device_bytes) == (16, gib * 2**30)


def test_memory_as_the_file_has_it_is_not_said(tmp_path: Path) -> None:
    log = written(tmp_path, HEAD.format(287.9) + STEP.format(1))
    shown = CliRunner().invoke(app, ["learn", str(log), "--hardware", "mi350x", "--dry-run"]).stdout
    assert "device memory" not in shown


def test_a_projection_of_a_log_has_the_memory_that_it_prints(tmp_path: Path) -> None:
    text = TITAN.format(SAMPLES + STARTED).replace("79.10GiB", "63.00GiB")
    words = ["project", str(written(tmp_path, text)), "--hardware", "h100", "--model", "llama3.1_8b", "--nodes", "1"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    room = found["memory"]["total_bytes"] + found["headroom_bytes"]
    assert room == pytest.approx(63.0 * 2**30, rel=0.001)
    assert any("device memory 63.00 GiB" in note for note in found["notes"])


def test_a_log_that_is_cut_before_its_model_prints_no_recomputation(tmp_path: Path) -> None:
    (cut,) = read_files([written(tmp_path, TITAN.format(SAMPLES))]).runs
    assert "activation_checkpoint.mode" not in cut.settings and "compile.enable" not in cut.settings
    assert "recompute" in cut.assumed
    (whole,) = read_files([written(tmp_path, TITAN.format(SAMPLES + STARTED))]).runs
    assert (whole.settings["activation_checkpoint.mode"], whole.settings["compile.enable"]) == ("none", False)
    assert "recompute" not in whole.assumed
