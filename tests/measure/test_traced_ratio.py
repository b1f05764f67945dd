"""Re-validation never moves a row far: traced over projected activations, for every recompute choice and split.

Both count the same tensors, so they differ by whole rows per expert and routing tables alone. What a stack does and the
modules do not stays as projected, so no habit of a stack moves the ratio either.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_cluster, load_stack
from primus_search.measure.memory_residual import activation_ratio, as_traced
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, CpComm, Fp8, Offload, Recompute, RecomputeMethod
from primus_search.values.job import Job
from primus_search.values.workload import Workload

WORKLOAD = Workload(seq_length=4096, global_batch_size=64)
CLUSTER = load_cluster("h100", 8)
BAND = 0.02
DENSE, EXPERTS = ("llama3.1_8b", "qwen3_0.6b"), ("mixtral_8x7b", "deepseek_v2_lite")

RECOMPUTE = (
    Recompute.NONE,
    Recompute.CORE_ATTENTION,
    Recompute.LAYERNORM,
    Recompute.MLP,
    Recompute.MOE_ACTIVATION,
    Recompute.MLA_UP_PROJ,
    Recompute.LAYERNORM | Recompute.MOE_ACTIVATION | Recompute.MLA_UP_PROJ,
    Recompute.FULL,
)
PRECISIONS = (Fp8.NONE, Fp8.HYBRID, Fp8.DELAYED)
SPLITS: dict[str, dict[str, Any]] = {
    "whole": {},
    "tensor and sequence parallel": {"tp": 2},
    "tensor parallel alone": {"tp": 2, "sequence_parallel": False},
    "ring": {"cp": 2},
    "heads exchanged": {"tp": 2, "cp": 2, "cp_comm": int(CpComm.A2A)},
}
EXPERT_SPLITS: dict[str, dict[str, Any]] = {
    "expert tensor parallel": {"tp": 4, "ep": 2, "etp": 4},
    "expert tensor parallel, not the rest": {"etp": 2, "ep": 4},
    "expert parallel, DeepEP": {"tp": 2, "ep": 8, "deepep": True},
}


def ratio(name: str, stack: str, **columns: Any) -> float:
    cluster = replace(CLUSTER, stack=load_stack(stack))
    return activation_ratio(Job(load_model(name), cluster, WORKLOAD), Candidates.table(**columns), 0)


def every_case(name: str) -> list[tuple[str, Recompute, Fp8]]:
    """Splits, recompute choices and precisions of a preset."""
    splits = SPLITS | EXPERT_SPLITS if name in EXPERTS else SPLITS
    return list(product(splits, RECOMPUTE, PRECISIONS))


def some_cases(name: str) -> list[tuple[str, Recompute, Fp8]]:
    """Every recompute choice, split and precision at least once; over the presets, most pairs of them."""
    splits = list(SPLITS | EXPERT_SPLITS if name in EXPERTS else SPLITS)
    start = (*DENSE, *EXPERTS).index(name)
    return [
        (splits[(place + start) % len(splits)], recompute, PRECISIONS[(place + start) % len(PRECISIONS)])
        for place, recompute in enumerate(RECOMPUTE)
    ]


def beyond_the_band(name: str, stack: str, cases: list[tuple[str, Recompute, Fp8]]) -> dict[Any, float]:
    splits = SPLITS | EXPERT_SPLITS
    found = {
        (split, str(recompute), fp8.name): ratio(name, stack, recompute=int(recompute), fp8=int(fp8), **splits[split])
        for split, recompute, fp8 in cases
    }
    return {case: one for case, one in found.items() if abs(one - 1.0) > BAND}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_traced_and_projected_activations_agree(name: str) -> None:
    assert not beyond_the_band(name, "megatron_core_2026", some_cases(name))


@pytest.mark.full
@pytest.mark.parametrize("stack", ["megatron_core_2026", "primus_megatron"])
@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_traced_and_projected_activations_agree_in_every_combination(name: str, stack: str) -> None:
    assert not beyond_the_band(name, stack, every_case(name))


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        (DENSE[0], "deepspeed"),  # norms and activations of several kernels, activation clamped or not
        (DENSE[0], "megatron_2023"),  # scores and dropout masks
        (EXPERTS[1], "torchtitan"),  # norms made again by a compiled backward, two copies of routed rows
        (EXPERTS[1], "primus_megatron"),  # padded values
    ],
)
def test_habits_that_the_modules_do_not_have_stay_as_projected(name: str, stack: str) -> None:
    assert ratio(name, stack) == pytest.approx(1.0, abs=BAND)
    model, own = load_model(name), load_stack(stack)
    c = Candidates.table()
    s = Share(model, WORKLOAD, own, c, 8)
    kept, alike = (
        layer_activations(model, one, model.kinds[-1], s, WORKLOAD.seq_length).kept[0] for one in (own, as_traced(own))
    )
    assert kept != alike  # else the habit is none


def test_offloaded_inputs_are_not_brought_back_by_a_trace() -> None:
    assert ratio(DENSE[0], "megatron_core_2026", offload_modules=int(Offload.CORE_ATTN | Offload.ATTN_PROJ)) == (
        pytest.approx(1.0, abs=BAND)
    )


def test_layers_that_are_not_recomputed_count_as_they_are() -> None:
    some = {"recompute": int(Recompute.FULL), "recompute_method": int(RecomputeMethod.BLOCK), "recompute_num_layers": 4}
    assert ratio(EXPERTS[0], "megatron_core_2026", pp=2, **some) == pytest.approx(1.0, abs=BAND)
