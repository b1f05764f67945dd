"""Vision towers beside a language model: sizes and parameters where the family is known, else their name alone."""

from collections.abc import Callable, Sequence
from typing import Any

from primus_search.files.fields import REQUIRED, Fields
from primus_search.models.families.parts import Values
from primus_search.values.model import Tower

SECTIONS = ("vision_config", "audio_config", "video_config", "speech_config")


def towers(data: Fields, family: str, values: Values) -> tuple[Tower, ...]:
    """The towers a configuration has beside its text model; without parameters where they are not counted."""
    found = []
    for key in SECTIONS:
        if not data.has(key):
            continue
        section, name = data.section(key), key.removesuffix("_config")
        read = FAMILIES.get(family) if key == "vision_config" else None
        found.append(read(section, data, values) if read else _named(section, name))
    return tuple(found)


def _named(section: Fields, name: str) -> Tower:
    """A tower whose family is not counted."""
    layers = next((section.integer(k) for k in ("depth", "num_hidden_layers", "encoder_layers") if section.has(k)), 0)
    return Tower(name=name, params=0, num_layers=layers)


def _vision(
    sizes: "_Sizes", *, extra: int, patch: int, projector: "_Shapes", layer: int = 0, merge: int = 1, **more: Any
) -> Tower:
    """A counted tower: embedding of patches, layers, projector, and `extra` parameters beside them.

    layer: parameters of one; 0: an encoder layer with biases. Heads of H / A where no size of a head is given.
    """
    hidden, inner, layers = sizes
    count = patch * hidden + layers * (layer or _encoder_layer(hidden, inner)) + _matrices(*projector) + extra
    known = {"hidden": hidden, "ffn_hidden": inner, "num_layers": layers, "head_dim": hidden // more["num_heads"]}
    made = known | {"patch_inputs": patch, "projector": projector, "merge": merge} | more
    return Tower(name="vision", params=count, **made)


_Shapes = tuple[tuple[int, int], ...]
_Sizes = tuple[int, int, int]
"""Hidden size, hidden size of the MLP and layers."""


def _encoder_sizes(v: Fields, *defaults: int, prefix: str = "") -> _Sizes:
    """The sizes of an encoder whose configuration names them as most do; needed where there are no defaults."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers")
    given: Sequence[Any] = defaults or (REQUIRED,) * len(keys)
    hidden, inner, layers = (v.integer(prefix + key, usual) for key, usual in zip(keys, given, strict=True))
    return hidden, inner, layers


def _encoder_layer(hidden: int, inner: int) -> int:
    """One encoder layer with biases: queries, keys, values, output, two-matrix MLP, two norms of 2 H."""
    return 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden


def _matrices(*shapes: tuple[int, int]) -> int:
    return sum(n * k for n, k in shapes)


def _qwen(v: Fields, top: Fields, values: Values) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions, a merger of spatial blocks, and one for each deep-stacked layer."""
    hidden, inner, out = v.integer("hidden_size"), v.integer("intermediate_size"), int(values["hidden"])
    out = v.integer("out_hidden_size", out)
    patch = v.integer("in_channels", 3) * v.integer("temporal_patch_size", 2) * v.integer("patch_size", 16) ** 2
    merge, deep = v.integer("spatial_merge_size", 2) ** 2, len(v.items("deepstack_visual_indexes"))
    merged, positions = hidden * merge, v.integer("num_position_embeddings", 2304)
    extra = (1 + positions + 2) * hidden + (1 + deep) * (merged + out) + 2 * deep * merged
    projector = ((merged, merged), (out, merged)) * (1 + deep)
    sizes, heads = (hidden, inner, v.integer("depth")), v.integer("num_heads", 16)
    return _vision(sizes, extra=extra, patch=patch, projector=projector, merge=merge, num_heads=heads)


def _gemma4(v: Fields, top: Fields, values: Values) -> Tower:
    """Gemma 4: rotary and tabled positions in two directions, gated MLP, four norms, norms of queries and keys."""
    hidden, inner, _ = sizes = _encoder_sizes(v)
    heads, kv_heads = v.integer("num_attention_heads"), v.integer("num_key_value_heads")
    head_dim = v.integer("head_dim")
    attention = 2 * hidden * head_dim * (heads + kv_heads) + 2 * head_dim
    positions, patch = v.integer("position_embedding_size", 10240), 3 * v.integer("patch_size", 16) ** 2
    return _vision(
        sizes, extra=2 * positions * hidden, patch=patch,
        projector=((int(values["hidden"]), hidden),), layer=attention + 3 * hidden * inner + 4 * hidden,
        merge=v.integer("pooling_kernel_size", 3) ** 2, num_heads=heads, head_dim=head_dim, is_gated=True,
    )  # fmt: skip


def _kimi(v: Fields, top: Fields, values: Values) -> Tower:
    """Kimi-K2.5 (MoonViT): tabled positions, a final norm, a projector over merged patches."""
    hidden, _, _ = sizes = _encoder_sizes(v, prefix="vt_")
    rows, columns = v.integer("init_pos_emb_height", 64), v.integer("init_pos_emb_width", 64)
    kernel = v.whole_numbers("merge_kernel_size")
    merge = kernel[0] * kernel[1] if len(kernel) == 2 else 4
    merged, text = hidden * merge, int(values["hidden"])
    return _vision(
        sizes, extra=(1 + rows * columns + 4) * hidden + merged + text, patch=3 * v.integer("patch_size", 14) ** 2,
        projector=((merged, merged), (text, merged)), merge=merge, num_heads=v.integer("vt_num_attention_heads", 16),
    )  # fmt: skip


def _minimax(v: Fields, top: Fields, values: Values) -> Tower:
    """MiniMax-M3: a norm before the encoder, a projector, and one more over merged patches."""
    hidden, _, _ = sizes = _encoder_sizes(v)
    merging, text = v.section("img_token_compression_config"), int(values["hidden"])
    time, space = merging.integer("temporal_patch_size", 2), merging.integer("spatial_merge_size", 2)
    patch = v.integer("num_channels", 3) * time * v.integer("patch_size", 14) ** 2
    wide, merge = top.integer("projector_hidden_size", text), space * space
    # The projector runs on every patch, the merger on every token.
    per_patch, merger = ((wide, hidden), (text, wide)), ((text, text * merge), (text, text))
    extra = 2 * hidden + wide + 3 * text - (merge - 1) * _matrices(*per_patch)
    projector, heads = per_patch * merge + merger, v.integer("num_attention_heads", 16)
    return _vision(sizes, extra=extra, patch=patch, projector=projector, merge=merge, num_heads=heads)


def _llama4(v: Fields, top: Fields, values: Values) -> Tower:
    """Llama 4: a class token, norms before and behind the encoder, an adapter of merged patches, a projector."""
    hidden, inner, _ = sizes = _encoder_sizes(v, 768, 5632, 34)
    patch, patches = _image(v, 14, 448)
    wide, out = v.integer("projector_input_dim", 4096), v.integer("projector_output_dim", 4096)
    last = (int(values["hidden"]), v.integer("vision_output_dim", 7680))
    return _vision(
        sizes, extra=hidden * (1 + patches + 1 + 4), patch=patch, projector=((wide, inner), (out, wide), last),
        num_heads=v.integer("num_attention_heads", 16), image_patches=patches,
        merge=round(v.number("pixel_shuffle_ratio", 0.5, least=2**-8) ** -2),
    )  # fmt: skip


def _image(v: Fields, side: int, size: int) -> tuple[int, int]:
    """Inputs of a patch and patches of an image; side, size: the usual ones of both in pixels."""
    side, size = v.integer("patch_size", side), v.integer("image_size", size)
    return v.integer("num_channels", 3) * side * side, (size // side) ** 2


def _gemma3(v: Fields, top: Fields, values: Values) -> Tower:
    """Gemma 3 (SigLIP): tabled positions, a norm behind the encoder, pooling to a fixed number of tokens."""
    hidden, inner, _ = sizes = _encoder_sizes(v, 768, 3072, 12)
    patch, patches = _image(v, 16, 224)
    extra = hidden * (1 + patches + 2 + 1)
    if v.switch("vision_use_head", True):
        extra += hidden + _encoder_layer(hidden, inner) - 2 * hidden
    return _vision(
        sizes, extra=extra, patch=patch, projector=((int(values["hidden"]), hidden),),
        num_heads=v.integer("num_attention_heads", 12), image_patches=patches,
        merge=max(patches // top.integer("mm_tokens_per_image", 256), 1),
    )  # fmt: skip


def _pixtral(v: Fields, top: Fields, values: Values) -> Tower:
    """Mistral 3 (Pixtral): gated MLPs, no biases, RMS norms, a merger of spatial blocks before the projector."""
    hidden, inner, _ = sizes = _encoder_sizes(v, 1024, 4096, 24)
    heads = v.integer("num_attention_heads", 16)
    head_dim, merge = v.integer("head_dim", hidden // heads), top.integer("spatial_merge_size", 2)
    patch = v.integer("num_channels", 3) * v.integer("patch_size", 16) ** 2
    text, has_bias = int(values["hidden"]), top.switch("multimodal_projector_bias", False)
    return _vision(
        sizes, extra=2 * hidden + (2 * text if has_bias else 0), patch=patch, merge=merge**2,
        projector=((hidden, hidden * merge**2), (text, hidden), (text, text)),
        layer=4 * hidden * heads * head_dim + 3 * hidden * inner + 2 * hidden,
        num_heads=heads, head_dim=head_dim, is_gated=True,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Fields, Fields, Values], Tower]] = {
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "kimi_k25": _kimi,
    "llama4": _llama4,
    "minimax_m3_vl": _minimax,
    "mistral3": _pixtral,
}
"""Vision towers by the `model_type` of the whole model."""
