"""The experiment of a Megatron script, of a log that dumps its arguments, and of settings in the keys of a contract."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, readable
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import whole_number
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.shell.shell_variables import UNSET
from primus_search.files.source import Document, Keys, plain, read, shown
from primus_search.launch.adapters import keys_of, refuse_adapters, tuning_in
from primus_search.launch.contract import fits, is_off, translated, whole
from primus_search.launch.experiment import Experiment, experiment_of
from primus_search.launch.read.megatron import SCHEDULE, candidate_words, default_batch, model_keys
from primus_search.launch.read.script_arguments import (
    ARGUMENTS,
    CONFIG,
    NODES,
    PER_NODE,
    STARTS,
    UNDECIDED,
    WORLD,
    WRITTEN,
    settings_in,
    started_with,
)
from primus_search.launch.read.torchtitan_experiment import of_torchtitan
from primus_search.launch.refusals import is_variable, variables_of
from primus_search.launch.world import NO_WORLD, World
from primus_search.models.families.megatron_hybrid import PATTERNS
from primus_search.models.megatron_yaml import from_document
from primus_search.models.model_constants import CONSTANT_KEYS
from primus_search.models.tokenizers import assumed_vocabulary
from primus_search.values.machine.framework import NOTHING, Framework, Settings
from primus_search.values.model import Model

LOG_ARGUMENT = re.compile(
    r"^[ \t]{0,80}(?:\S{1,200}[ \t])?[ \t]{0,8}([a-z][a-z0-9_]{1,80}) \.{3,80}+ (\S(?:.*\S)?)[ \t\r]*$", re.MULTILINE
)
"""A line of Megatron's dump of its arguments: `  tensor_model_parallel_size ...... 8`."""
LEAST_ARGUMENTS = 20


def must_be_mapping(document: Document, value: Any, keys: Keys) -> None:
    """Raises `InputError` at `keys` of a document where a value is no mapping."""
    if not isinstance(value, Mapping):
        raise InputError([document.problem(keys, "expected a mapping of keys")])


def of_script(path: Path, text: str, world: int, model: Model | None) -> Experiment:
    """The experiment of a script, or of a log that dumps its arguments."""
    dumped = LOG_ARGUMENT.findall(text)
    if len(dumped) >= LEAST_ARGUMENTS:
        given = {key: _plain(value) for key, value in dumped}
        return _of_arguments(path, given, world, model, is_whole=False)
    return _of_written(path, settings_in(text, folder=path.parent), world, model, text)


def _of_written(path: Path, found: dict[str, Any], world: int, model: Model | None, text: str = "") -> Experiment:
    """The experiment of arguments that somebody wrote, with those of DeepSpeed's JSON."""
    refuse_adapters(found, key_table("megatron")["adapters"])
    found = _with_deepspeed(found, path.parent)
    if str(found.get("zero_stage")) == "3" and is_off(found.get("untie_embeddings_and_output_weights")):
        found = {key: value for key, value in found.items() if key != "zero_stage"} | key_table(DEEPSPEED)["tied"]
    given, undecided = _decided(found, text)
    lora = keys_of(load_framework("megatron"))
    tuning = tuning_in(given, lora)
    own = {key: value for key, value in given.items() if not tuning or key not in lora.read}
    read = _of_arguments(path, own, world, model)
    return replace(read, assumed=(*read.assumed, *undecided), tuning=tuning)


def _of_arguments(path: Path, given: Settings, world: int, model: Model | None, *, is_whole: bool = True) -> Experiment:
    started = _world_in(given)
    devices = started.gpus or world
    given = {key: value for key, value in given.items() if key != NODES}
    return of_settings(path, load_framework("megatron"), given, devices, model, started, is_whole=is_whole)


def _world_in(given: Settings) -> World:
    """The GPUs that settings of a script or a log name."""
    gpus, per_node, nodes = (whole_number(str(given.get(key, ""))) or 0 for key in (WORLD, PER_NODE, NODES))
    return World(gpus, per_node) if gpus else World(nodes=nodes)


def _with_deepspeed(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings with those of DeepSpeed's JSON, which the script writes or which stands beside it."""
    if found.get("deepspeed") and str(found.get("num_experts", "1")) != "1":
        found |= _deepspeed_experts(found)
    elif found.get("deepspeed"):
        found.pop("num_experts", None)
    table = key_table(DEEPSPEED)
    if found.get("deepspeed") or CONFIG in found or OF_PATCH in found:
        ways = ((found[key], *one) for key, means in table["means"].items() if key in found for one in means.items())
        meant = [settings for value, words, settings in ways if fits(value, words)]
        found |= {key: value for settings in meant for key, value in settings.items()}
        found = {table["renamed"].get(key, key): value for key, value in found.items() if value is not None}
    text = found.pop(WRITTEN, "")
    name = str(found.get(CONFIG, ""))
    beside = folder / Path(name).name
    if not text and name and not UNSET.search(name) and beside.is_file():
        text = read_text(beside, most=MAX_TABLE_BYTES)
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        given = {}
    zero = given.get("zero_optimization") if isinstance(given, dict) else None
    if not isinstance(zero, dict) or not isinstance(zero.get("stage"), int):
        return found
    sizes = {ours: given[key] for key, ours in table["sizes"].items() if isinstance(given.get(key), int)}
    place = zero.get("offload_optimizer")
    offload = {"cpu_optimizer": True} if isinstance(place, dict) and place.get("device") != "none" else {}
    del found[CONFIG]
    return sizes | {"zero_stage": zero["stage"]} | offload | found


def _deepspeed_experts(found: Settings) -> dict[str, Any]:
    """Where Megatron-DeepSpeed has experts: by default in every second layer, one for a token.

    Source: microsoft/Megatron-DeepSpeed megatron/arguments.py and megatron/model/transformer.py.
    """
    if found.get("mlp_type", "standard") != "standard":
        raise ValueError(f"mlp_type: {found['mlp_type']}: experts beside a dense MLP are not modelled")
    every = whole("expert_interval", found.get("expert_interval", 2), least=1)
    layers = whole("num_layers", found.get("num_layers", 0), least=0)
    return {
        "moe_layer_freq": ["01"[n % every == 0] for n in range(1, layers + 1)],
        "moe_router_topk": found.get("topk", "1"),
        "moe_router_pre_softmax": True,
        **({} if found.get("enable_expert_tensor_parallelism") else {"expert_tensor_parallel_size": 1}),
    }


DEEPSPEED = "megatron_deepspeed"
"""The table of what Megatron-DeepSpeed and Pai-Megatron-Patch say otherwise than Megatron-LM."""
OF_PATCH = "patch_tokenizer_type"
"""An argument of Pai-Megatron-Patch alone (megatron_patch/arguments.py)."""


def _decided(found: dict[str, Any], text: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a script without variables that have no value, and notes on tests without an answer.

    Those of keys that are not read stay as they are written. Raises ValueError where a setting that is read has no
    value, where the model or the batch hangs on a test that is not answered, and where several trainings differ.
    """
    framework = load_framework("megatron")
    found = {key: value for key, value in found.items() if key not in ASSUMED or not UNSET.search(str(value))}
    read = framework.spelled | known_keys("megatron").read_beside | model_keys()
    undecided: dict[str, set[str]] = found.pop(UNDECIDED, {})
    if differs := sorted(found.pop(STARTS, set()) & read):
        raise ValueError(f"starts several trainings, which differ in {', '.join(differs)}: leave one of them")
    needed = model_keys() | ARGUMENTS | {"pipeline_model_parallel_size", "global_batch_size", "seq_length"}
    is_short = not all(key in found for key in ARGUMENTS_OF_A_RUN)
    missing = {name: None for name, keys in undecided.items() if keys & needed or (is_short and not keys)}
    for key, value in found.items():
        for word in value if isinstance(value, list) else [str(value)]:
            missing |= dict.fromkeys(UNSET.findall(word)) if key in read else {}
    if missing:
        names = ", ".join(_named(name) for name in missing)
        how = (
            "set them in the environment (NAME=value before the command), or what the script is started with by --args"
        )
        line = started_with(text, missing)
        raise ValueError(f"depends on {names}: {how}{': ' if line else ''}{line}")
    notes = tuple(f"{_named(name)} {_why(name, keys)}" for name, keys in undecided.items() if not keys or keys & read)
    return {key: UNSET.sub(r"$\1", value) if isinstance(value, str) else value for key, value in found.items()}, notes


def _named(name: str) -> str:
    """What a script depends on, as it stands there."""
    return f"${name}" if name.isdigit() else name


def _why(name: str, keys: set[str]) -> str:
    """The note on a test without an answer, or on a file that is not there."""
    if not keys:
        return "is read by the script and does not stand beside it"
    changes = f"(changes {', '.join(sorted(keys)[:6])})"
    if " " in name:
        return f"is not answered: read as false {changes}"
    return f"has no value: branches that test it are read as if it were empty {changes}"


OLDER_ROUTER = (
    "moe_router_topk = 2: by default since core 0.5; a script of before has one expert a token, --moe-router-topk 1"
)
"""What is said of a script that gives no experts a token (megatron/core/transformer/moe/switch_mlp.py of core 0.4)."""
ASSUMED = ("tokenizer_model", WORLD)
"""Arguments that something is assumed for where they hang on a variable without a value."""
ARGUMENTS_OF_A_RUN = ("hidden_size", "micro_batch_size")
"""Arguments without which a script whose branches need a variable is not read."""


def of_settings(
    path: Path,
    framework: Framework,
    given: Settings,
    devices: int,
    model: Model | None,
    world: World = NO_WORLD,
    *,
    is_whole: bool = True,
) -> Experiment:
    """The experiment of settings in the keys of a contract, printed or written, on so many devices.

    is_whole: what they leave out is at the default of the framework.
    """
    given, environ = _without_variables(given)
    with readable(shown(path)):
        if framework.launcher == "torchtitan":
            return of_torchtitan(path, dict(given), devices, model, framework, is_whole=is_whole)
        found, origin = translated(framework, given)
        is_trained = framework.name == "megatron" and is_whole and not found.keys().isdisjoint(LENGTHS)
        batch = default_batch(found, devices) if is_trained and is_off(found.get("global_batch_size")) else 0
        found |= {"global_batch_size": batch} if batch else {}
        rows = None if model or not is_sized(found) else assumed_vocabulary(found)
        loaded, problems = (
            (model, ()) if model else model_of_arguments(path, found | ({"vocab_size": rows} if rows else {}))
        )
        row, keys = candidate_words(framework, found, loaded, devices)
        keys |= known_keys(framework.keys).read_beside
        read = experiment_of(
            path, framework, row, found, found, keys, (loaded, problems), world, origin, is_whole=is_whole
        )
        read = replace(read, written=dict(given) | environ if is_whole else NOTHING)
    source = f"the last of {SCHEDULE}" if found.get(SCHEDULE) else "by default a micro-batch of every replica"
    assumed = [f"global_batch_size = {batch}: {source}"] if batch else []
    if rows is not None:
        assumed.append(f"vocab_size = {rows}: the file names no vocabulary; --set vocab_size= changes it")
    if is_trained and loaded and loaded.is_moe and not model and "moe_router_topk" not in found:
        assumed.append(OLDER_ROUTER)
    return replace(read, assumed=(*read.assumed, *assumed))


def _without_variables(given: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings, and the variables of the job's environment among them."""
    environ = {key: value for key, value in given.items() if is_variable(key)}
    return {key: value for key, value in given.items() if key not in environ}, environ


def is_sized(found: Settings) -> bool:
    """Whether settings have the sizes of a model."""
    return "hidden_size" in found and any(key in found for key in ("num_layers", *PATTERNS))


LENGTHS = ("train_iters", "train_samples", "epochs")
"""Arguments that a training has, and a server of its model has not."""
MODEL_ARGUMENTS = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
"""Megatron's functional tests and NVIDIA's model zoo: arguments as a mapping, beside `ENV_VARS:`."""


def of_mapping(path: Path, _: str, world: int, model: Model | None) -> Experiment:
    document = read(path)
    given = document.data.get("MODEL_ARGS")
    must_be_mapping(document, given, ("MODEL_ARGS",))
    environ = {str(key): str(value) for key, value in (document.data.get("ENV_VARS") or {}).items()}
    script = " ".join(word for key, value in given.items() for word in _argument(str(key), value))
    return _of_written(path, settings_in(script, {**os.environ, **environ}) | variables_of(environ), world, model)


def _argument(key: str, value: Any) -> list[str]:
    """A key and its value, escaped for a shell, as words of a command line; a switch that is off is none."""
    if value is False or value is None:
        return []
    text = str(value).replace("\\", "")
    return [key] if value is True else [key, text if "$" in text else shlex.quote(text)]


def _plain(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    if text.startswith("["):
        return [part.strip(" '\"") for part in text.strip("[]").split(",") if part.strip()]
    return text


def _typed(value: Any) -> Any:
    """A size as the number or the list of numbers that it is written as."""
    if isinstance(value, list):
        return [_typed(one) for one in value]
    return plain(value) if isinstance(value, str) else value


def model_of_arguments(path: Path, found: Settings) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model that a list of arguments sizes, and why there is none."""
    if "num_layers" not in found and not any(found.get(key) for key in PATTERNS):
        has_encoder = any(key in found for key in ("encoder_num_layers", "decoder_num_layers"))
        what = (
            "sizes an encoder and a decoder (T5), which are not modelled"
            if has_encoder
            else "names no model: num_layers is missing; give --model a preset or a config.json"
        )
        return None, (Problem(shown(path), what),)
    # What makes layers of another kind is read or refused, never left out.
    known = model_keys() | CONSTANT_KEYS | {"tensor_model_parallel_size"}
    sizes = {key: _typed(value) for key, value in found.items() if key in known}
    if sizes.get("encoder_num_layers") == sizes.get("num_layers"):  # so decoders are printed, too
        sizes.pop("encoder_num_layers", None)
    sizes.pop("gated_linear_unit", None)
    sizes.setdefault("untie_embeddings_and_output_weights", False)
    sizes.setdefault("swiglu", False)
    sizes.setdefault("num_query_groups", 1)  # the argument's default, read where group_query_attention is on
    sizes["add_bias_linear"] = not found.get("disable_bias_linear") and sizes.get("add_bias_linear") is not False
    try:
        with readable(shown(path)):
            return from_document(Document(shown(path), sizes), path), ()
    except InputError as error:
        return None, error.problems
