"""How many standard deviations half a 90 % band has, so that nine of ten runs of the next publisher lie inside.

    quantile = the share 0.9 (K + 1) / K of the least quantiles that K groups' runs need, every group weighing alike

A group is what is new to a user: a publisher, a stack file. With one group more at infinity, nine of ten runs of a new
group are inside on average whatever errors look like, if groups are alike: hierarchical conformal prediction (Lee,
Barber, Willett 2023, arXiv:2306.06342). The mean over groups alone (CDF pooling: Dunn, Wasserman, Ramdas 2018,
arXiv:1809.07441) is so for many groups only.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from primus_search.values.candidates import Floats

INSIDE = 0.9
"""Share of a new group's runs inside."""

STEP, STEPS = 0.01, 1000
"""Resolution of a quantile, and how many steps the largest one has."""


def least_quantile(holds: Callable[[float], bool]) -> float:
    """The least quantile that a band needs to hold a run, or the largest one."""
    return STEP * (1 + bisect_left(range(1, STEPS), True, key=lambda step: holds(STEP * step)))


def conformal_quantile(groups: Sequence[tuple[Floats, Floats]]) -> float:
    """The quantile of a band for runs of a new group, from what runs of the others need and weigh."""
    needed = np.concatenate([own for own, _ in groups])
    weights = np.concatenate([weights / weights.sum() for _, weights in groups])
    order = np.argsort(needed, kind="stable")
    inside = np.searchsorted(np.cumsum(weights[order]), INSIDE * (len(groups) + 1) - 1e-9)
    return float(needed[order][min(int(inside), len(needed) - 1)])
