"""Presets: named models, `spaces/models/*.yaml`.

A preset holds the sizes of a model under `huggingface`, as in its config.json, or under `megatron`, as its arguments,
with its title, its source and what its publisher says about its size.

Vocabulary: frameworks pad the embedding so that tensor parallelism divides it. All readers pad to a multiple of
`make_vocab_size_divisible_by` (128 where a file does not say, as Megatron does at TP 1). The further padding to 128*TP
at higher TP is at most 0.8 % of a 128k vocabulary at TP 8 and is left out, so that one model has one size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import is_recording
from primus_search.files.fields import Fields
from primus_search.files.search_path import FileKind, find, names, roots
from primus_search.files.source import Document, read
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Constants, Model

VOCAB_MULTIPLE = 128
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
    return _preset(path)


def presets() -> dict[str, Preset]:
    """Every preset by name."""
    return {name: _preset(path) for name, path in names(FileKind.MODEL).items()}


def _preset(path: Path) -> Preset:
    return preset_from(read(path), path) if is_recording() else _loaded(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _loaded(path: Path, changed: int) -> Preset:
    return preset_from(read(path), path)


MOST_PARAMS = 1e16
"""Beyond every model; counts of parameters and bytes stay within 64 bits."""


def vocabulary(size: int, multiple: int = VOCAB_MULTIPLE) -> dict[str, int]:
    """Rows of the embedding for a vocabulary, the next multiple, and how many of them pad it."""
    rows = -(-size // multiple) * multiple
    return {"vocab_size": rows, "vocab_padding": rows - size}


def build_model(fields: Fields, **values: Any) -> Model:
    """The model, or InputError with every problem that reading its fields met."""
    if fields.problems:
        raise InputError(fields.problems)
    try:
        model = Model(**values)
    except ValueError as error:
        raise InputError([Problem(fields.where, str(error))]) from None
    if model.total_params > MOST_PARAMS:
        raise InputError([Problem(fields.where, f"describes more than {MOST_PARAMS:.0e} parameters")])
    return model


def preset_from(document: Document, path: Path, vocab_size: int | None = None) -> Preset:
    """The preset a document spells; `path` names the model. vocab_size: instead of the preset's, before padding."""
    fields = Fields.of(document, document.data)
    model = _model_in(document, fields, path, vocab_size)
    title, published = fields.word("title", path.stem), _published(document, fields)
    tokenizers = tuple(map(str, fields.items("tokenizers")))
    if fields.problems:
        raise InputError(fields.problems)
    return Preset(title=title, model=model, published=published, tokenizers=tokenizers, path=path)


def _model_in(document: Document, fields: Fields, path: Path, vocab_size: int | None) -> Model:
    """The model whose sizes stand under `huggingface`, as in its config.json, or under `megatron`, as its arguments."""
    from primus_search.models import huggingface, megatron_yaml

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


def registered_model(framework: Framework, model: Model) -> str | None:
    """What a framework calls a model that has the very shape of one of its own; of several the one of its name."""
    bare, places = shape(model), names(FileKind.MODEL)
    presets_of = sorted(framework.models.items(), key=lambda pair: pair[0] != model.name)
    own = ((theirs, _preset(places[ours]).model) for ours, theirs in presets_of)
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


@lru_cache(maxsize=256)
def shape(model: Model) -> Model:
    """A model without its name and source, and without the size of an MLP that no layer has."""
    has_mlp = any(model.ffn_hidden_of(kind) == model.ffn_hidden for kind in model.kinds)
    return replace(model, name="", source="", ffn_hidden=model.ffn_hidden if has_mlp else 0)


def model_of_tokenizer(name: str) -> Model | None:
    """The preset that is published on the hub under a name; None where none is."""
    bare = name.lower()
    return next((p.model for p in presets().values() if bare in map(str.lower, p.tokenizers)), None)


TOKENIZERS = "spaces/keys/tokenizers.yaml"


def vocabulary_of(tokenizer: str, tokenizer_type: str = "", extra: int = 0) -> int | None:
    """Rows of the embedding, before padding, that models of this tokenizer are published with; None if unknown.

    A path counts by its last folder: `/models/Llama-3.1-8B` is any tokenizer of that name. Of a type that stands for
    several tokenizers, the one that has a published number of rows with `extra` rows more.
    """
    by_name, by_type = _listed_tokenizers()
    bare = tokenizer.strip().rstrip("/").lower()
    if bare in by_name:
        return by_name[bare]
    ends = {name.rsplit("/", 1)[-1]: size for name, size in by_name.items()}
    if bare.startswith((".", "/")) and bare.rsplit("/", 1)[-1] in ends:
        return ends[bare.rsplit("/", 1)[-1]]
    sizes = by_type.get(tokenizer_type, ()) if not bare else ()
    published = (size for size in sizes if size + extra in by_name.values())
    return next(published, sizes[0] if sizes else None)


def assumed_vocabulary(found: Mapping[str, Any]) -> int | None:
    """Rows of the embedding assumed of settings that name none, by kind of tokenizer; None where they name them."""
    tokenizer, kind = str(found.get("tokenizer_model") or ""), _kind_of(found)
    if found.get("vocab_size") or found.get("padded_vocab_size") or vocabulary_of(tokenizer, kind) is not None:
        return None
    for root in roots():
        if (root / TOKENIZERS).is_file():
            assumed: Mapping[str, int] = read(root / TOKENIZERS).data["assumed"]
            return assumed.get(kind, assumed["any"])
    return None


def _kind_of(found: Mapping[str, Any]) -> str:
    """The kind of tokenizer that settings name; Pai-Megatron-Patch's own wins."""
    return str(found.get("patch_tokenizer_type") or found.get("tokenizer_type") or "")


@lru_cache(maxsize=1)
def _listed_tokenizers() -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    by_name = {name.lower(): p.model.vocab_size for p in presets().values() for name in p.tokenizers}
    by_type: dict[str, tuple[int, ...]] = {}
    for root in reversed(roots()):
        path = root / TOKENIZERS
        if path.is_file():
            data = read(path).data
            by_name |= {name.lower(): one["vocab_size"] for one in data["tokenizers"] for name in one["names"]}
            by_type |= {name: tuple(one["vocab_sizes"]) for name, one in data["types"].items()}
    return by_name, by_type
