"""torchtitan's model arguments as a model: those of a module that an export wrote, or of a registered flavor.

model_of("llama3", {"dim": 4096, "n_layers": 32, ...})
model_of_module(Path("primus_search_model.py").read_text())
"""

import ast
from collections.abc import Mapping
from typing import Any

from primus_search.values.model import Constants, LatentAttention, MixtureOfExperts, Model

Fields = Mapping[str, Any]
NAME = "searched"


def model_of_module(text: str) -> Model:
    """The model that a module registers: its family and the arguments of `MODEL`. Raises ValueError for other texts.

    Nothing is run: names, numbers and calls of them are read from the syntax tree.
    """
    family, fields = "", None
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and any(one.name == "get_train_spec" for one in node.names):
            family = str(node.module).rpartition(".")[2]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODEL":
            fields = _plain(node.value)
    if family not in READERS or not isinstance(fields, dict):
        raise ValueError("registers no model of llama3, qwen3, deepseek_v3 or gpt_oss as MODEL")
    return model_of(family, fields)


def _plain(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return {str(word.arg): _plain(word.value) for word in node.keywords}
    return ast.literal_eval(node)


def model_of(family: str, fields: Fields) -> Model:
    """The model of a family's arguments, its defaults where they are left out."""
    return READERS[family](fields)


def _shared(fields: Fields, **changes: Any) -> dict[str, Any]:
    """What all families call the same."""
    return {
        "name": NAME,
        "num_layers": fields["n_layers"],
        "hidden": fields["dim"],
        "num_heads": fields["n_heads"],
        "num_kv_heads": fields.get("n_kv_heads") or fields["n_heads"],
        "vocab_size": fields["vocab_size"],
    } | changes


def _constants(fields: Fields, epsilon: float, base: float, scaling: Fields, experts: Fields | None) -> Constants:
    routing: dict[str, Any] = {}
    if experts is not None:
        routing = {
            "router_score": experts.get("score_func", "sigmoid"),
            "router_normalises": experts.get("route_norm", False),
            "router_scale": float(experts.get("route_scale", 1.0)),
        }
    kind = [("rope_type", scaling["rope_type"])] if scaling else []
    rest = sorted((key, value) for key, value in scaling.items() if key != "rope_type")
    return Constants(
        norm_epsilon=float(fields.get("norm_eps", epsilon)),
        rotary_base=float(fields.get("rope_theta", base)),
        rotary_scaling=(*kind, *rest),
        activation="silu",
        **routing,
    )


def _rule(experts: Fields) -> dict[str, Any]:
    """torchtitan balances every router by a bias beside it; of models, those with sigmoid scores have it."""
    has_rule = experts.get("score_func", "sigmoid") == "sigmoid"
    return {"has_router_bias": True, "is_router_bias_buffer": True} if has_rule else {}


def _experts(fields: Fields, size: int, **more: Any) -> MixtureOfExperts:
    limits = {"num_groups": fields.get("num_expert_groups"), "top_groups": fields.get("num_limited_groups")}
    return MixtureOfExperts(
        num_experts=fields.get("num_experts", 8),
        top_k=fields.get("top_k", 1),
        expert_ffn_hidden=size,
        shared_ffn_hidden=fields.get("num_shared_experts", 1) * size,
        **{key: value for key, value in limits.items() if value},
        **more,
    )


def _llama3(fields: Fields) -> Model:
    hidden = int(8 * fields["dim"] / 3)
    if fields.get("ffn_dim_multiplier") is not None:
        hidden = int(fields["ffn_dim_multiplier"] * hidden)
    multiple = fields.get("multiple_of", 256)
    scaling: dict[str, Any] = {"scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | dict(
        fields.get("rope_scaling_args") or {}
    )
    scaling.setdefault("original_max_position_embeddings", 8192)
    scaling = {"rope_type": "llama3", "factor": scaling.pop("scaling_factor"), **scaling}
    return Model(
        **_shared(fields),
        ffn_hidden=multiple * -(-hidden // multiple),
        head_dim=fields["dim"] // fields["n_heads"],
        constants=_constants(fields, 1e-5, 10000.0, scaling if scaling["factor"] != 1.0 else {}, None),
    )


def _qwen3(fields: Fields) -> Model:
    experts = fields.get("moe_args", {}) if fields.get("moe_enabled", False) else None
    return Model(
        **_shared(fields),
        ffn_hidden=fields.get("hidden_dim", 3072),
        head_dim=fields.get("head_dim", 128),
        has_qk_norm=fields.get("qk_norm", True),
        is_tied=fields.get("enable_weight_tying", False),
        moe=None if experts is None else _experts(experts, fields.get("moe_inter_dim", 768), **_rule(experts)),
        constants=_constants(fields, 1e-6, 1e6, {}, experts),
    )


YARN: Mapping[str, float] = {
    "rope_factor": 40, "original_seq_len": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
}  # fmt: skip
"""Defaults of DeepSeekV3ModelArgs."""


def _deepseek_v3(fields: Fields) -> Model:
    sizes = {"q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    latent = LatentAttention(**{key: fields.get(key, usual) for key, usual in sizes.items()})
    dense, layers, experts = fields.get("n_dense_layers", 1), fields["n_layers"], fields.get("moe_args", {})
    moe = None
    if dense < layers:
        moe = _experts(experts, fields["moe_inter_dim"], **_rule(experts))
    usual: dict[str, float] = {
        "rope_factor": 40,
        "original_seq_len": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
    }
    given = {key: float(fields.get(key, value)) for key, value in usual.items()}
    scaling: dict[str, Any] = {}
    if given["rope_factor"] != 1.0:
        scaling = {"rope_type": "yarn", "factor": given["rope_factor"], "mscale_all_dim": given["mscale"]}
        scaling |= {key: given[key] for key in ("beta_fast", "beta_slow", "mscale")}
        scaling["original_max_position_embeddings"] = int(given["original_seq_len"])
    return Model(
        **_shared(fields, num_kv_heads=fields["n_heads"]),
        ffn_hidden=fields["inter_dim"],
        head_dim=latent.qk_nope_head_dim,
        latent=latent,
        moe=moe,
        moe_layers=tuple(layer >= dense for layer in range(layers)) if moe else (),
        constants=_constants(fields, 1e-5, 10000.0, scaling, experts if moe else None),
    )


def _gpt_oss(fields: Fields) -> Model:
    usual = {"dim": 2880, "n_heads": 64, "n_kv_heads": 8, "vocab_size": 201088, "moe_inter_dim": 2880, "n_layers": 24}
    given = usual | dict(fields)
    window, experts = given.get("sliding_window_size", 128), given.get("moe_args", {})
    factor = float(given.get("rope_factor", 32))
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": float(given.get("ntk_beta", 32.0)),
        "beta_slow": float(given.get("ntk_alpha", 1.0)),
        "original_max_position_embeddings": given.get("original_seq_len", 4096),
        "truncate": False,
    }
    return Model(
        **_shared(given),
        ffn_hidden=given["moe_inter_dim"],
        head_dim=given.get("head_dim", 64),
        has_linear_bias=True,
        has_attention_sinks=True,
        activation_clamp=float(given.get("swiglu_limit", 7.0)),
        windows=tuple(0 if layer % 2 else window for layer in range(given["n_layers"])),
        moe=_experts(experts, given["moe_inter_dim"], has_router_bias=experts.get("gate_bias", False)),
        constants=_constants(given, 1e-5, 150000.0, scaling if factor != 1.0 else {}, experts),
    )


READERS = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek_v3, "gpt_oss": _gpt_oss}
"""What reads the arguments of a family of torchtitan 0.2.2 (torchtitan/models/*/model/args.py)."""
