"""The job that a log's run was: candidate, model and sizes, from printed settings by the framework's contract."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import whole_number
from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import translated
from primus_search.launch.experiment import Experiment, settled, silent_axes
from primus_search.launch.read import experiments, megatron_experiments
from primus_search.launch.read.recipes import is_recipe
from primus_search.launch.world import World
from primus_search.learning.readers import read_log
from primus_search.learning.reading import Assumption, LogReading
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.knobs import KNOB
from primus_search.values.knobs.values import PARALLEL
from primus_search.values.machine.framework import Framework
from primus_search.values.model import Model

SIZES = ("gpus", "tp", "pp", "seq_length", "micro_batch_size", "global_batch_size")
"""Facts without which a run cannot be projected."""

LAUNCH_SUFFIXES = (".toml", ".yaml", ".yml", ".sh", ".json", ".slurm", ".sbatch")
"""Files that are never tried as logs."""
NAMES = ("model_name", "total_params")
"""Facts of a model that are no settings."""
DUMPED = ("megatron", "primus")
"""Contracts of programs that dump every argument by its name."""
LEAST_CONFIGURED = 100
"""Settings from which on a printed configuration is taken for the whole one."""
NEEDED = tuple(name for name in SIZES if name in COLUMN_NAMES)
"""Sizes without which a log gives no candidate."""


def launched_or_problem(reading: LogReading, model: Model | None) -> tuple[Experiment, dict[str, Assumption]]:
    """`launched`, with what it refuses as a problem of the log."""
    try:
        return launched(reading, model)
    except ValueError as error:
        raise InputError([Problem(reading.source, str(error))]) from error


def assumption_texts(assumed: Mapping[str, Assumption]) -> tuple[str, ...]:
    return tuple(f"{name} = {one.value}: {one.because}" for name, one in assumed.items())


def with_assumptions(reading: LogReading) -> LogReading:
    """The reading with what is taken for it where its log prints nothing, listed as assumptions."""
    if any(printed_count(reading, name) is None for name in NEEDED):
        return reading
    _, assumed = launched(reading, model_of_log(reading)[0])
    return replace(reading, assumed=assumed)


def read_job(path: Path, world: int = 0, model: Model | None = None, arguments: Sequence[str] = ()) -> Experiment:
    """The job of a launch file or of a log, whatever it is: `read_experiment` for files, `learn`'s reading for logs.

    `arguments`: what a script is started with.
    Raises `InputError` where it is neither.
    """
    if path.suffix not in LAUNCH_SUFFIXES and not is_recipe(path):
        try:
            reading = read_log(path)
        except InputError:
            return experiments.read_experiment(path, world, model, arguments)
        return logged_job(reading, world, model)
    return experiments.read_experiment(path, world, model, arguments)


def logged_job(reading: LogReading, world: int = 0, model: Model | None = None) -> Experiment:
    """The job that a log's run was; `world`: its GPUs where the log does not print them. Raises `InputError`."""
    missing = [name for name in NEEDED if printed_count(reading, name) is None]
    if missing:
        raise InputError([Problem(reading.source, f"the log does not print {', '.join(missing)}")])
    sized, problems = (model, ()) if model else model_of_log(reading)
    reading = replace(reading, gpus=printed_count(reading, "gpus") or world or None)
    started, assumed = launched_or_problem(reading, sized)
    own: dict[str, Any] = {
        "model": sized,
        "model_problems": tuple(problems),
        "world": World(reading.gpus or 0, started.world.per_node),
        "assumed": assumption_texts(assumed),
        "device_bytes": reading.device_bytes or 0.0,
    }
    return replace(started, **own, not_modelled=(*started.not_modelled, *reading.not_modelled))


TITAN = "torchtitan@0.2.2"
UNPRINTED = {TITAN: {"activation_checkpoint.mode": "none"}}
"""Settings by contract that stand for an axis which no line of a log is about, where the default needs more settings of
the job file to be read."""


def launched(reading: LogReading, model: Model | None) -> tuple[Experiment, dict[str, Assumption]]:
    """What a log's run was started as, read from its printed settings by its contract, and every assumption.

    Raises ValueError for settings that no candidate has.
    """
    framework = load_framework(reading.contract)
    printed = {**reading.model, **reading.settings}.items()
    given = {key: printed_value(value) for key, value in printed if key not in NAMES} | _degrees(framework, reading)
    is_whole = is_dump(reading)
    gpus = printed_count(reading, "gpus") or printed_count(reading, "tp", 1) * printed_count(
        reading, "pp", 1
    ) * printed_count(reading, "cp", 1)
    whole = {**UNPRINTED.get(reading.contract, {}), **given}
    started = megatron_experiments.of_settings(Path(reading.source), framework, whole, gpus, model, is_whole=False)
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
    if reading.contract == TITAN:  # announces what is on
        return any(key.startswith("compile.") for key in reading.settings)
    return len(reading.settings) >= (
        megatron_experiments.LEAST_ARGUMENTS if reading.contract in DUMPED else LEAST_CONFIGURED
    )


def _degrees(framework: Framework, reading: LogReading) -> dict[str, Any]:
    """Degrees and batches as settings of the contract, where its own settings do not hold them already."""
    found: dict[str, Any] = {}
    for name in (*PARALLEL, "micro_batch_size", "vpp"):
        value = printed_count(reading, name)
        if value is not None and not (name == "vpp" and reading.contract == TITAN):
            found[framework.spellings[name].key] = value
    names = {"seq_length": "seq_length", "global_batch_size": "global_batch_size"}
    if reading.contract == TITAN:
        found["training.local_batch_size"] = printed_count(reading, "micro_batch_size")
        names = {"training.seq_len": "seq_length", "training.global_batch_size": "global_batch_size"}
    return found | {key: value for key, name in names.items() if (value := printed_count(reading, name)) is not None}


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


def printed_count(reading: LogReading, name: str, default: int | None = None) -> Any:
    """The whole number that a log prints or that is taken for it, else the default."""
    value = getattr(reading, name)
    if value is None and name in reading.assumed:
        value = reading.assumed[name].value
    return default if value is None else int(value)


def model_of_log(reading: LogReading) -> tuple[Model | None, Sequence[Problem]]:
    """The model that a log prints the sizes of, and why it has none."""
    facts = {name: printed_value(value) for name, value in reading.model.items()}
    if "num_layers" not in facts or "hidden_size" not in facts:
        return None, (Problem(reading.source, "the log prints no sizes of the model; give --model NAME"),)
    if not is_dump(reading):
        facts.setdefault("add_bias_linear", False)
    found, problems = megatron_experiments.model_of_arguments(Path(reading.source), facts)
    if found is None:
        return None, problems
    name = str(reading.model.get("model_name") or f"{found.num_layers} layers of {found.hidden}")
    return replace(found, name=name, source=f"log of {reading.framework}"), ()  # equal for logs of one model
