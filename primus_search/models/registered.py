"""What a framework calls the models it ships: its names for a shape, and the model that a name stands for."""

from dataclasses import replace
from itertools import chain

from primus_search.files.known_keys import key_table
from primus_search.files.search_path import FileKind, names
from primus_search.files.source import read
from primus_search.models.presets import load_preset, preset_at, preset_from
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Constants, Model
from primus_search.values.model.shape import shape


def registered_model(framework: Framework, model: Model) -> str | None:
    """What a framework calls a model that has the very shape of one of its own; of several the one of its name."""
    bare, places = shape(model), names(FileKind.MODEL)
    presets_of = sorted(framework.models.items(), key=lambda pair: pair[0] != model.name)
    own = ((theirs, preset_at(places[ours]).model) for ours, theirs in presets_of)
    changed = ((theirs, _changed(fields)) for theirs, fields in framework.flavors.items())
    return next((theirs for theirs, known in chain(own, changed) if shape(known) == bare), None)


def model_called(framework: Framework, theirs: str) -> Model | None:
    """The model that a framework calls `theirs`; None where its contract names none."""
    if theirs in framework.flavors:
        return _changed(framework.flavors[theirs])
    preset = next((ours for ours, name in framework.models.items() if name == theirs), None)
    return load_preset(preset).model if preset else None


def _changed(fields: Settings) -> Model:
    """The preset that `fields` name, with the other fields of theirs."""
    model = load_preset(str(fields["preset"])).model
    of_constants = {k: v for k, v in fields.items() if k in Constants.__slots__}
    if scaling := of_constants.get("rotary_scaling"):
        of_constants["rotary_scaling"] = tuple((k, scaling.get(k, v)) for k, v in model.constants.rotary_scaling)
    sizes = {k: v for k, v in fields.items() if k != "preset" and k not in of_constants}
    return replace(model, **sizes, constants=replace(model.constants, **of_constants))


def part_called(theirs: str) -> Model | None:
    """The language model of a flavor of torchtitan that is a preset's but for fields of its config.json, or None."""
    family, _, flavor = theirs.partition(":")
    fields = dict(key_table("torchtitan_parts").get(family, {}).get(flavor, {}))
    if not fields:
        return None
    path = names(FileKind.MODEL)[fields.pop("preset")]
    document = read(path)
    sizes = {key: one for key, one in {**document.data["huggingface"], **fields}.items() if one is not None}
    found = preset_from(replace(document, data={**document.data, "huggingface": sizes}), path).model
    return replace(found, name=f"{family}_{flavor}".lower()) if "hidden_size" in fields else found
