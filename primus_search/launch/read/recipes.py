"""Jobs of Megatron-Bridge: a recipe by its name, and a command that runs one with settings over it.

    is_recipe(Path("llama3_8b_pretrain_8gpu_h100_bf16_config"))
    started_in("setup_experiment.py -m llama -mr llama3_8b -ng 8 -g h100 -c fp8_cs -tp 2", Path())

`spaces/keys/nemo_recipes.tsv` has what every recipe assigns, beside it those of 0.6.2 alone; `tools/launch_tables.py`
writes them.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.base.guards.values import whole_number
from primus_search.files.argument_tables import arguments
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_rows, key_table
from primus_search.files.shell import bash
from primus_search.files.shell.shell_tests import OUTPUT
from primus_search.files.shell.shell_variables import MARK, UNSET
from primus_search.launch.adapters import SFT, keys_of, tuning_in
from primus_search.launch.contract import fits, is_off, same, translated
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.launcher_documents import written
from primus_search.launch.read.launcher_formulas import settings_read
from primus_search.launch.read.megatron import model_keys
from primus_search.launch.read.megatron_experiments import model_of_arguments
from primus_search.launch.world import NO_WORLD, World, world_of
from primus_search.models.megatron_arguments import megatron_keys
from primus_search.models.model_constants import CONSTANT_KEYS
from primus_search.models.tokenizers import model_of_tokenizer
from primus_search.values.layout import expand
from primus_search.values.machine.framework import Settings
from primus_search.values.model import Model
from primus_search.values.model.shape import with_changes

RECIPES, COMMANDS = ("nemo_recipes", "nemo_recipes_0.6.2"), "nemo_commands"
RESIZED = {"vocab_size": "vocab_size", "mtp_num_layers": "num_mtp_layers"}
"""Settings by which recipes change the model that they name, and its fields."""
VISION = "vision tower{}: more memory, slower (its layers and images are not priced; the model of text is)"
RUNS_RECIPE = re.compile(
    r"(?:^|\s)(?:--recipe|--model_recipe_name|-mr)[= ]|/(?:run_recipe|\w{0,20}setup_experiment)\.py\b", re.MULTILINE
)
"""A program of Megatron-Bridge that is given a recipe."""
_OVERRIDE = re.compile(r"\A\+{0,2}~?([a-z]\w*+)\.(?:\w+\.)*+(\w+)=(.*)", re.DOTALL)
_SECTION = re.compile(r"\A(?:\+{0,2}(?=\w+=)|~)([a-z]\w*+)=?(.*)", re.DOTALL)
QUOTES = "'\""
"""Around a value in Hydra's grammar."""
_GPUS = re.compile(r"_([0-9]+)gpu_")
_MODE = re.compile(r"_(pretrain|sft|finetune|peft|lora|dora)(?:_|$)")
"""In the name of a recipe: what it trains (scripts/training/recipe_metadata.py infer_recipe_mode)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe assigns: the name on the hub of its model, its class in brackets where that has sizes of its own,
    empty where the settings size it; and its settings."""

    model: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A recipe by its name, the settings of a command over it, and the GPUs that the command starts."""

    name: str
    overrides: Settings = field(default_factory=dict)
    started: World = NO_WORLD


@lru_cache(maxsize=1)
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its name without `_config`; InputError without the table."""
    found: dict[str, Recipe] = {}
    of_classes, providers = key_table(COMMANDS)["of_classes"].items(), key_table(COMMANDS)["providers"]
    for name, given_model, like, text in chain.from_iterable(map(key_rows, RECIPES)):
        model = providers.get(given_model, given_model)
        settings = {**(found[like].settings if like else {}), **json.loads(text)}
        of_class = {key: value for hubs, one in of_classes if fits(model, hubs) for key, value in one.items()}
        given = {key: value for key, value in settings.items() if value is not None}
        found[name] = Recipe(model, {**of_class, **given})
    return found


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
    named = World(int(found[1])) if (found := _GPUS.search(one.name)) else NO_WORLD
    started = one.started or named
    kept = unchanged(recipe, changed)
    whole = {VIRTUAL: 1} if changed.get(VIRTUAL, 0) is None else {}  # said to be none, not left to the layout
    other = _other_stages({**kept, **changed, **whole}) if LAYOUT in kept else ""
    kept |= {LAYOUT: None} if other else {}
    model = model or _resized(recipe, {**kept, **changed}, changed, one.name)
    if BUCKET in kept and prod(_count({**kept, **changed}, key) for key in DEGREES) == (started.gpus or world):
        kept = {**kept, **ALONE} | changed
    of_length = {} if model else {"max_position_embeddings": recipe.settings.get("seq_length")}
    settings, adapters = {**of_length, **kept, **changed}, keys_of(framework)
    tuning = tuning_in(settings, adapters) or (SFT if mode_of(one.name) in ("sft", "lora") else {})
    settings = {key: value for key, value in settings.items() if key not in adapters.read}
    read = of_settings(path, framework, settings, started.gpus or world, model, started)
    read = replace(read, tuning=tuning, assumed=(*read.assumed, *([other] if other else [])))
    if any(key.startswith("freeze_vision") for key in recipe.settings):
        frozen = [key for key, value in settings.items() if key.startswith("freeze_vision") and not is_off(value)]
        note = VISION.format(f" ({', '.join(sorted(frozen))})" * bool(frozen))
        read = replace(read, not_modelled=(*read.not_modelled, note))
    if read.model is not None or not recipe.model:
        return read
    what = f"takes its model from {recipe.model}, which no preset is; give --model a preset or a config.json"
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
    """The settings of a recipe that `changed`, in the words of the contract, leaves."""
    framework = load_framework("nemo")
    return {k: v for k, v in recipe.settings.items() if changed.keys().isdisjoint(translated(framework, {k: v})[0])}


def mode_of(name: str) -> str:
    """pretrain, sft or lora as the name of a recipe says it; empty where it does not."""
    found = _MODE.search(name)
    return {"finetune": "sft", "peft": "lora"}.get(found[1], found[1]) if found else ""


def fits_its_gpus(name: str) -> bool:
    """Whether the GPUs in the name of a recipe are whole grids of its experts; Megatron-Bridge checks those of
    benchmarks before any override (scripts/common/benchmark_parallelism.py)."""
    gpus, settings = _GPUS.search(name), recipes()[name].settings
    return not gpus or GRID[0] not in settings or int(gpus[1]) % prod(_count(settings, key) for key in GRID) == 0


def _count(settings: Settings, key: str) -> int:
    return int(str(settings.get(key) or 1))


GRID = ("expert_tensor_parallel_size", "expert_model_parallel_size", "pipeline_model_parallel_size")
LAYOUT, VIRTUAL = "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
BUCKET = "ddp_bucket_size"
ALONE: Settings = {"overlap_grad_reduce": False, "overlap_param_gather": False, BUCKET: None}
"""What `comm_overlap`, which sets the bucket, makes of a single replica, whatever ranks of context reduce
(training/comm_overlap.py:566)."""


def model_of(recipe: Recipe) -> Model | None:
    """The model of a recipe as it changes it; None where no preset is that."""
    model = model_of_tokenizer(recipe.model)
    fields: dict[str, Any] = {field: recipe.settings[key] for key, field in RESIZED.items() if key in recipe.settings}
    return replace(model, **fields) if model and fields else model


def _resized(recipe: Recipe, settings: Settings, changed: Settings, name: str) -> Model | None:
    """The model of a recipe with what a command changes of its sizes; None where settings alone size it.

    What no override changes stays the recipe's, whether an argument says it or not. Raises ValueError for a recipe
    whose model no preset is, and for a change of parts that no argument says.
    """
    model = model_of(recipe)
    own = megatron_keys(model) if model else {}
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
    except ValueError:
        raise ValueError(other) from None
    return resized


def started_in(text: str, folder: Path) -> NamedRecipe:
    """The last recipe that a script runs, the settings of its command by their last name, and the GPUs.

    Raises ValueError where it runs none, or where a variable of them has no value.
    """
    script, table = bash.followed(text, os.environ, folder), key_table(COMMANDS)
    inner = (one for one in script.variables.values.values() if "\n" in one and RUNS_RECIPE.search(one))
    commands = [words for one in inner for words in bash.followed(one, os.environ, folder).commands]
    runs: list[NamedRecipe] = []
    for words in reversed([*commands, *script.commands]):
        parts = [part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])]
        given = {table["options"].get(flag, ""): value for flag, value in pairwise(parts)}
        name = _name(given, table["precisions"])
        if not name or not any(word.endswith(".py") for word in words):
            continue
        plain = {key: written(given[key]) for key in table["settings"] if key in given} | _meant(given, table["means"])
        overrides = plain | overrides_of(words)
        printed = next((one for before, one in pairwise(words) if before[:2] != "--" and one[:1] == MARK), "")
        if OUTPUT in printed:
            raise ValueError(f"takes settings from what {printed.strip(MARK)} ...) prints: write them into the command")
        if unset := UNSET.search(" ".join([name, *map(str, overrides.values())])):
            raise ValueError(f"depends on {unset[1]}: set it in the environment (NAME=value before the command)")
        gpus, per_node = (whole_number(given.get(key, "")) or 0 for key in ("gpus", "per_node"))
        overrides = _beneath(name, _stem(given), gpus, overrides) | overrides
        world = World(gpus, per_node) if gpus else world_of(words, script.header, folder)
        runs.append(NamedRecipe(name, overrides, world))
    same = [one.overrides for one in runs if one.name == runs[0].name]
    if differs := sorted(key for key in settings_read("nemo") if len({str(one.get(key)) for one in same}) > 1):
        raise ValueError(f"starts several trainings, which differ in {', '.join(differs)}: leave one of them")
    if runs:
        return runs[0]
    exits = f"line {script.left}: the script exits before it " if script.left else ""
    named = next((f": primus-search project --recipe {one}" for one in recipes_named(NAMED.findall(text))), "")
    raise ValueError(f"{exits}starts {'a' if exits else 'no'} program with --recipe NAME{named}")


def _meant(given: Mapping[str, str], means: Mapping[str, Mapping[str, Settings]]) -> dict[str, Any]:
    """The settings that options mean which set several."""
    ways = ((given[key], *one) for key, ways in means.items() if key in given for one in ways.items())
    meant = [(value, settings) for value, words, settings in ways if fits(value, words)]
    return {
        name: written(one.replace("$value", value)) if isinstance(one, str) else one
        for value, settings in meant
        for name, one in settings.items()
    }


def overrides_of(words: Sequence[str]) -> dict[str, Any]:
    """The settings of `section.key=value` and of whole sections, by their last names."""
    found = (one for word in words if (one := _OVERRIDE.fullmatch(word)))
    single = {_setting(one[1], one[2]): written(one[3].strip(QUOTES).removeprefix("torch.")) for one in found}
    return _of_sections(words) | single


def _precision(name: str) -> dict[str, Any]:
    """The settings of `mixed_precision=`, a name or fields; ValueError for a name that is not read."""
    if name[:1] == "{":
        fields = _FIELD.findall(re.sub(r"\{[^{}]*\}", "", name[1:-1]))
        return {**UNSCALED, **{key: written(value) for key, value in fields}}
    known = key_table(COMMANDS)["mixed_precision"]
    if name not in known:
        raise ValueError(f"mixed_precision={name}: a precision that is not read{did_you_mean(name, known)}")
    own = {key: value for key, value in UNSCALED.items() if key not in GATHERED}
    return {**own, **load_framework("nemo").spellings["fp8"].values[known[name]]}


GATHERED = ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
"""What the name of a precision has as its format has it."""
UNSCALED: Settings = {
    **dict.fromkeys(("fp8_format", "fp4_format", "fp8_recipe", "fp4_recipe")),
    **dict.fromkeys(("fp8_dot_product_attention", *GATHERED), False),
}
"""Fields of `MixedPrecisionConfig`, which takes the place of a recipe's."""
_FIELD = re.compile(r"(?<!\w)(\w+):([^,{}]+)")
"""A field of a mapping in Hydra's grammar that is none itself."""


def _of_sections(words: Sequence[str]) -> dict[str, Any]:
    """The settings of `mixed_precision=`, of `peft=null` (no adapters) and of `comm_overlap=null` (buckets of `ddp`);
    ValueError for other whole sections."""
    known, gone = arguments("nemo"), {"peft": keys_of(load_framework("nemo")).rank[0], "comm_overlap": "bucket_size"}
    sections = {name.partition(".")[0] for name in known}
    found = {one[1]: one[2] or "null" for word in words if (one := _SECTION.fullmatch(word)) and one[1] in sections}
    precision, plain = found.pop("mixed_precision", ""), dict[str, Any]()
    for section, value in found.items():
        if section in known and section != "peft":  # no section
            plain[section] = written(value)
        elif section not in gone or written(value) is not None:
            raise ValueError(f"{section}={value[:80]}: sections are not read as a whole; set {section}.NAME=VALUE")
    without = {key: None for section, key in gone.items() if section in found}
    return plain | without | (_precision(precision) if precision else {})


def _setting(section: str, name: str) -> str:
    """A setting as the table of recipes has it: by its last name, but those of adapters."""
    whole = f"{section}.{name}"
    return whole if whole in keys_of(load_framework("nemo")).read else name


def _name(given: Mapping[str, str], precisions: Mapping[str, str]) -> str:
    """The name of the recipe that options choose; empty where they choose none. Source: scripts/performance/utils."""
    if "recipe" in given or not (stem := _stem(given)):
        return given.get("recipe", "")
    mode = given.get("mode", "pretrain")
    if "device" not in given:
        return f"{stem}_{mode}_config"
    written = given.get("precision", "bf16").lower()
    variant = f"_{one}" if (one := given.get("variant", "").lower()) not in ("", "v1", "v2") else ""
    end = f"gpu_{given['device'].lower()}_{precisions.get(written, written.replace('_', ''))}{variant}"
    fits = [name for name in recipes() if re.fullmatch(rf"{re.escape(stem)}_{mode}_[0-9]+{re.escape(end)}", name)]
    if "gpus" not in given and len(fits) != 1:
        raise ValueError(f"{stem} on {given['device']}: give --num_gpus; recipes: {', '.join(fits) or 'none'}")
    exact = f"{stem}_{mode}_{given.get('gpus')}{end}"
    usual = [f"{stem}_{mode}_{count}{end}" for count in key_table(COMMANDS)["usual_gpus"].get(stem, ())]
    most = max(fits, key=_gpus_of, default=exact)
    return f"{next((name for name in (exact, *usual) if name in fits), most)}_config"


def _gpus_of(name: str) -> int:
    """The GPUs in the name of a recipe; 0 where there are none."""
    return int(found[1]) if (found := _GPUS.search(name)) else 0


def _stem(given: Mapping[str, str]) -> str:
    """The name of the model of a benchmark: whole, or as earlier releases had it, in two parts."""
    return given.get("stem") or "_".join(given[key] for key in ("family", "size") if "family" in given and key in given)


def _beneath(name: str, stem: str, gpus: int, overrides: Settings) -> dict[str, Any]:
    """What a command of benchmarks sets by itself: layouts of stages that it changes, and on GPUs for which there is no
    recipe the batch by replicas and states of BF16. Source: scripts/performance/utils/overrides.py of v0.6.0."""
    settings = recipes()[one].settings if stem and (one := name.removesuffix("_config")) in recipes() else {}
    if not settings:
        return {}
    both, layouts = {**settings, **overrides}, key_table(COMMANDS)["layouts"].get(stem, {})
    found: dict[str, Any] = {}
    if layouts and not overrides.keys().isdisjoint((GRID[2], VIRTUAL)):
        stages = int(str(both.get(GRID[2]) or 1)) * int(str(both.get(VIRTUAL) or 1))
        found[LAYOUT] = layouts.get(str(stages), settings.get(LAYOUT))
    before, batch = _gpus_of(name), settings.get("global_batch_size")
    if gpus in (0, before) or not before:
        return found
    if "_bf16" in name and settings.get("optimizer", "adam") == "adam":
        found["use_precision_aware_optimizer"] = True
    had, has = (
        count // prod(int(str(one.get(key) or 1)) for key in SPLITS)
        for count, one in ((before, settings), (gpus, both))
    )
    return found | ({"global_batch_size": int(str(batch)) * has // had} if batch and had else {})


SPLITS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
