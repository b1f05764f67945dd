"""Gemma 2, 3 and 4: windows in most layers, four norms a layer, tied embeddings; Gemma 4's experts and shared keys."""

from collections.abc import Sequence

from primus_search.declare.families.parts import (
    Values,
    attention,
    decoder,
    experts,
    layer_types,
    repeated,
    uniform,
    windows,
)
from primus_search.declare.fields import Fields
from primus_search.values.model import Attention, DenseMlp, FeedForward

SLIDING, FULL = "sliding_attention", "full_attention"


def gemma2(fields: Fields) -> Values:
    values = decoder(fields, tied=True)
    fields.anything("sliding_window_size")
    found = windows(fields, values["num_layers"], every=False)
    window = fields.integer("sliding_window", 4096)
    values["windows"] = found or tuple(window if i % 2 == 0 else 0 for i in range(values["num_layers"]))
    values["num_norms"] = 4
    return uniform(values, has_qkv_bias=True, has_output_bias=True) if _has_bias(fields) else values


def gemma3(fields: Fields) -> Values:
    values = decoder(fields, tied=True)
    if not fields.has("head_dim"):
        values["head_dim"] = 256  # Gemma3TextConfig's own default, not hidden / heads
    found = windows(fields, values["num_layers"], every=False)
    window = fields.integer("sliding_window", 4096)
    pattern = "sliding_window_pattern"
    period = fields.integer(pattern, fields.integer(f"_{pattern}", 6))
    values["windows"] = found or tuple(0 if (i + 1) % period == 0 else window for i in range(values["num_layers"]))
    values |= {"num_norms": 4, "has_qk_norm": True}
    return uniform(values, has_qkv_bias=True, has_output_bias=True) if _has_bias(fields) else values


def _has_bias(fields: Fields) -> bool:
    return fields.switch("attention_bias", False)


def gemma4(fields: Fields) -> Values:
    """Gemma 4: global layers with heads of another size whose keys serve as values, experts beside a dense MLP."""
    values = decoder(fields, tied=True)
    num_layers, has_bias = values["num_layers"], _has_bias(fields)
    window = fields.integer("sliding_window", 512)
    if fields.items("layer_types"):
        types = [*layer_types(fields, num_layers, (SLIDING, FULL))[:-1], FULL]
    else:
        types = [*(SLIDING if (i + 1) % 6 else FULL for i in range(num_layers - 1)), FULL]
    shared = fields.integer("num_kv_shared_layers", 0, least=0)
    mixers = [_mixer(fields, values, t, window, has_bias, i >= num_layers - shared) for i, t in enumerate(types)]
    _check_layers(fields, mixers)
    if fields.integer("vocab_size_per_layer_input", values["vocab_size"]) != values["vocab_size"]:
        fields.problem("vocab_size_per_layer_input", "another vocabulary of per-layer embeddings is not modelled")
    values["per_layer_embedding"] = fields.integer("hidden_size_per_layer_input", 256, least=0)
    values |= {"mixers": repeated(mixers), "windows": tuple(m.window for m in mixers), "num_norms": 4}
    is_wide = fields.switch("use_double_wide_mlp", False)
    wide = DenseMlp(ffn_hidden=2 * values["ffn_hidden"])
    ffns: tuple[FeedForward | None, ...] = tuple(wide if is_wide and m.reuses_kv else None for m in mixers)
    return values | {"feed_forwards": ffns, "has_qk_norm": True} | _experts(fields, values)


def _check_layers(fields: Fields, mixers: Sequence[Attention]) -> None:
    """`per_layer_config` repeats what the layers' types say; what else it says is not modelled."""
    key = "per_layer_config"
    layers = fields.section(key)
    for name in layers.entries:
        layer = layers.section(name)
        is_known = name.isdecimal() and int(name) < len(mixers)
        head_dim = mixers[int(name)].head_dim if is_known else 0
        if not is_known or layer.integer("head_dim", head_dim) != head_dim:
            fields.problem(key, f"entry {name!r} differs from what layer_types says and is not modelled")


def _mixer(fields: Fields, values: Values, kind: str, window: int, has_bias: bool, reuses_kv: bool) -> Attention:
    is_global = kind == FULL
    has_shared = is_global and fields.switch("attention_k_eq_v", False)
    kv_heads = fields.integer("num_global_key_value_heads", values["num_kv_heads"])
    changes = {"head_dim": fields.integer("global_head_dim", 512)} if is_global else {"window": window}
    if has_shared:
        changes["num_kv_heads"] = kv_heads
    return attention(
        values,
        **changes,
        qk_norm="head",
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_shared_kv=has_shared,
        reuses_kv=reuses_kv,
    )


def _experts(fields: Fields, values: Values) -> Values:
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size", "use_bidirectional_attention"):
        fields.anything(key)
    if not fields.switch("enable_moe_block", False):
        return {}
    return {"moe": experts(fields, "gemma4", parallel_ffn_hidden=values["ffn_hidden"]), "num_norms": 7}
