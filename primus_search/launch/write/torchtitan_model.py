"""A model of any supported shape as a torchtitan 0.2.2 model specification: a module with numbers only.

The specification reuses the classes of a family that torchtitan ships: Llama 3 and Qwen 3 for grouped-query attention,
DeepSeek-V3 for latent attention, GPT-OSS for attention sinks. Its arguments are read back
(`models.torchtitan_arguments`): a part of the model that comes back as another is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from primus_search.launch.write.job import Inexpressible, LaunchJob, refused_constants, unsaid, unsaid_constants
from primus_search.launch.write.shell import argument_table, launch_file
from primus_search.models.megatron_arguments import sizes
from primus_search.models.registered import model_called, registered_model
from primus_search.models.torchtitan_arguments import model_of
from primus_search.values.machine.framework import Framework
from primus_search.values.model import Model

MODULE, FLAVOR = "primus_search_model", "searched"
MODEL_FILE = f"{MODULE}.py"


def flavor_of(framework: Framework, model: Model) -> str | None:
    """`family:flavor` of torchtitan that is this model, constants too; None where it has none."""
    own = registered_model(framework, model)
    known = model_called(framework, own) if own else None
    return own if known is not None and not unsaid_constants(model, known) else None


def edits(job: LaunchJob) -> list[str]:
    """Constants of the model that no argument says, for a person to set."""
    if flavor_of(job.framework, job.model):
        return []
    return unsaid_constants(job.model, model_of(*family_of(job.model)))


def model_file(job: LaunchJob) -> str:
    """The module that registers a model. Raises `Inexpressible` for one that no family of torchtitan is."""
    family, fields = family_of(job.model)
    refuse_lost_parts(job, model_of(family, fields))
    return _module(job, family, fields)


def refuse_lost_parts(job: LaunchJob, read: Model) -> None:
    """Raises `Inexpressible` where the model that a file comes back as is another than that of the job."""
    model = job.model
    lost = unsaid(model, replace(read, vocab_padding=model.vocab_padding))
    lost = list(dict.fromkeys([*lost, *refused_constants(job)]))
    if lost:
        raise Inexpressible(f"torchtitan has no model with parts of {model.name}: {', '.join(lost)}")


def _module(job: LaunchJob, family: str, fields: Mapping[str, Any]) -> str:
    """The text of the module. Only numbers and switches of the model enter it."""
    imports: dict[str, list[str]] = {}
    classes = argument_table("torchtitan")["classes"]
    for one in (family, *(name for name in fields if name in classes)):
        imports.setdefault(classes[one][1], []).append(classes[one][0])
    plain = {n: {k: repr(v) for k, v in one.items()} if n in classes else repr(one) for n, one in fields.items()}
    values: dict[str, Any] = {
        "module": MODULE,
        "flavor": FLAVOR,
        "family": family,
        "classes": classes,
        "imports": imports,
    }
    return launch_file(job, "torchtitan_model.txt", fields=plain, **values)()


def family_of(model: Model, *, ties_llama: bool = False) -> tuple[str, dict[str, Any]]:
    """Family and arguments of a model, as near as one comes; ties_llama: Llama's class ties embeddings."""
    constants = model.constants
    common = sizes("model", model, "torchtitan")
    common |= {} if constants.norm_epsilon is None else {"norm_eps": constants.norm_epsilon}
    common |= {} if constants.rotary_base is None else {"rope_theta": constants.rotary_base}
    if model.latent is not None:
        return "deepseek_v3", common | _latent(model)
    common["n_kv_heads"] = model.num_kv_heads
    if model.has_attention_sinks:
        return "gpt_oss", common | _with_sinks(model)
    is_plain = not model.is_moe and not model.has_qk_norm and (ties_llama or not model.is_tied)
    if is_plain and model.head_dim * model.num_heads == model.hidden:
        return "llama3", common | _plain(model) | ({"enable_weight_tying": True} if model.is_tied else {})
    fields = {
        "head_dim": model.head_dim,
        "hidden_dim": model.ffn_hidden,
        "qk_norm": model.has_qk_norm,
        "enable_weight_tying": model.is_tied,
        "moe_enabled": model.is_moe,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
    }
    return "qwen3", common | fields | _experts(model)


def _plain(model: Model) -> dict[str, Any]:
    """Llama's feed-forward size, 8/3 dim times a factor, is rounded up to `multiple_of` (llama3/model/model.py
    FeedForward): from half of that size to that size itself. Its rotation is always scaled, by 1 where it is not."""
    scaling = model.constants.scaling if model.constants.scaling.get("rope_type") == "llama3" else {}
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {
        "multiple_of": model.ffn_hidden,
        "ffn_dim_multiplier": round(0.5 * model.ffn_hidden / int(8 * model.hidden / 3), 6),
        "rope_scaling_args": {"scaling_factor": float(scaling.get("factor", 1.0))}
        | {name: scaling[name] for name in names if name in scaling},
    }


def _latent(model: Model) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "inter_dim": model.ffn_hidden,
        "n_dense_layers": sum(not is_moe for is_moe in model.moe_layers) if model.is_moe else model.num_layers,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
        "q_lora_rank": 0,
        **sizes("latent", model.latent, "torchtitan"),
    }
    return fields | _yarn(model, beta_fast="beta_fast", beta_slow="beta_slow", mscale="mscale") | _experts(model)


def _yarn(model: Model, **theirs: str) -> dict[str, Any]:
    """The stretch of the rotary frequencies; theirs: what a family calls its numbers. A factor of 1 is none."""
    scaling = model.constants.scaling if model.constants.scaling.get("rope_type") == "yarn" else {}
    names = theirs | {"original_max_position_embeddings": "original_seq_len"}
    known = {name: scaling[ours] for ours, name in names.items() if ours in scaling}
    return {"rope_factor": float(scaling.get("factor", 1.0))} | known


def _with_sinks(model: Model) -> dict[str, Any]:
    return {
        "head_dim": model.head_dim,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
        "sliding_window_size": max(model.windows),
        "swiglu_limit": model.activation_clamp,
        **_yarn(model, beta_slow="ntk_alpha", beta_fast="ntk_beta"),
        **_experts(model, gate_bias=bool(model.moe and model.moe.has_router_bias), use_grouped_mm=True),
    }


def _experts(model: Model, **more: Any) -> dict[str, Any]:
    moe, constants = model.moe, model.constants
    if moe is None or not model.is_moe:
        return {}
    limits = {"num_expert_groups": moe.num_groups, "num_limited_groups": moe.top_groups}
    score = constants.router_score or ("sigmoid" if moe.is_router_bias_buffer else "softmax")
    return {
        "moe_args": (limits if moe.num_groups > 1 else {})
        | {
            "num_experts": moe.num_experts,
            "top_k": moe.top_k,
            "num_shared_experts": moe.shared_ffn_hidden // moe.expert_ffn_hidden,
            "score_func": score,
            "route_norm": constants.router_normalises is not False,
            "route_scale": 1.0 if constants.router_scale is None else constants.router_scale,
            "score_before_experts": False,
        }
        | more
    }
