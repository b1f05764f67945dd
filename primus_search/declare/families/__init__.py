"""Readers of HuggingFace model families, by `model_type`. A new family is one function and a row here.

The layers of Megatron's hybrid models are read in `megatron_hybrid`, by their own keys.
"""

from primus_search.declare.families import (
    expert_models,
    gemma_models,
    hybrid_models,
    latent_models,
    plain,
)
from primus_search.declare.families.parts import Family

FAMILIES: dict[str, Family] = {
    "deepseek_ref": latent_models.compressed_deepseek,
    "deepseek_v2": latent_models.deepseek,
    "deepseek_v3": latent_models.deepseek,
    "deepseek_v32": latent_models.sparse_deepseek,
    "deepseek_v4": latent_models.compressed_deepseek,
    "ernie4_5": plain.ernie,
    "gemma": plain.gemma,
    "gemma2": gemma_models.gemma2,
    "gemma3_text": gemma_models.gemma3,
    "gemma4_text": gemma_models.gemma4,
    "glm4_moe": expert_models.glm4_moe,
    "glm_moe_dsa": latent_models.sparse_deepseek,
    "gpt2": plain.gpt2,
    "gpt_neox": plain.gpt_neox,
    "gpt_oss": expert_models.gpt_oss,
    "granite": plain.llama,
    "kimi_k2": latent_models.deepseek,
    "kimi_linear": hybrid_models.kimi_linear,
    "lfm2": hybrid_models.lfm2,
    "lfm2_moe": hybrid_models.lfm2_moe,
    "llama": plain.llama,
    "llama4_text": expert_models.llama4,
    "mimo": plain.mimo,
    "minimax": hybrid_models.minimax,
    "minimax_m2": expert_models.minimax_m2,
    "minimax_m3": expert_models.minimax_m3,
    "mistral": plain.mistral,
    "mixtral": expert_models.mixtral,
    "mpt": plain.mpt,
    "nemotron": plain.nemotron,
    "nemotron-nas": plain.nemotron_nas,
    "nemotron_h": hybrid_models.nemotron_h,
    "olmo2": plain.olmo2,
    "olmo3": plain.olmo2,
    "olmoe": expert_models.olmoe,
    "phi3": plain.mistral,
    "qwen2": plain.qwen2,
    "qwen2_moe": expert_models.qwen2_moe,
    "qwen3": plain.qwen3,
    "qwen3_5_moe_text": hybrid_models.qwen3_next,
    "qwen3_5_text": hybrid_models.qwen3_5,
    "qwen3_moe": expert_models.qwen3_moe,
    "qwen3_next": hybrid_models.qwen3_next,
    "qwen3_vl_moe_text": expert_models.qwen3_moe,
    "qwen3_vl_text": plain.qwen3,
    "seed_oss": plain.seed_oss,
    "smollm3": plain.tied_llama,
    "starcoder2": plain.starcoder2,
}
"""Reader of each `model_type` of a text model."""

TEXT_OF: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "llava_onevision": "qwen2",
}
"""Family of the `text_config` of a model with other inputs, where that section names none."""
