"""NeMo's scripts are read by Hydra, which Megatron-Bridge parses its overrides with, and name fields that it has."""

import dataclasses
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import jobs
from tools.class_fields import Sources

parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
PROVIDER = {
    "vocab_size", "seq_length", "share_embeddings_and_output_weights", "make_vocab_size_divisible_by",
    "position_embedding_type", "rope_scaling", "rope_scaling_factor", "rotary_base", "rotary_percent",
}  # fmt: skip
"""Fields of GPTModelProvider beside Megatron's (Megatron-Bridge src/megatron/bridge/models/gpt_provider.py)."""
MODELS = ("qwen3_30b_a3b", "gpt_oss_20b", "llama3.1_8b", "deepseek_v3", "qwen2.5_7b", "nemotron4_15b")


def overrides(text: str) -> dict[str, Any]:
    """What Hydra reads in a script."""
    body = re.search(r"^OVERRIDES=\(\n(.*?)^\)", text, re.M | re.S)
    assert body is not None
    parsed = parser.OverridesParser.create().parse_overrides(shlex.split(body[1]))
    return {one.key_or_group: one.value() for one in parsed}


def nemo_jobs(model: str, count: int, framework: str = "nemo") -> list[LaunchJob]:
    space = {"model": model, "hardware": "h100", "nodes": 16, "framework": framework,
             "workload": {"seq_length": 8192, "global_batch_size": 512}}  # fmt: skip
    return list(jobs(make_space(space, name=model), count))


@pytest.mark.daily(3)
@pytest.mark.parametrize("model", MODELS)
def test_hydra_reads_every_override_and_the_fields_are_megatrons(model: str) -> None:
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    known = {field.name for field in dataclasses.fields(config.MLATransformerConfig)} | PROVIDER
    for job in nemo_jobs(model, 30):
        text = launch_files(job).texts["nemo.sh"]
        found = overrides(text)
        sections = {key.partition(".")[2] for key in found if key.startswith("model.")}
        assert sections - known == set()
        assert found["model.seq_length"] == found["dataset.seq_length"] == 8192
        assert f"--seq_length {job.workload.seq_length} " in text
        assert found["model.tensor_model_parallel_size"] == job.row["tp"]
        assert (found["model.virtual_pipeline_model_parallel_size"] or 1) in (1, job.row["vpp"])
        if job.model.is_moe:
            assert tuple(map(bool, found["model.moe_layer_freq"])) == tuple(job.model.moe_layers)


def test_what_a_candidate_has_off_is_written_off() -> None:
    plain = next(
        job for job in nemo_jobs("qwen2.5_7b", 400) if job.row["recompute"] == "none" and not job.row["tp_overlap"]
    )
    found = overrides(launch_files(plain).texts["nemo.sh"])
    assert found["model.recompute_granularity"] is None and found["model.recompute_num_layers"] is None
    assert found["model.tp_comm_overlap"] is False and found["comm_overlap"] is None
    assert found["model.num_moe_experts"] is None and found["model.mtp_num_layers"] is None
    assert found["ddp.overlap_grad_reduce"] is plain.row["overlap_grad_reduce"]


@pytest.mark.parametrize(
    ("release", "dataset", "needs"),
    [("", "mock", "Megatron-Bridge v0.6.0 (container 26.08)"), ("@26.08", "mock", "NeMo Megatron-Bridge 26.08"),
     ("@26.06", "llm-pretrain-mock", "NeMo Megatron-Bridge 26.06"), ("@25.11", "llm-pretrain-mock", "25.11")],
)  # fmt: skip
def test_a_script_names_its_release_and_the_dataset_of_that_release(release: str, dataset: str, needs: str) -> None:
    """Choices of `--dataset`: scripts/training/run_recipe.py of Megatron-Bridge v0.5.1 and v0.6.0."""
    job = nemo_jobs("llama3.1_8b", 1, f"nemo{release}")[0]
    text = launch_files(job).texts["nemo.sh"]
    assert f" --dataset {dataset} " in text
    assert needs in next(line for line in text.splitlines() if line.startswith("# Needs: "))


@needs("nemo", "megatron@core_0.20")
def test_hybrid_stacks_are_written_in_fields_of_their_provider() -> None:
    """HybridModelProvider of Megatron-Bridge, which has no scaling of positions."""
    source = sources("nemo") / "src"
    provider = source / "megatron/bridge/models/hybrid/hybrid_provider.py"
    read = Sources([source, sources("megatron@core_0.20")]).fields(provider, "HybridModelProvider")
    fields = {one.name for one in read}
    for job in nemo_jobs("nemotron3_nano", 10):
        found = {key.partition(".")[2] for key in overrides(launch_files(job).texts["nemo.sh"]) if key[:6] == "model."}
        assert found - fields == set()


def test_formats_that_a_recipe_of_the_model_keeps_are_to_be_set_in_it() -> None:
    """DeepSeek-V3's recipe has BF16 moments and gradients (bridge/recipes/deepseek/h100/deepseek_v3.py)."""
    lines = [launch_files(nemo_jobs(model, 1)[0]).texts["nemo.sh"] for model in ("deepseek_v3", "llama3.1_8b")]
    assert ["exp_avg_dtype=float32" in text for text in lines] == [True, False]


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("llama3_8b", "llama3_8b_pretrain_8gpu_h100_fp8cs_config"),
        ("qwen3_30b_a3b", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16"),
    ],
)
def test_a_difference_to_a_recipe_is_read_as_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, recipe: str
) -> None:
    """Number formats of the optimizer, which no override names, are compared by the line that says them."""
    monkeypatch.setenv("BRIDGE_PATH", "/opt/bridge")
    for job in nemo_jobs(model, 12):
        texts = [launch_files(one).texts["nemo.sh"] for one in (job, replace(job, recipe=recipe))]
        assert len(overrides(texts[1])) < len(overrides(texts[0])) * 0.6
        assert overrides(texts[1]).items() <= overrides(texts[0]).items()
        (tmp_path / "nemo.sh").write_text(texts[1], encoding="utf-8")
        read = read_experiment(tmp_path / "nemo.sh", 128)
        formats = {"state_format": read.row["state_format"]}
        assert {**read.row, **formats} == {**job.row, **formats}
        assert (read.model, read.seq_length, read.global_batch_size) == (job.model, 8192, 512)


def test_a_recipe_of_another_model_or_none_is_refused() -> None:
    job = nemo_jobs("llama3_8b", 1)[0]
    with pytest.raises(Inexpressible, match="trains Qwen/Qwen3-30B-A3B; recipes of llama3_8b: llama3_8b_pretrain"):
        launch_files(replace(job, recipe="qwen3_30b_a3b_pretrain_16gpu_h100_bf16"))
    with pytest.raises(InputError, match="'llama3_8b_pretran' is no recipe that is known; did you mean"):
        launch_files(replace(job, recipe="llama3_8b_pretran"))


def test_a_precision_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    line = "python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config mixed_precision=bf17"
    (tmp_path / "run.sh").write_text(line, encoding="utf-8")
    with pytest.raises(InputError, match="mixed_precision=bf17: a precision that is not read"):
        read_experiment(tmp_path / "run.sh", 8)
