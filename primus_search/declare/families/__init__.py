"""Readers of HuggingFace model families, by `model_type`. A new one: a function, a row of `spaces/keys/families.yaml`.

The layers of Megatron's hybrid models are read in `megatron_hybrid`, by their own keys.
"""

from primus_search.declare.families import expert_models, hybrid_models, plain
from primus_search.declare.families.parts import Family
from primus_search.declare.fields import key_table

_TABLE = key_table("families")
_FUNCTIONS = {**vars(plain), **vars(expert_models), **vars(hybrid_models)}
FAMILIES: dict[str, Family] = {kind: _FUNCTIONS[name] for name, kinds in _TABLE["readers"].items() for kind in kinds}
"""Reader of each `model_type` of a text model."""

TEXT_OF: dict[str, str] = _TABLE["text_of"]
"""Family of the `text_config` of a model with other inputs, where that section names none."""
