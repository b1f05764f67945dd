"""Random jobs of each framework: its own checks accept every file, and every file reads back as its job."""

import os
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.recipes import fits_its_gpus, mode_of, recipes
from primus_search.launch.write.job import Inexpressible
from primus_search.models.tokenizers import models_of_tokenizers
from tests.launch.test_launch_files import JUDGED, contract_of
from tests.launch.test_round_trip import differences, main_file
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import verdicts
from tests.support.mutations import DEVICES, figures, plain
from tests.support.random_jobs import RandomJob, random_jobs

COUNT, FIRST = 400, 202_000
"""Jobs of each release, and the number of the space that they begin with."""
NOT_BUILT = {"minimax_m3": "no class of transformers 5.23", "glm5.2": "its class lost indexer_rope_interleave",
             "gemma4_26b_a4b": "reads num_key_value_heads of all layers, which differ"}  # fmt: skip
"""Models whose configuration on the hub the Bridge that judges cannot take from transformers 5.23."""
RELEASES = [*JUDGED, pytest.param("nemo@26.08", "nemo", marks=needs("nemo@26.08"))]


def recipes_in(judge: str) -> set[str]:
    """Recipes of the release of Megatron-Bridge that judges; the table has newer ones."""
    files = sources(judge).glob("src/megatron/bridge/*recipes/**/*.py") if judge.startswith("nemo") else ()
    return {name for file in files for name in re.findall(r"\b\w+_config\b", file.read_text(encoding="utf-8"))}


def written_jobs(judge: str, folder: Path, first: int) -> Iterator[tuple[Path, str]]:
    """Endless launch files of random jobs, each with its model and what comes back otherwise than it was written."""
    contract, named = contract_of(judge), recipes_in(judge)

    def is_judged(drawn: RandomJob) -> bool:
        """Models of towers are no presets, whose configurations stand in for the hub's."""
        is_built = not drawn.model and drawn.job.model.name not in NOT_BUILT
        return not drawn.recipe or (is_built and f"{drawn.recipe}_config" in named)

    for number, drawn in enumerate(filter(is_judged, random_jobs(contract, folder, first))):
        own = folder / str(number)
        own.mkdir()
        with suppress(Inexpressible), pytest.MonkeyPatch.context() as environment:
            environment.setenv("BRIDGE_PATH", "/opt/bridge")
            environment.setenv("RECIPE", f"{drawn.recipe}_config")
            lost = differences(drawn, own)
            main = own / main_file(drawn.job)
            if drawn.recipe and not drawn.job.recipe:  # a person names it
                text = main.read_text(encoding="utf-8")
                main.write_text(text.replace("set -euo", f"RECIPE={drawn.recipe}_config\nset -euo", 1))
            yield main, f"{drawn.job.model.name} {', '.join(lost)}"


@pytest.mark.full
@pytest.mark.parametrize(("judge", "framework"), RELEASES)
def test_frameworks_accept_random_jobs(judge: str, framework: str, tmp_path: Path) -> None:
    assert judge.startswith(framework)
    found = dict(islice(written_jobs(judge, tmp_path, FIRST), COUNT))
    lost = [f"{file}: {one}" for file, one in found.items() if one.partition(" ")[2]]
    refused = [one for one in verdicts(judge, list(found)) if not one["accepted"]]
    assert (lost, refused) == ([], [])


PRETRAINING, PLAIN = 6, (bool, int, float, str, type(None), list)
"""Recipes of a day, and types of settings that a command can say."""
FITTED_OTHERWISE = {"bias_dropout_fusion"}
"""Settings that stack files keep as they were fitted: it is off in most recipes, and priced as on."""


@needs("nemo")
@pytest.mark.in_turn
def test_what_the_classes_of_a_recipe_resolve_changes_nothing_where_a_command_says_it(tmp_path: Path) -> None:
    """Settings that the contract prices, as the Megatron-Bridge whose recipes are in the table resolves them."""
    rng, named, hubs = random.Random(os.environ["TEST_DAY"]), recipes_in("nemo"), models_of_tokenizers()
    known = [name for name, one in recipes().items() if f"{name}_config" in named and one.model.lower() in hubs]
    drawn = [name for name in rng.sample(known, len(known)) if mode_of(name) == "pretrain" and OWN.search(name)]
    files = {tmp_path / f"{name}.sh": command(name) for name in drawn if fits_its_gpus(name)}
    files = dict(islice(files.items(), 2 * PRETRAINING))  # some of which the stand-ins cannot build
    for file, text in files.items():
        file.write_text(text)
    found = {file: one["args"] for file, one in zip(files, verdicts("nemo", [*files]), strict=True) if one["accepted"]}
    assert len(found) >= PRETRAINING
    counted, lost = contract_keys("nemo"), dict[str, Any]()
    for file, resolved in found.items():
        hardware = next(one for one in DEVICES if f"_{one}_" in file.stem)
        before = priced(file, hardware)
        said = {key: value for key, value in resolved.items() if key in counted and is_plain(key, value)}
        file.write_text(f"{files[file]} {shlex.join(f'{key}={plain(value)}' for key, value in said.items())}")
        after = priced(file, hardware)
        lost |= {
            f"{file.stem} {one}": (before.get(one), after.get(one))
            for one in before | after
            if before.get(one) != after.get(one)
        }
    assert lost == {}


OWN = re.compile(rf"_([0-9]+)gpu_(?:{'|'.join(DEVICES)})_")
"""GPUs and device in the name of a recipe."""


def is_plain(key: str, value: Any) -> bool:
    """Whether a command can say a value: no layers of stages, a list of lists, and no old name that nothing has."""
    is_nested = str(value)[:2] == "[["
    is_old = value is None and key.rpartition(".")[2] in known_keys("megatron").renamed.values()
    return type(value) in PLAIN and not is_nested and not is_old


def command(recipe: str) -> str:
    """The command that starts a recipe on the GPUs of its name."""
    gpus = int(OWN.findall(recipe)[0])
    start = f"torchrun --nnodes {max(gpus // 8, 1)} --nproc-per-node {min(gpus, 8)}"
    return f"{start} /opt/bridge/scripts/training/run_recipe.py --recipe {recipe}_config"


def contract_keys(name: str) -> set[str]:
    """Keys that make axes or numbers of the stack, with the sections that have them once a configuration is built."""
    framework = load_framework(name)
    of_numbers = {key for one in framework.decides for many in (one.settings, *one.reads) for key in many}
    keys = of_numbers | {key for one in framework.spellings.values() for key in one.keys}
    return {f"{section}.{key}" for section in ("model", "ddp", "optimizer", "train") for key in keys - FITTED_OTHERWISE}


def priced(file: Path, hardware: str) -> dict[str, Any]:
    """Axes, rate, memory and step of a file."""
    found = read_experiment(file, 8)
    told = figures(found, hardware, found.world.gpus)
    return dict(found.row) | ({"refused": told} if isinstance(told, str) else {**told, "notes": ()})
