"""Adapters beside frozen weights: parameters against peft's own counts, names of modules, what a workload may say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.files.source import Document
from primus_search.models import huggingface
from primus_search.models.model_files import load_model
from primus_search.values.model import Adapters, Mamba2, Model, ShortConvolution
from primus_search.values.model.adapters import named
from primus_search.values.workload import Workload

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("adapter_counts.json").read_text(encoding="utf-8"))


def test_trained_and_all_parameters_are_those_that_peft_counts() -> None:
    """`python -m tests.support.peft_counts` wrote the table with peft 0.21 and transformers 5.23."""
    assert len(ROWS) >= 30
    wrong = []
    for row in ROWS:
        model = huggingface.from_document(Document("config.json", row["config"]))
        model = replace(model, adapters=Adapters(rank=row["rank"], modules=named(row["modules"])))
        found = model.trained_params, model.total_params + model.trained_params
        if found != (row["trained"], row["total"]):
            wrong.append((row, found))
    assert wrong == []


def test_the_table_is_what_peft_counts_today() -> None:
    pytest.importorskip("peft", reason="peft is no part of the development set-up")
    from tests.support.peft_counts import counted, drawn

    assert [counted(drawn(number)) for number in range(7)] == [(row["trained"], row["total"]) for row in ROWS[:7]]


def test_the_output_of_a_scan_is_a_module_of_its_own() -> None:
    """Megatron-Core: `out_proj` of Mamba, `linear_proj` of attention; HuggingFace has `out_proj` for both in LFM2."""
    hybrid, plain = load_model("nemotron_h_56b"), load_model("opt_1.3b")
    short = replace(plain, mixers=(ShortConvolution(kernel=3), *[None] * (plain.num_layers - 1)))

    def trained(model: Model, names: list[str]) -> int:
        return replace(model, adapters=Adapters(rank=8, modules=named(names, model))).trained_params

    mamba = next(kind.mixer for kind in hybrid.kinds if isinstance(kind.mixer, Mamba2))
    scans = sum(isinstance(hybrid.mixer(kind), Mamba2) for kind in hybrid.layers)
    assert trained(hybrid, ["out_proj"]) == scans * 8 * (mamba.inner + hybrid.hidden)
    assert trained(hybrid, ["linear_proj", "out_proj"]) > trained(hybrid, ["linear_proj"]) > 0
    assert named(["out_proj"], plain) == ("linear_proj",)
    assert named(["out_proj"], short) == ("linear_proj", "out_proj")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 0}, "at least 1"),
        ({"rank": 8, "modules": ("linear_qvk",)}, "linear_qvk; known: linear_qkv"),
        ({"rank": 8, "modules": ()}, "are empty"),
        ({"rank": 8, "modules": ("linear_qkv", "linear_q")}, "linear_qkv and a part of it"),
        ({"rank": 8, "modules": ("experts", "shared_expert_adapters")}, "give one of them"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adapters(**given)


def test_a_task_that_trains_adapters_has_some_and_no_other_has() -> None:
    with pytest.raises(ValueError, match="lora and qlora"):
        Workload(seq_length=1, global_batch_size=1, task="lora")
    with pytest.raises(ValueError, match="lora and qlora"):
        Workload(seq_length=1, global_batch_size=1, adapters=Adapters(rank=1))
