"""A log's reading as a measured run: model, cluster, workload, one candidate, and what was measured.

What the log does not print and a projection needs is taken from what the user says beside the files (hardware, model);
what is still missing is a problem by name. Values that `LogReading.assumed` lists are used and said again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.declare import megatron_yaml
from primus_search.declare.hardware_files import Hardware, load_hardware, on_fewer_gpus, site_of
from primus_search.declare.model_files import load_model
from primus_search.declare.source import Document
from primus_search.runs.learn.logs import table
from primus_search.runs.learn.printed_devices import hardware_named
from primus_search.runs.learn.reading import PARALLEL, Assumption, Death, LogReading, MemoryKind
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import Ending, MeasuredRun, Measurement, PeakKind, Provenance
from primus_search.values.model import Model
from primus_search.values.workload import Workload

SIZES = ("gpus", "tp", "pp", "seq_length", "micro_batch_size", "global_batch_size")
"""Facts without which a run cannot be projected."""

DEGREES = tuple(name for name in (*PARALLEL, "vpp") if name not in SIZES)
"""Facts that are 1 where they are neither printed nor assumed otherwise."""

_TABLE = table("arguments")
SETTINGS: Mapping[str, Sequence[str]] = _TABLE["columns"]
"""Settings of which a candidate takes its columns; none of a column printed is an assumption that is said."""

_PEAKS: Mapping[MemoryKind, PeakKind] = {
    MemoryKind.ALLOCATED: "allocated",
    MemoryKind.RESERVED: "reserved",
    MemoryKind.DEVICE: "driver",
}
SHARDED = ("torchtitan", "maxtext")
"""Frameworks that shard weights in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidBeside:
    """What the user says beside the files, for all of them: hardware and model by name or path."""

    hardware: str | None = None
    model: str | None = None


def measured_run(reading: LogReading, said: SaidBeside, stack: Stack) -> MeasuredRun:
    """The run of a log on the stack that is its starting point. Raises `InputError` with every missing fact."""
    reading = with_assumptions(reading)
    problems: list[Problem] = []
    hardware = _hardware(reading, said, problems)
    model = _model(reading, said, problems)
    sizes = {name: _known(reading, name) for name in SIZES}
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        problems.append(Problem(reading.source, f"the log does not print {', '.join(missing)}"))
    if reading.step_s is None and reading.died is not Death.OUT_OF_MEMORY:
        problems.append(Problem(reading.source, "the log has no steady step time"))
    if problems or hardware is None or model is None:
        raise InputError(problems)
    numbers = {name: int(value) for name, value in sizes.items() if value is not None}
    cluster = _cluster(reading, hardware, stack, numbers["gpus"])
    workload = Workload(
        seq_length=numbers["seq_length"],
        global_batch_size=numbers["global_batch_size"],
        routing_imbalance=stack.experts.natural_imbalance if model.is_moe else 1.0,
    )
    return MeasuredRun(
        model=model,
        cluster=cluster,
        workload=workload,
        candidates=_candidate(reading, numbers),
        measured=measurement_of(reading),
        provenance=Provenance(id=Path(reading.source).name, source=reading.source, gpu=reading.device or ""),
        hardware=hardware.path.stem,
        framework=reading.framework,
        assumed=tuple(f"{name} = {a.value}: {a.because}" for name, a in reading.assumed.items()),
    )


def with_assumptions(reading: LogReading) -> LogReading:
    """The reading with what is taken for it where its log prints nothing, said as an assumption."""
    sizes = {name: _known(reading, name) for name in ("tp", "pp", "micro_batch_size")}
    numbers = {name: value for name, value in sizes.items() if value is not None}
    if len(numbers) < len(sizes):
        return reading
    row = _candidate(reading, numbers).row(0)
    is_certain = {
        "vpp": numbers["pp"] == 1 or "virtual_pipeline_model_parallel_size" in reading.settings,
        "sequence_parallel": numbers["tp"] == 1,
        "sharding": reading.framework in SHARDED,
    }
    silent = [name for name in DEGREES if reading.as_json()[name] is None]
    silent += [name for name, words in SETTINGS.items() if not any(word in reading.settings for word in words)]
    because = "the log does not print it"
    taken = {name: Assumption(value=row[name], because=because) for name in silent if not is_certain.get(name)}
    return replace(reading, assumed=taken | dict(reading.assumed))


def _known(reading: LogReading, name: str) -> int | None:
    value = reading.as_json()[name]
    if value is None and name in reading.assumed:
        value = reading.assumed[name].value
    return None if value is None else int(value)


def _hardware(reading: LogReading, said: SaidBeside, problems: list[Problem]) -> Hardware | None:
    name = said.hardware or (hardware_named(reading.device) if reading.device else None)
    if name is None:
        printed = f"prints {reading.device!r}, which no hardware file describes" if reading.device else "prints no GPU"
        problems.append(Problem(reading.source, f"the log {printed}; give --hardware NAME"))
        return None
    try:
        return load_hardware(name)
    except InputError as error:
        problems.extend(error.problems)
        return None


def _model(reading: LogReading, said: SaidBeside, problems: list[Problem]) -> Model | None:
    try:
        if said.model is not None:
            return load_model(said.model)
        known = megatron_yaml.readable_keys()
        facts = {name: _typed(value) for name, value in reading.model.items() if name in known}
        if "num_layers" not in facts or "hidden_size" not in facts:
            problems.append(Problem(reading.source, "the log prints no sizes of the model; give --model NAME"))
            return None
        facts.setdefault("swiglu", False)
        found = megatron_yaml.from_document(Document(reading.source, facts), Path(reading.source))
        name = str(reading.model.get("model_name") or f"{found.num_layers} layers of {found.hidden}")
        return replace(found, name=name, source=f"log of {reading.framework}")  # equal for logs of one model
    except InputError as error:
        problems.extend(error.problems)
        return None


def _typed(value: Any) -> Any:
    """A printed word as the value it stands for."""
    words = {"True": True, "False": False, "true": True, "false": False}
    if not isinstance(value, str):
        return value
    if value in words:
        return words[value]
    return int(value) if value.isdigit() else value


def _cluster(reading: LogReading, hardware: Hardware, stack: Stack, gpus: int) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of a node has a smaller one."""
    per_node = min(hardware.network.gpus_per_node, gpus)
    if gpus % per_node:
        what = f"{gpus} GPUs are no whole number of nodes of {per_node} ({hardware.name})"
        raise InputError([Problem(reading.source, what)])
    network = on_fewer_gpus(hardware.network, per_node)
    return Cluster(
        accelerator=hardware.accelerator,
        network=network,
        stack=stack,
        num_nodes=gpus // per_node,
        site=site_of(hardware),
    )


def _candidate(reading: LogReading, numbers: Mapping[str, int]) -> Candidates:
    degrees = {name: _known(reading, name) or 1 for name in DEGREES}
    vpp = degrees.pop("vpp")
    vpp = vpp if numbers["pp"] > 1 else 1
    settings = reading.settings
    is_flex = settings.get("moe_token_dispatcher_type") == "flex"
    row: dict[str, Any] = {name: numbers[name] for name in ("tp", "pp", "micro_batch_size")} | degrees
    row |= {
        "vpp": vpp,
        "schedule": "interleaved" if vpp > 1 else "1f1b",
        "etp": int(settings.get("expert_tensor_parallel_size") or 1),
        "fp8": _fp8(settings),
        "sharding": _sharding(reading),
        "sequence_parallel": settings.get("sequence_parallel") in ("True", "true") and numbers["tp"] > 1,
        "fp8_attention": _is_on(settings, "fp8_dot_product_attention"),
        "deepep": _is_on(settings, "moe_enable_deepep", "use_turbo_deepep") or is_flex,
        "sync_free_stage": int(settings.get("turbo_sync_free_moe_stage") or 0),
        **_recompute(settings),
    }
    if is_flex and str(settings.get("moe_flex_dispatcher_backend")) in ("deepep", "hybridep"):
        row["dispatch_backend"] = settings["moe_flex_dispatcher_backend"]
    if _is_on(settings, "fine_grained_activation_offloading"):
        named = re.findall(r"\w+", str(settings.get("offload_modules", "")))
        row["offload_modules"] = "+".join(name for name in named if name in KNOB["offload_modules"].members) or "none"
    group = str(settings.get("microbatch_group_size_per_vp_stage"))
    if row["schedule"] == "interleaved" and group.isdecimal() and int(group) > numbers["pp"]:
        row["microbatch_group"] = int(group)
    if "overlap_grad_reduce" in settings:
        row["overlap_grad_reduce"] = _is_on(settings, "overlap_grad_reduce")
    if "tp_comm_overlap" in settings:
        row["tp_overlap"] = _is_on(settings, "tp_comm_overlap") and numbers["tp"] > 1
    if "cross_entropy_loss_fusion" in settings:
        row["loss_fusion"] = _is_on(settings, "cross_entropy_loss_fusion")
    return Candidates.from_words(row)


def _is_on(settings: Mapping[str, Any], *names: str) -> bool:
    return any(str(settings.get(name)).lower() == "true" for name in names)


def _fp8(settings: Mapping[str, Any]) -> str:
    if settings.get("quantization") is not None:
        return "hybrid" if "fp8" in str(settings["quantization"]) else "none"
    if settings.get("fp8") in (None, "False", "false"):
        return "none"
    return str(_TABLE["fp8_recipes"].get(str(settings.get("fp8_recipe") or "delayed"), "hybrid"))


def _sharding(reading: LogReading) -> str:
    settings = reading.settings
    named = next((word for name, word in _TABLE["sharded_by"].items() if _is_on(settings, name)), "")
    if named or reading.framework in SHARDED:
        strategy = str(settings.get("data_parallel_sharding_strategy"))
        return str(_TABLE["strategies"].get(strategy, named)) if named == "megatron_fsdp" else "fsdp2"
    stage = next((settings[name] for name in SETTINGS["sharding"][1:] if settings.get(name) is not None), None)
    if stage is not None:
        return str(_TABLE["zero_stages"].get(str(stage), "none"))
    return "distributed_optimizer" if _is_on(settings, "use_distributed_optimizer") else "none"


def _recompute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Recompute columns of a framework's settings; some print one switch."""
    granularity = next((settings[name] for name in SETTINGS["recompute"] if settings.get(name) is not None), None)
    if _is_on(settings, "checkpoint_activations", "flag:gradient_checkpointing"):
        granularity = "full"
    if "remat_policy" in settings and granularity not in (None, "full", "none"):
        granularity = "selective"
    if granularity == "selective":
        return {"recompute": "selective"}
    if granularity != "full":
        return {"recompute": "none"}
    layers = settings.get("recompute_num_layers")
    if settings.get("recompute_method") == "block" and layers is not None:
        if not int(layers):
            return {"recompute": "none"}
        return {"recompute": "full", "recompute_method": "block", "recompute_num_layers": int(layers)}
    return {"recompute": "full"}


def measurement_of(reading: LogReading) -> Measurement:
    nan = float("nan")
    peak = reading.peak_memory_bytes if reading.memory_kind in _PEAKS else None
    ending: Ending = "out_of_memory" if reading.died is Death.OUT_OF_MEMORY else "ran"
    return Measurement(
        tokens_per_s_per_gpu=reading.tokens_per_s_per_gpu or nan,
        step_s=reading.step_s or nan,
        peak_bytes=peak or nan,
        peak_kind=_PEAKS.get(reading.memory_kind, "driver") if reading.memory_kind else "driver",
        ending=ending,
        noise=reading.noise if reading.noise is not None else nan,
    )
