# ruff: noqa: E501 - printed lines stand whole
"""Lines of several releases of each framework, in the form in which their public sources print them: what is read."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.errors import InputError
from primus_search.learn.logged_run import with_assumptions
from primus_search.learn.readers import read_log
from primus_search.learn.reading import LogReading, MemoryKind
from primus_search.learn.transcript import GIB, MIB


def read(tmp_path: Path, text: str) -> LogReading:
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    return read_log(path)


def iterations(line: str, first: int = 1, last: int = 12) -> str:
    """A line of every iteration, `{n}` its number."""
    return "\n".join(line.replace("{n}", str(n)) for n in range(first, last + 1)) + "\n"


MEGATRON_2020 = (
    """using world size: 8 and model-parallel size: 2
------------------------ arguments ------------------------
  batch_size ...................... 4
  num_layers ...................... 24
  hidden_size ..................... 1024
  seq_length ...................... 1024
  log_interval .................... 100
-------------------- end of arguments ---------------------
"""
    + iterations(" iteration     {n}00/  320000 | elapsed time per iteration (ms): 528.9 | learning rate 1.5E-04 |")
    + (
        "after 100 iterations memory (MB) | allocated: 4352.0 | max allocated: 7120.5 | cached: 7900.0 | max cached: 8100.0\n"
    )
)
MINDSPEED = """using world size: 32, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 8, \
pipeline-model-parallel size: 2
  context_parallel_size ........... 1
  expert_model_parallel_size ...... 1
  micro_batch_size ................ 2
  seq_length ...................... 2048
""" + iterations(
    " iteration  {n}/50000 | consumed samples: 512 | elapsed time per iteration (ms):  52728.1 | learning rate: 1.5E-05"
    " | gloabl batch size:  512 | lm loss:  1.37E+00 | samples per second: 9.710 | TFLOPs: 167.52 |"
)
CORE_04 = """using world size: 16, data-parallel-size: 8, tensor-model-parallel size: 2, pipeline-model-parallel size: 1
  expert_parallel ................. True
  num_experts ..................... 8
  micro_batch_size ................ 1
  seq_length ...................... 4096
""" + iterations(
    " iteration  {n}/ 50 | elapsed time per iteration (ms): 900.0 | global batch size:    64 | lm loss: 1.0 |"
)
BRIDGE = (
    """megatron.bridge.training.config
model:
  context_parallel_size: 1
  expert_model_parallel_size: 8
  pipeline_model_parallel_size: 1
  seq_length: 4096
  tensor_model_parallel_size: 2
data_parallel_size: 4
train:
  global_batch_size: 512
  micro_batch_size: 1
"""
    + iterations(
        "Step Time : 4.65s GPU utilization: 592.5TFLOP/s/GPU\n [2025-10-06 03:27:07] iteration       {n}/      12 | consumed"
        " samples: 5120 | elapsed time per iteration (ms): 4647.8 | global batch size:   512 | lm loss: 9.7E+00 |"
    )
    + (
        "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 51.072 | mem-max-allocated-gigabytes: 194.41 |"
        " mem-max-active-gigabytes: 195.46 | mem-max-reserved-gigabytes: 216.89 | mem-alloc-retires: 0\n"
    )
)
NEMO_1 = """[NeMo I 2024-05-01 10:00:00 megatron_init:309] All context parallel group ranks: [[0], [1], [2], [3]]
[NeMo I 2024-05-01 10:00:00 megatron_init:320] All tensor model parallel group ranks: [[0, 1], [2, 3]]
[NeMo I 2024-05-01 10:00:00 megatron_init:330] All pipeline model parallel group ranks: [[0], [1], [2], [3]]
Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4
""" + iterations(
    "Epoch 0: :   1%|1| {n}/300 [10:48<00:00, v_num=3-40, reduced_train_loss=0.0172, global_step={n}.00,"
    " consumed_samples=25600.0, train_step_timing in s=3.130]"
)
NEMO_2 = iterations(
    "Training epoch 0, iteration {n}/249 | lr: 1.961e-06 | global_batch_size: 8 | global_step: {n} |"
    " reduced_train_loss: 1.315 | train_step_timing in s: 1.505 | consumed_samples: 16"
)
TITAN_2024 = """[rank0]:2024-07-01 10:00:00,100 - root - INFO - Building 2-D device mesh with ['dp', 'tp'], [4, 2]
[rank0]:2024-07-01 10:00:00,100 - root - INFO - GPU capacity: NVIDIA H100 (0) with 95.04GiB memory
""" + iterations(
    "[rank0]:2024-07-01 10:01:{n}0,500 - root - INFO - step: {n}  loss:  7.8774  memory: 0.44GiB(0.47%)  wps: 9,458  "
    "mfu: 1.50%",
    last=5,
)
TITAN_EP = """[titan] 2025-08-01 10:00:00,100 - root - INFO - Building 2-D device mesh with \
['dp_shard_mod_ep', 'dp_shard_in_ep'], [2, 4]
[titan] 2025-08-01 10:00:00,200 - root - INFO - Float8 training active with recipe rowwise
[titan] 2025-08-01 10:00:00,200 - root - INFO - Applied selective activation checkpointing to the model
[titan] 2025-08-01 10:00:00,300 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, \
gradient accumulation steps 1, sequence length 8192, total steps 1 (warmup 200)
""" + iterations(
    "[titan] 2025-08-01 10:01:{n}0,500 - root - INFO - step: {n}  loss:  7.87  grad_norm: 1.0  memory:  0.00GiB(0.00%)  "
    "tps: 9,458  tflops: 57.2",
    last=5,
)
MAXTEXT_2023 = iterations("completed step: {n}, seconds: 2.167, TFLOP/s: 36.722, loss: 2.191")
MAXTEXT = (
    """Config param ici_tensor_parallelism: 2
Config param dcn_tensor_parallelism: 1
Config param ici_tensor_transpose_parallelism: 4
Config param dcn_tensor_transpose_parallelism: 1
Config param ici_sequence_parallelism: 2
Config param dcn_sequence_parallelism: 1
Config param ici_context_parallelism: 1
Config param dcn_context_parallelism: 1
"""
    + iterations(
        "I0811 21:55:06.119312 138304841739136 metric_logger.py:226] completed step: {n}, seconds: 0.435, TFLOP/s/device: "
        "236.448, Tokens/s/device: 9423.869, total_weights: 30708, loss: nan",
        last=1,
    )
    + iterations(
        "I0811 21:56:{n}.119312 138304841739136 metric_logger.py:226] completed step: {n}, seconds: 1.0,", 10, 20
    )
)
DEEPSPEED = iterations(
    "[2024-03-07 15:27:{n},646] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec="
    "58.73, CurrSamplesPerSec=64.0, MemAllocated=6.01GB, MaxMemAllocated=19.52GB",
    10,
    20,
).replace(
    "[2024", "[2024-03-07 15:26:00,000] [INFO] [config.py:987:print]   train_batch_size ............. 128\n[2024", 1
)

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron-2020", MEGATRON_2020, {"tp": 2, "pp": 1, "gpus": 8, "micro_batch_size": 4, "global_batch_size": 16}),
    ("megatron-2020", MEGATRON_2020, {"step_s": 0.5289, "peak_memory_bytes": 7120.5 * MIB, "seq_length": 1024}),
    ("mindspeed", MINDSPEED, {"step_s": 52.7281, "global_batch_size": 512, "gpus": 32, "tp": 8, "pp": 2}),
    ("core-0.4", CORE_04, {"ep": None, "step_s": 0.9, "tp": 2, "pp": 1, "gpus": 16}),
    ("bridge", BRIDGE, {"step_s": 4.6478, "gpus": 8, "ep": 8, "peak_memory_bytes": 194.41e9, "micro_batch_size": 1}),
    ("nemo-1", NEMO_1, {"step_s": 3.13, "tp": 2, "pp": 1, "cp": 1, "gpus": 4}),
    ("nemo-2", NEMO_2, {"step_s": 1.505, "global_batch_size": 8, "tp": None, "gpus": None}),
    ("titan-2024", TITAN_2024, {"step_s": 10.0, "tp": 2, "gpus": 8, "peak_memory_bytes": 0.44 * GIB}),
    ("titan-ep", TITAN_EP, {"step_s": 10.0, "ep": 4, "gpus": 8, "peak_memory_bytes": None, "seq_length": 8192}),
    ("maxtext-2023", MAXTEXT_2023, {"step_s": 2.167, "tp": None}),
    ("maxtext", MAXTEXT, {"step_s": 1.0, "tp": 8, "cp": 2}),
    ("deepspeed", DEEPSPEED, {"step_s": 2.0, "global_batch_size": 128, "peak_memory_bytes": 19.52 * GIB}),
]


@pytest.mark.parametrize(("name", "text", "facts"), CASES, ids=[name for name, _, _ in CASES])
def test_a_release_is_read(tmp_path: Path, name: str, text: str, facts: dict[str, Any]) -> None:
    reading = read(tmp_path, text)
    assert {field: getattr(reading, field) for field in facts} == pytest.approx(facts)


def test_what_a_release_does_not_print_is_not_assumed_where_it_can_be_otherwise(tmp_path: Path) -> None:
    assert "ep" not in read(tmp_path, CORE_04).assumed
    assert "ep" not in read(tmp_path, TITAN_EP).assumed
    assert read(tmp_path, TITAN_2024).assumed["ep"].value == 1
    assert read(tmp_path, TITAN_EP).settings == {"activation_checkpointing": "selective", "fp8": "float8"}
    assert read(tmp_path, BRIDGE).memory_kind is MemoryKind.ALLOCATED


def test_a_second_run_of_another_layout_in_one_file_counts_alone(tmp_path: Path) -> None:
    head = "------------------------ arguments ------------------------\n  tensor_model_parallel_size ... {tp}\n"
    lines = iterations(" iteration  {n}/ 50 | elapsed time per iteration (ms): {ms} | global batch size:    64 |")
    one, two = (head.replace("{tp}", tp) + lines.replace("{ms}", ms) for tp, ms in (("1", "900.0"), ("2", "500.0")))
    reading = read(tmp_path, one + two)
    assert (reading.tp, reading.step_s) == (2, 0.5)
    assert any("another layout" in note for note in reading.not_modelled)
    assert read(tmp_path, one + one.replace("900.0", "910.0")).step_s == pytest.approx(0.905)


def test_settings_that_no_line_prints_are_assumptions(tmp_path: Path) -> None:
    reading = with_assumptions(read(tmp_path, MINDSPEED))
    assert {"vpp", "recompute", "fp8", "sharding", "sequence_parallel"} <= reading.assumed.keys()
    assert reading.assumed["recompute"].value == "none"
    printed = with_assumptions(read(tmp_path, TITAN_EP))
    assert printed.assumed.keys().isdisjoint({"recompute", "fp8", "sharding", "vpp", "sequence_parallel"})


def test_a_trainers_summary_gives_the_mean_step_where_there_is_no_progress_bar(tmp_path: Path) -> None:
    lines = "{'loss': 1.0, 'grad_norm': 2.1, 'learning_rate': 0.0, 'epoch': 2.01}\n" * 5
    summary = "{'train_runtime': %s, 'train_samples_per_second': 33.5, 'train_steps_per_second': %s, 'epoch': 3.0}\n"
    reading = read(tmp_path, lines + summary % ("1414.6207", "0.25"))
    assert (reading.step_s, reading.framework) == (4.0, "hf-trainer")
    assert any("mean" in note for note in reading.not_modelled)
    with pytest.raises(InputError, match="no complete iteration line"):
        read(tmp_path, lines + summary % ("'2115'", "'0.005'"))
