"""Real training on this machine: a few configurations as a smoke test, and the arithmetic of the comparison.

The whole comparison takes minutes and a quiet machine: `primus-search truth`.
"""

import pytest

from primus_search.measure.bench import Piece
from primus_search.measure.isolate import Verdict
from primus_search.measure.ranks import run_ranks
from primus_search.measure.shard import Shard
from primus_search.measure.truth import GPT, MOE, Case, Report, Row, cases, train

TRAIN = "primus_search.measure.truth_train:train"


def losses(model, mode, *, microbatches=2, knobs=(), **shard):
    piece = Piece(
        piece="layer",
        model=model,
        shard=Shard(micro_batch_size=1, seq_length=64, dtype="float32", **shard),
        kind=model.kinds[0],
    )
    payload = {"piece": piece.to_json(), "microbatches": microbatches, "steps": 2, "warmup": 0}
    payload |= {"knobs": {"mode": mode, "dp": 2, "vpp": 1, "schedule": "1f1b"} | dict(knobs)}
    outcomes = run_ranks(TRAIN, payload, ranks=2, limit_s=240)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE] * 2, outcomes
    return [outcome.value["losses"] for outcome in outcomes]


@pytest.mark.slow
def test_sharded_and_replicated_training_have_the_same_losses():
    assert losses(GPT, "fsdp") == [pytest.approx(rank, rel=1e-5) for rank in losses(GPT, "dp")]


@pytest.mark.slow
def test_every_way_to_split_a_step_trains():
    first = case("gpt pp2 1f1b b2")
    row = train(first, steps=1, warmup=0, limit_s=240)
    assert row.failure == ""
    assert row.trained_s > 0 and row.trained_bytes > row.baseline_bytes > 1e8
    expert = losses(MOE, "dp", ep=2)
    assert all(7.0 < loss < 10.0 for rank in expert for loss in rank)  # ln(4096) = 8.3 before anything is learnt


def case(name):
    return next(one for one in cases() if one.name == name)


def test_the_comparison_covers_every_kind_of_parallelism_at_least_24_times():
    names = [one.name for one in cases()]
    assert len(set(names)) == len(names) >= 24
    for word in ("dp2", "tp2", "fsdp2", "ep2", "1f1b", "gpipe", "v2", "recompute", "b1", "b4"):
        assert any(word in name for name in names), word


def test_a_case_is_one_legal_candidate():
    c = Case(name="x", model=GPT, mode="pp", knobs={"pp": 2, "vpp": 2}, schedule="interleaved").candidates()
    assert (c.row(0)["pp"], c.row(0)["vpp"], c.row(0)["schedule"], c.row(0)["sharding"]) == (
        2,
        2,
        "interleaved",
        "none",
    )


def test_errors_and_ranks_of_a_report():
    rows = [
        Row(name="a", trained_s=1.0, measured_s=1.1, projected_s=3.0, trained_bytes=100.0, projected_bytes=90.0),
        Row(name="b", trained_s=2.0, measured_s=1.8, projected_s=2.0, trained_bytes=100.0, projected_bytes=100.0),
        Row(name="c", trained_s=3.0, measured_s=3.6, projected_s=1.0, trained_bytes=100.0, projected_bytes=120.0),
        Row(name="d", failure="hang: no result within 1 s"),
    ]
    report = Report(rows=tuple(rows))
    assert report.kendall() == pytest.approx(1.0)
    assert report.kendall("projected_s") == pytest.approx(-1.0)
    assert (report.place(), report.place("projected_s")) == (1, 3)
    assert report.step_error() == pytest.approx(0.1)
    assert report.memory_error == pytest.approx(0.1)
    assert report.as_json()["configurations"] == 3
