"""NeMo Megatron-Bridge: a script that runs one of its recipes with overrides of its own command line.

Source: NVIDIA-NeMo/Megatron-Bridge scripts/training/README.md (`KEY=VALUE` overrides of a recipe's ConfigContainer)
and docs/megatron-lm-to-megatron-bridge.md (which Megatron argument is which field).
"""

import shlex
from collections.abc import Mapping
from typing import Any

from primus_search.export import shell
from primus_search.export.job import LaunchJob
from primus_search.export.megatron_arguments import TRAINING, candidate_settings
from primus_search.export.megatron_models import edits, model_settings

SCRIPT = "nemo.sh"
EDITS = [
    "BRIDGE_PATH, a checkout of Megatron-Bridge; RECIPE, a recipe of your model's family (its sizes are set here)",
    "tokenizer, data, learning rate and iterations (mock data as written)",
]
SECTIONS = {
    "train": {"micro_batch_size", "global_batch_size", "train_iters"},
    "validation": {"eval_iters"},
    "optimizer": {"lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "clip_grad"},
    "scheduler": {"lr_decay_style", "lr_warmup_iters"},
    "ddp": {"overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "use_megatron_fsdp",
            "data_parallel_sharding_strategy", "num_distributed_optimizer_instances"},
    "dist": {"use_torch_fsdp2"},
    "comm_overlap": {"tp_comm_overlap"},
    "checkpoint": {"ckpt_format"},
}  # fmt: skip
"""Sections of the configuration other than `model`, and the fields in each."""
RENAMED = {
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "num_experts": "num_moe_experts",
    "group_query_attention": None,
    "multi_latent_attention": None,
    "max_position_embeddings": None,
    "swiglu": "gated_linear_unit",
}
"""Arguments that the provider of a model spells otherwise; None: it follows from other fields."""
OPPOSITES = {
    "no_gradient_accumulation_fusion": "model.gradient_accumulation_fusion",
    "grad_reduce_in_bf16": "ddp.grad_reduce_in_fp32",
}
"""Switches whose field says the contrary."""
PRECISION = {
    "none": "bf16_mixed",
    "hybrid": "bf16_with_fp8_current_scaling_mixed",
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Precision recipes by our word (megatron/bridge/training/mixed_precision.py)."""
FP8_ATTENTION = "fp8_dot_product_attention"
OF_PRECISION = ("fp8_format", "fp8_recipe", "fp4_format", "fp4_recipe", FP8_ATTENTION)


def overrides(job: LaunchJob) -> dict[str, Any]:
    """Dotted fields of the configuration and their values."""
    said = model_settings(job) | candidate_settings(job) | dict(TRAINING)
    found = _precision(job.row["fp8"], said)
    for name, value in said.items():
        ours = RENAMED.get(name, name)
        if name in OPPOSITES:
            found[OPPOSITES[name]] = False
        elif ours is not None and name not in OF_PRECISION:
            section = next((section for section, names in SECTIONS.items() if name in names), "model")
            found[f"{section}.{ours}"] = value
    found["dataset.sequence_length"] = job.workload.seq_length
    found["model.vocab_size"] = job.model.vocab_size
    found["model.share_embeddings_and_output_weights"] = job.model.is_tied
    found["model.add_bias_linear"] = job.model.has_linear_bias
    return found


def _precision(word: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The precision recipe by name; with attention in FP8, fields of the recipe's own: a name has none to override."""
    if not said.get(FP8_ATTENTION):
        return {"mixed_precision": PRECISION[word]}
    fields = {"fp8": said["fp8_format"], "fp8_recipe": said["fp8_recipe"], FP8_ATTENTION: True}
    return {f"mixed_precision.{name}": value for name, value in fields.items()}


def files(job: LaunchJob) -> dict[str, str]:
    """The script that starts a candidate."""
    own = [f"RECIPE: one of {PRECISION[job.row['fp8']]}()"] if job.row["fp8_attention"] else []
    lines = [
        ': "${BRIDGE_PATH:?set it to a checkout of Megatron-Bridge}"',
        ': "${RECIPE:?name a recipe of the family of your model, for example llama3_8b_pretrain_config}"',
        *shell.offloading(job.row["offload_modules"]),
        shell.rendezvous(job),
        "OVERRIDES=(",
        *(f"  {shlex.quote(f'{name}={_value(value)}')}" for name, value in overrides(job).items()),
        ")",
        shell.TORCHRUN,
        '  "$BRIDGE_PATH/scripts/training/run_recipe.py" --recipe "$RECIPE" --mode pretrain --dataset mock \\',
        '  "${OVERRIDES[@]}" "$@"',
    ]
    return {SCRIPT: shell.script(job, SCRIPT, EDITS + own + edits(job.model), lines)}


def _value(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
