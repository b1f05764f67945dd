"""Readers of HuggingFace model families, by `model_type`: rows of `spaces/keys/families.yaml`.

What no row can say is a function of the modules here. The layers of Megatron's hybrid models are read in
`megatron_hybrid`, by their own keys.
"""

from functools import partial

from primus_search.files.known_keys import key_table
from primus_search.models.families import expert_models, hybrid_models, plain
from primus_search.models.families.parts import Family, row_of, values_by_row

_TABLE = key_table("families")
_FUNCTIONS = {**vars(plain), **vars(expert_models), **vars(hybrid_models)}
FAMILIES: dict[str, Family] = {
    kind: partial(values_by_row, row=row_of(name), then=_FUNCTIONS.get(row.get("then", name)))
    for name, row in _TABLE["families"].items()
    for kind in row["types"]
}
"""Reader of each `model_type` of a text model."""

TEXT_OF: dict[str, str] = _TABLE["text_of"]
"""Family of the `text_config` of a model with other inputs, where that section names none."""
