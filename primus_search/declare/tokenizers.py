"""Vocabulary of a tokenizer by its name: `spaces/keys/tokenizers.yaml`, and the tokenizers that presets list."""

from functools import lru_cache

from primus_search.declare.presets import presets
from primus_search.declare.search_path import roots
from primus_search.declare.source import read

FILE = "spaces/keys/tokenizers.yaml"


def vocabulary_of(tokenizer: str, tokenizer_type: str = "") -> int | None:
    """Rows of the embedding, before padding, that models of this tokenizer are published with; None if unknown.

    A path counts by its last folder: `/models/Llama-3.1-8B` is any tokenizer of that name.
    """
    by_name, by_type = _listed()
    bare = tokenizer.strip().rstrip("/").lower()
    if bare in by_name:
        return by_name[bare]
    ends = {name.rsplit("/", 1)[-1]: size for name, size in by_name.items()}
    if bare.startswith((".", "/")) and bare.rsplit("/", 1)[-1] in ends:
        return ends[bare.rsplit("/", 1)[-1]]
    return by_type.get(tokenizer_type) if not bare else None


@lru_cache(maxsize=1)
def _listed() -> tuple[dict[str, int], dict[str, int]]:
    by_name = {name.lower(): p.model.vocab_size for p in presets().values() for name in p.tokenizers}
    by_type: dict[str, int] = {}
    for root in reversed(roots()):
        path = root / FILE
        if path.is_file():
            data = read(path).data
            by_name |= {name.lower(): one["vocab_size"] for one in data["tokenizers"] for name in one["names"]}
            by_type |= {name: one["vocab_size"] for name, one in data["types"].items()}
    return by_name, by_type
