"""Families of attention mixed with state-space or linear layers: Qwen3-Next/3.5, Nemotron-H, Kimi Linear, LFM2 ..."""

from collections.abc import Sequence

from primus_search.declare.families.expert_models import qwen_experts
from primus_search.declare.families.parts import (
    Values,
    all_experts,
    attention,
    decoder,
    experts,
    groups,
    latent_sizes,
    layer_types,
    mixed,
    refuse_biases,
    repeated,
    sizes,
    sparse_layers,
)
from primus_search.declare.families.plain import llama
from primus_search.declare.fields import Fields, Located
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


def qwen3_next(fields: Fields) -> Values:
    """Qwen3-Next and Qwen3.5 with experts: three Gated DeltaNet layers to one of gated attention."""
    moe = qwen_experts(fields, fields.integer("num_hidden_layers"))
    return _gated_delta(fields, moe["moe"].expert_ffn_hidden) | moe


def qwen3_5(fields: Fields) -> Values:
    """Dense Qwen3.5 and Qwen3.6."""
    return _gated_delta(fields, fields.integer("intermediate_size"))


def _gated_delta(fields: Fields, ffn_hidden: int) -> Values:
    if not fields.has("intermediate_size"):
        fields.entries = {**fields.entries, "intermediate_size": _given(fields, ffn_hidden)}
    values = decoder(fields)
    num_layers = values["num_layers"]
    fields.switch("attn_output_gate", True)
    fields.word("output_gate_type", "swish")
    mtp = fields.integer("mtp_num_hidden_layers", 0, least=0)
    if fields.switch("mtp_use_dedicated_embeddings", False):
        fields.problem("mtp_use_dedicated_embeddings", "embeddings of their own for prediction layers are not modelled")
    has_bias = fields.switch("attention_bias", False)
    full = attention(values, qk_norm="head", has_output_gate=True, has_qkv_bias=has_bias, has_output_bias=has_bias)
    linear = GatedDeltaNet(**sizes(fields, "delta_net"))
    interval = fields.integer("full_attention_interval", 4)
    kinds: dict[str, Mixer] = {"full_attention": full, "linear_attention": linear}
    usual = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)]
    mixers = mixed(fields, kinds, usual)
    return values | {"mixers": mixers, "num_mtp_layers": mtp, "has_qk_norm": True}


def _given(fields: Fields, value: int) -> Located:
    return Located(value, fields.where)


LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
GENERIC = {"linear_attention": "mamba", "full_attention": "attention"}
"""What releases of transformers from 5.23 on call these layers."""


EXPERT_KEYS = (
    "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group",
)  # fmt: skip
"""Sizes of experts that Nemotron's files have whether or not a layer has experts."""


def nemotron_h(fields: Fields) -> Values:
    """Nemotron-H and Nemotron-3: a layer is a Mamba-2 mixer, attention, experts or an MLP, one of them alone."""
    pattern = fields.word("hybrid_override_pattern", "")
    blocks = [str(word) for word in fields.items("layers_block_type")]
    words = [LETTERS.get(letter, letter) for letter in pattern] or [GENERIC.get(word, word) for word in blocks]
    fields.items("layer_types")
    for word in words:
        if word not in LETTERS.values():
            fields.problem("hybrid_override_pattern", f"{word!r} is no layer - allowed: {', '.join(LETTERS.values())}")
            words = ["mlp"] * len(words)
            break
    if fields.integer("num_hidden_layers", len(words)) != len(words):
        fields.problem("num_hidden_layers", f"the pattern of layers has {len(words)}")
    if not fields.has("num_hidden_layers"):
        fields.entries = {**fields.entries, "num_hidden_layers": _given(fields, len(words))}
    if not fields.has("head_dim") and fields.has("attention_head_dim"):
        fields.entries = {**fields.entries, "head_dim": fields.entries["attention_head_dim"]}
    values = decoder(fields)
    for key in ("attention_head_dim", "expand", "mtp_hybrid_override_pattern", "mtp_layers_block_type"):
        fields.anything(key)
    refuse_biases(fields, "mlp_bias")
    fields.switch("mamba_proj_bias", False)
    has_bias = fields.switch("attention_bias", False)
    window = fields.integer("sliding_window", 0, least=0)
    kinds: dict[str, Mixer] = {
        "mamba": Mamba2(**sizes(fields, "nemotron_mamba2")),
        "attention": attention(values, window=window, has_qkv_bias=has_bias, has_output_bias=has_bias),
    }
    mixers = tuple(kinds.get(word, NoMixer()) for word in words)
    ffns: tuple[FeedForward | None, ...] = tuple(None if w in ("moe", "mlp") else NoFeedForward() for w in words)
    flags = tuple(word == "moe" for word in words)
    moe = {"moe": experts(fields, "nemotron_h", **groups(fields)), "moe_layers": flags} if any(flags) else {}
    for key in EXPERT_KEYS:
        fields.anything(key)
    mtp = fields.integer("num_nextn_predict_layers", 0, least=0)
    shape = {"mixers": repeated(mixers), "feed_forwards": ffns, "is_gated": False, "num_mtp_layers": mtp}
    return values | shape | moe


def bamba(fields: Fields) -> Values:
    """Bamba: Mamba-2 with attention in between, an MLP in every layer."""
    values = llama(fields)
    full = set(fields.whole_numbers("attn_layer_indices"))
    types = ["attention" if layer in full else "mamba" for layer in range(values["num_layers"])]
    return values | {"mixers": _beside_mamba(fields, values, types)}


def granite_hybrid(fields: Fields) -> Values:
    """Granite 4: Mamba-2 with attention in between; experts and shared ones, or the shared ones alone, a dense MLP."""
    values = llama(fields)
    fields.anything("position_embedding_type")
    count, shared = fields.integer("num_local_experts", least=0), fields.integer("shared_intermediate_size")
    top_k = fields.integer("num_experts_per_tok", least=0)
    if count:
        values["moe"] = MixtureOfExperts(
            num_experts=count, top_k=top_k, expert_ffn_hidden=values["ffn_hidden"], shared_ffn_hidden=shared
        )
    else:
        values["ffn_hidden"] = shared
    given = layer_types(fields, values["num_layers"], GRANITE_TYPES) if fields.items("layer_types") else ()
    types = [GENERIC.get(kind, kind) for kind in given or ("mamba",) * values["num_layers"]]
    if fields.word("normalization_function", "rmsnorm") != "rmsnorm":
        fields.problem("normalization_function", "norms other than rmsnorm are not modelled for this family")
    return values | {"mixers": _beside_mamba(fields, values, types)}


GRANITE_TYPES = ("mamba", "attention", *GENERIC)


def _beside_mamba(fields: Fields, values: Values, types: Sequence[str]) -> tuple[Mixer, ...]:
    """Mamba-2 or attention in each layer, by keys that begin with `mamba_`."""
    inner = fields.integer("mamba_expand", 2) * values["hidden"]
    found, size = sizes(fields, "granite_mamba2"), fields.anything("mamba_d_head")
    usual = max(inner // found["num_heads"], 1)
    head_dim = usual if size in (None, "auto") else fields.integer("mamba_d_head")
    mamba = Mamba2(**found, head_dim=head_dim)
    if fields.switch("mamba_proj_bias", False):
        fields.problem("mamba_proj_bias", "biases of Mamba's projections are not modelled for this family")
    has_bias = fields.switch("attention_bias", False)
    full = attention(values, has_qkv_bias=has_bias, has_output_bias=has_bias)
    return tuple(mamba if kind == "mamba" else full for kind in types)


def kimi_linear(fields: Fields) -> Values:
    """Kimi Linear: Kimi delta attention with latent attention in between, and DeepSeek's experts; no ties whatever a
    file says."""
    values = decoder(fields) | {"is_tied": False}
    num_layers, heads = values["num_layers"], values["num_heads"]
    latent = latent_sizes(fields)
    values |= {"latent": latent, "head_dim": latent.qk_nope_head_dim, "num_kv_heads": heads}
    for key in ("mla_use_nope", "moe_renormalize", "moe_router_activation_func", "use_grouped_topk", "topk_method"):
        fields.anything(key)
    linear = fields.section("linear_attn_config")
    fields.anything("layer_types")
    full = set(linear.whole_numbers("full_attn_layers"))
    if not full:
        types = [str(kind) for kind in fields.items("layer_types")]
        full = {i + 1 for i, kind in enumerate(types) if kind == "full_attention"}
    linear.items("kda_layers")
    head_dim = linear.integer("head_dim", fields.integer("linear_head_dim", 128))
    delta = KimiDeltaAttention(
        num_heads=linear.integer("num_heads", fields.integer("linear_num_heads", heads)),
        head_dim=head_dim,
        conv_kernel=linear.integer("short_conv_kernel_size", fields.integer("linear_conv_kernel_dim", 4)),
        gate_rank=head_dim,
    )
    mla = LatentMixer(num_heads=heads, latent=latent, has_bias=fields.switch("attention_bias", False))
    values["mixers"] = tuple(mla if layer + 1 in full else delta for layer in range(num_layers))
    top_k = "num_experts_per_token" if fields.has("num_experts_per_token") else "num_experts_per_tok"
    values["moe"] = experts(fields, "kimi_linear", top_k=fields.integer(top_k))
    fields.integer("num_expert_group", 1)
    fields.integer("topk_group", 1)
    values["moe_layers"] = sparse_layers(fields, num_layers, first=1)
    values["num_mtp_layers"] = fields.integer("num_nextn_predict_layers", 0, least=0)
    return values


def minimax(fields: Fields) -> Values:
    """MiniMax-Text-01: lightning attention with softmax attention in between, experts everywhere."""
    values = all_experts(fields, decoder(fields), "local_experts")
    num_layers = values["num_layers"]
    linear = LightningAttention(
        num_heads=values["num_heads"], head_dim=values["head_dim"], block=fields.integer("block_size", 256)
    )
    full = attention(values, window=fields.integer("sliding_window", 0, least=0))
    kinds: dict[str, Mixer] = {"full_attention": full, "linear_attention": linear}
    given = fields.whole_numbers("attn_type_list")
    if given:
        words = ["full_attention" if one == 1 else "linear_attention" for one in given]
        return values | {"mixers": tuple(kinds[word] for word in words)}
    usual = ["full_attention" if (layer + 1) % 2 else "linear_attention" for layer in range(num_layers)]
    return values | {"mixers": mixed(fields, kinds, usual)}


def lfm2(fields: Fields) -> Values:
    """LFM2: gated short convolutions with attention in between; the MLP's size is adjusted as its module does."""
    values = _lfm2(fields)
    inner = fields.integer("block_ff_dim", values["ffn_hidden"])
    multiple = fields.integer("block_multiple_of", 256)
    multiplier = fields.number("block_ffn_dim_multiplier", 1.0)
    if fields.switch("block_auto_adjust_ff_dim", True):
        inner = int(multiplier * int(2 * inner / 3))
        inner = multiple * ((inner + multiple - 1) // multiple)
    return values | {"ffn_hidden": inner}


def lfm2_moe(fields: Fields) -> Values:
    values = _lfm2(fields)
    num_layers, dense = values["num_layers"], fields.integer("num_dense_layers", 2, least=0)
    values["moe"] = experts(fields, "lfm2_moe")
    return values | {"moe_layers": tuple(layer >= dense for layer in range(num_layers))}


def _lfm2(fields: Fields) -> Values:
    values = decoder(fields, tied=True)
    num_layers = values["num_layers"]
    if fields.has("tie_embedding"):
        values["is_tied"] = fields.switch("tie_embedding", True)
    convolution = ShortConvolution(**sizes(fields, "short_convolution"))
    full = attention(values, qk_norm="head")
    chosen = fields.anything("full_attn_idxs")
    kinds: dict[str, Mixer] = {"full_attention": full, "conv": convolution}
    every = range(num_layers) if chosen is None else fields.whole_numbers("full_attn_idxs")
    usual = ["full_attention" if layer in every else "conv" for layer in range(num_layers)]
    return values | {"mixers": mixed(fields, kinds, usual), "has_qk_norm": True}
