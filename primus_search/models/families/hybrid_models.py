"""What no row says of families of attention mixed with state-space or linear layers: Qwen3-Next/3.5, Nemotron-H ..."""

from collections.abc import Sequence

from primus_search.files.fields import Fields
from primus_search.models.families import parts
from primus_search.models.families.expert_models import qwen_experts
from primus_search.models.families.parts import Values
from primus_search.values.model import (
    FeedForward,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentMixer,
    LightningAttention,
    Mamba2,
    Mixer,
    MixtureOfExperts,
    NoFeedForward,
    NoMixer,
    ShortConvolution,
)

FULL, LINEAR = "full_attention", "linear_attention"


def qwen3_next(fields: Fields, values: Values) -> Values:
    """Qwen3-Next and Qwen3.5 with experts."""
    return qwen_experts(fields, qwen3_5(fields, values))


def qwen3_5(fields: Fields, values: Values) -> Values:
    """Dense Qwen3.5 and Qwen3.6: three Gated DeltaNet layers to one of gated attention."""
    has_bias = fields.switch("attention_bias", False)
    full = parts.attention(
        values, qk_norm="head", has_output_gate=True, has_qkv_bias=has_bias, has_output_bias=has_bias
    )
    kinds: dict[str, Mixer] = {FULL: full, LINEAR: GatedDeltaNet(**parts.sizes(fields, "delta_net"))}
    interval = fields.integer("full_attention_interval", 4)
    usual = [LINEAR if (layer + 1) % interval else FULL for layer in range(values["num_layers"])]
    return values | {"mixers": parts.mixed(fields, kinds, usual)}


LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
GENERIC = {LINEAR: "mamba", FULL: "attention"}
"""What releases of transformers from 5.23 on call these layers."""


def nemotron_layers(fields: Fields) -> list[str]:
    """The words of Nemotron's layers, which may say their number alone."""
    words = _words(fields, "hybrid_override_pattern", "layers_block_type")
    unknown = next((word for word in words if word not in LETTERS.values()), None)
    if unknown is not None:
        fields.problem("hybrid_override_pattern", f"{unknown!r} is no layer - allowed: {', '.join(LETTERS.values())}")
        words = ["mlp"] * len(words)
    if fields.integer("num_hidden_layers", len(words)) != len(words):
        fields.problem("num_hidden_layers", f"the pattern of layers has {len(words)}")
    return words


def _words(fields: Fields, pattern: str, blocks: str) -> list[str]:
    """The words of a pattern of letters, else of a list."""
    listed = [GENERIC.get(str(word), str(word)) for word in fields.items(blocks)]
    return [LETTERS.get(letter, letter) for letter in fields.word(pattern, "")] or listed


def nemotron_h(fields: Fields, values: Values) -> Values:
    """Nemotron-H and Nemotron-3: a layer is a Mamba-2 mixer, attention, experts or an MLP, one of them alone."""
    words = nemotron_layers(fields)
    if not fields.has("num_hidden_layers"):
        values["num_layers"] = len(words)
        if not words:
            fields.problem("num_hidden_layers", "missing key num_hidden_layers")
    if not fields.has("head_dim"):
        values["head_dim"] = fields.integer("attention_head_dim", values["head_dim"])
    has_bias, window = fields.switch("attention_bias", False), fields.integer("sliding_window", 0, least=0)
    kinds: dict[str, Mixer] = {
        "mamba": Mamba2(**parts.sizes(fields, "nemotron_mamba2")),
        "attention": parts.attention(values, window=window, has_qkv_bias=has_bias, has_output_bias=has_bias),
    }
    ffns: tuple[FeedForward | None, ...] = tuple(None if w in ("moe", "mlp") else NoFeedForward() for w in words)
    flags = tuple(word == "moe" for word in words)
    of_module = _words(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    values["mtp_layers"] = tuple(words.index(word) for word in of_module if word in words)
    if any(flags):
        values |= {"moe": parts.experts(fields, "nemotron_h", **parts.groups(fields)), "moe_layers": flags}
    mixers = parts.repeated([kinds.get(word, NoMixer()) for word in words])
    return values | {"mixers": mixers, "feed_forwards": ffns}


def bamba(fields: Fields, values: Values) -> Values:
    """Bamba: Mamba-2 with attention in between, an MLP in every layer."""
    full = set(fields.whole_numbers("attn_layer_indices"))
    types = ["attention" if layer in full else "mamba" for layer in range(values["num_layers"])]
    return values | {"mixers": _beside_mamba(fields, values, types)}


def granite_hybrid(fields: Fields, values: Values) -> Values:
    """Granite 4: Mamba-2 with attention in between; experts and shared ones, or the shared ones alone, a dense MLP."""
    count, shared = fields.integer("num_local_experts", least=0), fields.integer("shared_intermediate_size")
    top_k, size = fields.integer("num_experts_per_tok", least=0), values["ffn_hidden"]
    if count:
        values["moe"] = MixtureOfExperts(
            num_experts=count, top_k=top_k, expert_ffn_hidden=size, shared_ffn_hidden=shared
        )
    else:
        values["ffn_hidden"] = shared
    known = ("mamba", "attention", *GENERIC)
    given = parts.layer_types(fields, values["num_layers"], known) if fields.items("layer_types") else ()
    types = [GENERIC.get(kind, kind) for kind in given or ("mamba",) * values["num_layers"]]
    if fields.word("normalization_function", "rmsnorm") != "rmsnorm":
        fields.problem("normalization_function", "norms other than rmsnorm are not modelled for this family")
    return values | {"mixers": _beside_mamba(fields, values, types)}


def _beside_mamba(fields: Fields, values: Values, types: Sequence[str]) -> tuple[Mixer, ...]:
    """Mamba-2 or attention in each layer, by keys that begin with `mamba_`."""
    inner = fields.integer("mamba_expand", 2) * values["hidden"]
    found, size = parts.sizes(fields, "granite_mamba2"), fields.anything("mamba_d_head")
    usual = max(inner // found["num_heads"], 1)
    mamba = Mamba2(**found, head_dim=usual if size in (None, "auto") else fields.integer("mamba_d_head"))
    if fields.switch("mamba_proj_bias", False):
        fields.problem("mamba_proj_bias", "biases of Mamba's projections are not modelled for this family")
    has_bias = fields.switch("attention_bias", False)
    full = parts.attention(values, has_qkv_bias=has_bias, has_output_bias=has_bias)
    return tuple(mamba if kind == "mamba" else full for kind in types)


def kimi_linear(fields: Fields, values: Values) -> Values:
    """Kimi Linear: Kimi delta attention with latent attention in between, and DeepSeek's experts."""
    heads, linear = values["num_heads"], fields.section("linear_attn_config")
    full = set(linear.whole_numbers("full_attn_layers"))
    full = full or {i for i, kind in enumerate(fields.items("layer_types"), start=1) if kind == FULL}
    linear.items("kda_layers")
    head_dim = linear.integer("head_dim", fields.integer("linear_head_dim", 128))
    delta = KimiDeltaAttention(
        num_heads=linear.integer("num_heads", fields.integer("linear_num_heads", heads)),
        head_dim=head_dim,
        conv_kernel=linear.integer("short_conv_kernel_size", fields.integer("linear_conv_kernel_dim", 4)),
        gate_rank=head_dim,
    )
    mla = LatentMixer(num_heads=heads, latent=values["latent"], has_bias=fields.switch("attention_bias", False))
    top_k = "num_experts_per_token" if fields.has("num_experts_per_token") else "num_experts_per_tok"
    return values | {
        "mixers": tuple(mla if layer + 1 in full else delta for layer in range(values["num_layers"])),
        "moe": parts.experts(fields, "kimi_linear", top_k=fields.integer(top_k)),
        "moe_layers": parts.sparse_layers(fields, values["num_layers"], first=1),
    }


def olmo_hybrid(fields: Fields, values: Values) -> Values:
    """OLMo Hybrid: three Gated DeltaNet layers to one of attention; keys of 3/4 of a head, values twice that."""
    heads = fields.integer("linear_num_key_heads", values["num_heads"])
    key_dim = fields.integer("linear_key_head_dim", int(0.75 * values["hidden"] / heads))
    linear = GatedDeltaNet(
        num_key_heads=heads,
        num_value_heads=fields.integer("linear_num_value_heads", values["num_heads"]),
        key_dim=key_dim,
        value_dim=fields.integer("linear_value_head_dim", 2 * key_dim),
        conv_kernel=fields.integer("linear_conv_kernel_dim", 4),
    )
    usual = [FULL if layer % 4 == 3 else LINEAR for layer in range(values["num_layers"])]
    return values | {"mixers": parts.mixed(fields, {FULL: values["mixers"][0], LINEAR: linear}, usual)}


def minimax(fields: Fields, values: Values) -> Values:
    """MiniMax-Text-01: lightning attention with softmax attention in between, experts everywhere."""
    block, window = fields.integer("block_size", 256), fields.integer("sliding_window", 0, least=0)
    linear = LightningAttention(num_heads=values["num_heads"], head_dim=values["head_dim"], block=block)
    kinds: dict[str, Mixer] = {FULL: parts.attention(values, window=window), LINEAR: linear}
    if given := fields.whole_numbers("attn_type_list"):
        return values | {"mixers": tuple(kinds[FULL if one == 1 else LINEAR] for one in given)}
    usual = [FULL if (layer + 1) % 2 else LINEAR for layer in range(values["num_layers"])]
    return values | {"mixers": parts.mixed(fields, kinds, usual)}


def lfm2(fields: Fields, values: Values) -> Values:
    """LFM2: gated short convolutions with attention in between; the MLP's size is adjusted as its module does."""
    inner = fields.integer("block_ff_dim", values["ffn_hidden"])
    multiple = fields.integer("block_multiple_of", 256)
    multiplier = fields.number("block_ffn_dim_multiplier", 1.0)
    if fields.switch("block_auto_adjust_ff_dim", True):
        inner = multiple * -(-int(multiplier * int(2 * inner / 3)) // multiple)
    return short_convolutions(fields, values) | {"ffn_hidden": inner}


def short_convolutions(fields: Fields, values: Values) -> Values:
    """The mixers of LFM2, and its other name for tied embeddings."""
    if fields.has("tie_embedding"):
        values["is_tied"] = fields.switch("tie_embedding", True)
    convolution, full = (
        ShortConvolution(**parts.sizes(fields, "short_convolution")),
        parts.attention(values, qk_norm="head"),
    )
    chosen, num_layers = fields.anything("full_attn_idxs"), values["num_layers"]
    every = range(num_layers) if chosen is None else fields.whole_numbers("full_attn_idxs")
    usual = [FULL if layer in every else "conv" for layer in range(num_layers)]
    return values | {"mixers": parts.mixed(fields, {FULL: full, "conv": convolution}, usual)}
