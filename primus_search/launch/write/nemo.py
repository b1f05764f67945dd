"""NeMo Megatron-Bridge: a script that runs one of its recipes with overrides of its own command line.

Source: NVIDIA-NeMo/Megatron-Bridge scripts/training/README.md (`KEY=VALUE` overrides of a recipe's ConfigContainer)
and docs/megatron-lm-to-megatron-bridge.md (which Megatron argument is which field).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table
from primus_search.launch.adapters import adapter_settings
from primus_search.launch.contract import is_off, same, translated
from primus_search.launch.decided import resting_settings
from primus_search.launch.read.recipe_overrides import EITHER, overrides_of
from primus_search.launch.read.recipes import (
    COMMANDS,
    NO_RECIPE,
    Recipe,
    fits_its_gpus,
    mode_of,
    model_of,
    recipes,
    unchanged,
)
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.megatron import (
    arguments_of,
    candidate_settings,
    edits,
    model_settings,
    must_start,
    priced_otherwise,
)
from primus_search.launch.write.shell import Text, argument_table, launch_file
from primus_search.models.layer_pattern import layer_pattern
from primus_search.models.megatron_arguments import megatron_keys, model_arguments
from primus_search.models.tokenizers import models_of_tokenizers
from primus_search.values.machine.framework import Settings
from primus_search.values.model import Model


def overrides(job: LaunchJob) -> dict[str, Any]:
    """Dotted fields of the configuration and their values."""
    said = _sizes(job) | candidate_settings(job) | argument_table("training")
    spelling = argument_table("nemo")
    left_out = spelling["of_gpt"] if job.model.is_single_block else []
    off = {key: value for key, value in spelling["off"].items() if key not in left_out}
    resting = resting_settings(job.contract, job.row)
    found = fields_of(resting) | off | {"mixed_precision": _precision(said)}
    found |= fields_of(said) | _of_model(job.model)
    found |= {"model.mtp_hybrid_override_pattern": None} if job.model.is_single_block else {}
    found[f"optimizer.{EITHER}"] = found[f"ddp.{EITHER}"]
    if job.model.constants.activation not in spelling["fused_activations"] and found["model.bias_activation_fusion"]:
        del found["model.bias_activation_fusion"]  # the recipe says what its activation takes
    if job.framework.options["head"]:
        found[HEAD_IN_FP8] = False
    if job.workload.image_tokens:
        found |= {"model.freeze_language_model": False}
        found |= dict.fromkeys(spelling["of_towers"], not job.workload.trains_towers)
    found["dataset.seq_length"] = job.workload.seq_length
    if job.model.is_moe and not said.keys() & {"fp8_format", "fp4_format"}:
        found |= dict.fromkeys(spelling["padded_for_fp8"], False)
    return found | adapter_settings(job.framework, job.workload)


SCOPE = "model.cuda_graph_scope"


def _sizes(job: LaunchJob) -> dict[str, Any]:
    """Arguments of the model; a recipe brings the parts of its own that none says."""
    if job.recipe:
        return arguments_of(job)
    try:
        return model_settings(job)
    except Inexpressible as error:
        own = _recipes_of(job)
        raise Inexpressible(f"{error}; --recipe brings them: {own}" if own else str(error)) from error


def fields_of(said: Settings) -> dict[str, Any]:
    """Settings under the names of the configuration, but for those of the precision."""
    found: dict[str, Any] = {}
    spelling = argument_table("nemo")
    for name, value in said.items():
        ours = spelling["renamed"].get(name, name)
        if ours is not None and name not in (*spelling["of_precision"], REDUCED, *spelling["opposites"]):
            section = next((section for section, names in spelling["sections"].items() if name in names), "model")
            found[f"{section}.{ours}"] = list(layer_pattern(value)) if name in spelling["lists"] else value
    off = (fields for name, fields in spelling["opposites"].items() if name in said)
    return found | dict.fromkeys(chain(*off), False)  # of the sizes of a model, over what a stack has


def _of_model(model: Model) -> dict[str, Any]:
    """Fields of a provider that Megatron's arguments do not say, or otherwise."""
    whole = {"model.q_lora_rank": None} if model.latent and not model.latent.q_lora_rank else {}
    return whole | {
        "model.num_query_groups": model.num_kv_heads,
        "model.vocab_size": model.vocab_size,
        "model.share_embeddings_and_output_weights": model.is_tied,
        "model.add_bias_linear": model.has_linear_bias,
    }


def difference(job: LaunchJob) -> dict[str, Any]:
    """The overrides of a job that its recipe has otherwise, sizes of its model included.

    Raises `InputError` for a recipe that is not known, `Inexpressible` for one of another model.
    """
    name = _named(job)
    recipe = recipes().get(name)
    if recipe is None:
        raise InputError([Problem("--recipe", f"{name!r} is no recipe that is known{did_you_mean(name, recipes())}")])
    named = model_of(recipe)
    mode = _mode(job) or "pretrain"
    if named is None or recipe.model.lower() not in _hub_names(job.model) or mode_of(name) not in ("", mode):
        own = _recipes_of(job)
        listed = f"{mode} recipes of {job.model.name}: {own}"
        trained = f"trains {recipe.model or 'a model of its own'} ({mode_of(name)})"
        raise Inexpressible(f"{name} {trained}; {listed if own else f'no {mode} recipe has this model'}")
    if not fits_its_gpus(name):
        what = "Megatron-Bridge does not start it, whose own experts and stages are more than the GPUs of its name"
        raise Inexpressible(f"{name}: {what}")
    table = argument_table("nemo")
    sizes = model_arguments(named, job.workload.seq_length, job.row["tp"], ())
    defaults = fields_of(job.framework.defaults)
    off = {key: defaults.get(key, value) for key, value in table["off"].items()}
    usual = off | {HEAD_IN_FP8: False} | fields_of(sizes) | _of_model(named)
    return {
        key: value
        for key, value in overrides(job).items()
        if key in table["always"] or (key not in table["of_class"] and not same(_of_recipe(recipe, key, usual), value))
    }


def _recipes_of(job: LaunchJob) -> str:
    """The first recipes that train the model of a job as the job does."""
    mode, names = _mode(job) or "pretrain", _hub_names(job.model)
    own = (one for one, r in recipes().items() if r.model.lower() in names and mode_of(one) == mode)
    return ", ".join(sorted(filter(fits_its_gpus, own), key=len)[:MOST_NAMED])


HEAD_IN_FP8 = "model.fp8_output_proj"
"""Products of the head in MXFP8, which no candidate has; Megatron refuses it with another precision."""
MOST_NAMED = 8
MISSING = object()


def _named(job: LaunchJob) -> str:
    return job.recipe.removesuffix("_config")


def _hub_names(model: Model) -> set[str]:
    """Names on the hub of presets that are a model but for what recipes resize."""
    resized = {name: model.__getattribute__(name) for name in ("num_mtp_layers", "vocab_size", "vocab_padding")}
    bare = replace(model, adapters=None, towers=())
    return {name for name, one in models_of_tokenizers().items() if replace(one, towers=(), **resized) == bare}


def _of_recipe(recipe: Recipe, key: str, usual: Mapping[str, Any]) -> Any:
    """What a recipe has for a field: what it assigns, else what its model has, or is off, else what equals nothing."""
    last = key.rpartition(".")[2]
    if key == "mixed_precision":
        return _precision(translated(load_framework("nemo"), recipe.settings)[0])
    argument = next((name for name, field in argument_table("nemo")["renamed"].items() if field == last), last)
    return recipe.settings.get(last, recipe.settings.get(argument, usual.get(key, MISSING)))


def _precision(said: Settings) -> dict[str, Any]:
    """The precision as `MixedPrecisionConfig`: a name of one leaves gradients in FP32 and some layers in BF16."""
    table, of_precision = key_table(COMMANDS), argument_table("nemo")["of_precision"]
    fields = {field: said[name] for name, field in of_precision.items() if not is_off(said.get(name))}
    if not fields.keys() & {"fp8", "fp4"}:
        fields = {key: word for key, word in fields.items() if (key, word) == MASTERS}
    word = str(fields.get("fp4_recipe", fields.get("fp8_recipe")))
    reduced = {"grad_reduce_in_fp32": is_off(said.get(REDUCED))}
    return {**table["precision"], **reduced, **fields, **table["precision_of"].get(word, {})}


REDUCED, MASTERS = "grad_reduce_in_bf16", ("fp8_recipe", "delayed")
"""What decides gradients, and without FP8 the masters of the precision-aware optimizer."""


def _activation(model: Model) -> str:
    clamp = f", clamped at {model.activation_clamp:g}" if model.activation_clamp else ""
    return (model.constants.activation or "gelu") + clamp


def _mode(job: LaunchJob) -> str:
    """What Megatron-Bridge calls a job that starts from trained weights."""
    return "lora" if job.model.adapters else "sft" if job.workload.task == "sft" else ""


def by_hand(job: LaunchJob, settings: Settings) -> list[str]:
    """What the recipe has to bring, for no override says it: functions, kinds of layers, details of a precision.

    settings  those of the job, of its recipe among them
    """
    model, mode, lines = job.model, _mode(job), list[str]()
    if mode:
        named = f"RECIPE: one of {argument_table('nemo')['of_mode'][mode]}; " if not job.recipe else ""
        lines.append(f"{named}checkpoint.pretrained_checkpoint, your data")
    if job.recipe:
        return lines + priced_otherwise(job, settings)
    if job.workload.image_tokens:
        lines.append(f"RECIPE: {job.framework.options['towers']}")
    if model.constants.activation not in ("", "silu") or model.activation_clamp or not model.is_gated:
        lines.append(f"RECIPE: one whose activation is that of the model ({_activation(model)})")
    if model.latent is not None or not model.is_uniform:
        lines.append("RECIPE: one of the model's own family, whose layers are of its kinds")
    return lines + edits(job, settings)


def files(job: LaunchJob) -> dict[str, Text]:
    """The script that starts a candidate."""
    found = difference(job) if job.recipe else overrides(job)
    mode = _mode(job)
    dataset = job.framework.options["tuned" if mode else "dataset"]
    recipe = recipes()[_named(job)] if job.recipe else NO_RECIPE
    own = recipe.settings
    found |= _over(job, own if job.recipe else None)
    if SCOPE in found:  # beside what a recipe has under its newer name Megatron stops: transformer_config.py:2717
        found = {"model.cuda_graph_modules": None, **found}
    found |= {"checkpoint.pretrained_checkpoint": "checkpoint"} if mode == "lora" else {}
    laid = {key.rpartition(".")[2]: value for key, value in found.items()}
    words = [f"{_key(name)}={text}" for name, value in found.items() for text in _texts(name, value)]
    packed, changed = {**own, **laid}, translated(job.framework, overrides_of(words))[0]
    settings = megatron_keys(job.model) | unchanged(recipe, changed) | changed | candidate_settings(job)
    said, opposites = arguments_of(job), argument_table("nemo")["opposites"].items()
    settings |= {one.partition(".")[2]: False for name, fields in opposites if name in said for one in fields}
    must_start(job, settings)
    values: dict[str, Any] = {
        "packed": packed if job.recipe else None,
        "words": list(map(shlex.quote, words)),
        "seq_length": job.workload.seq_length,
        "recipe": f"{_named(job)}_config" if job.recipe else "",
        "mode": mode,
        "dataset": dataset,
    }
    return {"nemo.sh": launch_file(job, "nemo.sh", by_hand(job, settings), **values)}


def _over(job: LaunchJob, own: Settings | None) -> dict[str, Any]:
    """Fields that take the place of what a recipe has on and the job cannot have; own: its settings, None of one that a
    person names, which tunes on text or images."""
    mode, images = bool(_mode(job)), bool(job.workload.image_tokens)
    of_images = own is not None and "freeze_vision_model" in own
    takes_place = {
        "enable_offline_packing": mode and not images and not job.framework.options["tuned"],
        "enable_in_batch_packing": job.row["micro_batch_size"] == 1,
        "average_in_collective": of_images and job.row["cp"] > 1,
        "fast_cache_load": True,
    }
    usual = {"enable_offline_packing": True, "enable_in_batch_packing": True}  # of images, whose data text may have
    on = {setting for setting, is_met in takes_place.items() if is_met and (usual if own is None else own).get(setting)}
    fields = argument_table("nemo")["over"].items()
    return {key: value for setting, over in fields if setting in on for key, value in over.items()}


def _key(name: str) -> str:
    """A field as an override names it, with `++` where overrides may not know it: of an adapter, which can be called,
    of a model, whose configuration may hold it one level below (models/gpt/model_config.py of main, 067f987d), and of
    data, which text may not have."""
    return f"++{name}" if name.startswith(("peft.", "model.", "dataset.enable_in")) else name


def _texts(name: str, value: Any) -> Iterator[str]:
    """The values that a field is given in turn: a mapping takes the place of nothing."""
    yield from ["null"] if isinstance(value, dict) else []
    is_type = name.endswith("_dtype") and value in argument_table("nemo")["torch_types"]
    yield _value(f"torch.{value}" if is_type else value)


def _value(value: Any) -> str:
    """A value as Hydra's grammar of overrides reads it."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(one)}" for key, one in value.items()) + "}"
    text = str(value)
    if isinstance(value, int | float) or BARE.fullmatch(text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
"""Words that need no quotes there."""
