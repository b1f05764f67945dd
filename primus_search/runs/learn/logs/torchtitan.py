"""torchtitan: step lines with memory and tokens per second per device, the device mesh, the batch sizes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from primus_search.declare.launch.torchtitan import setting_keys
from primus_search.runs.learn.reading import Assumption, LogReading, MemoryKind
from primus_search.runs.learn.steady import StepLine
from primus_search.runs.learn.transcript import GIB, Transcript, conclude, observe_flags, product

_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d+)\s")
_RATE = re.compile(r"\b(?:tps|wps):\s*(\d[\d,]*(?:\.\d+)?)(?=\s)")
_PEAK = re.compile(r"\bmemory:\s*(\d+(?:\.\d+)?)GiB")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{3,6}))?")
_MESH = re.compile(r"device mesh with parallelism: (.*)$")
_MESH_SIZE = re.compile(r"\b(\w+)=(\d+)")
_OLD_MESH = re.compile(r"\d-D device mesh with \[([^\]]{0,200})\], \[([^\]]{0,200})\]")
_BATCHES = re.compile(r"(local batch size|global batch size|gradient accumulation steps|sequence length):? (\d+)")
_MODEL = re.compile(r"Model (\S+) (\S+) size: ([\d,]+) total parameters")
_JSON = re.compile(r"\"(local_batch_size|batch_size|global_batch_size|seq_len)\": (\d+)")
_CHECKPOINTING = re.compile(r"Applied (\w+) activation checkpointing")
_FLOAT8 = re.compile(r"(Float8|MXFP8) training active")
_COMPILED = re.compile(r"(?:Compiling|Compiled) (?:the (loss) function|each \w{1,80}) with torch\.compile")
MESH_KEYS = {
    "dp_replicate": "data_parallel_replicate_degree", "dp_shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree", "etp": "expert_tensor_parallel_degree",
}  # fmt: skip
"""Sizes of the device mesh as keys of a job file's section `parallelism`."""
OPTION = "activation_checkpoint.selective_ac_option"
FLAGS = frozenset(f"flag:{key}" for key in setting_keys())
_MESH_NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def observe(seen: Transcript, line: str) -> None:
    """One line of a torchtitan log."""
    if "step:" in line and ("tps:" in line or "wps:" in line):
        _observe_step(seen, line)
    elif not seen.steps:
        _observe_facts(seen, line)


def _observe_step(seen: Transcript, line: str) -> None:
    step, rate, peak = _STEP.search(line), _RATE.search(line), _PEAK.search(line)
    if step is None or rate is None:
        return
    if peak:
        seen.peak(MemoryKind.RESERVED, float(peak[1]) * GIB)
    number = int(step[1])
    span, seconds = seen.since_last(number, _moment(line))
    seen.add_step(StepLine(iteration=number, seconds=seconds or 0.0, span=span, rate=float(rate[1].replace(",", ""))))


def _moment(line: str) -> datetime | None:
    """The time stamp of a line where it has fractions of a second."""
    found = _STAMP.search(line)
    if found is None or found[3] is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}.{found[3].ljust(6, '0')}")
    except ValueError:
        return None


def _observe_facts(seen: Transcript, line: str) -> None:
    observe_flags(seen, line)
    if "device mesh with" in line:
        _observe_mesh(seen, line)
    if "batch size" in line:
        seen.facts.update(dict(_BATCHES.findall(line)))
    if '": ' in line:
        for name, size in _JSON.findall(line):
            seen.facts.setdefault("json:" + name, size)
    model, checkpointing = _MODEL.search(line), _CHECKPOINTING.search(line)
    if model:
        seen.facts.update(model_name=f"{model[1]} {model[2]}", total_params=model[3].replace(",", ""))
    if checkpointing:
        seen.facts["activation_checkpointing"] = checkpointing[1]
    compiled = _COMPILED.search(line) if "torch.compile" in line else None
    if compiled:
        seen.facts["compiled:" + (compiled[1] or "model")] = "True"
    if "training active" in line and (float8 := _FLOAT8.search(line)):
        seen.facts["fp8"] = float8[1].lower()


def _observe_mesh(seen: Transcript, line: str) -> None:
    new, old = _MESH.search(line), _OLD_MESH.search(line)
    if new:
        seen.facts.update({"mesh:" + name: size for name, size in _MESH_SIZE.findall(new[1])})
    elif old:
        names = [name.strip(" '\"") for name in old[1].split(",") if name.strip()]
        sizes = [size.strip() for size in old[2].split(",") if size.strip()]
        if len(names) == len(sizes) and all(size.isdigit() for size in sizes):
            seen.facts["mesh:world"] = str(product(*(int(size) for size in sizes)))
            found = dict(zip(names, sizes, strict=True))
            for name in ("pp", "cp", "tp"):
                seen.facts["mesh:" + name] = found.get(name, "1")
            seen.facts["mesh:dp_shard_in_ep"] = found.get("dp_shard_in_ep", "")


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a torchtitan log; its memory is what torch reserved at most on the rank that prints."""
    mesh = {name: seen.whole("mesh:" + name) for name in (*_MESH_NAMES, "ep", "etp", "world")}
    facts: dict[str, Any] = {
        "gpus": mesh["world"] or product(*(mesh[name] for name in _MESH_NAMES)),
        "tp": mesh["tp"],
        "pp": mesh["pp"],
        "cp": mesh["cp"],
        "ep": mesh["ep"],
        "seq_length": seen.whole("sequence length", "json:seq_len", "flag:training.seq_len"),
        "micro_batch_size": _micro_batch(seen, mesh["pp"]),
        "global_batch_size": seen.whole("global batch size", "json:global_batch_size"),
        "model": _model(seen),
    }
    assumed = {}
    inside = seen.whole("mesh:dp_shard_in_ep")
    if inside is not None and facts["ep"] is None and mesh["tp"] == 1:  # with TP it may be part of the experts' group
        facts["ep"] = product(inside, mesh["cp"])
    if inside is None and mesh["ep"] is None and mesh["tp"] is not None:
        assumed["ep"] = Assumption(value=1, because="the release prints no expert parallelism")
    _times_from_rates(seen, facts)
    return conclude(seen, "torchtitan", facts, assumed, settings=_settings(seen, mesh, assumed))


def _settings(seen: Transcript, mesh: Mapping[str, int | None], assumed: dict[str, Assumption]) -> dict[str, Any]:
    """What the run is set to, by the keys of a job file; what a log with a device mesh does not announce is off."""
    found: dict[str, Any] = {}
    if mesh["tp"] is not None:
        found = {"compile.enable": False, "model.converters": [], "activation_checkpoint.mode": "none"}
    found |= {name.removeprefix("flag:"): text for name, text in seen.facts.items() if name in FLAGS}
    found |= {f"parallelism.{key}": mesh[name] for name, key in MESH_KEYS.items() if mesh[name] is not None}
    if seen.text("activation_checkpointing"):
        found["activation_checkpoint.mode"] = seen.text("activation_checkpointing")
    if found.get("activation_checkpoint.mode") == "selective" and OPTION not in found:
        found[OPTION] = "op"
        assumed[OPTION] = Assumption(value="op", because="the log prints 'selective' without its option")
    if seen.text("fp8"):
        name = "mx" if seen.text("fp8") == "mxfp8" else "float8"
        found["model.converters"] = [f"quantize.linear.{name}"]
        found[f"quantize.linear.{name}.recipe_name"] = "mxfp8_cublas" if name == "mx" else None
    compiled = [part for part in ("model", "loss") if seen.text("compiled:" + part)]
    if compiled:
        found |= {"compile.enable": True, "compile.components": compiled}
    return found


def _micro_batch(seen: Transcript, pp: int | None) -> int | None:
    """The local batch; a pipeline splits it further, by a number that the log does not print."""
    local = seen.whole("local batch size", "json:local_batch_size", "json:batch_size", "flag:training.local_batch_size")
    if pp is not None and pp > 1:
        return seen.whole("flag:parallelism.pipeline_parallel_microbatch_size")
    return local


def _model(seen: Transcript) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if seen.text("model_name"):
        facts = {"model_name": seen.text("model_name"), "total_params": seen.whole("total_params")}
    return facts


def _times_from_rates(seen: Transcript, facts: dict[str, Any]) -> None:
    """Step times from printed rates where the time stamps are whole seconds or absent."""
    if any(line.seconds > 0.0 for line in seen.steps):
        return
    tokens = product(facts["global_batch_size"], facts["seq_length"])
    if tokens is None or facts["gpus"] is None:
        return
    devices = float(facts["gpus"])
    seen.steps = [replace(s, seconds=tokens / (s.rate * devices)) if s.rate else s for s in seen.steps]
