"""Programs in Python that start a recipe of Megatron-Bridge with settings over it, and modules that define recipes.

A function is followed by its syntax tree and never run; what it leaves out is that of the shipped recipe of its name.

    of_program(Path("pretrain.py"), text, 0, None, ["--recipe", "llama3_8b_pretrain_config"], of_settings=of_settings)
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_module import PythonModule
from primus_search.files.python.python_values import CallRecord, Name, Unknown
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import MARK, UNSET
from primus_search.launch.contract import fits
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.launcher_documents import settings_of
from primus_search.launch.read.launcher_formulas import settings_read
from primus_search.launch.read.recipe_overrides import idle_in, overrides_of
from primus_search.launch.read.recipes import COMMANDS, NAMED, NamedRecipe, of_recipe, recipes, recipes_named
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
    module = PythonModule.of(path, text)
    defined = recipes_named(module.functions)
    calls = [] if defined else module.started({})
    names = defined or recipes_named(one.last for one in calls)
    known = recipes_named(NAMED.findall(text))
    names = [one for one in names if one in arguments] or names or known[: len(known) == 1]
    as_shipped = f"as shipped: primus-search project --recipe {(names or known)[0]}"
    if len(names) != 1:
        shown = ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")
        one = f"; name one: primus-search project {path.name} --args '--recipe {names[0]}' ({shown})" if names else ""
        raise ValueError(f"starts {len(names) or 'no'} recipes{one}; {as_shipped}")
    if defined:
        module.options = {}
        calls = [module.returned(names[0])]
    base = recipes()[names[0].removesuffix("_config")]
    calls = [one for one in calls if isinstance(one, CallRecord) and (defined or one.last in names)]
    if other := _models(module, [] if defined else calls) - {base.model} if model is None else ():
        raise ValueError(f"starts {names[0]} with another model ({', '.join(sorted(other))}): give it by --model")
    words = [word for one in calls for word in _words(one)]
    if defined:  # what it leaves to classes and to functions of other files is as shipped
        words = [one for one in words if fits(one.partition("=")[0], key_table(COMMANDS)["of_defined"])]
    words = [*_document(path, text), *words, *(one for one in arguments if "=" in one)]
    given = {key: one for key, one in overrides_of(words).items() if base.settings.get(key) != one}
    unset = {key: found[1] for key, one in given.items() if (found := UNSET.search(str(one)))}
    if counts := sorted(settings_read("nemo") & unset.keys()):
        named = "; ".join(f"{key} depends on {unset[key]}" for key in counts)
        raise ValueError(f"{named}: --args 'section.{counts[0]}=VALUE' gives it; {as_shipped}")
    given = {key: one for key, one in given.items() if key not in unset}
    read = of_recipe(path, NamedRecipe(names[0], given, idle=idle_in(words)), world, model, of_settings)
    note = f"but for {'degrees, batch and length' if defined else 'what it sets'} as the shipped recipe {names[0]}"
    return replace(read, assumed=(*read.assumed, note))


def _models(module: PythonModule, started: Sequence[CallRecord]) -> set[str]:
    """Names of models that a file loads, and what it sets in place of that of a recipe which it starts."""
    loads = [one.arguments[0] for one in module.made if one.last == "from_hf_pretrained" and one.arguments]
    return {
        one
        for one in (*loads, *(_model_name(call.fields.get("model")) for call in started))
        if isinstance(one, str) and one
    }


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
                yield f"{section}={fields if part.last == 'MixedPrecisionConfig' else named}"
            elif section == "comm_overlap" and part.name:
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
