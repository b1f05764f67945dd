"""Which software's memory a site has: hypotheses weighed by the peaks of its runs alone.

What a framework keeps (number formats of gradients and optimizer, fused losses, gathered layers, fixed buffers) says
little of how fast its kernels are, so memory is weighed apart from rates: a stack that is nearest in rates may keep
twice the optimizer state. Inside a hypothesis measured peaks are projected ones times a factor common to all of them
and an error of each. Leave-one-stack-out over the 12 stacks with peaks, 2026-11-23, 20 draws: 90th percentile of a
peak's error after 5 runs 16 % for this mixture, 22 % for its most probable hypothesis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Floats
from primus_search.cost.project import Projector
from primus_search.learn.hypotheses import Hypothesis
from primus_search.learn.posterior import Mixture, Reference, by_job, leading, log_student, reference_of
from primus_search.learn.site_numbers import without_numbers
from primus_search.measured_run import MeasuredRun
from primus_search.stack import GROUP_OF, Stack, number_of, with_numbers

MEMORY_ERROR, MEMORY_FACTOR = 0.10, 0.15
"""Standard deviation of log(measured / projected): of one peak, and of a factor common to all peaks of a software."""

STATE_FORMATS = ("gradient_bytes", "fp16_gradient_bytes", "master_weight_bytes", "moment_bytes", "caches_fp8_weights")
KEPT = (*(name for name, group in GROUP_OF.items() if group == "memory"), *STATE_FORMATS)
"""Fields of a stack that decide what is kept; number formats of traffic stay with the rates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakPosterior:
    """What is known of memory after the runs.

    errors  log(measured / projected) of the runs' peaks on each hypothesis
    """

    hypotheses: tuple[Hypothesis, ...]
    weights: Floats
    errors: tuple[Floats, ...]

    def mixture(self, references: Sequence[Reference]) -> Mixture:
        """The mixture over log-peaks of the rows of all references."""
        factors = [peak_factor(errors) for errors in self.errors]
        stacks = [without_numbers(h.stack) for h in self.hypotheses]
        known = {stack: log_peaks(stack, references) for stack in dict.fromkeys(stacks)}
        means = np.array([known[stack] for stack in stacks])
        means += np.array([mean for mean, _ in factors])[:, None]
        spread = np.array([variance for _, variance in factors])[:, None] + MEMORY_ERROR**2
        return Mixture(weights=self.weights, means=means, variances=np.broadcast_to(spread, means.shape))

    def nearest(self, stack: Stack, mixture: Mixture, references: Sequence[Reference]) -> Stack:
        """The stack that keeps what it or one of the hypotheses keeps, whichever comes nearest to a mixture's means.

        What is kept depends on kernels as well, so the peaks are those of the stack with the other's habits.
        """
        others = {with_memory(without_numbers(stack), h.stack): h.stack for h in self.hypotheses}
        stacks = [stack, *(with_memory(stack, other) for other in others.values())]
        return stacks[int(np.argmin(mixture.distances(np.array([log_peaks(one, references) for one in stacks]))))]


def weigh_peaks(hypotheses: Sequence[Hypothesis], runs: Sequence[MeasuredRun]) -> PeakPosterior:
    """The posterior of the hypotheses that weigh, given the peaks of runs."""
    stacks = [without_numbers(h.stack) for h in hypotheses]
    known = {stack: peak_errors(stack, runs) for stack in dict.fromkeys(stacks)}
    errors = [known[stack][~np.isnan(known[stack])] for stack in stacks]
    logs = np.array([h.log_prior + _likelihood(found) for h, found in zip(hypotheses, errors, strict=True)])
    weights = np.exp(logs - logs.max())
    kept = leading(weights)
    return PeakPosterior(
        hypotheses=tuple(hypotheses[i] for i in kept),
        weights=weights[kept] / weights[kept].sum(),
        errors=tuple(errors[i] for i in kept),
    )


def with_memory(stack: Stack, other: Stack) -> Stack:
    """A stack that keeps what another one keeps."""
    return with_numbers(stack, {name: number_of(other, name) for name in KEPT})


def log_peaks(stack: Stack, references: Sequence[Reference]) -> Floats:
    """Logarithm of the bytes that the driver shows, of the rows of all references on a stack."""
    peaks = np.empty(sum(len(one.table) for one in references))
    for one, places in by_job(references):
        peaks[places] = Projector(one.on(stack)).memory(one.table).driver
    return np.log(peaks)


def _likelihood(errors: Floats) -> float:
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


def peak_errors(stack: Stack, runs: Sequence[MeasuredRun]) -> Floats:
    """log(measured / projected) of the peak of every run, each counted as its log counts it; NaN where it has none."""
    errors = np.full(len(runs), np.nan)
    counted = [i for i, run in enumerate(runs) if run.measured.peak_bytes > 0.0]
    for one, places in by_job([reference_of(runs[i]) for i in counted]):
        memory = Projector(one.on(stack)).memory(one.table)
        views = {
            "allocated": memory.allocated - memory.expert_buffers,
            "reserved": memory.reserved - memory.expert_buffers,
            "driver": memory.driver,
        }
        for row, place in enumerate(places.tolist()):
            measured = runs[counted[place]].measured
            errors[counted[place]] = np.log(measured.peak_bytes / views[measured.peak_kind][row])
    return errors
