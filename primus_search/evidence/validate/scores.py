"""Scores of signed relative errors: medians, quantiles and rank correlation, near-duplicates counted once."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from primus_search.base.positions import places
from primus_search.values.candidates import Floats

LEAST_IN_GROUP = 4
"""Rows of a group from which on a rank correlation inside it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors as fractions: |predicted / measured - 1|; bias is the median signed one. NaN without rows."""

    rows: int
    median_abs_error: float = math.nan
    p90_abs_error: float = math.nan
    worst_abs_error: float = math.nan
    bias: float = math.nan


def score(errors: Floats, weights: Floats | None = None) -> Score:
    """Score of signed relative errors; `weights` let near-duplicates count once together."""
    if len(errors) == 0:
        return Score(rows=0)
    weights = np.ones(len(errors)) if weights is None else weights
    magnitude = np.abs(errors)
    return Score(
        rows=len(errors),
        median_abs_error=quantile(magnitude, weights, 0.5),
        p90_abs_error=quantile(magnitude, weights, 0.9),
        worst_abs_error=float(magnitude.max()),
        bias=quantile(errors, weights, 0.5),
    )


def quantile(values: Floats, weights: Floats, share: float) -> float:
    """Weighted quantile: linear between the mid-points of the sorted weights; numpy's for equal weights at 0.5."""
    order = np.argsort(values, kind="stable")
    ordered, mass = values[order], weights[order]
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return float(np.interp(share, middle, ordered))


def duplicate_weights(keys: Iterable[Hashable]) -> Floats:
    """1 / (number of rows with the same key), so that a ladder of near-duplicates counts as one row."""
    listed = list(keys)
    count = Counter(listed)
    return np.array([1.0 / count[key] for key in listed])


def kendall_by_group(groups: Iterable[Hashable], predicted: Floats, measured: Floats) -> float:
    """Mean rank correlation (tau-b) inside groups of at least LEAST_IN_GROUP rows; NaN where there is no such group."""
    large = (members for members in places(groups).values() if len(members) >= LEAST_IN_GROUP)
    taus = np.array([kendall(predicted[members], measured[members]) for members in large])
    taus = taus[np.isfinite(taus)]
    return float(np.mean(taus)) if len(taus) else math.nan


def kendall(a: Floats, b: Floats) -> float:
    """Kendall's tau-b: concordant less discordant pairs over pairs not tied (Kendall 1945)."""
    i, j = np.triu_indices(len(a), k=1)
    da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
    pairs = np.sqrt(float(np.count_nonzero(da)) * float(np.count_nonzero(db)))
    return float((da * db).sum() / pairs) if pairs else float("nan")
