"""A log's reading as a measured run: model, cluster, workload, one candidate, and what was measured.

What the log does not print and a projection needs is taken from what the user says beside the files (hardware, model);
what is still missing is a problem by name. Values that `LogReading.assumed` lists are used and said again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from primus_search.base.errors import InputError, Problem, tried
from primus_search.files.device_memory import with_memory
from primus_search.files.hardware_files import Hardware, load_cluster, load_hardware
from primus_search.files.word_rules import hardware_named
from primus_search.launch.read.script_arguments import PER_NODE
from primus_search.launch.world import World, nodes_of
from primus_search.learning.logged_job import SIZES, assumption_texts, launched_or_problem, model_of_log, printed_count
from primus_search.learning.reading import Death, LogReading, MemoryKind
from primus_search.models.model_files import load_model
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, Measurement, PeakKind, Provenance
from primus_search.values.model import Model
from primus_search.values.workload import Workload

_PEAKS: Mapping[MemoryKind, PeakKind] = {
    MemoryKind.ALLOCATED: "allocated",
    MemoryKind.RESERVED: "reserved",
    MemoryKind.DEVICE: "driver",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidBeside:
    """What the user says beside the files, for all of them: hardware and model by name or path."""

    hardware: str | None = None
    model: str | None = None


def measured_run(reading: LogReading, beside: SaidBeside, stack: Stack) -> MeasuredRun:
    """The run of a log on the stack that is its starting point. Raises `InputError` with every missing fact."""
    problems: list[Problem] = []
    hardware = tried(partial(_hardware, reading, beside), problems)
    model = tried(partial(_model, reading, beside), problems)
    sizes = {name: printed_count(reading, name) for name in SIZES}
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        problems.append(Problem(reading.source, f"the log does not print {', '.join(missing)}"))
    if reading.step_s is None and reading.died is not Death.OUT_OF_MEMORY:
        problems.append(Problem(reading.source, "the log has no steady step time"))
    if problems or hardware is None or model is None:
        raise InputError(problems)
    numbers = {name: value for name, value in sizes.items() if value is not None}
    cluster = _cluster(reading, hardware, stack, numbers["gpus"])
    started, assumed = launched_or_problem(reading, model)
    workload = Workload(
        seq_length=numbers["seq_length"],
        global_batch_size=numbers["global_batch_size"],
        routing_spread=stack.experts.natural_spread if model.is_moe else 0.0,
    )
    return MeasuredRun(
        model=model,
        cluster=cluster,
        workload=workload,
        candidates=started.candidate,
        measured=measurement_of(reading),
        provenance=Provenance(id=Path(reading.source).name, source=reading.source, gpu=reading.device or ""),
        hardware=hardware.path.stem,
        framework=reading.framework,
        assumed=assumption_texts(assumed),
    )


def _hardware(reading: LogReading, beside: SaidBeside) -> Hardware:
    name = beside.hardware or (hardware_named(reading.device) if reading.device else None)
    if name is None:
        printed = f"prints {reading.device!r}, which no hardware file describes" if reading.device else "prints no GPU"
        raise InputError([Problem(reading.source, f"the log {printed}; give --hardware NAME")])
    return with_memory(load_hardware(name), reading.device_bytes or 0.0)


def memory_notes(reading: LogReading, beside: SaidBeside) -> tuple[str, ...]:
    """A note on a run whose device has other memory than its file; none where the device is not known."""
    try:
        return _hardware(reading, beside).notes if reading.device_bytes else ()
    except InputError:
        return ()


def _model(reading: LogReading, beside: SaidBeside) -> Model:
    if beside.model is not None:
        return load_model(beside.model)
    found, faults = model_of_log(reading)
    if found is None or faults:
        raise InputError(faults)
    return found


def _cluster(reading: LogReading, hardware: Hardware, stack: Stack, gpus: int) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of a node, or on nodes of another size, has such nodes."""
    printed = str(reading.settings.get(PER_NODE, ""))
    world = World(gpus, int(printed) if printed.isdecimal() else 0)
    nodes, per_node = nodes_of(world, hardware.network.gpus_per_node)
    return load_cluster(hardware, nodes, stack, gpus_per_node=per_node)


def measurement_of(reading: LogReading) -> Measurement:
    """What a log measured; what ran out of memory tells of memory, not of speed."""
    ran, kind = reading.died is not Death.OUT_OF_MEMORY, reading.memory_kind or MemoryKind.DEVICE
    return Measurement(
        tokens_per_s_per_gpu=(ran and reading.tokens_per_s_per_gpu) or math.nan,
        step_s=(ran and reading.step_s) or math.nan,
        peak_bytes=(reading.peak_memory_bytes if reading.memory_kind in _PEAKS else None) or math.nan,
        peak_kind=_PEAKS.get(kind, "driver"),
        ending="ran" if ran else "out_of_memory",
        noise=reading.noise if reading.noise is not None else math.nan,
    )
