"""The model that a file of a launcher names, sizes, or has as a config.json of its own."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.dotted_keys import nested
from primus_search.files.known_keys import known_keys
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import UNSET
from primus_search.files.source import Document, plain, shown
from primus_search.launch.read.launcher_table import VALUE, Launcher
from primus_search.models.model_files import load_model
from primus_search.models.preset_names import model_named, no_preset
from primus_search.models.tokenizers import vocabulary_of
from primus_search.values.machine.framework import ANY, Settings
from primus_search.values.model import Model


def model_of(path: Path, launcher: Launcher, given: Settings) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model that a file names or sizes, and why there is none."""
    fields = {k.removeprefix(f"{launcher.config}."): v for k, v in given.items() if k.startswith(f"{launcher.config}.")}
    stated = {**launcher.defaults, **given}
    names = [str(one) for key in launcher.model if (one := stated.get(key)) and one is not True]
    named = next(iter(names), "")
    if launcher.config and fields and (_family(launcher, fields) or not named):
        tokenizer = next((str(stated[key]) for key in launcher.tokenizer if stated.get(key)), "")
        return _of_config(path, launcher, fields, vocabulary_of(tokenizer))
    resized = next((k for k, v in given.items() if v and any(fnmatchcase(k, one) for one in launcher.sizes)), "")
    if resized:
        what = f"{resized}: {given[resized]}: another model than {named}; give --model its config.json"
        what = as_script_text(what)
        return None, (Problem(shown(path), what),)
    known = (
        model_named(one, launcher.models) for one in names[: 1 if UNSET.search(named.rpartition("/")[2]) else None]
    )
    if found := next(filter(None, known), None):
        return found, ()
    is_own = bool(named) and "\0" not in named
    file = beside(path.parent, named if named.endswith(".json") else f"{named}/config.json") if is_own else None
    if file and re.search(r'"(?:hidden_size|n_embd|d_model)"', read_text(file, most=MAX_TABLE_BYTES)):
        return load_model(str(file)), ()
    if not named and launcher.contract != ANY:
        return None, ()  # sized by its own arguments
    what = no_preset(as_script_text(named)) if named else "names no model"
    return None, (Problem(shown(path), f"{what}; give --model a preset or a config.json"),)


def as_script_text(text: str) -> str:
    """A text with variables without a value as a script has them."""
    return UNSET.sub(r"$\1", text)


def fitting(model: Model | None, found: Settings, *, is_given: bool) -> Model | None:
    """The model that settings of a contract start: none where they size one, without prediction layers that are off.

    A named model stays where the settings size that very one and have it built by a function. Raises ValueError where
    they change its layers.
    """
    is_built = (
        found.get("spec") is not None and model is not None and str(found.get("hidden_size")) == str(model.hidden)
    )
    if model is None or ("hidden_size" in found and "num_layers" in found and not is_given and not is_built):
        return None
    layers, predicted = found.get("num_layers"), found.get("mtp_num_layers")
    if layers is not None and str(layers) != str(model.num_layers):
        raise ValueError(f"num_layers: {layers}: another model than {model.name}; give --model its config.json")
    if "mtp_num_layers" in found and str(predicted or 0).isdecimal():
        return replace(model, num_mtp_layers=int(predicted or 0))
    return model


def _of_config(
    path: Path, launcher: Launcher, fields: dict[str, Any], vocabulary: int | None
) -> tuple[Model | None, tuple[Problem, ...]]:
    """The model of fields that stand in the file as in a config.json."""
    from primus_search.models import huggingface  # every family of models: presets need none of them

    family = _family(launcher, fields)
    if not family:
        known = ", ".join(launcher.config_of)
        what = f"{launcher.config} is of no family that is read ({known}); give --model its config.json"
        return None, (Problem(shown(path), what),)
    kept = {k: v for k, v in fields.items() if not any(fnmatchcase(k, one) for one in launcher.config_drops)}
    kept = {launcher.config_renamed.get(k, k): v for k, v in kept.items()}
    unknown = {k: str(v) for k, v in kept.items() if UNSET.search(str(v))}
    is_tokenizers = vocabulary is not None and re.search("len|token", unknown.get("vocab_size", "")) is not None
    given = {*known_keys("huggingface").irrelevant, *(["vocab_size"] if is_tokenizers else [])}
    kept = {k: v for k, v in kept.items() if k not in given & unknown.keys()}
    if missing := next((key for key in unknown if key in kept), ""):
        what = f"{missing} of its model depends on {as_script_text(str(kept[missing]))}; give --model its config.json"
        return None, (Problem(shown(path), what),)
    data = {"model_type": family} | ({"vocab_size": vocabulary} if vocabulary else {})
    data |= nested({k: plain(v) if isinstance(v, str) else v for k, v in kept.items()})
    try:
        return replace(huggingface.from_document(Document(shown(path), data)), name=path.stem), ()
    except InputError as error:
        return None, tuple(replace(one, what=f"{one.what}; give --model its config.json") for one in error.problems)


def _family(launcher: Launcher, fields: Settings) -> str:
    """The family that a switch of a file names; empty where none does."""
    pairs = ((key.partition("="), family) for key, family in launcher.config_of.items())
    found = ((key, family) for (key, _, value), family in pairs if fields.get(key) and value in ("", str(fields[key])))
    return next((str(fields[key]) if family == VALUE else family for key, family in found), "")
