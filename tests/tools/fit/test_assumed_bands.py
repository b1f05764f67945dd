"""Bands of software that had to be assumed are made of runs projected with a stack that is not theirs."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.confidence.uncertainty import ASSUMED
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.values.measured_run import MeasuredRun
from tools.fit.intervals import HONEST, Band, assumed_bands, outer, write_bands
from tools.fit.supposed_software import made_with

RUNS = Path(__file__).parents[2] / "oracle" / "data" / "training_runs.csv"


@lru_cache(maxsize=1)
def cases() -> list[MeasuredRun]:
    """Some dense runs of two stacks on one architecture, neither of which is what would be assumed of them."""
    wanted = ("nemo_2024", "nemo_mlperf")
    found = [run for run in measured_table(RUNS).runs if run.gpu.startswith("H100") and run.has_rate]
    chosen = [run for run in found if not run.model.is_moe]
    return [case for name in wanted for case in chosen if case.cluster.stack.name == name][::6]


def bands(log_error: float) -> dict[str, dict[str, Band]]:
    left_out = dict.fromkeys(HONEST, np.full(len(cases()), log_error))
    return assumed_bands(cases(), left_out, ["megatron_lm", "torchtitan"])


@pytest.mark.in_turn
def test_a_band_holds_what_other_stacks_would_have_done() -> None:
    low, high, runs = bands(0.0)["megatron_lm"][ASSUMED + "dense"]
    plain, _ = project_runs([made_with(case, "megatron_lm") for case in cases()])
    own, _ = project_runs(cases())
    ratios = [b.predicted / a.predicted for a, b in zip(plain, own, strict=True)]
    assert low <= np.quantile(ratios, 0.05) and high >= np.quantile(ratios, 0.95)
    assert high > 1.05 and runs > 0


@pytest.mark.in_turn
def test_what_a_stack_errs_by_itself_moves_the_band_with_it() -> None:
    right, slow = bands(0.0)["megatron_lm"][ASSUMED + "dense"], bands(-0.1)["megatron_lm"][ASSUMED + "dense"]
    assert slow[1] == pytest.approx(right[1] * np.exp(0.1), rel=1e-9)


@pytest.mark.in_turn
def test_one_band_of_peaks_serves_every_stack_and_needs_no_measured_rate() -> None:
    found = bands(0.0)
    assert found["megatron_lm"][ASSUMED + "memory"] == found["torchtitan"][ASSUMED + "memory"]
    assert found["megatron_lm"][ASSUMED + "memory"] == bands(-0.1)["megatron_lm"][ASSUMED + "memory"]


def test_few_runs_reach_further_out_than_many() -> None:
    values = np.linspace(-0.2, 0.2, 41)[np.newaxis, :]
    many, few = outer(values, np.ones(41), 1000.0), outer(values, np.ones(41), 12.0)
    assert few[0] < many[0] < 0.0 < many[1] < few[1]


@pytest.mark.in_turn
def test_runs_whose_software_was_guessed_count_as_they_were_measured() -> None:
    known = cases()
    left_out = dict.fromkeys(HONEST, np.zeros(len(known)))
    before = assumed_bands(known, left_out, ["megatron_lm"])["megatron_lm"][ASSUMED + "dense"]
    guessed = [made_with(case, "megatron_lm") for case in known]
    errors = dict.fromkeys(HONEST, np.concatenate([np.zeros(len(known)), np.full(len(known), np.log(0.4))]))
    after = assumed_bands([*known, *guessed], errors, ["megatron_lm"])["megatron_lm"][ASSUMED + "dense"]
    assert after[1] > 2.0 > before[1] and after[2] > before[2]


def test_bands_that_other_commands_wrote_stay(tmp_path: Path) -> None:
    """A fit replaces its own bands and leaves those of `tools.fit supposed`."""
    (tmp_path / "stacks").mkdir()
    file = tmp_path / "stacks" / "mine.yaml"
    supposed = '  assumed_moe/sm90:\n    low: {value: 0.6, source: "s"}\n    stacks: one 0.5, two 0.3\n'
    file.write_text(f'name: mine\nerrors:\n  moe:\n    low: {{value: 0.9, source: "old"}}\n{supposed}')
    write_bands({"mine": {"moe": (0.8, 1.2, 3)}}, tmp_path, "2026-11-28")
    assert supposed in (text := file.read_text())
    assert text.count("  moe:\n") == 1
    assert "old" not in text
    write_bands({"mine": {"moe": (0.8, 1.2, 3)}}, tmp_path, "2026-11-28")
    assert file.read_text() == text
