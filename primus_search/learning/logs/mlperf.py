"""MLPerf's `:::MLLOG` lines of language-model training: step times, or blocks between evaluations."""

import json
import re
from typing import Any

from primus_search.base.guards.values import finite_number, whole_number
from primus_search.learning.conclusion import conclude, product
from primus_search.learning.log_table import LogTable
from primus_search.learning.reading import LogReading, StepLine
from primus_search.learning.transcript import PREFERRED, Transcript
from primus_search.values.knobs.values import PARALLEL

PARSED: dict[str, Any] = {"parse_int": whole_number, "parse_float": finite_number}
_RECORD = re.compile(r"\A(?>.*?:::MLLOG )(\{.*\})")
_SYSTEM = re.compile(r"\"(number_of_nodes|accelerators_per_node|accelerator_model_name)\"\s*:\s*\"([^\"]*)\"")
TOKEN_COUNTED = ("gpt3",)
"""Benchmarks whose block counts are in tokens; the others count samples."""


def observe(seen: Transcript, line: str) -> None:
    """One line of an MLPerf result."""
    if ":::SYSJSON" in line:
        seen.facts.update(dict(_SYSTEM.findall(line)))
    found = _RECORD.search(line) if ":::MLLOG" in line else None
    try:
        record = json.loads(found[1], parse_constant=lambda _: None, **PARSED) if found else {}
    except (ValueError, RecursionError):
        return
    if not isinstance(record, dict):
        return
    key, value, more = record.get("key"), record.get("value"), record.get("metadata")
    more = more if isinstance(more, dict) else {}
    if key == "tracked_stats" and isinstance(value, dict):
        _observe_stats(seen, value, more)
    elif key in ("block_start", "block_stop"):
        _observe_block(seen, key, record.get("time_ms"), more)
    elif isinstance(key, str) and isinstance(value, str | int | float) and not key.startswith("eval"):
        seen.facts[key] = str(value)


def _observe_stats(seen: Transcript, value: dict[str, Any], more: dict[str, Any]) -> None:
    seconds, step = value.get("train_step_time"), more.get("step")
    if isinstance(seconds, int | float) and isinstance(step, int | float) and seconds > 0:
        seen.add_step(StepLine(iteration=int(step), seconds=float(seconds)))
        seen.scratch.setdefault(PREFERRED, []).append(seen.steps[-1])


def _observe_block(seen: Transcript, key: str, time_ms: Any, more: dict[str, Any]) -> None:
    """One block between evaluations as a step line over all its steps."""
    if not isinstance(time_ms, int | float):
        return
    start = seen.scratch.get("block")
    seen.scratch["block"] = (time_ms, more) if key == "block_start" else None
    if key == "block_start" or start is None:
        return
    span = _steps_of(seen, start[1], more)
    if span:
        done = seen.scratch["done"] = seen.scratch.get("done", 0) + span
        seconds = (time_ms - start[0]) * 1e-3 / span
        seen.steps.append(StepLine(iteration=done, seconds=seconds, span=span))


def _steps_of(seen: Transcript, start: dict[str, Any], stop: dict[str, Any]) -> int | None:
    """Steps of one block: of printed step numbers, else of counted samples or tokens; None where it does not divide."""
    between = _difference(start.get("step"), stop.get("step"))
    if between:
        return int(between)
    batch = seen.whole("global_batch_size")
    if batch is None:
        return None
    if seen.text("submission_benchmark") in TOKEN_COUNTED:
        counted, unit = start.get("epoch_count", stop.get("epoch_count")), seen.whole("max_sequence_length")
        if counted is None and all("first_epoch_num" in more for more in (start, stop)):
            counted = seen.scratch.get("epoch_count")
        seen.scratch["epoch_count"] = counted
    else:
        counted, unit = _difference(start.get("samples_count"), stop.get("samples_count")), 1
    whole = product(batch, unit)
    if not isinstance(counted, int | float) or not whole or counted <= 0 or counted % whole:
        return None
    return int(counted // whole)


def _difference(first: Any, last: Any) -> float | None:
    """What a counter grew by; None where it is not printed or did not grow."""
    if isinstance(first, int | float) and isinstance(last, int | float) and last > first:
        return float(last - first)
    return None


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of an MLPerf result."""
    facts = table.fields(seen)
    for name, word in PARALLEL.items():
        facts[name] = seen.whole(f"{word}_parallelism", f"{word}_model_parallel_size", f"{word}_parallel_size")
    device = seen.text("accelerator_model_name", "submission_platform")
    if device:
        facts["device"] = re.sub(r"^\d+x", "", device)
    if "lora" in (seen.text("submission_benchmark") or ""):
        seen.note("LoRA fine-tuning")
    return conclude(seen, table.name, facts, settings=table.settings)
