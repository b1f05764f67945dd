"""MaxText: `completed step` lines, its configuration parameters, XLA's size of the compiled program.

The printed seconds jump, because steps are dispatched asynchronously; the time stamps of the lines do not.
"""

import re
from datetime import datetime
from typing import Any

from primus_search.runs.learn.reading import Assumption, LogReading, MemoryKind
from primus_search.runs.learn.steady import StepLine
from primus_search.runs.learn.transcript import GIB, Transcript, conclude, product
from primus_search.values.knobs.values import PARALLEL

_STEP = re.compile(r"completed step: (\d+), seconds: (\d+(?:\.\d+)?),(.*)$")
_RATE = re.compile(r"Tokens/s(?:/device)?: (\d+(?:\.\d+)?)(?=,|\s|$)")
_WEIGHTS = re.compile(r"total_weights: (\d+)\b")
_STAMP = re.compile(r"\b[IWE](\d{4}) (\d\d:\d\d:\d\d\.\d{6})\b")
_PARAMETER = re.compile(r"Config param (\w+): (.*)$")
_DEVICES = re.compile(r"[Nn]um_devices: (\d+)\b")
_PROGRAM = re.compile(r"program HBM usage: (\d+(?:\.\d+)?)([GM]) / ")
MORE_AXES = {"tp": ("tensor_transpose", "tensor_sequence"), "cp": ("sequence",)}
"""Axes that split the same thing as the one of a degree, where a release prints them."""
LEAP_YEAR = 2024
"""Month and day are printed without a year; any leap year serves for differences."""


def observe(seen: Transcript, line: str) -> None:
    """One line of a MaxText log."""
    if "completed step" in line:
        _observe_step(seen, line)
    elif "Config param" in line:
        found = _PARAMETER.search(line)
        if found:
            seen.facts[found[1]] = found[2].strip()
    elif "um_devices" in line:
        found = _DEVICES.search(line)
        if found:
            seen.facts["num_devices"] = found[1]
    elif "program HBM usage" in line:
        found = _PROGRAM.search(line)
        if found:
            seen.peak(MemoryKind.PROGRAM, float(found[1]) * (GIB if found[2] == "G" else GIB / 1024.0))


def _observe_step(seen: Transcript, line: str) -> None:
    step = _STEP.search(line)
    if step is None:
        return
    number, seconds, rate = int(step[1]), float(step[2]), _RATE.search(step[3])
    stamp = _moment(line)
    _, since = seen.since_last(number, stamp)
    if stamp is not None:
        seconds = since or 0.0
    weights = _WEIGHTS.search(step[3])
    if weights and rate and float(rate[1]) * float(step[2]) > 0.0:
        seen.scratch["devices"] = float(weights[1]) / (float(rate[1]) * float(step[2]))
    seen.add_step(StepLine(iteration=number, seconds=seconds, rate=float(rate[1]) if rate else None))


def _moment(line: str) -> datetime | None:
    found = _STAMP.search(line)
    if found is None:
        return None
    try:
        return datetime.strptime(f"{LEAP_YEAR}{found[1]} {found[2]}", "%Y%m%d %H:%M:%S.%f")
    except ValueError:
        return None


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a MaxText log. A mesh size of -1 (whatever is left) is not known."""
    facts: dict[str, Any] = {
        "gpus": seen.whole("num_devices"),
        "seq_length": seen.whole("max_target_length"),
        "global_batch_size": seen.whole("global_batch_size_to_train_on"),
        "model": _model(seen),
    }
    for name, word in PARALLEL.items():
        more = [axis for axis in MORE_AXES.get(name, ()) if f"ici_{axis}_parallelism" in seen.facts]
        facts[name] = product(*(_axis(seen, axis) for axis in (word, *more)))
    if facts["tp"] == facts["pp"] == facts["cp"] == 1 and seen.whole("gradient_accumulation_steps") == 1:
        facts["micro_batch_size"] = seen.whole("per_device_batch_size")
    assumed = {}
    devices = seen.scratch.get("devices")
    if facts["gpus"] is None and devices and abs(devices - round(devices)) < 0.01 and round(devices) > 0:
        because = "tokens of a step over its time and the printed tokens/s/device; padding would make it smaller"
        assumed["gpus"] = Assumption(value=round(devices), because=because)
    return conclude(
        seen, "maxtext", facts, assumed, settings=("remat_policy", "dtype", "quantization", "attention", "scan_layers")
    )


def _axis(seen: Transcript, word: str) -> int | None:
    """Devices along an axis of the mesh, inside and across slices."""
    return product(seen.whole(f"ici_{word}_parallelism"), seen.whole(f"dcn_{word}_parallelism"))


def _model(seen: Transcript) -> dict[str, Any]:
    names = ("base_num_decoder_layers", "base_emb_dim", "base_mlp_dim", "base_num_query_heads", "base_num_kv_heads")
    facts: dict[str, Any] = {name: seen.whole(name) for name in (*names, "vocab_size") if seen.whole(name)}
    if seen.text("model_name"):
        facts["model_name"] = seen.text("model_name")
    return facts
