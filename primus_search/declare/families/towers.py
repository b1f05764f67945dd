"""Vision towers beside a language model: their parameters, where the family is known, else their name alone."""

from collections.abc import Callable

from primus_search.declare.families.parts import Values
from primus_search.declare.fields import Fields
from primus_search.model import Tower

SECTIONS = ("vision_config", "audio_config", "video_config", "speech_config")


def towers(data: Fields, family: str, values: Values) -> tuple[Tower, ...]:
    """The towers a configuration has beside its text model; 0 parameters where they are not counted."""
    found = []
    for key in SECTIONS:
        if not data.has(key):
            continue
        section, name = data.section(key), key.removesuffix("_config")
        count = COUNTS.get(family) if key == "vision_config" else None
        params = count(section, data, values) if count else 0
        layers = next((section.integer(k) for k in ("depth", "num_hidden_layers", "vt_num_hidden_layers")
                       if section.has(k)), 0)  # fmt: skip
        hidden = next((section.integer(k) for k in ("hidden_size", "vt_hidden_size") if section.has(k)), 0)
        found.append(Tower(name=name, params=params, num_layers=layers, hidden=hidden))
    return tuple(found)


def _encoder_layer(hidden: int, inner: int, *, norm: int = 2) -> int:
    """One encoder layer with biases: queries, keys, values, output, two-matrix MLP, two norms of `norm` H."""
    return 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 2 * norm * hidden


def _qwen(v: Fields, top: Fields, values: Values) -> int:
    """Qwen3-VL and Qwen3.5: learned positions, a merger of spatial blocks, and one for each deep-stacked layer."""
    hidden, out = v.integer("hidden_size"), v.integer("out_hidden_size", int(values["hidden"]))
    patch = v.integer("in_channels", 3) * v.integer("temporal_patch_size", 2) * v.integer("patch_size", 16) ** 2
    merged = hidden * v.integer("spatial_merge_size", 2) ** 2
    projector = merged * merged + merged + merged * out + out
    count = patch * hidden + hidden + v.integer("num_position_embeddings", 2304) * hidden
    count += v.integer("depth") * _encoder_layer(hidden, v.integer("intermediate_size"))
    return count + projector + 2 * hidden + len(v.items("deepstack_visual_indexes")) * (projector + 2 * merged)


def _gemma4(v: Fields, top: Fields, values: Values) -> int:
    """Gemma 4: rotary and tabled positions in two directions, gated MLP, four norms, norms of queries and keys."""
    hidden, inner = v.integer("hidden_size"), v.integer("intermediate_size")
    heads, kv_heads = v.integer("num_attention_heads"), v.integer("num_key_value_heads")
    head_dim = v.integer("head_dim")
    attention = 2 * hidden * head_dim * (heads + kv_heads) + 2 * head_dim
    layer = attention + 3 * hidden * inner + 4 * hidden
    patch = 3 * v.integer("patch_size", 16) ** 2
    positions = 2 * v.integer("position_embedding_size", 10240) * hidden
    return patch * hidden + positions + v.integer("num_hidden_layers") * layer + hidden * int(values["hidden"])


def _kimi(v: Fields, top: Fields, values: Values) -> int:
    """Kimi-K2.5 (MoonViT): tabled positions, a final norm, a projector over merged patches."""
    hidden, inner = v.integer("vt_hidden_size"), v.integer("vt_intermediate_size")
    rows, columns = v.integer("init_pos_emb_height", 64), v.integer("init_pos_emb_width", 64)
    kernel = v.whole_numbers("merge_kernel_size")
    kernel = kernel if len(kernel) == 2 else [2, 2]
    merged = hidden * kernel[0] * kernel[1]
    patch = 3 * v.integer("patch_size", 14) ** 2 * hidden + hidden + rows * columns * hidden
    projector = 2 * hidden + merged * merged + merged + (merged + 1) * int(values["hidden"])
    return patch + v.integer("vt_num_hidden_layers") * _encoder_layer(hidden, inner) + 2 * hidden + projector


def _minimax(v: Fields, top: Fields, values: Values) -> int:
    """MiniMax-M3: a norm before the encoder, a projector, and one more over merged patches."""
    hidden, inner, text = v.integer("hidden_size"), v.integer("intermediate_size"), int(values["hidden"])
    merge = v.section("img_token_compression_config")
    time, space = merge.integer("temporal_patch_size", 2), merge.integer("spatial_merge_size", 2)
    patch = v.integer("num_channels", 3) * time * v.integer("patch_size", 14) ** 2 * hidden + 2 * hidden
    wide = top.integer("projector_hidden_size", text)
    projector = hidden * wide + wide + wide * text + text
    merger = text * space * space * text + text + text * text + text
    return patch + v.integer("num_hidden_layers") * _encoder_layer(hidden, inner) + projector + merger


COUNTS: dict[str, Callable[[Fields, Fields, Values], int]] = {
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "gemma4": _gemma4,
    "kimi_k25": _kimi,
    "minimax_m3_vl": _minimax,
}
"""Parameters of a family's vision tower, projector included."""
