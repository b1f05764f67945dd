"""Families with latent attention: DeepSeek-V2/V3, Kimi-K2, DeepSeek-V3.2 and GLM-5 with an indexer, DeepSeek-V4."""

from dataclasses import replace

from primus_search.declare.families.parts import (
    Values,
    decoder,
    experts,
    groups,
    latent_sizes,
    refuse_biases,
    repeated,
    routed,
    sizes,
)
from primus_search.declare.fields import Fields, Located
from primus_search.declare.source import plain
from primus_search.values.model import CompressedAttention, Indexer, LatentMixer


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
