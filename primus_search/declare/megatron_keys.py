"""A model said in the keys of a Primus/Megatron model YAML: the inverse of `megatron`.

It stands in for a Primus preset that an experiment file names when no Primus checkout is at hand, and it is what a
test reads back to hold both directions together.
"""

from typing import Any

from primus_search.values.model import Model


def megatron_keys(model: Model) -> dict[str, Any]:
    """Every size of the model under the key Megatron gives it; reading them back gives the same model.

    Raises ValueError for a model whose layers differ in more than windows and experts.
    """
    if not model.is_uniform:
        raise ValueError(f"{model.name}: layers that declare a mixer of their own have no keys here")
    keys: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
        "group_query_attention": model.num_kv_heads != model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "padded_vocab_size": model.vocab_size,
        "untie_embeddings_and_output_weights": not model.is_tied,
        "swiglu": model.is_gated,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "add_bias_linear": model.has_linear_bias,
        "add_qkv_bias": model.has_qkv_bias,
        "qk_layernorm": model.has_qk_norm,
        "softmax_type": "learnable" if model.has_attention_sinks else "vanilla",
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "mtp_num_layers": model.num_mtp_layers,
    }
    if model.activation_clamp:
        keys["activation_func_clamp_value"] = model.activation_clamp
    if model.learned_positions:
        keys["max_position_embeddings"] = model.learned_positions
    if any(model.windows):
        keys["window_size"] = [max(model.windows) - 1, 0]
        keys["window_attn_skip_freq"] = [int(window > 0) for window in model.windows]
    return keys | _latent_keys(model) | _expert_keys(model)


def _latent_keys(model: Model) -> dict[str, Any]:
    if model.latent is None:
        return {"multi_latent_attention": False}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": model.latent.q_lora_rank or None,
        "kv_lora_rank": model.latent.kv_lora_rank,
        "qk_head_dim": model.latent.qk_nope_head_dim,
        "qk_pos_emb_head_dim": model.latent.qk_rope_head_dim,
        "v_head_dim": model.latent.v_head_dim,
    }


def _expert_keys(model: Model) -> dict[str, Any]:
    if model.moe is None:
        return {}
    return {
        "num_experts": model.moe.num_experts,
        "moe_router_topk": model.moe.top_k,
        "moe_layer_freq": [int(flag) for flag in model.moe_layers],
        "moe_ffn_hidden_size": model.moe.expert_ffn_hidden,
        "moe_shared_expert_intermediate_size": model.moe.shared_ffn_hidden or None,
        "moe_shared_expert_gate": model.moe.has_shared_gate,
        "moe_router_enable_expert_bias": model.moe.has_router_bias and model.moe.is_router_bias_buffer,
        "moe_router_num_groups": model.moe.num_groups or None,
        "moe_router_group_topk": model.moe.top_groups or None,
    }
