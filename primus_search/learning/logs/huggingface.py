"""HuggingFace Trainer, ms-swift and LLaMA-Factory: banner, progress bar, JSON lines, state file."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from primus_search.base.guards.files import MAX_TABLE_BYTES, read_bytes
from primus_search.base.guards.values import finite_number
from primus_search.base.units import GIB
from primus_search.learning import transcript
from primus_search.learning.conclusion import conclude, gpus_of_batch
from primus_search.learning.log_table import LogTable
from primus_search.learning.readers import refuse
from primus_search.learning.reading import LogReading, MemoryKind, StepLine, steady
from primus_search.learning.transcript import Transcript

_BAR = re.compile(
    r"\|\s{0,8}(\d{1,12})/(\d{1,12}) \[((?:\d{1,6}:)?\d{1,6}:\d\d)<[^,\]]{0,80}, {1,8}[\d.]{1,20}(?:s/it|it/s)\]?"
)
_SUMMARY = re.compile(r"\A(?>.*?'train_runtime': )'?(\d[\d.]*+)'?,(?>.*?'train_steps_per_second': )'?(\d[\d.]*+)'?[,}]")
MEAN_NOTE = "step time is the run's mean, with its first steps, evaluations and checkpoints"
_STEPS = ("current_steps", "global_step/max_steps", "steps[global_step/max_steps]")
RATE_ROUNDING = 5e-4
"""Half a digit of printed steps per second. A run that was resumed counts the steps before it, too."""
FEWEST_STEPS, SLOWEST_RATE = 20, 0.1
"""A run's mean rate, printed with three decimals, is taken from so many steps and so many steps per second on."""
STEADY_RATE = 0.10
"""Printed tokens/s count as one rate while their relative spread stays below this."""


def observe(seen: Transcript, line: str) -> None:
    """One line of a Trainer's output, or of its JSON lines."""
    if line.lstrip().startswith("{") and ("elapsed_time" in line):
        _observe_record(seen, line)
        return
    summary = _SUMMARY.search(line) if "'train_runtime'" in line else None
    if summary and not seen.steps:  # a log without its progress bar
        runtime, rate = (finite_number(number) or 0.0 for number in summary.groups())
        if runtime * rate >= FEWEST_STEPS and rate >= SLOWEST_RATE:
            seen.scratch["mean_step_s"] = 1.0 / rate
            seen.add_step(StepLine(iteration=round(runtime * rate), seconds=1.0 / rate))
    if "/it" in line or "it/s" in line:
        bar = _BAR.search(line)
        if bar and int(bar[2]) > 0:
            transcript.observe_progress(seen, int(bar[1]), transcript.clock_s(bar[3]))


def _observe_record(seen: Transcript, line: str) -> None:
    """A record of the run so far, as JSON (files, LLaMA-Factory) or as Python prints a mapping (ms-swift)."""
    try:
        record = json.loads(line) if '"' in line else ast.literal_eval(line.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return
    if not isinstance(record, dict):
        return
    steps = next((record[name] for name in _STEPS if name in record), "")
    step = finite_number(str(steps).split("/")[0])
    elapsed = transcript.clock_s(str(record.get("elapsed_time", "")))
    names = ("memory(GiB)", "tokens_per_gpu_per_sec", "tokens_global_per_sec")
    peak, rate, overall = (finite_number(record.get(name)) for name in names)
    if peak is not None:
        seen.peak(MemoryKind.RESERVED, peak * GIB)
    if rate and overall is not None and rate > 0:
        seen.scratch.setdefault("gpus", []).append(overall / rate)
    if step is not None and step >= 0:
        transcript.observe_progress(seen, int(step), elapsed, rate)


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of a Trainer's output. Its samples have different lengths, so no rate follows from batch and length."""
    facts = table.fields(seen)
    accumulation = seen.whole("Gradient Accumulation steps", "flag:gradient_accumulation_steps")
    gpus = gpus_of_batch(facts["global_batch_size"], facts["micro_batch_size"], accumulation)
    facts["gpus"] = gpus or _gpus_from_rates(seen) or seen.whole("world size", "env_world_size")
    facts["tokens_per_s_per_gpu"] = _steady_rate(seen)
    if "mean_step_s" in seen.scratch:
        facts["step_s"] = seen.scratch["mean_step_s"]
        seen.note(MEAN_NOTE)
    seen.note("sequences of different lengths: a step's tokens are not batch times length")
    return conclude(seen, table.name, facts, settings=table.settings, samples_are_full=False)


def _gpus_from_rates(seen: Transcript) -> int | None:
    """GPUs as overall over per-GPU tokens/s, where every line gives the same whole number."""
    counts = seen.scratch.get("gpus", [])
    whole = {round(count) for count in counts}
    near = all(abs(count - round(count)) < 0.05 * round(count) for count in counts)
    return whole.pop() if len(whole) == 1 and near else None


def _steady_rate(seen: Transcript) -> float | None:
    """The printed tokens/s/GPU, where they agree with each other."""
    found = seen.steady()
    if found is None or found.rate is None:
        return None
    rates = [StepLine(iteration=n, seconds=line.rate or 0.0) for n, line in enumerate(found.lines, start=4)]
    spread = steady([StepLine(iteration=n, seconds=rates[0].seconds) for n in range(1, 4)] + rates)
    return found.rate if spread is not None and spread.noise < STEADY_RATE else None


def owns(path: Path, head: bytes) -> bool:
    """Whether a file is the state that a Trainer writes beside its checkpoints."""
    return head.lstrip().startswith(b"{") and path.name.startswith("trainer_state")


def read(path: Path) -> LogReading:
    """A `trainer_state.json`: it keeps no times of steps, only the run's mean at the end (last log record)."""
    try:
        state = json.loads(read_bytes(path, most=MAX_TABLE_BYTES).decode(errors="replace"))
        history = [record for record in state["log_history"] if isinstance(record, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refuse(path, f"is no trainer_state.json: {error!r}") from error
    seen = Transcript(source=str(path))
    known = [seconds for record in history if (seconds := _mean_step_s(record)) is not None]
    if not known:
        raise refuse(path, "states no time: `train_steps_per_second` stands only in the state of a finished run")
    seen.note(MEAN_NOTE)
    micro = state.get("train_batch_size")
    facts = {"step_s": known[-1], "micro_batch_size": micro if isinstance(micro, int) and micro > 0 else None}
    return conclude(seen, "hf-trainer", facts, samples_are_full=False)


def _mean_step_s(record: dict[str, Any]) -> float | None:
    """Seconds of a step by a run's last record: its runtime over its steps, or the rate, which has three digits."""
    names = ("train_steps_per_second", "train_runtime", "step")
    rate, runtime, steps = (finite_number(record.get(name)) or 0.0 for name in names)
    if rate <= 0:
        return None
    if runtime <= 0 or steps <= 0:
        return 1.0 / rate
    is_whole_run = abs(runtime * rate - steps) <= RATE_ROUNDING * runtime + 1.0
    return runtime / steps if is_whole_run else 1.0 / rate
