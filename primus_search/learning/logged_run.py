"""A log's reading as a measured run: model, cluster, workload, one candidate, and what was measured.

What the log does not print and a projection needs is taken from what the user says beside the files (hardware, model);
what is still missing is a problem by name. Values that `LogReading.assumed` lists are used and said again.

Training runs from logs, run folders and tables: what was read, and what was refused with its reason.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import whole_number
from primus_search.declare.record_table import read_records
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import Hardware, load_cluster, load_hardware
from primus_search.files.word_rules import hardware_named
from primus_search.launch.contract import translated
from primus_search.launch.experiment import Experiment, settled, silent_axes
from primus_search.launch.read import experiments
from primus_search.launch.read.megatron import PER_NODE
from primus_search.launch.world import World, nodes_of
from primus_search.learning.readers import read_log
from primus_search.learning.reading import Assumption, Death, LogReading, MemoryKind
from primus_search.models.model_files import load_model
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.knobs import KNOB
from primus_search.values.knobs.values import PARALLEL
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, Measurement, PeakKind, Provenance, RunTable
from primus_search.values.model import Model
from primus_search.values.workload import Workload

SIZES = ("gpus", "tp", "pp", "seq_length", "micro_batch_size", "global_batch_size")
"""Facts without which a run cannot be projected."""

LAUNCH_SUFFIXES = (".toml", ".yaml", ".yml", ".sh", ".json")
"""Files that are never tried as logs."""
NAMES = ("model_name", "total_params")
"""Facts of a model that are no settings."""
DUMPED = ("megatron", "primus")
"""Contracts of programs that dump every argument by its name."""
LEAST_CONFIGURED = 100
"""Settings from which on a printed configuration is taken for the whole one."""
NEEDED = tuple(name for name in SIZES if name in COLUMN_NAMES)
"""Sizes without which a log gives no candidate."""

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


def measured_run(reading: LogReading, said: SaidBeside, stack: Stack) -> MeasuredRun:
    """The run of a log on the stack that is its starting point. Raises `InputError` with every missing fact."""
    problems: list[Problem] = []
    hardware = _tried(problems, partial(_hardware, reading, said))
    model = _tried(problems, partial(_model, reading, said))
    sizes = {name: _known(reading, name) for name in SIZES}
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        problems.append(Problem(reading.source, f"the log does not print {', '.join(missing)}"))
    if reading.step_s is None and reading.died is not Death.OUT_OF_MEMORY:
        problems.append(Problem(reading.source, "the log has no steady step time"))
    if problems or hardware is None or model is None:
        raise InputError(problems)
    numbers = {name: value for name, value in sizes.items() if value is not None}
    cluster = _cluster(reading, hardware, stack, numbers["gpus"])
    started, assumed = _launched(reading, model)
    workload = Workload(
        seq_length=numbers["seq_length"],
        global_batch_size=numbers["global_batch_size"],
        routing_imbalance=stack.experts.natural_imbalance if model.is_moe else 1.0,
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
        assumed=_in_words(assumed),
    )


Made = TypeVar("Made")


def _tried(problems: list[Problem], make: Callable[[], Made]) -> Made | None:
    """What `make` returns, or None after noting why it cannot."""
    try:
        return make()
    except InputError as error:
        problems.extend(error.problems)
        return None


def _launched(reading: LogReading, model: Model | None) -> tuple[Experiment, dict[str, Assumption]]:
    """`launched`, with what it refuses as a problem of the log."""
    try:
        return launched(reading, model)
    except ValueError as error:
        raise InputError([Problem(reading.source, str(error))]) from error


def _in_words(assumed: Mapping[str, Assumption]) -> tuple[str, ...]:
    return tuple(f"{name} = {one.value}: {one.because}" for name, one in assumed.items())


def with_assumptions(reading: LogReading) -> LogReading:
    """The reading with what is taken for it where its log prints nothing, listed as assumptions."""
    if any(_known(reading, name) is None for name in NEEDED):
        return reading
    _, assumed = launched(reading, _sized(reading)[0])
    return replace(reading, assumed=assumed)


def read_job(path: Path, world: int = 0, model: Model | None = None, arguments: Sequence[str] = ()) -> Experiment:
    """The job of a launch file or of a log, whatever it is: `read_experiment` for files, `learn`'s reading for logs.

    `arguments`: what a script is started with.
    Raises `InputError` where it is neither.
    """
    if path.suffix not in LAUNCH_SUFFIXES and not experiments.is_recipe(path):
        try:
            reading = read_log(path)
        except InputError:
            return experiments.read_experiment(path, world, model, arguments)
        return logged_job(reading, world, model)
    return experiments.read_experiment(path, world, model, arguments)


def logged_job(reading: LogReading, world: int = 0, model: Model | None = None) -> Experiment:
    """The job that a log's run was; `world`: its GPUs where the log does not print them. Raises `InputError`."""
    missing = [name for name in NEEDED if _known(reading, name) is None]
    if missing:
        raise InputError([Problem(reading.source, f"the log does not print {', '.join(missing)}")])
    sized, problems = (model, ()) if model else _sized(reading)
    reading = replace(reading, gpus=_known(reading, "gpus") or world or None)
    started, assumed = _launched(reading, sized)
    own: dict[str, Any] = {
        "model": sized,
        "model_problems": tuple(problems),
        "world": World(reading.gpus or 0, started.world.per_node),
        "assumed": _in_words(assumed),
    }
    return replace(started, **own, not_modelled=(*started.not_modelled, *reading.not_modelled))


def launched(reading: LogReading, model: Model | None) -> tuple[Experiment, dict[str, Assumption]]:
    """What a log's run was started as, read from its printed settings by its contract, and every assumption.

    Raises ValueError for settings that no candidate has.
    """
    framework = load_framework(reading.contract)
    printed = {**reading.model, **reading.settings}.items()
    given = {key: printed_value(value) for key, value in printed if key not in NAMES} | _degrees(framework, reading)
    is_whole = is_dump(reading)
    gpus = _known(reading, "gpus") or _known(reading, "tp", 1) * _known(reading, "pp", 1) * _known(reading, "cp", 1)
    started = experiments.of_settings(Path(reading.source), framework, given, gpus, model, is_whole=False)
    row = dict(started.row) | {"vpp": 1 if started.row["pp"] == 1 else started.row["vpp"]}
    assumed = dict(reading.assumed)
    if not is_whole:
        for axis in silent_axes(framework, row, translated(framework, given)[0]):
            row[axis] = KNOB[axis].word(KNOB[axis].default)
            assumed.setdefault(axis, Assumption(value=row[axis], because="the log does not print it"))
    for name in ("cp", "ep", "vpp"):
        if reading.__getattribute__(name) is None and name not in assumed and (name != "vpp" or row["pp"] > 1):
            assumed[name] = Assumption(value=row[name], because="the log does not print it")
    return replace(started, row=settled(framework, row, model)), assumed


def is_dump(reading: LogReading) -> bool:
    """Whether a log prints all that its program is set to, so that what it does not print is at its default."""
    if reading.contract == "torchtitan":  # announces what is on
        return any(key.startswith("compile.") for key in reading.settings)
    return len(reading.settings) >= (experiments.LEAST_ARGUMENTS if reading.contract in DUMPED else LEAST_CONFIGURED)


def _degrees(framework: Framework, reading: LogReading) -> dict[str, Any]:
    """Degrees and batches as settings of the contract, where its own settings do not hold them already."""
    found: dict[str, Any] = {}
    for name in (*PARALLEL, "micro_batch_size", "vpp"):
        value = _known(reading, name)
        if value is not None and not (name == "vpp" and reading.contract == "torchtitan"):
            found[framework.spellings[name].key] = value
    names = {"seq_length": "seq_length", "global_batch_size": "global_batch_size"}
    if reading.contract == "torchtitan":
        found["training.local_batch_size"] = _known(reading, "micro_batch_size")
        names = {"training.seq_len": "seq_length", "training.global_batch_size": "global_batch_size"}
    return found | {key: value for key, name in names.items() if (value := _known(reading, name)) is not None}


def printed_value(text: Any) -> Any:
    """A printed word as the value it stands for."""
    words = {"true": True, "false": False, "none": None}
    if not isinstance(text, str):
        return text
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("[") and text.endswith("]"):
        return [part.strip(" '\"") for part in text.strip("[]").split(",") if part.strip()]
    number = whole_number(text)
    return text if number is None else number


def _known(reading: LogReading, name: str, default: int | None = None) -> Any:
    """The whole number that a log prints or that is taken for it, else the default."""
    value = getattr(reading, name)
    if value is None and name in reading.assumed:
        value = reading.assumed[name].value
    return default if value is None else int(value)


def _hardware(reading: LogReading, said: SaidBeside) -> Hardware:
    name = said.hardware or (hardware_named(reading.device) if reading.device else None)
    if name is None:
        printed = f"prints {reading.device!r}, which no hardware file describes" if reading.device else "prints no GPU"
        raise InputError([Problem(reading.source, f"the log {printed}; give --hardware NAME")])
    return load_hardware(name)


def _model(reading: LogReading, said: SaidBeside) -> Model:
    if said.model is not None:
        return load_model(said.model)
    found, faults = _sized(reading)
    if found is None or faults:
        raise InputError(faults)
    return found


def _sized(reading: LogReading) -> tuple[Model | None, Sequence[Problem]]:
    """The model that a log prints the sizes of, and why it has none."""
    facts = {name: printed_value(value) for name, value in reading.model.items()}
    if "num_layers" not in facts or "hidden_size" not in facts:
        return None, (Problem(reading.source, "the log prints no sizes of the model; give --model NAME"),)
    if not is_dump(reading):
        facts.setdefault("add_bias_linear", False)
    found, problems = experiments.model_of_arguments(Path(reading.source), facts)
    if found is None:
        return None, problems
    name = str(reading.model.get("model_name") or f"{found.num_layers} layers of {found.hidden}")
    return replace(found, name=name, source=f"log of {reading.framework}"), ()  # equal for logs of one model


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


LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz", ".jsonl")
"""Files of a run folder that are tried as logs, beside event files and `trainer_state.json`."""

TABLE_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Runs of logs and of tables, in the order of the files, and one problem per file that was refused."""

    runs: tuple[LogReading, ...]
    refused: tuple[Problem, ...]
    measured: tuple[MeasuredRun, ...] = ()


def read_files(
    paths: Sequence[Path], framework: str | None = None, read_table: Callable[[Path], RunTable] = read_records
) -> Readings:
    """Every run among files and folders. Raises `InputError` with all reasons where none can be read.

    read_table: how a CSV or parquet is read; tables of records are read as they are.
    """
    runs: list[LogReading] = []
    refused: list[Problem] = []
    measured: list[MeasuredRun] = []
    for path in paths:
        for one in _files(path):
            try:
                if one.suffix in TABLE_SUFFIXES:
                    measured += read_table(one).runs
                else:
                    runs.append(with_assumptions(read_log(one, framework)))
            except InputError as error:
                refused += error.problems
    if not runs and not measured:
        raise InputError(refused or [Problem(", ".join(map(str, paths)), "no file in it looks like a training log")])
    return Readings(runs=tuple(runs), refused=tuple(refused), measured=tuple(measured))


def _files(path: Path) -> Iterator[Path]:
    """A file itself; of a folder the files that may be logs, by name."""
    if not path.is_dir():
        yield path
        return
    for one in sorted(path.rglob("*")):
        is_state = one.name == "trainer_state.json" or ".tfevents." in one.name
        if one.is_file() and (is_state or one.suffix in LOG_SUFFIXES):
            yield one


def reading_of(run: MeasuredRun) -> LogReading:
    """A run of a table in the form of a log's reading, for the same report."""
    row, m, rate = run.candidates.row(0), run.measured, run.tokens_per_s_per_gpu if run.has_rate else None
    return LogReading(
        source=run.provenance.id or run.provenance.source,
        framework=run.framework or "table",
        model={"model_name": run.model.name},
        device=run.gpu,
        gpus=run.cluster.world,
        **{name: row[name] for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size")},
        seq_length=run.workload.seq_length,
        global_batch_size=run.workload.global_batch_size,
        step_s=run.workload.tokens_per_step / rate / run.cluster.world if rate else None,
        tokens_per_s_per_gpu=rate,
        peak_memory_bytes=None if math.isnan(m.peak_bytes) else m.peak_bytes,
    )
