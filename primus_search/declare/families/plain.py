"""Dense decoders: the Llama kind, older ones with names of their own for everything, and Gemma 2, 3 and 4."""

from collections.abc import Sequence

from primus_search.declare.families.parts import (
    Values,
    attention,
    biased,
    decoder,
    experts,
    layer_types,
    refuse_biases,
    repeated,
    uniform,
    windows,
    with_biases,
)
from primus_search.declare.fields import Fields, Located
from primus_search.declare.presets import vocabulary
from primus_search.values.model import Attention, DenseMlp, FeedForward


def llama(fields: Fields) -> Values:
    return with_biases(fields, decoder(fields), output=True, mlp_key="mlp_bias")


def tied_llama(fields: Fields) -> Values:
    """Families whose word embeddings are tied unless said: SmolLM3."""
    values = with_biases(fields, decoder(fields, tied=True), output=True, mlp_key="mlp_bias")
    fields.anything("no_rope_layers")
    fields.anything("no_rope_layer_interval")
    return values | {"windows": windows(fields, values["num_layers"])}


def arcee(fields: Fields) -> Values:
    """Arcee: Llama with a squared ReLU and no gate."""
    return llama(fields) | {"is_gated": False}


def hyperclovax(fields: Fields) -> Values:
    """HyperCLOVA X: Llama with norms of what attention and MLP return."""
    return llama(fields) | {"num_norms": 4 if fields.switch("use_post_norm", True) else 2}


def granite_swa(fields: Fields) -> Values:
    """Granite that slides in some layers, with sinks in all."""
    return with_sinks(fields, llama(fields))


def with_sinks(fields: Fields, values: Values) -> Values:
    has_bias = fields.switch("attention_bias", False)
    values["windows"] = windows(fields, values["num_layers"], every=False)
    fields.anything("layer_rope_theta")
    return uniform(values, has_sinks=True, has_qkv_bias=has_bias, has_output_bias=has_bias)


def cwm(fields: Fields) -> Values:
    """Code World Model: Llama that slides in some layers."""
    values = llama(fields)
    return values | {"windows": windows(fields, values["num_layers"])}


def cohere2(fields: Fields) -> Values:
    """Command R and A: one norm in front of attention and MLP, which run side by side."""
    if fields.switch("use_qk_norm", False):
        fields.problem("use_qk_norm", "norms of queries and keys with scales of each head are not modelled")
    fields.anything("logit_scale")
    values = decoder(fields, tied=True) | {"num_norms": 1}
    values["windows"] = windows(fields, values["num_layers"], every=False)
    return biased(values) if fields.switch("attention_bias", False) else values


def exaone4(fields: Fields) -> Values:
    """EXAONE 4: norms of queries and keys, and of what attention and MLP return."""
    values = decoder(fields) | {"has_qk_norm": True}
    fields.anything("sliding_window_pattern")
    return values | {"windows": windows(fields, values["num_layers"], every=False)}


def glm(fields: Fields) -> Values:
    return with_biases(fields, decoder(fields), output=False)


def glm4(fields: Fields) -> Values:
    """GLM-4: two further norms, of what attention and MLP return."""
    return glm(fields) | {"num_norms": 4}


def hunyuan(fields: Fields) -> Values:
    values = decoder(fields) | {"has_qk_norm": True}
    for key in ("eod_token_id", "use_qk_norm"):  # its class has the norms whatever a file says
        fields.anything(key)
    return biased(values) if fields.switch("attention_bias", False) else values


def seed_oss(fields: Fields) -> Values:
    values = decoder(fields)
    refuse_biases(fields, "mlp_bias")
    has_qkv, has_output = fields.switch("attention_bias", True), fields.switch("attention_out_bias", False)
    if not (has_qkv or has_output):
        return values
    return uniform(values, has_qkv_bias=has_qkv, has_output_bias=has_output)


def ernie(fields: Fields) -> Values:
    return decoder(fields, tied=True) | {"has_linear_bias": fields.switch("use_bias", False)}


def stablelm(fields: Fields) -> Values:
    """StableLM 2: LayerNorm, one of them where attention and MLP run side by side."""
    if fields.switch("qk_layernorm", False):
        fields.problem("qk_layernorm", "norms of queries and keys with scales of each head are not modelled")
    values = decoder(fields) | {"has_qkv_bias": fields.switch("use_qkv_bias", False), "norm": "layernorm"}
    return values | {"num_norms": 1 if fields.switch("use_parallel_residual", False) else 2}


def starcoder2(fields: Fields) -> Values:
    values = decoder(fields, tied=True) | {"has_linear_bias": fields.switch("use_bias", True)}
    return values | {"is_gated": False, "norm": "layernorm", "windows": windows(fields, values["num_layers"])}


def mistral(fields: Fields) -> Values:
    values = decoder(fields)
    return values | {"windows": windows(fields, values["num_layers"])}


def qwen2(fields: Fields) -> Values:
    return _qwen(fields) | {"has_qkv_bias": True}


def _qwen(fields: Fields) -> Values:
    values = decoder(fields)
    is_used, first = fields.switch("use_sliding_window", False), fields.integer("max_window_layers", 28, least=0)
    window = fields.integer("sliding_window", 0, least=0)
    if fields.items("layer_types"):
        return values | {"windows": windows(fields, values["num_layers"])}
    if is_used:
        values["windows"] = tuple(window if layer >= first else 0 for layer in range(values["num_layers"]))
    return values


def mimo(fields: Fields) -> Values:
    """MiMo-7B: Qwen2's layers, biases of queries, keys and values as said, and a prediction layer."""
    has_bias = fields.switch("attention_bias", True)
    fields.switch("use_mrope", False)
    mtp = fields.integer("num_nextn_predict_layers", 0, least=0)
    return _qwen(fields) | {"has_qkv_bias": has_bias, "num_mtp_layers": mtp}


def qwen3(fields: Fields) -> Values:
    values = _qwen(fields) | {"has_qk_norm": fields.switch("use_qk_norm", True)}
    has_bias = fields.switch("attention_bias", False) or fields.switch("qkv_bias", False)
    return biased(values) if has_bias else values


def olmo2(fields: Fields) -> Values:
    """Norms of queries and keys span all heads; OLMo 3 slides in some layers."""
    values = decoder(fields)
    values["windows"] = windows(fields, values["num_layers"], every=False)
    fields.anything("clip_qkv")
    has_bias = fields.switch("attention_bias", False)
    return uniform(values, qk_norm="all", has_qkv_bias=has_bias, has_output_bias=has_bias)


def gemma(fields: Fields) -> Values:
    return with_biases(fields, decoder(fields, tied=True), output=True)


def gpt_neox(fields: Fields) -> Values:
    fields.anything("rotary_pct")
    has_bias = fields.switch("attention_bias", True)
    for key in ("num_key_value_heads", "head_dim"):  # its class has neither
        fields.anything(key)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    values = decoder(fields) | {"num_kv_heads": heads, "head_dim": max(hidden // heads, 1)}
    values |= {"is_gated": False, "norm": "layernorm", "has_linear_bias": True}
    return values if has_bias else uniform(values)


def nemotron(fields: Fields) -> Values:
    values = with_biases(fields, decoder(fields), output=True, mlp_key="mlp_bias")
    return values | {"is_gated": False, "norm": "layernorm"}


def nemotron_nas(fields: Fields) -> Values:
    """Llama-Nemotron: every layer of the searched model says its key/value groups and its inner size, or none."""
    from primus_search.values.model import Attention, DenseMlp, NoFeedForward, NoMixer

    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    blocks, vocab_size = fields.sections("block_configs"), fields.integer("vocab_size")
    head_dim = fields.integer("head_dim", max(hidden // heads, 1))
    fields.switch("attention_bias", False)
    fields.switch("mlp_bias", False)
    if len(blocks) != fields.integer("num_hidden_layers"):
        fields.problem("block_configs", f"has {len(blocks)} entries; num_hidden_layers says another number")
    mixers, ffns = list[Attention | NoMixer](), list[DenseMlp | NoFeedForward]()
    for block in blocks:
        mixer, ffn = block.section("attention"), block.section("ffn")
        replaced = [part.anything("replace_with_linear") for part in (mixer, ffn)]
        if any(replaced) or mixer.anything("sparsify"):
            fields.problem("block_configs", "blocks replaced by a linear layer are not modelled")
        kv_heads = max(heads // mixer.integer("n_heads_in_group", 1), 1)
        window = mixer.integer("window_length", 0, least=0)
        full = Attention(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, window=window)
        mixers.append(NoMixer() if mixer.switch("no_op", False) else full)
        inner = int(2 * ffn.number("ffn_mult", 0.0) * hidden / 3)
        ffns.append(NoFeedForward() if ffn.switch("no_op", False) else DenseMlp(ffn_hidden=-(-inner // 256) * 256))
    first = next((m for m in mixers if isinstance(m, Attention)), None)
    widest = max((f.ffn_hidden for f in ffns if isinstance(f, DenseMlp)), default=1)
    return {
        "num_layers": len(blocks) or 1,
        "hidden": hidden,
        "ffn_hidden": widest,
        "num_heads": heads,
        "num_kv_heads": first.num_kv_heads if first else heads,
        "head_dim": head_dim,
        **vocabulary(vocab_size),
        "is_tied": fields.switch("tie_word_embeddings", False),
        "mixers": mixers,
        "feed_forwards": ffns,
    }


def gpt2(fields: Fields) -> Values:
    """GPT-2, and GPTBigCode (StarCoder), whose heads may share one key and value."""
    hidden, heads = fields.integer("n_embd"), fields.integer("n_head")
    has_single = fields.switch("multi_query", False)
    fields.anything("num_key_value_heads")
    vocab_size = fields.integer("vocab_size")
    return {
        "num_layers": fields.integer("n_layer"),
        "hidden": hidden,
        "ffn_hidden": fields.integer("n_inner", 4 * hidden),
        "num_heads": heads,
        "num_kv_heads": 1 if has_single else heads,
        "head_dim": max(hidden // heads, 1),
        **vocabulary(vocab_size),
        "is_tied": fields.switch("tie_word_embeddings", True),
        "is_gated": False,
        "norm": "layernorm",
        "has_linear_bias": True,
        "learned_positions": fields.integer("n_positions", fields.integer("n_ctx", 1024)),
    }


def opt(fields: Fields) -> Values:
    values = decoder(fields, tied=True, ffn_key="ffn_dim") | {"norm": "layernorm", "is_gated": False}
    values |= {"num_kv_heads": values["num_heads"], "head_dim": max(values["hidden"] // values["num_heads"], 1)}
    if fields.integer("word_embed_proj_dim", values["hidden"]) != values["hidden"]:
        fields.problem("word_embed_proj_dim", "embeddings of another width than the layers are not modelled")
    usual = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True}
    for key in usual:
        if fields.switch(key, usual[key]) != usual[key]:
            fields.problem(key, "norms behind attention and MLP, or without scales, are not modelled for this family")
    positions = fields.integer("max_position_embeddings", 2048) + 2  # OPTLearnedPositionalEmbedding.offset
    return values | {"has_linear_bias": fields.switch("enable_bias", True), "learned_positions": positions}


def falcon(fields: Fields) -> Values:
    """Falcon: one key/value head or groups of them, one norm or two in front of attention and MLP side by side."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    is_new, is_parallel = fields.switch("new_decoder_architecture", False), fields.switch("parallel_attn", True)
    is_single = fields.switch("multi_query", True) and not is_new
    norms = fields.integer("num_ln_in_parallel_attn", 2 if is_new else 1) if is_parallel else 2
    groups = fields.integer("num_kv_heads", heads)
    inner = Located(fields.integer("ffn_hidden_size", 4 * hidden), fields.where)
    fields.entries = {**fields.entries, "ffn_hidden_size": inner}
    return decoder(fields, tied=True, ffn_key="ffn_hidden_size") | {
        "head_dim": max(hidden // heads, 1),
        "num_kv_heads": 1 if is_single else groups,
        "num_norms": norms,
        "is_gated": False,
        "norm": "layernorm",
        "has_linear_bias": fields.switch("bias", False),
    }


def mpt(fields: Fields) -> Values:
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    vocab_size = fields.integer("vocab_size")
    kinds, ffn = fields.section("attn_config"), fields.section("ffn_config")
    has_bias = not fields.switch("no_bias", True)
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": kinds.integer("kv_n_heads", heads)}
    has_positions = not (kinds.switch("alibi", False) or kinds.switch("rope", False))
    inner = int(fields.number("expansion_ratio", 4.0) * hidden)
    positions = fields.integer("max_seq_len", 2048)
    return {
        "num_layers": fields.integer("n_layers"),
        "hidden": hidden,
        "ffn_hidden": ffn.integer("ffn_hidden_size", inner),
        "num_heads": heads,
        "num_kv_heads": kv_heads.get(kinds.word("attn_type", "multihead_attention"), heads),
        "head_dim": max(hidden // heads, 1),
        **vocabulary(vocab_size),
        "is_tied": fields.switch("tie_word_embeddings", True),
        "is_gated": False,
        # MPT's norms have no shift without biases: as many parameters as RMSNorm.
        "norm": "layernorm" if has_bias else "rmsnorm",
        "has_linear_bias": has_bias,
        "learned_positions": positions if has_positions else 0,
    }


SLIDING, FULL = "sliding_attention", "full_attention"


def gemma2(fields: Fields) -> Values:
    values = decoder(fields, tied=True)
    fields.anything("sliding_window_size")
    found = windows(fields, values["num_layers"], every=False)
    window = fields.integer("sliding_window", 4096)
    values["windows"] = found or tuple(window if i % 2 == 0 else 0 for i in range(values["num_layers"]))
    values["num_norms"] = 4
    return uniform(values, has_qkv_bias=True, has_output_bias=True) if _has_bias(fields) else values


def vaultgemma(fields: Fields) -> Values:
    """VaultGemma: Gemma 2 without the norms of what attention and MLP return."""
    return gemma2(fields) | {"num_norms": 2}


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
