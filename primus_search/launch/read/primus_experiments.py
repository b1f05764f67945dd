"""The experiment of a YAML of Primus: its Megatron and torchtitan back ends, and those that a table of names reads."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.files.source import Document, read
from primus_search.launch.adapters import SFT, keys_of, tuning_in
from primus_search.launch.contract import translated, whole
from primus_search.launch.experiment import Experiment, experiment_of
from primus_search.launch.read import torchtitan
from primus_search.launch.read.launcher_table import launchers
from primus_search.launch.read.launchers import of_given
from primus_search.launch.read.megatron import candidate_words
from primus_search.launch.read.megatron_experiments import must_be_mapping, of_settings
from primus_search.launch.read.torchtitan_command import JOB_FILES
from primus_search.launch.read.torchtitan_experiment import flavored, namesake, of_torchtitan
from primus_search.launch.refusals import variables_of
from primus_search.models.megatron_yaml import TRAINERS, experiment_settings, filled, look_up
from primus_search.models.model_files import load_model
from primus_search.values.machine.framework import NOTHING
from primus_search.values.model import Model

TORCHTITAN_MODELS = Path("primus/configs/models/torchtitan")
"""Where Primus has the model files of its torchtitan back end."""


def of_primus(path: Path, _: str, world: int, model: Model | None) -> Experiment:
    document = read(path)
    module = _trainer(document)
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
    given = experiment_settings(document, path)
    found, origin = translated(framework, given)
    loaded, problems = (model, ()) if model else _model_of(path)
    row, keys = candidate_words(framework, found, loaded, world)
    keys |= known_keys(framework.keys).read_beside
    overrides = module.get("overrides") or {}
    lora = keys_of(framework)
    tuning = tuning_in(torchtitan.flattened(filled(document, overrides)), lora)
    sections = {key.partition(".")[0] for key in lora.read}
    own = {key: value for key, value in found.items() if origin.get(key, key) in overrides and key not in sections}
    made = experiment_of(path, framework, row, found, own, keys, (loaded, problems), origin=origin)
    written = {key: value for key, value in given.items() if key not in sections} | variables_of(os.environ)
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


BACK_ENDS = {"maxtext": "primus_maxtext", "megatron_bridge": "megatron_bridge"}
"""Back ends of Primus that a launcher's table reads."""


def _given_to_back_end(
    path: Path, document: Document, module: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], str]:
    """The settings of a back end, those of its model file below; and the name of that file."""
    name = str(filled(document, module.get("model", "")))
    file = look_up(name, path.parent, os.environ, folder)
    given = torchtitan.flattened(filled(document, module.get("overrides") or {}))
    if file is not None:
        body = read(file)
        must_be_mapping(body, body.data, ())
        given = torchtitan.flattened(filled(body, body.data)) | given
    given.pop("extends", None)
    return given, name


def _trainer(document: Document) -> Mapping[str, Any]:
    """The module of an experiment that trains: pre-training, or fine-tuning of every weight."""
    modules = document.data.get("modules") if isinstance(document.data, dict) else None
    name = next((one for one in TRAINERS if isinstance(modules, dict) and isinstance(modules.get(one), dict)), None)
    if name is None:
        names = ", ".join(modules) if isinstance(modules, dict) else "none"
        what = f"expected modules.{' or modules.'.join(TRAINERS)} (modules: {names})"
        raise InputError([document.problem(("modules",), what)])
    module: Mapping[str, Any] = document.data["modules"][name]
    overrides = module.get("overrides") or {}
    must_be_mapping(document, overrides, ("modules", name, "overrides"))
    return module


def _model_of(path: Path) -> tuple[Model | None, tuple[Problem, ...]]:
    try:
        return load_model(str(path)), ()
    except InputError as error:
        return None, error.problems
