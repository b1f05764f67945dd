"""How far off a projected rate may be: the band in which nine of ten left-out runs of the same stack and regime lay.

    low = projected * band.low,  high = projected * band.high

Bands come from the stack's YAML (`errors:`), where `primus_search.calibrate` wrote the quantiles of measured over
projected of runs whose source and model took no part in the fit. A stack that had to be assumed, or that nobody ran on
such a model and architecture, has the wider bands of runs projected with a stack that is not theirs. Where a stack has
none, `UNKNOWN` says so honestly.
Two candidates whose rates differ by less than the noise between identical runs are a tie, whatever the ranking says.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Bools, Floats
from primus_search.cluster import Cluster
from primus_search.cost.memory.fit import fit_probability
from primus_search.cost.result import Projection
from primus_search.model import Model
from primus_search.stack import ErrorBand, Stack

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


UNKNOWN_MEMORY = ErrorBand(low=0.75, high=1.35, runs=0.0)
"""Likewise of peaks: public tools project 24 to 48 % too little of software they do not model (docs/fidelity.md)."""

ASSUMED = "assumed_"
"""Before the name of a regime: errors where this stack was assumed and another one ran."""


def band(cluster: Cluster, model: Model) -> ErrorBand:
    """The error band of a model's regime on a cluster's stack.

    A stack that was assumed, or of which no run of this family was seen on this architecture, may lie as far off as
    stacks differ.
    """
    kind, errors = "moe" if model.is_moe else "dense", cluster.stack.errors
    own = errors.get(kind, UNKNOWN)
    is_seen = own.runs > 0.0 and (not own.arches or cluster.accelerator.arch in own.arches)
    if is_seen and not cluster.stack.is_assumed:
        return own
    return errors.get(ASSUMED + kind, own)


def memory_error(stack: Stack) -> ErrorBand | None:
    """Where measured / projected peaks lie on a stack that was assumed; None for one that was named."""
    return stack.errors.get(ASSUMED + "memory", UNKNOWN_MEMORY) if stack.is_assumed else None


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
        fits=fit_probability(p.memory, cluster.accelerator, error=memory_error(cluster.stack)),
        ties_with_best=ties_with_best(rate),
    )
