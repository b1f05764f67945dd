"""Settings of documents that launchers start from: YAML and JSON with those that they change, Python of plain values.

settings_of(Path("conf/train.yaml"), text)      # {"train.system.tensor_model_parallel_size": 8, ...}
"""

import ast
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.dotted_keys import flattened, nested
from primus_search.files.known_keys import key_table
from primus_search.files.python.program_nodes import cut_in, extends_module, layers_of
from primus_search.files.python.python_module import SPREAD, PythonModule, module_file
from primus_search.files.python.python_program import ARGUMENTS, DOCUMENT, Program
from primus_search.files.python.python_values import CallRecord, Name, Unknown, is_open
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import MARK, UNSET
from primus_search.files.source import parse
from primus_search.launch.contract import fits
from primus_search.launch.read.launcher_table import AUTO, CLASS, DOCUMENTS, Launcher
from primus_search.launch.read.script_arguments import command_settings

ENDS = (".yaml", ".yml", ".json", ".py", ".toml")
MOST_PARENTS, MOST_MODULES, MOST_FOLDERS = 8, 20, 4
_TAG = re.compile(r"(?<=[\s:])!\w{1,40}(?=\s)")
"""A tag that a launcher's own loader reads (`!include`)."""
_NAMED = re.compile(r"\$\{(\.?[A-Za-z_][\w.]{0,200})\}")
"""The value of another key of a document; behind a dot one of the same section."""
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{0,80})\}?")
_OF_ENVIRONMENT = re.compile(r"\$\{oc\.env:\w{1,80},([^}]{1,200})\}")
"""What a variable is where it is not set (OmegaConf)."""


def settings_of(path: Path, text: str) -> dict[str, Any]:
    """The keys of a document with dots between sections, over those of the documents that it changes."""
    given = _settings(path, text, 0)
    for _ in range(MOST_PARENTS):
        given = {key: _filled(key, value, given) for key, value in given.items()}
    return {key: _set_outside(value) for key, value in given.items()}


def _set_outside(value: Any) -> Any:
    """A value that a document takes from a variable (`$BATCH`, filled in by envsubst); its name where it has none."""
    found = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return written(os.environ.get(found[1], f"{MARK}{found[1]}{MARK}")) if found else value


def named_beside(path: Path, names: Iterable[Any], ends: Sequence[str] = DOCUMENTS) -> dict[str, Any]:
    """Settings of the documents beside a file that are named."""
    documents = [str(name) for name in names if str(name).endswith((*ends, ".conf"))]
    known = (name for name in documents if not UNSET.search(name.rpartition("/")[2]))
    files = [file for name in known if (file := beside(path.parent, name))]
    texts = [(file, read_text(file, most=MAX_TABLE_BYTES)) for file in files]
    found = [settings_of(file, text) for file, text in texts if not _ROWS.match(text)]
    return {key: value for one in found for key, value in one.items() if value != AUTO}


_ROWS = re.compile(r"\A\s{0,80}\{[^\n]*\}[ \t\r]{0,80}\n\s{0,80}\{")
"""How rows of data in JSON begin, one a line."""


def said_by(path: Path, words: list[str], ends: Sequence[str]) -> dict[str, Any]:
    """Settings of a command over those of documents beside the file that it names."""
    return named_beside(path, [word.rpartition("=")[2] for word in words], ends) | dict(command_settings(words))


def beneath(path: Path, launcher: Launcher, given: Mapping[str, Any], program: str) -> dict[str, Any]:
    """Settings of the launcher's own documents in a copy of it around a file; none of one that is made of others."""
    has_own = "config" in given or str(given.get("config_path", "")).endswith(ENDS)
    names = next((one for words, one in launcher.bases.items() if fits(program, words) and not has_own), "").split()
    found: dict[str, Any] = {}
    for name in names:
        file = beside(path.parent, name) or (beside(path.resolve().parent.parent, name) if launcher.layers else None)
        found |= settings_of(file, read_text(file, most=MAX_TABLE_BYTES)) if file else {}
    return {} if "defaults" in found else found


def _filled(key: str, value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and (default := _OF_ENVIRONMENT.fullmatch(value)):
        return written(default[1])
    found = _NAMED.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return value
    section = key.rpartition(".")[0] if found[1][0] == "." else ""
    name = (section + found[1]).removeprefix("." * (not section)).replace("-", "_")
    return given.get(name, given.get(name.partition(".")[2], value))  # of a document that Hydra puts under a group


def _settings(path: Path, text: str, depth: int) -> dict[str, Any]:
    if path.suffix == ".toml":
        data: Any = tomllib.loads(text)
    elif path.suffix == ".py":
        module = PythonModule.of(path, text)
        is_loop = ".backward(" in text
        classes = _classes_of(module, {path.resolve()} if is_loop else None)
        data = _plain(module.names) | dict(classes) | (_alone(text) if is_loop else {})
    else:
        data = parse(_TAG.sub("", text), path.name, keeps_last=True).data
    if not isinstance(data, dict):
        return {}
    given: dict[str, Any] = {}
    for section, file in _parents(data, path.parent) if depth < MOST_PARENTS else ():
        if file.is_file():
            parent = _settings(file, read_text(file, most=MAX_TABLE_BYTES), depth + 1)
            given |= {f"{section}{name}": value for name, value in parent.items()}
    return given | {name.replace("-", "_"): written(value) for name, value in flattened(data).items()}


def _alone(*texts: str) -> dict[str, bool]:
    """`ALONE` of a program none of whose texts starts or joins several processes."""
    starts = key_table("python_names")["distributed"]
    return {} if any(re.search(starts, one) for one in texts) else {ALONE: True}


def _classes_of(module: PythonModule, seen: set[Path] | None) -> Iterator[tuple[str, bool]]:
    """The classes of layers that a file defines and the fields of its configurations, as keys; those of the modules
    that a program imports, too, if not `seen`."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and extends_module(node):
            yield f"{CLASS}{node.name}", True
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            yield from ((f"{CLASS}{node.name}.{one.id}", True) for one in fields if isinstance(one, ast.Name))
    named = (one for one in module.names.values() if isinstance(one, Name) and one.folders and seen)
    for name in named:
        places = (module_file(folder, name.name.split(".")[:-1]) for folder in name.folders[:MOST_FOLDERS])
        file = next((place.resolve() for place in places if place), None)
        if file and seen and file not in seen and len(seen) < MOST_MODULES:
            seen.add(file)
            with suppress(InputError, ValueError):
                yield from _classes_of(PythonModule.of(file), seen)


def _parents(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Path]]:
    """Section and file of each document that one changes: `defaults: base.yaml` (NeMo-RL), a list of groups (Hydra)."""
    many = data.get("defaults")
    for one in many if isinstance(many, list) else [many]:
        if isinstance(one, str):
            yield "", folder / one
        elif isinstance(one, dict):
            yield from ((f"{group}.", folder / str(group) / f"{name}.yaml") for group, name in one.items())


def of_program(
    path: Path, text: str, arguments: Mapping[str, Any] | None = None, *, needs_name: bool = True
) -> dict[str, Any]:
    """What the calls of a program in Python are given, by the name of the call, with the one before it too
    (`llama3_8b.pretrain_recipe.num_nodes`), and alone for those that configure.

    It is followed twice: what calls are given, defaults of its command line among that, is what fields of its own
    arguments have then, if its command does not give them. What only a run has, or is given twice, is a `MARK`ed name.
    """
    flags = dict(arguments or {})
    entry = _entry(text, flags, needs_name=needs_name)
    made = calls_of(path, text, flags, entry)
    names = [("", *call.name.split("."))[-2:] for call in made]
    called: dict[str, Any] = {before: last for before, last in names if before}  # a method of what a call makes
    called |= {last: before for before, last in names if before or last not in called}
    called |= _alone(text, *(f"{one}(" for one in called))
    left = [MOST_VALUES]
    of_line, others = ([call for call in made if (call.name == ARGUMENTS) is one] for one in (True, False))
    given = _once(list(_of_calls(of_line))) | _once([*_of_calls(others), *_of_configuration(others)])
    return called | {key: _as_document(one, left) for key, one in given.items()}


ALONE = "one_process"
"""The key that a program has which calls nothing that starts or joins several processes."""
BUILT = "model_config"
"""The section of the fields of a model's configuration that a program builds."""


def _of_configuration(made: Sequence[CallRecord]) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration of transformers (`LlamaConfig(...)`), with its family; none where weights of a
    checkpoint are loaded."""
    if any(re.search(r"(?:ForCausalLM|LMHeadModel)\.from_pretrained$", call.name) for call in made):
        return
    sizes = key_table("python_names")["class_sizes"]
    families = {
        f"{one.replace('_', '')}config": one
        for row in key_table("families")["families"].values()
        for one in row["types"]
    }
    for call in made:
        family = families.get(call.last.lower(), "") if call.name.startswith("transformers.") else ""
        given = {"model_type": family, **sizes.get(family, {}), **call.fields} if family else {}
        yield from ((f"{BUILT}.{key}", one) for key, one in given.items())


_RECIPES = re.compile(r"^def ((?:pretrain|finetune)_recipe)\(", re.MULTILINE)
"""Functions of a module of NeMo 2 that are recipes by the name of the file."""


def _entry(text: str, flags: dict[str, Any], *, needs_name: bool) -> str:
    """The recipe that a module of NeMo 2 is started with; empty for another program. Raises ValueError where it has
    several, none is named and the job `needs_name`."""
    names = _RECIPES.findall(text) if "nemo.collections" in text and "__main__" not in text else []
    named = str(flags.pop("recipe", ""))
    if needs_name and named not in names and len(names) > 1:
        raise ValueError(f"has {len(names)} recipes: {', '.join(names)}; name one: --args '--recipe {names[0]}'")
    return named if named in names else names[0] if names else ""


GLOBALS = "globals"
"""The name of the call that stands for whole numbers which a program keeps under names of its own."""


def calls_of(path: Path, text: str, flags: Mapping[str, Any], entry: str = "") -> list[CallRecord]:
    """The calls of a program that is followed twice, with the documents beside it that it loads."""
    options: dict[str, Any] = {}
    for _ in range(2):
        program = Program.of(path, text, load=loaded, options={**options, **flags}, flags=flags)
        try:
            made = program.entered_at(entry) if entry else program.started(program.options, flags)
        except RecursionError:
            raise ValueError("calls of its modules nest deeper than programs that are read") from None
        given, of_line = (
            _once([pair for call in made if (call.name == ARGUMENTS) is one for pair in call.fields.items()])
            for one in (False, True)
        )
        given |= {key: one for key, one in of_line.items() if one is not None or is_open(given.get(key))}
        options = {key: one for key, one in given.items() if one is None or isinstance(one, int | float | str)}
    numbers = {key: one for key, one in program.names.items() if isinstance(one, int)}
    cut = cut_in(program.body, {key: program._named(one) for key, one in program.names.items()})
    layers = layers_of((one.body, one.classes) for one in (program, *program.modules.values()))
    return [
        *made,
        CallRecord(GLOBALS, (), numbers | ({"cut": cut} if cut is not None else {})),
        CallRecord(CLASS[:-1], (), dict.fromkeys(layers, True)),
    ]


def documents_of(path: Path, made: Sequence[CallRecord], flags: Mapping[str, Any]) -> list[Path]:
    """The documents beside a program that it loads, or that are the default of one of its options."""
    names = [call.arguments for call in made if call.name == DOCUMENT]
    options = (one for call in made if call.name == ARGUMENTS for one in call.fields.values())
    names += [(path.parent, one) for one in (*options, *flags.values()) if isinstance(one, str)]
    found = (_document(*one) for one in names)
    return list(dict.fromkeys(one for one in found if one and one.suffix != ".py"))


def options_of(made: Sequence[CallRecord]) -> dict[str, Any]:
    """The options of a program's command line that have a default, classes that its parsers fill among them."""
    pairs = (pair for call in made if call.last.endswith(("Arguments", "Args")) for pair in call.fields.items())
    return {key: one for key, one in pairs if isinstance(one, str | int | float) and one != ""}


LENGTH = re.compile(
    r"(?:^|[._])(?:max_|model_max_|train_)?(?:seq|total|context|input|source|src|cutoff|text|token)\w{0,12}len(?:gth)?$"
    r"|(?:^|[._])max_len(?:gth)?$"
)
"""What a key is called that cuts rows of text."""


def own_lengths(path: Path, words: list[str]) -> dict[str, Any]:
    """The lengths that a program beside a script has by default, where its command gives none."""
    flags = dict(command_settings(words))
    files = (beside(path.parent, word) for word in words if word.endswith(".py") and "=" not in word)
    if any(map(LENGTH.search, flags)) or not (file := next(files, None)):
        return {}
    with suppress(InputError, ValueError):
        options = options_of(calls_of(file, read_text(file, most=MAX_TABLE_BYTES), flags))
        return {key: value for key, value in options.items() if LENGTH.search(key)}
    return {}


def required_of(made: Sequence[CallRecord]) -> str:
    """The line that gives a program the options that it requires; empty where it requires none."""
    given = (one for call in made if call.name == ARGUMENTS for one in call.fields.values())
    names = dict.fromkeys(one.text for one in given if isinstance(one, Unknown) and one.text[:2] == "--")
    line = " ".join(f"{name} .." for name in names)
    return f"; it wants arguments: primus-search project FILE --args '{line}'" if names else ""


def loaded(folder: Path, name: str) -> Any:
    """The sections of a document beside a program; None where there is none."""
    file = _document(folder, name)
    return nested(settings_of(file, read_text(file, most=MAX_TABLE_BYTES))) if file else None


def _document(folder: Path, name: str) -> Path | None:
    return beside(folder, name) if name.endswith(ENDS) and "\0" not in name else None


def _as_document(value: Any, left: list[int]) -> Any:
    """A value as a document has it; what only a run has, what a function returns among that, as a `MARK`ed text."""
    is_returned = isinstance(value, CallRecord) and value.last[:1].islower() and value.name != "dict"
    text = f"{value.name}()" if is_returned else value.text if isinstance(value, Unknown) else ""
    end = f"/{value.end}" if isinstance(value, Unknown) and value.end else ""
    return f"{MARK}{text}{MARK}{end}" if text else written(_plain(value, left))


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The value of each key; `Unknown` where it has several."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        has = found.get(key)
        differs = isinstance(value, int | str) and isinstance(has, int | str) and has != value
        if key not in found or not isinstance(value, Unknown):
            found[key] = Unknown(key) if differs else value
    return found


CONFIGURES = re.compile(r"Config|Arguments|Args|Trainer|^get_peft_model$|^from_pretrained$")
"""Calls whose arguments are settings of a job without the call's name."""


def _of_calls(made: Sequence[CallRecord]) -> Iterator[tuple[str, Any]]:
    """Arguments of calls under the names of `of_program`."""
    for call in made:
        before, _, last = ".".join(call.name.split(".")[-2:]).rpartition(".")
        given = dict(_below({**{str(at): one for at, one in enumerate(call.arguments)}, **call.fields}))
        yield from ((f"{before}.{last}.{key}", one) for key, one in given.items())
        if last != "from_pretrained" or not re.search("Tokenizer|Processor", before):
            yield from ((f"{last}.{key}", one) for key, one in given.items())
        if CONFIGURES.search(last):
            own = given if last.endswith(("Config", "Arguments", "Args")) else given.keys() - {SPREAD}
            yield from (
                (key, given[key]) for key in given if key in own and not key.isdigit() and given[key] is not None
            )


def _below(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields with those of parts that are no calls, by dotted names."""
    for key, value in fields.items():
        if isinstance(value, CallRecord) and not value.name:
            yield from ((f"{key}.{name}", one) for name, one in _below(value.fields))
        else:
            yield key, value


MOST_VALUES = 200_000


def _plain(value: Any, left: list[int] | None = None) -> Any:
    """A value of a Python file: `dict(a=1)` as a mapping, what only a run has as it stands.

    Raises ValueError for one of more parts than are left, as lists have that hold another many times.
    """
    left = left or [MOST_VALUES]
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("lists of so many values are not read")
    match value:
        case CallRecord("dict", fields=fields) | (dict() as fields):
            return {str(key): _plain(one, left) for key, one in fields.items()}
        case list():
            return [_plain(one, left) for one in value]
        case CallRecord(name) | Name(name):
            return name
        case Unknown(text):
            return text
    return value


def written(value: Any) -> Any:
    """A value as YAML has it: true, null and lists of a command line, too."""
    if not isinstance(value, str) or UNSET.search(value):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        return [part.strip(" '\"") for part in value[1:-1].split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None, "none": None, "~": None}
    return words.get(value.lower(), value)
