"""Real launch files with one setting changed, and what `project` says of that setting."""

import copy
import random
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from primus_search.base.errors import PrimusSearchError
from primus_search.declare import make_space
from primus_search.exploration.neighbours import Evaluator, figures_of
from primus_search.files.argument_tables import Argument, arguments
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.launch.adapters import keys_of
from primus_search.launch.contract import acts, positive_of, same, translated
from primus_search.launch.experiment import Experiment, of_job
from primus_search.launch.experiment_space import Start, space_of
from primus_search.launch.read.experiments import is_experiment, read_experiment
from primus_search.launch.read.launcher_documents import written
from primus_search.launch.read.recipes import COMMANDS, OF_OVERLAPS, recipes
from primus_search.launch.read.torchtitan import CLASSED
from primus_search.launch.read.torchtitan_command import CONFIGS
from primus_search.launch.refusals import VARIABLE
from primus_search.launch.world import nodes_of
from primus_search.launch.write.launch_files import launch_files
from primus_search.learning.started_experiment import fewest_nodes
from primus_search.models.megatron_arguments import megatron_keys
from primus_search.space import Enumerator
from primus_search.values.machine.framework import Framework
from tests.support.judge.checkouts import sources
from tests.support.launched import jobs
from tests.support.random_scripts import spelled, table
from tools.setting_verdicts import verdict

Changes = Mapping[str, Any]
"""Settings by the names of a file with their values; None where one is taken out."""
WORLD = 64
"""GPUs that a file which names none is read for, before its degrees say how many it fills."""
STARTED = ("world_size", "nnodes", "nproc_per_node")
DIRECTION = re.compile(r"slower|faster|memory|projected as|steps are shorter")
MODELS = ("llama3.1_8b", "qwen3_30b_a3b", "deepseek_v2_lite")


@dataclass(frozen=True)
class LaunchFile:
    """One real file on some hardware.

    given    its settings by the names that the file has for them
    release  whose table has their arguments
    read     its experiment on so many GPUs with settings changed
    """

    name: str
    framework: Framework
    release: str
    hardware: str
    given: Mapping[str, Any]
    read: Callable[[Changes, int], Experiment]

    @cached_property
    def gpus(self) -> int:
        """GPUs that it starts, else the fewest nodes of eight that it fills."""
        experiment = self.read({}, WORLD)
        return experiment.world.gpus or fewest_nodes(experiment.row, 8) * 8

    @cached_property
    def experiment(self) -> Experiment:
        return self.read({}, self.gpus)

    @cached_property
    def figures(self) -> Mapping[str, Any] | str:
        return figures(self.experiment, self.hardware, self.gpus)

    def short(self, key: str) -> str:
        """A key as lists of known keys have it: Megatron's without sections, but those of adapters."""
        is_whole = self.framework.keys == "torchtitan" or key in keys_of(self.framework).read
        return key if is_whole else key.rpartition(".")[2]

    def spellings(self, key: str) -> set[str]:
        """A key and the flags that set the same argument."""
        one = self.arguments.get(self.short(key))
        return {
            self.short(key),
            *(flag.lstrip("!-").replace("-", "_") for flag in (one.flags if one is not None else ())),
        }

    @cached_property
    def arguments(self) -> Mapping[str, Argument]:
        """Arguments of the release by the keys that set them."""
        found = {self.short(one.name): one for one in arguments(self.release).values()}
        flags = {flag.lstrip("!-").replace("-", "_"): one for one in found.values() for flag in one.flags}
        return found | flags


# --- what the screen says ---------------------------------------------------------------------------------------------


def figures(experiment: Experiment, hardware: str, gpus: int) -> Mapping[str, Any] | str:
    """Rate, memory and step that `project` prints, or why it prints none."""
    if experiment.model is None:
        return "; ".join(map(str, experiment.model_problems))
    world = experiment.world
    nodes, per_node = nodes_of(world, 8) if world else (gpus // 8, 8)
    begun = Start(experiment=experiment, hardware=hardware, nodes=nodes, per_node=per_node, model=experiment.model.name)
    try:
        space = space_of(begun, [], None, "")
    except (PrimusSearchError, ValueError) as error:
        return str(error)
    enumerator = Enumerator(space)
    chunk = enumerator.chunk(0, enumerator.size)
    if len(chunk.candidates) != 1:
        return "; ".join(name for name, count in (enumerator.removed | chunk.removed).items() if count)
    found = figures_of(Evaluator(space, space.clusters[0]).projector.project(chunk.candidates), 0)
    return {"rate": found.tokens_per_s_per_gpu, "memory": found.memory, "step": found.step, "notes": space.notes}


def answer(file: LaunchFile, key: str, value: Any) -> str:
    """What the screen says of a setting that is changed: refused, named, unknown, moved, or nothing."""
    try:
        changed = file.read({key: value}, file.gpus)
    except (PrimusSearchError, ValueError):
        return "refused"
    names = {*file.spellings(key), positive_of(file.short(key)), *meanings(file.framework, file.short(key))}
    before, after = (frozenset(notes_of(one)) for one in (file.experiment, changed))
    notes = after if len(str(value)) > MOST_SHOWN else before ^ after  # of a longer list the note stays the same
    about = [one for one in notes if any(re.search(rf"\b{re.escape(name)}\b|^workload", one) for name in names)]
    if any(DIRECTION.search(one) for one in about):
        return "named"
    unsaid = "unknown" if about else "silent"
    if parts(changed) == parts(file.experiment):
        return unsaid
    found = figures(changed, file.hardware, file.gpus)
    if found == file.figures:
        return "computed" if dict(changed.row) != dict(file.experiment.row) else unsaid
    return "refused" if isinstance(found, str) else "moved"


def notes_of(experiment: Experiment) -> tuple[str, ...]:
    return (*experiment.not_modelled, *experiment.assumed)


def parts(found: Experiment) -> Any:
    """What a projection of an experiment stands on."""
    sizes = (found.seq_length, found.global_batch_size, found.world, found.model, found.variant)
    return sizes, dict(found.row), dict(found.numbers), dict(found.workload), dict(found.tuning), dict(found.written)


def meanings(framework: Framework, key: str) -> set[str]:
    """Other names of a key, and the settings that it means."""
    return meant_by(framework, key) | {old for old, new in known_keys(framework.keys).renamed.items() if new == key}


def meant_by(framework: Framework, key: str) -> set[str]:
    """The settings that a key means; those of its words where it is translated by value, else itself."""
    known = known_keys(framework.keys)
    words = {name for word in known.translated.get(key, {}).values() for name in word}
    return words or {known.renamed.get(key, key)}


def can_act(file: LaunchFile, key: str) -> bool:
    """Whether the lists leave a setting any effect in a job."""
    framework, experiment = file.framework, file.experiment
    names = {name for one in file.spellings(key) if verdict(framework, one) for name in meant_by(framework, one)}
    names = {positive_of(one) for one in names if verdict(framework, one) != "cannot matter"}
    model, row = experiment.model, dict(experiment.row)
    given = of_job(framework, model, translated(framework, {**file.given, **experiment.written})[0])
    row["dp"] = file.gpus // (row["tp"] * row["pp"] * row["cp"])
    return any(acts(framework.of(model), row, given, one) for one in names)


# --- other values -----------------------------------------------------------------------------------------------------


def said_values(framework: Framework, key: str) -> list[Any]:
    """Values of a key that the contract of a framework names."""
    spellings = framework.spellings.values()
    settings = [one for spelling in spellings for one in spelling.values.values()]
    settings += [one for spelling in spellings for many in spelling.reads.values() for one in many]
    settings += [one.keys for one in framework.schedules.values()] + [one.settings for one in framework.decides]
    words = [word for word in known_keys(framework.keys).translated.get(key, {}) if "*" not in word]
    words += ["gpt2", "meta-llama/Llama-3.1-8B"] if key == "tokenizer_model" else []
    return words + [one[key] for one in settings if key in one]


ALIKE = {
    "position_embedding_type": ["rope", "yarn", "mrope"],
    "softmax_type": ["vanilla", "off-by-one"],
    "experimental_attention_variant": ["gated_delta_net", "gdn"],
}
"""Values of a size that are one for time and memory: a rotation at other frequencies, a sink that is a constant, an
older name."""


LIMITS = {"activation_func_clamp_value"}
"""Numbers of which only matters whether there is one."""


def priced_alike(framework: Framework, key: str, value: Any) -> list[Any]:
    """Values that a list declares to be one with a value."""
    priced = framework.priced.get(key, ALIKE.get(key))
    listed = priced if isinstance(priced, list) else [priced]
    return listed if any(same(value, one) for one in listed) else []


def other_values(file: LaunchFile, key: str, value: Any) -> list[Any]:
    """Other legal values of a setting: choices of its argument, words of the contract, or some of its type."""
    filled = re.fullmatch(r"\$\{\w+:([^}]*)\}", value) if isinstance(value, str) else None
    value = written(filled[1] if filled else value) if isinstance(value, str) else value
    one, short = file.arguments.get(file.short(key)), file.short(key)
    kind, choices = (one.kind, one.choices) if one is not None else ("", ())
    alike = [value, *priced_alike(file.framework, short, value)]
    meant = translated(file.framework, {short: value})

    def others(values: Iterable[Any]) -> list[Any]:
        new = [each for each in values if each is not None and not any(same(each, other) for other in alike)]
        return [each for each in new if translated(file.framework, {short: each}) != meant]

    if kind == "flag" or isinstance(value, bool):
        return others((True, False))
    if isinstance(value, dict) and value:
        return [{**value, name: not one} for name, one in value.items() if isinstance(one, bool)]
    if kind == "table":
        return [{"NAME": "1"}]
    if short in LIMITS and value:
        return [None]
    named = others([*choices, *said_values(file.framework, short)])
    named = named if named or choices else others(of_type(kind, value))
    is_left_out = one is not None and one.default is None  # by default
    return named or ([None] if key in file.given and is_left_out else [])


def of_type(kind: str, value: Any) -> list[Any]:
    """Values of a type, near a value where it is a number and far from it."""
    if isinstance(value, float) and 0 < value <= 1:
        return [value / 2]
    if isinstance(value, int | float):
        return [abs(value) * 2 or 2, 1 if abs(value) > 1 else 3, abs(value) + 1000]
    if kind in ("int", "float"):
        return [2, 3, 1000] if kind == "int" else [0.5, 3.0]
    if kind == "pattern" and isinstance(value, list):  # a flag for each layer; a window: tokens to the left, the right
        return [[1 - value[0] if {*value} <= {0, 1} else value[0] * 2 + 2, *value[1:]]]
    if isinstance(value, list) or kind.startswith("list"):
        return [value[:-1]] if value else [[2, 2] if kind == "list[int]" else ["x"]]
    return ["other"]


OF_CLASS = ("model.", "comm_overlap.")
"""Sections of Megatron-Bridge whose settings are decided by the class of a model, and by the stages of a job."""


def decided_by(name: str, release: str, given: Mapping[str, Any]) -> str:
    """The field of `mixed_precision` or `comm_overlap` of Megatron-Bridge that overwrites an argument; else itself."""
    of_buffers = name.startswith(("ddp.", "optimizer."))
    overlaps = OF_OVERLAPS in given and (not of_buffers or given.get("use_distributed_optimizer"))
    sections = ("mixed_precision", *["comm_overlap"] * bool(overlaps))
    fields = (f"{section}.{name.rpartition('.')[2]}" for section in sections)
    fields = ("dataset.seq_length",) if name == "model.seq_length" else fields
    return next((one for one in fields if one in arguments(release)), name)


def priced_settings(file: LaunchFile) -> dict[str, Any]:
    """Switches by the numbers that a file is priced with, however it came to them."""
    decisions = [(one, *item) for one in file.framework.decides for item in one.settings.items()]
    numbers = file.experiment.numbers
    return {
        key: (numbers[one.number] == one.value) is value
        for one, key, value in decisions
        if isinstance(value, bool) and len(one.settings) == 1 and one.otherwise is not None and one.number in numbers
    }


def left_out(file: LaunchFile) -> dict[str, Any]:
    """Settings that a file does not give, with what its model file or the release has, by keys that set them.

    What no table has of a recipe is as it is priced (`OF_CLASS`), a number of ranks as the row of the file has it.
    """
    given = {*map(file.short, file.given)}  # of an argument of several sections the one that a file gives
    given |= {file.short(file.arguments[key].name) for key in given if key in file.arguments}
    rest = [one for one in arguments(file.release).values() if file.short(one.name) not in given]
    rest = [one for one in rest if one.flags or file.framework.name != "megatron"]
    rest = [one for one in rest if not one.name.startswith(("model_spec", "model.flavor", "model.name"))]
    rest = [one for one in rest if one.name == decided_by(one.name, file.release, file.given)]
    rest = [one for one in rest if one.name not in key_table(COMMANDS)["unread"]]
    framework, model, of_model = file.framework, file.experiment.model, file.experiment.written
    made = framework.priced | (megatron_keys(model) if model else {}) | priced_settings(file)
    row = {one.key: file.experiment.row.get(axis) for axis, one in framework.spellings.items()}

    def usual(one: Argument) -> Any:
        names = [file.short(one.name), *meanings(framework, file.short(one.name))]
        words = known_keys(framework.keys).translated.get(names[0], {}).items() if one.name.startswith(OF_CLASS) else ()
        for word, meant in words:
            if any(name in made for name in meant) and all(same(made.get(name), to) for name, to in meant.items()):
                return word
        if resolved := [of_model[name] for name in names if name in of_model]:
            return resolved[0]
        decided = [made[name] for name in names if name in made] if one.name.startswith(OF_CLASS) else []
        value = decided[0] if decided else framework.defaults.get(names[0], one.default)
        value = row.get(names[0]) if value is None and one.kind == "int" else value
        return value[0] if decided and isinstance(value, list) else value

    return {one.name: usual(one) for one in rest}


def mutated(file: LaunchFile, rng: random.Random, given: int, others: int) -> Iterator[tuple[str, Any, str]]:
    """A draw of settings of a file and of those that it leaves out: the key, a value, and what the screen says of it.

    Of several values the one of which most is said; a refusal counts where every value is refused.
    """
    some = rng.sample(list(file.given.items()), min(given, len(file.given)))
    some += rng.sample(list(left_out(file).items()), others)
    for key, value in some:
        if not can_act(file, key):
            yield key, value, "cannot act"
            continue
        value = file.experiment.written.get(key, value)  # as resolved: what `comm_overlap` gives a single replica
        said = translated(file.framework, file.given)[0]  # another setting may say the same, or win over it
        values = [
            one
            for one in other_values(file, key, value)
            if translated(file.framework, {**file.given, key: one})[0] != said
        ]
        found: dict[str, Any] = {}
        for one in rng.sample(values, min(3, len(values))):
            found[answer(file, key, one)] = one
            if not found.keys().isdisjoint(("moved", "named")):
                break
        best = next((one for one in ANSWERS if one in found), "no other value")
        yield key, found.get(best, value), best


MOST_SHOWN = 60
"""Letters of a value that a note has."""
ANSWERS = ("moved", "named", "computed", "unknown", "silent", "refused")


# --- files ------------------------------------------------------------------------------------------------------------


def drawn(folder: Path, patterns: tuple[str, ...], rng: random.Random) -> Iterator[Path]:
    """Files below a folder that are read as jobs, in an order that is drawn."""
    found = sorted(path for pattern in patterns for path in folder.rglob(pattern))
    return (path for path in rng.sample(found, len(found)) if is_experiment(path))


def script(experiment: Experiment, changes: Changes, gpus: int) -> str:
    """A script that starts Megatron with the settings of an experiment, some of them changed."""
    rows = table("megatron@core_0.20")
    settings = {key: value for key, value in {**experiment.written, **changes}.items() if key not in STARTED}
    exports = {key.removeprefix(VARIABLE): settings.pop(key) for key in [*settings] if key.startswith(VARIABLE)}
    gpus = experiment.world.gpus or gpus
    nodes, each = nodes_of(experiment.world, 8) if experiment.world else (gpus // 8, 8)
    words = ["torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(each), "pretrain_gpt.py"]
    for key, value in settings.items():
        if key in changes and key in rows and value is not None:
            words += spelled(rows[key], value) or []
        elif value is not None and value is not False:  # a given `0.0` is no default
            words += [
                f"--{key.replace('_', '-')}",
                *([] if value is True else map(str, value if isinstance(value, list) else [value])),
            ]
    return "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in exports.items()) + shlex.join(words)


def megatron_files(folder: Path, rng: random.Random) -> Iterator[LaunchFile]:
    """Scripts and functional tests of Megatron-LM, each as one plain command."""
    root = sources("megatron@core_0.20")
    for path in drawn(root, ("*.sh", "model_config.yaml"), rng):
        try:
            found = read_experiment(path, WORLD)
        except PrimusSearchError:
            continue
        if found.framework.name == "megatron" and found.written:
            yield of_script(found, str(path.relative_to(root)), folder / "run.sh")


def of_script(found: Experiment, name: str, work: Path) -> LaunchFile:
    """A job of Megatron-LM, written to `work` as one plain command."""

    def read(changes: Changes, gpus: int) -> Experiment:
        work.write_text(script(found, changes, gpus))
        return read_experiment(work, gpus)

    given = {key: one for key, one in found.written.items() if key not in STARTED and not key.startswith(VARIABLE)}
    return LaunchFile(name, load_framework("megatron"), "megatron@core_0.20", "h100", given, read)


def leaves(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of a document by their names with dots."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def changed(document: Any, section: tuple[str, ...], changes: Changes) -> Any:
    """A document with settings below a section changed."""
    copied = copy.deepcopy(document)
    for key, value in changes.items():
        inner = copied
        *path, last = (*section, *key.split("."))
        for name in path:
            inner[name] = inner.get(name) or {}
            inner = inner[name]
        inner[last] = value
        if value is None:
            del inner[last]
    return copied


OF_BACK_END = {"megatron": ("primus", "primus"), "torchtitan": ("torchtitan@0.2.2", "torchtitan@0.2.2")}
"""Contract and arguments of the back ends of Primus."""
OVERRIDES = ("modules", "pre_trainer", "overrides")


def primus_files(folder: Path, rng: random.Random) -> Iterator[LaunchFile]:
    """Experiments of Primus with either back end."""
    root, work = sources("primus"), folder / "examples" / "one" / "two"
    work.mkdir(parents=True)
    (folder / "primus").symlink_to(root / "primus")  # model files that experiments build on
    for path in drawn(root / "examples", ("*.yaml",), rng):
        document = yaml.safe_load(path.read_text())
        module = document["modules"].get("pre_trainer") or {}
        if module.get("framework") not in OF_BACK_END:
            continue
        for beside in path.parent.glob("*.yaml"):
            shutil.copy(beside, work)

        def read(changes: Changes, gpus: int, document: Any = document) -> Experiment:
            (work / "mutated.yaml").write_text(yaml.safe_dump(changed(document, OVERRIDES, changes)))
            return read_experiment(work / "mutated.yaml", gpus)

        name, release = OF_BACK_END[module["framework"]]
        given = dict(leaves(module.get("overrides") or {}))
        device = next((one.lower() for one in path.parts if one in ("MI355X", "MI325X")), "mi300x")
        yield LaunchFile(str(path.relative_to(root)), load_framework(name), release, device, given, read)


def torchtitan_files(folder: Path, rng: random.Random) -> Iterator[LaunchFile]:
    """Configuration functions of torchtitan 0.3.0 with flags over them, from its own registries."""
    framework, configs, work = load_framework("torchtitan"), key_table(CONFIGS), folder / "run.sh"
    functions = [(module, name) for module, known in configs.items() for name in known]
    for module, name in rng.sample(functions, len(functions)):

        def read(changes: Changes, gpus: int, start: str = f"--module {module} --config {name}") -> Experiment:
            words = [word for key, value in changes.items() for word in titan_flag(key, value)]
            command = f"torchrun --nnodes {gpus // 8} --nproc-per-node 8 -m torchtitan.train {start}"
            work.write_text(f"{command} {shlex.join(words)}")
            return read_experiment(work, gpus)

        flags = arguments("torchtitan@0.3.0")  # the command line sets no argument of a model
        given = {
            key: value for key, value in configs[module][name].items() if key in flags and key[:10] != "model_spec"
        }
        yield LaunchFile(f"{module}.{name}", framework, "torchtitan@0.3.0", "h100", given, read)


def titan_flag(key: str, value: Any) -> list[str]:
    if key in CLASSED:
        return [f"{key}:{value}"]
    if isinstance(value, bool):
        section, _, name = key.rpartition(".")
        return [f"--{key}" if value else f"--{section}.no-{name}"]
    return [f"--{key}", *map(str, value)] if isinstance(value, list) else [f"--{key}", str(value)]


def job_files(folder: Path, rng: random.Random) -> Iterator[LaunchFile]:
    """Job files of torchtitan 0.2.2: exports of random candidates, as its wheel has none."""
    while True:
        model, seed = rng.choice(MODELS), rng.randrange(1000)
        space = {"model": model, "hardware": "h100", "nodes": 2, "framework": "torchtitan@0.2.2",
                 "workload": {"seq_length": 4096, "global_batch_size": 128}}  # fmt: skip
        for name, text in launch_files(next(iter(jobs(make_space(space), 1, seed)))).texts.items():
            (folder / name).write_text(text)
        yield job_file(folder / "torchtitan.toml", f"{model} {seed}")


def job_file(path: Path, name: str) -> LaunchFile:
    document, work = tomllib.loads(path.read_text()), path.with_name("mutated.toml")

    def read(changes: Changes, gpus: int) -> Experiment:
        work.write_text(tomli_w.dumps(changed(document, (), changes)))
        return read_experiment(work, gpus)

    return LaunchFile(
        name, load_framework("torchtitan@0.2.2"), "torchtitan@0.2.2", "h100", dict(leaves(document)), read
    )


DEVICES = ("h100", "b200", "b300", "gb200", "gb300")


def recipe_files(folder: Path, rng: random.Random) -> Iterator[LaunchFile]:
    """Recipes of Megatron-Bridge with overrides behind them."""
    framework, work = load_framework("nemo"), folder / "run.sh"
    for name in rng.sample([*recipes()], len(recipes())):
        device = next((part for part in name.split("_") if part in DEVICES), "")

        settings = recipes()[name].settings
        sections = {one.rpartition(".")[2]: decided_by(one, "nemo", settings) for one in arguments("nemo")}

        def read(changes: Changes, gpus: int, name: str = name, sections: Changes = sections) -> Experiment:
            words = [f"{sections.get(k, k if '.' in k else f'model.{k}')}={plain(v)}" for k, v in changes.items()]
            work.write_text(f"python scripts/training/run_recipe.py --recipe {name}_config {shlex.join(words)}")
            return read_experiment(work, gpus)

        if device:
            given = {key: value for key, value in settings.items() if value is not None}
            yield LaunchFile(name, framework, "nemo", device, given, read)


def plain(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{one}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def priced_files(files: Iterator[LaunchFile], count: int) -> Iterator[LaunchFile]:
    """The first `count` files that `project` prices."""
    for file in files:
        try:
            is_priced = not isinstance(file.figures, str)
        except (PrimusSearchError, ValueError):
            continue
        if is_priced and count > 0:
            count -= 1
            yield file
        if not count:
            return
