"""Models read from other projects' files count the parameters of the released weights.

The configurations below repeat the facts of the published config.json files (Hugging Face) and of the AMD-AGI/Primus
model presets (primus/configs/models/megatron, commit 8cc70b6b); counts are elements of the released weights.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.models.model_files import load_model

LLAMA = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "use_cache": True,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}

CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "meta-llama/Llama-3.1-8B": (
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "attention_bias": False,
            "mlp_bias": False, "max_position_embeddings": 131072, "tie_word_embeddings": False, **LLAMA,
        },
        8_030_261_248,
    ),
    "mistralai/Mistral-7B-v0.1": (
        {
            "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096, **LLAMA,
        },
        7_241_732_096,
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        {
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
            "num_experts_per_tok": 2, "sliding_window": None, "output_router_logits": False, **LLAMA,
        },
        46_702_792_704,
    ),
    "Qwen/Qwen2.5-7B": (
        {
            "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "sliding_window": 131072,
            "use_sliding_window": False, "max_window_layers": 28, "tie_word_embeddings": False, **LLAMA,
        },
        7_615_616_512,
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        {
            "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
            "num_experts_per_tok": 4, "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21,
            "norm_topk_prob": False, **LLAMA,
        },
        14_315_784_192,
    ),
    "Qwen/Qwen3-8B": (
        {
            "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
            "attention_bias": False, "tie_word_embeddings": False, "use_sliding_window": False, **LLAMA,
        },
        8_190_735_360,
    ),
    "Qwen/Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 8, "norm_topk_prob": True, "use_sliding_window": False, **LLAMA,
        },
        30_532_122_624,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        {
            "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "q_lora_rank": None,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
            **LLAMA,
        },
        15_706_484_224,
    ),
    "deepseek-ai/DeepSeek-V3": (
        {
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3, "moe_layer_freq": 1, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
            "num_nextn_predict_layers": 1, "ep_size": 1, "quantization_config": {"weight_block_size": [128, 128]},
            **LLAMA,
        },
        671_026_404_352,  # without 58 x 256 biases of routing, which are buffers
    ),
    "openai/gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "attention_bias": True, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
            "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
            "initial_context_length": 4096, "swiglu_limit": 7.0, **LLAMA,
        },
        20_914_757_184,
    ),
    "google/gemma-2-9b": (
        {
            "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
            "sliding_window": 4096, "sliding_window_size": 4096, "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
        },
        9_241_705_984,
    ),
    "zai-org/GLM-4.5-Air": (
        {
            "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552,
            "attention_bias": True, "use_qk_norm": False, "partial_rotary_factor": 0.5, "n_routed_experts": 128,
            "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, **LLAMA,
        },
        106_852_251_264 - 45 * 128,  # the released weights, less biases of routing, which are buffers
    ),
    "allenai/OLMoE-1B-7B-0924": (
        {
            "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304, "num_experts": 64,
            "num_experts_per_tok": 8, "norm_topk_prob": False, "attention_bias": False, "clip_qkv": None, **LLAMA,
        },
        6_919_161_856,
    ),
    "meta-llama/Llama-4-Scout-17B-16E": (
        {
            "model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
                "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "vocab_size": 202048,
                "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
                "num_key_value_heads": 8, "head_dim": 128, "interleave_moe_layer_step": 1, "num_local_experts": 16,
                "num_experts_per_tok": 1, "attention_chunk_size": 8192, "no_rope_layers": [], **LLAMA,
            },
        },
        107_769_861_120,  # its text part
    ),
    "mosaicml/mpt-7b": (
        {
            "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
            "max_seq_len": 2048, "vocab_size": 50432, "no_bias": True,
            "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
        },
        6_649_286_656,
    ),
    "EleutherAI/gpt-neox-20b": (
        {
            "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
            "num_attention_heads": 64, "vocab_size": 50432, "rotary_pct": 0.25, "use_parallel_residual": True,
            "tie_word_embeddings": False, "max_position_embeddings": 2048,
        },
        20_554_567_680,
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        {
            "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "sliding_window": 2047,
            "original_max_position_embeddings": 4096, "tie_word_embeddings": False, **LLAMA,
        },
        3_821_079_552,
    ),
    "openai-community/gpt2": (
        {
            "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_ctx": 1024, "n_positions": 1024,
            "vocab_size": 50257, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
        },
        124_439_808,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_huggingface_config_counts_the_released_weights(name: str, tmp_path: Path) -> None:
    config, parameters = CONFIGS[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent="\t"))
    assert load_model(str(path)).total_params == parameters


PRIMUS = {
    "llama_base.yaml": """
        extends: [../../modules/megatron/pre_trainer.yaml]
        group_query_attention: false
        swiglu: true
        add_bias_linear: false
        untie_embeddings_and_output_weights: true
        position_embedding_type: rope
        normalization: RMSNorm
    """,
    "llama3_8B.yaml": """
        extends: [llama_base.yaml]
        num_layers: 32
        hidden_size: 4096
        ffn_hidden_size: 14336
        num_attention_heads: 32
        group_query_attention: true
        num_query_groups: 8
    """,
    "llama3.1_8B.yaml": """
        extends: [llama3_8B.yaml]
        tokenizer_model: meta-llama/Llama-3.1-8B
        max_position_embeddings: 131072
    """,
    "deepseek_v3.yaml": """
        bases: [llama_base.yaml]
        tokenizer_model: deepseek-ai/DeepSeek-V3
        num_layers: 61
        hidden_size: 7168
        ffn_hidden_size: 18432
        num_attention_heads: 128
        multi_latent_attention: true
        qk_layernorm: true
        q_lora_rank: 1536
        kv_lora_rank: 512
        qk_head_dim: 128
        qk_pos_emb_head_dim: 64
        v_head_dim: 128
        kv_channels: 128
        mtp_num_layers: 1
        moe_layer_freq: "([0]*3+[1]*58)"
        num_experts: 256
        moe_router_topk: 8
        moe_router_enable_expert_bias: true
        moe_ffn_hidden_size: 2048
        moe_shared_expert_intermediate_size: 2048
    """,
}


@pytest.mark.parametrize(("name", "parameters"), [("llama3.1_8B", 8_030_261_248), ("deepseek_v3", 671_026_404_352)])
def test_a_primus_preset_counts_the_released_weights(name: str, parameters: int, tmp_path: Path) -> None:
    """The vocabulary comes from the tokenizer, not from a default of 100,352 as in Primus' own projection."""
    for file, text in PRIMUS.items():
        (tmp_path / file).write_text(text)
    assert load_model(str(tmp_path / f"{name}.yaml")).total_params == parameters


PRESET_OF = {
    "meta-llama/Llama-3.1-8B": "llama3.1_8b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral_8x7b",
    "Qwen/Qwen2.5-7B": "qwen2.5_7b",
    "Qwen/Qwen3-30B-A3B": "qwen3_30b_a3b",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek_v2_lite",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "openai/gpt-oss-20b": "gpt_oss_20b",
}


@pytest.mark.parametrize("name", PRESET_OF)
def test_an_imported_model_is_the_preset(name: str, tmp_path: Path) -> None:
    """Not only the count: every field, windows and experts of every layer included."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name][0]))
    assert replace(load_model(str(path)), name=PRESET_OF[name]) == load_model(PRESET_OF[name])


WORD = "never_seen_before"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_renamed_field_of_a_config_is_refused_by_its_new_name(name: str, tmp_path: Path) -> None:
    """Any one field that switches something on, of the text section where there is one, spelled as no family knows."""
    config = CONFIGS[name][0]
    section: dict[str, Any] = config.get("text_config", config)
    for key in [key for key, value in section.items() if value not in (None, False, 0, "", [], {})]:
        renamed = {WORD if k == key else k: v for k, v in section.items()}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | {"text_config": renamed} if section is not config else renamed))
        with pytest.raises(InputError) as caught:
            load_model(str(path))
        assert WORD in str(caught.value) or key == "model_type", key
