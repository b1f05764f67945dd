"""What `from primus_search import ...` promises, end to end on a space small enough to project whole."""

import numpy as np
import pytest

from primus_search import load_model, load_space, project, search
from primus_search.space import Enumerator


def test_the_best_of_a_search_is_the_best_of_projecting_everything() -> None:
    narrow = ["tp=[1, 2]", "pp=1", "cp=1", "micro_batch_size=[1, 2]", "fp8=none", "recompute=[none, full]"]
    space = load_space("llama3_8b_mi300x", overrides=[*narrow, "memory_margin=0.0"], environ={})
    assert space.model == load_model("llama3_8b")
    enumerator = Enumerator(space)
    everything = project(space.model, space.cluster, space.workload, enumerator.chunk(0, enumerator.size).candidates)
    fits = everything.headroom_bytes >= 0
    found = search(space)
    assert found.exact
    assert (found.legal, found.feasible) == (enumerator.size, np.count_nonzero(fits))
    best = float(np.max(everything.tokens_per_s_per_gpu[fits]))
    assert found.best.best_tokens_per_s_per_gpu == pytest.approx(best, rel=1e-12)
