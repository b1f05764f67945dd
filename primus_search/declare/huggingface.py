"""Models from a HuggingFace `config.json`: one reader per family of architectures, chosen by `model_type`.

Every field that decides a size must be known: a field this reader does not know is a problem when its name speaks of
a size (layers, heads, experts, dims, windows ...) and it is not null, zero or false. Defaults of absent fields are
those of the `transformers` configuration class of the family (version 4.57).

Vocabulary: `vocab_size` as published, padded to a multiple of 128 (see `models`).
"""

from collections.abc import Callable
from typing import Any

from primus_search.declare.fields import Fields
from primus_search.declare.places import title
from primus_search.declare.presets import build_model, padded
from primus_search.declare.source import Document, did_you_mean
from primus_search.errors import InputError
from primus_search.model import LatentAttention, MixtureOfExperts, Model

_SIZE_WORDS = (
    "hidden", "layer", "head", "expert", "ffn", "intermediate", "dim", "rank", "window", "vocab", "size", "num_",
    "embd", "inner", "state", "conv", "ssm", "mamba",
)  # fmt: skip
_NO_SIZES = (
    "attention_dropout", "chunk_size_feed_forward", "embd_layer_norm", "emb_pdrop", "embd_pdrop", "ep_size",
    "experts_per_token", "hidden_act", "hidden_activation", "hidden_dropout", "hidden_dropout_prob",
    "initial_context_length", "initializer_range", "max_position_embeddings", "max_window_layers", "model_max_length",
    "n_group", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "original_max_position_embeddings", "output_hidden_states", "query_pre_attn_scalar",
    "rotary_dim", "sliding_window_pattern", "sliding_window_size", "topk_group",
)  # fmt: skip
"""Fields whose names speak of a size and that decide none (or none that is read under another name)."""

Values = dict[str, Any]


def from_document(document: Document) -> Model:
    """The model a config.json describes; InputError with every problem."""
    data = document.data
    if isinstance(data.get("text_config"), dict):
        data = data["text_config"] | {"model_type": data["text_config"].get("model_type", data.get("model_type"))}
    fields = Fields.of(document, data)
    family = fields.word("model_type")
    if family not in FAMILIES:
        known = sorted(FAMILIES)
        what = f"unknown model_type '{family}'{did_you_mean(family, known)} - known: {', '.join(known)}"
        raise InputError([document.problem(("model_type",), what)])
    values = FAMILIES[family](fields)
    _refuse_unread_sizes(fields)
    name = title(str(data.get("_name_or_path") or document.name).rstrip("/"))
    return build_model(fields, name=name, source=document.name, **values)


def _refuse_unread_sizes(fields: Fields) -> None:
    for key, given in fields.entries.items():
        if (
            key in fields.read
            or key in _NO_SIZES
            or not given.value
            or key.endswith(("_eps", "_epsilon", "_id", "_ids"))
        ):
            continue
        if any(word in key.lower() for word in _SIZE_WORDS) and isinstance(given.value, int | float | list):
            fields.problem(key, f"unknown field that may decide a size: {given.value!r}; it cannot be projected")


# --- parts shared by families --------------------------------------------------------------------------------------


def _decoder(fields: Fields, *, tied: bool = False) -> Values:
    """What Llama-like configurations have in common."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers")
    attention_bias = fields.switch("attention_bias", False)
    mlp_bias = fields.switch("mlp_bias", False)
    return {
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn_hidden": fields.integer("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": fields.integer("head_dim", max(hidden // heads, 1)),
        "vocab_size": padded(fields.integer("vocab_size")),
        "is_tied": fields.switch("tie_word_embeddings", tied),
        "has_linear_bias": attention_bias and mlp_bias,
        # Llama's attention_bias also puts a bias on the output projection: H parameters per layer, left out.
        "has_qkv_bias": attention_bias and not mlp_bias,
    }


def _windows(fields: Fields, num_layers: int, *, every: bool = True) -> tuple[int, ...]:
    """Attention window per layer from `sliding_window` and `layer_types`; `every`: without types, all layers slide."""
    window = fields.integer("sliding_window", 0, least=0)
    types = fields.items("layer_types")
    if not fields.switch("use_sliding_window", True):
        return ()
    if types:
        if len(types) != num_layers:
            fields.problem("layer_types", f"has {len(types)} entries; the model has {num_layers} layers")
            return ()
        known = {"sliding_attention": window, "full_attention": 0}
        for i, kind in enumerate(types):
            if str(kind) not in known:
                fields.problem("layer_types", f"entry {i} is {kind!r} - allowed: {' or '.join(known)}")
        return tuple(known.get(str(kind), 0) for kind in types)
    return (window,) * num_layers if every else ()


def _sparse_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.items("mlp_only_layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))


# --- families ------------------------------------------------------------------------------------------------------


def _llama(fields: Fields) -> Values:
    return _decoder(fields)


def _mistral(fields: Fields) -> Values:
    values = _decoder(fields)
    return values | {"windows": _windows(fields, values["num_layers"])}


def _mixtral(fields: Fields) -> Values:
    return _all_experts(fields, _mistral(fields), "num_local_experts", num_experts=8, top_k=2)


def _all_experts(fields: Fields, values: Values, key: str, *, num_experts: int, top_k: int) -> Values:
    """Every feed-forward layer is one of experts of its size. key: what counts them; counts where none is stated."""
    experts = MixtureOfExperts(
        num_experts=fields.integer(key, num_experts),
        top_k=fields.integer("num_experts_per_tok", top_k),
        expert_ffn_hidden=values["ffn_hidden"],
    )
    return values | {"moe": experts}


def _qwen2(fields: Fields) -> Values:
    values = _decoder(fields)
    values["has_qkv_bias"] = True
    windows = _windows(fields, values["num_layers"])
    if fields.switch("use_sliding_window", False):
        first = fields.integer("max_window_layers", 28, least=0)
        values["windows"] = tuple(window if layer >= first else 0 for layer, window in enumerate(windows))
    return values


def _qwen3(fields: Fields) -> Values:
    return _qwen2(fields) | {"has_qkv_bias": fields.switch("attention_bias", False), "has_qk_norm": True}


def _qwen_experts(fields: Fields, num_layers: int) -> Values:
    shared = fields.integer("shared_expert_intermediate_size", 0, least=0)
    experts = MixtureOfExperts(
        num_experts=fields.integer("num_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        expert_ffn_hidden=fields.integer("moe_intermediate_size"),
        shared_ffn_hidden=shared,
        has_shared_gate=shared > 0,
    )
    return {"moe": experts, "moe_layers": _sparse_layers(fields, num_layers)}


def _qwen2_moe(fields: Fields) -> Values:
    values = _qwen2(fields)
    return values | _qwen_experts(fields, values["num_layers"])


def _qwen3_moe(fields: Fields) -> Values:
    values = _qwen3(fields)
    return values | _qwen_experts(fields, values["num_layers"])


def _routed(fields: Fields, num_layers: int, *, has_router_bias: bool) -> Values:
    """DeepSeek's experts, and which layers have them; GLM has the same."""
    first_dense, frequency = fields.integer("first_k_dense_replace", 0, least=0), fields.integer("moe_layer_freq", 1)
    expert_hidden = fields.integer("moe_intermediate_size")
    experts = MixtureOfExperts(
        num_experts=fields.integer("n_routed_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        expert_ffn_hidden=expert_hidden,
        shared_ffn_hidden=fields.integer("n_shared_experts", 0, least=0) * expert_hidden,
        has_router_bias=has_router_bias,
    )
    return {
        "moe": experts,
        "moe_layers": tuple(i >= first_dense and i % frequency == 0 for i in range(num_layers)),
        "num_mtp_layers": fields.integer("num_nextn_predict_layers", 0, least=0),
    }


def _deepseek(fields: Fields) -> Values:
    values = _decoder(fields)
    values["latent"] = LatentAttention(
        q_lora_rank=fields.integer("q_lora_rank", 0, least=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )
    # transformers' own V2/V3 classes report `head_dim` as the rotary part only; MLA's dims above say it all.
    values["head_dim"] = values["latent"].qk_nope_head_dim
    values["num_kv_heads"] = values["num_heads"]
    has_bias = fields.word("topk_method", "") == "noaux_tc"
    return values | _routed(fields, values["num_layers"], has_router_bias=has_bias)


def _glm4_moe(fields: Fields) -> Values:
    values = _decoder(fields) | {"has_qk_norm": fields.switch("use_qk_norm", False)}
    return values | _routed(fields, values["num_layers"], has_router_bias=True)


def _olmo2(fields: Fields) -> Values:
    # Its norms inside attention span all heads, ours one head: (heads + kv heads - 2) * head_dim per layer left out.
    return _decoder(fields) | {"has_qk_norm": True}


def _olmoe(fields: Fields) -> Values:
    return _all_experts(fields, _olmo2(fields), "num_experts", num_experts=64, top_k=8)


def _llama4(fields: Fields) -> Values:
    """Llama 4's text part. Attention in chunks is taken for a window of that size, which is up to twice its work."""
    values = _decoder(fields)
    num_layers, expert_hidden = values["num_layers"], values["ffn_hidden"]
    step, chunk = fields.integer("interleave_moe_layer_step", 1), fields.integer("attention_chunk_size", 8192)
    whole = fields.integer("no_rope_layer_interval", 4)
    fields.anything("no_rope_layers")
    values["ffn_hidden"] = fields.integer("intermediate_size_mlp", 16384)
    values["moe"] = MixtureOfExperts(
        num_experts=fields.integer("num_local_experts", 16),
        top_k=fields.integer("num_experts_per_tok", 1),
        expert_ffn_hidden=expert_hidden,
        shared_ffn_hidden=expert_hidden,
    )
    values["moe_layers"] = tuple((layer + 1) % step == 0 for layer in range(num_layers))
    values["windows"] = tuple(0 if (layer + 1) % whole == 0 else chunk for layer in range(num_layers))
    return values


def _gpt_oss(fields: Fields) -> Values:
    values = _decoder(fields)
    alternating = (fields.integer("sliding_window", 128), 0)
    windows = _windows(fields, values["num_layers"], every=False)
    values["windows"] = windows or tuple(alternating[i % 2] for i in range(values["num_layers"]))
    top_k = "num_experts_per_tok" if fields.has("num_experts_per_tok") else "experts_per_token"
    values["moe"] = MixtureOfExperts(
        num_experts=fields.integer("num_local_experts", 128),
        top_k=fields.integer(top_k, 4),
        expert_ffn_hidden=values["ffn_hidden"],
        has_router_bias=True,
    )
    values["activation_clamp"] = fields.number("swiglu_limit", 7.0)
    return values | {"has_linear_bias": True, "has_qkv_bias": False, "has_attention_sinks": True}


def _gemma(fields: Fields) -> Values:
    return _decoder(fields, tied=True)


def _gemma2(fields: Fields) -> Values:
    values = _decoder(fields, tied=True)
    windows = _windows(fields, values["num_layers"], every=False)
    window = fields.integer("sliding_window", 4096)
    values["windows"] = windows or tuple(window if i % 2 == 0 else 0 for i in range(values["num_layers"]))
    return values | {"num_norms": 4}


def _gemma3(fields: Fields) -> Values:
    values = _decoder(fields, tied=True)
    windows = _windows(fields, values["num_layers"], every=False)
    window, period = fields.integer("sliding_window", 4096), fields.integer("sliding_window_pattern", 6)
    values["windows"] = windows or tuple(0 if (i + 1) % period == 0 else window for i in range(values["num_layers"]))
    return values | {"num_norms": 4, "has_qk_norm": True}


def _gpt_neox(fields: Fields) -> Values:
    values = _decoder(fields)
    return values | {"is_gated": False, "norm": "layernorm", "has_linear_bias": True, "has_qkv_bias": False}


def _nemotron(fields: Fields) -> Values:
    return _decoder(fields) | {"is_gated": False, "norm": "layernorm"}


def _gpt2(fields: Fields) -> Values:
    hidden, heads = fields.integer("n_embd"), fields.integer("n_head")
    return {
        "num_layers": fields.integer("n_layer"),
        "hidden": hidden,
        "ffn_hidden": fields.integer("n_inner", 4 * hidden),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(hidden // heads, 1),
        "vocab_size": padded(fields.integer("vocab_size")),
        "is_tied": fields.switch("tie_word_embeddings", True),
        "is_gated": False,
        "norm": "layernorm",
        "has_linear_bias": True,
        "learned_positions": fields.integer("n_positions", fields.integer("n_ctx", 1024)),
    }


def _mpt(fields: Fields) -> Values:
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    attention, ffn = fields.section("attn_config"), fields.section("ffn_config")
    has_bias = not fields.switch("no_bias", True)
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": attention.integer("kv_n_heads", heads)}
    has_positions = not (attention.switch("alibi", False) or attention.switch("rope", False))
    inner = int(fields.number("expansion_ratio", 4.0) * hidden)
    return {
        "num_layers": fields.integer("n_layers"),
        "hidden": hidden,
        "ffn_hidden": ffn.integer("ffn_hidden_size", inner),
        "num_heads": heads,
        "num_kv_heads": kv_heads.get(attention.word("attn_type", "multihead_attention"), heads),
        "head_dim": max(hidden // heads, 1),
        "vocab_size": padded(fields.integer("vocab_size")),
        "is_tied": fields.switch("tie_word_embeddings", True),
        "is_gated": False,
        # MPT's norms have no shift without biases: as many parameters as RMSNorm.
        "norm": "layernorm" if has_bias else "rmsnorm",
        "has_linear_bias": has_bias,
        "learned_positions": fields.integer("max_seq_len") if has_positions else 0,
    }


FAMILIES: dict[str, Callable[[Fields], Values]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _mistral,
    "gpt_neox": _gpt_neox,
    "llama4_text": _llama4,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
    "mpt": _mpt,
}
"""Reader of each `model_type`."""
