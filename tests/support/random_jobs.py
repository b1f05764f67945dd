"""Random legal candidates of random models with random workloads, as jobs of a framework (`random_jobs.yaml`)."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.launch.read.recipes import fits_its_gpus, mode_of, recipes
from primus_search.launch.write.job import LaunchJob
from primus_search.models.presets import presets
from primus_search.models.tokenizers import models_of_tokenizers
from primus_search.space import Space
from primus_search.values.machine.stack import with_numbers
from tests.support.launched import jobs

DRAWN: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PER_SPACE = 8
KEYED = {"ddp_bucket_size": (3.0e7, 2.0e8), "ddp_num_buckets": (4.0, 31.0), "loss.num_chunks": (4.0, 16.0),
         "num_distributed_optimizer_instances": (1.0, 2.0)}  # fmt: skip
"""Values of settings that are themselves numbers of the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomJob:
    """A job with the file of its lengths, the recipe of Megatron-Bridge that a person names for it, and the file of its
    model, where that has towers, which no launch file says."""

    job: LaunchJob
    lengths: Path
    recipe: str
    hardware: str
    model: str = ""


def random_jobs(framework: str, folder: Path, first: int = 0) -> Iterator[RandomJob]:
    """Endless jobs; `first`: the number of the space that they begin with."""
    number = first
    while True:
        rng = random.Random(f"{framework} {number}")
        number += 1
        model, own = _model(rng, framework, folder)
        hardware = rng.choice(DRAWN["hardware"][framework.partition("@")[0]])
        lengths = folder / "lengths.txt"
        lengths.write_text("\n".join(str(int(rng.lognormvariate(6.5, 1.2)) + 1) for _ in range(400)))
        try:
            space = _space(rng, framework, model, lengths, hardware)
        except InputError:
            continue
        mode = {"pretrain": "pretrain", "sft": "sft"}.get(space.workload.task, "lora")
        recipe = rng.choice(own.get(mode) or [""])
        if own and not recipe:
            continue
        for job in jobs(space, PER_SPACE, seed=number):
            named = replace(job, recipe=recipe) if recipe and not model.endswith(".json") else job
            towers = model if model.endswith("images.json") else ""
            yield RandomJob(
                job=with_setting(rng, named), lengths=lengths, recipe=recipe, hardware=hardware, model=towers
            )


def _model(rng: random.Random, framework: str, folder: Path) -> tuple[str, dict[str, list[str]]]:
    """A preset, or the file of a configuration; and the recipes of Megatron-Bridge for it by what they train, those
    with data of tuning, which no benchmark of tuning has."""
    own = recipes_of_models() if framework.startswith("nemo") else {name: {} for name in presets()}
    if rng.random() < 0.4:
        name = rng.choice(sorted(own.keys() & presets().keys()))
        return name, own[name]
    family = rng.choice(sorted(DRAWN["recipes" if framework.startswith("nemo") else "models"]))
    path = folder / f"{family}.json"
    fields = DRAWN["models"][family].items()
    path.write_text(json.dumps({key: rng.choice(values) for key, values in fields}))
    of_family = own.get(DRAWN["recipes"].get(family), {})
    return str(path), {
        mode: [one for one in many if mode == "pretrain" or any("packing" in key for key in recipes()[one].settings)]
        for mode, many in of_family.items()
    }


@cache
def recipes_of_models() -> dict[str, dict[str, list[str]]]:
    """Recipes of a model, by the name of its preset, else by that on the hub, and by what they train."""
    found: dict[str, dict[str, list[str]]] = {}
    named: dict[object, str] = {preset.model: name for name, preset in presets().items()}
    models = models_of_tokenizers()
    for recipe, one in recipes().items():
        if not fits_its_gpus(recipe):
            continue
        has_towers = one.model in DRAWN["recipes"].values()  # whose text model is a preset, too
        name = one.model if has_towers else named.get(models.get(one.model.lower()), one.model)
        found.setdefault(name, {}).setdefault(mode_of(recipe), []).append(recipe)
    return found


def _space(rng: random.Random, framework: str, model: str, lengths: Path, hardware: str) -> Space:
    workload = {name: rng.choice(DRAWN[name]) for name in ("seq_length", "global_batch_size")}
    for part in ("documents", "routing", "tasks", "images"):
        workload |= rng.choice(DRAWN[part])
    if workload.pop("lengths", False):
        workload["document_length"] = str(lengths)
    if framework.partition("@")[0] not in ("nemo", "primus") and "lora" in workload:
        del workload["lora"], workload["task"]
    if not model.endswith("images.json"):
        workload = {key: one for key, one in workload.items() if "image" not in key and key != "trains_towers"}
    given = {"model": model, "hardware": hardware,
             "nodes": rng.choice(DRAWN["nodes"]), "framework": framework, "workload": workload}  # fmt: skip
    return make_space(given, name="random", environ={})


def with_setting(rng: random.Random, job: LaunchJob) -> LaunchJob:
    """The job on a stack that has the numbers of one setting that a file decides, or those of its absence."""
    stack = job.cluster.stack
    written = [one for one in job.framework.decides if one.key or (one.settings and not one.formats)]
    ours = [one for one in written if job.model.is_moe or not one.of_experts]
    if not ours:
        return job
    picked = rng.choice(ours)
    alike = [one for one in ours if (one.settings, one.where) == (picked.settings, picked.where)]
    bears = all(str(job.row[axis]) in words for axis, words in picked.where.items())
    sides = [{one.number: getattr(one, side) for one in alike} for side in ("value", "otherwise")]
    sides += [{one.number: rng.choice(KEYED[one.key])} for one in alike if one.key]
    numbers = {name: value for name, value in rng.choice(sides).items() if bears and value is not None}
    return replace(job, cluster=replace(job.cluster, stack=with_numbers(stack, numbers)))
