"""Arguments as scripts write them: Megatron's with its launcher's GPUs, those of recipes, and of any command."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from primus_search.files.shell import bash
from primus_search.files.shell.shell_tests import short
from primus_search.files.shell.shell_variables import MARK, MOST_TEXT
from primus_search.launch.refusals import variables_of
from primus_search.launch.world import world_of

LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes", "rampup_batch_size",
)  # fmt: skip
LISTED = ("num_experts", "cp_comm_type")
"""Arguments of several words, and those that may have one for each layer."""
_STAGE = re.compile(r"s([/#|])\w{0,20}ZERO_STAGE\1(\d)\1g?")
"""How scripts fill the stage of ZeRO into a template of DeepSpeed's JSON by sed (examples of Megatron-DeepSpeed)."""
CONFIG, WRITTEN = "deepspeed_config", "deepspeed_config_text"
"""The file of DeepSpeed's settings that a script names, and its text where the script writes it."""
UNDECIDED, STARTS, WORLD, PER_NODE, NODES = "undecided", "starts", "world_size", "nproc_per_node", "started_nodes"
"""What guesses the settings depend on (name: keys), keys in which several runs of a script differ, its GPUs, and those
of a node."""
ARGUMENTS = {"micro_batch_size", "tensor_model_parallel_size", "num_layers", "hidden_size"}
OPTIONS = re.compile(f"{MARK}\\w*(?:option|opt|arg|flag|param|extra\\w*)s?{MARK}", re.IGNORECASE)
"""A variable without a value that is called after a list of options, which bash leaves out."""


PLACES = re.compile(r"\$(\{[1-9]\d?\b(?!:?[-=])|[1-9](?!\d))")
"""Arguments that a script is started with and has no default for; one behind the ninth stands in braces."""
ASSIGNED = re.compile(r"\b([A-Za-z_]\w{0,80})=[\"']?\$(\{[1-9]\d?|[1-9])\b")
"""A variable that one of them is assigned to."""
_OF_OTHERS = re.compile(
    r"'[^'\n]*'|^[ \t]*(?:function\s+)?[\w-]+[ \t]*\(\)\s*\{(?:[^\n]*\}[ \t]*$|.*?^[ \t]*\})", re.MULTILINE | re.DOTALL
)
"""Words that bash leaves as they are, and functions, whose arguments are their own."""


def started_with(text: str, names: Iterable[str] = ()) -> str:
    """The command that gives a script its arguments by the names of their variables, those of `names` among them;
    empty where it reads none."""
    text = _OF_OTHERS.sub("", text)
    places = [int(one) for one in (*names, *(place.lstrip("{") for place in PLACES.findall(text))) if one.isdecimal()]
    called = {place.lstrip("{"): name for name, place in reversed(ASSIGNED.findall(text))}
    arguments = " ".join(f"<{called.get(str(one), one)}>" for one in range(1, max(places, default=0) + 1))
    return f"primus-search project FILE --args '{arguments}'" if arguments else ""


def settings_in(text: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables have the value that the script gives them, else that of the environment, else the script's default; the
    name of one without any stays in the value (`UNSET`). Raises ValueError where the script ends before it starts
    anything.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"is longer than a script of {MOST_TEXT} characters")
    environ = os.environ if environ is None else environ
    script = bash.followed(text, environ, folder)
    found = _settings(script)
    if not ARGUMENTS & found.keys() and script.missing:
        raise ValueError(f"reads {', '.join(map(short, script.missing))}, which is not beside it")
    if not ARGUMENTS & found.keys() and script.left and not script.guesses:
        line = started_with(text)
        how = f": {line}" if line else ""
        raise ValueError(f"line {script.left}: the script exits before it starts a training{how}")
    undecided: dict[str, set[str]] = {name: set() for name in script.missing}
    undecided |= bash.differing(script, text, found, _of_training)
    if undecided:
        found[UNDECIDED] = undecided
    if text := script.written(str(found.get(CONFIG, ""))):
        found[WRITTEN] = text
    stages = [stage[2] for words in script.commands for word in words if (stage := _STAGE.fullmatch(word))]
    if CONFIG in found and stages:
        found.setdefault("zero_stage", stages[-1])
    return found


def _of_training(script: bash.Script) -> dict[str, Any]:
    """Settings of the training that a script starts; empty where it exits before, or starts none."""
    found = {} if script.left else _settings(script)
    return found if ARGUMENTS & found.keys() else {}


def _settings(script: bash.Script) -> dict[str, Any]:
    """Settings of the training that a script starts; of all its words where it starts none."""
    both = zip(script.commands, script.before, strict=True)
    runs = [(words, _arguments(_of_program(words)), before) for words, before in both]
    trainings = [one for one in runs if ARGUMENTS & one[1].keys()]
    if not trainings:  # a file of arrays that another one starts
        listed = [word for held in script.variables.arrays.values() for word in held.values()]
        texts = [word for value in script.variables.values.values() if "--" in value for word in value.split()]
        return _arguments(listed + texts) | {key: value for _, found, _ in runs for key, value in found.items()}
    words, last, before = trainings[-1]
    differs = {key for _, one, _ in trainings for key in one.keys() | last.keys() if one.get(key) != last.get(key)}
    launched = world_of(words, script.header(words), script.folder)
    started = {WORLD: str(launched.gpus), PER_NODE: str(launched.per_node)} if launched else {}
    started |= {NODES: str(launched.nodes)} if launched.nodes else {}
    return last | ({STARTS: differs} if differs else {}) | started | variables_of({**script.variables.values, **before})


def _of_program(words: list[str]) -> list[str]:
    """The words behind the program that a command starts; all where none has an argument of a model behind it."""
    for i in range(len(words) - 1, 0, -1):
        behind = words[i + 1 :]
        if (words[i].endswith(".py") or words[i - 1] == "--module") and ARGUMENTS & _arguments(behind).keys():
            return behind
    return words


def _arguments(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in (part for one in words for part in (one.split() if one.lstrip().startswith("--") else [one])):
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name and not OPTIONS.fullmatch(word):
            found[name].append(word)
    several = {name for name, values in found.items() if name in LISTS or (name in LISTED and len(values) > 1)}
    lists = {name: " ".join(found[name]).strip("[]").split() for name in several}  # `[a b]` of functional tests, too
    return {name: True if not values else lists.get(name, values[0]) for name, values in found.items()}


def program_named(words: list[str]) -> str:
    """The name of the Python file that a command starts, else of its module, or what a `NAME-cli` is to do."""
    modules = [word for before, word in pairwise(words) if before in ("-m", "--module") or before.endswith("-cli")]
    files = (Path(word).stem for word in words if word.endswith(".py") and "=" not in word)
    return next(files, modules[-1] if modules else "")


_ASSIGNED = re.compile(r"\+{0,2}([A-Za-z_][\w.]{0,200}+)=(.*)", re.DOTALL)


def command_settings(words: list[str]) -> Iterator[tuple[str, Any]]:
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


_TRAINING = re.compile(r"\Aset -- [^\n]{0,400}?--training[= ](\d{1,3})\b")


Run = TypeVar("Run")


def trainings_of(text: str, runs: list[Run]) -> list[Run]:
    """The one of the trainings of a script that it is started with (`--args '--training 2'`), else all."""
    found = _TRAINING.search(text)
    return runs[int(found[1]) - 1 : int(found[1])] if found and 0 < int(found[1]) <= len(runs) else runs


def several(differ: Mapping[str, Sequence[str]], count: int) -> str:
    """The sentence about a script with several trainings: the settings in which they differ, and how one is named."""
    listed = "; ".join(f"{key} ({', '.join(values)})" for key, values in differ.items())
    one = f"leave one of them, or name it: --args '--training 1' (to {count})"
    return f"starts several trainings, which differ in {listed}: {one}"
