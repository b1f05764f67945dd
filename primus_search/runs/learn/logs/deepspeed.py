"""DeepSpeed without Megatron: samples per second and memory of its timer, its configuration dump, flags."""

import re
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import Any

from primus_search.runs.learn.reading import Assumption, LogReading, MemoryKind
from primus_search.runs.learn.steady import StepLine
from primus_search.runs.learn.transcript import GIB, Transcript, conclude, gpus_of_batch, observe_dotted, observe_flags

_STEP = re.compile(r"global_step=(\d+)|\[timer\.py:\d+:stop\] \d+/(\d+),")
_SPEED = re.compile(r"(?:Curr|, )SamplesPerSec=(\d+(?:\.\d+)?)(?=,|\s|$)")
_PARAMETER = re.compile(r"config\.py:\d+:print\w*\]\s+(\w+) \.* ?(\S.*)$")
_PEAK = re.compile(r"MaxMemAllocated=(\d+(?:\.\d+)?)GB")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d),(\d{3})\]")
_LENGTH_FLAGS = ("max_seq_len", "max_seq_length", "model_max_length", "block_size", "cutoff_len", "max_length")
_PIPELINE = re.compile(r"\bsteps: (\d+) loss: \S+ iter time \(s\): (\d+(?:\.\d+)?) samples/sec: (\d+(?:\.\d+)?)")
BATCH_SLACK = 0.25
"""A batch from times and rates counts where it is this near to a multiple of the micro-batch, in micro-batches."""


def observe(seen: Transcript, line: str) -> None:
    """One line of a DeepSpeed log."""
    if not seen.steps:
        observe_dotted(seen, line)
        observe_flags(seen, line)
        parameter = _PARAMETER.search(line) if "config.py:" in line else None
        if parameter:
            seen.facts[parameter[1]] = parameter[2].strip()
    if "iter time (s):" in line:
        _observe_pipeline(seen, line)
    if "SamplesPerSec=" not in line or "pipeline" in seen.scratch:
        return
    step, speed, peak = _STEP.search(line), _SPEED.search(line), _PEAK.search(line)
    if step is None or speed is None:
        return
    if peak:
        seen.peak(MemoryKind.ALLOCATED, float(peak[1]) * GIB)
    number = int(step[1] or step[2])
    span, between = seen.since_last(number, _moment(line))
    if between is not None:
        seen.scratch.setdefault("batches", []).append(between * float(speed[1]))
    seen.add_step(StepLine(iteration=number, seconds=1.0 / max(float(speed[1]), 1e-9), span=span))


def _observe_pipeline(seen: Transcript, line: str) -> None:
    """One line of its pipeline engine, which prints seconds of a step, the mean since the line before."""
    found = _PIPELINE.search(line)
    if found is None:
        return
    number, seconds = int(found[1]), float(found[2])
    lines = seen.scratch.setdefault("pipeline", [])
    last = lines[-1].iteration if lines else 0
    lines.append(StepLine(iteration=number, seconds=seconds, span=max(number - last, 1)))
    seen.scratch.setdefault("batches", []).append(seconds * float(found[3]))
    seen.add_step(lines[-1])


def _moment(line: str) -> datetime | None:
    found = _STAMP.search(line)
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}.{found[3]}000") if found else None
    except ValueError:
        return None


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a DeepSpeed log. Its lines count samples; seconds a step need the batch."""
    micro = seen.whole(
        "train_micro_batch_size_per_gpu", "flag:per_device_train_batch_size", "flag:train_micro_batch_size_per_gpu"
    )
    accumulation = seen.whole("gradient_accumulation_steps", "flag:gradient_accumulation_steps")
    assumed = {name: Assumption(value=1, because="plain DeepSpeed prints none") for name in ("tp", "pp", "cp", "ep")}
    batch = seen.whole("train_batch_size") or _batch_from_times(seen, micro, assumed)
    gpus = seen.whole("world_size")
    if gpus is None:
        gpus = gpus_of_batch(batch, micro, accumulation)
    facts: dict[str, Any] = {
        "gpus": gpus,
        "micro_batch_size": micro,
        "global_batch_size": batch,
        "seq_length": seen.whole(*("flag:" + name for name in _LENGTH_FLAGS)),
        "model": {"model_name": seen.text("flag:model_name_or_path")} if seen.text("flag:model_name_or_path") else {},
    }
    if batch is None:
        seen.note("samples per second without a printed batch: no step time")
    if "pipeline" in seen.scratch:
        seen.steps = seen.scratch["pipeline"]
        for name in ("tp", "pp", "cp"):
            assumed.pop(name)
    else:
        seen.steps = [replace(line, seconds=line.seconds * (batch or 0)) for line in seen.steps]
    seen.note("sequences may be shorter than the printed length")
    settings = ("zero_optimization_stage", "zero_stage", "gradient_checkpointing", "bfloat16_enabled")
    return conclude(seen, "deepspeed", facts, assumed, settings=settings, samples_are_full=False)


def _batch_from_times(seen: Transcript, micro: int | None, assumed: dict[str, Assumption]) -> int | None:
    """The global batch as samples/s times seconds a step, where that is near a multiple of the micro-batch."""
    products = seen.scratch.get("batches", [])
    if not products or not micro:
        return None
    count = median(products) / micro
    if round(count) < 1 or abs(count - round(count)) > BATCH_SLACK:
        return None
    batch = int(micro * round(count))
    assumed["global_batch_size"] = Assumption(
        value=batch, because="samples/s times the time between lines, rounded to a multiple of the micro-batch"
    )
    return batch
