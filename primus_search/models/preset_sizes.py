"""The model whose sizes a preset holds, by the reader of the format that they are written in."""

from dataclasses import replace
from pathlib import Path

from primus_search.base.errors import InputError
from primus_search.files.fields import Fields
from primus_search.files.source import Document
from primus_search.models import huggingface, megatron_yaml
from primus_search.models.presets import PRESET_KEYS
from primus_search.values.model import Model


def model_of_preset(document: Document, fields: Fields, path: Path, vocab_size: int | None) -> Model:
    """The model whose sizes stand under `huggingface`, as in its config.json, or under `megatron`, as its arguments."""
    fields.refuse_unknown(PRESET_KEYS)
    kind = next((one for one in PRESET_KEYS[-2:] if one in document.data), None)
    if kind is None:
        what = "expected a model: the fields of its config.json under huggingface, or its arguments under megatron"
        raise InputError([*fields.problems, document.problem((), what)])
    sizes = fields.anything(kind)
    if not isinstance(sizes, dict):
        raise InputError([*fields.problems, document.problem((kind,), "is no mapping of the model's sizes")])
    inner = Document(document.name, sizes, document.lines, document.origins)
    if kind == "megatron":
        model = megatron_yaml.from_document(inner, path, (), vocab_size)
    else:
        model = huggingface.from_document(inner, (), vocab_size)
    return replace(model, name=path.stem, source=fields.word("source"))
