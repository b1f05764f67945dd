"""The engine of neighbours: a suggested memory margin fits, whatever the candidate misses."""

import re
from dataclasses import replace

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.remedies import single_changes
from primus_search.space import Enumerator
from primus_search.values.knobs import KNOBS, Fp8


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("hardware", ["h100", "mi300x", "mi355x"])
def test_a_suggested_margin_fits(hardware: str) -> None:
    """Over candidates and margins whose shortfall ends in every digit; a rounded share would miss by up to 0.05 %."""
    space = make_space(
        {
            "model": "llama3_8b", "hardware": hardware, "nodes": 1,
            "workload": {"seq_length": 8192, "global_batch_size": 64},
            "space": {"pp": 1, "cp": 1, "micro_batch_size": [1, 2, 4, 8], "recompute": ["none", "selective"]},
        }
    )  # fmt: skip
    enumerator = Enumerator(space)
    candidates = enumerator.chunk(0, enumerator.size).candidates
    choice, tried = space.clusters[0], 0
    for row in np.linspace(0, len(candidates) - 1, 16).astype(int).tolist():
        values = values_of(candidates, row)
        for margin in (0.08, 0.31, 0.5, 0.77):
            strict = replace(space, search=replace(space.search, memory_margin=margin))
            evaluator = Evaluator(strict, choice)
            if evaluator.project([values])[0].fits:
                continue
            remedy = next(single_changes(evaluator, values), "")
            found = re.match(r"memory_margin=([\d.]+) ", remedy)
            if found:
                tried += 1
                loose = replace(space, search=replace(space.search, memory_margin=float(found[1])))
                assert Evaluator(loose, choice).project([values])[0].fits, remedy
    assert tried >= 10


JOBS = (
    ("llama3.1_8b", "h100", "megatron"),
    ("qwen3_30b_a3b", "mi300x", "primus"),
    ("llama3.1_8b", "b200", "torchtitan"),
)


def test_a_broken_change_that_nothing_can_follow_has_no_legal_row() -> None:
    changes = [{knob.name: value} for knob in KNOBS for value in knob.relief] + [{"fp8": recipe} for recipe in Fp8]
    left_out = 0
    for model, hardware, framework in JOBS:
        job = {"seq_length": 4096, "global_batch_size": 64}
        data = {"model": model, "hardware": hardware, "nodes": 2, "framework": framework, "workload": job}
        space = make_space(data | {"space": {"pp": [1, 2], "cp": 1}}, environ={})
        evaluator, enumerator = Evaluator(space, space.clusters[0]), Enumerator(space)
        base = values_of(enumerator.rows(np.random.default_rng(7).integers(enumerator.size, size=1)))
        for change in changes:
            wanted = {**base, **change}
            axes = evaluator.follower_axes(base, wanted, change)
            if evaluator.broken(evaluator.settled(wanted)) and all(len(one) == 1 for one in axes.values()):
                left_out += 1
                assert evaluator.nearest(axes, base) is None, (model, change)
    assert left_out > 10
