"""Models by name or path: presets, Primus/Megatron YAML, HuggingFace config.json.

The formats are recognised by their content, not by their ending.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import name_problem
from primus_search.files.search_path import FileKind, find
from primus_search.files.source import Document, read
from primus_search.models import megatron_yaml
from primus_search.models.presets import preset_from
from primus_search.values.model import Model

HUGGINGFACE_KEYS = ("architectures", "text_config", "num_hidden_layers", "n_layer", "n_layers", "transformers_version")

WRITTEN_KEYS = ("architectures", "transformers_version")
"""Keys that transformers writes into every file, whatever else a family calls like Megatron."""


def load_model(
    text: str,
    *,
    beside: Path | None = None,
    where: str | None = None,
    ignore: Collection[str] = (),
    vocab_size: int | None = None,
) -> Model:
    """The model a preset name, a Primus/Megatron YAML or a HuggingFace config.json (or its folder) describes.

    ignore: keys of an imported file to leave out knowingly; `Model.ignored` names them. vocab_size: rows of the
    embedding before padding, instead of what an imported file says. Raises InputError with every problem; `where` is
    the place that named the model.
    """
    path = find(FileKind.MODEL, text, beside=beside)
    if isinstance(path, str):
        raise InputError([Problem(where or "model", path)])
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    document = read(path)
    data = document.data
    if is_huggingface(data):
        from primus_search.models import huggingface  # every family of models: presets need none of them

        return _named(huggingface.from_document(document, ignore, vocab_size), document)
    if isinstance(data, dict) and megatron_yaml.recognises(data):
        return _named(megatron_yaml.from_document(document, path, ignore, vocab_size), document)
    if ignore:
        raise InputError(
            [Problem(where or "model", "--ignore is for imported files; a preset has no keys to leave out")]
        )
    return preset_from(document, path, vocab_size).model


def _named(model: Model, document: Document) -> Model:
    """The model, if its name may be written into files and onto terminals."""
    wrong = name_problem(model.name)
    if wrong:
        has_name = isinstance(document.data, dict) and "_name_or_path" in document.data
        raise InputError([document.problem(("_name_or_path",) if has_name else (), wrong)])
    return model


def is_huggingface(data: Any) -> bool:
    """Whether a document is a config.json; Megatron files may have a `model_type` too, but extend or count layers."""
    if not isinstance(data, dict):
        return False
    if any(key in data for key in WRITTEN_KEYS) and not any(key in data for key in megatron_yaml.PARENT_KEYS):
        return True
    if any(key in data for key in megatron_yaml.OWN_KEYS):
        return False
    return "model_type" in data or any(key in data for key in HUGGINGFACE_KEYS)
