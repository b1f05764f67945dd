"""The script inside a file of another kind: a manifest of Kubernetes, a task of SkyPilot, a Makefile.

script_in(Path("job.yaml"), "kind: PyTorchJob ...")     # "export NNODES=\"4\"\ntorchrun --nnodes=4 train.py ..."
"""

import os
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.known_keys import key_table
from primus_search.files.shell import bash
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import UNSET, counts_in, header_variables
from primus_search.files.source import parse
from primus_search.launch.world import World, listed_devices, world_of

_WRAPS = re.compile(r"^(?:apiVersion|run|entrypoint|services|commands?):", re.MULTILINE)
"""A YAML whose strings may be a script: a manifest, a task, a job of a cloud."""
_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
"""How manifests and Makefiles write the value of a variable."""
_RECIPES = re.compile(r"(?:[Mm]ake|[Jj]ust)file$|\.(?:mk|just)$")
_STEP = re.compile(r"^(?:\t| {2,8})[@-]?", re.MULTILINE)
_ASSIGNED = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)\s{0,20}[:?+]?=\s{0,20}(\S.*)$")

QUOTED = " '\""
"""Around a value that is assigned."""


def script_in(path: Path, text: str) -> str:
    """The commands in a file as lines of a shell, its variables first; empty where it has none."""
    if _RECIPES.search(path.name):
        return _of_recipes(text)
    if path.suffix not in (".yaml", ".yml") or not _WRAPS.search(text):
        return ""
    try:
        documents = [parse(part, path.name).data for part in re.split(r"^---.*$", text, flags=re.MULTILINE)]
    except InputError:
        return ""
    return "\n".join(line for one in documents for line in (*_started(one), *_lines(one)))


_CALLED = re.compile(
    r"(?:^|[\s;&|(])(?:(?:bash|sh|exec|source|\.|sbatch|srun)[ \t](?:[^\n;&|]{0,200}?[ \t])?|(?=\./))"
    r"['\"]?(?:(?:`pwd`|\$\(pwd\)|~)/)?([\w./${}-]{1,200}\.(?:sh|slurm|sbatch|bash))"
)
"""A script that a command of a script starts."""


def called_in(path: Path, text: str) -> str:
    """The texts of the scripts beside a script that it starts by name."""
    files = (beside(path.parent, name) for name in dict.fromkeys(_CALLED.findall(text)))
    return "\n".join(
        read_text(file, most=MAX_TABLE_BYTES) for file in files if file and file.resolve() != path.resolve()
    )


_OTHERS = re.compile(
    r"eval|infer|test|predict|convert|merge|prepare|preprocess|tokeniz|download|plot|generat|serve|push|check_|metric|report|dump"
)
"""What programs are called that train nothing."""


def program_in(path: Path, text: str) -> tuple[Path, list[str], World] | None:
    """The last program in Python beside a script that it starts, its arguments, and the processes that are started."""
    script = bash.followed(text, os.environ, path.parent)
    counts = counts_in({**os.environ, **header_variables(script.text), **script.variables.values})
    for words in reversed([] if script.left else script.commands):
        at = next((i for i, word in enumerate(words) if word.endswith(".py") and "=" not in word), 0)
        is_other = not at or _OTHERS.search(words[at].rpartition("/")[2])
        file = None if is_other else beside(path.parent, words[at]) or beside(path.resolve().parent.parent, words[at])
        if file and not any(map(UNSET.search, words[at + 1 :])):
            started = world_of(words[:at], counts, path.parent)
            each = 0 if started else listed_devices(words, counts)
            return file, words[at + 1 :], World(each, each) if each else started
    return None


def _started(node: Any) -> Iterator[str]:
    """The variables of the pods with devices that a document starts; none that hangs on a variable."""
    pods = [(copies, each) for copies, each in _pods(node, 1) if copies]
    nodes = 0 if any(copies == UNKNOWN for copies, _ in pods) else sum(copies for copies, _ in pods)
    table = key_table("worlds")["pods"]
    for names, count in zip(table["world"], (nodes, pods[0][1] if pods else 0), strict=True):
        yield from (f"export {name}={count}" for name in names if count > 0)
    yield from (f"export {name}=0" for name in table["ranks"] if nodes > 0)


UNKNOWN = -1
"""A count that a variable gives."""


def _pods(node: Any, copies: int) -> Iterator[tuple[int, int]]:
    """Copies of each pod, and its devices; of both what a variable gives is unknown."""
    for one in node if isinstance(node, list) else ():
        yield from _pods(one, copies)
    if not isinstance(node, Mapping):
        return
    table = key_table("worlds")["pods"]
    given = [node[key] for key in table["copies"] if isinstance(node.get(key), int) or "$" in str(node.get(key))]
    copies = UNKNOWN if copies == UNKNOWN or any(isinstance(one, str) for one in given) else copies * prod(given)
    for key, value in node.items():
        if key in table["devices"]:
            one = value.get("count", next(iter(value.values()), 0)) if isinstance(value, Mapping) else value
            count = str(one).rpartition(":")[2]
            yield copies, int(count) if count.isdecimal() else UNKNOWN if "$" in count else 1
        elif key not in ("requests", "leaderTemplate"):  # beside limits, and one of the workers
            yield from _pods(value, copies)


def _lines(node: Any) -> Iterator[str]:
    """Variables and commands of a document, those of outer sections first."""
    if isinstance(node, list):
        for one in node:
            yield from _lines(one)
    if not isinstance(node, Mapping):
        return
    for key in ("env", "envs", "environment", "environment_variables"):
        yield from _variables(node.get(key))
    words = [word for key in ("command", "args") for word in _listed(node.get(key))]
    if words:
        is_text = len(words) == 1 or any(re.fullmatch(r"-\w*c", word) for word in words[:-1])
        yield _VARIABLE.sub(r"${\1}", words[-1] if is_text else " ".join(map(_word, words)))
    yield from (text for key in ("run", "entrypoint") if isinstance(text := node.get(key), str))
    yield from _listed(node.get("commands"))
    for key, value in node.items():
        if str(key).endswith(".sh") and isinstance(value, str):
            yield value
        elif key not in ("command", "args"):
            yield from _lines(value)


def _variables(given: Any) -> Iterator[str]:
    listed = [_pair(one) for one in given] if isinstance(given, list) else []
    pairs = list(given.items()) if isinstance(given, Mapping) else listed
    yield from (f"export {name}={_word(str(value))}" for name, value in pairs if value is not None)


def _pair(variable: Any) -> tuple[Any, Any]:
    """Name and value of a variable in a list: a section, or NAME=VALUE; of a name alone no value."""
    if isinstance(variable, Mapping):
        return variable.get("name"), variable.get("value")
    name, has_value, value = str(variable).partition("=")
    return name, value if has_value else None


def _listed(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [value] if isinstance(value, str) else []


def _word(text: str) -> str:
    return text if re.fullmatch(r"[\w$.{}()/:=,@%+-]+", text) else '"' + text.replace('"', '\\"') + '"'


def _of_recipes(text: str) -> str:
    """The steps of a Makefile or a justfile after what it assigns."""
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", r"${\1}", _VARIABLE.sub(r"${\1}", text)).replace("$$", "$")
    lines = text.splitlines()
    assigned = (found for line in lines if (found := _ASSIGNED.match(line)))
    given = [f"{one[1]}={_word(one[2].strip(QUOTED))}" for one in assigned]
    return "\n".join([*given, *(_STEP.sub("", line) for line in lines if _STEP.match(line))])
