"""What no row says of decoders with experts: Qwen, Hunyuan, DBRX, MiMo, ERNIE, Llama 4, GPT-OSS, MiniMax;
and with latent attention: DeepSeek-V2/V3, Kimi-K2, DeepSeek-V3.2 and GLM-5 with an indexer, DeepSeek-V4.
"""

from dataclasses import replace
from typing import Any

from primus_search.files.fields import Fields, Located
from primus_search.files.source import plain
from primus_search.models.families import parts
from primus_search.models.families.parts import Values
from primus_search.values.model import CompressedAttention, Indexer, LatentMixer


def qwen_experts(fields: Fields, values: Values) -> Values:
    """Qwen's experts: gated shared ones, and every `decoder_sparse_step`-th layer but for `mlp_only_layers`."""
    found = parts.experts(fields, "qwen_experts")
    step, dense = fields.integer("decoder_sparse_step", 1), fields.whole_numbers("mlp_only_layers")
    layers = tuple((layer + 1) % step == 0 and layer not in dense for layer in range(values["num_layers"]))
    return values | {"moe": replace(found, has_shared_gate=found.shared_ffn_hidden > 0), "moe_layers": layers}


def flint(fields: Fields, values: Values) -> Values:
    """Flint: Qwen's layers with sinks, a shared expert without a gate, dense layers first."""
    if fields.anything("mlp_only_layers") is None:
        fields.entries = {**fields.entries, "mlp_only_layers": Located([0, 1], fields.where)}
    found = qwen_experts(fields, values)
    return found | {"moe": replace(found["moe"], has_shared_gate=False)}


def laguna(fields: Fields, values: Values) -> Values:
    """Laguna: a gate per head or per channel, heads of each layer by a list."""
    gating, heads = fields.anything("gating"), fields.whole_numbers("num_attention_heads_per_layer")
    has_bias = fields.switch("attention_bias", False)
    known = {"qk_norm": "head", "has_qkv_bias": has_bias, "has_output_bias": has_bias, "has_output_gate": True}
    known |= {"is_gated_by_head": gating != "per-element"}
    every = heads or [values["num_heads"]] * values["num_layers"]
    windows = values["windows"] or (0,) * len(every)
    made = [parts.attention(values, num_heads=n, window=w, **known) for n, w in zip(every, windows, strict=False)]
    return values | {"mixers": parts.repeated(made)}


def hunyuan_moe(fields: Fields, values: Values) -> Values:
    """Hunyuan A13B: a shared expert of the size of the others; lists give a value per layer, all alike."""
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        given = fields.anything(key)
        if isinstance(given, list) and len(set(map(str, given))) == 1:
            fields.entries = {**fields.entries, key: Located(given[0], fields.where)}
    size = fields.integer("moe_intermediate_size", values["ffn_hidden"])
    shared = size * fields.integer("num_shared_expert", 1)
    moe = parts.experts(fields, "hunyuan_moe", expert_ffn_hidden=size, shared_ffn_hidden=shared)
    return values | {"moe": moe, "moe_layers": parts.sparse_layers(fields, values["num_layers"])}


def dbrx(fields: Fields, values: Values) -> Values:
    ffn, kinds = fields.section("ffn_config"), fields.section("attn_config")
    for section, keys in ((ffn, ("ffn_act_fn", "moe_jitter_eps", "moe_loss_weight")), (kinds, ("clip_qkv",))):
        for key in (*keys, "hidden_size", "moe_normalize_expert_weights", "uniform_expert_assignment"):
            section.anything(key)
    moe = parts.experts(ffn, "dbrx")  # its LayerNorm has no shift: as many parameters as RMSNorm
    sizes = {"ffn_hidden": moe.expert_ffn_hidden, "num_kv_heads": kinds.integer("kv_n_heads", 1)}
    return values | sizes | {"moe": moe}


def mimo_v2_flash(fields: Fields, values: Values) -> Values:
    """MiMo-V2-Flash: every sixth layer sees all tokens; the others slide, with sinks and twice the key heads."""
    num_layers, kv_heads = values["num_layers"], values["num_kv_heads"]
    if fields.switch("add_full_attention_sink_bias", False) or not fields.switch("add_swa_attention_sink_bias", True):
        fields.problem("add_full_attention_sink_bias", "sinks other than those of sliding layers are not modelled")
    usual = [0 if i == 0 or (i + 1) % 6 == 0 else 1 for i in range(num_layers)]
    pattern = fields.whole_numbers("hybrid_layer_pattern") or usual
    kinds = {"v_head_dim": fields.integer("v_head_dim", 128), "has_qkv_bias": fields.switch("attention_bias", False)}
    sliding = {"num_kv_heads": fields.integer("swa_num_key_value_heads", 2 * kv_heads), "has_sinks": True,
               "window": fields.integer("sliding_window", 129)}  # fmt: skip
    full, slides = parts.attention(values, **kinds), parts.attention(values, **kinds | sliding)
    mixers = {"full_attention": full, "sliding_attention": slides}
    words = [[*mixers][one] for one in pattern[:num_layers]]
    return values | {"mixers": parts.repeated(parts.mixed(fields, mixers, words))}


def ernie_moe(fields: Fields, values: Values) -> Values:
    """ERNIE 4.5 with experts in every `moe_layer_interval`-th layer from one to another."""
    num_layers = values["num_layers"]
    if values["has_linear_bias"]:
        fields.problem("use_bias", "biases beside experts are not modelled for this family")
    start = fields.integer("moe_layer_start_index", 1, least=0)
    end = fields.integer("moe_layer_end_index", -1, least=-1)
    every, last = fields.integer("moe_layer_interval", 1), num_layers - 1 if end == -1 else end
    if fields.items("mlp_layer_types"):
        return values | {"moe_layers": parts.sparse_layers(fields, num_layers)}
    return values | {"moe_layers": tuple((i + 1) % every == 0 and start <= i <= last for i in range(num_layers))}


def llama4(fields: Fields, values: Values) -> Values:
    """Llama 4's text part: attention in chunks but for every fourth layer."""
    num_layers, size = values["num_layers"], values["ffn_hidden"]
    step, chunk = fields.integer("interleave_moe_layer_step", 1), fields.integer("attention_chunk_size")
    has_bias = fields.switch("attention_bias", False)
    moe = parts.experts(fields, "local_experts", expert_ffn_hidden=size, shared_ffn_hidden=size)
    given = fields.items("moe_layers") if fields.has("moe_layers") else range(step - 1, num_layers, step)
    kinds = [chunk if is_chunked else 0 for is_chunked in _chunked(fields, num_layers)]
    made = [parts.attention(values, chunk=one, has_qkv_bias=has_bias, has_output_bias=has_bias) for one in kinds]
    return values | {
        "ffn_hidden": fields.integer("intermediate_size_mlp"),
        "moe": moe,
        "moe_layers": tuple(layer in given for layer in range(num_layers)),
        "mixers": parts.repeated(made),
    }


def _chunked(fields: Fields, num_layers: int) -> list[bool]:
    """Which layers attend in chunks: by `layer_types`, else those with rotary embeddings (`no_rope_layers` has 1)."""
    interval, given = fields.integer("no_rope_layer_interval"), fields.items("no_rope_layers")
    if fields.items("layer_types"):
        words = ("chunked_attention", "full_attention")
        return [kind == words[0] for kind in parts.layer_types(fields, num_layers, words)]
    if given and len(given) != num_layers:
        fields.problem("no_rope_layers", f"has {len(given)} entries; the model has {num_layers} layers")
    elif given:
        return [bool(one) for one in given]
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def gpt_oss(fields: Fields, values: Values) -> Values:
    top_k = "num_experts_per_tok" if fields.has("num_experts_per_tok") else "experts_per_token"
    size = values["ffn_hidden"]
    values["moe"] = parts.experts(fields, "gpt_oss", top_k=fields.integer(top_k), expert_ffn_hidden=size)
    values["activation_clamp"] = fields.number("swiglu_limit")
    return values if fields.switch("attention_bias", True) else parts.uniform(values, has_sinks=True)


def minimax_m2(fields: Fields, values: Values) -> Values:
    if any(kind != 1 for kind in fields.whole_numbers("attn_type_list")):
        fields.problem("attn_type_list", "layers other than full attention (1) are not modelled for this family")
    has_mtp, modules = fields.switch("use_mtp", False), fields.integer("num_mtp_modules", 0, least=0)
    depth = fields.integer("mtp_transformer_layers", 1, least=0)
    values["num_mtp_layers"] = modules * depth if has_mtp else 0
    if not fields.switch("use_qk_norm", True):
        return values
    given = {"per_layer": "all", "per_head": "head"}
    norm = given.get(fields.word("qk_norm_type", "per_layer"))
    if norm is None:
        fields.problem("qk_norm_type", f"is not one of {', '.join(given)}")
    return parts.uniform(values, qk_norm=norm)


def minimax_m3(fields: Fields, values: Values) -> Values:
    size = fields.integer("moe_intermediate_size", values["ffn_hidden"])
    shared = fields.integer("shared_intermediate_size", size)
    values["ffn_hidden"] = fields.integer("dense_intermediate_size")
    values["moe"] = parts.experts(fields, "minimax_m3", expert_ffn_hidden=size, shared_size=shared)
    values["moe_layers"] = parts.sparse_layers(fields, values["num_layers"])
    return values | _block_sparse(fields.section("sparse_attention_config"), values)


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
    found = parts.sizes(sparse, "block_sparse_indexer")
    top_k = sparse.integer("sparse_topk_blocks") * found["block"]
    for key in ("sparse_disable_index_value", "sparse_score_type", "sparse_init_block", "sparse_local_block"):
        sparse.anything(key)
    changes: dict[str, Any] = {"qk_norm": "head" if values["has_qk_norm"] else "none"}
    indexer = Indexer(**found, top_k=top_k, has_weights=False, norm_params=2 * found["head_dim"])
    made = [parts.attention(values, indexer=indexer, **changes) if flag else None for flag in flags]
    return {"mixers": parts.repeated(made)}


def deepseek(fields: Fields, values: Values) -> Values:
    if fields.word("topk_method", "") == "noaux_tc":
        values["moe"] = replace(values["moe"], has_router_bias=True, is_router_bias_buffer=True)
    if not fields.switch("attention_bias", False):
        return values
    mixer = LatentMixer(num_heads=values["num_heads"], latent=values["latent"], has_bias=True)
    return values | {"mixers": (mixer,) * values["num_layers"]}


SPARSE = "indexed_attention"
"""What `layer_types` calls latent attention with an indexer."""


def sparse_deepseek(fields: Fields, values: Values) -> Values:
    heads, latent, has_bias = values["num_heads"], values["latent"], fields.switch("attention_bias", False)
    found = parts.sizes(fields, "indexer")
    indexer = Indexer(**found, query_rank=latent.q_lora_rank, norm_params=2 * found["head_dim"])
    if any(kind != SPARSE for kind in fields.items("layer_types")):
        fields.problem("layer_types", f"layers other than {SPARSE} are not modelled for this family")
    full = LatentMixer(num_heads=heads, latent=latent, has_bias=has_bias, indexer=indexer)
    reuses = replace(full, indexer=replace(indexer, has_own=False))
    own = _has_own_indexer(fields, values["num_layers"])
    return values | {"mixers": tuple(full if has_own else reuses for has_own in own)}


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


def compressed_deepseek(fields: Fields, values: Values) -> Values:
    heads = values["num_heads"]
    mixers = compressed_mixers(fields, values["num_layers"], heads, values["head_dim"])
    return values | {"num_kv_heads": heads, "mixers": mixers}


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
    known |= parts.sizes(fields, "compressed_attention")
    indexer = parts.sizes(fields, "compressed_indexer")
    made = [CompressedAttention(**known, ratio=r, **(indexer if r == 4 else {})) for r in ratios[:num_layers]]
    return tuple(one for one in parts.repeated(made) if one is None or isinstance(one, CompressedAttention))


def plain_list(text: str) -> list[int]:
    """The whole numbers of a list in text, `[0, 4, 128]`; empty where it is none."""
    parts = [plain(part.strip()) for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    return [part for part in parts if isinstance(part, int)] if all(isinstance(p, int) for p in parts) else []
