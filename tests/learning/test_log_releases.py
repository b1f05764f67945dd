# ruff: noqa: E501 - printed lines stand whole
"""Lines of several releases of each framework, in the form in which their public sources print them: what is read."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.base.units import GIB, MIB
from primus_search.learning.logged_job import with_assumptions
from primus_search.learning.readers import read_log
from primus_search.learning.reading import LogReading, MemoryKind


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

# AMD-AGI/Primus, training log of release 26.5 and of 2025-12
PRIMUS_26 = iterations(
    "[20260702 09:12:08][rank-7/8][INFO ] [-----trainer.py:2560] : iteration {n}/ 5000 | consumed samples: 16128 | elapsed"
    " time per iteration (ms): 100.0/101.0 | compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1) | tokens/s/GPU inst/harmonic"
    " mean: 9640.7/9629.8 | global batch size: 32 | lm loss: 6.5E-03 |"
)
PRIMUS_2025 = iterations(
    "[20251202 09:12:08][rank-7/8][INFO ] [-----trainer.py:2560] : iteration {n}/ 5000 | elapsed time per iteration (ms):"
    " 13372.8/13364.7 | hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% | throughput per GPU"
    " (TFLOP/s/GPU): 567.6/568.0 | tokens per GPU (tokens/s/GPU): 9801.4/9807.3 | global batch size: 128 |"
)
# a fork of Megatron-LM of 2026 under srun --label: other words for the rate
FORK = iterations(
    "3:  [2026-05-29 03:52:45] iteration {n} /     300 | consumed samples: 307200 | elapsed time per iteration (ms): 4000.0 |"
    " eta: 0:00:00 | tokens/sec/gpu: 8000.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | global batch size:  1024 |"
)
# a Megatron-DeepSpeed fork of 2023 whose lines a benchmark's parser quotes
TGS_AT_THE_END = iterations(
    "2023-10-26 21:31:16,318 [Rank 15]:  iteration  {n}/  20 | consumed samples:  20 | elapsed time per iteration (ms):"
    " 3874.0 | global batch size:    16 | lm loss: 8.7E+00 | TFLOPs: 320.33 | tokens-per-second-per-gpu: 2114.61 |"
)
# Megatron-LM for Iluvatar devices (Deep-Spark)
PER_DEVICE = iterations(
    " iteration {n}/ 100 | consumed samples: 640 | elapsed time per iteration (ms): 4000.0 | tokens per second per device:"
    " 8192.00 | throughput per GPU (TFLOP/s/GPU): 80.1 | learning rate: 1.0E-05 | global batch size:    64 | lm loss: 1.0 |"
)
# epfLLM/Megatron-LLM issue 11
MEGATRON_LLM = iterations(
    " iteration   12{n}/  250000 | consumed samples: 124928 | elapsed time per iteration (ms): 86545.2 | learning rate:"
    " 9.150E-06 | global batch size:  1024 | lm loss: 2.5E+00 | loss scale: 1.0 | number of nan iterations:   0 |"
)
# EleutherAI/gpt-neox, deepspeedai/DeepSpeed issue 3742
NEOX = iterations(
    "[2023-07-25 21:03:17,269] [INFO] [timer.py:215:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec="
    "7.8, CurrSamplesPerSec=8.0, MemAllocated=59.65GB, MaxMemAllocated=63.31GB\n samples/sec: 7.799 | iteration  {n}/   10000"
    " | elapsed time per iteration (ms): 4103.1 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.1E+01 |"
)
# pytorch/torchtitan pull 2389: every rank prints its line
TITAN_RANKS = "".join(
    f"[titan] 2026-02-24 19:46:{2 * n:02d},508 - root - INFO - step:  {n}  loss:  7.6  grad_norm: 26.6  memory: 66.91GiB(37.51%)"
    f"  tps: {rate}  tflops: 314.71  mfu: 13.99%\n"
    for n in range(1, 14)
    for rate in ("10,050", "10,050", "10,049")
)
# NVIDIA/NeMo-Framework-Launcher issue 55: a bar without step timing
NEMO_BAR = "".join(
    f"Epoch 0:   1%| | {n}/77225 [{41 * n // 60:02d}:{41 * n % 60:02d}<878:01:48, 41.36s/it, loss=3.1, v_num=,"
    f" reduced_train_loss=3.090, global_step={n}.0, consumed_samples=1.63e+6]\n"
    for n in range(1, 30)
)
# modelscope/ms-swift; a factory's JSON with another key for the step
SWIFT = "".join(
    "{'loss': 2.5, 'grad_norm': 17.1, 'learning_rate': 9.9e-05, 'memory(GiB)': 11.29, 'train_speed(iter/s)': 0.3, 'epoch': 0.0"
    f"2, 'global_step/max_steps': '{5 * n}/100', 'percentage': '1.00%', 'elapsed_time': '{24 * n // 60}m {24 * n % 60}s'}}\n"
    for n in range(1, 14)
)
SWIFT_STEPS = "".join(
    '{"loss": 1.8, "acc": 0.5, "grad_norm": 1.7, "memory(GiB)": 15.83, "train_speed(iter/s)": 0.2, "steps[global_step/max_s'
    f'teps]": "{n}/61", "percentage": "98.36%", "elapsed_time": "{30 * n // 60}m {30 * n % 60}s", "remaining_time": "4s"}}\n'
    for n in range(1, 14)
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
    ("primus-26", PRIMUS_26, {"step_s": 0.1, "tokens_per_s_per_gpu": 9640.7, "global_batch_size": 32}),
    (
        "primus-2025",
        PRIMUS_2025,
        {"step_s": 13.3728, "tokens_per_s_per_gpu": 9801.4, "peak_memory_bytes": 153.81 * GIB},
    ),
    ("primus-world", PRIMUS_2025, {"gpus": 8}),
    ("fork", FORK, {"step_s": 4.0, "tokens_per_s_per_gpu": 8000.5, "global_batch_size": 1024}),
    ("tgs-at-the-end", TGS_AT_THE_END, {"step_s": 3.874, "tokens_per_s_per_gpu": 2114.61, "global_batch_size": 16}),
    ("per-device", PER_DEVICE, {"step_s": 4.0, "tokens_per_s_per_gpu": 8192.0, "global_batch_size": 64}),
    ("megatron-llm", MEGATRON_LLM, {"step_s": 86.5452, "global_batch_size": 1024, "gpus": None, "tp": None}),
    ("neox", NEOX, {"step_s": 4.1031, "framework": "megatron-lm", "gpus": None}),
    ("titan-ranks", TITAN_RANKS, {"step_s": 2.0, "tokens_per_s_per_gpu": 10050.0, "peak_memory_bytes": 66.91 * GIB}),
    ("nemo-bar", NEMO_BAR, {"step_s": 41.0, "framework": "nemo", "gpus": None}),
    ("swift", SWIFT, {"step_s": 4.8, "peak_memory_bytes": 11.29 * GIB, "framework": "hf-trainer"}),
    ("swift-steps", SWIFT_STEPS, {"step_s": 30.0, "peak_memory_bytes": 15.83 * GIB, "framework": "hf-trainer"}),
]


@pytest.mark.parametrize(("name", "text", "facts"), CASES, ids=[name for name, _, _ in CASES])
def test_a_release_is_read(tmp_path: Path, name: str, text: str, facts: dict[str, Any]) -> None:
    reading = read(tmp_path, text)
    assert {field: getattr(reading, field) for field in facts} == pytest.approx(facts)


def test_what_a_release_does_not_print_is_not_assumed_where_it_can_be_otherwise(tmp_path: Path) -> None:
    assert "ep" not in read(tmp_path, CORE_04).assumed
    assert "ep" not in read(tmp_path, TITAN_EP).assumed
    assert read(tmp_path, TITAN_2024).assumed["ep"].value == 1
    settings = read(tmp_path, TITAN_EP).settings
    assert settings["activation_checkpoint.mode"] == "selective"
    assert settings["model.converters"] == ["quantize.linear.float8"]
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


REFUSED = [  # NVIDIA-NeMo/Speech pull 10128: NeMo 2 without step timing; deepspeedai/DeepSpeed issue 255 (2020): no batch
    (
        "nemo",
        iterations(
            "Training epoch 0, iteration {n}/9 | global_batch_size: 32 | global_step: 1 | reduced_train_loss: 9.7"
        ),
    ),
    ("deepspeed", iterations("[INFO 2020-06-08 05:26:19] 0/26{n}, SamplesPerSec=13.19749106827976")),
    # trainers without a reader: FMS FSDP, InternLM, NeMo Automodel
    ("known here", iterations("step: {n}\ncurrent step time: 2.5\ncurrent token per gpu per sec: 9800")),
    (
        "known here",
        iterations("INFO train.py:323 -- tflops=63.27,step={n},loss=11.6,tgs (tokens/gpu/second)=1424.64,lr=4e-07"),
    ),
    (
        "known here",
        iterations("2026-08-10 15:55:20 | INFO | root | step {n} | epoch 0 | mem 24.90 GiB | tps 11278.5(1409.8/gpu)"),
    ),
]


@pytest.mark.parametrize(("named", "text"), REFUSED)
def test_what_states_no_step_time_is_refused_by_name(tmp_path: Path, named: str, text: str) -> None:
    with pytest.raises(InputError, match=named):
        read(tmp_path, text)


def test_fast_steps_of_a_whole_second_clock_are_added_up(tmp_path: Path) -> None:
    """0.3 s a step, its clock cut to whole seconds: differences of single lines would be 0 or 1 s."""
    record = "{'loss': 2.5, 'grad_norm': 1.0, 'global_step/max_steps': '%d/900', 'elapsed_time': '%dm %ds'}\n"
    text = "".join(record % (n, int(0.3 * n) // 60, int(0.3 * n) % 60) for n in range(1, 900))
    assert read(tmp_path, text).step_s == pytest.approx(0.3, rel=0.05)
