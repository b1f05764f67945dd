"""Jobs of other launchers as settings of a contract, or as axes: one table for each, `spaces/keys/launchers.yaml`.

A launcher that starts Megatron, or a plain stack of FSDP, has other names for what a contract says. Its table renames
them (`Launcher`); nothing here knows a launcher. A key that no table has is listed as it stands.

    read_launcher(Path("qwen3.sh"), text, launcher, 16, None)     # `megatron sft --tensor_model_parallel_size 8 ...`
"""

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, Literal

from primus_search.base.errors import InputError
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_module import SPREAD
from primus_search.files.python.python_program import ARGUMENTS, WORLD
from primus_search.files.shell import bash
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import UNSET, counts_in, header_variables
from primus_search.files.source import plain
from primus_search.launch.adapters import NotModelled, refuse_adapters, tuning_in
from primus_search.launch.contract import fits, holds, is_off, shortened, whole
from primus_search.launch.document_packing import full_rows, packing_in
from primus_search.launch.experiment import Experiment
from primus_search.launch.policies import policy_in
from primus_search.launch.read.launcher_documents import (
    ENDS,
    LENGTH,
    beneath,
    named_beside,
    of_program,
    own_lengths,
    said_by,
    settings_of,
    written,
)
from primus_search.launch.read.launcher_formulas import (
    BATCH,
    MICRO_BATCH,
    NAME,
    acting,
    first_known,
    names_in,
    of_axes,
    settings_read,
    sized,
)
from primus_search.launch.read.launcher_models import as_script_text, fitting, model_of
from primus_search.launch.read.launcher_table import CLASS, VALUE, Launcher, launchers
from primus_search.launch.read.script_arguments import (
    command_settings,
    program_named,
    several,
    started_with,
    trainings_of,
)
from primus_search.launch.world import NO_WORLD, World, listed_devices, world_of
from primus_search.models.preset_names import language_part, model_named, named_after
from primus_search.values.machine.framework import ANY, Framework, Settings
from primus_search.values.model import Model


def launcher_of(path: Path, text: str, arguments: Sequence[str] = ()) -> Launcher | None:
    """The launcher that a file is written for; None where it is none of them."""
    is_script = path.suffix not in ENDS
    try:
        document = {} if is_script else settings_of(path, text)
        flags = dict(command_settings([*arguments]))
        program = of_program(path, text, flags, needs_name=False) if path.suffix == ".py" else {}
    except (InputError, ValueError):
        return None
    script = cache(lambda: bash.followed(text, os.environ, path.parent))
    each = sorted(launchers().values(), key=lambda one: not (one.calls or one.layers))
    ways = [(one, False) for one in each] + [(one, True) for one in each if one.lifts and not is_script]
    for one, lifts in ways:  # a launcher of its own before the sections of another one's trainer
        given = program if one.calls else one.inside(document, lifts=lifts)
        has_command = is_script and bool(one.program) and re.search(one.program, text) is not None
        given = _of_script(path, script(), one)[0] if has_command else given
        is_its = has_command or not (is_script or one.is_command)
        wants_arguments = not given and all(key.rstrip("*") in text for key in one.where)
        if (is_its and one.where and _has_keys(one, given)) or (has_command and (not one.where or wants_arguments)):
            return one
    return None


# --- what a file gives ------------------------------------------------------------------------------------------------


def _of_script(
    path: Path, script: bash.Script, launcher: Launcher
) -> tuple[dict[str, Any], list[list[str]], dict[str, str]]:
    """Settings of the last command of a launcher, those of documents beside the script that it names; the words of each
    of its commands, where some have its keys of those alone; and the variables of the script."""
    runs = [words for words in script.commands if re.search(launcher.program, " ".join(words))]
    own_keys = (_has_own(launcher, one) or _has_keys(launcher, said_by(path, one, launcher.ends)) for one in runs)
    runs = [*compress(runs, own_keys)] or runs
    runs = [[]] if launcher.exports else trainings_of(script.text, runs)
    words = runs[-1] if runs else []
    variables = script.variables_of(words)
    own = {key: written(value) for key, value in variables.items()} if launcher.exports else {}
    named = [word.rpartition("=")[2] for word in words]
    documents = named_beside(path, named + _mirrored(path, launcher), launcher.ends)
    given = own | documents
    for key, value in command_settings(words):
        given |= {} if key in documents and str(value).endswith(ENDS) else {_in_full(launcher, key): written(value)}
    if program := program_named(words):
        given[PROGRAM] = program
    given = beneath(path, launcher, given, str(given.get(PROGRAM, ""))) | given
    return given, runs, {**os.environ, **header_variables(script.text), **variables}


def _has_own(launcher: Launcher, words: list[str]) -> bool:
    """Whether a command starts a program that has a document of its own in the launcher's table."""
    return any(names != "*" and fits(program_named(words), names) for names in launcher.bases)


def _mirrored(path: Path, launcher: Launcher) -> list[str]:
    """The document of the name of a script of the launcher's own, in the folder that mirrors the script's."""
    file = path.resolve().with_suffix(".yaml").as_posix()
    return [file.replace(f"/{one}/", f"/{other}/") for one, other in launcher.mirrors.items() if f"/{one}/" in file]


def _in_full(launcher: Launcher, key: str) -> str:
    """The name of an option that counts and that another, which is none, begins: what argparse takes it for."""
    whole = [one for one in (*launcher.renamed, *names_in(launcher)) if one.startswith(f"{key}_")]
    return whole[0] if len({*whole}) == 1 and _role(launcher, key, {*launcher.model}) == "noted" else key


def _has_keys(launcher: Launcher, given: Settings) -> bool:
    """Whether settings have each of the keys of a launcher, with the values that they have there."""
    return all(holds(given, dict([pair])) for pair in launcher.where.items())


def _guessed(path: Path, text: str, script: bash.Script, launcher: Launcher, given: Settings) -> list[str]:
    """Notes on tests without an answer that change what counts. Raises ValueError where model, batch or degrees do."""

    def started(other: bash.Script) -> Settings:
        found = {} if other.left else _of_script(path, other, launcher)[0]
        return found if _has_keys(launcher, found) else {}

    notes: list[str] = []
    for name, keys in bash.differing(script, text, given, started).items():
        counted = sorted(key for key in keys if _counts(launcher, key))
        if any(key in launcher.model or _meant(launcher, key) in SIZES_AND_DEGREES for key in counted):
            line = started_with(text, [name]) or "set it in the environment (NAME=value before the command)"
            raise ValueError(f"depends on {'$' * name.isdigit()}{name}: {line}")
        if counted:
            notes.append(f"{name} has no value: read as if it were empty (changes {', '.join(counted[:6])})")
    return [as_script_text(note) for note in notes]


def _meant(launcher: Launcher, key: str) -> str:
    """The contract's name of a key, or the setting whose formula has it."""
    found = launcher.renamed.get(key) or _bare(launcher, key)
    return next((one for one in SIZES if key in names_in(launcher, one)), found)


def _counts(launcher: Launcher, key: str) -> bool:
    """Whether a key makes the candidate, the model or the workload."""
    named = {*launcher.renamed, *launcher.translated, *launcher.model, *launcher.own, *names_in(launcher)}
    return key in named or _bare(launcher, key) in settings_read(launcher.contract)


def _refuse_several(path: Path, launcher: Launcher, runs: list[list[str]]) -> None:
    """Raises ValueError with the settings in which several trainings of a script differ, and their values."""
    given: list[dict[str, str]] = []
    for words in runs if len(runs) > 1 else ():
        settings = {key: value for key, value in said_by(path, words, launcher.ends).items() if _counts(launcher, key)}
        for key in settings.keys() & set(launcher.model):  # checkpoints of one model train it alike
            model = model_named(str(settings[key]), launcher.models)
            settings[key] = model.name if model else settings[key]
        named = (word.rpartition("=")[2] for word in words if word.endswith((".yaml", ".yml")))
        absent = [one for one in named if not beside(path.parent, one)]
        given.append(
            {key: str(value) for key, value in settings.items()} | ({CONFIGURATION: absent[0]} if absent else {})
        )
    differ = sorted({key for one in given for key in one if any(other.get(key) != one[key] for other in given)})
    if differ:
        values = {key: [*dict.fromkeys(one.get(key, "none") for one in given)] for key in differ}
        raise ValueError(as_script_text(several(values, len(runs))))


CONFIGURATION = "configuration"
"""Under which a document that a command names, and that is not beside the file, is told apart from others."""
PROGRAM = "program or file"
"""The key under which a table finds the name of the Python file or module that a command starts, or of the document."""


# --- what it means ----------------------------------------------------------------------------------------------------


OfContract = Callable[[Path, Framework, Settings, int, Model | None, World], Experiment]
"""What reads settings under the names of a contract."""


def read_launcher(
    path: Path, text: str, world: int, model: Model | None, arguments: Sequence[str] = (), *,
    launcher: Launcher, of_contract: OfContract,
) -> Experiment:  # fmt: skip
    """The job that a file of a launcher starts, on `world` GPUs where the file does not say how many.

    Raises ValueError where adapters alone are trained, and where a setting that counts has no value.
    """
    line = "" if path.suffix in ENDS else started_with(text)
    if path.suffix in ENDS:
        words = ((key, written(value)) for key, value in command_settings([*arguments]))
        flags = {key: plain(value) if isinstance(value, str) else value for key, value in words}
        started_on = {WORLD: world} if world else {}
        own = (
            of_program(path, text, {**started_on, **flags})
            if launcher.calls
            else launcher.inside(settings_of(path, text))
        )
        own = own | (named_beside(path, arguments, launcher.ends) if ".py" in launcher.ends else {})
        given = {PROGRAM: path.stem, **own, **flags}
        runs, variables, guessed = [list[str]()], dict[str, str](), list[str]()
        given = named_beside(path, [value for key, value in given.items() if _CONFIGURES.search(key)]) | given
        given = beneath(path, launcher, given, path.stem) | given
    else:
        script = bash.followed(text, os.environ, path.parent)
        given, runs, variables = _of_script(path, script, launcher)
        guessed = _guessed(path, text, script, launcher, given)
        given = (own_lengths(path, runs[-1]) if runs and "seq_length" in launcher.assumed else {}) | given
        if not runs:
            left = f"line {script.left}: the script exits before it starts a training"
            how = (
                "its command is not reached: set what its tests read in the environment (NAME=value before the command)"
            )
            raise ValueError(f"wants arguments: {line}" if line else left if script.left else how)
    _refuse_several(path, launcher, runs)
    started = _world(launcher, {**launcher.defaults, **given}, runs[-1], variables, path.parent)
    named = ((key, str(value)) for key, value in given.items() if _CONFIGURES.search(key))
    absent = [name for _, name in named if name.endswith(ENDS) and not beside(path.parent, name)]
    read = of_given(path, launcher, given, world, model, of_contract, started, line)
    notes = (
        f"{name} is not beside the file: GPUs, sharding or precision that it gives are not read" for name in absent
    )
    return replace(read, assumed=(*read.assumed, *guessed, *notes))


_CONFIGURES = re.compile(r"^(?:config_file|deepspeed\w{0,9}|ds_config|accelerate_config)$")
"""Keys under which a command or a document names another that says how the job is sharded."""


def of_given(
    path: Path, launcher: Launcher, given: Settings, world: int, model: Model | None, of_contract: OfContract,
    started: World = NO_WORLD, line: str = "",
) -> Experiment:  # fmt: skip
    """The job of settings under the names of a launcher, as `read_launcher`; `line` gives a script its arguments."""
    given, stated = _stated(launcher, given)
    _refuse(launcher, given)
    found, notes = _renamed(launcher, given)
    loaded, problems = (model, ()) if model else model_of(path, launcher, given)
    name = next((str(stated[key]) for key in launcher.model if stated.get(key)), "")
    notes += _of_model(name, model, loaded)
    loaded = fitting(loaded, found, is_given=model is not None)
    found = {key: one for key, one in found.items() if key not in SIZES or str(one)[:1] != "-"}  # -1: no limit
    _refuse_unknown(launcher, given, found, [name] * (launcher.calls and not loaded), line)
    policy, packing = policy_in(stated, launcher.policy), packing_in(stated, launcher.packing)
    lora = tuning_in(given, launcher.lora)
    if gpus := first_known(launcher.formulas.get("gpus", ()), stated):
        started = World(gpus, started.per_node)
    found, assumed, lowered = _with_sizes(launcher, given, stated, found, started.gpus or world, loaded)
    if lora and (states := launcher.lora.states.get(str(found.get("state_format")))):
        found["state_format"] = states
    if policy.get("task") == "dpo" and launcher.policy.counts_pairs:
        found |= {name: 2 * whole(name, found[name], least=1) for name in (BATCH, MICRO_BATCH) if name in found}
    found = {key: as_script_text(value) if isinstance(value, str) else value for key, value in found.items()}
    meant = of_axes if launcher.contract == ANY else of_contract
    read = meant(path, load_framework(launcher.contract), found, started.gpus or world, loaded, started)
    by_default = f"by default of {launcher.title}, its program may have another"
    left_open = launcher.lora.left_open(given) if lora else ()
    return replace(
        read,
        model_problems=() if read.model else problems or read.model_problems,
        world=started,
        program=launcher.title,
        tuning=lora | policy if "policy" in policy else policy | lora,
        workload={**read.workload, **packing},
        stacks=launcher.stacks,
        written={},
        not_modelled=(*read.not_modelled, *map(as_script_text, notes)),
        assumed=(
            *assumed,
            *(f"lora.{key} = {lora['lora'].get(key)}: {by_default}" for key in left_open),
            *(full_rows(packing) or read.assumed),
            *lowered,
            *launcher.notes,
            *(launcher.notes_alone if started.gpus == 1 else ()),
        ),
    )


def _with_sizes(
    launcher: Launcher, given: Settings, stated: Settings, found: Settings, gpus: int, model: Model | None
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings with what is assumed, what formulas give and what the launcher takes by default; notes on what is
    assumed, and on a micro-batch that is less than the file says. Raises ValueError for a size without a value."""
    if bare := [key for key in SIZES if found.get(key) is True]:
        raise ValueError(
            f"{', '.join(bare)}: no value: set what the file takes it from (NAME=value before the command)"
        )
    cuts = any(LENGTH.search(key) and str(value).isdecimal() for key, value in given.items())  # by a name of its own
    of_gpus = sized(launcher, given, found, gpus, model).keys() - {key for key, value in found.items() if value}
    assumed = {
        key: row
        for key, row in launcher.assumed.items()
        if _is_open(launcher, key, found, stated) and not (cuts and key == "seq_length") and key not in of_gpus
    }
    found = {**found, **{key: value for key, (value, _) in assumed.items()}}
    wanted = sized(launcher, given, found, 0, model).get(MICRO_BATCH)
    found |= sized(launcher, given, found, gpus, model)
    has, counts = found.get(MICRO_BATCH, wanted), settings_read(launcher.contract)
    is_less = str(wanted).isdecimal() and int(str(has)) < int(str(wanted))
    lowered = [f"{MICRO_BATCH} = {has}: {wanted} do not divide a replica's share of the batch"] if is_less else []
    changes = {key: f"; --set {key}=.. changes it" for key in assumed if key in counts}
    return found, [f"{k} = {v}: {why}{changes.get(k, '')}" for k, (v, why) in assumed.items()], lowered


def _refuse_unknown(launcher: Launcher, given: Settings, found: Settings, names: Sequence[str], line: str) -> None:
    """Raises ValueError with the variables, or what of a program only a run has, that values which count depend on:
    settings of the contract, what formulas of sizes read, adapters, `names` of models."""
    sizes = [one for one in SIZES if one not in found and not _is_sized(launcher, one, given)]
    counted = [found[key] for key in settings_read(launcher.contract) & found.keys()]
    tuned = (*launcher.lora.numbers, *(launcher.lora.bases if holds(given, launcher.lora.when) else ()))
    tuned += tuple(names_in(launcher, *sizes)) if sizes else ()
    tuned += () if launcher.layers else (SPREAD,)
    values = [*counted, *(given[key] for key in tuned if key in given), *names]
    missing = {name for value in values for name in UNSET.findall(str(value))}
    if missing:
        named = ", ".join(f"${name}" if name.isdigit() else name for name in sorted(missing))
        how = "set them in the environment (NAME=value before the command), or --args"
        if launcher.calls:
            own = (str(text) for key, text in given.items() if key.startswith(REQUIRED))
            required = (name for text in own for name in UNSET.findall(text))
            options = dict.fromkeys(one for one in (*sorted(missing), *required) if one[:2] == "--")
            words = [f"{one} .." for one in (*options, *_open_keys(launcher, given, missing - options.keys()))]
            how = f"--args '{' '.join(words) or '--NAME VALUE'}' gives them, --model the model, --nodes the processes"
        raise ValueError(f"depends on {named}: {how}{line and ': '}{line}")


REQUIRED = f"{ARGUMENTS}."
"""What begins the keys of a program's own options; those without a value are required."""


def _open_keys(launcher: Launcher, given: Settings, missing: Collection[str]) -> Iterator[str]:
    """The options that give what counts of a program and depends on what no option of its own has."""
    for key, value in given.items():
        is_open = any(name in missing for name in UNSET.findall(str(value))) and key not in (SPREAD, *launcher.model)
        if is_open and (key in (*launcher.lora.numbers, *launcher.lora.bases) or _counts(launcher, key)):
            yield f"--{key}"


SIZES = (BATCH, MICRO_BATCH, "seq_length")
"""Settings that formulas give of what a file sets, each of which is to have a value there."""
SIZES_AND_DEGREES = {
    *SIZES, *("tp", "pp", "cp", "ep"), "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size",
}  # fmt: skip
"""What no test without an answer decides."""


def _is_sized(launcher: Launcher, name: str, given: Settings) -> bool:
    """Whether one of the formulas of a setting, if it has any, has names that the file gives, each with a value; of a
    command that is asked for its batch alone."""
    ways = [[str(given[one]) for one in NAME.findall(way) if one in given] for way in launcher.formulas.get(name, ())]
    is_open = name == BATCH and not launcher.calls
    return not ways or (not is_open and any(way and not UNSET.search(" ".join(way)) for way in ways))


def _stated(launcher: Launcher, given: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a file with those inside their texts and those of its model, and both over the defaults."""
    inside = (
        (f"{key}.{name}", text)
        for key, pattern in launcher.parts.items()
        for found in re.finditer(pattern, str(given.get(key, "")))
        for name, text in found.groupdict().items()
        if text
    )
    given = {**given, **dict(inside)}
    stated = {**launcher.defaults, **given}
    of_model = {key: ways for key, ways in launcher.formulas.items() if key.startswith(f"{launcher.config}.")}
    given |= {key: size for key, ways in of_model.items() if key not in given and (size := first_known(ways, stated))}
    return given, stated


def _refuse(launcher: Launcher, given: Settings) -> None:
    """Raises `NotModelled` with the setting with which a file of a launcher is not read, and why."""
    refuse_adapters(given, launcher.adapters)
    for pattern, reasons in launcher.refused.items():
        for key in fnmatch.filter(given, pattern) if "*" in pattern else [pattern] if pattern in given else []:
            if why := next((reason for words, reason in reasons.items() if fits(given[key], words)), ""):
                raise NotModelled(f"{key}: {as_script_text(shortened(given[key]))}: {why}")
    sections = {one.partition(".")[0] for one in launcher.layers}
    shaped = (key for key in given if "." in key and key.partition(".")[0] in sections)
    if others := [one for one in shaped if not any(fnmatch.fnmatchcase(one, name) for name in launcher.layers)]:
        listed = ", ".join(one.removeprefix(CLASS) for one in others[:6])
        raise NotModelled(f"defines {listed}, so that its layers may be others than those of {launcher.title}")


def _of_model(name: str, given: Model | None, loaded: Model | None) -> Iterator[str]:
    """What of a named model is priced, where that is not all of it or a guess by its name."""
    if not given and (part := language_part(name)):
        yield f"of {name} the language model ({part}) is priced, towers for images and sound are not"
    elif not given and loaded and (base := named_after(name)):
        yield f"{name} is taken as {base}, by its name"
    yield from (f"{name}: {said}" for has, said in key_table("language_parts")["said"].items() if re.search(has, name))


def _is_open(launcher: Launcher, key: str, found: Settings, stated: Settings) -> bool:
    """Whether neither the file nor a default or a formula of its launcher gives a setting."""
    given = found.get(key, launcher.defaults.get(key))
    return given is None and not first_known(launcher.formulas.get(key, ()), stated)


def _world(launcher: Launcher, given: Settings, words: list[str], variables: Mapping[str, str], folder: Path) -> World:
    nodes, each, gpus = (
        next((int(n) for key in keys if (n := str(given.get(key) or variables.get(key, ""))).isdecimal()), 0)
        for keys in (launcher.nodes, launcher.per_node, launcher.gpus)
    )
    if each and not nodes and not gpus and any(not is_off(given.get(key)) for key in launcher.nodes):
        return World(0, each)  # how many nodes, the file does not say
    if gpus:
        return World(gpus, each or (gpus // nodes if nodes and gpus % nodes == 0 else 0))
    world = NO_WORLD if each or not words else world_of(words, counts_in(variables), folder)
    alone = int(bool(launcher.alone) and holds(given, launcher.alone))
    own = launcher.processes or alone if words else alone
    each = each or (0 if world else own or listed_devices(words, variables))
    head = variables.get("SLURM_NNODES", "") if words[:1] == ["srun"] else ""  # what it starts on every node
    nodes = nodes or (int(head) if head.isdecimal() else 0)
    return World(each * max(nodes, 1), each) if each else world


def _renamed(launcher: Launcher, given: Settings) -> tuple[dict[str, Any], list[str]]:
    """Settings under the names of the contract, and a note of each that is not among them."""
    found, notes = dict[str, Any](), list[str]()
    launcher = replace(launcher, effects=acting(launcher.effects, given))
    elsewhere = {PROGRAM, f"{launcher.config}.*", *launcher.model, *launcher.nodes, *launcher.per_node, *launcher.gpus}
    elsewhere |= {*launcher.adapters, *launcher.lora.read, *launcher.packing.read, *launcher.refused, *launcher.sizes}
    for key, value in sorted(given.items(), key=lambda one: not _CONFIGURES.search(one[0])):  # what it has wins
        if meanings := launcher.translated.get(key):
            meant = next((one for words, one in meanings.items() if fits(value, words)), None)
            found |= {k: value if v == VALUE else v for k, v in (meant or {}).items()}
            notes += [] if meant is not None else [_unpriced(launcher, key, value)]
        elif key in launcher.renamed:
            found[launcher.renamed[key]] = value
        elif (role := _role(launcher, key, elsewhere)) == "setting":
            found[_bare(launcher, key)] = value
        elif role == "noted" and not is_off(value):
            notes.append(_unpriced(launcher, key, value))
    for key, meanings in launcher.overrules.items():
        found |= next((one for words, one in meanings.items() if fits(given.get(key), words)), {})
    return found, notes


KeyRole = Literal["setting", "noted", "quiet"]
"""What becomes of a key that a table does not rename: a setting of the contract, a note, nothing."""


def _role(launcher: Launcher, key: str, elsewhere: set[str]) -> KeyRole:
    """The first of the ranks that has a key: single names before patterns of names, of those the longest."""
    bare = _bare(launcher, key)
    patterns = (one for one in (*elsewhere, *launcher.irrelevant, *launcher.effects) if fnmatch.fnmatchcase(key, one))
    nearest = max(patterns, key=lambda one: (len(one), one), default="")
    ranks: tuple[tuple[bool, KeyRole], ...] = (
        (key in elsewhere - launcher.refused.keys() or key in launcher.irrelevant, "quiet"),
        (bare in settings_read(launcher.contract), "setting"),
        (key in launcher.effects, "noted"),
        (key in names_in(launcher), "quiet"),
        (bool(nearest) and nearest not in launcher.effects, "quiet"),
        (bool(nearest), "noted"),
        (bool(bare), "setting"),
    )
    return next((one for has, one in ranks if has), "noted")


def _bare(launcher: Launcher, key: str) -> str:
    """The contract's own name that a key has, behind a section or alone; empty where it has none."""
    behind = next((key.removeprefix(one) for one in launcher.prefixes if key.startswith(one)), "")
    return key if key in launcher.own else behind


def _unpriced(launcher: Launcher, key: str, value: Any) -> str:
    """A note of a setting that is not among those of the contract, with what it does where the table says that."""
    effect = next((text for one, text in launcher.effects.items() if fnmatch.fnmatchcase(key, one)), "")
    value = [as_script_text(str(one)) for one in value] if isinstance(value, list) else value
    return f"{key}: {shortened(value)}" + (f" (not priced: {effect})" if effect else "")
