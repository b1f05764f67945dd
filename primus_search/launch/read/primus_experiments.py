"""The experiment of a YAML of Primus: its Megatron and torchtitan back ends, and those that a table of names reads; and
the command that starts one with settings over it.

    primus-cli slurm srun -N 4 -- train pretrain --config exp_pretrain.yaml --micro_batch_size 2
    EXP=exp_pretrain.yaml bash ./examples/run_pretrain.sh --micro_batch_size 2
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, tried
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.dotted_keys import flattened
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.shell import bash
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import UNSET, header_variables
from primus_search.files.source import Document, parse, plain, shown
from primus_search.launch.adapters import SFT, keys_of, tuning_in
from primus_search.launch.contract import translated, whole
from primus_search.launch.experiment import Experiment, experiment_of
from primus_search.launch.read.launcher_documents import written
from primus_search.launch.read.launcher_models import as_script_text
from primus_search.launch.read.launcher_table import launchers
from primus_search.launch.read.launchers import of_given
from primus_search.launch.read.megatron import candidate_words
from primus_search.launch.read.megatron_experiments import must_be_mapping, of_settings
from primus_search.launch.read.script_arguments import command_settings
from primus_search.launch.read.torchtitan_command import JOB_FILES
from primus_search.launch.read.torchtitan_experiment import flavored, namesake, of_torchtitan
from primus_search.launch.refusals import variables_of
from primus_search.launch.world import NO_WORLD, World
from primus_search.models.megatron_yaml import (
    TRAINER_FOLDER,
    TRAINERS,
    experiment_settings,
    filled,
    from_document,
    primus_file,
)
from primus_search.values.machine.framework import NOTHING, Settings
from primus_search.values.model import Model

TORCHTITAN_MODELS = Path("primus/configs/models/torchtitan")
"""Where Primus has the model files of its torchtitan back end."""


STARTS = re.compile(r"(?<![\w.-])primus-cli(?![\w-])|\brun_(?:(?:local|slurm|k8s)_)?pretrain(?:_cli)?\.sh\b")
"""What a command has that starts Primus."""
EXPORTS = re.compile(r"^[ \t]{0,9}export EXP=\S{1,300}\.ya?ml", re.MULTILINE)
"""What a list of variables has that another script starts Primus with."""
_READS = re.compile(r"\$\{?EXP\b")
"""What a launcher of Primus has that starts the experiment of its environment."""
_ELSE = frozenset(("benchmark", "data", "node_smoke", "preflight", "projection"))
"""Subcommands that train nothing (primus/cli/subcommands)."""
_EACH, _SETS_NODES = "8", ("-N", "--nodes", "--nnodes")
"""GPUs of a node where none are named (runner/primus-cli-direct.sh), and options that give its nodes."""


def of_command(path: Path, text: str, world: int, model: Model | None) -> Experiment:
    """The job that the last command of a script starts. Raises ValueError where it starts none, or without its file."""
    script = bash.followed(text, os.environ, path.parent, starts=STARTS)
    values = {**os.environ, **header_variables(text), **script.variables_of([])}
    runs = [words for words in script.commands if any(map(STARTS.search, words)) and _ELSE.isdisjoint(words)]
    if not runs and not _READS.search(text) and (script.commands or not EXPORTS.search(text)):
        left = f": it exits in line {script.left}; give what it is started with by --args '...'"
        raise ValueError(f"starts no experiment of Primus{left * bool(script.left)}")
    words = runs[-1] if runs else []
    starts = (i for i, one in enumerate(words) if STARTS.search(one))
    at = words.index("--config") if "--config" in words else next(starts, 0)
    before, given = words[:at], {key: _given(one) for key, one in command_settings(words[at:])}
    given.pop("backend_path", None)
    name = given.pop("config", values.get("EXP", ""))
    if not name or UNSET.fullmatch(name):
        raise ValueError("depends on EXP, its experiment: set it in the environment (EXP=FILE before the command)")
    file = beside(path.parent, name) or beside(Path(values.get("PRIMUS_PATH", ".")), name)
    if file is None:
        raise ValueError(f"starts {as_script_text(name)}, which is not beside it, nor in $PRIMUS_PATH")
    unset = next((f"{found[1]} ({key})" for key, one in given.items() if (found := UNSET.search(str(one)))), "")
    if unset:
        raise ValueError(f"depends on {unset}: set it in the environment (NAME=value before the command), or --args")
    nodes = next((value for word, value in pairwise(before) if word in _SETS_NODES), values.get("NNODES", "1"))
    each = values.get("GPUS_PER_NODE", _EACH)
    gpus = int(nodes) * int(each) if nodes.isdecimal() and each.isdecimal() else 0
    started = World(gpus, int(each)) if gpus else NO_WORLD
    held = {key: value for key, value in values.items() if not UNSET.search(value)}
    laid = _VARIABLE.sub(lambda found: held.get(found[1], found[0]), read_text(file, most=MAX_TABLE_BYTES))
    return replace(of_primus(file, laid, started.gpus or world, model, given), path=path, world=started)


def _given(value: Any) -> Any:
    """A value of a command as YAML has it, without quotes around it (primus/core/utils/arg_utils.py)."""
    found = written(value.strip("'\"") if isinstance(value, str) else value)
    if isinstance(found, list):
        return [plain(one) for one in found]
    return plain(found) if isinstance(found, str) else found


_VARIABLE = re.compile(r"\$\{(\w{1,200})(?::[^}]{0,400})?\}")


def of_primus(path: Path, text: str, world: int, model: Model | None, given: Settings = NOTHING) -> Experiment:
    """The job of an experiment; `given`: settings over its overrides."""
    document = parse(text, shown(path))
    module = _trainer(document)
    module["overrides"] = {**(module.get("overrides") or {}), **given}
    back_end = str(module.get("framework", "megatron"))
    trained = SFT if TRAINERS[1] in document.data["modules"] else NOTHING
    if back_end == "torchtitan":
        return _torchtitan_of_primus(path, document, module, world, model)
    if back_end in BACK_ENDS:
        given, name = _given_to_back_end(path, document, module, Path("primus/configs/models") / back_end)
        model = model or (None if given.keys() & {"model_name", "hf_path"} else namesake(path, name))
        job = of_given(path, launchers()[BACK_ENDS[back_end]], given, world, model, of_settings)
        return replace(job, tuning=job.tuning or trained)
    if back_end != "megatron":
        what = f"framework '{back_end}' is not read; read: megatron, torchtitan, {', '.join(BACK_ENDS)}"
        raise InputError([document.problem(("modules",), what)])
    framework = load_framework("primus")
    settings = experiment_settings(document, path)
    settings = _renamed(settings, path.parent)
    found, origin = translated(framework, settings)
    problems: list[Problem] = []
    loaded = model or tried(partial(from_document, document, path), problems)
    row, keys = candidate_words(framework, found, loaded, world)
    keys |= known_keys(framework.keys).read_beside
    overrides = module.get("overrides") or {}
    lora = keys_of(framework)
    whole_names = flattened(filled(document, overrides))
    tuning = tuning_in(whole_names, lora)
    sections = {key.partition(".")[0] for key in lora.read}
    named = overrides.keys() | framework.effects.keys()  # what is not priced of Primus' own files, too
    own = {key: value for key, value in found.items() if origin.get(key, key) in named and key not in sections}
    unread = whole_names.keys() - lora.read
    own |= {key.rpartition(".")[2]: whole_names[key] for key in sorted(unread) if key.partition(".")[0] in sections}
    made = experiment_of(path, framework, row, found, own, keys, (loaded, tuple(problems)), origin=origin)
    written = {key: value for key, value in settings.items() if key not in sections} | variables_of(os.environ)
    return replace(made, written=written, tuning=tuning or trained)


def _torchtitan_of_primus(
    path: Path, document: Document, module: Mapping[str, Any], world: int, model: Model | None
) -> Experiment:
    """The experiment of Primus' torchtitan back end, in keys of job files: defaults, model file, overrides."""
    framework = load_framework(JOB_FILES)
    given, name = _given_to_back_end(path, document, module, TORCHTITAN_MODELS)
    layers = given.pop("model.n_layers", None)
    if model is None:
        model = flavored(framework, given) or namesake(path, name)
        model = replace(model, num_layers=whole("model.n_layers", layers)) if model and layers else model
    return of_torchtitan(path, given, world, model, framework, framework.launchers["primus"])


def _renamed(settings: Settings, folder: Path) -> dict[str, Any]:
    """Settings by the names of today, those of a copy of Primus around a folder whose own file has none of them."""
    names = dict[str, str]()
    for name, earlier in key_table(load_framework("primus").keys)["renamed_in_copies"].items():
        own = primus_file(name, folder, os.environ, TRAINER_FOLDER) if settings.keys() & earlier.keys() else None
        names |= {old: new for old, new in earlier.items() if own and new not in own[0].data}
    return {names.get(key, key): value for key, value in settings.items()}


BACK_ENDS = {"maxtext": "primus_maxtext", "megatron_bridge": "megatron_bridge"}
"""Back ends of Primus that a launcher's table reads."""


def _given_to_back_end(
    path: Path, document: Document, module: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], str]:
    """The settings of a back end, those of its model file below; and the name of that file."""
    name = str(filled(document, module.get("model", "")))
    given = flattened(filled(document, module.get("overrides") or {}))
    if found := primus_file(name, path.parent, os.environ, folder):
        body, _ = found
        must_be_mapping(body, body.data, ())
        given = flattened(filled(body, body.data)) | given
    given.pop("extends", None)
    if "recipe" in given and "cross_entropy_loss_fusion" not in given:
        given[RECIPE_TUNED] = f"{given['recipe']} {given.get('peft')}"
    return given, name


RECIPE_TUNED = "recipe.tuned"
"""The key under which a table finds a recipe of Megatron-Bridge with its adapters, which decide on the loss."""


def _trainer(document: Document) -> dict[str, Any]:
    """The module of an experiment that trains: pre-training, or fine-tuning of every weight."""
    modules = document.data.get("modules") if isinstance(document.data, dict) else None
    name = next((one for one in TRAINERS if isinstance(modules, dict) and isinstance(modules.get(one), dict)), None)
    if name is None:
        names = ", ".join(modules) if isinstance(modules, dict) else "none"
        what = f"expected modules.{' or modules.'.join(TRAINERS)} (modules: {names})"
        raise InputError([document.problem(("modules",), what)])
    module: dict[str, Any] = document.data["modules"][name]
    overrides = module.get("overrides") or {}
    must_be_mapping(document, overrides, ("modules", name, "overrides"))
    return module
