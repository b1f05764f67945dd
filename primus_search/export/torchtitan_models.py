"""A model of any supported shape as a torchtitan 0.2.2 model specification: a module with numbers only.

The specification reuses the classes of a family that torchtitan ships: Llama 3 and Qwen 3 for grouped-query attention,
DeepSeek-V3 for latent attention.
"""

from typing import Any

from primus_search.values.model import Model

MODULE, FLAVOR = "primus_search_model", "searched"
MODEL_FILE = f"{MODULE}.py"

TEMPLATE = '''\
"""A model of the shape that was searched, registered with torchtitan as `{module}`, flavor `{flavor}`."""

from dataclasses import replace

from torchtitan.models.{family} import get_train_spec
from torchtitan.models.{family}.model.args import {arguments}{moe_import}
from torchtitan.protocols.train_spec import register_train_spec

MODEL = {arguments}(
{fields}
)
register_train_spec("{module}", replace(get_train_spec(), model_args={{"{flavor}": MODEL}}))
'''


def model_file(model: Model) -> str:
    """The module that registers a model. Only numbers and switches of the model enter the text."""
    family, arguments, fields = _family(model)
    lines = [f"    {name}={value!r}," for name, value in fields.items()]
    moe_import = ""
    if model.is_moe:
        moe_import = "\nfrom torchtitan.models.moe import MoEArgs"
        inner = "\n".join(f"        {name}={value!r}," for name, value in _experts(model).items())
        lines.append(f"    moe_args=MoEArgs(\n{inner}\n    ),")
    return TEMPLATE.format(
        module=MODULE, flavor=FLAVOR, family=family, arguments=arguments, fields="\n".join(lines), moe_import=moe_import
    )


def _family(model: Model) -> tuple[str, str, dict[str, Any]]:
    """Family, name of its arguments' class, and the arguments of a model."""
    fields: dict[str, Any]
    common = {
        "dim": model.hidden,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "vocab_size": model.vocab_size,
    }
    expert_width = model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden
    if model.latent is not None:
        fields = {
            "inter_dim": model.ffn_hidden,
            "n_dense_layers": sum(not is_moe for is_moe in model.moe_layers),
            "moe_inter_dim": expert_width,
        }
        sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        fields |= {size: model.latent.__getattribute__(size) for size in sizes}
        return "deepseek_v3", "DeepSeekV3ModelArgs", common | fields
    common["n_kv_heads"] = model.num_kv_heads
    is_plain = not model.is_moe and not model.has_qk_norm and not model.is_tied
    if is_plain and model.head_dim * model.num_heads == model.hidden:
        # Llama's feed-forward size, 8/3 dim times a factor, is rounded up to `multiple_of` (llama3/model/model.py
        # FeedForward): from half of that size to that size itself.
        factor = round(0.5 * model.ffn_hidden / int(8 * model.hidden / 3), 6)
        fields = {"multiple_of": model.ffn_hidden, "ffn_dim_multiplier": factor}
        return "llama3", "TransformerModelArgs", common | fields
    fields = {
        "head_dim": model.head_dim,
        "hidden_dim": model.ffn_hidden,
        "qk_norm": model.has_qk_norm,
        "enable_weight_tying": model.is_tied,
        "moe_enabled": model.is_moe,
        "moe_inter_dim": expert_width,
    }
    return "qwen3", "Qwen3ModelArgs", common | fields


def _experts(model: Model) -> dict[str, Any]:
    moe = model.moe
    assert moe is not None
    limits = {"num_expert_groups": moe.num_groups, "num_limited_groups": moe.top_groups}
    return (limits if moe.num_groups > 1 else {}) | {
        "num_experts": moe.num_experts,
        "top_k": moe.top_k,
        "num_shared_experts": moe.shared_ffn_hidden // moe.expert_ffn_hidden,
        "score_func": "sigmoid" if moe.has_router_bias else "softmax",
        "route_norm": True,
        "score_before_experts": False,
    }
