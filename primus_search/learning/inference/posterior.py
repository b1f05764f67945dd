"""Posterior over hypotheses and their numbers, given measured runs; a mixture of Gaussians over log-rates.

Inside a hypothesis the log-rate of a run is linear in the numbers' coordinates around its centre,

    y = f + m + J (x - x0) + g + u + e,   x ~ N(x0, S),   g ~ N(0, group error^2),   e ~ N(0, model error^2 + noise^2)

so that the update is closed (Bayesian linear regression). `m` is what first contact expects of software with a file, so
that a run as expected moves nothing. `g` is common to the runs of one model on one device, so that
ten runs of one model do not count as ten of different ones; `u` is a Gaussian process over their configurations, so
that errors of near ones are alike (`shared_errors`). Both are coordinates like the numbers, and
what the runs say of them counts where rows of that model and device are projected: the share `heard` of it. Hypotheses
are weighted by their prior and by the marginal likelihood of the runs; each takes part twice, with free numbers and
with one factor alone. Likelihood and errors of runs have the tails of a Student's t: one run that is off must not
decide. Peaks of memory count in the weights through one factor per hypothesis. Without runs the prior's mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr

from primus_search.base.cores import one_blas_thread
from primus_search.cost.confidence.uncertainty import MODEL_ERROR
from primus_search.learning.inference.hypotheses import NUMBERS, Hypothesis
from primus_search.learning.inference.projected_runs import Evidence, Lines, reference_of
from primus_search.learning.inference.regression import log_student, regress
from primus_search.learning.inference.shared_errors import GROUP_ERROR, PlacedRows, RunGroup, heard, own_error, rows_of
from primus_search.values.candidates import Floats
from primus_search.values.measured_run import MeasuredRun

MEMORY_ERROR, MEMORY_FACTOR = 0.10, 0.15
"""Likewise of peaks: deviation of one peak, and of a factor common to all peaks of a software."""

NEGLIGIBLE = 0.05
"""Weight of a hypothesis over that of the first below which it is left out of projections."""

BISECTIONS = 40

_Of = TypeVar("_Of")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """What is known after the runs.

    moved        coordinates of each hypothesis' numbers less those of its stack
    shift        logarithm of the rate to expect over the projected one before any run
    runs         the runs' groups and places
    shared       errors of each group and of each run's configuration in each hypothesis
    joint        covariance of numbers and these errors together
    peak_errors  log(measured / projected) of the runs' peaks on each hypothesis
    families     `is_moe` of the runs: models of another family stay where first contact has them
    """

    hypotheses: tuple[Hypothesis, ...]
    weights: Floats
    moved: tuple[Floats, ...]
    runs: PlacedRows
    shared: tuple[Floats, ...]
    joint: tuple[Floats, ...]
    peak_errors: tuple[Floats, ...]
    families: frozenset[bool]
    shift: float

    @property
    def groups(self) -> tuple[RunGroup, ...]:
        """Models on devices that runs were of."""
        return tuple(dict.fromkeys(self.runs.groups))

    @property
    def covariances(self) -> tuple[Floats, ...]:
        """Covariance of each hypothesis' numbers."""
        return tuple(joint[: len(NUMBERS), : len(NUMBERS)] for joint in self.joint)

    def leading(self) -> "Posterior":
        """The same without hypotheses that no longer weigh."""
        return self.take([i for i, weight in enumerate(self.weights) if weight >= NEGLIGIBLE * self.weights.max()])

    def of_stack(self, name: str) -> "Posterior":
        """That of the hypotheses of one stack alone."""
        return self.take([i for i, h in enumerate(self.hypotheses) if h.stack.name == name])

    def probability(self, name: str) -> float:
        """That the software is of one stack's kind."""
        return float(sum(w for w, h in zip(self.weights, self.hypotheses, strict=True) if h.stack.name == name))

    def of_software(self) -> "Posterior":
        """That of models and devices which no run was of: what the runs say of the software alone."""
        return replace(
            self, runs=self.runs.take([]), shared=tuple(own[:0] for own in self.shared), joint=self.covariances
        )

    def take(self, kept: Sequence[int]) -> "Posterior":
        """That of some hypotheses, of which one is true."""
        weights = self.weights[list(kept)]
        return replace(
            self,
            weights=weights / weights.sum(),
            hypotheses=_taken(self.hypotheses, kept),
            moved=_taken(self.moved, kept),
            shared=_taken(self.shared, kept),
            joint=_taken(self.joint, kept),
            peak_errors=_taken(self.peak_errors, kept),
        )

    def peaks(self, logs: Floats) -> "Mixture":
        """The mixture over log-peaks of rows, given each hypothesis' projected ones (hypotheses, rows)."""
        factors = [peak_factor(errors) for errors in self.peak_errors]
        means = logs + np.array([mean for mean, _ in factors])[:, None]
        spread = np.array([variance for _, variance in factors])[:, None] + MEMORY_ERROR**2
        return Mixture(weights=self.weights, means=means, variances=np.broadcast_to(spread, means.shape))

    def shares(self, rows: PlacedRows) -> tuple[Floats, Floats]:
        """How the errors of groups and configurations of the runs enter every row, (rows, errors), and the covariance
        of what these leave to the rows' configurations."""
        members, near = rows.in_common(self.runs)
        weights = np.linalg.solve(self.runs.process, near.T).T
        return np.concatenate([members, weights], axis=1), rows.process - weights @ near.T

    def rates(self, lines: Sequence[Lines], rows: PlacedRows) -> "Mixture":
        """The mixture over log-rates of rows, given each hypothesis' lines for them."""
        members, left = self.shares(rows)
        is_new = 1.0 - members[:, : len(self.groups)].sum(axis=1)
        is_told = np.array([group.is_moe in self.families for group in rows.groups])
        unknown = np.diag(left) + rows.spreads**2 * (MODEL_ERROR**2 + GROUP_ERROR**2 * is_new)
        means, spread = [], []
        for line, moved, shared, joint in zip(lines, self.moved, self.shared, self.joint, strict=True):
            slopes = np.concatenate([line.slopes, members], axis=1)
            means.append(line.rates + self.shift + is_told * (slopes @ np.concatenate([moved, shared])))
            spread.append(np.einsum("rp,pq,rq->r", slopes, joint, slopes))
        return Mixture(weights=self.weights, means=np.array(means), variances=np.array(spread) + unknown)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Gaussians over the logarithms of rates or peaks: (hypotheses,), (hypotheses, rows), (hypotheses, rows)."""

    weights: Floats
    means: Floats
    variances: Floats

    @property
    def mean(self) -> Floats:
        """Mean logarithm of every row."""
        return np.asarray(self.weights @ self.means)

    def quantile(self, share: float) -> Floats:
        """The logarithm below which a share of the mixture lies, of every row (bisection)."""
        sigma = np.sqrt(self.variances)
        low, high = (self.means - 8.0 * sigma).min(axis=0), (self.means + 8.0 * sigma).max(axis=0)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            is_below = self.weights @ ndtr((middle - self.means) / sigma) < share
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return np.asarray(0.5 * (low + high))


def _taken(own: Sequence[_Of], kept: Sequence[int]) -> tuple[_Of, ...]:
    """What some hypotheses have, in the order of their indices."""
    return tuple(own[i] for i in kept)


def update(seen: Evidence) -> Posterior:
    """The posterior of hypotheses given runs, each with free numbers and with one factor; runs without a rate count
    through their memory alone."""
    seen = replace(
        seen,
        hypotheses=(*seen.hypotheses, *(h.held for h in seen.hypotheses)),
        lines=2 * seen.lines,
        peaks=np.concatenate([seen.peaks, seen.peaks]),
    )
    hypotheses = seen.hypotheses
    logs = np.array([h.log_prior for h in hypotheses])
    moved = [np.zeros(len(NUMBERS)) for _ in hypotheses]
    rated = seen.take([i for i, run in enumerate(seen.runs) if run.has_rate])
    rows = rows_of([reference_of(run) for run in rated.runs])
    groups, members = dict.fromkeys(rows.groups), rows.in_common(rows)[0]
    shared = [np.zeros(len(groups) + len(rated.runs)) for _ in hypotheses]
    joint = [block_diag(h.covariance, rows.of_groups, rows.process) for h in hypotheses]
    shift = shift_of(rated.runs)
    if rated.runs:
        measured, error = np.log([run.tokens_per_s_per_gpu for run in rated.runs]), own_error(rated.runs)
        with one_blas_thread():
            for i, line in enumerate(rated.lines):
                slopes = np.concatenate([line.slopes, members, np.eye(len(rated.runs))], axis=1)
                residuals = measured - line.rates - shift
                found, joint[i], likelihood = regress(joint[i], slopes, residuals, error)
                moved[i], shared[i] = np.split(heard(rated.runs, residuals) * found, [len(NUMBERS)])
                logs[i] += likelihood
    peaks = tuple(errors[~np.isnan(errors)] for errors in seen.peaks)
    logs += [_memory_likelihood(errors) for errors in peaks]
    weights = np.exp(logs - logs.max())
    return Posterior(
        hypotheses=hypotheses,
        weights=weights / weights.sum(),
        moved=tuple(moved),
        runs=rows,
        shared=tuple(shared),
        joint=tuple(joint),
        peak_errors=peaks,
        families=frozenset(group.is_moe for group in groups),
        shift=shift,
    )


def shift_of(runs: Sequence[MeasuredRun]) -> float:
    """Mean logarithm of the rate that first contact expects of runs over their projections, by software with a file."""
    sites = [run.cluster.site for run in runs if not run.cluster.stack.is_assumed]
    return sum(float(np.log(site.mean_ratio)) for site in sites if site is not None) / max(len(runs), 1)


def _memory_likelihood(errors: Floats) -> float:
    """Log-likelihood of the errors of measured peaks; 0 without any."""
    if not len(errors):
        return 0.0
    total = MEMORY_FACTOR**2 + np.diag(np.full(len(errors), MEMORY_ERROR**2))
    return log_student(float(errors @ np.linalg.solve(total, errors)), np.linalg.slogdet(total)[1], len(errors))


def peak_factor(errors: Floats) -> tuple[float, float]:
    """Mean and variance of the logarithm of the factor that is common to all peaks, given the errors of some."""
    if not len(errors):
        return 0.0, MEMORY_FACTOR**2
    trust = MEMORY_FACTOR**2 / (MEMORY_FACTOR**2 + MEMORY_ERROR**2 / len(errors))
    return trust * float(np.mean(errors)), MEMORY_FACTOR**2 * (1.0 - trust)
