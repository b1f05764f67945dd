"""Presets: named models, `spaces/models/*.yaml`.

A preset holds the sizes of a model under `huggingface`, as in its config.json, or under `megatron`, as its arguments,
with its title, its source and what its publisher says about its size. Who reads the sizes (`preset_sizes`) may stand on
a preset itself, an experiment on a named model: it is a service (`base.lazy.provided`).
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import is_recording
from primus_search.base.lazy import provided
from primus_search.files.fields import Fields
from primus_search.files.search_path import FileKind, find, names
from primus_search.files.source import Document, read
from primus_search.values.model import Model

PRESET_KEYS = ("title", "source", "published", "tokenizers", "huggingface", "megatron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the publisher says about a model's size, in parameters; 0 active where it says nothing.

    Publishers differ in whether the token embedding counts as active (Mixtral and Qwen count it, DeepSeek and GPT-OSS
    do not); `active_counts_embedding` says which convention the figure follows.
    """

    total_params: float
    active_params: float
    active_counts_embedding: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named model with its title, what is published about it, and the tokenizers that come with it."""

    title: str
    model: Model
    published: Published | None
    tokenizers: tuple[str, ...]
    path: Path

    @property
    def active_params(self) -> int:
        """Active parameters in the publisher's own convention."""
        without = self.published is not None and not self.published.active_counts_embedding
        return self.model.active_params - (self.model.embedding_params if without else 0)


def load_preset(name: str) -> Preset:
    """A preset by name, with what is published about it."""
    path = find(FileKind.MODEL, name)
    if isinstance(path, str):
        raise InputError([Problem("model", path)])
    return preset_at(path)


def presets() -> dict[str, Preset]:
    """Every preset by name."""
    return {name: preset_at(path) for name, path in names(FileKind.MODEL).items()}


def preset_at(path: Path) -> Preset:
    return preset_from(read(path), path) if is_recording() else _loaded(str(path), path.stat().st_mtime_ns)


@cache
def _loaded(path: str, changed: int) -> Preset:
    return preset_from(read(Path(path)), Path(path))


def preset_from(document: Document, path: Path, vocab_size: int | None = None) -> Preset:
    """The preset a document spells; `path` names the model. vocab_size: instead of the preset's, before padding."""
    fields = Fields.of(document, document.data)
    model: Model = provided("model_of_preset")(document, fields, path, vocab_size)
    title, published = fields.word("title", path.stem), _published(document, fields)
    tokenizers = tuple(map(str, fields.items("tokenizers")))
    if fields.problems:
        raise InputError(fields.problems)
    return Preset(title=title, model=model, published=published, tokenizers=tokenizers, path=path)


def _published(document: Document, fields: Fields) -> Published | None:
    data = fields.anything("published")
    if data is None:
        return None
    section = Fields.of(document, data, ("published",), into=fields)
    section.refuse_unknown(("total_params_B", "active_params_B", "active_counts_embedding", "source"))
    return Published(
        total_params=section.number("total_params_B") * 1e9,
        active_params=section.number("active_params_B", 0.0) * 1e9,
        active_counts_embedding=section.switch("active_counts_embedding", True),
        source=section.word("source"),
    )
