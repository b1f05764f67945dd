"""The shape of a model: the model without its name and source, equal for models that cost the same."""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from primus_search.values.model import Model


@cache
def shape(model: Model) -> Model:
    """A model without its name and source, and without the size of an MLP that no layer has."""
    has_mlp = any(model.ffn_hidden_of(kind) == model.ffn_hidden for kind in model.kinds)
    return replace(model, name="", source="", ffn_hidden=model.ffn_hidden if has_mlp else 0)


def with_changes(kept: Any, old: Any, new: Any) -> Any:
    """A model, or a part of one, with every field that differs between an old and a new one as the new one has it.

    Raises ValueError where what is kept does not fit what is new.
    """
    if not is_dataclass(kept) or not type(kept) is type(old) is type(new):
        return kept if old == new else new
    parts = ((one.name, [getattr(each, one.name) for each in (kept, old, new)]) for one in fields(kept))
    return replace(kept, **{name: with_changes(*three) for name, three in parts})  # type: ignore[type-var]
