"""Models that torchtitan 0.3.0 builds: classes whose layers one of its own functions makes, from a syntax tree."""

from typing import Any

from primus_search.files.dotted_keys import nested
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_values import EVERY, CallRecord
from primus_search.models.torchtitan_arguments import model_of
from primus_search.values.model import Model

BUILDERS = "torchtitan_builders"


def built_model(made: CallRecord) -> Model | None:
    """The model of a class of torchtitan whose layers one of its own functions makes; None for another."""
    layers = made.fields.get("layers")
    table = key_table(BUILDERS).get(layers.last) if isinstance(layers, CallRecord) else None
    if table is None or not isinstance(layers, CallRecord):
        return None
    fields: dict[str, Any] = {
        **table.get("usual", {}),
        **table.get("fixed", {}),
        "vocab_size": made.fields["vocab_size"],
    }
    fields["enable_weight_tying"] = made.fields.get("enable_weight_tying", False)
    fields |= {path: layers.fields[key] for key, path in table["arguments"].items() if key in layers.fields}
    rope = layers.fields.get("rope")
    turned = rope.fields if isinstance(rope, CallRecord) else {}
    stretched = turned.get("scaling", "none") != "none"
    fields |= {p: turned[k] for k, p in table["rope"].items() if k in turned and (k == "theta" or stretched)}
    if not stretched:
        fields |= {"rope_scaling_args.scaling_factor": 1.0} if table["family"] == "llama3" else {}
        fields |= {"rope_factor": 1.0} if "rope_factor" in table["rope"] else {}
    edits = {**table.get("edits", {}), "attention.qk_norm": "qk_norm"}
    fields |= {path: value for key, path in edits.items() if (value := layers.at(key, ...)) is not ...}
    fields["qk_norm"] = fields.get("qk_norm") is True
    shared = layers.at("moe.shared_experts")
    if isinstance(shared, CallRecord):
        fields["moe_args.num_shared_experts"] = shared.fields["hidden_dim"] // fields["moe_inter_dim"]
    norms = next(
        (one for key, one in made.fields.items() if key.startswith(f"{EVERY}RMSNorm") or "RMSNorm" in key), None
    )
    if isinstance(norms, CallRecord) and "eps" in norms.fields:
        fields["norm_eps"] = norms.fields["eps"]
    return model_of(table["family"], nested(fields))
