"""Programs in Python that start a recipe of Megatron-Bridge with settings over it, and modules that define recipes.

A function is followed by its syntax tree and never run; what it leaves out is that of the shipped recipe of its name.

    of_program(Path("pretrain.py"), text, 0, None, ["--recipe", "llama3_8b_pretrain_config"], of_settings=of_settings)
"""

import re
from ast import If, unparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_program import Program
from primus_search.files.python.python_values import CallRecord, Name, Unknown
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import MARK, UNSET
from primus_search.files.source import shown
from primus_search.launch.contract import fits
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.launcher_documents import calls_of, loaded, settings_of
from primus_search.launch.read.launcher_formulas import settings_read
from primus_search.launch.read.recipe_overrides import CALLED, idle_in, overrides_of
from primus_search.launch.read.recipes import COMMANDS, NAMED, NamedRecipe, of_class, of_recipe, recipes, recipes_named
from primus_search.launch.read.script_arguments import command_settings
from primus_search.launch.world import NO_WORLD
from primus_search.models.preset_names import model_named, no_preset
from primus_search.values.model import Model

MOST_NAMED = 12
_DOCUMENT = re.compile(
    r"^(?:DEFAULT_)?CONFIG_\w{1,40}\s*(?::[^=\n]+)?=[^\n]*['\"]([\w.-]{1,80}\.ya?ml)['\"]", re.MULTILINE
)
"""The document whose settings a program lays over its recipe."""


def of_program(
    path: Path, text: str, world: int, model: Model | None, arguments: Sequence[str] = (), *,
    of_settings: Callable[..., Experiment],
) -> Experiment:  # fmt: skip
    """The job of the recipe that a file defines or starts. Raises ValueError where several are and none is named."""
    module = Program.of(path, text, load=loaded)
    defined = recipes_named(module.functions)
    listed = _EXPORTED.search(text) if defined else None
    exported = recipes_named(NAMED.findall(listed[1])) if listed else []  # of other modules, too
    calls = [] if defined else calls_of(path, text, dict(command_settings([*arguments])))
    made = calls
    names = list(dict.fromkeys([*defined, *exported])) or recipes_named(n for one in calls for n in _recipe_names(one))
    known = recipes_named(NAMED.findall(_REMARK.sub("", text)))
    names = [*dict.fromkeys(recipes_named(arguments))] or names or known
    if not names and _ASKS.search(text):
        raise ValueError(
            f"starts the recipe that it is given: primus-search project {path.name} --args '--recipe NAME'"
        )
    if not names:
        return _of_container(module, calls, world, model, arguments, of_settings)
    as_shipped = f"as shipped: primus-search project --recipe {names[0]}"
    if len(names) != 1:
        shown = ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")
        one = f"; name one: primus-search project {path.name} --args '--recipe {names[0]}' ({shown})" if names else ""
        raise ValueError(f"starts {len(names) or 'no'} recipes{one}; {as_shipped}")
    defined = [one for one in defined if one == names[0]]
    if defined:
        calls = [module.returned(names[0])]
    base = recipes()[names[0].removesuffix("_config")]
    calls = [one for one in calls if isinstance(one, CallRecord) and (defined or names[0] in _recipe_names(one))]
    other = _models(module.made, []) if defined else _models(made, calls)
    if model is None and (other := other - {base.model}):
        raise ValueError(f"starts {names[0]} with another model ({', '.join(sorted(other))}): give it by --model")
    words = [word for one in calls for word in _words(one)]
    if defined:  # what it leaves to classes and to functions of other files is as shipped
        words = [one for one in words if fits(one.partition("=")[0], key_table(COMMANDS)["of_defined"])]
    words = [*_document(path, text), *words, *(one for one in arguments if "=" in one)]
    given = {key: one for key, one in overrides_of(words, base).items() if base.settings.get(key) != one}
    unset = {key: found[1] for key, one in given.items() if (found := UNSET.search(str(one)))}
    if counts := sorted(settings_read("nemo") & unset.keys()):
        named = "; ".join(f"{key} depends on {unset[key]}" for key in counts)
        raise ValueError(f"{named}: --args 'section.{counts[0]}=VALUE' gives it; {as_shipped}")
    given = {key: one for key, one in given.items() if key not in unset}
    read = of_recipe(path, NamedRecipe(names[0], given, idle=idle_in(words, base)), world, model, of_settings)
    note = f"but for {'degrees, batch and length' if defined else 'what it sets'} as the shipped recipe {names[0]}"
    return replace(read, assumed=(*read.assumed, note))


CONFIGURES_BRIDGE = re.compile(
    r"^from megatron\.(?:bridge|hub)\.training\.config import [^\n]{0,200}ConfigContainer|^\s{0,4}ConfigContainer,$"
    r"|^from megatron\.(?:bridge|hub)\.recipes\.[\w.]{1,80} import \w*_config\b",
    re.MULTILINE,
)
"""A program or a module of Megatron-Bridge that configures a job."""
_CONTAINER = "ConfigContainer"
_REMARK = re.compile(r"(?s)\"\"\".*?\"\"\"|^[ \t]*#[^\n]*", re.MULTILINE)
"""Texts of several lines and comments, whose recipes are examples."""
_ASKS = re.compile(r"add_argument\(\s{0,20}[\"']--recipe[\"']")
"""An option of a program that names its recipe."""
_EXPORTED = re.compile(r"\n__all__ = [\[(]([^\[\]()]{0,20000})[\])]\n")
"""The names that a module lists as its own."""


def _of_container(
    module: Program, calls: Sequence[CallRecord], world: int, model: Model | None, arguments: Sequence[str],
    of_settings: Callable[..., Experiment],
) -> Experiment:  # fmt: skip
    """The job of a configuration that a file builds; of several the one that is named. Raises ValueError where there is
    none."""
    defined = [name for name, one in module.functions.items() if one.returns and _CONTAINER in unparse(one.returns)]
    named = [name for name in defined if name in arguments] or defined
    is_started = any(isinstance(one, If) and "__main__" in unparse(one.test) for one in module.body)
    built = [one for one in calls if one.last == _CONTAINER] if is_started else []
    if not built and len(named) == 1:
        module.made = []
        built, calls = [module.returned(named[0])], module.made
    if not built or not isinstance(built[-1], CallRecord) or built[-1].last != _CONTAINER:
        if defined[1:]:
            one = f"name one: --args '--recipe {defined[0]}' ({', '.join(defined[:MOST_NAMED])})"
            raise ValueError(f"builds {len(defined)} configurations of Megatron-Bridge; {one}")
        raise ValueError("builds no configuration of Megatron-Bridge that can be followed without running it")
    settings = overrides_of([*_words(built[-1]), *(one for one in arguments if "=" in one)])
    unset = {key: found[1] for key, one in settings.items() if (found := UNSET.search(str(one)))}
    if counts := sorted(settings_read("nemo") & unset.keys()):
        raise ValueError(f"{counts[0]} depends on {unset[counts[0]]}: --args 'section.{counts[0]}=VALUE' gives it")
    provider = built[-1].fields.get("model")
    names = [*sorted(_models(calls, [])), provider.last if isinstance(provider, CallRecord) else ""]
    provided = key_table(COMMANDS)["provided"]
    loaded = model or next((has for one in names if one and (has := model_named(one, provided))), None)
    name = names[0] or names[-1]
    settings = of_class(name) | {key: one for key, one in settings.items() if key not in unset}
    read = of_settings(module.path, load_framework("nemo"), settings, world, loaded, NO_WORLD)
    if read.model is not None or not any(names):
        return read
    what = f"{no_preset(name)}; give --model a preset or a config.json"
    return replace(read, model_problems=(Problem(shown(module.path), what),))


def _models(made: Sequence[CallRecord], started: Sequence[CallRecord]) -> set[str]:
    """Names of models that a file loads, and what it sets in place of that of a recipe which it starts."""
    loads = [one.arguments[0] for one in made if one.last == "from_hf_pretrained" and one.arguments]
    named = [_model_name(call.fields.get("model")) for call in started]
    return {one for one in (*loads, *named) if isinstance(one, str) and one}


def _recipe_names(call: CallRecord) -> tuple[str, str]:
    """What a call's recipe is named: by the function, or as releases before v0.2 had it by its module before it."""
    return call.last, "_".join(call.name.split(".")[-2:])


def _model_name(value: Any) -> str:
    match value:
        case Name(name) | CallRecord(name) | Unknown(name) | str(name):
            return name
    return ""


def _document(path: Path, text: str) -> list[str]:
    """Settings of the document that a program lays over its recipe. Raises ValueError where it is not there."""
    found = _DOCUMENT.search(text)
    files = (beside(path.parent, f"{folder}{found[1]}") for folder in ("", "conf/")) if found else ()
    file = next((one for one in files if one), None)
    if found and not file:
        raise ValueError(f"takes settings from {found[1]}, which is not beside the file: put it there")
    settings = settings_of(file, read_text(file, most=MAX_TABLE_BYTES)) if file else {}
    return [f"{key}={_text(value)}" for key, value in settings.items() if "." in key]


def _words(recipe: CallRecord) -> Iterator[str]:
    """What a function sets of its recipe as a command's `section.key=value`."""
    renamed = key_table(COMMANDS)["arguments"]
    for section, part in recipe.fields.items():
        if isinstance(part, CallRecord):  # one without a name is at its default
            given = [(key, _text(one)) for key, one in part.fields.items() if one != CallRecord()]
            if section == "mixed_precision" and part.name:
                fields = "{" + ",".join(f"{key}:{one}" for key, one in given) + "}"
                named = _text(part.arguments[0]) if part.arguments else part.last
                yield f"{section}={fields if part.last == 'MixedPrecisionConfig' else named + CALLED}"
            elif section == "comm_overlap" and part.name:
                given = [*((key, _text(one)) for key, one in key_table(COMMANDS)["overlaps"].items()), *given]
                yield f"{section}=null"
            yield from (f"{section}.{key}={one}" for key, one in given if section != "tokenizer")
        elif section in ("mixed_precision", "peft", "comm_overlap"):
            yield f"{section}={_text(part)}"
        else:
            yield f"model.{renamed.get(section, section)}={_text(part)}"


def _text(value: Any) -> str:
    """A value as Hydra writes it; what only a run has as a `MARK`ed text."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case Name(name):
            return name.rpartition(".")[2]
        case Unknown(text):
            return f"{MARK}{text}{MARK}"
        case CallRecord(name):
            return f"{MARK}{name}(){MARK}"
        case list():
            return f"[{','.join(map(_text, value))}]"
    return str(value)
