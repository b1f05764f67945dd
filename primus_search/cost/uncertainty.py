"""How far off a projected rate may be: the band in which nine of ten left-out runs of the same stack and regime lay.

    low = projected * band.low,  high = projected * band.high

Bands come from the stack's YAML (`errors:`), where `primus_search.calibrate` wrote the quantiles of measured over
projected of runs whose source and model took no part in the fit. Where a stack has none, `UNKNOWN` says so honestly.
Two candidates whose rates differ by less than the noise between identical runs are a tie, whatever the ranking says.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Bools, Floats
from primus_search.cluster import Cluster
from primus_search.cost.memory.fit import fit_probability
from primus_search.cost.result import Projection
from primus_search.model import Model
from primus_search.stack import ErrorBand

UNKNOWN = ErrorBand(low=0.7, high=1.3, runs=0.0)
"""Without runs to compare with: the 90th percentile error of the best public tools is no better (docs/fidelity.md)."""

TIE = 0.04
"""Relative difference below which two runs cannot be told apart: eight repeats of one job on MI355X spread 3.7 %, the
same MLPerf job 5 % across servers (AMD-AGI/Primus logs; MLPerf Training v5.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """90 % interval of a rate, per candidate, and the number of runs it rests on."""

    low: Floats
    high: Floats
    runs: float


def band(cluster: Cluster, model: Model) -> ErrorBand:
    """The error band of a model's regime on a cluster's stack."""
    return cluster.stack.errors.get("moe" if model.is_moe else "dense", UNKNOWN)


def interval(cluster: Cluster, model: Model, rate: Floats) -> Interval:
    """The 90 % interval of a projected rate (tokens/s, tokens/s/GPU, MFU)."""
    found = band(cluster, model)
    values = np.asarray(rate, np.float64)
    return Interval(low=values * found.low, high=values * found.high, runs=found.runs)


def ties_with_best(rate: Floats) -> Bools:
    """Which candidates cannot be told from the fastest one by running both once."""
    values = np.asarray(rate, np.float64)
    tied: Bools = values >= values.max(initial=0.0) * (1.0 - TIE)
    return tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How far a table of projections may be trusted, per candidate.

    low, high        90 % interval of tokens/s/GPU
    runs             left-out runs the interval rests on
    fits             probability that the candidate runs in device memory
    ties_with_best   it cannot be told from the fastest of the table by running both once
    """

    low: Floats
    high: Floats
    runs: float
    fits: Floats
    ties_with_best: Bools


def confidence(model: Model, cluster: Cluster, p: Projection) -> Confidence:
    """What may be said of every row beside its figures."""
    rate = p.tokens_per_s_per_gpu
    found = interval(cluster, model, rate)
    return Confidence(
        low=found.low,
        high=found.high,
        runs=found.runs,
        fits=fit_probability(p.memory, cluster.accelerator),
        ties_with_best=ties_with_best(rate),
    )
