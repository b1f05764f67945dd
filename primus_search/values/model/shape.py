"""The shape of a model: the model without its name and source, equal for models that cost the same."""

from dataclasses import replace
from functools import lru_cache

from primus_search.values.model import Model


@lru_cache(maxsize=256)
def shape(model: Model) -> Model:
    """A model without its name and source, and without the size of an MLP that no layer has."""
    has_mlp = any(model.ffn_hidden_of(kind) == model.ffn_hidden for kind in model.kinds)
    return replace(model, name="", source="", ffn_hidden=model.ffn_hidden if has_mlp else 0)
