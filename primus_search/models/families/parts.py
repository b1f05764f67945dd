"""HuggingFace families by rows of `spaces/keys/families.yaml`, and what their functions share: windows, experts ..."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from primus_search.files.fields import REQUIRED, Fields
from primus_search.files.known_keys import key_table
from primus_search.models.build import vocabulary
from primus_search.values.model import Attention, LatentAttention, Mixer, MixtureOfExperts

Values = dict[str, Any]
"""Arguments of `model.Model` that a family gives."""

Family = Callable[[Fields], Values]
Then = Callable[[Fields, Values], Values]
"""What no row says of a family: the values of its row with those that change."""


def row_of(name: str) -> dict[str, Any]:
    """A row of `families` in `spaces/keys/families.yaml`, joined with the rows that it is like."""
    row: dict[str, Any] = key_table("families")["families"][name]
    if "like" not in row:
        return row
    found = dict(row_of(row["like"]))
    for key, value in row.items():
        if key in found and isinstance(value, dict):
            found[key] = {**found[key], **value}
        else:
            found[key] = [*found.get(key, ()), *value] if key == "unused" else value
    return found


def values_by_row(fields: Fields, *, row: Mapping[str, Any], then: "Then | None") -> Values:
    """What a configuration says by a row of `families`, and by the function for what no row says."""
    values = decoder(fields, row)
    num_layers = values["num_layers"]
    values |= _all_given(fields, row.get("values", {}))
    for spec in row.get("unused", ()):
        given(fields, spec) if isinstance(spec, list) else fields.anything(spec)
    for key, what in row.get("refuse", {}).items():
        if fields.switch(key, False):
            fields.problem(key, what)
    if row.get("latent"):
        latent = latent_sizes(fields)
        # transformers' own V2/V3 classes report `head_dim` as the rotary part only; MLA's dims say it all.
        values |= {"latent": latent, "head_dim": latent.qk_nope_head_dim, "num_kv_heads": values["num_heads"]}
    if "windows" in row:
        values["windows"] = _windows_by_row(fields, num_layers, row["windows"])
    if "experts" in row:
        values |= _experts_by_row(fields, values, row["experts"])
    changes = _all_given(fields, row.get("attention", {}))
    if row.get("mlp_bias") and fields.switch("mlp_bias", False):
        if not changes.get("has_qkv_bias"):
            fields.problem("mlp_bias", "biases of the MLP without those of attention are not modelled")
        values["has_linear_bias"] = True
    switched = {name for name, value in changes.items() if value}
    if switched and not (values.get("has_linear_bias") and switched <= {"has_qkv_bias", "has_output_bias"}):
        values = uniform(values, **changes)
    return then(fields, values) if then else values


def _windows_by_row(fields: Fields, num_layers: int, row: Any) -> tuple[int, ...]:
    if isinstance(row, str) and row != "late":
        if row == "stated" and not fields.items("layer_types"):
            fields.problem("layer_types", "missing key layer_types")
        return windows(fields, num_layers, every=row == "all")
    if isinstance(row, dict):
        found = windows(fields, num_layers, every=False)
        every, window = (
            given(fields, row["global_every"]),
            fields.integer("sliding_window", row.get("window", REQUIRED)),
        )
        return found or tuple(0 if (layer + 1) % every == 0 else window for layer in range(num_layers))
    is_used, first = fields.switch("use_sliding_window", False), fields.integer("max_window_layers", 28, least=0)
    window = fields.integer("sliding_window", 0, least=0)
    if fields.items("layer_types"):
        return windows(fields, num_layers)
    return tuple(window if layer >= first else 0 for layer in range(num_layers)) if is_used else ()


def _experts_by_row(fields: Fields, values: Values, row: Mapping[str, Any]) -> Values:
    more = {"expert_ffn_hidden": values["ffn_hidden"]} if row.get("of_mlp") else {}
    found: Values = {"moe": experts(fields, row["sizes"], **more, **(groups(fields) if row.get("groups") else {}))}
    layers, num_layers = row.get("layers", {}), values["num_layers"]
    if "first" in layers:
        found["moe_layers"] = sparse_layers(fields, num_layers, layers["first"])
    elif "dense" in layers:
        dense = given(fields, layers["dense"], least=0)
        found["moe_layers"] = tuple(layer >= dense for layer in range(num_layers))
    return found


def given(fields: Fields, spec: Any, *, least: int = 1) -> Any:
    """What a value of `spaces/keys/families.yaml` stands for: a key's, by the type of its default, or itself."""
    if not isinstance(spec, list):
        return spec
    key, *default = spec[0], *(given(fields, one) for one in spec[1:])
    if isinstance(key, list):
        return any(fields.switch(one, default[0]) for one in key)
    if len(default) > 1:
        return default[1] if fields.switch(key, default[0]) else default[2]
    kind = type(default[0]) if default else int
    if kind is int:
        return fields.integer(key, *default, least=0 if default == [0] else least)
    read: Any = {bool: fields.switch, float: fields.number, str: fields.word}[kind]
    return read(key, default[0])


def sizes(fields: Fields, row: str) -> Values:
    """Fields of a part of a layer by a row of `sizes` in `spaces/keys/families.yaml`."""
    return _all_given(fields, key_table("families")["sizes"][row])


def _all_given(fields: Fields, row: Mapping[str, Any]) -> Values:
    return {name: given(fields, spec, least=int(name not in MAY_BE_NONE)) for name, spec in row.items()}


MAY_BE_NONE = ("shared_count", "num_mtp_layers")
"""Counts that may be 0 where a family has some by default."""


def experts(fields: Fields, row: str, **more: Any) -> MixtureOfExperts:
    """Experts by a row of `sizes`, and further fields of theirs."""
    values = sizes(fields, row) | more
    if "shared_count" in values:
        size = values.pop("shared_size", values["expert_ffn_hidden"])
        values["shared_ffn_hidden"] = values.pop("shared_count") * size
    return MixtureOfExperts(**values)


def decoder(fields: Fields, row: Mapping[str, Any]) -> Values:
    """What Llama-like configurations have in common, under the names of a row."""

    def size(key: str, *default: int) -> int:
        name = row.get("names", {}).get(key, key)
        found: int = given(fields, name if isinstance(name, list) else [name, *default])
        return found

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    is_plain, usual = row.get("equal_heads", False), max(hidden // heads, 1)
    return {
        "num_layers": size("num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": size("intermediate_size", *([row["ffn_of_hidden"] * hidden] if "ffn_of_hidden" in row else [])),
        "num_heads": heads,
        "num_kv_heads": heads if is_plain else fields.integer("num_key_value_heads", heads),
        "head_dim": usual if is_plain else fields.integer("head_dim", usual),
        **vocabulary(fields.integer("vocab_size")),
        "is_tied": fields.switch("tie_word_embeddings", row.get("tied", False)),
    }


def attention(values: Values, **changes: Any) -> Attention:
    """The attention of a decoder's sizes; changes: fields of `Attention`."""
    sizes = {key: values[key] for key in ("num_heads", "num_kv_heads", "head_dim")}
    return Attention(**sizes | changes)


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


def repeated(mixers: Sequence[Mixer | None]) -> tuple[Mixer | None, ...]:
    """The mixers, equal ones as one object, so that layers of a kind compare fast."""
    known: dict[Mixer | None, Mixer | None] = {}
    return tuple(known.setdefault(mixer, mixer) for mixer in mixers)
