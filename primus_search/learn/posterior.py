"""Posterior over hypotheses and their numbers, given measured runs; a mixture of Gaussians over log-rates.

Inside a hypothesis the log-rate of a run is linear in the numbers' coordinates around its centre,

    y = f + J (x - x0) + e,   x ~ N(x0, S),   e ~ N(0, model error^2 + noise^2)

so that the update is closed (Bayesian linear regression). Hypotheses are weighted by their prior and by the marginal
likelihood of the runs. Both have the tails of a Student's t: one run that is off must not decide. Peaks of memory count
in the weights through one factor per hypothesis. Without runs the same code gives the prior's mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from primus_search.candidates import Candidates, Floats
from primus_search.cost.project import Projector
from primus_search.job import Job
from primus_search.learn.hypotheses import Hypothesis
from primus_search.learn.site_numbers import rates_and_slopes
from primus_search.measured_run import MeasuredRun, overridden
from primus_search.stack import Stack

MODEL_ERROR = 0.08
"""Standard deviation of log(measured / projected) of one run with the best numbers of its software: 90 % intervals
then hold 85 to 95 % of left-out stacks' runs at every k. Leave-one-stack-out, tests/bench/learned_stacks.py."""

TAIL, ROUNDS = 3.0, 4
"""Degrees of freedom of a run's own error, and rounds of re-weighting: a run that no numbers explain counts less."""

DEGREES_OF_FREEDOM = 6.0
"""Of the Student's t in the weights."""

MEMORY_ERROR, MEMORY_FACTOR = 0.10, 0.15
"""Likewise of peaks: deviation of one peak, and of a factor common to all peaks of a software."""

NEGLIGIBLE = 0.01
"""Weight of a hypothesis over that of the first below which it is left out of projections."""

BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Candidates of one job on which hypotheses are compared; `habits`: what the run itself sets in any stack."""

    job: Job
    table: Candidates
    habits: tuple[tuple[str, object], ...] = ()

    def on(self, stack: Stack) -> Job:
        """The job with another stack, the run's own settings on top."""
        cluster = overridden(replace(self.job.cluster, stack=stack), dict(self.habits))
        return replace(self.job, cluster=cluster)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """Of one hypothesis: log-rates of rows at its centre (rows,), and their slopes (rows, numbers)."""

    rates: Floats
    slopes: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """What is known after the runs. `moved`: coordinates of each hypothesis' numbers less those of its stack."""

    hypotheses: tuple[Hypothesis, ...]
    weights: Floats
    moved: tuple[Floats, ...]
    covariances: tuple[Floats, ...]

    def leading(self) -> "Posterior":
        """The same without hypotheses that no longer weigh."""
        kept = [i for i, weight in enumerate(self.weights) if weight >= NEGLIGIBLE * self.weights.max()]
        weights = self.weights[kept]
        return Posterior(
            hypotheses=tuple(self.hypotheses[i] for i in kept),
            weights=weights / weights.sum(),
            moved=tuple(self.moved[i] for i in kept),
            covariances=tuple(self.covariances[i] for i in kept),
        )

    def rates(self, lines: Sequence[Lines]) -> "RateMixture":
        """The mixture over log-rates of rows, given each hypothesis' lines for them."""
        pairs = list(zip(self.hypotheses, lines, self.moved, self.covariances, strict=True))
        means = np.array([line.rates + line.slopes @ (moved - h.shift) for h, line, moved, _ in pairs])
        spread = np.array([np.einsum("rp,pq,rq->r", line.slopes, c, line.slopes) for _, line, _, c in pairs])
        return RateMixture(weights=self.weights, means=means, variances=spread + MODEL_ERROR**2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateMixture:
    """Gaussians over log(tokens/s/GPU): (hypotheses,), (hypotheses, rows), (hypotheses, rows)."""

    weights: Floats
    means: Floats
    variances: Floats

    @property
    def mean(self) -> Floats:
        """Mean log-rate of every row."""
        return np.asarray(self.weights @ self.means)

    def quantile(self, share: float) -> Floats:
        """The log-rate below which a share of the mixture lies, of every row (bisection)."""
        sigma = np.sqrt(self.variances)
        low, high = (self.means - 8.0 * sigma).min(axis=0), (self.means + 8.0 * sigma).max(axis=0)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            is_below = self.weights @ ndtr((middle - self.means) / sigma) < share
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return np.asarray(0.5 * (low + high))


def lines_of(hypotheses: Sequence[Hypothesis], references: Sequence[Reference]) -> tuple[Lines, ...]:
    """Lines of every hypothesis over the rows of all references; hypotheses of one stack share a projection."""
    by_stack: dict[str, tuple[Floats, Floats]] = {}
    for stack in {h.stack.name: h.stack for h in hypotheses}.values():
        found = [rates_and_slopes(one.on(stack), one.table) for one in references]
        by_stack[stack.name] = (np.concatenate([f for f, _ in found]), np.concatenate([j for _, j in found]))
    lines = []
    for h in hypotheses:
        rates, slopes = by_stack[h.stack.name]
        lines.append(Lines(rates=rates + slopes @ h.shift, slopes=slopes))
    return tuple(lines)


def reference_of(run: MeasuredRun) -> Reference:
    """A run's own configuration; what its record overrides in the stack holds for any stack."""
    own = [(o.key, o.value) for o in run.overrides if o.key.startswith("stack.")]
    return Reference(job=run.job, table=run.candidates, habits=tuple(own))


def update(hypotheses: tuple[Hypothesis, ...], runs: Sequence[MeasuredRun]) -> Posterior:
    """The posterior of hypotheses given runs; runs without a rate count through their memory alone."""
    logs = np.array([h.log_prior for h in hypotheses])
    moved, covariances = [h.shift for h in hypotheses], [h.covariance for h in hypotheses]
    rated = [run for run in runs if run.has_rate]
    if rated:
        measured = np.log([run.tokens_per_s_per_gpu for run in rated])
        noise = np.nan_to_num([run.measured.noise for run in rated])
        lines = lines_of(hypotheses, [reference_of(run) for run in rated])
        for i, (h, line) in enumerate(zip(hypotheses, lines, strict=True)):
            moved[i], covariances[i], likelihood = _regress(h, line, measured, noise)
            logs[i] += likelihood
    logs += _memory_likelihoods(hypotheses, runs)
    weights = np.exp(logs - logs.max())
    return Posterior(
        hypotheses=hypotheses,
        weights=weights / weights.sum(),
        moved=tuple(moved),
        covariances=tuple(covariances),
    )


def _regress(h: Hypothesis, line: Lines, measured: Floats, noise: Floats) -> tuple[Floats, Floats, float]:
    """Coordinates and covariance after the runs, and their marginal log-likelihood (Student's t tails)."""
    residuals = measured - line.rates
    gain = h.covariance @ line.slopes.T
    prior = line.slopes @ gain
    plain = MODEL_ERROR**2 + noise**2
    error = plain
    for _ in range(ROUNDS):
        left = residuals - prior @ np.linalg.solve(prior + np.diag(error), residuals)
        error = plain * (TAIL + left**2 / plain) / (TAIL + 1.0)
    total = prior + np.diag(error)
    solved = np.linalg.solve(total, np.column_stack([residuals, gain.T]))
    shift = h.shift + gain @ solved[:, 0]
    covariance = h.covariance - gain @ solved[:, 1:]
    return shift, covariance, _log_student(float(residuals @ solved[:, 0]), np.linalg.slogdet(total)[1], len(residuals))


def _log_student(distance: float, log_determinant: float, runs: int) -> float:
    nu = DEGREES_OF_FREEDOM
    return float(-0.5 * log_determinant - 0.5 * (nu + runs) * np.log1p(distance / nu))


def _memory_likelihoods(hypotheses: Sequence[Hypothesis], runs: Sequence[MeasuredRun]) -> Floats:
    """Log-likelihood of the measured peaks of every hypothesis; 0 where no run has one."""
    found = {}
    for stack in {h.stack.name: h.stack for h in hypotheses}.values():
        errors = peak_errors(stack, runs)
        total = MEMORY_FACTOR**2 + np.diag(np.full(len(errors), MEMORY_ERROR**2))
        if len(errors):
            distance = float(errors @ np.linalg.solve(total, errors))
            found[stack.name] = _log_student(distance, np.linalg.slogdet(total)[1], len(errors))
    return np.array([found.get(h.stack.name, 0.0) for h in hypotheses])


def peak_errors(stack: Stack, runs: Sequence[MeasuredRun]) -> Floats:
    """log(measured / projected) of the peaks of runs that have one, each counted as its log counts it."""
    errors = []
    for run in runs:
        measured = run.measured.peak_bytes
        if np.isfinite(measured) and measured > 0.0:
            reference = reference_of(run)
            memory = Projector(reference.on(stack)).memory(run.candidates)
            views = {
                "allocated": memory.allocated - memory.expert_buffers,
                "reserved": memory.reserved - memory.expert_buffers,
                "driver": memory.driver,
            }
            errors.append(float(np.log(measured / views[run.measured.peak_kind][0])))
    return np.array(errors)
