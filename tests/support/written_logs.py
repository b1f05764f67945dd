"""Logs written in the formats of the frameworks, with known contents, for tests of the readers."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

STEP_S = 2.5
START = datetime(2026, 1, 2, 3, 4, 5, 250_000)
ITERATIONS = 20
WARM_UP_S = (30.0, 4.0, 2.7)


def times() -> Iterator[tuple[int, float, datetime]]:
    """Iteration, its seconds and the moment it ends: slow first ones, a jitter of 0.1 %."""
    moment = START
    for iteration in range(1, ITERATIONS + 1):
        seconds = WARM_UP_S[iteration - 1] if iteration <= 3 else STEP_S * (1.0 + 0.001 * (iteration % 3 - 1))
        moment += timedelta(seconds=seconds)
        yield iteration, seconds, moment


def _arguments(**more: object) -> list[str]:
    values = {
        "world_size": 16,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "seq_length": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 64,
        "num_layers": 32,
        "log_interval": 1,
    } | more
    return [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]


def _iteration(iteration: int, seconds: float, extra: str = "") -> str:
    return (
        f" iteration {iteration:8d}/{ITERATIONS:8d} | consumed samples: {64 * iteration:12d} |{extra} elapsed time per "
        f"iteration (ms): {1000 * seconds:.1f} | learning rate: 1.000E-05 | global batch size: {64:5d} | "
        f"lm loss: 9.9E+00 | number of nan iterations:   0 |"
    )


def _memory(rank: int, size: float) -> str:
    return (
        f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 9.0 | max allocated: {size} | "
        "reserved: 50000.0 | max reserved: 52000.0"
    )


def megatron_lm() -> list[str]:
    body = []
    for iteration, seconds, _ in times():
        body.append(_iteration(iteration, seconds))
        if iteration == 1:
            body += [_memory(0, 40000.5), _memory(8, 41000.5)]
    return ["using world size: 16, data-parallel size: 4, tensor-model-parallel size: 2", *_arguments(), *body]


def megatron_deepspeed() -> list[str]:
    lines = [_iteration(i, s, extra=f" consumed tokens: {i * 262144:12d} |") for i, s, _ in times()]
    return [*_arguments(zero_stage=1, deepspeed=True, context_parallel_size="-"), *lines]


def gpt_neox() -> list[str]:
    values = {
        "global_num_gpus": 16,
        "hidden_size": 4096,
        "model_parallel_size": 2,
        "num_attention_heads": 32,
        "num_layers": 32,
        "optimizer": {"type": "Adam"},
        "pipe_parallel_size": 2,
        "seq_length": 4096,
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization_stage": 1,
    }
    dump = [f"  {name} {'.' * (32 - len(name))} {value!s:.<28}updated" for name, value in values.items()]
    lines = [
        f" samples/sec: {64 / s:.3f} | iteration {i:8d}/  320000 | elapsed time per iteration (ms): {1000 * s:.1f} | "
        "learning rate: 1.0E-05 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.1E+01 |"
        for i, s, _ in times()
    ]
    return ["NeoXArgs.configure_distributed_args() using world size: 16 and model-parallel size: 2", *dump, *lines]


def primus() -> list[str]:
    head = "\x1b[36m[20260102 03:04:05]\x1b[0m[rank-15/16][DEBUG] [utils.py:382] : "
    lines = []
    for iteration, seconds, _ in times():
        line = _iteration(iteration, seconds).replace(
            f"(ms): {1000 * seconds:.1f} |",
            f"(ms): {1000 * seconds:.1f}/9999.9 | tokens per GPU (tokens/s/GPU): {16384 / seconds:.1f}/99.9 |",
        )
        lines.append(head + line + " hip mem usage/free/total/usage_ratio: 150.00GB/41.98GB/191.98GB/78.13%")
    return [head + line for line in _arguments()] + lines


def megatron_bridge() -> list[str]:
    configuration = [
        "_target_: megatron.bridge.training.config.ConfigContainer",
        "model:",
        "  context_parallel_size: 1",
        "  expert_model_parallel_size: 1",
        "  num_layers: 32",
        "  pipeline_model_parallel_size: 2",
        "  seq_length: 4096",
        "  tensor_model_parallel_size: 2",
        "  virtual_pipeline_model_parallel_size: null",
        "train:",
        "  global_batch_size: 64",
        "  micro_batch_size: 1",
        "world_size: 16",
    ]
    return configuration + [_iteration(i, s) for i, s, _ in times()]


def nemo() -> list[str]:
    configuration = [
        "GLOBAL_RANK: 0, MEMBER: 1/16",
        "      micro_batch_size: 1",
        "      tensor_model_parallel_size: 2",
        "      pipeline_model_parallel_size: 2",
        "      context_parallel_size: 1",
        "      expert_model_parallel_size: 1",
        "      encoder_seq_length: 4096",
    ]
    lines = [
        f"Training epoch 0, iteration {i - 1}/19 | lr: 1e-05 | global_batch_size: 64 | global_step: {i - 1} | "
        f"reduced_train_loss: 11.03 | train_step_timing in s: {s:.4f} | consumed_samples: {64 * i}"
        for i, s, _ in times()
    ]
    return configuration + lines


def torchtitan() -> list[str]:
    def said(moment: datetime, text: str) -> str:
        return f"[rank0]:[titan] {moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d} - root - INFO - {text}"

    mesh = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1, etp=1"
    sizes = "local batch size 16, global batch size 64, gradient accumulation steps 1, sequence length 4096"
    lines = [
        "+ torchrun train.py --parallelism.pipeline_parallel_microbatch_size 1",
        said(START, mesh),
        said(START, f"Trainer is initialized with {sizes}, total steps 20 (warmup 2)"),
    ]
    for iteration, seconds, moment in times():
        rate = 64 * 4096 / 16 / seconds
        lines.append(
            said(
                moment,
                f"\x1b[31mstep: {iteration:2d}  \x1b[32mloss:  9.1  \x1b[34mmemory: 50.00GiB(62.5%)  "
                f"\x1b[35mtps: {rate:,.0f}  \x1b[36mtflops: 300.0  \x1b[37mmfu: 30.0%\x1b[39m",
            )
        )
    return lines


def maxtext() -> list[str]:
    values = {
        "ici_tensor_parallelism": 2,
        "dcn_tensor_parallelism": 1,
        "ici_pipeline_parallelism": 1,
        "dcn_pipeline_parallelism": 2,
        "ici_context_parallelism": 1,
        "dcn_context_parallelism": 1,
        "ici_expert_parallelism": 1,
        "dcn_expert_parallelism": 1,
        "max_target_length": 4096,
        "global_batch_size_to_train_on": 64,
    }
    lines = [
        f"I0102 03:04:05.250000 77 pyconfig.py:413] Config param {name}: {value}" for name, value in values.items()
    ]
    lines.append("I0102 03:04:05.250000 77 max_utils.py:10] Num_devices: 16, shape (2, 8)")
    for iteration, seconds, moment in times():
        jump = 0.01 if iteration % 2 else 2.0 * seconds
        lines.append(
            f"I{moment:%m%d %H:%M:%S.%f} 77 metric_logger.py:226] completed step: {iteration - 1}, "
            f"seconds: {jump:.3f}, "
            f"TFLOP/s/device: 300.000, Tokens/s/device: {16384 / seconds:.3f}, total_weights: 262144, loss: 9.1"
        )
    return lines


def deepspeed() -> list[str]:
    lines = [
        "[2026-01-02 03:04:05,000] [INFO] [config.py:960:print]   train_batch_size ............. 64",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:960:print]   train_micro_batch_size_per_gpu  1",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:960:print]   world_size ................... 16",
    ]
    for iteration, seconds, moment in times():
        stamp = f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
        lines.append(
            f"[{stamp}] [INFO] [timer.py:199:stop] epoch=0/micro_step={iteration}/global_step={iteration}, "
            f"RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={64 / seconds:.4f}, MemAllocated=3.9GB, "
            "MaxMemAllocated=22.5GB"
        )
    return lines


def mlperf() -> list[str]:
    def record(kind: str, key: str, value: object, moment: datetime, **more: object) -> str:
        import json

        fields = {"time_ms": int(moment.timestamp() * 1000), "event_type": kind, "key": key, "value": value}
        return ":::MLLOG " + json.dumps(fields | {"metadata": more})

    facts = {
        "submission_benchmark": "llama31_8b",
        "global_batch_size": 64,
        "max_sequence_length": 4096,
        "micro_batch_size": 1,
        "tensor_parallelism": 2,
        "pipeline_parallelism": 2,
        "context_parallelism": 1,
        "expert_parallelism": 1,
    }
    lines = [':::SYSJSON {"number_of_nodes":"2","accelerators_per_node":"8","accelerator_model_name":"H100"}']
    lines += [record("POINT_IN_TIME", key, value, START) for key, value in facts.items()]
    moment = START
    for block in range(8):
        begin = {"samples_count": 6400 * block}
        lines.append(record("INTERVAL_START", "block_start", None, moment, **begin))
        moment += timedelta(seconds=100 * STEP_S)
        lines.append(record("INTERVAL_END", "block_stop", None, moment, samples_count=6400 * (block + 1)))
        moment += timedelta(seconds=20)
    return lines


def huggingface() -> list[str]:
    lines = [
        "***** Running training *****",
        "  Instantaneous batch size per device = 1",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
        "  Gradient Accumulation steps = 4",
    ]
    elapsed = 0.0
    for iteration in range(1, 201):
        elapsed += 60.0 if iteration == 1 else STEP_S
        clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
        lines.append(f"  5%|▌         | {iteration}/200 [{clock}<10:00,  9.99s/it]\r")
        if iteration % 10 == 0:
            lines.append(f"{{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {iteration / 100}}}")
    return lines


def small_trainer() -> list[str]:
    facts = '{"gpus": 16, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "micro_batch_size": 1, "seq_length": 4096, '
    facts += '"global_batch_size": 64, "device": "host"}'
    steps = [f"small trainer step {iteration}: {seconds:.6f} s" for iteration, seconds, _ in times()]
    return [f"small trainer facts: {facts}", *steps, "small trainer peak bytes: 562663424"]


LOGS: dict[str, Callable[[], list[str]]] = {
    "megatron-lm": megatron_lm,
    "megatron-deepspeed": megatron_deepspeed,
    "gpt-neox": gpt_neox,
    "primus": primus,
    "megatron-bridge": megatron_bridge,
    "nemo": nemo,
    "torchtitan": torchtitan,
    "maxtext": maxtext,
    "deepspeed": deepspeed,
    "mlperf": mlperf,
    "hf-trainer": huggingface,
    "small-trainer": small_trainer,
}
"""A written log of every text format: 16 GPUs, global batch 64, steps of 2.5 s; where the format prints it tp 2, pp 2,
micro-batch 1, sequences of 4096."""
