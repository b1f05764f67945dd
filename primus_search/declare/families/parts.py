"""What readers of several HuggingFace families share: a decoder's sizes, windows, layer types, experts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from primus_search.declare.fields import Fields, key_table
from primus_search.declare.presets import vocabulary
from primus_search.values.model import Attention, LatentAttention, Mixer, MixtureOfExperts

Values = dict[str, Any]
"""Arguments of `model.Model` that a family gives."""

Family = Callable[[Fields], Values]


def sizes(fields: Fields, row: str) -> Values:
    """Fields of a part of a layer by a row of `sizes` in `spaces/keys/families.yaml`."""
    return {name: _size(fields, name, given) for name, given in key_table("families")["sizes"][row].items()}


def _size(fields: Fields, name: str, given: Any) -> Any:
    if isinstance(given, bool):
        return given
    key, *default = given if isinstance(given, list) else [given]
    if default and isinstance(default[0], bool):
        return fields.switch(key, default[0])
    return fields.integer(key, *default, least=0 if default == [0] or name == "shared_count" else 1)


def experts(fields: Fields, row: str, **more: Any) -> MixtureOfExperts:
    """Experts by a row of `sizes`, and further fields of theirs."""
    values = sizes(fields, row) | more
    if "shared_count" in values:
        size = values.pop("shared_size", values["expert_ffn_hidden"])
        values["shared_ffn_hidden"] = values.pop("shared_count") * size
    return MixtureOfExperts(**values)


def decoder(fields: Fields, *, tied: bool = False, ffn_key: str = "intermediate_size") -> Values:
    """What Llama-like configurations have in common."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    vocab_size = fields.integer("vocab_size")
    return {
        "num_layers": fields.integer("num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": fields.integer(ffn_key),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": fields.integer("head_dim", max(hidden // heads, 1)),
        **vocabulary(vocab_size),
        "is_tied": fields.switch("tie_word_embeddings", tied),
    }


def attention(values: Values, **changes: Any) -> Attention:
    """The attention of a decoder's sizes; changes: fields of `Attention`."""
    sizes = {key: values[key] for key in ("num_heads", "num_kv_heads", "head_dim")}
    return Attention(**sizes | changes)


def with_biases(fields: Fields, values: Values, *, output: bool, mlp_key: str = "") -> Values:
    """The values with the biases that `attention_bias` (and a key of the MLP's) switch on.

    output: whether attention_bias puts one on the output projection too.
    """
    has_attention = fields.switch("attention_bias", False)
    has_mlp = fields.switch(mlp_key, False) if mlp_key else False
    if has_mlp and not (has_attention and output):
        fields.problem(mlp_key, "biases of the MLP without those of attention are not modelled")
    if has_mlp:
        return values | {"has_linear_bias": True}
    if not has_attention:
        return values
    return biased(values) if output else values | {"has_qkv_bias": True}


def refuse_biases(fields: Fields, key: str) -> None:
    """A problem where a file switches biases on that no part of this family's model declares."""
    if fields.switch(key, False):
        fields.problem(key, "biases of the MLP are not modelled for this family")


def biased(values: Values, **changes: Any) -> Values:
    """The values with biases of queries, keys, values and output in every layer."""
    return uniform(values, has_qkv_bias=True, has_output_bias=True, **changes)


def uniform(values: Values, **changes: Any) -> Values:
    """The values with attention of the same changed kind in every layer, windows kept."""
    windows = values.get("windows") or (0,) * values["num_layers"]
    norm = "head" if values.get("has_qk_norm") else "none"
    kinds = {w: attention(values, **{"window": w, "qk_norm": norm} | changes) for w in dict.fromkeys(windows)}
    return values | {"mixers": tuple(kinds[window] for window in windows)}


def windows(fields: Fields, num_layers: int, *, every: bool = True) -> tuple[int, ...]:
    """Attention window per layer from `sliding_window` and `layer_types`; `every`: without types, all layers slide."""
    window = fields.integer("sliding_window", 0, least=0)
    is_used = fields.switch("use_sliding_window", True)
    fields.anything("max_window_layers")
    if not is_used:
        fields.anything("layer_types")
        return ()
    if fields.items("layer_types"):
        known = {"sliding_attention": window, "full_attention": 0}
        return tuple(known[kind] for kind in layer_types(fields, num_layers, tuple(known)))
    return (window,) * num_layers if every else ()


def layer_types(fields: Fields, num_layers: int, known: Sequence[str], key: str = "layer_types") -> tuple[str, ...]:
    """The words of a list with one per layer; the first known word everywhere where the list is at fault."""
    types = [str(one) for one in fields.items(key)]
    for i, kind in enumerate(types):
        if kind not in known:
            fields.problem(key, f"entry {i} is {kind!r} - allowed: {' or '.join(known)}")
            return (known[0],) * num_layers
    if len(types) != num_layers:
        fields.problem(key, f"has {len(types)} entries; the model has {num_layers} layers")
        return (known[0],) * num_layers
    return tuple(types)


def mixed(fields: Fields, kinds: Mapping[str, Mixer], usual: Sequence[str]) -> tuple[Mixer, ...]:
    """The mixer of every layer by the words of `layer_types`, by the usual ones where the file has none."""
    words = layer_types(fields, len(usual), tuple(kinds)) if fields.items("layer_types") else usual
    return tuple(kinds[word] for word in words)


def latent_sizes(fields: Fields) -> LatentAttention:
    """Sizes of latent attention."""
    found = LatentAttention(**sizes(fields, "latent"))
    if fields.integer("qk_head_dim", found.qk_head_dim) != found.qk_head_dim:
        fields.problem("qk_head_dim", f"is not qk_nope_head_dim + qk_rope_head_dim ({found.qk_head_dim})")
    return found


def routed(fields: Fields, num_layers: int, **more: Any) -> Values:
    """DeepSeek's experts, and which layers have them; more: further fields of the experts."""
    for key in ("topk_method", "scoring_func"):
        fields.word(key, "")
    values = {"moe": experts(fields, "routed", **groups(fields) | more)}
    mtp = fields.integer("num_nextn_predict_layers", 0, least=0)
    return values | {"moe_layers": sparse_layers(fields, num_layers), "num_mtp_layers": mtp}


def groups(fields: Fields) -> dict[str, Any]:
    """Group-limited routing: how many groups of experts, and how many of them a token may use."""
    num_groups, top = fields.integer("n_group", 1, least=0), fields.integer("topk_group", 1, least=0)
    return {"num_groups": num_groups, "top_groups": top} if num_groups > 1 else {}


def sparse_layers(fields: Fields, num_layers: int, first: int = 0) -> tuple[bool, ...]:
    """Layers with experts: `mlp_layer_types`, or all from `first_k_dense_replace` on, every `moe_layer_freq`-th."""
    dense = fields.integer("first_k_dense_replace", first, least=0)
    given = fields.anything("moe_layer_freq")
    if fields.items("mlp_layer_types"):
        types = layer_types(fields, num_layers, ("dense", "sparse"), "mlp_layer_types")
        return tuple(kind == "sparse" for kind in types)
    if isinstance(given, list):
        if len(given) != num_layers:
            fields.problem("moe_layer_freq", f"has {len(given)} entries; the model has {num_layers} layers")
            return (True,) * num_layers
        return tuple(bool(flag) for flag in given)
    frequency = fields.integer("moe_layer_freq", 1)
    return tuple(i >= dense and i % frequency == 0 for i in range(num_layers))


def all_experts(fields: Fields, values: Values, row: str) -> Values:
    """Every feed-forward layer is one of experts of its size."""
    return values | {"moe": experts(fields, row, expert_ffn_hidden=values["ffn_hidden"])}


def repeated(mixers: Sequence[Mixer | None]) -> tuple[Mixer | None, ...]:
    """The mixers, equal ones as one object, so that layers of a kind compare fast."""
    known: dict[Mixer | None, Mixer | None] = {}
    return tuple(known.setdefault(mixer, mixer) for mixer in mixers)
