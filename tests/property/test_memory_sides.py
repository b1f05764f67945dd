"""Bundles of a search: candidates of one have the same memory, and no axis parts them where it changes none."""

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.exploration.exhaustive.bounds_and_steps import GridCosts
from primus_search.space import Enumerator

JOB = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 2, "framework": "any"}
AXES = {"tp": [1, 2], "recompute": ["none", "selective"], "sharding": ["none", "distributed_optimizer"]}


@pytest.mark.parametrize("optimizers", [["adam"], ["adam", "muon", "lion"]])
def test_reduction_beside_backward_parts_bundles_of_dealt_matrices_alone(optimizers: list[str]) -> None:
    """Without it a chunk of matrices is one bucket of another size (NVIDIA/Megatron-LM training.py
    `resolve_ddp_bucket_size`)."""
    counts = []
    for overlap in ([True], [True, False]):
        axes = AXES | {"overlap_grad_reduce": overlap, "optimizer": optimizers}
        space = make_space(JOB | {"space": axes, "workload": {"seq_length": 4096, "global_batch_size": 64}})
        enumerator = Enumerator(space)
        costs = GridCosts(enumerator, Projector(space.job))
        cells, bundle = costs.bundles.of(np.arange(len(enumerator.class_of_cell)))
        counts.append(len(bundle))
        spread = costs.bundles.lines(cells, bundle)
        alone = costs.projector.memory_bytes(enumerator.table(spread.lines))
        together = costs.memory_bytes(cells, costs.bundles.example[bundle])
        assert np.array_equal(alone, together[spread.owner])
    assert (counts[1] > counts[0]) == (len(optimizers) > 1)
