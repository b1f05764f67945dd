"""Are probabilities of fitting what they say? Of candidates said to fit with probability p, so many should run.

A run with a published peak stands for a candidate on any device: it fits one that is as large as its peak. The room
that `fit_probability` gives it for a probability p must then be at least its peak in a share p of the runs. Peaks
are compared in the view each source has. Too small a spread shows as fewer runs than said, too large a one as more.
"""

from functools import lru_cache

import numpy as np
import pytest

from primus_search.cost.confidence.fit import FIT_THRESHOLD, FITS
from primus_search.evidence.validate.score_runs import ScoredRun
from tools.docs import reliability

pytestmark = pytest.mark.in_turn("runs")


@lru_cache(maxsize=1)
def rows() -> tuple[list[ScoredRun], list[ScoredRun]]:
    return reliability.runs()


@pytest.mark.parametrize("said", [0.75, 0.9, 0.95, 0.99])
def test_as_many_run_as_are_said_to(said: float) -> None:
    probability, weights = reliability.at_their_peaks(rows()[0])
    share = reliability.share_that_ran(probability, weights, said)
    # One standard error of a share of some 67 distinct configurations, twice over, or half of what is left to 1.
    allowed = max(2.0 * np.sqrt(said * (1.0 - said) / weights.sum()), (1.0 - said) / 2.0)
    # Of doubtful software the probability is spread on purpose: at 0.75 more run than it gives.
    careful = 0.05 if said < FIT_THRESHOLD else 0.0
    assert weights.sum() >= 60
    assert -allowed <= share - said <= allowed + careful


def test_of_those_said_to_fit_every_one_ran_and_of_those_at_risk_not_all_did() -> None:
    ran, out = rows()
    assert [row.run.id for row in out if row.verdict == FITS] == []
    assert sum(row.verdict == FITS for row in ran) >= 0.95 * len(ran)
    doubtful = [row for row in (*ran, *out) if 0.05 < row.fit_probability < 0.9]
    share = sum(row in ran for row in doubtful) / len(doubtful)
    said = float(np.mean([row.fit_probability for row in doubtful]))
    assert len(doubtful) >= 5 and 0.0 < share < 1.0
    assert share >= said - 0.2
