"""Bands of a new group hold nine of ten of its runs, however few groups there were and whatever errors are like."""

import numpy as np
import pytest

from primus_search.values.candidates import Floats
from tools.fit.conformal import STEP, STEPS, conformal_quantile, least_quantile


@pytest.mark.parametrize("number", [12, 20, 60])
@pytest.mark.parametrize("degrees", [2.0, 30.0])
def test_nine_of_ten_runs_of_a_new_group_need_no_more(number: int, degrees: float) -> None:
    """Groups have errors in common; every second one has three runs, the others forty."""
    rng, inside = np.random.default_rng(0), []

    def group(runs: int) -> tuple[Floats, Floats]:
        errors = rng.standard_t(degrees) + 0.5 * rng.standard_normal(runs)
        return np.abs(errors), np.ones(runs)

    for _ in range(400):
        found = conformal_quantile([group((3, 40)[one % 2]) for one in range(number)])
        inside.append(float(np.mean(group((3, 40)[rng.integers(2)])[0] <= found)))
    assert 0.87 <= np.mean(inside) <= 1.0


def test_groups_weigh_alike_and_near_duplicates_once() -> None:
    """A table of a thousand runs does not outvote nineteen small ones; nor does one run that is listed ten times."""
    small = [(np.ones(2), np.ones(2))] * 19
    assert conformal_quantile([*small, (np.full(1000, 5.0), np.ones(1000))]) == 1.0
    listed = np.array([5.0] * 10 + [1.0] * 9), np.array([0.1] * 10 + [1.0] * 9)
    assert conformal_quantile([listed] * 10 + small) == 1.0


def test_so_few_groups_that_none_says_it_have_the_widest_that_any_needed() -> None:
    assert conformal_quantile([(np.array([1.0, 2.0]), np.ones(2))] * 3) == 2.0


def test_a_run_needs_the_least_quantile_that_holds_it() -> None:
    assert least_quantile(lambda quantile: quantile >= 1.234) == pytest.approx(1.24)
    assert least_quantile(lambda quantile: True) == STEP
    assert least_quantile(lambda quantile: False) == pytest.approx(STEP * STEPS)
