"""Real training on this machine: every way to split a step, and the space of what is trained."""

from dataclasses import replace

import pytest

from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.measure.host_calibration import WARM
from primus_search.measure.isolate import ProcessVerdict
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import RankJob, run_jobs
from primus_search.values.machine.cluster import Cluster
from primus_search.values.workload import Workload
from tools.truth.case_space import GPT, MOE, legal
from tools.truth.train_one import training_job

TRAIN = "tools.truth.training:train"
SHORT = Workload(seq_length=64, global_batch_size=4)
DEVICE = load_hardware("h100")
NETWORK = replace(DEVICE.network, gpus_per_node=2)
TWO_DEVICES = Cluster(accelerator=DEVICE.accelerator, network=NETWORK, stack=load_stack("host"), num_nodes=1)


def losses_job(model, mode, *, microbatches=2, knobs=(), **shard):
    piece = TimedPiece(
        piece="layer",
        model=model,
        shard=Shard(micro_batch_size=1, seq_length=64, dtype="float32", **shard),
        kind=model.kinds[0],
    )
    payload = {"piece": piece.to_json(), "microbatches": microbatches, "steps": 2, "warmup": 0, "counted": 0}
    payload |= {"knobs": {"mode": mode, "dp": 2, "vpp": 1, "schedule": "1f1b"} | dict(knobs)}
    return RankJob(function=TRAIN, payload=payload, limit_s=240)


@pytest.fixture(scope="module")
def trained():
    """Four ways to split a step, really trained; a job that cannot work between them."""
    one = case("gpt pp2 1f1b b2")
    jobs = [
        losses_job(GPT, "fsdp"),
        losses_job(GPT, "dp"),
        replace(losses_job(GPT, "dp"), function="tests.support.measure_faults:not_finite"),
        training_job(one, 1, SHORT),
        losses_job(MOE, "dp", ep=2),
    ]
    return run_jobs(jobs, ranks=2, threads=1, warm=WARM)


def losses(outcomes):
    assert [outcome.verdict for outcome in outcomes] == [ProcessVerdict.DONE] * 2, outcomes
    return [outcome.value["losses"] for outcome in outcomes]


@pytest.mark.in_turn("trained")
@pytest.mark.slow
def test_sharded_and_replicated_training_have_the_same_losses(trained):
    for sharded, replicated in zip(losses(trained[0]), losses(trained[1]), strict=True):
        assert len(sharded) == 2 and sharded == pytest.approx(replicated, rel=1e-5)


@pytest.mark.in_turn("trained")
@pytest.mark.slow
def test_a_job_that_fails_is_a_verdict_and_the_jobs_after_it_run(trained):
    assert [outcome.verdict for outcome in trained[2]] == [ProcessVerdict.NOT_FINITE] * 2
    assert trained[2][0].cause == "NotFiniteError: the output holds NaN or infinity"


@pytest.mark.in_turn("trained")
@pytest.mark.slow
def test_every_way_to_split_a_step_trains(trained):
    for value in (outcome.value for outcome in trained[3]):
        assert value["walls_s"][0] > 0 and value["peak_bytes"] > value["baseline_bytes"] > 1e8
    assert all(
        7.0 < loss < 10.0 for rank in losses(trained[4]) for loss in rank
    )  # ln(4096) = 8.3 before anything is learnt


def case(name):
    return next(one for one in legal(TWO_DEVICES) if one.name == name)


def test_the_legal_configurations_are_every_way_to_split_times_every_size_and_have_names_of_their_own():
    names = [one.name for one in legal(TWO_DEVICES)]
    assert len(set(names)) == len(names) == 117
    # dp2, fsdp2, ep2 leave micro-batches of 1, 2, 4; tp2 and GPipe also 8; 1F1B wants two micro-batches for two stages
    for words, sizes in (("gpt dp2", "124"), ("moe ep2", "124"), ("gpt tp2", "1248"), ("moe pp2 1f1b", "124")):
        for again in ("", "selective ", "recompute "):
            assert [n for n in names if n.startswith(f"{words} {again}b")] == [f"{words} {again}b{b}" for b in sizes]
    assert not any(name.startswith("moe tp2") for name in names)  # would need sequence parallelism


def test_a_case_is_one_legal_candidate_and_how_to_train_it():
    interleaved, sharded = case("moe pp2 v2 recompute b2"), case("gpt fsdp2 b1")
    row = interleaved.row.row(0)
    assert (interleaved.model, interleaved.mode, interleaved.schedule) == (MOE, "pp", "interleaved")
    assert (row["pp"], row["vpp"], row["recompute"], row["micro_batch_size"], row["sharding"]) == (
        2, 2, "full", 2, "none",
    )  # fmt: skip
    assert (sharded.mode, case("gpt tp2 b1").mode, case("moe ep2 b1").mode) == ("fsdp", "tp", "dp")
