"""Constants of a model (`values.model.Constants`) from its file, by the tables of `spaces/keys/constants.yaml`.

They are read leniently: what is no number is left out, for no size depends on it.
"""

import math
from collections.abc import Mapping
from typing import Any, get_type_hints

from primus_search.files.fields import Fields
from primus_search.files.known_keys import key_table, known_keys
from primus_search.values.model import Constants, Model

ROPE = ("rope_parameters", "rope_scaling")
"""Mappings of config.json that stretch the rotary frequencies: since transformers 5 with the base, before without."""
NOT_SCALING = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "type")
PLAIN = ("default", "", "mrope", "none")
"""Types of scaling that are none."""


def of_huggingface(fields: Fields, family: str) -> Constants:
    """The constants of a config.json, and of its family's class where it leaves one out."""
    table = key_table("constants")
    given = {key: located.value for key, located in fields.entries.items()}
    rope, more = _rope(given)
    plain = {key: value for key, value in rope.items() if not isinstance(value, Mapping)}
    found = _listed(given, table["huggingface"]) | _listed(plain, table["huggingface"])
    has_positions = "rotary_base" in table["classes"].get(family, {})
    if family in table["classes"] and not has_positions:
        found.pop("rotary_base", None)  # its layers rotate nothing, whatever the file says
    values = table["classes"].get(family, {}) | found
    if "activation" in values:
        values["activation"] = table["activations"].get(values["activation"], values["activation"])
    others = [
        (key, given[key])
        for key, neutral in table["others"].items()
        if given.get(key) not in (None, *(neutral if isinstance(neutral, list) else [neutral]))
    ]
    if isinstance(kinds := given.get("attn_config"), Mapping) and kinds.get("alibi"):
        others.append(("positions", "alibi"))
    others += table["notes"].get(family, {}).items()
    names_scaling = any(isinstance(given.get(key), Mapping) for key in ROPE)
    scaling = plain if names_scaling else table["scaling"].get(family, {}) if "rope_theta" not in given else {}
    turned = _scaling(scaling) if has_positions or names_scaling else ()
    return Constants(**values, rotary_scaling=turned, others=(*others, *more))


def _rope(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """What config.json says of rotation, of several kinds of layers those of full attention, and the other kinds."""
    rope: dict[str, Any] = {}
    for key in ROPE:
        rope |= given[key] if isinstance(given.get(key), Mapping) else {}
    kinds = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    if not kinds:
        return rope, []
    full = next((kind for kind in ("full_attention", "main") if kind in kinds), next(iter(kinds)))
    return dict(kinds[full]), [(f"rotation of {kind}", str(dict(v))) for kind, v in kinds.items() if v != kinds[full]]


def _scaling(rope: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    kind = str(rope.get("rope_type", rope.get("type", "default")) or "default")
    if kind in PLAIN:
        return ()
    left = {key: value for key, value in rope.items() if key not in NOT_SCALING and key != "rope_type"}
    return (("rope_type", kind), *sorted(left.items()))


def of_megatron(fields: Fields) -> Constants:
    """The constants of Megatron's arguments, their defaults where a file has none."""
    given = {key: located.value for key, located in fields.entries.items()}
    values = {"norm_epsilon": 1e-5, "rotary_base": 10000.0} | _listed(given, key_table("constants")["megatron"])
    values["activation"] = _activation(given)
    if given.get("num_experts") or given.get("num_moe_experts"):
        values.setdefault("router_score", "softmax")
        values["router_normalises"] = values["router_score"] != "softmax" or not given.get("moe_router_pre_softmax")
    if given.get("position_embedding_type") in ("none", "learned_absolute"):
        del values["rotary_base"]
    return Constants(**values, rotary_scaling=_megatron_scaling(given), others=())


def not_priced(model: Model) -> list[str]:
    """Notes on what a model has that moves time or memory and is not priced, each with its effect."""
    effects, own = known_keys("huggingface").effects, model.constants
    given = (*own.others, ("attention_dropout", own.attention_dropout), ("hidden_dropout", own.hidden_dropout))
    met = ((key, value) for key, value in given if key in effects and value)
    return [f"{key} of {model.name}: {value} (not priced: {effects[key]})" for key, value in met]


CONSTANT_KEYS = frozenset({
    "norm_epsilon", "layernorm_epsilon", "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor",
    "rotary_scaling_factor", "rope_type", "mscale", "mscale_all_dim", "beta_fast", "beta_slow",
    "original_max_position_embeddings", "moe_router_score_function", "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor", "squared_relu", "openai_gelu",
})  # fmt: skip
"""Megatron's arguments that `of_megatron` reads."""
LLAMA3 = {"high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
"""What Megatron's --use-rope-scaling takes beside its factor: core/models/common/embeddings/rotary_pos_embedding.py."""
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
"""Defaults of Megatron's MLATransformerConfig, which no argument changes."""


def _megatron_scaling(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    if given.get("use_rope_scaling"):
        return (
            ("rope_type", "llama3"),
            *sorted({"factor": float(given.get("rope_scaling_factor", 8.0)), **LLAMA3}.items()),
        )
    factor = float(given.get("rotary_scaling_factor") or 1.0)
    is_factor_alone = given.get("model_type") in key_table("constants").get("factor_alone", ())
    is_latent = given.get("multi_latent_attention") and given.get("rope_type") != "rope"
    if factor == 1.0 or not (is_latent or is_factor_alone):
        return ()
    more = {key: given[key] for key in YARN if given.get(key) is not None}
    scales = {"mscale": float(given.get("mscale", 1.0)), "mscale_all_dim": float(given.get("mscale_all_dim", 0.0))}
    found = {"factor": factor, **YARN, **more, **({} if is_factor_alone else scales)}
    return (("rope_type", "yarn"), *sorted(found.items()))


def _activation(given: Mapping[str, Any]) -> str:
    words = {"swiglu": "silu", "quick_geglu": "quick_gelu", "squared_relu": "relu2", "openai_gelu": "gelu_tanh"}
    return next((word for key, word in words.items() if given.get(key, key == "swiglu" and None)), "gelu")


def _listed(given: Mapping[str, Any], table: Mapping[str, list[str]]) -> dict[str, Any]:
    """Of each constant the first key that is given and that its type can hold."""
    hints, found = get_type_hints(Constants), dict[str, Any]()
    for name, keys in table.items():
        held = [value for key in keys if (value := _held(given.get(key), hints[name])) is not None]
        if held:
            found[name] = held[0]
    return found


def _held(value: Any, hint: Any) -> Any:
    """A value as its type holds it, None where it cannot; a text may be a number (`1e-06`, a text to YAML 1.1)."""
    if hint not in (float, float | None):
        return value if isinstance(value, bool if hint == bool | None else str) else None
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
