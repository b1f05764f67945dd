"""Decoders with experts and plain attention: Mixtral, Qwen, GLM-4, Llama 4, GPT-OSS, OLMoE, MiniMax-M2;
and with latent attention: DeepSeek-V2/V3, Kimi-K2, DeepSeek-V3.2 and GLM-5 with an indexer, DeepSeek-V4.
"""

from dataclasses import replace
from typing import Any

from primus_search.declare.families.parts import (
    Values,
    all_experts,
    attention,
    biased,
    decoder,
    experts,
    groups,
    latent_sizes,
    layer_types,
    mixed,
    refuse_biases,
    repeated,
    routed,
    sizes,
    sparse_layers,
    uniform,
    windows,
    with_biases,
)
from primus_search.declare.families.plain import (
    ernie,
    exaone4,
    hunyuan,
    llama,
    mistral,
    olmo2,
    qwen2,
    qwen3,
    with_sinks,
)
from primus_search.declare.fields import Fields, Located
from primus_search.declare.presets import vocabulary
from primus_search.declare.source import plain
from primus_search.values.model import CompressedAttention, Indexer, LatentMixer


def mixtral(fields: Fields) -> Values:
    return all_experts(fields, mistral(fields), "local_experts")


def qwen_experts(fields: Fields, num_layers: int) -> Values:
    """Qwen's experts: gated shared ones, and every `decoder_sparse_step`-th layer but for `mlp_only_layers`."""
    found = experts(fields, "qwen_experts")
    step, dense = fields.integer("decoder_sparse_step", 1), fields.whole_numbers("mlp_only_layers")
    layers = tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))
    return {"moe": replace(found, has_shared_gate=found.shared_ffn_hidden > 0), "moe_layers": layers}


def qwen2_moe(fields: Fields) -> Values:
    values = qwen2(fields)
    if not fields.switch("qkv_bias", True):
        values["has_qkv_bias"] = False
    return values | qwen_experts(fields, values["num_layers"])


def qwen3_moe(fields: Fields) -> Values:
    values = qwen3(fields)
    return values | qwen_experts(fields, values["num_layers"])


def mellum(fields: Fields) -> Values:
    """Mellum 2: Qwen3's layers, some of them sliding, and experts in all but those that the file calls dense."""
    values = qwen3(fields) | {"moe": experts(fields, "mellum")}
    fields.anything("num_nextn_predict_layers")
    return values | {"moe_layers": sparse_layers(fields, values["num_layers"])}


def hy_v3(fields: Fields) -> Values:
    """Hunyuan 3: norms of queries and keys, experts behind the first layers."""
    values = hunyuan(fields)
    refuse_biases(fields, "mlp_bias")
    fields.anything("num_nextn_predict_layers")
    values["moe"] = experts(fields, "exaone_moe")
    return values | {"moe_layers": sparse_layers(fields, values["num_layers"], first=1)}


def hunyuan_moe(fields: Fields) -> Values:
    """Hunyuan A13B: a shared expert of the size of the others; lists give a value per layer, all alike."""
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        given = fields.anything(key)
        if isinstance(given, list) and len(set(map(str, given))) == 1:
            fields.entries = {**fields.entries, key: Located(given[0], fields.where)}
    for key in ("attention_head_dim", "cla_share_factor", "use_mixed_mlp_moe"):
        fields.anything(key)
    values = hunyuan(fields)
    size = fields.integer("moe_intermediate_size", values["ffn_hidden"])
    shared = size * fields.integer("num_shared_expert", 1)
    sparse = {"expert_ffn_hidden": size, "shared_ffn_hidden": shared}
    values["moe"] = experts(fields, "hunyuan_moe", **sparse)
    return values | {"moe_layers": sparse_layers(fields, values["num_layers"])}


def afmoe(fields: Fields) -> Values:
    """AFMoE (Trinity): gated attention with norms of queries and keys, every fourth layer sees all tokens."""
    values = decoder(fields) | {"num_norms": 4}
    if fields.switch("attention_bias", False):
        fields.problem("attention_bias", "biases of gated attention are not modelled for this family")
    num_layers = values["num_layers"]
    every, window = fields.integer("global_attn_every_n_layers", 4), fields.integer("sliding_window", 1024)
    usual = tuple(0 if (i + 1) % every == 0 else window for i in range(num_layers))
    values["windows"] = windows(fields, num_layers, every=False) or usual
    fields.switch("mup_enabled", False)
    values["moe"] = experts(fields, "afmoe", **groups(fields))
    dense = fields.integer("num_dense_layers", 1, least=0)
    values["moe_layers"] = tuple(i >= dense for i in range(num_layers))
    return uniform(values, qk_norm="head", has_output_gate=True)


def dbrx(fields: Fields) -> Values:
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    ffn, kinds = fields.section("ffn_config"), fields.section("attn_config")
    for section, keys in ((ffn, ("ffn_act_fn", "moe_jitter_eps", "moe_loss_weight")), (kinds, ("clip_qkv",))):
        for key in (*keys, "hidden_size", "moe_normalize_expert_weights", "uniform_expert_assignment"):
            section.anything(key)
    moe = experts(ffn, "dbrx")
    for key in ("max_seq_len", "num_key_value_heads"):
        fields.anything(key)
    return {
        "num_layers": fields.integer("n_layers"),
        "hidden": hidden,
        "ffn_hidden": moe.expert_ffn_hidden,
        "num_heads": heads,
        "num_kv_heads": kinds.integer("kv_n_heads", 1),
        "head_dim": max(hidden // heads, 1),
        **vocabulary(fields.integer("vocab_size")),
        "is_tied": fields.switch("tie_word_embeddings", False),
        "moe": moe,  # its LayerNorm has no shift: as many parameters as RMSNorm
    }


def glm4_moe(fields: Fields) -> Values:
    values = decoder(fields) | {"has_qk_norm": fields.switch("use_qk_norm", False)}
    values = with_biases(fields, values, output=False)
    return values | routed(fields, values["num_layers"], has_router_bias=True, is_router_bias_buffer=True)


def bailing_moe(fields: Fields) -> Values:
    """Ling and Ring 2.0: norms of queries and keys, shared experts, a bias of the router by rule."""
    values = decoder(fields) | {"has_qk_norm": fields.switch("use_qk_norm", True)}
    for key in ("use_bias", "use_qkv_bias"):
        refuse_biases(fields, key)
    for key in ("norm_head", "norm_softmax", "score_function", "router_dtype", "moe_router_enable_expert_bias",
                "use_rmsnorm", "moe_shared_expert_intermediate_size", "mtp_loss_scaling_factor"):  # fmt: skip
        fields.anything(key)
    values["windows"] = windows(fields, values["num_layers"])
    values["num_mtp_layers"] = fields.integer("num_nextn_predict_layers", 0, least=0)
    values["moe"] = experts(fields, "exaone_moe", **groups(fields))
    return values | {"moe_layers": sparse_layers(fields, values["num_layers"])}


def mimo_v2_flash(fields: Fields) -> Values:
    """MiMo-V2-Flash: every sixth layer sees all tokens; the others slide, with sinks and twice the key heads."""
    values = decoder(fields)
    num_layers, kv_heads = values["num_layers"], values["num_kv_heads"]
    if fields.switch("add_full_attention_sink_bias", False) or not fields.switch("add_swa_attention_sink_bias", True):
        fields.problem("add_full_attention_sink_bias", "sinks other than those of sliding layers are not modelled")
    for key in ("attention_value_scale", "sliding_window_size", "hybrid_block_size", "attention_chunk_size",
                "swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim", "swa_rope_theta"):  # fmt: skip
        fields.anything(key)
    usual = [0 if i == 0 or (i + 1) % 6 == 0 else 1 for i in range(num_layers)]
    pattern = fields.whole_numbers("hybrid_layer_pattern") or usual
    kinds = {"v_head_dim": fields.integer("v_head_dim", 128), "has_qkv_bias": fields.switch("attention_bias", False)}
    sliding = {"num_kv_heads": fields.integer("swa_num_key_value_heads", 2 * kv_heads), "has_sinks": True,
               "window": fields.integer("sliding_window", 129)}  # fmt: skip
    mixers = {"full_attention": attention(values, **kinds), "sliding_attention": attention(values, **kinds | sliding)}
    values["mixers"] = repeated(mixed(fields, mixers, [[*mixers][one] for one in pattern[:num_layers]]))
    values |= routed(fields, num_layers)
    return values | {"moe_layers": sparse_layers(fields, num_layers, first=1)}


def dots1(fields: Fields) -> Values:
    """dots.llm1: norms of queries and keys per head, DeepSeek's experts."""
    values = decoder(fields) | {"has_qk_norm": True}
    values["windows"] = windows(fields, values["num_layers"], every=False)
    values |= routed(fields, values["num_layers"], has_router_bias=True, is_router_bias_buffer=True)
    return biased(values) if fields.switch("attention_bias", False) else values


def solar_open(fields: Fields) -> Values:
    """Solar Open: GLM-4.5's layers, experts in all of them."""
    unused = Located(fields.integer("moe_intermediate_size"), fields.where)
    fields.entries = {"intermediate_size": unused, **fields.entries}
    return glm4_moe(fields)


def ernie_moe(fields: Fields) -> Values:
    """ERNIE 4.5 with experts in every `moe_layer_interval`-th layer from one to another."""
    values = ernie(fields)
    num_layers = values["num_layers"]
    if values["has_linear_bias"]:
        fields.problem("use_bias", "biases beside experts are not modelled for this family")
    values["moe"] = experts(fields, "ernie_moe")
    start, end = (
        fields.integer("moe_layer_start_index", 1, least=0),
        fields.integer("moe_layer_end_index", -1, least=-1),
    )
    every, last = fields.integer("moe_layer_interval", 1), num_layers - 1 if end == -1 else end
    if fields.items("mlp_layer_types"):
        return values | {"moe_layers": sparse_layers(fields, num_layers)}
    return values | {"moe_layers": tuple((i + 1) % every == 0 and start <= i <= last for i in range(num_layers))}


def granite_moe(fields: Fields) -> Values:
    """Granite with experts of the MLP's size, and shared ones of a size of their own."""
    values = all_experts(fields, llama(fields), "local_experts")
    shared = fields.integer("shared_intermediate_size", 0, least=0)
    return values | {"moe": replace(values["moe"], shared_ffn_hidden=shared)}


def granite_moe_swa(fields: Fields) -> Values:
    return with_sinks(fields, granite_moe(fields))


def flex_olmo(fields: Fields) -> Values:
    return all_experts(fields, olmo2(fields), "plain_experts")


def exaone_moe(fields: Fields) -> Values:
    values = exaone4(fields)
    values["moe"] = experts(fields, "exaone_moe", **groups(fields))
    return values | {"moe_layers": sparse_layers(fields, values["num_layers"], first=1)}


def llama4(fields: Fields) -> Values:
    """Llama 4's text part: attention in chunks but for every fourth layer."""
    values = decoder(fields)
    fields.switch("use_qk_norm", True)
    num_layers, expert_hidden = values["num_layers"], values["ffn_hidden"]
    step, chunk = fields.integer("interleave_moe_layer_step", 1), fields.integer("attention_chunk_size")
    has_bias = fields.switch("attention_bias", False)
    values["ffn_hidden"] = fields.integer("intermediate_size_mlp")
    values["moe"] = experts(fields, "local_experts", expert_ffn_hidden=expert_hidden, shared_ffn_hidden=expert_hidden)
    given = fields.items("moe_layers") if fields.has("moe_layers") else range(step - 1, num_layers, step)
    values["moe_layers"] = tuple(layer in given for layer in range(num_layers))
    kinds = [chunk if is_chunked else 0 for is_chunked in _chunked(fields, num_layers)]
    made = (attention(values, chunk=size, has_qkv_bias=has_bias, has_output_bias=has_bias) for size in kinds)
    return values | {"mixers": repeated(list(made))}


def _chunked(fields: Fields, num_layers: int) -> list[bool]:
    """Which layers attend in chunks: by `layer_types`, else those with rotary embeddings (`no_rope_layers` has 1)."""
    interval, given = fields.integer("no_rope_layer_interval"), fields.items("no_rope_layers")
    if fields.items("layer_types"):
        words = ("chunked_attention", "full_attention")
        return [kind == words[0] for kind in layer_types(fields, num_layers, words)]
    if given and len(given) != num_layers:
        fields.problem("no_rope_layers", f"has {len(given)} entries; the model has {num_layers} layers")
    elif given:
        return [bool(one) for one in given]
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def gpt_oss(fields: Fields) -> Values:
    values = decoder(fields)
    alternating = (fields.integer("sliding_window"), 0)
    found = windows(fields, values["num_layers"], every=False)
    values["windows"] = found or tuple(alternating[i % 2] for i in range(values["num_layers"]))
    has_bias = fields.switch("attention_bias", True)
    top_k = "num_experts_per_tok" if fields.has("num_experts_per_tok") else "experts_per_token"
    fields.anything("experts_per_token")
    values["moe"] = experts(fields, "gpt_oss", top_k=fields.integer(top_k), expert_ffn_hidden=values["ffn_hidden"])
    values["activation_clamp"] = fields.number("swiglu_limit")
    values |= {"has_linear_bias": True, "has_qkv_bias": False, "has_attention_sinks": True}
    return values if has_bias else uniform(values, has_sinks=True)


def minimax_m2(fields: Fields) -> Values:
    """MiniMax-M2: norms of queries and keys over all heads, a bias of the router by rule, several MTP modules."""
    values = decoder(fields)
    if any(kind != 1 for kind in fields.whole_numbers("attn_type_list")):
        fields.problem("attn_type_list", "layers other than full attention (1) are not modelled for this family")
    fields.word("scoring_func", "")
    values["moe"] = experts(fields, "minimax_m2", expert_ffn_hidden=values["ffn_hidden"])
    has_mtp, modules = fields.switch("use_mtp", False), fields.integer("num_mtp_modules", 0, least=0)
    depth = fields.integer("mtp_transformer_layers", 1, least=0)
    values["num_mtp_layers"] = modules * depth if has_mtp else 0
    values["windows"] = windows(fields, values["num_layers"])
    if not fields.switch("use_qk_norm", True):
        return values
    given = {"per_layer": "all", "per_head": "head"}
    norm = given.get(fields.word("qk_norm_type", "per_layer"))
    if norm is None:
        fields.problem("qk_norm_type", f"is not one of {', '.join(given)}")
    return uniform(values, qk_norm=norm)


def minimax_m3(fields: Fields) -> Values:
    """MiniMax-M3: experts of one size, dense layers of another, block-sparse attention in the layers with experts."""
    values = decoder(fields) | {"has_qk_norm": fields.switch("use_qk_norm", True)}
    expert_hidden = fields.integer("moe_intermediate_size", values["ffn_hidden"])
    values["ffn_hidden"] = fields.integer("dense_intermediate_size")
    fields.word("qk_norm_type", "per_head")
    fields.switch("attention_output_gate", False)
    fields.word("scoring_func", "")
    shared_size = fields.integer("shared_intermediate_size", expert_hidden)
    values["moe"] = experts(fields, "minimax_m3", expert_ffn_hidden=expert_hidden, shared_size=shared_size)
    values["activation_clamp"] = fields.number("swiglu_limit", 0.0)
    values["moe_layers"] = sparse_layers(fields, values["num_layers"])
    fields.anything("num_nextn_predict_layers")
    values["num_mtp_layers"] = fields.integer("num_mtp_modules", 0, least=0)
    sparse = fields.section("sparse_attention_config")
    return values | _block_sparse(sparse, values)


def _block_sparse(sparse: Fields, values: Values) -> Values:
    """Block-sparse attention where `sparse_attention_freq` says so; the selection is made by small heads."""
    if not sparse.switch("use_sparse_attention", False):
        return {}
    flags = sparse.whole_numbers("sparse_attention_freq")
    if len(flags) != values["num_layers"]:
        sparse.problem(
            "sparse_attention_freq", f"has {len(flags)} entries; the model has {values['num_layers']} layers"
        )
        return {}
    found = sizes(sparse, "block_sparse_indexer")
    top_k = sparse.integer("sparse_topk_blocks") * found["block"]
    for key in ("sparse_disable_index_value", "sparse_score_type", "sparse_init_block", "sparse_local_block"):
        sparse.anything(key)
    changes: dict[str, Any] = {"qk_norm": "head" if values["has_qk_norm"] else "none"}
    indexer = Indexer(**found, top_k=top_k, has_weights=False, norm_params=2 * found["head_dim"])
    made = [attention(values, indexer=indexer, **changes) if flag else None for flag in flags]
    return {"mixers": repeated(made)}


def deepseek(fields: Fields) -> Values:
    values = _latent_decoder(fields)
    has_bias = fields.word("topk_method", "") == "noaux_tc"
    values |= routed(fields, values["num_layers"], has_router_bias=has_bias, is_router_bias_buffer=has_bias)
    refuse_biases(fields, "mlp_bias")
    if not fields.switch("attention_bias", False):
        return values
    mixer = LatentMixer(num_heads=values["num_heads"], latent=values["latent"], has_bias=True)
    return values | {"mixers": (mixer,) * values["num_layers"]}


def biased_deepseek(fields: Fields) -> Values:
    """DeepSeek-V3's layers with the router's bias that its rule updates: GLM-4.7 Flash."""
    fields.entries = {**fields.entries, "topk_method": Located("noaux_tc", fields.where)}
    return deepseek(fields)


def dense_latent(fields: Fields) -> Values:
    """Latent attention and a dense MLP in every layer: Youtu-LLM."""
    values = _latent_decoder(fields)
    if fields.switch("attention_bias", False):
        fields.problem("attention_bias", "biases of latent attention are not modelled for this family")
    return values


def _latent_decoder(fields: Fields) -> Values:
    values = decoder(fields)
    values["latent"] = latent_sizes(fields)
    # transformers' own V2/V3 classes report `head_dim` as the rotary part only; MLA's dims above say it all.
    values["head_dim"] = values["latent"].qk_nope_head_dim
    values["num_kv_heads"] = values["num_heads"]
    return values


SPARSE = "indexed_attention"
"""What `layer_types` calls latent attention with an indexer."""


def sparse_deepseek(fields: Fields) -> Values:
    """DeepSeek-V3.2 and GLM-5: latent attention over the tokens an indexer selects, of its own or of a layer before."""
    values = _latent_decoder(fields)
    values |= routed(fields, values["num_layers"], has_router_bias=True, is_router_bias_buffer=True)
    has_bias = fields.switch("attention_bias", False)
    found = sizes(fields, "indexer")
    indexer = Indexer(**found, query_rank=values["latent"].q_lora_rank, norm_params=2 * found["head_dim"])
    if any(kind != SPARSE for kind in fields.items("layer_types")):
        fields.problem("layer_types", f"layers other than {SPARSE} are not modelled for this family")
    made = {
        has_own: LatentMixer(
            num_heads=values["num_heads"],
            latent=values["latent"],
            has_bias=has_bias,
            indexer=replace(indexer, has_own=has_own),
        )
        for has_own in (True, False)
    }
    return values | {"mixers": tuple(made[own] for own in _has_own_indexer(fields, values["num_layers"]))}


def _has_own_indexer(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Layers with an indexer of their own: all, or as `indexer_types` or a frequency says (GLM-5.2)."""
    frequency, offset = fields.integer("index_topk_freq", 1), fields.integer("index_skip_topk_offset", 2, least=0)
    types, pattern = fields.items("indexer_types"), fields.anything("index_topk_pattern")
    given = types or (list(pattern) if isinstance(pattern, str) else fields.items("index_topk_pattern"))
    if given:
        if len(given) != num_layers:
            fields.problem("indexer_types", f"has {len(given)} entries; the model has {num_layers} layers")
            return (True,) * num_layers
        return tuple(kind in ("full", "F") for kind in given)
    return tuple(max(layer - offset + 1, 0) % frequency == 0 for layer in range(num_layers))


RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def compressed_deepseek(fields: Fields) -> Values:
    """DeepSeek-V4: a shared key/value head, compressed blocks of earlier tokens, hyper-connections."""
    values = decoder(fields, ffn_key="moe_intermediate_size")
    for key in ("num_hash_layers", "scoring_func", "topk_method", "qk_rope_head_dim", "attention_bias", "mlp_bias"):
        fields.anything(key)
    fields.anything("mlp_layer_types")
    values["num_kv_heads"] = values["num_heads"]
    values["moe"] = experts(fields, "compressed_deepseek", **groups(fields))
    values["activation_clamp"] = fields.number("swiglu_limit", 10.0)
    values["hyper_streams"] = fields.integer("hc_mult", 4)
    values["num_mtp_layers"] = fields.integer("num_nextn_predict_layers", 1, least=0)
    return values | {"mixers": compressed_mixers(fields, values["num_layers"], values["num_heads"], values["head_dim"])}


def compressed_mixers(
    fields: Fields, num_layers: int, num_heads: int, head_dim: int, window_key: str = "sliding_window"
) -> tuple[CompressedAttention | None, ...]:
    """One mixer per layer from `compress_ratios` (further entries are of the MTP layers) or `layer_types`."""
    given = fields.anything("compress_ratios")
    ratios = plain_list(given) if isinstance(given, str) else fields.whole_numbers("compress_ratios")
    rates = fields.section("compress_rates")
    if not ratios and fields.items("layer_types"):
        words = [str(kind) for kind in fields.items("layer_types")]
        ratios = [rates.integer(kind, RATIOS.get(kind, 0), least=0) for kind in words]
    if len(ratios) < num_layers:
        fields.problem("compress_ratios", f"has {len(ratios)} entries; the model has {num_layers} layers")
        ratios = [0] * num_layers
    known = {"num_heads": num_heads, "head_dim": head_dim, "window": fields.integer(window_key, 128)}
    known |= sizes(fields, "compressed_attention")
    indexer = sizes(fields, "compressed_indexer")
    made = [CompressedAttention(**known, ratio=r, **(indexer if r == 4 else {})) for r in ratios[:num_layers]]
    return tuple(one for one in repeated(made) if one is None or isinstance(one, CompressedAttention))


def plain_list(text: str) -> list[int]:
    """The whole numbers of a list in text, `[0, 4, 128]`; empty where it is none."""
    parts = [plain(part.strip()) for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    return [part for part in parts if isinstance(part, int)] if all(isinstance(p, int) for p in parts) else []
