"""Context-parallel groups by document: what runs on one rank exchanges nothing, what needs all is as without."""

from typing import Any

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.lengths import Lengths, group_shares

ROWS = Candidates.from_rows(
    [{"cp": 8, "tp": 2, "hybrid_cp": one, "cp_comm": "p2p", "recompute": "full"} for one in (False, True)]
)


def job(**workload: Any) -> Job:
    data = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 8, "framework": "any"}
    return make_space(
        data | {"workload": {"seq_length": 131072, "global_batch_size": 32, "packing": "token_budget"} | workload}
    ).job


def test_groups_are_those_of_megatrons_scheduler() -> None:
    """`max(1, 2 ** ceil(log2(length / tokens of a rank)))` ranks; hybrid_cp_schedule.py."""
    lengths = Lengths((100.0, 1025.0, 3000.0, 8192.0), (0.25, 0.25, 0.25, 0.25))
    shares = group_shares(lengths, 8192, 8)
    assert list(shares) == [1, 2, 4, 8]
    assert sum(tokens for tokens, _ in shares.values()) == pytest.approx(1.0)
    assert shares[4] == pytest.approx((3000 / 12317, 3000**2 / (100**2 + 1025**2 + 3000**2 + 8192**2)))
    assert list(group_shares(lengths, 8192, 1)) == [1]


def test_documents_of_the_window_run_on_all_ranks() -> None:
    static, hybrid = Projector(job(document_length={"histogram": {131072: 1}})).project(ROWS).step.total
    assert static == hybrid


def test_short_documents_exchange_nothing() -> None:
    found = Projector(job(document_length={"histogram": {1024: 1}})).project(ROWS)
    assert found.step.context_comm[0] > 0.0 == found.step.context_comm[1]
    assert found.step.total[1] < found.step.total[0]
    assert found.memory.total[0] == found.memory.total[1]


def test_a_mixture_gains_between_both() -> None:
    lengths = {"quantiles": {"p0": 256, "p50": 4000, "p90": 30000, "p100": 131072}}
    found = Projector(job(document_length=lengths)).project(ROWS)
    assert 0.0 < found.step.context_comm[1] < found.step.context_comm[0]
    assert found.step.imbalance[1] < found.step.imbalance[0]
    assert np.argmin(found.step.total) == 1
