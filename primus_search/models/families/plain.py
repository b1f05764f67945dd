"""What no row says of dense decoders: older ones, those with blocks of different sizes, and Gemma 4."""

from collections.abc import Sequence

from primus_search.files.fields import Fields
from primus_search.models.families import parts
from primus_search.models.families.parts import Values
from primus_search.values.model import Attention, DenseMlp, FeedForward, NoFeedForward, NoMixer


def gpt_neox(fields: Fields, values: Values) -> Values:
    return values if fields.switch("attention_bias", True) else parts.uniform(values)


def gpt2(fields: Fields, values: Values) -> Values:
    """GPT-2, and GPTBigCode (StarCoder), whose heads may share one key and value."""
    return values | ({"num_kv_heads": 1} if fields.switch("multi_query", False) else {})


def opt(fields: Fields, values: Values) -> Values:
    if fields.integer("word_embed_proj_dim", values["hidden"]) != values["hidden"]:
        fields.problem("word_embed_proj_dim", "embeddings of another width than the layers are not modelled")
    usual = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True}
    for key, is_on in usual.items():
        if fields.switch(key, is_on) != is_on:
            fields.problem(key, "norms behind attention and MLP, or without scales, are not modelled for this family")
    positions = fields.integer("max_position_embeddings", 2048) + 2  # OPTLearnedPositionalEmbedding.offset
    return values | {"learned_positions": positions}


def falcon(fields: Fields, values: Values) -> Values:
    """Falcon: one key/value head or groups of them, one norm or two in front of attention and MLP side by side."""
    is_new, is_parallel = fields.switch("new_decoder_architecture", False), fields.switch("parallel_attn", True)
    is_single = fields.switch("multi_query", True) and not is_new
    norms = fields.integer("num_ln_in_parallel_attn", 2 if is_new else 1) if is_parallel else 2
    groups = fields.integer("num_kv_heads", values["num_heads"])
    return values | {"num_kv_heads": 1 if is_single else groups, "num_norms": norms}


def mpt(fields: Fields, values: Values) -> Values:
    heads, kinds, ffn = values["num_heads"], fields.section("attn_config"), fields.section("ffn_config")
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": kinds.integer("kv_n_heads", heads)}
    has_positions = not (kinds.switch("alibi", False) or kinds.switch("rope", False))
    inner = int(fields.number("expansion_ratio", 4.0) * values["hidden"])
    positions = fields.integer("max_seq_len", 2048)
    return values | {
        "ffn_hidden": ffn.integer("ffn_hidden_size", inner),
        "num_kv_heads": kv_heads.get(kinds.word("attn_type", "multihead_attention"), heads),
        "learned_positions": positions if has_positions else 0,
    }


def nemotron_nas(fields: Fields, values: Values) -> Values:
    """Llama-Nemotron: every layer of the searched model says its key/value groups and its inner size, or none."""
    hidden, heads, blocks = values["hidden"], values["num_heads"], fields.sections("block_configs")
    if len(blocks) != values["num_layers"]:
        fields.problem("block_configs", f"has {len(blocks)} entries; num_hidden_layers says another number")
    mixers, ffns = list[Attention | NoMixer](), list[DenseMlp | NoFeedForward]()
    for block in blocks:
        mixer, ffn = block.section("attention"), block.section("ffn")
        replaced = [part.anything("replace_with_linear") for part in (mixer, ffn)]
        if any(replaced) or mixer.anything("sparsify"):
            fields.problem("block_configs", "blocks replaced by a linear layer are not modelled")
        kv_heads = max(heads // mixer.integer("n_heads_in_group", 1), 1)
        window = mixer.integer("window_length", 0, least=0)
        full = parts.attention(values, num_kv_heads=kv_heads, window=window)
        mixers.append(NoMixer() if mixer.switch("no_op", False) else full)
        inner = int(2 * ffn.number("ffn_mult", 0.0) * hidden / 3)
        ffns.append(NoFeedForward() if ffn.switch("no_op", False) else DenseMlp(ffn_hidden=-(-inner // 256) * 256))
    first = next((m.num_kv_heads for m in mixers if isinstance(m, Attention)), heads)
    widest = max((f.ffn_hidden for f in ffns if isinstance(f, DenseMlp)), default=1)
    sizes = {"num_layers": len(blocks) or 1, "ffn_hidden": widest, "num_kv_heads": first}
    return values | sizes | {"mixers": mixers, "feed_forwards": ffns}


SLIDING, FULL = "sliding_attention", "full_attention"


def gemma4(fields: Fields, values: Values) -> Values:
    """Gemma 4: global layers with heads of another size whose keys serve as values, experts beside a dense MLP."""
    num_layers, has_bias = values["num_layers"], fields.switch("attention_bias", False)
    window = fields.integer("sliding_window", 512)
    types = [SLIDING if (i + 1) % 6 else FULL for i in range(num_layers)]
    if fields.items("layer_types"):
        types = list(parts.layer_types(fields, num_layers, (SLIDING, FULL)))
    shared = fields.integer("num_kv_shared_layers", 0, least=0)
    mixers = [
        _gemma4_mixer(fields, values, kind, window, has_bias, i >= num_layers - shared)
        for i, kind in enumerate([*types[:-1], FULL])
    ]
    _check_layers(fields, mixers)
    if fields.integer("vocab_size_per_layer_input", values["vocab_size"]) != values["vocab_size"]:
        fields.problem("vocab_size_per_layer_input", "another vocabulary of per-layer embeddings is not modelled")
    values["per_layer_embedding"] = fields.integer("hidden_size_per_layer_input", 256, least=0)
    values |= {"mixers": parts.repeated(mixers), "windows": tuple(m.window for m in mixers), "num_norms": 4}
    is_wide = fields.switch("use_double_wide_mlp", False)
    wide = DenseMlp(ffn_hidden=2 * values["ffn_hidden"])
    ffns: tuple[FeedForward | None, ...] = tuple(wide if is_wide and m.reuses_kv else None for m in mixers)
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size", "use_bidirectional_attention"):
        fields.anything(key)
    if fields.switch("enable_moe_block", False):
        moe = parts.experts(fields, "gemma4", parallel_ffn_hidden=values["ffn_hidden"])
        values |= {"moe": moe, "num_norms": 7}
    return values | {"feed_forwards": ffns, "has_qk_norm": True}


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


def _gemma4_mixer(fields: Fields, values: Values, kind: str, window: int, has_bias: bool, reuses_kv: bool) -> Attention:
    is_global = kind == FULL
    has_shared = is_global and fields.switch("attention_k_eq_v", False)
    kv_heads = fields.integer("num_global_key_value_heads", values["num_kv_heads"])
    changes = {"head_dim": fields.integer("global_head_dim", 512)} if is_global else {"window": window}
    changes |= {"num_kv_heads": kv_heads} if has_shared else {}
    known = {"qk_norm": "head", "has_qkv_bias": has_bias, "has_output_bias": has_bias}
    return parts.attention(values, **changes, **known, has_shared_kv=has_shared, reuses_kv=reuses_kv)
