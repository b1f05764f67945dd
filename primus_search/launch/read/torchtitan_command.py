"""A command that starts torchtitan: over a job file (0.2.2), or over a configuration function (0.3.0).

    torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --compile.enable
    MODULE=llama3 CONFIG=llama3_8b NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 2
    CONFIG_FILE=llama3_8b.toml ./run_train.sh --parallelism.tensor_parallel_degree=2

What it starts is looked for beside the script and above it; torchtitan's own functions are known without its sources.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from primus_search.base.errors import did_you_mean
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.argument_tables import arguments
from primus_search.files.dotted_keys import flattened
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.shell import bash
from primus_search.files.shell.shell_variables import UNSET
from primus_search.launch.contract import is_ignored
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.torchtitan_config import RELEASE, flags_of, of_configuration
from primus_search.launch.read.torchtitan_experiment import of_torchtitan
from primus_search.launch.world import World, world_of
from primus_search.values.model import Model

JOB_FILES = "torchtitan@0.2.2"
"""The last release with job files, TOML."""
STARTS = re.compile(
    r"(?<![\w-])(?:torchtitan[./]train|run_(?:llama_)?train\.sh)(?![\w-])"
    r"|(?<![\w/-])(?:\./)?train\.py(?= --job\.config_file)"
)
"""What a command has that starts torchtitan."""
CONFIGS = "torchtitan_configs"
"""The table of torchtitan's own configuration functions, which `tools/launch_tables.py` writes."""
USUAL = {"MODULE": "llama3", "CONFIG": "llama3_debugmodel", "NGPU": "8"}
"""What run_train.sh takes where nothing is set."""
MOVES_NOTHING = re.compile(r"--(?:(?:job\.)?dump_folder|job\.description|metrics\.|checkpoint\.|profiling\.)")
"""Flags that name places and experiments, whose values may be what only a run has."""
MOST_ABOVE = 6
OWN_OPTIONS = ("experimental.custom_args_module", "job.custom_config_module")
"""Settings that name a module with options of its own."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a command starts: words behind the program, variables of its environment, and its GPUs."""

    words: list[str]
    variables: Mapping[str, str]
    world: World

    def value(self, flag: str, variable: str) -> str:
        """A flag's value, else that of a variable; empty where neither is given."""
        pairs = [part for word in self.words for part in (word.split("=", 1) if word.startswith("--") else [word])]
        named = [value for word, value in pairwise([*pairs, ""]) if word.replace("-", "_") == flag]
        return named[-1] if named else self.variables.get(variable, "")


def of_command(path: Path, text: str, world: int, model: Model | None) -> Experiment:
    """The job that the last command of a script starts. Raises ValueError where what it starts is not there."""
    started = _started(text, path.parent)
    gpus = started.world.gpus or world
    file = started.value("__job.config_file", "CONFIG_FILE")
    is_job = bool(file) and not started.value("__module", "MODULE")
    flags = [
        UNSET.sub(r"$\1", word) if MOVES_NOTHING.match(word if word[:2] == "--" else before) else word
        for before, word in pairwise(["", *started.words])
    ]
    if missing := UNSET.search(" ".join([*flags, file])):
        raise ValueError(
            f"depends on {missing[1]}: set it in the environment (NAME=value before the command), or --args"
        )
    read = _of_job_file(path, file, flags, gpus, model) if is_job else _of_function(path, started, flags, gpus, model)
    return replace(read, path=path, world=started.world or read.world)


def _started(text: str, folder: Path) -> Started:
    script = bash.followed(text, os.environ, folder)
    both = zip(script.commands, script.before, strict=True)
    runs = [(words, before) for words, before in both if STARTS.search(" ".join(words))]
    if not runs:
        raise ValueError("starts no torchtitan.train that is reached")
    words, before = runs[-1]
    found = ((i, STARTS.search(" ".join(words[i : i + 2]))) for i in range(len(words)))
    at = next(i for i, one in found if one and one.start() < len(words[i]))
    variables = {k: v for k, v in os.environ.items() if k in (*USUAL, "CONFIG_FILE")}
    variables |= {**script.variables.values, **before}
    if words[at].endswith("run_train.sh"):
        each = int(n) if (n := variables.get("NGPU", USUAL["NGPU"])).isdecimal() else 0
        return Started(words[at + 1 :], variables, World(each, each))
    return Started(words[at + 1 :], variables, world_of(words, script.header(words), folder))


def _of_job_file(path: Path, name: str, flags: list[str], gpus: int, model: Model | None) -> Experiment:
    file = next((found for one in _above(path) if (found := one / name).is_file()), None)
    file = file or next((one for one in [path.parent / Path(name).name] if one.is_file()), None)
    if file is None:
        raise ValueError(f"starts {name}, which is not beside it")
    given = flags_of(JOB_FILES, flags)
    given.pop("job.config_file", None)
    data = flattened(tomllib.loads(read_text(file, most=MAX_TABLE_BYTES))) | given
    framework, table = load_framework(JOB_FILES), known_keys("torchtitan")
    known = {*arguments(JOB_FILES), *table.renamed, *table.translated, *framework.spelled, *framework.effects}
    unknown = [key for key in given if key not in known and not is_ignored(framework, table, key)]
    if unknown and not any(data.get(one) for one in OWN_OPTIONS):
        raise ValueError(f"--{unknown[0]}: no option of torchtitan{did_you_mean(unknown[0], known)}")
    return of_torchtitan(file, data, gpus, model, framework)


def _of_function(path: Path, started: Started, flags: list[str], gpus: int, model: Model | None) -> Experiment:
    module = started.value("__module", "MODULE") or USUAL["MODULE"]
    function = started.value("__config", "CONFIG") or USUAL["CONFIG"]
    for file in _modules(path, module):
        return of_configuration(file, read_text(file, most=MAX_TABLE_BYTES), gpus, model, flags, function)
    family = module.removesuffix(".config_registry").rpartition(".")[2]
    own = key_table(CONFIGS).get(family, {})
    if function not in own:
        known = (
            f"{family} has {', '.join(own)}"
            if own
            else f"no {module} is beside it, known are {', '.join(key_table(CONFIGS))}"
        )
        raise ValueError(f"starts --module {module} --config {function}, which is not known: {known}")
    given = {**own[function], **flags_of(RELEASE, flags)}
    given = {key: value for key, value in given.items() if key not in ("module", "config")}
    return of_torchtitan(path, given, gpus, model, load_framework(RELEASE))


def _modules(path: Path, module: str) -> Iterator[Path]:
    """Files that a module may be, as torchtitan's ConfigManager looks for it: its registry first, then itself."""
    place = Path(*module.split("."))
    names = [place / "config_registry.py", place.with_suffix(".py")]
    names += [Path("torchtitan/models") / place / "config_registry.py"]
    yield from (file for above in _above(path) for name in names if (file := above / name).is_file())


def _above(path: Path) -> list[Path]:
    folder = path.resolve().parent
    return [path.parent, *list(folder.parents)[:MOST_ABOVE]]
