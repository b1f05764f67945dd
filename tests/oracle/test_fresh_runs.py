"""Published runs collected after the model stood, dealt by a hash of their source before any was projected.

Data: tests/oracle/data/unseen_runs_2.csv (one half, which was looked at), unseen_runs_3.csv (the other half, projected
when all else was done) and unseen_runs_5.csv (half of a third set, of NVIDIA's stacks), with address, date and the
figure as printed. The bounds are what is promised for runs that no fit has seen; where one does not hold, the mark says
by how much, and lifts itself by failing when it does.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri

from primus_search.cost.memory.fit import DEVIATIONS_TO_END, SURELY
from primus_search.cost.uncertainty import memory_error
from primus_search.validate.run import Outcome, are_inside, coverage, memory_summary, summary, validate_file

DATA = Path(__file__).parent / "data"
WHOLE_EXPERTS = "recompute 'selective:layernorm,moe' is not known"
"""Recompute of whole expert layers, which no candidate has."""


@lru_cache(maxsize=3)
def outcome(name: str = "unseen_runs_2.csv") -> Outcome:
    return validate_file(DATA / name)


def other_half() -> Outcome:
    return outcome("unseen_runs_3.csv")


def missed(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


def test_every_row_is_read() -> None:
    assert {run.id: reason for run, reason in outcome().skipped} == {"h800q-10": WHOLE_EXPERTS}
    assert (len(outcome().rows), len(outcome().ran_out)) == (72, 11)
    assert len(other_half().skipped) == 4
    assert (len(other_half().rows), len(other_half().ran_out)) == (31, 7)


@missed("9.9 % when first collected, 9.2 % since; 6.5 % where the software is known, 10.5 % where it is assumed")
def test_half_of_the_errors_are_as_small_as_promised() -> None:
    assert summary(outcome())["median_abs_error"] <= 0.07


def test_nine_of_ten_errors_are_as_small_as_promised() -> None:
    assert summary(outcome())["p90_abs_error"] <= 0.22


def test_runs_are_projected_neither_too_fast_nor_too_slow_on_the_whole() -> None:
    assert abs(summary(outcome())["bias"]) <= 0.02


def test_intervals_hold_as_often_as_they_say() -> None:
    assert 0.85 <= coverage(outcome()) <= 0.95


def test_intervals_of_both_halves_together_hold_as_often_as_they_say() -> None:
    both = (outcome(), other_half())
    inside, weights = (np.concatenate(parts) for parts in zip(*((are_inside(o), o.weights) for o in both), strict=True))
    assert 0.85 <= float((inside * weights).sum() / weights.sum()) <= 0.95


@missed("10.1, 30.5, -8.2 % when first collected; 8.9, 21.0, -2.8 % since: 28 of the 30 peaks are of software assumed")
def test_peaks_are_met_as_promised() -> None:
    memory = memory_summary(outcome())
    assert memory["rows"] == 30
    assert memory["median_abs_error"] <= 0.04
    assert memory["p90_abs_error"] <= 0.10
    assert abs(memory["bias"]) <= 0.03


def test_at_most_one_in_a_hundred_that_ran_is_said_to_run_out() -> None:
    assert memory_summary(outcome())["false_oom"] <= 0.01


def test_at_most_three_in_a_hundred_that_ran_out_are_said_to_fit() -> None:
    assert memory_summary(outcome())["false_fit"] <= 0.03


def test_peaks_of_assumed_software_lie_where_its_verdicts_expect_them() -> None:
    """A run fits any device as large as its peak: of those said to fit one with a probability of 0.9, as many do."""
    rows = [row for row in (*outcome().rows, *outcome().memory_only) if row.case.assumed and row.memory is not None]
    ran = 0
    for row in rows:
        error, pair = memory_error(row.case.cluster.stack, row.case.model), row.memory
        assert error is not None and pair is not None
        spread = np.hypot(row.case.cluster.accelerator.footprint.spread, np.log(error.high) / DEVIATIONS_TO_END)
        ran += pair[1] <= pair[0] * np.exp(spread * ndtri(SURELY))
    assert len(rows) >= 25
    assert ran >= 0.85 * len(rows)


# --- the other half: torch's own trainers, community forks and fine-tuning, mostly of experts ------------------------


@missed("14.1 and 62 % when first projected, 6.3 and 27 % since: Megatron-FSDP with experts, torch eager with TP")
def test_errors_of_the_other_half_are_as_small_as_promised() -> None:
    figures = summary(other_half())
    assert figures["median_abs_error"] <= 0.07
    assert figures["p90_abs_error"] <= 0.22


def test_intervals_of_the_other_half_hold_as_often_as_they_say() -> None:
    assert 0.85 <= coverage(other_half()) <= 0.95


def test_at_most_one_in_a_hundred_of_the_other_half_is_said_to_run_out() -> None:
    assert memory_summary(other_half())["false_oom"] <= 0.01


def test_at_most_three_in_a_hundred_of_the_other_half_that_ran_out_are_said_to_fit() -> None:
    assert memory_summary(other_half())["false_fit"] <= 0.03


# --- NVIDIA's stacks of 2025 and 2026, half of a third set ------------------------------------------------------------


def nvidia() -> Outcome:
    return outcome("unseen_runs_5.csv")


def test_every_row_of_nvidias_stacks_is_read() -> None:
    assert nvidia().skipped == ()
    assert (len(nvidia().rows), len(nvidia().memory_only), len(nvidia().ran_out)) == (113, 1, 2)


@missed("9.9 and 46.7 % when first projected, 8.9 and 26.9 % since: MXFP8 experts without graphs 14 to 35 % fast")
def test_errors_of_nvidias_stacks_are_as_small_as_promised() -> None:
    figures = summary(nvidia())
    assert figures["median_abs_error"] <= 0.07
    assert figures["p90_abs_error"] <= 0.22


def test_nvidias_stacks_are_projected_neither_too_fast_nor_too_slow_on_the_whole() -> None:
    assert abs(summary(nvidia())["bias"]) <= 0.02


@missed("69 % when first projected, 74 % since: bands of experts in MXFP8 are too narrow, 58 % of them inside")
def test_intervals_of_nvidias_stacks_hold_as_often_as_they_say() -> None:
    assert 0.85 <= coverage(nvidia()) <= 0.95


def test_peaks_of_nvidias_stacks_are_met_as_promised() -> None:
    """15.4, 19.2 and -13.8 % when first projected."""
    memory = memory_summary(nvidia())
    assert memory["rows"] == 8
    assert memory["median_abs_error"] <= 0.04
    assert memory["p90_abs_error"] <= 0.10
    assert abs(memory["bias"]) <= 0.03


def test_at_most_one_in_a_hundred_of_nvidias_stacks_that_ran_is_said_to_run_out() -> None:
    assert memory_summary(nvidia())["false_oom"] <= 0.01


@missed("2 of 2, experts under FSDP: what Megatron-FSDP's second version and Automodel hold is not counted")
def test_at_most_three_in_a_hundred_of_nvidias_stacks_that_ran_out_are_said_to_fit() -> None:
    assert memory_summary(nvidia())["false_fit"] <= 0.03
