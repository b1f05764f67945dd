"""Launch files of jobs that train adapters: Megatron-Bridge's overrides, Primus' post-training, refusals in words."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_search.declare.space_file import make_space
from primus_search.launch.experiment_space import space_of
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.learning.started_experiment import start
from primus_search.space import Space
from primus_search.values.candidates import Candidates


def space(framework: str, hardware: str, model: str = "llama3_8b", **lora: Any) -> Space:
    workload = {"seq_length": 4096, "global_batch_size": 64, "task": "lora", "lora": {"rank": 16} | lora}
    given = {"model": model, "hardware": hardware, "framework": framework, "workload": workload}
    return make_space(given, environ={})


def texts(space: Space, **columns: Any) -> dict[str, str]:
    job = LaunchJob.of(space, space.clusters[0], Candidates.table(sharding=1, **columns))
    return launch_files(job).texts


def test_bridge_gets_the_settings_of_its_lora() -> None:
    text = texts(space("nemo", "h100", modules=["linear_qkv", "linear_proj"], dropout=0.1), tp=2)["nemo.sh"]
    for word in ("--mode lora", "peft.dim=16", "peft.alpha=32", "peft.dropout=0.1"):
        assert word in text
    assert "peft.target_modules=[linear_qkv,linear_proj]" in text
    assert "RECIPE: one of LoRA" in text


def test_one_adapter_for_all_experts_is_what_bridge_has_by_names_of_an_mlp() -> None:
    text = texts(space("nemo", "h100", model="qwen3_30b_a3b"), ep=8)["nemo.sh"]
    assert "peft.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]" in text


def test_a_post_training_of_primus_reads_back_as_the_same_job(tmp_path: Path) -> None:
    asked = space("primus", "mi300x", modules=["linear_qkv", "linear_fc2"], dropout=0.05)
    path = tmp_path / "primus.yaml"
    text = texts(asked)["primus.yaml"]
    assert "post_trainer" in text and "sft_trainer.yaml" in text and "mock_data" not in text
    path.write_text(text, encoding="utf-8")
    back = space_of(start(path, "mi300x", 1, "llama3_8b"), [], None, "")
    assert back.workload == asked.workload
    document = yaml.safe_load(text)
    document["modules"]["post_trainer"]["overrides"]["lora"]["dropout_position"] = "post"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    notes = start(path, "mi300x", 1, "llama3_8b").experiment.not_modelled
    assert any(one.startswith("dropout_position: post (not priced: less memory") for one in notes)


@pytest.mark.parametrize(
    ("framework", "hardware", "lora", "message"),
    [
        ("nemo", "h100", {"modules": ["q_proj"]}, "one adapter for a joint product, not linear_q; use linear_qkv"),
        ("primus", "mi300x", {"base": "int8"}, "holds frozen weights in BF16, not int8"),
    ],
)
def test_adapters_that_a_framework_has_not_are_refused_in_words(
    framework: str, hardware: str, lora: dict[str, Any], message: str
) -> None:
    with pytest.raises(Inexpressible, match=message):
        texts(space(framework, hardware, **lora))


def test_experts_with_an_adapter_each_are_refused_for_one_of_all() -> None:
    with pytest.raises(Inexpressible, match="one adapter for all experts of a layer; use shared_expert_adapters"):
        texts(space("nemo", "h100", model="qwen3_30b_a3b", modules=["linear_qkv", "experts"]), ep=8)
