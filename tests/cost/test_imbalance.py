"""What ranks wait for each other where lengths of documents differ, and what lengths do to a step."""

from typing import Any

import numpy as np
import pytest

from primus_search.cost.imbalance import dealt, expected_wait, row_work, waited_share
from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.lengths import Lengths
from primus_search.values.workload import Workload

SETS = [np.ceil(np.random.default_rng(seed).lognormal(6, 1.0, 40)) for seed in range(200)]
ROWS = Candidates.from_rows(
    [
        {"pp": 1, "micro_batch_size": 1, "sharding": "distributed_optimizer"},
        {"pp": 1, "micro_batch_size": 2, "sharding": "fsdp2"},
        {"pp": 4, "micro_batch_size": 1, "sharding": "none"},
    ]
)


def job(**workload: Any) -> Job:
    data = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 2}
    return make_space(data | {"workload": {"seq_length": 8192, "global_batch_size": 64} | workload}).job


def by_hand(work: np.ndarray, drawn: np.ndarray, sizes: tuple[int, int, int], together: int, fill: float) -> float:
    """The wait of ranks, micro-batch by micro-batch and rank by rank."""
    dp, microbatches, samples = sizes
    slowest, total = [], 0.0
    for step in drawn.tolist():
        seconds = [[0.0] * microbatches for _ in range(dp)]
        for place, row in enumerate(step):
            seconds[place % dp][place // (dp * samples)] += float(work[row])
        total += sum(map(sum, seconds))
        ends = []
        for first in range(0, dp, together):
            group = seconds[first : first + together]
            waited = [max(one[j] for one in group) for j in range(microbatches)]
            ends.append(sum(waited) + fill * max(waited))
        slowest.append(max(ends))
    mean = total / (len(drawn) * dp * microbatches)
    return float(np.mean(slowest)) / ((microbatches + fill) * mean) - 1.0


@pytest.mark.daily(50)
@pytest.mark.parametrize("documents", SETS)
def test_the_wait_is_that_of_ranks_counted_one_by_one(documents: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus_search.cost.imbalance.DRAWN", 1)
    workload = Workload(seq_length=2048, global_batch_size=16, lengths=Lengths.of(documents), packing="token_budget")
    work = row_work(workload, 1e-4)
    for sizes, together, fill, chunks in (((4, 2, 2), 1, 0, 1), ((4, 2, 2), 2, 3, 2), ((2, 8, 1), 2, 1, 1)):
        dp, microbatches, samples = sizes
        drawn = np.random.default_rng(0).integers(0, len(work), (8, dp * microbatches * samples))
        found = expected_wait(workload, 1e-4, dp, microbatches, samples, together, fill, chunks, False)
        assert found == pytest.approx(by_hand(work, drawn, sizes, together, fill / chunks), abs=1e-12)


def test_balanced_rows_wait_less() -> None:
    workload = Workload(seq_length=8192, global_batch_size=512, lengths=Lengths.of(SETS[3]), packing="token_budget")
    for together in (1, 16):
        usual, balanced = (expected_wait(workload, 1e-4, 16, 8, 1, together, 0, 1, one) for one in (False, True))
        assert 0.0 <= balanced < 0.5 * usual
    rows = np.random.default_rng(0).random((4, 64))
    assert np.array_equal(np.sort(dealt(rows, 8), axis=1), np.sort(rows, axis=1))


@pytest.mark.parametrize("packing", ["cut", "whole", "token_budget"])
@pytest.mark.parametrize("given", [{"histogram": {1024: 7}}, 1024])
def test_a_distribution_of_one_length_is_that_length(packing: str, given: Any) -> None:
    usual = Projector(job(document_length=1024)).project(ROWS)
    found = Projector(job(document_length=given, packing=packing)).project(ROWS)
    assert np.array_equal(found.step.total, usual.step.total) and np.array_equal(found.memory.total, usual.memory.total)
    assert np.array_equal(found.tokens_per_s, usual.tokens_per_s)


def test_documents_of_the_window_are_no_documents() -> None:
    usual = Projector(job()).project(ROWS)
    for packing in ("cut", "whole", "token_budget", "pad_to_longest", "pad_to_window"):
        found = Projector(job(document_length={"histogram": {8192: 1}}, packing=packing)).project(ROWS)
        assert np.array_equal(found.step.total, usual.step.total) and np.array_equal(
            found.tokens_per_s, usual.tokens_per_s
        )


def test_padding_does_not_count_and_packing_gains() -> None:
    """Of documents an eighth of the window long on average: the fuller the rows, the more of them in a second."""
    lengths = {"quantiles": {"p0": 128, "p50": 700, "p90": 2400, "p100": 8192}}
    rates, steps = {}, {}
    for packing in ("pad_to_window", "pad_to_longest", "whole", "token_budget"):
        found = Projector(job(document_length=lengths, packing=packing)).project(ROWS)
        rates[packing], steps[packing] = found.tokens_per_s, found.step
    assert np.all(rates["pad_to_window"] < rates["pad_to_longest"])
    assert np.all(rates["pad_to_longest"] < rates["whole"])
    assert np.all(steps["pad_to_window"].imbalance == 0.0) and np.all(steps["whole"].imbalance > 0.0)
    assert np.all(rates["whole"] / rates["pad_to_window"] > 4.0)
    balanced = Projector(job(document_length=lengths, packing="whole", balanced_packing=True)).project(ROWS)
    assert np.all(balanced.step.imbalance < steps["whole"].imbalance)


def test_ranks_that_gather_weights_wait_in_every_micro_batch() -> None:
    lengths = {"quantiles": {"p0": 128, "p50": 700, "p90": 2400, "p100": 8192}}
    rows = Candidates.from_rows([{"sharding": "distributed_optimizer"}, {"sharding": "fsdp2"}])
    once, each = waited_share(job(document_length=lengths, packing="token_budget"), rows)
    assert 0.0 < once < each
    assert waited_share(job(document_length=lengths, packing="token_budget"), rows.take(slice(0, 1)))[0] == once
