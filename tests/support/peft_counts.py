"""Parameters that peft trains in random models: `python -m tests.support.peft_counts` writes its table of them.

Each row is a configuration of transformers, the modules and the rank of an adapter, and peft's own two counts of the
model built on the meta device. Needs peft (0.21) beside transformers; a search needs neither.
"""

import json
import random
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "values" / "adapter_counts.json"
ROWS = 36
FAMILIES: dict[str, dict[str, list[Any]]] = {
    "llama": {"mlp_bias": [False]},
    "qwen2": {},
    "qwen3": {"head_dim": [32, 64]},
    "gemma2": {"head_dim": [32, 64]},
    "mixtral": {"num_local_experts": [4, 8], "num_experts_per_tok": [2]},
    "qwen3_moe": {
        "num_experts": [4, 8], "num_experts_per_tok": [2], "moe_intermediate_size": [64, 96], "head_dim": [32],
    },
    "deepseek_v3": {
        "n_routed_experts": [8], "num_experts_per_tok": [2], "moe_intermediate_size": [64], "n_group": [1],
        "topk_group": [1], "q_lora_rank": [None, 96], "kv_lora_rank": [48, 64], "qk_nope_head_dim": [32],
        "qk_rope_head_dim": [16], "v_head_dim": [32], "first_k_dense_replace": [1], "n_shared_experts": [1, 2],
    },
}  # fmt: skip
COMMON: dict[str, list[Any]] = {
    "hidden_size": [128, 192, 256], "intermediate_size": [192, 320], "num_hidden_layers": [2, 3],
    "num_attention_heads": [4, 8], "num_key_value_heads": [2, 4], "vocab_size": [512, 1000],
    "tie_word_embeddings": [True, False],
}  # fmt: skip
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LATENT = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EXPERT_PARAMETERS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def drawn(number: int) -> dict[str, Any]:
    """Configuration, modules and rank of one row, by its number alone."""
    chance = random.Random(number)
    family = list(FAMILIES)[number % len(FAMILIES)]
    config = {key: chance.choice(values) for key, values in (COMMON | FAMILIES[family]).items()}
    config |= {"model_type": family}
    if family == "deepseek_v3":
        config["num_key_value_heads"] = config["num_attention_heads"]
    has_mlp = family not in ("mixtral", "qwen3_moe", "deepseek_v3")  # peft takes their names as those of experts
    names = (*(LATENT if family == "deepseek_v3" else ATTENTION), *(MLP if has_mlp else ()))
    if family == "deepseek_v3":
        names = tuple(n for n in names if n not in (("q_a_proj", "q_b_proj"), ("q_proj",))[bool(config["q_lora_rank"])])
    modules = [name for name in names if chance.random() < 0.6] or [names[0]]
    if any(key in config for key in ("num_local_experts", "num_experts", "n_routed_experts")) and chance.random() < 0.5:
        modules.append("experts")
    return {"config": config, "modules": modules, "rank": chance.choice([1, 4, 8, 16])}


def counted(row: dict[str, Any]) -> tuple[int, int]:
    """Trained and all parameters by peft's `get_nb_trainable_parameters`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**row["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    experts = list(EXPERT_PARAMETERS) if "experts" in row["modules"] else None
    targets = [name for name in row["modules"] if name != "experts"]
    adapted = get_peft_model(model, LoraConfig(r=row["rank"], target_modules=targets, target_parameters=experts))
    trained, total = adapted.get_nb_trainable_parameters()
    return int(trained), int(total)


def main() -> None:
    """Writes the table."""
    rows = []
    for number in range(ROWS):
        row = drawn(number)
        trained, total = counted(row)
        rows.append(row | {"trained": trained, "total": total})
    TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
