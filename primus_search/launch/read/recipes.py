"""Recipes of Megatron-Bridge by their names: what each assigns, its model, and the job of one with settings over it.

    is_recipe(Path("llama3_8b_pretrain_8gpu_h100_bf16_config"))

`spaces/keys/nemo_recipes.tsv` has what every recipe assigns, beside it those of 0.6.2 alone; `tools/launch_tables.py`
writes them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_rows, key_table
from primus_search.launch.adapters import SFT, keys_of, tuning_in
from primus_search.launch.contract import fits, is_off, same, translated, whole
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.megatron import model_keys
from primus_search.launch.read.megatron_experiments import model_of_arguments
from primus_search.launch.world import NO_WORLD, World
from primus_search.models.megatron_arguments import megatron_keys
from primus_search.models.model_constants import CONSTANT_KEYS
from primus_search.models.preset_names import language_part, model_named, no_preset
from primus_search.models.tokenizers import model_of_tokenizer
from primus_search.values.layout import expand
from primus_search.values.machine.framework import Settings
from primus_search.values.model import Model
from primus_search.values.model.shape import with_changes

RECIPES, COMMANDS = ("nemo_recipes", "nemo_recipes_0.6.2"), "nemo_commands"
RESIZED = {"vocab_size": "vocab_size", "mtp_num_layers": "num_mtp_layers"}
"""Settings by which recipes change the model that they name, and its fields."""
VISION = "vision tower{}: more memory, slower (its layers and images are not priced; the model of text is)"
_GPUS = re.compile(r"_([0-9]+)gpu_")
_MODE = re.compile(r"_(pretrain|sft|finetune|peft|lora|dora)(?:_|$)")
"""In the name of a recipe: what it trains (scripts/training/recipe_metadata.py infer_recipe_mode)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe assigns: the name on the hub of its model, its class in brackets where that has sizes of its own,
    empty where the settings size it; and its settings.

    is_benchmark      it is of the benchmarks (megatron/bridge/perf_recipes), whose program scales its batch
    names_precision   its `mixed_precision` is a name, which has no fields
    """

    model: str
    settings: Settings
    is_benchmark: bool = False
    names_precision: bool = False


NO_RECIPE = Recipe("", {})


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A recipe by its name, the settings of a command over it, the GPUs that the command starts, and notes on settings
    of it without effect."""

    name: str
    overrides: Settings = field(default_factory=dict)
    started: World = NO_WORLD
    idle: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its name without `_config`; InputError without the table."""
    found: dict[str, Recipe] = {}
    providers = key_table(COMMANDS)["providers"]
    for name, given_model, kinds, like, text in chain.from_iterable(map(key_rows, RECIPES)):
        model = providers.get(given_model, given_model)
        settings = {**(found[like].settings if like else {}), **json.loads(text)}
        given = {key: value for key, value in settings.items() if value is not None}
        is_benchmark, names_precision = (kind in kinds.split() for kind in ("benchmark", "named_precision"))
        found[name] = Recipe(model, of_class(model) | given, is_benchmark, names_precision)
    return found


def of_class(model: str) -> dict[str, Any]:
    """Settings that the class of a model has where nothing assigns them, by its name on the hub or its own."""
    ways = key_table(COMMANDS)["of_classes"].items()
    return {key: value for hubs, one in ways if fits(model, hubs) for key, value in one.items()}


NAMED = re.compile(r"\b[a-z]\w{1,200}_config\b")


def recipes_named(names: Iterable[str]) -> list[str]:
    """Those of some names that are recipes."""
    return list(dict.fromkeys(one for one in names if one.removesuffix("_config") in recipes()))


def is_recipe(path: Path) -> bool:
    """Whether a path is no file and the name of a recipe."""
    return path.name.removesuffix("_config") in recipes() and not path.exists()


def of_recipe(
    path: Path, one: NamedRecipe, world: int, model: Model | None, of_settings: Callable[..., Experiment]
) -> Experiment:
    """The job of a recipe with the settings that a command has over it, on the GPUs that the command or the name gives.

    Raises ValueError for a recipe that is not known, and for overrides of its model, which no preset follows.
    """
    recipe, framework = recipes().get(one.name.removesuffix("_config")), load_framework("nemo")
    if recipe is None:
        raise ValueError(f"{one.name} is no recipe of Megatron-Bridge that is known{did_you_mean(one.name, recipes())}")
    if model is None and recipe.model[:1] == "(":
        raise ValueError(f"{recipe.model[1:-1]} of {one.name} is not modelled; give --model a preset or a config.json")
    changed, _ = translated(framework, one.overrides)
    started = one.started or World(gpus_of(one.name))
    kept = unchanged(recipe, {**one.overrides, **changed})
    whole = {VIRTUAL: 1} if changed.get(VIRTUAL, 0) is None else {}  # said to be none, not left to the layout
    other = _other_stages({**kept, **changed, **whole}) if LAYOUT in kept else ""
    kept |= {LAYOUT: None} if other else {}
    model = model or _resized(recipe, {**kept, **changed}, changed, one.name)
    gpus = prod(count_of({**kept, **changed}, key) for key in DEGREES)
    if BUCKET in kept and OF_OVERLAPS in recipe.settings and gpus == (started.gpus or world):
        kept = {**kept, **ALONE} | changed
    of_length = {} if model else {"max_position_embeddings": recipe.settings.get("seq_length")}
    settings, adapters = {**of_length, **kept, **changed}, keys_of(framework)
    tuning = tuning_in(settings, adapters) or (SFT if mode_of(one.name) in ("sft", "lora") else {})
    settings = {key: value for key, value in settings.items() if key not in adapters.read}
    if settings.get(GRID[0]) is None and count_of(settings, GRID[1]) > 1:
        settings[GRID[0]] = 1  # models/transformer_config.py _set_moe_expert_tensor_parallel_default
    read = of_settings(path, framework, settings, started.gpus or world, model, started)
    read = replace(read, tuning=tuning, assumed=(*read.assumed, *one.idle, *([other] if other else [])))
    if language_part(recipe.model) or any(key.startswith("freeze_vision") for key in recipe.settings):
        frozen = [key for key, value in settings.items() if key.startswith("freeze_vision") and not is_off(value)]
        note = VISION.format(f" ({', '.join(sorted(frozen))})" * bool(frozen))
        read = replace(read, not_modelled=(*read.not_modelled, note))
    if read.model is not None or not recipe.model:
        return read
    what = f"{no_preset(recipe.model)}; give --model a preset or a config.json"
    return replace(read, model_problems=(Problem(path.name, what),))


def _other_stages(settings: Settings) -> str:
    """A note where the virtual stages of a command are others than those of the recipe's layout; empty where not."""
    layout, pp, vpp = (settings.get(key) for key in (LAYOUT, GRID[2], VIRTUAL))
    stages = 1 if layout is None else len(expand(str(layout)))
    if not vpp or layout is None or stages == int(str(pp or 1)) * int(str(vpp)):
        return ""
    return (
        f"{LAYOUT} = none: the recipe's has {stages} stages, the command PP {pp or 1} x VPP {vpp}, as releases of "
        "Megatron-Bridge before it had them; v0.6.0 refuses the pair"
    )


def unchanged(recipe: Recipe, changed: Settings) -> dict[str, Any]:
    """The settings of a recipe that `changed`, in its own words and those of the contract, leaves."""
    framework = load_framework("nemo")
    return {
        key: value
        for key, value in recipe.settings.items()
        if key not in changed and changed.keys().isdisjoint(translated(framework, {key: value})[0])
    }


def mode_of(name: str) -> str:
    """pretrain, sft or lora as the name of a recipe says it; empty where it does not."""
    found = _MODE.search(name)
    return {"finetune": "sft", "peft": "lora"}.get(found[1], found[1]) if found else ""


def fits_its_gpus(name: str) -> bool:
    """Whether the GPUs in the name of a recipe are whole grids of its experts; Megatron-Bridge checks those of
    benchmarks before any override (scripts/common/benchmark_parallelism.py)."""
    settings = recipes()[name].settings
    return GRID[0] not in settings or gpus_of(name) % prod(count_of(settings, key) for key in GRID) == 0


def count_of(settings: Settings, key: str) -> int:
    """A degree of parallelism; 1 where settings leave it out."""
    return whole(key, settings.get(key) or 1)


GRID = ("expert_tensor_parallel_size", "expert_model_parallel_size", "pipeline_model_parallel_size")
LAYOUT, VIRTUAL = "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
PATTERN, MODULE = "hybrid_layer_pattern", "mtp_hybrid_override_pattern"
BUCKET, OF_OVERLAPS = "ddp_bucket_size", "tp_comm_overlap"
ALONE: Settings = {"overlap_grad_reduce": False, "overlap_param_gather": False, BUCKET: None}
"""What `comm_overlap`, which sets the bucket, makes of a single replica, whatever ranks of context reduce
(training/comm_overlap.py:566); the second is what a recipe has wherever it has that."""


def model_of(recipe: Recipe) -> Model | None:
    """The model of a recipe as it changes it; None where no preset is that."""
    model = model_of_tokenizer(recipe.model) or model_named(recipe.model, {})
    fields: dict[str, Any] = {field: recipe.settings[key] for key, field in RESIZED.items() if key in recipe.settings}
    return replace(model, **fields) if model and fields else model


def _resized(recipe: Recipe, settings: Settings, changed: Settings, name: str) -> Model | None:
    """The model of a recipe with what a command changes of its sizes; None where settings alone size it.

    What no override changes stays the recipe's, whether an argument says it or not. Raises ValueError for a recipe
    whose model no preset is, and for a change of parts that no argument says.
    """
    model = model_of(recipe)
    own = megatron_keys(model) if model else {}
    if "/" in str(own.get(PATTERN, "")):  # as its class has them: models/hybrid/hybrid_provider.py:200
        own[PATTERN], own[MODULE] = own[PATTERN].split("/")[:2]
    known = (model_keys() | CONSTANT_KEYS) & changed.keys()
    sizes = sorted(key for key in known if not same(changed[key], own.get(key, recipe.settings.get(key))))
    if not sizes or not recipe.model:
        return model
    other = f"{', '.join(sizes)}: another model than that of {name}; give --model its config.json"
    if model is None:
        raise ValueError(other)
    if not {"vocab_size", "make_vocab_size_divisible_by"}.isdisjoint(changed):
        own["vocab_size"] = own.pop("padded_vocab_size")
    both = [model_of_arguments(Path(name), {**own, **one}) for one in (recipe.settings, settings)]
    if problems := [problem for _, many in both for problem in many]:
        raise InputError(problems)
    try:
        resized: Model = with_changes(model, *(one for one, _ in both))
        if resized == model and "multi_latent_attention" in sizes:  # off, where the class of the model has it
            raise ValueError
    except ValueError:
        raise ValueError(other) from None
    return resized


def gpus_of(name: str) -> int:
    """The GPUs in the name of a recipe; 0 where there are none."""
    return int(found[1]) if (found := _GPUS.search(name)) else 0
