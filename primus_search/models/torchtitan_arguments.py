"""torchtitan's model arguments as a model, those of a module that an export wrote or of a registered flavor.

model_of("llama3", {"dim": 4096, "n_layers": 32, ...})
model_of_module(Path("primus_search_model.py").read_text())
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.files.known_keys import key_table
from primus_search.files.python.python_module import PythonModule
from primus_search.files.python.python_values import CallRecord, plain
from primus_search.values.model import Attention, Constants, LatentAttention, MixtureOfExperts, Model

Fields = Mapping[str, Any]
NAME = "searched"


def model_of_module(text: str) -> Model:
    """The model that a module registers: its family and the arguments of `MODEL`. Raises ValueError for other texts.

    Nothing is run: names, numbers and calls of them are read from the syntax tree.
    """
    names = PythonModule.of(Path(NAME), text).names
    family = names["get_train_spec"].name.split(".")[-2] if "get_train_spec" in names else ""
    if family not in READERS or not isinstance(names.get("MODEL"), CallRecord):
        raise ValueError("registers no model of llama3, qwen3, deepseek_v3 or gpt_oss as MODEL")
    return model_of(family, plain(names["MODEL"]))


KERNEL = re.compile(r"_((?:flex|varlen|sdpa)(?:_attn|_flash)?)$")


def flavor(name: str) -> tuple[Model, str] | None:
    """The model that torchtitan registers as `family:flavor`; None for another name.

    Beside it the kernel of its attention, where a flavor of the same sizes has the usual one.

    Of `spaces/keys/torchtitan_flavors.yaml`; a flavor of another release that only names its kernel is that of its
    sizes (`70B_flex_flash`).
    """
    family, _, flavor = name.partition(":")
    registered = key_table("torchtitan_flavors").get(family, {"flavors": {}})
    called = f"{family}_{flavor}".lower().replace("-", "_")
    named = "" if flavor in registered["flavors"] else (found := KERNEL.search(flavor)) and found[1]
    flavor = flavor.removesuffix(f"_{named}")
    if flavor not in registered["flavors"]:
        return None
    fields = registered["flavors"][flavor]
    kernel = fields.get("attn_type", registered["defaults"]["attn_type"])
    if named:
        return replace(model_of(family, fields), name=called), str(named)
    twins = (dict(registered["defaults"], **one) for one in registered["flavors"].values())
    has_twin = any(one != dict(one, attn_type=kernel) == registered["defaults"] | fields for one in twins)
    return replace(model_of(family, fields), name=called), str(kernel) if has_twin and kernel != "sdpa" else ""


def kernel(name: str) -> str:
    """The kernel of attention of a flavor of 0.2.2, of its family for another name, of torch for another family."""
    family, _, flavor = name.partition(":")
    registered = key_table("torchtitan_flavors").get(family, {"defaults": {}, "flavors": {}})
    fields = registered["defaults"] | registered["flavors"].get(flavor, {})
    return str(fields.get("attn_type", "sdpa"))


MOE_ARGS = {"num_experts": 8, "top_k": 1, "num_shared_experts": 1, "score_func": "sigmoid", "route_norm": False,
            "route_scale": 1.0, "gate_bias": False}  # fmt: skip
"""Defaults of torchtitan/models/moe/moe.py MoEArgs; those of a family's arguments are in `torchtitan_flavors`."""


def defaults_of(family: str) -> dict[str, Any]:
    """What the arguments of a family are where a flavor leaves them out."""
    found: dict[str, Any] = key_table("torchtitan_flavors")[family]["defaults"]
    return found


def model_of(family: str, fields: Fields) -> Model:
    """The model of a family's arguments, its defaults where they are left out."""
    given = defaults_of(family) | dict(fields)
    return READERS[family](given | {"moe_args": MOE_ARGS | dict(given.get("moe_args") or {})})


def _model(fields: Fields, scaling: Fields, moe: MixtureOfExperts | None = None, **more: Any) -> Model:
    """A model of the fields that all families call the same, with its constants; scaling: of the rotary frequencies."""
    experts, routing = fields["moe_args"], dict[str, Any]()
    if moe is not None:
        routing = {"router_score": experts["score_func"], "router_normalises": experts["route_norm"]}
        routing["router_scale"] = float(experts["route_scale"])
    constants = Constants(
        norm_epsilon=float(fields["norm_eps"]),
        rotary_base=float(fields["rope_theta"]),
        rotary_scaling=tuple(sorted(scaling.items(), key=lambda pair: (pair[0] != "rope_type", pair[0]))),
        activation="silu",
        **routing,
    )
    return Model(
        name=NAME,
        num_layers=fields["n_layers"],
        hidden=fields["dim"],
        num_heads=fields["n_heads"],
        num_kv_heads=fields.get("n_kv_heads") or fields["n_heads"],
        vocab_size=fields["vocab_size"],
        moe=moe,
        constants=constants,
        **more,
    )


def _experts(experts: Fields, size: int, **more: Any) -> MixtureOfExperts:
    """Experts of a size. torchtitan balances every router by a bias beside it; of models, those with sigmoid scores
    have it."""
    limits = {"num_groups": experts.get("num_expert_groups"), "top_groups": experts.get("num_limited_groups")}
    has_rule = experts["score_func"] == "sigmoid"
    rule = {"has_router_bias": has_rule, "is_router_bias_buffer": has_rule}
    return MixtureOfExperts(
        num_experts=experts["num_experts"],
        top_k=experts["top_k"],
        expert_ffn_hidden=size,
        shared_ffn_hidden=experts["num_shared_experts"] * size,
        **{key: value for key, value in limits.items() if value},
        **rule | more,
    )


def _llama_scaling(given: Fields | None, factor: float, high: float) -> dict[str, Any]:
    """Llama's stretch of the rotary frequencies; factor, high: its defaults."""
    found = {"scaling_factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high} | dict(given or {})
    found.setdefault("original_max_position_embeddings", 8192)
    return {"rope_type": "llama3", "factor": found.pop("scaling_factor"), **found}


def _llama3(fields: Fields) -> Model:
    hidden = int(8 * fields["dim"] / 3)
    if fields.get("ffn_dim_multiplier") is not None:
        hidden = int(fields["ffn_dim_multiplier"] * hidden)
    multiple, scaling = fields["multiple_of"], _llama_scaling(fields.get("rope_scaling_args"), 8.0, 4.0)
    return _model(
        fields,
        scaling if scaling["factor"] != 1.0 else {},
        ffn_hidden=fields.get("hidden_dim") or multiple * -(-hidden // multiple),
        head_dim=fields["dim"] // fields["n_heads"],
        is_tied=fields.get("enable_weight_tying", False),
    )


def _llama4(fields: Fields) -> Model:
    """Sizes as torchtitan/models/llama4/model/model.py makes them: the hidden size is shared by a token's experts."""
    experts, multiple = fields["moe_args"], fields["multiple_of"]
    width = int((fields.get("ffn_dim_multiplier") or 1.0) * int(8 * fields["dim"] / 3))
    shares = experts["top_k"] + experts["num_shared_experts"] if fields["auto_scale_hidden_dim"] else 1
    layers, head_dim = range(fields["n_layers"]), fields["dim"] // fields["n_heads"]
    kv_heads = fields.get("n_kv_heads") or fields["n_heads"]
    full = Attention(num_heads=fields["n_heads"], num_kv_heads=kv_heads, head_dim=head_dim)
    every, chunked = fields.get("every_n_layers_nope"), replace(full, chunk=fields["fixed_attn_block_size"])
    given = fields.get("rope_scaling_args")
    return _model(
        fields,
        {} if given is None else _llama_scaling(given, 16.0, 1.0),
        ffn_hidden=multiple * -(-width // multiple),
        head_dim=head_dim,
        moe=_experts(experts, multiple * -(-int(width / shares) // multiple)),
        moe_layers=tuple((layer + 1) % fields["interleave_moe_layer_step"] == 0 for layer in layers),
        mixers=tuple(chunked if layer % every else full for layer in layers) if every else (),
    )


def _qwen3(fields: Fields) -> Model:
    return _model(
        fields,
        {},
        ffn_hidden=fields["hidden_dim"],
        head_dim=fields["head_dim"],
        has_qk_norm=fields["qk_norm"],
        is_tied=fields["enable_weight_tying"],
        moe=_experts(fields["moe_args"], fields["moe_inter_dim"]) if fields["moe_enabled"] else None,
    )


def _deepseek_v3(fields: Fields) -> Model:
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = LatentAttention(**{key: fields[key] for key in sizes})
    dense, layers, factor = fields["n_dense_layers"], fields["n_layers"], float(fields["rope_factor"])
    moe = _experts(fields["moe_args"], fields["moe_inter_dim"]) if dense < layers else None
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "mscale_all_dim": float(fields["mscale"])}
    scaling |= {key: float(fields[key]) for key in ("beta_fast", "beta_slow", "mscale")}
    scaling["original_max_position_embeddings"] = int(fields["original_seq_len"])
    return _model(
        dict(fields, n_kv_heads=fields["n_heads"]),
        scaling if factor != 1.0 else {},
        ffn_hidden=fields["inter_dim"],
        head_dim=latent.qk_nope_head_dim,
        latent=latent,
        moe=moe,
        moe_layers=tuple(layer >= dense for layer in range(layers)) if moe else (),
    )


def _gpt_oss(fields: Fields) -> Model:
    experts, factor, window = fields["moe_args"], float(fields["rope_factor"]), fields["sliding_window_size"]
    bias = {"has_router_bias": experts["gate_bias"], "is_router_bias_buffer": False}
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": float(fields["ntk_beta"]),
        "beta_slow": float(fields["ntk_alpha"]),
        "original_max_position_embeddings": fields["original_seq_len"],
        "truncate": False,
    }
    return _model(
        fields,
        scaling if factor != 1.0 else {},
        ffn_hidden=fields["moe_inter_dim"],
        head_dim=fields["head_dim"],
        has_linear_bias=True,
        has_attention_sinks=True,
        activation_clamp=float(fields["swiglu_limit"]),
        windows=tuple(0 if layer % 2 else window for layer in range(fields["n_layers"])),
        moe=_experts(experts, fields["moe_inter_dim"], **bias),
    )


READERS = {"llama3": _llama3, "llama4": _llama4, "qwen3": _qwen3, "deepseek_v3": _deepseek_v3, "gpt_oss": _gpt_oss}
"""What reads the arguments of a family of torchtitan 0.2.2 (torchtitan/models/*/model/args.py)."""
