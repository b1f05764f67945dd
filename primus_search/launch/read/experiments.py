"""Real experiments read back: what a launch file of a framework starts, as a candidate with its model and workload.

    experiment = read_experiment(Path("examples/megatron/configs/MI355X/mixtral_8x7B_v0.1-BF16-pretrain.yaml"), 8)
    experiment.candidate.row(0)["ep"]

Read are Primus experiments (Megatron and torchtitan back ends), Megatron scripts, lists of arguments and the dump of
arguments in a log, recipes of Megatron-Bridge and scripts that run one, and torchtitan job files. A key that no axis
covers is listed in `not_modelled`, unless the contract of the framework or the list of known keys says that it changes
neither time nor memory. Comments are never read.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from primus_search.base.errors import InputError, Problem, readable
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.dotted_keys import flattened
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_values import CallRecord
from primus_search.files.source import shown
from primus_search.launch.adapters import NotModelled
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.launcher_documents import ENDS, calls_of, documents_of, options_of, required_of
from primus_search.launch.read.launchers import launcher_of, read_launcher
from primus_search.launch.read.megatron_experiments import (
    LEAST_ARGUMENTS,
    LOG_ARGUMENT,
    MODEL_ARGUMENTS,
    of_mapping,
    of_script,
    of_settings,
)
from primus_search.launch.read.other_files import command, not_read
from primus_search.launch.read.primus_experiments import EXPORTS as EXPORTS_PRIMUS
from primus_search.launch.read.primus_experiments import STARTS as STARTS_PRIMUS
from primus_search.launch.read.primus_experiments import of_command as of_primus_command
from primus_search.launch.read.primus_experiments import of_primus
from primus_search.launch.read.recipe_commands import RUNS_RECIPE, started_in
from primus_search.launch.read.recipe_programs import CONFIGURES_BRIDGE, of_program
from primus_search.launch.read.recipes import NAMED, NamedRecipe, is_recipe, of_recipe, recipes_named
from primus_search.launch.read.script_arguments import command_settings
from primus_search.launch.read.torchtitan_command import JOB_FILES, of_command
from primus_search.launch.read.torchtitan_command import STARTS as STARTS_TORCHTITAN
from primus_search.launch.read.torchtitan_config import flags_of, is_dump, of_configuration, of_dump
from primus_search.launch.read.torchtitan_experiment import of_torchtitan
from primus_search.launch.read.wrapped_scripts import called_in, program_in, script_in
from primus_search.launch.world import World
from primus_search.values.model import Model


def is_experiment(path: Path) -> bool:
    """Whether a file is read as an experiment rather than as a model."""
    try:
        with readable(shown(path)):
            return _reader_of(*_opened(path)) is not None
    except InputError:
        return False


def read_experiment(
    path: Path, world: int = 0, model: Model | None = None, arguments: Sequence[str] = ()
) -> Experiment:
    """The experiment in a file, started on `world` GPUs where the file does not say how many.

    `model` stands in for the one of the file; `arguments` are those that a script is started with. The name of a recipe
    of Megatron-Bridge stands for a file. Raises `InputError` where the file is none, or sets what cannot be read.
    """
    if is_recipe(path):
        with readable(shown(path)):
            return of_recipe(path, NamedRecipe(path.name), world, model, of_settings)
    path, text = _opened(path)
    is_shell = path.suffix not in (*OVERRIDDEN, ".yaml", ".yml")
    started = f"set -- {shlex.join(arguments)}; " if arguments and is_shell else ""  # in the first line: numbers stay
    with readable(shown(path)):
        reader = _reader_of(path, started + text, arguments)
        if reader is None and is_shell and (called := called_in(path, text)):
            reader = _reader_of(path, started + text + called)
        is_program = reader is None and path.suffix == ".py"
        made = _calls_of(path, text, arguments) if is_program else []
        for job, given in _named_by(path, text, arguments, made) if is_program else ():
            if reader := _reader_of(job, given, arguments):
                path, text = job, given
                break
        if reader is None and is_shell and (program := program_in(path, started + text)):
            return _of_started(path, text, world, model, program)
    if isinstance(reader, partial) and is_shell and (program := program_in(path, started + text)):
        beside = read_text(program[0], most=MAX_TABLE_BYTES)
        own = reader.keywords["launcher"].title if "launcher" in reader.keywords else ""
        if (what := next(_devices_of(beside, is_called=True), "")) and not (own and own in what):
            what_it_starts = f"starts {program[0].name}, which {what}; a job of its sizes is priced by {command(text)}"
            raise InputError([Problem(shown(path), what_it_starts)])
    if reader is None:
        raise InputError([Problem(shown(path), not_read(path, text) + (required_of(made) if not arguments else ""))])
    with readable(shown(path)):
        try:
            if path.suffix in OVERRIDDEN or (isinstance(reader, partial) and not is_shell):
                return reader(path, text, world, model, arguments)
            return reader(path, started + text, world, model)
        except NotModelled as error:
            raise ValueError(f"{error}; a job of its sizes is priced by {command(text)}") from None


def _of_started(
    path: Path, text: str, world: int, model: Model | None, program: tuple[Path, list[str], World]
) -> Experiment:
    """The job of a program in Python that a script starts, on the processes that it starts. Raises ValueError with what
    the program is where it is not read."""
    job, arguments, started = program
    given = read_text(job, most=MAX_TABLE_BYTES)
    reader = None if any(_devices_of(given)) else _reader_of(job, given, arguments)
    if not isinstance(reader, partial):
        what = next(_devices_of(given), "") or not_read(job, given, is_bare=True)  # a script's words say the rest
        raise ValueError(f"starts {job.name}, which {what}; the same job is priced by {command(text)}")
    try:
        read: Experiment = reader(job, given, started.gpus or world, model, arguments)
    except NotModelled as error:
        raise ValueError(f"starts {job.name}: {error}; a job of its sizes is priced by {command(text)}") from None
    except ValueError as error:
        raise ValueError(f"starts {job.name}: {error}") from None
    return replace(read, path=path, world=read.world or started)


def _opened(path: Path) -> tuple[Path, str]:
    """A file with its text; the script that it wraps as a file beside it (`job.yaml:script`)."""
    text = read_text(path, most=MAX_TABLE_BYTES)
    started = called_in(path, text) if path.suffix not in (*OVERRIDDEN, ".yaml", ".yml") else ""
    started += called_in(path, started) if started else ""
    if devices := next(_devices_of(text), "") or next(_devices_of(started, is_called=True), ""):
        raise InputError([Problem(shown(path), f"{devices}; a job of its sizes is priced by {command(text)}")])
    script = script_in(path, text)
    inside = path.with_name(f"{path.name}:script")
    return (inside, script) if script and _reader_of(inside, script) else (path, text)


def _devices_of(text: str, *, is_called: bool = False) -> Iterator[str]:
    """What a text says of devices or models that are not modelled; of a script that another one starts (`is_called`),
    which may do so on some devices alone, what rows say that count there."""
    rows = key_table("other_files")["devices"]
    yield from (what for has, *marks, what in rows if (marks or not is_called) and re.search(has, text))


def _calls_of(path: Path, text: str, arguments: Sequence[str]) -> list[CallRecord]:
    """The calls of a program in Python; none of one that is not followed."""
    with suppress(ValueError):
        return calls_of(path, text, dict(command_settings([*arguments])))
    return []


def _named_by(
    path: Path, text: str, arguments: Sequence[str], made: Sequence[CallRecord]
) -> Iterator[tuple[Path, str]]:
    """What a program in Python takes its job from: a document beside it, else the command that starts it, with the
    defaults of its own options (Megatron's are not in the file that is started)."""
    flags = dict(command_settings([*arguments]))
    yield from ((file, read_text(file, most=MAX_TABLE_BYTES)) for file in documents_of(path, made, flags))
    is_megatron, shards = (re.search(key_table("python_names")[kind], text) for kind in ("megatron", "shards"))
    if arguments and (is_megatron or not shards):
        own = {} if is_megatron else options_of(made)
        words = [f"--{key}={value}" for key, value in own.items() if key not in flags]
        yield path.with_name(f"{path.name}:command"), f"python {path.name} {shlex.join([*words, *arguments])}\n"


def _reader_of(path: Path, text: str, arguments: Sequence[str] = ()) -> Callable[..., Experiment] | None:
    """What reads a file, by how it is written; None where it is no experiment."""
    if path.suffix == ".py" and CONFIGURES.search(text):
        return of_configuration
    if path.suffix == ".json" and is_dump(text):
        return of_dump
    if path.suffix not in ENDS and (STARTS_PRIMUS.search(text) or EXPORTS_PRIMUS.search(text)):
        return of_primus_command
    if launcher := launcher_of(path, text, arguments):
        return partial(read_launcher, launcher=launcher, of_contract=of_settings)
    if path.suffix == ".toml":
        return _job_file if JOB_SECTIONS.search(text) else None
    if path.suffix == ".json":
        return None
    if path.suffix == ".py":
        is_bridge = recipes_named(NAMED.findall(text)) or CONFIGURES_BRIDGE.search(text)
        return partial(of_program, of_settings=of_settings) if is_bridge else None
    if re.search(r"^modules:", text, re.MULTILINE):
        return of_primus
    if MODEL_ARGUMENTS.search(text):
        return of_mapping
    if STARTS_TORCHTITAN.search(text):
        return of_command
    if RUNS_RECIPE.search(text):
        return lambda path, text, world, model: of_recipe(
            path, started_in(text, path.parent), world, model, of_settings
        )
    is_script = "--tensor-model-parallel-size" in text or "--micro-batch-size" in text
    return of_script if is_script or len(LOG_ARGUMENT.findall(text)) >= LEAST_ARGUMENTS else None


# --- torchtitan -------------------------------------------------------------------------------------------------------

OVERRIDDEN = (".toml", ".py", ".json")
"""Ends of files that no shell reads: what they are started with are flags over them."""
JOB_SECTIONS = re.compile(
    r"^(?:\[(?:job|parallelism|training|experimental)\b|flavor\s{0,9}=|model\.flavor)", re.MULTILINE
)
"""What a job file of torchtitan has in every release."""
CONFIGURES = re.compile(
    r"^def \w{1,80}\([^)]{0,2000}\)\s{0,8}->\s{0,8}['\"]?(?:\w{1,80}\.){0,4}?(?:\w{0,20}Trainer\.Config"
    r"|Controller\.Config|TransformersBackendConfig)",
    re.MULTILINE,
)
"""A function that returns a configuration of torchtitan 0.3.0, of a policy or of a model of transformers, too."""


def _job_file(path: Path, text: str, world: int, model: Model | None, flags: Sequence[str] = ()) -> Experiment:
    given = flattened(tomllib.loads(text)) | flags_of(JOB_FILES, flags)
    return of_torchtitan(path, given, world, model, load_framework(JOB_FILES))
