"""The sizes of a model as Megatron arguments.

Four shapes: plain layers; latent attention with an indexer in every layer (`dsa`); Gated DeltaNet with gated attention
in between (`gated_delta_net`); hybrid stacks, where a layer is one block and a letter of `hybrid_layer_pattern`.
`models.megatron_yaml` reads them back: a part of the model that differs has no argument.
Source: NVIDIA/Megatron-LM d98e8a64 and d3528a21: megatron/training/arguments.py, core/transformer/
transformer_config.py.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from primus_search.files.known_keys import key_table
from primus_search.models.families.megatron_hybrid import COMPRESSED_TYPE
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    LatentMixer,
    LayerKind,
    Mamba2,
    Model,
    NoMixer,
)

HYBRID_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
"""The stack that `hybrid_layer_pattern` builds; 0.20 keeps the name for that of core/models/hybrid."""


def model_arguments(model: Model, seq_length: int = 0, tp: int = 1, stages: Sequence[str] = ()) -> dict[str, Any]:
    """The sizes of a model as arguments; True is a bare switch. stages: of a stack of single blocks, as a layout."""
    settings = sizes("model", model) | {
        "max_position_embeddings": max(seq_length, model.learned_positions),
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "make_vocab_size_divisible_by": padding_multiple(model.vocab_size, tp),
    }
    settings |= constant_settings(model)
    switches = {
        "swiglu": model.is_gated and not model.activation_clamp,
        "squared_relu": not model.is_gated and model.constants.activation == "relu2",
        "quick_geglu": model.is_gated and model.activation_clamp > 0,
        # Under latent attention: the norms of compressed queries, keys and values.
        "qk_layernorm": model.has_qk_norm or model.latent is not None,
    }
    settings |= {name: True for name, is_on in switches.items() if is_on}
    settings |= {"glu_linear_offset": 1.0} if model.activation_clamp else {}
    settings |= {"softmax_type": "learnable"} if model.has_attention_sinks else {}
    settings |= _attention(model) | _experts(model)
    return _hybrid(model, settings, stages) if model.is_single_block else settings | _variant(model)


def sizes(part: str, of: object, format_name: str = "megatron") -> dict[str, Any]:
    """The numbers and switches of a part of a model by the names that a format has for them (`spaces/keys`)."""
    found = {name: of.__getattribute__(field) for name, field in key_table(format_name)["written"][part].items()}
    return {name: value for name, value in found.items() if value}


def _attention(model: Model) -> dict[str, Any]:
    if model.latent is not None:
        return {"multi_latent_attention": True} | sizes("latent", model.latent)
    settings: dict[str, Any] = {}
    if model.num_kv_heads != model.num_heads:
        settings |= {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
    if any(model.windows):
        settings |= {"window_size": [max(model.windows) - 1, 0]}  # tokens to the left of a query's own
        # 1: a layer with the window, 0: one that sees everything (transformer_config.py, window_attn_skip_freq)
        settings |= {"window_attn_skip_freq": pattern(tuple(window > 0 for window in model.windows))}
    return settings


def _experts(model: Model) -> dict[str, Any]:
    if model.moe is None or not model.is_moe:
        return {}
    moe = model.moe
    settings = sizes("experts", moe) | {
        "moe_layer_freq": pattern(tuple(model.moe_layers)),
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.001,
    }
    if moe.has_router_bias and not model.has_linear_bias:
        settings |= {"moe_router_enable_expert_bias": True, "moe_router_load_balancing_type": "seq_aux_loss"}
    if moe.num_groups > 1:
        settings |= {"moe_router_num_groups": moe.num_groups, "moe_router_group_topk": moe.top_groups}
    return settings | routing_settings(model)


def routing_settings(model: Model) -> dict[str, Any]:
    """How the router scores: softmax over the chosen ones or over all of them, or sigmoid; and the factor on top."""
    moe, constants = model.moe, model.constants
    assert moe is not None
    has_rule = moe.has_router_bias and not model.has_linear_bias
    score = constants.router_score or ("sigmoid" if has_rule else "softmax")
    settings: dict[str, Any] = {"moe_router_score_function": "sigmoid" if has_rule and score == "softmax" else score}
    if settings["moe_router_score_function"] == "softmax" and (constants.router_normalises is False or moe.top_k == 1):
        settings["moe_router_pre_softmax"] = True
    if constants.router_scale not in (None, 1.0):
        settings["moe_router_topk_scaling_factor"] = constants.router_scale
    return settings


def constant_settings(model: Model) -> dict[str, Any]:
    """Epsilon, rotation and dropout of a model; no argument is left to a default."""
    constants, scaling = model.constants, model.constants.scaling
    settings: dict[str, Any] = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    if constants.norm_epsilon is not None:
        settings["norm_epsilon"] = constants.norm_epsilon
    if constants.rotary_base is not None and constants.rotary_base == int(constants.rotary_base):
        settings["rotary_base"] = int(constants.rotary_base)
    if constants.rotary_share != 1.0 and model.latent is None:
        settings["rotary_percent"] = constants.rotary_share
    if scaling.get("rope_type") == "llama3":
        settings |= {"use_rope_scaling": True, "rope_scaling_factor": float(scaling.get("factor", 8.0))}
    if model.latent is not None:  # Megatron's latent attention has YaRN, of which a factor of 1 is none
        is_yarn = scaling.get("rope_type") == "yarn"
        settings["rotary_scaling_factor"] = float(scaling.get("factor", 1.0)) if is_yarn else 1.0
        settings |= {key: float(scaling[key]) for key in ("mscale", "mscale_all_dim") if is_yarn and key in scaling}
    return settings


def padding_multiple(vocab_size: int, tp: int) -> int:
    """What Megatron pads the vocabulary to, times its tensor-parallel ranks, so that it has the model's rows."""
    return next((m for m in (128, 64, 32, 16, 8, 4, 2) if vocab_size % (m * tp) == 0), 1)


def pattern(flags: tuple[Any, ...]) -> str:
    """One number per layer as Megatron writes lists: `([0]*3+[1]*58)`."""
    runs = [(value, len(list(group))) for value, group in groupby(int(flag) for flag in flags)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"


# --- layers of other kinds --------------------------------------------------------------------------------------------


def _variant(model: Model) -> dict[str, Any]:
    """Arguments of sparse latent attention, or of Gated DeltaNet with gated attention; none for plain layers."""
    mixers = [model.mixer(kind) for kind in model.layers]
    sparse = next((one.indexer for one in mixers if isinstance(one, LatentMixer) and one.indexer), None)
    if sparse is not None:
        return {"experimental_attention_variant": "dsa", "no_rope_fusion": True} | sizes("indexer", sparse)
    linear = next((one for one in mixers if isinstance(one, GatedDeltaNet)), None)
    if linear is None:
        return {}
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": pattern(tuple(isinstance(one, GatedDeltaNet) for one in mixers)),
        **sizes("delta_net", linear),
    } | ({"attention_output_gate": True} if any(isinstance(m, Attention) and m.has_output_gate for m in mixers) else {})


def _hybrid(model: Model, settings: Mapping[str, Any], stages: Sequence[str]) -> dict[str, Any]:
    """The arguments of a stack of single blocks: the pattern says layers, experts, prediction layers and stages."""
    ours = {key: value for key, value in settings.items() if key not in ("num_layers", "moe_layer_freq")}
    ours |= {
        "hybrid_layer_pattern": _letters(model, stages),
        "spec": list(HYBRID_SPEC),
        "position_embedding_type": "none",
    }
    ours.pop("rotary_base", None)
    mamba = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, Mamba2)), None)
    return ours | (sizes("mamba", mamba) if mamba else {})


def _letters(model: Model, parts: Sequence[str]) -> str:
    """`M-M*|MEM*/E`: a letter a layer, a bar between virtual stages, then a part for each prediction layer."""
    letters = [_letter(model, kind) for kind in model.layers]
    each = iter(letters)
    stages = ["".join(next(each) for one in stage if one == "t") for stage in parts]
    module = "".join(_letter(model, kind) for kind in model.mtp_kinds)
    return "|".join(stages) + f"/{module}" * model.num_mtp_layers


def _letter(model: Model, kind: LayerKind) -> str:
    mixer = model.mixer(kind)
    if isinstance(mixer, NoMixer):
        return "E" if kind.is_moe else "-"
    return "M" if isinstance(mixer, Mamba2) else "*"


def megatron_keys(model: Model, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a model as a model file has them, lists as lists; reading them back gives the model."""
    given = settings
    if given is None:
        given = model_arguments(model, stages=["t" * model.num_layers]) | _compressed(model)
    keys = {key: value for key, value in given.items() if key != "no_rope_fusion"}
    keys |= {"padded_vocab_size": model.vocab_size, "untie_embeddings_and_output_weights": not model.is_tied}
    keys |= {"add_bias_linear": model.has_linear_bias, "swiglu": given.get("swiglu", False)}
    if "spec" in keys:
        keys |= {"spec": str(keys["spec"]), "num_layers": model.num_layers}
    for key in EVERY.keys() & keys.keys():
        lists = {pattern(_every(n, EVERY[key], model.num_layers)): n for n in range(8, 0, -1)}
        keys[key] = lists.get(str(keys[key]), keys[key])
    return keys


def class_sizes(model: Model) -> dict[str, Any]:
    """The arguments of a model as a class of Megatron has them: a dense one has no number of experts."""
    return {"num_experts": None} | megatron_keys(model)


def _compressed(model: Model) -> dict[str, Any]:
    """Keys of Primus' model files for DeepSeek-V4's attention and hyper-connections, of which Megatron has none."""
    mixers = [one for one in map(model.mixer, model.layers) if isinstance(one, CompressedAttention)]
    if not mixers:
        return {}
    indexed = next((one for one in mixers if one.top_k), mixers[0])
    settings = sizes("compressed", indexed) | sizes("compressed_indexer", indexed)
    layers: dict[str, Any] = {"compress_ratios": [one.ratio for one in mixers], "hc_mult": model.hyper_streams}
    return settings | layers | {"model_type": COMPRESSED_TYPE}


EVERY = {"moe_layer_freq": True, "window_attn_skip_freq": False, "linear_attention_freq": False}
"""Arguments that are a list or a number n: experts in the first and every further n-th layer; attention to all tokens
in every n-th."""


def _every(n: int, is_first: bool, layers: int) -> tuple[bool, ...]:
    return tuple(layer % n == 0 if is_first else (layer + 1) % n > 0 for layer in range(layers))
