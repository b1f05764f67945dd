"""Real experiments read back: what a launch file of a framework starts, as a candidate with its model and workload.

    experiment = read_experiment(Path("examples/megatron/configs/MI355X/mixtral_8x7B_v0.1-BF16-pretrain.yaml"), 8)
    experiment.candidate.row(0)["ep"]

Read are Primus experiments (Megatron and torchtitan back ends), Megatron scripts, lists of arguments and the dump of
arguments in a log, and torchtitan job files. A key that no axis covers is listed in `not_modelled`, unless the contract
of the framework or the list of known keys says that it changes neither time nor memory. Comments are never read.
"""

import fnmatch
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.declare.families.megatron_hybrid import PATTERNS, VARIANTS
from primus_search.declare.framework_files import load_framework
from primus_search.declare.known_keys import known_keys
from primus_search.declare.launch import scripts, torchtitan, torchtitan_arguments
from primus_search.declare.launch.contract import OFF, same, settings_of, whole
from primus_search.declare.launch.megatron import candidate_words, canonical
from primus_search.declare.megatron_yaml import (
    PRESET_FOLDER,
    experiment_settings,
    filled,
    from_document,
    look_up,
    readable_keys,
)
from primus_search.declare.model_files import load_model
from primus_search.declare.presets import model_called, presets
from primus_search.declare.source import Document, Keys, plain, read, shown
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model

LOG_ARGUMENT = re.compile(
    r"^[ \t]{0,80}(?:\S{1,200}[ \t])?[ \t]{0,8}([a-z][a-z0-9_]{1,80}) \.{3,80}+ (\S(?:.*\S)?)[ \t\r]*$", re.MULTILINE
)
"""A line of Megatron's dump of its arguments: `  tensor_model_parallel_size ...... 8`."""
LEAST_ARGUMENTS = 20
NOTHING: Settings = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a framework.

    row           its axes in words      seq_length, global_batch_size  None where the file does not say
    model         None where the file names none that can be read; `model_problems` then say why
    world         GPUs it starts, 0 where the file does not say
    not_modelled  `key: value` of every setting that no axis covers, with its effect where that is known
    variant       of the framework's stack, where settings of the file mean one (eager: blocks are not compiled)
    """

    path: Path
    framework: Framework
    row: Mapping[str, Any]
    seq_length: int | None
    global_batch_size: int | None
    model: Model | None
    model_problems: tuple[Problem, ...] = ()
    world: int = 0
    not_modelled: tuple[str, ...] = field(default=())
    variant: str = ""

    @property
    def candidate(self) -> Candidates:
        """The experiment as a table of one candidate."""
        return Candidates.from_words(self.row)


def is_experiment(path: Path) -> bool:
    """Whether a file is read as an experiment rather than as a model."""
    try:
        text = read_text(path, most=MAX_TABLE_BYTES)
    except InputError:
        return False
    return path.suffix == ".toml" or bool(re.search(r"^modules:", text, re.MULTILINE)) or _has_arguments(text)


def read_experiment(path: Path, world: int = 0, model: Model | None = None) -> Experiment:
    """The experiment in a file, started on `world` GPUs where the file does not say how many.

    `model` stands in for the one of the file. Raises `InputError` where the file is none, or sets what cannot be read.
    """
    text = read_text(path, most=MAX_TABLE_BYTES)
    try:
        if path.suffix == ".toml":
            return _torchtitan(
                path, torchtitan.flattened(tomllib.loads(text)), world, model, load_framework("torchtitan")
            )
        if re.search(r"^modules:", text, re.MULTILINE):
            return _primus(path, world, model)
        if _has_arguments(text):
            return _megatron(path, text, world, model)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise InputError([Problem(shown(path), str(error))]) from error
    what = (
        "is no experiment: expected a Primus YAML with modules:, a script or log with Megatron's arguments, or a TOML"
    )
    raise InputError([Problem(shown(path), what)])


def _has_arguments(text: str) -> bool:
    return (
        "--tensor-model-parallel-size" in text
        or "--micro-batch-size" in text
        or len(LOG_ARGUMENT.findall(text)) >= LEAST_ARGUMENTS
    )


# --- Primus -----------------------------------------------------------------------------------------------------------


def _primus(path: Path, world: int, model: Model | None) -> Experiment:
    document = read(path)
    module = _trainer(document)
    back_end = str(module.get("framework", "megatron"))
    if back_end == "torchtitan":
        return _torchtitan_of_primus(path, document, module, world, model)
    if back_end != "megatron":
        what = f"framework '{back_end}' is not read; read: megatron, torchtitan"
        raise InputError([document.problem(("modules", "pre_trainer", "framework"), what)])
    found = experiment_settings(document, path)
    framework = load_framework("primus")
    loaded, problems = (model, ()) if model else _model_of(path)
    row, keys = candidate_words(framework, found, loaded, world)
    own = {key: value for key, value in found.items() if key in (module.get("overrides") or {})}
    return _experiment(path, framework, row, found, own, keys, loaded, problems)


def _torchtitan_of_primus(
    path: Path, document: Document, module: Mapping[str, Any], world: int, model: Model | None
) -> Experiment:
    """The experiment of Primus' torchtitan back end: its defaults, its model file, the overrides."""
    framework = load_framework("torchtitan")
    name = str(filled(document, module.get("model", "")))
    file = look_up(name, path.parent, os.environ, TORCHTITAN_MODELS)
    given = torchtitan.flattened(filled(document, module.get("overrides") or {}))
    if file is not None:
        body = read(file)
        _must_be_mapping(body, body.data, ())
        given = torchtitan.flattened(filled(body, body.data)) | given
    layers = given.pop("model.n_layers", None)
    if model is None:
        model = _flavor(framework, given) or _namesake(path, name)
        model = replace(model, num_layers=whole("model.n_layers", layers)) if model and layers else model
    return _torchtitan(path, given, world, model, framework, framework.launchers["primus"])


def _trainer(document: Document) -> Mapping[str, Any]:
    modules = document.data.get("modules") if isinstance(document.data, dict) else None
    if not isinstance(modules, dict) or not isinstance(modules.get("pre_trainer"), dict):
        names = ", ".join(modules) if isinstance(modules, dict) else "none"
        what = f"expected modules.pre_trainer; only pre-training is modelled (modules: {names})"
        raise InputError([document.problem(("modules",), what)])
    module: Mapping[str, Any] = modules["pre_trainer"]
    _must_be_mapping(document, module.get("overrides") or {}, ("modules", "pre_trainer", "overrides"))
    return module


def _must_be_mapping(document: Document, value: Any, keys: Keys) -> None:
    if not isinstance(value, Mapping):
        raise InputError([document.problem(keys, "expected a mapping of keys")])


def _model_of(path: Path) -> tuple[Model | None, tuple[Problem, ...]]:
    try:
        return load_model(str(path)), ()
    except InputError as error:
        return None, error.problems


# --- Megatron ---------------------------------------------------------------------------------------------------------


def _megatron(path: Path, text: str, world: int, model: Model | None) -> Experiment:
    framework = load_framework("megatron")
    dumped = LOG_ARGUMENT.findall(text)
    found = (
        {key: _plain(value) for key, value in dumped} if len(dumped) >= LEAST_ARGUMENTS else scripts.settings_in(text)
    )
    found |= {ours: found[flag] for ours, flag in scripts.FLAGS.items() if flag in found}
    found |= {"fp8_format": found["fp8"]} if found.get("fp8") and "fp8_format" not in found else {}
    started = (
        int(found["world_size"]) if str(found.get("world_size", "")).isdecimal() else scripts.devices_in(text, found)
    )
    loaded, problems = (model, ()) if model else _model_of_arguments(path, found)
    row, keys = candidate_words(framework, found, loaded, started or world)
    keys |= {"nnodes", "nproc_per_node", "world_size", *scripts.FLAGS.values()}
    return _experiment(path, framework, row, found, found, keys, loaded, problems, started)


def _plain(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    if text.startswith("["):
        return [part.strip(" '\"") for part in text.strip("[]").split(",") if part.strip()]
    return text


def _model_of_arguments(path: Path, found: Settings) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model that a list of arguments sizes."""
    if "num_layers" not in found and not any(found.get(key) for key in PATTERNS):
        return None, (Problem(shown(path), "names no model: num_layers is missing"),)
    # What makes layers of another kind is read or refused, never left out.
    known = {*readable_keys(), *known_keys("megatron").switches, *(key for variant in VARIANTS for key in variant.keys)}
    sizes = {key: plain(value) if isinstance(value, str) else value for key, value in found.items() if key in known}
    sizes.setdefault("untie_embeddings_and_output_weights", False)
    sizes.setdefault("swiglu", False)
    sizes["add_bias_linear"] = not found.get("disable_bias_linear")
    if str(sizes.get("tokenizer_type")) == "NullTokenizer" and "vocab_size" in sizes:
        sizes["vocab_size"] = int(sizes["vocab_size"]) + 1
    if isinstance(window := sizes.get("window_size"), str):
        sizes["window_size"] = [int(part) for part in window.strip("()").split(",")]
    try:
        return from_document(Document(shown(path), sizes), path), ()
    except InputError as error:
        return None, error.problems


# --- torchtitan -------------------------------------------------------------------------------------------------------


TORCHTITAN_MODELS = Path("primus/configs/models/torchtitan")
"""Where Primus has the model files of its torchtitan back end."""


def _torchtitan(
    path: Path,
    given: dict[str, Any],
    world: int,
    model: Model | None,
    framework: Framework,
    preset: Settings = NOTHING,
) -> Experiment:
    """The experiment of torchtitan settings; `preset` holds what a launcher sets where they do not."""
    found = {**preset, **given}
    loaded = model or _flavor(framework, found) or _imported(path, found)
    problems = () if loaded else (Problem(shown(path), "names no model that a preset has the shape of; give --model"),)
    row, keys = torchtitan.words(framework, found, loaded, world)
    ours = {"job.description", "job.dump_folder", "model.name", "model.flavor", "experimental.custom_import"}
    keys |= ours | {"training.steps"}
    renamed = {"seq_length": "training.seq_len", "global_batch_size": "training.global_batch_size"}
    sizes = {name: found.get(key, framework.defaults.get(key)) for name, key in renamed.items()}
    if int(str(sizes["global_batch_size"] or -1)) < 0:
        local = int(str(found.get("training.local_batch_size", framework.defaults["training.local_batch_size"])))
        ranks = row.get("tp", 1) * row.get("pp", 1) * row.get("cp", 1)
        sizes["global_batch_size"] = local * (world // ranks) if world else None
    compiled = torchtitan.compiled(found, framework.defaults)
    read = _experiment(path, framework, row, sizes, given, keys, loaded, problems)
    keys_of_variant = (torchtitan.COMPILE, torchtitan.COMPONENTS)
    notes = tuple(note for note in read.not_modelled if not note.startswith(keys_of_variant))
    return replace(read, not_modelled=notes, variant="" if "model" in compiled else torchtitan.EAGER)


def _namesake(path: Path, name: str) -> Model | None:
    """The model of Primus' torchtitan file: the preset, or the Megatron file of Primus, that is called the same."""
    stem = Path(name).stem.lower().removesuffix("-fp8").replace("x16e", "16e").replace("x128e", "128e")
    known = presets()
    if stem in known:
        return known[stem].model
    for above in path.resolve().parents:
        folder = above / PRESET_FOLDER
        found = [file for file in sorted(folder.glob("*.yaml")) if file.stem.lower() == stem] if folder.is_dir() else []
        if found:
            return load_model(str(found[0]))
    return None


def _imported(path: Path, found: Settings) -> Model | None:
    """The model that a module beside the file registers under the name that the file asks for."""
    module = path.with_name(f"{found.get('experimental.custom_import')}.py")
    if not module.is_file() or module.stem != found.get("model.name"):
        return None
    return replace(torchtitan_arguments.model_of_module(read_text(module, most=MAX_TABLE_BYTES)), name=module.stem)


def _flavor(framework: Framework, found: Settings) -> Model | None:
    return model_called(framework, f"{found.get('model.name')}:{found.get('model.flavor')}")


# --- what is not modelled ---------------------------------------------------------------------------------------------


def _experiment(
    path: Path,
    framework: Framework,
    row: dict[str, Any],
    sizes: Settings,
    given: Settings,
    read_keys: set[str],
    model: Model | None,
    problems: tuple[Problem, ...],
    world: int = 0,
) -> Experiment:
    row = _settled(framework, row, model)
    left = [key for key in given if key not in read_keys and not _is_known(framework, key)]
    left = [key for key in left if key not in framework.effects or not same(given[key], framework.defaults.get(key))]
    effects = {key: f" ({effect})" for key, effect in framework.effects.items() if effect}
    notes = [f"{key}: {str(given[key])[:60]}{effects.get(key, '')}" for key in left]
    notes += _projected_otherwise(framework, row, given, read_keys, has_experts=model is None or model.is_moe)
    batch, length = sizes.get("global_batch_size"), sizes.get("seq_length")
    defaults = framework.defaults
    return Experiment(
        path=path,
        framework=framework,
        row=row,
        seq_length=_count(length if length is not None else defaults.get("seq_length")),
        global_batch_size=_count(batch if batch is not None else defaults.get("global_batch_size")),
        model=model,
        model_problems=problems,
        world=world,
        not_modelled=tuple(notes),
    )


def _projected_otherwise(
    framework: Framework, row: Mapping[str, Any], given: Settings, read_keys: set[str], *, has_experts: bool
) -> list[str]:
    """Settings beside an axis that a file has otherwise than a launch file of the same candidate would."""
    ours = settings_of(framework, row, has_experts=has_experts)
    if row["pp"] == 1:
        ours = {key: value for key, value in ours.items() if key not in framework.schedules[row["schedule"]].keys}
    if "overlap_param_gather" in given:
        hides = row["overlap_grad_reduce"] and row["sharding"] == "distributed_optimizer"
        ours.setdefault("overlap_param_gather", hides)
    others = [key for key in given if key in ours and not same(given[key], ours[key])]
    loose = [key for key in framework.effects if key in given and key in read_keys and key not in ours]
    spelled = frozenset().union(*(spelling.keys for spelling in framework.spellings.values()))
    others += [key for key in given if key in spelled.difference(ours, loose) and given[key] is True]
    notes = [f"{key}: {str(given[key])[:60]} (projected as {shortened(ours.get(key))})" for key in others]
    notes += [f"{key}: {str(given[key])[:60]} ({framework.effects[key]})" for key in loose if given[key] not in OFF]
    return notes


def shortened(value: Any) -> str:
    """A value as a note has it: off for what is left out."""
    return "off" if value in (None, False, "", []) else str(value)[:60]


def _count(value: Any) -> int | None:
    return int(str(value)) if value is not None else None


def _is_known(framework: Framework, key: str) -> bool:
    """Whether a key sizes the model, or is known to change neither time nor memory."""
    if key in readable_keys() or key in known_keys("megatron").irrelevant:
        return key not in framework.effects
    return any(fnmatch.fnmatch(key, pattern) for pattern in framework.ignored)


def _settled(framework: Framework, row: dict[str, Any], model: Model | None) -> dict[str, Any]:
    """The row with axes that have no effect at their neutral value, and the plainest layout."""
    words = Candidates.from_words(row).row(0)
    if words["tp"] == 1:
        words["sequence_parallel"] = False
    if model is not None and not model.is_moe:
        words |= {"ep": 1, "etp": 1}
    words |= {one.axis: KNOB[one.axis].default for one in framework.idles if words[one.where] in one.words}
    layout = canonical(Layout.parse(words["pipeline_layout"]), model, words["pp"] * words["vpp"])
    return words | {"pipeline_layout": str(layout)}
