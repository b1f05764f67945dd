"""What an argmax over projections costs, on made-up sweeps."""

from types import SimpleNamespace
from typing import Any

import pytest

from primus_search.evidence.validate.first_choices import SMALLEST, first_choices, sweeps
from primus_search.evidence.validate.score_runs import ScoredRun


def row(configuration: int, measured: float, predicted: float, job: str = "a") -> Any:
    run = SimpleNamespace(
        group=(job, "model"), gpu="H100", cluster=SimpleNamespace(world=8), workload="w", precision="bf16",
        candidate_key=(configuration,), tokens_per_s_per_gpu=measured,
    )  # fmt: skip
    band = (0.9 * predicted, 1.1 * predicted)
    rest: Any = {"run": run, "projection": None, "fit_probability": 1.0, "verdict": "FITS", "memory": None}
    return ScoredRun(**rest, predicted=predicted, interval=band)


def test_bias_and_regret_of_the_highest_projection() -> None:
    rows = [row(1, 100, 100), row(2, 90, 120), row(3, 110, 110), row(4, 80, 80)]
    found = first_choices(sweeps(rows))
    assert (found["sweeps"], found["runs"]) == (1, 4)
    assert found["bias of the first choice"] == pytest.approx(120 / 90 - 1)
    assert found["bias of its sweep"] == pytest.approx((120 / 90 - 1) / 4)
    assert found["mean regret"] == pytest.approx(1 - 90 / 110)
    assert found["first choice in its band"] == 0.0 and found["all runs in their bands"] == 0.75


def test_repeats_of_a_configuration_count_once_and_small_sweeps_not_at_all() -> None:
    rows = [row(n, 100, 100) for n in range(SMALLEST)] + [row(0, 105, 100)]
    (sweep,) = sweeps(rows)
    assert sorted(one.run.tokens_per_s_per_gpu for one in sweep) == [100, 100, 100, 105]
    assert first_choices(sweeps(rows[: SMALLEST - 1])) == {"sweeps": 0, "runs": 0}
