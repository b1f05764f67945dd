"""The experiment of a launch file or a log with the machine it is started on."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.files.device_memory import with_memory
from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind, names, series
from primus_search.launch.experiment import Experiment
from primus_search.launch.experiment_space import Start
from primus_search.launch.read.recipes import is_recipe
from primus_search.launch.world import nodes_of
from primus_search.learning.logged_job import read_job
from primus_search.models.model_files import load_model
from primus_search.models.presets import presets
from primus_search.values.model import Model


def start(
    path: Path, hardware: str, nodes: int, model: str = "", arguments: Sequence[str] = (), per_node: int = 0
) -> Start:
    """The experiment of a file on `nodes` nodes of `per_node` GPUs of some hardware, as far as they are given.

    Hardware left out is the one that a folder of the path (MI355X) or a part of a recipe's name is called after; nodes
    and GPUs per node left out are those that the file starts, else the fewest nodes of the hardware that its degrees
    fill. `arguments`: what a script is started with. Raises `InputError` where neither gives them.
    """
    name = hardware or _hardware_of(path)
    of_hardware = load_hardware(name).network.gpus_per_node
    loaded = load_model(model) if model else None
    gpus = per_node or of_hardware
    experiment = read_job(path, max(nodes, 1) * gpus, loaded, arguments)
    framework, world = experiment.framework, experiment.world
    rules = f"{framework.title} ({framework.release})" if framework.release else framework.title
    program = experiment.program
    notes = [
        f"read as a job of {f'{program}, by the rules of {rules}' if program else f'{rules}, whose rules it keeps'}"
    ]
    if nodes:
        gpus = per_node or world.per_node or of_hardware
    elif world:
        nodes, gpus = nodes_of(replace(world, per_node=per_node or world.per_node), of_hardware)
    elif world.nodes:
        nodes = world.nodes
        experiment = read_job(path, nodes * gpus, loaded, arguments)
        notes.append(f"{nodes} nodes of every GPU, as it names no processes")
    else:
        nodes = fewest_nodes(experiment.row, gpus)
        experiment = read_job(path, nodes * gpus, loaded, arguments)  # batch and shard group follow from the world
        while nodes == 1 and not per_node and gpus % 2 == 0 and not splits(experiment, gpus):
            gpus //= 2
            experiment = read_job(path, gpus, loaded, arguments)
        notes.append(f"{nodes} node{'s' * (nodes > 1)} assumed, the fewest that its degrees fill; --nodes changes it")
    if gpus != of_hardware:
        notes.append(f"nodes of {gpus} GPUs, where the hardware file has {of_hardware}; links follow from its domain")
    notes += [f"assumed {text}" for text in experiment.assumed]
    notes += with_memory(load_hardware(name), experiment.device_bytes).notes
    if experiment.model is None:
        raise InputError(experiment.model_problems)
    named = model or _preset_of(experiment.model) or str(path)
    return Start(experiment=experiment, hardware=name, nodes=nodes, per_node=gpus, model=named, notes=tuple(notes))


def splits(experiment: Experiment, gpus: int) -> bool:
    """Whether the batch of a file is whole micro-batches of its replicas on so many GPUs, or half of them hold none."""
    row, batch = experiment.row, experiment.global_batch_size
    replicas = max(gpus // (row["tp"] * row["cp"] * row["pp"]), 1)
    is_whole = not batch or batch % (row["micro_batch_size"] * replicas) == 0
    return is_whole or fewest_nodes(row, gpus // 2) > 1


def fewest_nodes(row: Mapping[str, Any], gpus: int) -> int:
    """The fewest nodes of so many GPUs that hold whole replicas of the dense layers and of the experts."""
    dense = row["tp"] * row["cp"] * row["pp"]
    experts = row["etp"] * row["ep"] * row["pp"]
    group = int(row["shard_group"] or 1) * row["tp"] * row["pp"]
    return math.lcm(dense, experts, group, gpus) // gpus


def _preset_of(model: Model) -> str:
    """The name of the preset that a model is; empty where it is none."""
    return next((name for name, preset in presets().items() if preset.model == model), "")


def _hardware_of(path: Path) -> str:
    known = names(FileKind.HARDWARE)
    parts = path.name.split("_") if is_recipe(path) else [*path.resolve().parts, *re.split("[_.-]", path.stem)]
    for part in reversed(parts):
        same = [name for name in known if series(name) == series(part)]  # MI355 is mi355x
        if part.lower() in known or len(same) == 1:
            return part.lower() if part.lower() in known else same[0]
    raise InputError(
        [Problem("--hardware", "is needed: no folder of the file or part of its name is called after hardware")]
    )
