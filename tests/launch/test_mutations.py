"""Each key of real experiments set to another value: a number moves, a note names it, or it is on the reviewed list."""

import copy
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.launch.contract import is_off
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.experiments import is_experiment, read_experiment
from primus_search.launch.read.megatron_experiments import of_settings
from primus_search.launch.refusals import refused
from primus_search.launch.write.launch_files import launch_files
from primus_search.values.machine.framework import Framework
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import jobs
from tools.setting_verdicts import verdict

Keys = tuple[str, ...]
FILES = (22, 8)
"""Experiments of Primus' Megatron and torchtitan back ends, spread evenly over all that the clients have."""


def what_is_read(path: Path) -> Any:
    try:
        return parts_of(read_experiment(path, 64))
    except InputError as error:
        return str(error)


def parts_of(found: Experiment) -> Any:
    """What a projection of an experiment stands on, and what is said of it."""
    sizes = (found.seq_length, found.global_batch_size, found.world)
    parts = (sizes, found.model, found.variant, found.not_modelled, found.numbers, found.workload)
    return dict(found.row), parts, list(map(str, found.model_problems))


def leaves(data: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def other_values(framework: Framework, key: str, value: Any) -> list[Any]:
    """Other legal values of a key: those that the contract names, and one of the same type."""
    filled = re.fullmatch(r"\$\{\w+:([^}]*)\}", value) if isinstance(value, str) else None
    if filled:
        return other_values(framework, key, yaml.safe_load(filled[1]) if filled[1] else None)
    settings = (one for spelling in framework.spellings.values() for one in spelling.values.values())
    named = [one[key] for one in settings if key in one and str(one[key]).lower() != str(value).lower()]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [*named, abs(value) * 2 or 2]
    if isinstance(value, list):
        return [*named, value[:-1] or ["x"]]
    return [*named, True, 2] if value is None else [*named, "other"]


def silent_keys(path: Path, work: Path) -> tuple[int, list[str]]:
    """How many keys an experiment sets itself, and those of which no other value changes anything that is read."""
    document = yaml.safe_load(path.read_text())
    module = document["modules"].get("pre_trainer") or {}
    framework = load_framework("torchtitan@0.2.2" if module.get("framework") == "torchtitan" else "primus")
    table, separator = known_keys(framework.keys), "." if framework.launcher == "torchtitan" else None
    given = dict(leaves(module.get("overrides") or {}))

    def seen(changed: Keys = (), value: Any = None) -> Any:
        copied = copy.deepcopy(document)
        if changed:
            table = copied["modules"]["pre_trainer"]["overrides"]
            for name in changed[:-1]:
                table = table[name]
            table[changed[-1]] = value
        work.write_text(yaml.safe_dump(copied))
        return what_is_read(work)

    before, found = seen(), []
    for keys, value in given.items():
        key = separator.join(keys) if separator else keys[-1]
        is_listed = verdict(framework, key) == "cannot matter" or key in table.read_where
        if not is_listed and all(seen(keys, other) == before for other in other_values(framework, key, value)):
            found.append(f"{key}: {value}")
    return len(given), found


@needs("primus")
@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.full)])
def test_no_key_of_a_real_experiment_is_silent(tmp_path: Path, step: int) -> None:
    files = [path for path in sorted((sources("primus") / "examples").rglob("*.yaml")) if is_experiment(path)]
    by_back_end = [[path for path in files if part in path.parts] for part in ("megatron", "torchtitan")]
    chosen = [paths[:: len(paths) // count][:count] for paths, count in zip(by_back_end, FILES, strict=True)]
    root = tmp_path / "primus"
    shutil.copytree(sources("primus"), root)  # an experiment builds on the model files beside it
    total = 0
    for path in [path for paths in chosen for path in paths][::step]:
        work = root / path.relative_to(sources("primus")).with_name("mutated.yaml")
        count, silent = silent_keys(path, work)
        work.unlink()
        assert silent == [], path.name
        total += count
    assert total >= 1500 // step // 2


# --- job files and scripts ------------------------------------------------------------------------------------------

WRITTEN = {"torchtitan@0.2.2": "torchtitan.toml", "megatron": "megatron.sh"}
MODELS = ("llama3.1_8b", "qwen3_30b_a3b", "deepseek_v2_lite")


def launch_of(framework: str, model: str, folder: Path, seed: int) -> Path:
    """The job file or script of a random candidate, in a folder with what stands beside it."""
    space = {"model": model, "hardware": "h100", "nodes": 2, "framework": framework,
             "workload": {"seq_length": 4096, "global_batch_size": 128}}  # fmt: skip
    texts = launch_files(next(iter(jobs(make_space(space), 1, seed)))).texts
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder / WRITTEN[framework]


def silent_in_job(path: Path) -> list[str]:
    """Keys of a job file of which no other value changes anything that is read."""
    framework, data = load_framework("torchtitan@0.2.2"), tomllib.loads(path.read_text())
    before, found = what_is_read(path), []

    def seen(keys: Keys, value: Any) -> Any:
        copied = table = copy.deepcopy(data)
        for name in keys[:-1]:
            table = table[name]
        table[keys[-1]] = value
        path.write_text(tomli_w.dumps(copied))
        return what_is_read(path)

    for keys, value in leaves(data):
        key = ".".join(keys)
        is_listed = verdict(framework, key) == "cannot matter" or key in known_keys(framework.keys).read_where
        others = [one for one in other_values(framework, key, value) if one is not None]
        if not is_listed and all(seen(keys, other) == before for other in others):
            found.append(f"{key}: {value}")
    return found


def silent_in_script(path: Path) -> list[str]:
    """Arguments of a script of which neither another value nor none changes anything that is read."""
    framework, text = load_framework("megatron"), path.read_text()
    before, found = what_is_read(path), []
    for line, flag, value in re.findall(r"^(  --([a-z0-9-]+)(?: (\S+))?)$", text, re.MULTILINE):
        key = flag.replace("-", "_")
        table = known_keys(framework.keys)
        is_idle = any(f"  --{name.replace('_', '-')}\n" in text for name in table.idle_where.get(key, ()))
        is_listed = verdict(framework, key) == "cannot matter" or key in table.read_where or is_idle
        others = [f"  --{flag} {one}" for one in other_values(framework, key, yaml.safe_load(value))] if value else []
        reads = []
        for other in ("", *others):
            path.write_text(text.replace(line + "\n", other + "\n"))
            reads.append(what_is_read(path))
        if not is_listed and all(one == before for one in reads):
            found.append(f"{flag} {value}")
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("framework", "silent"), [("torchtitan@0.2.2", silent_in_job), ("megatron", silent_in_script)])
def test_no_key_of_a_job_file_or_script_is_silent(
    tmp_path: Path, framework: str, model: str, silent: Callable[[Path], list[str]]
) -> None:
    for seed in range(2):
        assert silent(launch_of(framework, model, tmp_path, seed)) == []


# --- arguments of real scripts ----------------------------------------------------------------------------------------


def real_scripts(release: str) -> Iterator[tuple[Path, Experiment]]:
    """Scripts and test cases of a checkout of Megatron-LM that start a training, as they are read."""
    for path in sorted(one for kind in ("*.sh", "model_config.yaml") for one in sources(release).rglob(kind)):
        try:
            found = read_experiment(path, 64) if is_experiment(path) else None
        except InputError:
            continue
        if found is not None and found.written and found.framework.launcher == "megatron":
            yield path, found


OF_WORLD = ("world_size", "nnodes", "nproc_per_node")
"""What a script starts, which is handed over beside its arguments."""


def silent_arguments(path: Path, experiment: Experiment) -> tuple[int, list[str]]:
    """How many arguments a script has, and those of which neither another value nor none changes anything."""
    framework, table = experiment.framework, known_keys(experiment.framework.keys)
    given = {key: value for key, value in experiment.written.items() if not key.startswith("env_")}
    world = experiment.world.gpus or 64

    def seen(settings: Mapping[str, Any]) -> Any:
        refusals = [str(one) for one in refused(framework.name, settings, world, 9)]
        try:
            return parts_of(of_settings(path, framework, settings, world, None)), refusals
        except InputError as error:
            return str(error), refusals

    before, found = seen(given), []
    for key, value in given.items():
        if key in OF_WORLD:
            continue
        is_idle = any(not is_off(given.get(one)) for one in table.idle_where.get(key, ()))
        if is_idle or verdict(framework, key) == "cannot matter" or key in table.read_where:
            continue
        others = other_values(framework, key, yaml.safe_load(value) if isinstance(value, str) else value)
        changed = [{k: v for k, v in given.items() if k != key}]
        changed += [given | {key: other if isinstance(other, bool | list) else str(other)} for other in others]
        if all(seen(one) == before for one in changed):
            found.append(f"{key}: {value}")
    return len(given), found


@needs("megatron@core_0.20")
@pytest.mark.parametrize("files", [pytest.param(6, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.full)])
def test_no_argument_of_a_real_script_is_silent(files: int) -> None:
    scripts = list(real_scripts("megatron@core_0.20"))
    assert len(scripts) >= 100
    chosen = scripts[:: len(scripts) // files][:files]
    silent = {path.parent.name: silent_arguments(path, one)[1] for path, one in chosen}
    assert {name: keys for name, keys in silent.items() if keys} == {}
