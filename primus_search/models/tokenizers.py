"""Rows of the embedding that models of a tokenizer are published with, and the preset that a tokenizer comes with."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from primus_search.files.search_path import roots
from primus_search.files.source import read
from primus_search.models.presets import presets
from primus_search.values.model import Model


def models_of_tokenizers() -> dict[str, Model]:
    """The first preset that is published on the hub under a name, by the name in lower case."""
    return {name.lower(): one.model for one in reversed(presets().values()) for name in one.tokenizers}


def model_of_tokenizer(name: str) -> Model | None:
    """The preset that is published on the hub under a name; None where none is."""
    return models_of_tokenizers().get(name.lower())


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
