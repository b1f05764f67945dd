"""Jobs of other launchers as settings of a contract, or as axes: one table for each, `spaces/keys/launchers.yaml`.

A launcher that starts Megatron, or a plain stack of FSDP, has other names for what a contract says. Its table renames
them (`Launcher`); nothing here knows a launcher. A key that no table has is listed as it stands.

    read_launcher(Path("qwen3.sh"), text, launcher, 16, None)     # `megatron sft --tensor_model_parallel_size 8 ...`
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.plain_forms import from_plain
from primus_search.files.source import Document, parse, plain, shown
from primus_search.launch.adapters import LoraKeys, tuning_in
from primus_search.launch.contract import is_off, shortened, whole
from primus_search.launch.experiment import Experiment, settled
from primus_search.launch.read.megatron import model_keys, sharded
from primus_search.launch.read.script_arguments import OPTIONS
from primus_search.launch.read.torchtitan import flattened
from primus_search.launch.script import bash
from primus_search.launch.script.shell_variables import UNSET
from primus_search.launch.world import NO_WORLD, World, world_of
from primus_search.models.model_files import load_model
from primus_search.models.presets import load_preset, presets
from primus_search.values.candidates import DEFAULTS
from primus_search.values.knobs import WORDED
from primus_search.values.machine.framework import ANY, Framework, Settings
from primus_search.values.model import Model

TABLE = "launchers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What a launcher calls the settings of a contract. Names of keys may have `*`.

    contract     the contract whose keys are meant; any: the names on the right are axes of ours
    program      of a script: what the command that starts it has (a regular expression)
    where        keys that a file of it has, and the values that they have there
    stacks       the software stack it runs on, by the vendor of the devices; else that of the contract
    model, models  the keys that name its model; its own names of presets
    sizes        keys that make it another model than it is called
    config       the key below which the fields of a config.json stand; `config_of`: the switch that names its family
    nodes, per_node, gpus  keys, or variables of a script's environment, that give the GPUs
    prefixes, own  sections whose keys have the contract's own names; single keys that have them
    renamed, translated  the contract's name of a key; the settings that a value of it means
    formulas     settings that several keys give, as sums of products; the first whose keys are all known counts
    defaults     what the launcher takes where a file does not say, under the contract's names, beside its own
    overrules    settings that a value of a key means whatever else the file says
    adapters     keys under which a part of the weights is trained that is not modelled, and the values that say so
    lora         what it calls the settings of low-rank adapters
    refused      values of keys with which a file is not read, and why
    effects      keys that move time or memory and are not priced, and how; `irrelevant`: those that move neither
    notes        what is said of every file: what of the job is not priced
    """

    title: str
    source: str
    contract: str = ANY
    program: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, str] = field(default_factory=dict)
    model: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    config: str = ""
    config_of: Mapping[str, str] = field(default_factory=dict)
    config_drops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    translated: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    formulas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)
    overrules: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    lora: LoraKeys = field(default_factory=LoraKeys)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    effects: Mapping[str, str] = field(default_factory=dict)
    irrelevant: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def launchers() -> dict[str, Launcher]:
    """Every launcher that has a table, by name; in the order in which a file is tried."""
    return {name: from_plain(Launcher, one) for name, one in key_table(TABLE).items()}


def launcher_of(path: Path, text: str) -> Launcher | None:
    """The launcher that a file is written for; None where it is none of them."""
    is_script = path.suffix not in (".yaml", ".yml", ".json")
    if is_script and not any(one.program and re.search(one.program, text) for one in launchers().values()):
        return None
    try:
        given = {} if is_script else _of_document(path, text)
    except InputError:
        return None
    for one in launchers().values():
        has_command = is_script and bool(one.program) and re.search(one.program, text) is not None
        given = _of_script(path, text, one)[0] if has_command else given
        if (has_command or not is_script) and one.where and all(_has(given, *pair) for pair in one.where.items()):
            return one
        if has_command and not one.where:
            return one
    return None


def _has(given: Settings, key: str, value: str) -> bool:
    names = [name for name in given if any(fnmatchcase(name, one) for one in key.split("|"))]
    return any(_fits(str(given[name]), value) for name in names)


def _fits(value: str, patterns: str) -> bool:
    """Whether a value, whatever its case, fits one of the patterns between bars."""
    return any(fnmatchcase(value.lower(), one) for one in patterns.split("|"))


# --- what a file gives ------------------------------------------------------------------------------------------------

_PARENTS = ("defaults",)
"""Keys of a document that names others whose settings it changes (NeMo-RL)."""


def _of_document(path: Path, text: str, depth: int = 0) -> dict[str, Any]:
    """The keys of a document with dots between sections, over those of the documents that it changes."""
    data = parse(text, path.name).data
    if not isinstance(data, dict):
        return {}
    given: dict[str, Any] = {}
    for key in _PARENTS:
        parents = data.get(key)
        for parent in [parents] if isinstance(parents, str) else []:
            file = path.parent / parent
            if depth < MOST_PARENTS and file.is_file():
                given |= _of_document(file, read_text(file, most=MAX_TABLE_BYTES), depth + 1)
    return given | {name.replace("-", "_"): _written(value) for name, value in flattened(data).items()}


MOST_PARENTS = 8


def _of_script(path: Path, text: str, launcher: Launcher) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """Settings of the last command of a launcher, those of documents beside the script that it names; its words; and
    the variables of the script."""
    script = bash.followed(text, os.environ, path.parent)
    runs = [words for words in script.commands if re.search(launcher.program, " ".join(words))]
    words = runs[-1] if runs else []
    given: dict[str, Any] = {}
    for word in words:
        name = word.rpartition("=")[2]
        file = path.parent / Path(name).name
        if name.endswith((".yaml", ".yml", ".json")) and not UNSET.search(name) and file.is_file():
            given |= _of_document(file, read_text(file, most=MAX_TABLE_BYTES))
    for key, value in _words(words):
        given[key] = _written(value)
    return given, words, {**os.environ, **bash.slurm(text), **script.variables.values}


_ASSIGNED = re.compile(r"\+{0,2}([A-Za-z_][\w.]{0,200}+)=(.*)", re.DOTALL)


def _words(words: list[str]) -> Iterator[tuple[str, Any]]:
    """`--key value ...`, `--key=value` and `section.key=value` of a command."""
    several: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--") and word != "--":
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            several[name] = [value] if equals else []
        elif word.endswith(".py"):
            name = ""
        elif assigned := _ASSIGNED.fullmatch(word):
            several[assigned[1]], name = [assigned[2]], ""
        elif name and not OPTIONS.fullmatch(word):
            several[name].append(word)
    yield from ((key, values if len(values) > 1 else values[0] if values else True) for key, values in several.items())


def _written(value: Any) -> Any:
    """A value as YAML has it: true, null and lists of a command line, too."""
    if not isinstance(value, str) or UNSET.search(value):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        return [part.strip(" '\"") for part in value[1:-1].split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None, "none": None, "~": None}
    return words.get(value.lower(), value)


# --- what it means ----------------------------------------------------------------------------------------------------


OfContract = Callable[[Path, Framework, Settings, int, Model | None, World], Experiment]
"""What reads settings under the names of a contract."""


def read_launcher(
    path: Path, text: str, launcher: Launcher, world: int, model: Model | None, of_contract: OfContract
) -> Experiment:
    """The job that a file of a launcher starts, on `world` GPUs where the file does not say how many.

    Raises ValueError where adapters alone are trained, and where a setting that counts has no value.
    """
    words: list[str] = []
    variables: dict[str, str] = {}
    if path.suffix in (".yaml", ".yml", ".json"):
        given = _of_document(path, text)
    else:
        given, words, variables = _of_script(path, text, launcher)
    started = _world(launcher, given, words, variables)
    return of_given(path, launcher, given, world, model, of_contract, started)


def of_given(
    path: Path, launcher: Launcher, given: Settings, world: int, model: Model | None, of_contract: OfContract,
    started: World = NO_WORLD,
) -> Experiment:  # fmt: skip
    """The job of settings under the names of a launcher, as `read_launcher`."""
    refuse_adapters(given, launcher.adapters)
    tuning = tuning_in(given, launcher.lora)
    for key, reasons in launcher.refused.items():
        why = next((reason for words, reason in reasons.items() if key in given and _fits(str(given[key]), words)), "")
        if why:
            raise ValueError(f"{key}: {shortened(given[key])}: {why}")
    found, notes = _renamed(launcher, given)
    loaded, problems = (model, ()) if model else _model(path, launcher, given)
    loaded = _fitting(loaded, found, is_given=model is not None)
    counts = _names(launcher.contract)
    missing = sorted({name for key in counts & found.keys() for name in UNSET.findall(str(found[key]))})
    if missing:
        named = ", ".join(f"${name}" if name.isdigit() else name for name in missing)
        raise ValueError(f"depends on {named}: set them in the environment (NAME=value before the command), or --args")
    if gpus := _first(launcher.formulas.get("gpus", ()), {**launcher.defaults, **given}):
        started = World(gpus, started.per_node)
    found |= _sized(launcher, given, found, started.gpus or world, loaded)
    found = {key: _shell(value) if isinstance(value, str) else value for key, value in found.items()}
    meant = of_axes if launcher.contract == ANY else of_contract
    read = meant(path, load_framework(launcher.contract), found, started.gpus or world, loaded, started)
    return replace(
        read,
        model_problems=() if read.model else problems or read.model_problems,
        world=started,
        program=launcher.title,
        tuning=tuning,
        stacks=launcher.stacks,
        written={},
        not_modelled=(*read.not_modelled, *map(_shell, notes)),
        assumed=(*read.assumed, *launcher.notes),
    )


OF_ADAPTERS = {"peft*": "*", "use_lora": "*"}
"""Arguments of Megatron's programs under which adapters are trained of which no key gives the rank."""


def refuse_adapters(given: Settings, own: Mapping[str, str]) -> None:
    """Raises ValueError that names the setting under which a part of the weights is trained that is not modelled."""
    for key, value in given.items():
        says = next((pattern for name, pattern in own.items() if fnmatchcase(key, name)), "")
        if says and not is_off(value) and _fits(str(value), says):
            raise ValueError(
                f"{key}: {shortened(value)} trains a part of the weights that is not modelled; "
                "low-rank adapters and fine-tuning of all weights are"
            )


def _world(launcher: Launcher, given: Settings, words: list[str], variables: Mapping[str, str]) -> World:
    nodes, each, gpus = (
        next((int(n) for key in keys if (n := str(given.get(key) or variables.get(key, ""))).isdecimal()), 0)
        for keys in (launcher.nodes, launcher.per_node, launcher.gpus)
    )
    if gpus:
        return World(gpus, each or (gpus // nodes if nodes and gpus % nodes == 0 else 0))
    if each:
        return World(each * max(nodes, 1), each)
    return world_of(words, {}) if words else NO_WORLD


def _renamed(launcher: Launcher, given: Settings) -> tuple[dict[str, Any], list[str]]:
    """Settings under the names of the contract, and a note of each that is not among them."""
    read = {f"{launcher.config}.*", *launcher.model, *launcher.nodes, *launcher.per_node, *launcher.gpus}
    read |= {*launcher.adapters, *launcher.lora.read, *launcher.refused, *launcher.sizes}
    of_formulas = _of_formulas(launcher)
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in given.items():
        bare = next((key.removeprefix(one) for one in launcher.prefixes if key.startswith(one)), "")
        bare = key if key in launcher.own else bare
        if meanings := launcher.translated.get(key):
            meant = next((one for words, one in meanings.items() if _fits(str(value), words)), None)
            found |= {k: value if v == VALUE else v for k, v in (meant or {}).items()}
            notes += [] if meant is not None else [f"{key}: {shortened(value)}"]
        elif key in launcher.renamed:
            found[launcher.renamed[key]] = value
        elif (
            any(fnmatchcase(key, one) for one in (*read, *launcher.irrelevant))
            or key.startswith(f"{launcher.config}.")
            or (key in of_formulas and not bare)
        ):
            continue
        elif effect := next((text for one, text in launcher.effects.items() if fnmatchcase(key, one)), ""):
            notes += [] if is_off(value) else [f"{key}: {shortened(value)} (not priced: {effect})"]
        elif bare:
            found[bare] = value
        elif not is_off(value):
            notes.append(f"{key}: {shortened(value)}")
    for key, meanings in launcher.overrules.items():
        found |= next((one for words, one in meanings.items() if _fits(str(given.get(key)), words)), {})
    return found, notes


VALUE = "$value"
"""What stands for the value of a translated key."""
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def _sized(launcher: Launcher, given: Settings, found: Settings, gpus: int, model: Model | None) -> dict[str, Any]:
    """What defaults and formulas give, where the file does not say it under the contract's own name."""
    known = {**launcher.defaults, **given, **found}
    axes = load_framework(launcher.contract).spellings
    ranks = prod(int(str(known.get(axes[one].key if one in axes else one) or 1)) for one in ("tp", "pp", "cp"))
    if gpus:
        known |= {"gpus": gpus, "replicas": gpus // ranks}
    known |= {"layers": model.num_layers} if model else {}
    names = _names(launcher.contract) | (launcher.defaults.keys() - _of_formulas(launcher))
    own = {key: value for key, value in launcher.defaults.items() if key in names and key not in found}
    for name, ways in launcher.formulas.items():
        if name not in found and (value := _first(ways, known)) is not None:
            own[name] = known[name] = value
    if MICRO_BATCH in own and gpus >= ranks and known.get(BATCH):
        own[MICRO_BATCH] = _dividing(int(str(own[MICRO_BATCH])), int(str(known[BATCH])) // (gpus // ranks))
    return {key: value for key, value in own.items() if key not in found and key != "gpus"}


BATCH, MICRO_BATCH = "global_batch_size", "micro_batch_size"


def _dividing(most: int, samples: int) -> int:
    """The largest micro-batch of at most `most` samples that a replica's share of the batch is whole in."""
    return next((count for count in range(most, 1, -1) if samples % count == 0), 1)


def _of_formulas(launcher: Launcher) -> set[str]:
    """Every name that a formula of a launcher has."""
    return {word for many in launcher.formulas.values() for one in many for word in _NAME.findall(one)}


def _names(contract: str) -> frozenset[str]:
    """Names of a contract that make the candidate, the model or the workload."""
    if contract == ANY:
        return frozenset((*DEFAULTS, "seq_length", BATCH, "copies"))
    framework = load_framework(contract)
    return framework.spelled | known_keys(framework.keys).read_beside | model_keys()


def _first(ways: tuple[str, ...], known: Settings) -> int | None:
    return next((number for way in ways if (number := _number(way, known)) is not None), None)


def _number(formula: str, known: Settings) -> int | None:
    """The whole number of a sum of products, `a * b / c + d up to multiple where key = value`.

    None where a name is not known, or is no positive number.
    """
    text, _, condition = formula.partition(" where ")
    text, _, multiple = text.partition(" up to ")
    key, _, value = condition.partition("=")
    if condition and not _fits(str(known.get(key.strip())), value.strip()):
        return None
    total = 0.0
    for product in re.split(r" \+ | (?=- )", text):
        term, sign = -1.0 if product.startswith("- ") else 1.0, "*"
        for part in re.split(r"\s{0,9}([*/])\s{0,9}", product.removeprefix("- ").strip()):
            if part in ("*", "/"):
                sign = part
                continue
            try:
                factor = float(part if part[:1].isdigit() else str(known[part]))
            except (KeyError, ValueError):
                return None
            if factor <= 0:
                return None
            term = term * factor if sign == "*" else term / factor
        total += term
    step = int(str(known.get(multiple) or 1))
    return max(-(-int(total) // step) * step, 1)


def of_axes(
    path: Path, framework: Framework, found: Settings, gpus: int, model: Model | None, started: World
) -> Experiment:
    """The job of axes by our own names; `copies`: of sharded weights."""
    row = {axis: _word(axis, value) for axis, value in found.items() if axis in DEFAULTS and value is not None}
    row |= {"pp": row.get("pp", 1), "vpp": row.get("vpp", 1)}
    if row["pp"] == 1 or row["vpp"] == 1:
        row |= {"vpp": 1, "schedule": row["schedule"] if row["pp"] > 1 and row.get("schedule") == "gpipe" else "1f1b"}
    copies = whole("copies", found.get("copies") or 1, least=1)
    ranks = gpus // (row.get("tp", 1) * row["pp"])
    if row.get("sharding") == "fsdp2":
        row |= sharded(copies, ranks // copies) if ranks > copies else {"sharding": "none"}
    row |= {"deepep": False} if row.get("ep", 1) == 1 else {}
    if row.get("sharding") in ("fsdp2", "hsdp") and row["pp"] > 1:  # the one contract that has both
        framework, row = load_framework("torchtitan"), {k: v for k, v in row.items() if k != "dispatch_backend"}
    row |= {"pipeline_layout": "balanced"} if model and model.num_layers % (row["pp"] * row["vpp"]) else {}
    length, batch = found.get("seq_length"), found.get("global_batch_size")
    return Experiment(
        path=path,
        framework=framework,
        row=settled(framework, row, model),
        seq_length=None if length is None else whole("seq_length", length, least=1),
        global_batch_size=None if batch is None else whole("global_batch_size", batch, least=1),
        model=model,
        world=started,
    )


def _word(axis: str, value: Any) -> Any:
    """A value of an axis as a row has it."""
    if isinstance(DEFAULTS[axis], bool):
        return not is_off(value)
    return str(value) if axis in WORDED else whole(axis, value)


# --- the model --------------------------------------------------------------------------------------------------------

_KIND = re.compile(r"(?:[-_](?:instruct|base|chat|hf|it|bf16|fp8|nvfp4|thinking|config|\d{4}|v\d(?:\.\d)?)){1,6}$")
"""Ends of a model's name that leave its sizes as they are."""


def _model(path: Path, launcher: Launcher, given: Settings) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model that a file names or sizes, and why there is none."""
    fields = {k.removeprefix(f"{launcher.config}."): v for k, v in given.items() if k.startswith(f"{launcher.config}.")}
    if launcher.config and fields:
        return _of_config(path, launcher, fields)
    named = next((str(given[key]) for key in launcher.model if given.get(key)), "")
    resized = next((key for key in given if any(fnmatchcase(key, one) for one in launcher.sizes)), "")
    if resized:
        what = f"{resized}: {given[resized]}: another model than {_shell(named)}; give --model its config.json"
        return None, (Problem(shown(path), what),)
    if found := model_named(named, launcher.models):
        return found, ()
    beside = path.parent / named
    if named and "\0" not in named and (beside / "config.json").is_file():
        return load_model(str(beside)), ()
    if not named and launcher.contract != ANY:
        return None, ()  # sized by its own arguments
    what = f"takes its model from {_shell(named)}, which no preset is" if named else "names no model"
    return None, (Problem(shown(path), f"{what}; give --model a preset or a config.json"),)


def _shell(text: str) -> str:
    """A text with variables without a value as a script has them."""
    return UNSET.sub(r"$\1", text)


def _fitting(model: Model | None, found: Settings, *, is_given: bool) -> Model | None:
    """The model that settings of a contract start: none where they size one, without prediction layers that are off.

    Raises ValueError where they change its layers.
    """
    if model is None or ("hidden_size" in found and "num_layers" in found and not is_given):
        return None
    layers, predicted = found.get("num_layers"), found.get("mtp_num_layers")
    if layers is not None and str(layers) != str(model.num_layers):
        raise ValueError(f"num_layers: {layers}: another model than {model.name}; give --model its config.json")
    if "mtp_num_layers" in found and str(predicted or 0).isdecimal():
        return replace(model, num_mtp_layers=int(predicted or 0))
    return model


def model_named(name: str, own: Mapping[str, str]) -> Model | None:
    """The preset that a name of the hub, or the last folder of a path, stands for; None where none does."""
    if name in own:
        return load_preset(own[name]).model
    tail = name.strip().rstrip("/").rpartition("/")[2].lower()
    tails = {t.rpartition("/")[2].lower(): preset for preset in presets().values() for t in preset.tokenizers}
    tails |= {_KIND.sub("", tail): preset for tail, preset in tails.items() if _KIND.sub("", tail) not in tails}
    found = next((tails[one] for one in (tail, _KIND.sub("", tail)) if one in tails), None)
    return found.model if found else None


def _of_config(path: Path, launcher: Launcher, fields: dict[str, Any]) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model of fields that stand in the file as in a config.json."""
    from primus_search.models import huggingface  # every family of models: presets need none of them

    family = next((family for key, family in launcher.config_of.items() if fields.get(key)), "")
    if not family:
        known = ", ".join(launcher.config_of)
        what = f"{launcher.config} is of no family that is read ({known}); give --model its config.json"
        return None, (Problem(shown(path), what),)
    kept = {k: v for k, v in fields.items() if not any(fnmatchcase(k, one) for one in launcher.config_drops)}
    data = {"model_type": family} | {k: plain(v) if isinstance(v, str) else v for k, v in kept.items()}
    try:
        return replace(huggingface.from_document(Document(shown(path), data)), name=path.stem), ()
    except InputError as error:
        return None, error.problems
