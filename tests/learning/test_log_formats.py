"""The contract of every registered log format: a new one inherits it by a written log in `written_logs.LOGS`."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.learning.logged_run import measurement_of
from primus_search.learning.readers import formats, read_log
from primus_search.learning.reading import Death, LogReading, MemoryKind, StepLine, steady
from tests.support.written_logs import LOGS, STEP_S

NAMES = [one.name for one in formats() if one.marks]
LAYOUT = {"tp": 2, "pp": 2, "cp": 1, "ep": 1, "micro_batch_size": 1, "seq_length": 4096}
NOT_PRINTED = {
    "megatron-deepspeed": {"cp"},
    "gpt-neox": {"cp", "ep"},
    "maxtext": {"micro_batch_size"},
    "deepspeed": {"tp", "pp", "cp", "ep", "seq_length"},
    "hf-trainer": {"tp", "pp", "cp", "ep", "seq_length"},
}
"""Facts that the written log of a format does not state."""


def read(tmp_path: Path, lines: list[str], framework: str | None = None) -> LogReading:
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return read_log(path, framework)


def test_every_format_has_a_written_log() -> None:
    assert sorted(LOGS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_is_recognised_and_read(tmp_path: Path, name: str) -> None:
    reading = read(tmp_path, LOGS[name]())
    assert reading.framework == name
    assert reading.step_s == pytest.approx(STEP_S, rel=0.005)
    assert (reading.gpus, reading.global_batch_size) == (16, 64)
    for field, value in LAYOUT.items():
        expected = None if field in NOT_PRINTED.get(name, ()) else value
        assert getattr(reading, field) == expected, field
    assert reading.noise is not None and reading.noise < 0.01
    assert reading.died is None


@pytest.mark.parametrize("name", NAMES)
def test_the_reading_does_not_depend_on_line_ends_and_colours(tmp_path: Path, name: str) -> None:
    plain = read(tmp_path, LOGS[name]())
    coloured = [f"\x1b[1m{line}\x1b[0m\r" for line in LOGS[name]()]
    assert read(tmp_path, coloured) == plain


@pytest.mark.parametrize("name", NAMES)
def test_what_other_ranks_print_between_lines_changes_nothing(tmp_path: Path, name: str) -> None:
    plain = read(tmp_path, LOGS[name]())
    mixed = []
    for number, line in enumerate(LOGS[name]()):
        mixed += [line, f"[rank{number % 8}]: NCCL INFO Channel {number:02d} : 3[3] -> 2[2] via P2P/CUMEM"]
    assert read(tmp_path, mixed) == plain


@pytest.mark.parametrize("name", NAMES)
def test_out_of_memory_is_a_reading(tmp_path: Path, name: str) -> None:
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    reading = read(tmp_path, [*LOGS[name](), message], name)
    assert reading.died is Death.OUT_OF_MEMORY


def test_a_run_that_died_before_its_first_iteration_is_a_reading(tmp_path: Path) -> None:
    lines = [line for line in LOGS["megatron-lm"]() if "elapsed" not in line]
    reading = read(tmp_path, [*lines, "torch.OutOfMemoryError: HIP out of memory."], "megatron-lm")
    assert (reading.died, reading.step_s, reading.tp) == (Death.OUT_OF_MEMORY, None, 2)


def test_a_log_that_dies_before_its_first_iteration_is_recognised(tmp_path: Path) -> None:
    dump = [line for line in LOGS["megatron-lm"]() if "elapsed" not in line and "iteration" not in line]
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB."
    reading = read(tmp_path, [*dump, "-------- end of arguments ---------", message])
    assert (reading.framework, reading.died, reading.step_s) == ("megatron-lm", Death.OUT_OF_MEMORY, None)
    titan = "[rank0]:[titan] 2025-07-21 15:57:41,774 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]"
    reading = read(tmp_path, [titan, message])
    assert (reading.framework, reading.died, reading.gpus) == ("torchtitan", Death.OUT_OF_MEMORY, 8)


@pytest.mark.parametrize("name", NAMES)
def test_what_ran_out_of_memory_measures_no_rate(tmp_path: Path, name: str) -> None:
    measured = measurement_of(read(tmp_path, [*LOGS[name](), "torch.OutOfMemoryError: HIP out of memory."], name))
    assert (measured.ending, math.isnan(measured.step_s), math.isnan(measured.tokens_per_s_per_gpu)) == (
        "out_of_memory",
        True,
        True,
    )


def test_memory_is_the_largest_of_the_ranks_in_bytes(tmp_path: Path) -> None:
    reading = read(tmp_path, LOGS["megatron-lm"]())
    assert reading.peak_memory_bytes == 41000.5 * 2**20
    assert reading.memory_kind is MemoryKind.ALLOCATED
    assert read(tmp_path, LOGS["primus"]()).memory_kind is MemoryKind.DEVICE
    assert read(tmp_path, LOGS["torchtitan"]()).peak_memory_bytes == 50.0 * 2**30


def test_current_values_are_taken_not_averages(tmp_path: Path) -> None:
    assert read(tmp_path, LOGS["primus"]()).tokens_per_s_per_gpu == pytest.approx(16384 / STEP_S, rel=0.005)


def test_what_a_release_does_not_print_is_assumed_by_name(tmp_path: Path) -> None:
    reading = read(tmp_path, LOGS["megatron-deepspeed"]())
    assert reading.cp is None
    assert reading.assumed["cp"].value == 1


def test_lines_after_an_evaluation_are_left_out(tmp_path: Path) -> None:
    lines = LOGS["megatron-lm"]()
    slow = []
    for line in lines:
        if any(f"iteration {n:8d}/" in line for n in (6, 9, 12, 15)):
            slow.append(" validation loss at iteration 5 | lm loss value: 9.0 |")
            line = line.replace("(ms): 2", "(ms): 2000")
        slow.append(line)
    assert read(tmp_path, slow).step_s == pytest.approx(STEP_S, rel=0.005)


def test_a_batch_that_ramps_up_counts_at_its_end(tmp_path: Path) -> None:
    lines = LOGS["megatron-lm"]()
    early = [line.replace("global batch size:    64", "global batch size:    16") for line in lines[:-6]]
    late = [line.replace("(ms): 2", "(ms): 9") for line in lines[-6:]]
    reading = read(tmp_path, early + late)
    assert reading.global_batch_size == 64
    assert reading.step_s == pytest.approx(9.5, rel=0.01)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"just words\n", "is no training log that is known here"),
        (b"elapsed time per iteration (ms): 5.0 iteration 3\n", "holds no complete iteration line"),
        (bytes(range(256)) * 64, "is no training log that is known here"),
    ],
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_log(path)


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log format is called 'megatorn'; known: deepspeed, gpt-neox, hf-trainer"):
        read(tmp_path, LOGS["primus"](), "megatorn")


def test_a_compressed_log_reads_the_same(tmp_path: Path) -> None:
    import gzip

    text = "\n".join(LOGS["primus"]()) + "\n"
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    plain = read(tmp_path, LOGS["primus"]())
    assert read_log(path).step_s == plain.step_s


def test_event_files_of_tensorboard_are_read(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    for name, value in {"tensor_model_parallel_size": 2, "world_size": 16, "seq_length": 4096}.items():
        writer.add_text(name, str(value), 0)
    for iteration in range(1, 21):
        writer.add_scalar("batch-size", 64, iteration)
        writer.add_scalar("iteration-time", STEP_S if iteration > 2 else 30.0, iteration)
        writer.add_scalar("mem-max-allocated-bytes", 2.0**35, iteration)
    writer.close()
    (path,) = tmp_path.glob("events*")
    reading = read_log(path)
    assert (reading.framework, reading.step_s, reading.tp, reading.gpus) == ("tensorboard", STEP_S, 2, 16)
    assert (reading.global_batch_size, reading.peak_memory_bytes) == (64, 2.0**35)


def test_a_trainer_state_gives_the_mean_step_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"train_batch_size": 2, "log_history": [{"step": 9, "train_steps_per_second": 0.4}]}')
    reading = read_log(path)
    assert (reading.step_s, reading.micro_batch_size) == (2.5, 2)
    path.write_text('{"log_history": [{"step": 9, "loss": 0.4}]}')
    with pytest.raises(InputError, match="states no time"):
        read_log(path)


def variant(name: str, tmp_path: Path, *changes: tuple[str, str]) -> LogReading:
    """The written log of a format with words of another release."""
    lines = LOGS[name]()
    for old, new in changes:
        assert any(old in line for line in lines), old
        lines = [line.replace(old, new) for line in lines]
    return read(tmp_path, lines)


def test_virtual_stages_have_two_names(tmp_path: Path) -> None:
    lines = [line for line in LOGS["megatron-lm"]() if "virtual" not in line]
    assert read(tmp_path, ["  num_virtual_stages_per_pipeline_rank ..... 4", *lines]).vpp == 4


def test_releases_before_pipelines_print_the_batch_of_a_rank(tmp_path: Path) -> None:
    lines = [line for line in LOGS["megatron-lm"]() if "parallel" not in line and "_batch_size" not in line]
    lines = [line.replace("global batch size:    64 |", "") for line in lines]
    head = ["using world size: 16 and model-parallel size: 2", "  batch_size ............. 8"]
    reading = read(tmp_path, [*head, *lines])
    assert (reading.tp, reading.pp, reading.micro_batch_size, reading.global_batch_size) == (2, 1, 8, 64)
    assert reading.step_s == pytest.approx(STEP_S, rel=0.005)


def test_step_timing_of_nemo_without_its_unit(tmp_path: Path) -> None:
    assert variant("nemo", tmp_path, ("timing in s: ", "timing=")).step_s == pytest.approx(STEP_S, rel=0.005)


def test_lines_of_deepspeeds_pipeline_engine(tmp_path: Path) -> None:
    head = [line for line in LOGS["deepspeed"]() if "SamplesPerSec" not in line]
    lines = [f"steps: {n} loss: 5.6543 iter time (s): {STEP_S} samples/sec: 25.600" for n in range(10, 101, 10)]
    reading = read(tmp_path, head + lines)
    assert (reading.framework, reading.step_s, reading.pp) == ("deepspeed", STEP_S, None)
    assert (reading.gpus, reading.global_batch_size) == (16, 64)


def test_a_finished_trainer_state_gives_more_digits_than_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    record = '{"step": 100, "train_runtime": 3187.5, "train_steps_per_second": 0.031}'
    path.write_text('{"log_history": [' + record + "]}")
    assert read_log(path).step_s == 31.875


def test_slow_last_steps_do_not_decide_the_steady_step() -> None:
    """Ten steps whose last three were disturbed: the larger group counts, whatever marks the disturbance."""
    seconds = [9.0, 2.1, 2.1, 2.07, 2.08, 2.07, 2.07, 3.0, 3.1, 2.9]
    lines = [StepLine(iteration=n, seconds=s, is_disturbed=4 <= n <= 7) for n, s in enumerate(seconds, start=1)]
    found = steady(lines)
    assert found is not None
    assert found.step_s == pytest.approx(2.07, rel=0.01)
    times = [9.0, 2.0, 2.0, *[2.07] * 3, *[3.0] * 4]
    slower = steady([replace(line, is_disturbed=False, seconds=s) for line, s in zip(lines, times, strict=True)])
    assert slower is not None and slower.step_s == pytest.approx(3.0)


def test_a_pasted_log_keeps_its_first_lines() -> None:
    lines = [StepLine(iteration=n, seconds=1.0 + n % 2 / 100.0) for n in range(5001, 5006)]
    pasted, resumed = steady(lines, is_cut=True), steady(lines)
    assert pasted is not None and len(pasted.lines) == 5
    assert resumed is not None and len(resumed.lines) == 2
    assert steady([replace(line, iteration=line.iteration - 5000) for line in lines], is_cut=True) == replace(
        resumed, lines=tuple(replace(line, iteration=line.iteration - 5000) for line in resumed.lines)
    )
