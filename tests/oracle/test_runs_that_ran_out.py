"""Configurations that others saw run out of memory, and neighbours of them that ran.

Data: tests/oracle/data/oom_runs.csv. `source` names where each was reported, `notes` what had to be assumed (always in
favour of fitting). One number was fitted to these: what Megatron-DeepSpeed of 2022 holds beyond what is counted
(`fixed_GiB` of its stack file, 10 GiB for the 26 BLOOM runs, whose residuals are 7 to 16 GiB).
"""

from functools import lru_cache
from pathlib import Path

from primus_search.cost.confidence.fit import FITS, OUT_OF_MEMORY
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun, Validation
from primus_search.evidence.validate.summary import memory_summary

DATA = Path(__file__).parent / "data" / "oom_runs.csv"


@lru_cache(maxsize=1)
def outcome() -> Validation:
    return validated(DATA)


def ran() -> tuple[ScoredRun, ...]:
    return (*outcome().rows, *outcome().memory_only)


def test_every_row_is_projected() -> None:
    assert outcome().skipped == ()
    assert (len(ran()), len(outcome().ran_out)) == (44, 16)


def test_nothing_that_ran_out_of_memory_is_said_to_fit() -> None:
    assert [row.run.id for row in outcome().ran_out if row.verdict == FITS] == []


def test_nothing_that_ran_is_said_to_run_out() -> None:
    assert [row.run.id for row in ran() if row.verdict == OUT_OF_MEMORY] == []


def test_peaks_of_these_runs_are_met_as_those_of_the_others() -> None:
    memory = memory_summary(outcome())
    assert memory["rows"] == 33
    assert memory["median_abs_error"] <= 0.04
    assert memory["p90_abs_error"] <= 0.10
    assert abs(memory["bias"]) <= 0.03


def test_the_micro_batch_at_which_deepseek_v3_16b_runs_out_on_b200() -> None:
    # pytorch/torchtitan pull request 1993: 6 sequences of 4096 ran, 4 of 6144 took 88 %; 8 of 4096, 4 of 8192 did not.
    verdicts = {row.run.id: row.verdict for row in (*ran(), *outcome().ran_out) if "tt1993" in row.run.id}
    assert verdicts == {
        "tt1993-1": FITS, "tt1993-5": FITS,
        "tt1993-2": OUT_OF_MEMORY, "tt1993-3": OUT_OF_MEMORY, "tt1993-4": OUT_OF_MEMORY,
    }  # fmt: skip
