"""A command that runs a recipe of Megatron-Bridge: the recipe its options name, and what they set over it.

started_in("setup_experiment.py -m llama -mr llama3_8b -ng 8 -g h100 -c fp8_cs -tp 2", Path())
"""

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.guards.values import whole_number
from primus_search.files.known_keys import key_table
from primus_search.files.shell import bash
from primus_search.files.shell.shell_tests import OUTPUT
from primus_search.files.shell.shell_variables import MARK, UNSET
from primus_search.launch.contract import fits
from primus_search.launch.read.launcher_documents import written
from primus_search.launch.read.launcher_formulas import settings_read
from primus_search.launch.read.recipe_overrides import idle_in, overrides_of
from primus_search.launch.read.recipes import (
    COMMANDS,
    DEGREES,
    GRID,
    LAYOUT,
    NAMED,
    NO_RECIPE,
    VIRTUAL,
    NamedRecipe,
    Recipe,
    count_of,
    gpus_of,
    recipes,
    recipes_named,
)
from primus_search.launch.read.script_arguments import several, started_with, trainings_of
from primus_search.launch.world import World, world_of
from primus_search.values.machine.framework import NOTHING, Settings

RUNS_RECIPE = re.compile(
    r"(?:^|\s)(?:--recipe|--model_recipe_name|-mr)[= ]|/(?:run_recipe|\w{0,20}setup_experiment)\.py\b", re.MULTILINE
)
"""A program of Megatron-Bridge that is given a recipe."""


def started_in(text: str, folder: Path) -> NamedRecipe:
    """The last recipe that a script runs, the settings of its command by their last name, and the GPUs.

    Raises ValueError where it runs none, or where a variable of them has no value.
    """
    script = bash.followed(text, os.environ, folder)
    run = _run_of(script, text, folder)
    decides = bash.differing(script, text, _choice(run), lambda other: _chosen(other, text, folder))
    if decides:
        names = ", ".join(f"${one}" if one.isdigit() else one for one in decides)
        line = started_with(text, decides) or "set them in the environment (NAME=value before the command)"
        raise ValueError(f"depends on {names}: {line}")
    return run


def _choice(run: NamedRecipe) -> dict[str, Any]:
    """What no test without an answer decides: the recipe, its degrees and its batch."""
    sizes = (*DEGREES, "global_batch_size", "micro_batch_size", "seq_length")
    return {"recipe": run.name} | {key: run.overrides[key] for key in sizes if key in run.overrides}


def _chosen(script: bash.Script, text: str, folder: Path) -> dict[str, Any]:
    """The choice of a script with another answer; empty where it starts no recipe."""
    try:
        return {} if script.left else _choice(_run_of(script, text, folder))
    except ValueError:
        return {}


def _run_of(script: bash.Script, text: str, folder: Path) -> NamedRecipe:
    """The last recipe that a script runs."""
    table = key_table(COMMANDS)
    inner = (one for one in script.variables.values.values() if "\n" in one and RUNS_RECIPE.search(one))
    commands = [words for one in inner for words in bash.followed(one, os.environ, folder).commands]
    runs: list[NamedRecipe] = []
    for words in reversed([*commands, *script.commands]):
        parts = [part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])]
        given = {table["options"].get(flag, ""): value for flag, value in pairwise(parts)}
        if is_last := any(map(LAST.search, words)):
            given.pop("device", None)
        name = _name(given, table["precisions"])
        if not name or not any(word.endswith(".py") for word in words):
            continue
        plain = {key: written(given[key]) for key in table["settings"] if key in given} | _meant(given, table["means"])
        recipe, stem = recipes().get(name.removesuffix("_config"), NO_RECIPE), _stem(given)
        is_flat = bool(stem) and not is_last
        unread = NOTHING if is_flat or any(map(OF_BENCHMARKS.search, words)) else OF_DATA
        over = overrides_of(words, recipe, unread)
        overrides = {**over, **plain, **_heads(plain)} if is_flat else plain | over
        printed = next((one for before, one in pairwise(words) if before[:2] != "--" and one[:1] == MARK), "")
        if OUTPUT in printed:
            raise ValueError(f"takes settings from what {printed.strip(MARK)} ...) prints: write them into the command")
        counted = [str(value) for key, value in overrides.items() if key in settings_read("nemo")]
        overrides = {key: value for key, value in overrides.items() if not UNSET.search(str(value))}
        if unset := UNSET.search(" ".join([name, *counted])):
            raise ValueError(f"depends on {unset[1]}: set it in the environment (NAME=value before the command)")
        gpus, per_node = (whole_number(given.get(key, "")) or 0 for key in ("gpus", "per_node"))
        world = World(gpus, per_node) if gpus else world_of(words, script.header(words), folder)
        if recipe.settings:
            laid, flat = (plain, stem) if is_flat else (overrides, "")
            overrides = _beneath(name, recipe, flat, world.gpus, overrides, laid) | overrides
        runs.append(NamedRecipe(name, overrides, world, idle_in(words, recipe, unread)))
    runs = trainings_of(text, [one for one in reversed(runs) if one.name == runs[0].name])
    all_values = {key: [str(one.overrides.get(key)) for one in runs] for key in sorted(settings_read("nemo"))}
    if differ := {key: values for key, values in all_values.items() if len({*values}) > 1}:
        raise ValueError(several(differ, len(runs)))
    if runs:
        return runs[-1]
    exits = f"line {script.left}: the script exits before it " if script.left else ""
    wants = ": primus-search project FILE --args '--recipe NAME'" if re.search(r"\$\{?[@*]", text) else ""
    named = next((f": primus-search project --recipe {one}" for one in recipes_named(NAMED.findall(text))), wants)
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
    most = max(fits, key=gpus_of, default=exact)
    return f"{next((name for name in (exact, *usual) if name in fits), most)}_config"


def _stem(given: Mapping[str, str]) -> str:
    """The name of the model of a benchmark: whole, or as earlier releases had it, in two parts."""
    return given.get("stem") or "_".join(given[key] for key in ("family", "size") if "family" in given and key in given)


LAST = re.compile(r"\brun_recipe\.py$|^--use_recipes$")
"""Programs in which overrides stand over options, and whose recipe no device names; in that of benchmarks options stand
over them (scripts/performance/run_script.py of v0.6.0, _apply_perf_recipe_overrides)."""


OF_BENCHMARKS = re.compile(r"\bperformance/[^\n]{0,80}\.py$")
OF_DATA: Settings = {"model.seq_length": "dataset.seq_length"}
"""Fields that the program of recipes overwrites with another (scripts/training/recipe_runner.py of v0.6.0,
sync_model_dataset_sequence_length), and programs that do not."""


def _heads(plain: Settings) -> dict[str, Any]:
    """Sequence parallelism as the option of a benchmark for tensor parallelism sets it; none without the option."""
    ranks = whole_number(str(plain.get(DEGREES[0], "")))
    return {"sequence_parallel": ranks > 1} if ranks else {}


def _beneath(name: str, recipe: Recipe, flat: str, gpus: int, overrides: Settings, laid: Settings) -> dict[str, Any]:
    """What a program sets by itself: layouts of stages that `laid` changes, and with the recipe of a benchmark states
    of BF16 and the batch by replicas, which the program of benchmarks, where it starts `flat`, scales on GPUs for which
    there is no recipe. Source: scripts/performance/utils/overrides.py and scripts/training/run_recipe.py of v0.6.0."""
    settings = recipe.settings
    both, layouts = (
        {**settings, **overrides},
        key_table(COMMANDS)["layouts"].get(flat or name[: len(KIMI) * name.startswith(KIMI)], {}),
    )
    found: dict[str, Any] = {}
    if layouts and not laid.keys().isdisjoint((GRID[2], VIRTUAL)):
        stages = count_of(both, GRID[2]) * count_of(both, VIRTUAL)
        found[LAYOUT] = layouts.get(str(stages), settings.get(LAYOUT))
    before, batch = gpus_of(name), settings.get("global_batch_size")
    if not before or not recipe.is_benchmark:
        return found
    if "_bf16" in name and settings.get("optimizer", "adam") == "adam":
        found["use_precision_aware_optimizer"] = True
    if gpus == 0 or (flat and gpus == before):
        return found
    had, has = (
        count // prod(count_of(one, key) for key in DEGREES) for count, one in ((before, settings), (gpus, both))
    )
    if not batch or not had or has == had:
        return found
    scaled, rest = divmod(int(str(batch)) * has, had)
    if rest and "global_batch_size" not in overrides:
        raise ValueError(f"a batch of {batch} on {had} replicas is no whole one on {has}: give --global_batch_size")
    return found | {"global_batch_size": scaled}


KIMI = "kimi_k2"
"""The model whose recipes bring the function that makes their layouts: recipes/kimi/h100/kimi_k2.py:124."""
