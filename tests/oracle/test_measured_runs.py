"""Projections against training runs measured by others (tests/oracle/data/README.md).

Tolerances are the accuracy this project promises (docs/dev/fidelity_log.md), not what happens to come out today. The
error with a run's source and model left out of every fit is in docs/fidelity.md; here the shipped numbers are judged.
"""

import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun, Validation
from primus_search.evidence.validate.scores import quantile
from primus_search.evidence.validate.summary import summary

DATA = Path(__file__).parent / "data" / "training_runs.csv"
UNSEEN = Path(__file__).parent / "data" / "unseen_runs.csv"
UNSEEN_MEDIAN, UNSEEN_P90 = 0.07, 0.22
MEDIAN, P90, BIAS, GPU_MEDIAN, KENDALL = 0.06, 0.20, 0.02, 0.09, 0.80
RESULTS = {"id", "tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_s", "mfu", "peak_mem_gb", "notes"}
RESULTS |= {"params_b", "dp", "sequence_parallel"}
"""Columns that are no setting of a run, or follow from others; sequence parallelism came with selective recompute."""
FEW = 4.0
"""GPU families with fewer distinct runs than this are not judged on their own: one odd run would decide."""


@pytest.fixture(scope="module")
def outcome() -> Validation:
    return validated(DATA)


def test_every_complete_run_is_projected(outcome: Validation) -> None:
    odd = {one.id: one.reason for one in outcome.skipped if one.reason != "marked incomplete"}
    assert odd == {}


def test_errors_stay_inside_what_is_promised(outcome: Validation) -> None:
    figures = summary(outcome)
    assert figures["median_abs_error"] <= MEDIAN
    assert figures["p90_abs_error"] <= P90
    assert abs(figures["bias"]) <= BIAS
    assert figures["kendall"] >= KENDALL


def test_no_gpu_family_is_left_behind(outcome: Validation) -> None:
    gpus = np.array([row.run.gpu for row in outcome.rows])
    errors, weights = np.abs(outcome.errors), outcome.weights
    medians = {
        gpu: quantile(errors[gpus == gpu], weights[gpus == gpu], 0.5)
        for gpu in dict.fromkeys(gpus.tolist())
        if weights[gpus == gpu].sum() >= FEW
    }
    assert {gpu: m for gpu, m in medians.items() if m > GPU_MEDIAN} == {}


def test_fp8_gains_are_realistic_and_have_the_measured_sign(outcome: Validation) -> None:
    """NVIDIA's H100 pairs that differ in nothing but precision; measured 1.22 to 1.68 (dgxc-benchmarking v25.02)."""
    pairs: dict[tuple[object, ...], dict[str, tuple[float, float]]] = {}
    for row in outcome.rows:
        run = row.run
        if not run.id.startswith("dgxc"):
            continue
        key = (*run.group, run.cluster.world, run.candidates.tp[0], run.candidates.micro_batch_size[0])
        pairs.setdefault(key, {})[run.precision] = (row.predicted, row.run.tokens_per_s_per_gpu)
    both = [pair for pair in pairs.values() if {"bf16", "fp8-delayed"} <= set(pair)]
    assert len(both) > 20
    for pair in both:
        gain = pair["fp8-delayed"][0] / pair["bf16"][0]
        measured = pair["fp8-delayed"][1] / pair["bf16"][1]
        assert 1.0 < gain <= 1.7
        assert gain == pytest.approx(measured, rel=0.2)


KNOBS = {
    "precision": {"precision"},
    "recompute": {"recompute"},
    "micro-batch": {"mbs", "gbs"},
    "schedule": {"schedule"},
}
CLEAR = 0.04
"""Effects below this are within what identical runs differ by (3.7 to 5 %)."""
HALF_HIDDEN = {("tt-020", "tt-024")}
"""Row-wise FP8 with asynchronous tensor parallelism: it hides 4 % there, 9 % in BF16 and 16 % with one scale per tensor
(torchtitan asyncTP page); nothing published says why. Measured -4.3 %, projected +4 %."""


@pytest.mark.parametrize("knob", KNOBS)
def test_a_single_knob_moves_the_rate_the_way_it_was_measured(outcome: Validation, knob: str) -> None:
    """Every pair of runs whose rows differ in that knob only, and by more than identical runs do."""
    with DATA.open(newline="") as file:
        raw = {row["id"]: row for row in csv.DictReader(file)}
    same = [c for c in raw["tt-001"] if c not in KNOBS[knob] | RESULTS]
    alike: dict[tuple[str, ...], list[ScoredRun]] = {}
    for row in outcome.rows:
        alike.setdefault(tuple(raw[row.run.id][column] for column in same), []).append(row)
    pairs = [
        (a, b)
        for rows in alike.values()
        for a, b in combinations(rows, 2)
        if all(raw[a.run.id][column] != raw[b.run.id][column] for column in KNOBS[knob])
    ]
    measured = {(a.run.id, b.run.id): b.run.tokens_per_s_per_gpu / a.run.tokens_per_s_per_gpu for a, b in pairs}
    clear = {ids for ids, ratio in measured.items() if abs(np.log(ratio)) > CLEAR}
    wrong = {
        (a.run.id, b.run.id) for a, b in pairs if (b.predicted > a.predicted) != (measured[a.run.id, b.run.id] > 1.0)
    }
    assert len(clear) >= 4
    assert wrong & clear <= HALF_HIDDEN


def test_recompute_costs_what_was_measured_within_noise(outcome: Validation) -> None:
    """Full against selective recompute of the same runs (Korthikanti et al. 2022): 29 to 32 % of throughput."""
    by_id = {row.run.id: row for row in outcome.rows}
    for full, selective in (("kor-001", "kor-002"), ("kor-003", "kor-004"), ("kor-007", "kor-008")):
        predicted = by_id[selective].predicted / by_id[full].predicted
        measured = by_id[selective].run.tokens_per_s_per_gpu / by_id[full].run.tokens_per_s_per_gpu
        assert predicted == pytest.approx(measured, rel=0.05)


def test_runs_no_fit_has_seen_are_met_as_well() -> None:
    """Promise for held-out runs; GPT-OSS keeps the whole table's tail above its 22 % (docs/dev/fidelity_log.md)."""
    outcome = validated(UNSEEN)
    assert not outcome.skipped
    assert summary(outcome)["median_abs_error"] <= UNSEEN_MEDIAN
    errors = np.abs(outcome.errors)
    dense = np.array([not row.run.model.is_moe for row in outcome.rows])
    assert quantile(errors[dense], outcome.weights[dense], 0.9) <= UNSEEN_P90
