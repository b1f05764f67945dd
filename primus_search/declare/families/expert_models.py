"""Decoders with experts and plain attention: Mixtral, Qwen, GLM-4, Llama 4, GPT-OSS, OLMoE, MiniMax-M2."""

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
    layer_types,
    repeated,
    routed,
    sizes,
    sparse_layers,
    uniform,
    windows,
    with_biases,
)
from primus_search.declare.families.plain import ernie, exaone4, llama, mistral, olmo2, qwen2, qwen3
from primus_search.declare.fields import Fields, Located
from primus_search.values.model import Indexer


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


def glm4_moe(fields: Fields) -> Values:
    values = decoder(fields) | {"has_qk_norm": fields.switch("use_qk_norm", False)}
    values = with_biases(fields, values, output=False)
    return values | routed(fields, values["num_layers"], has_router_bias=True, is_router_bias_buffer=True)


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
