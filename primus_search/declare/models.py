"""Models by name or path: presets, Primus/Megatron YAML, HuggingFace config.json.

The formats are recognised by their content, not by their ending.
"""

from pathlib import Path

from primus_search.declare import huggingface, megatron
from primus_search.declare.places import Kind, find
from primus_search.declare.presets import preset_from
from primus_search.declare.source import read
from primus_search.errors import InputError, Problem
from primus_search.model import Model


def load_model(text: str, *, beside: Path | None = None, where: str | None = None) -> Model:
    """The model a preset name, a Primus/Megatron YAML or a HuggingFace config.json (or its folder) describes.

    Raises InputError with every problem; `where` is the place that named the model.
    """
    path = find(Kind.MODEL, text, beside=beside)
    if isinstance(path, str):
        raise InputError([Problem(where or "model", path)])
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    document = read(path)
    data = document.data
    if isinstance(data, dict) and ("model_type" in data or "architectures" in data):
        return huggingface.from_document(document)
    if isinstance(data, dict) and megatron.recognises(data):
        return megatron.from_document(document, path)
    return preset_from(document, path).model
