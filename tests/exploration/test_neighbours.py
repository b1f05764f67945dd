"""The engine of neighbours: a suggested memory margin fits, whatever the candidate misses."""

import re
from dataclasses import replace

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.remedies import single_changes
from primus_search.space import Enumerator


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
