"""What software is expected to do before its runs are known, and hypotheses whose numbers start from there.

Software with a stack file is expected at that file's rates; any other at the median over the stacks that it may
be, weighted by their priors. Each hypothesis about it would start at its own file's rates, so that after one run the
likeliest one would stand where nothing expected it. Here every hypothesis starts with its numbers where its rates come
nearest to the expected ones, and the runs move it from there.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from primus_search.cost.confidence.uncertainty import NOTHING, Exposed, site_half_width
from primus_search.learning.inference.hypotheses import SUGGESTED, Hypothesis, at, coordinates
from primus_search.learning.inference.posterior import Mixture
from primus_search.learning.inference.projected_runs import Lines, Reference
from primus_search.learning.inference.regression import regress
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import SiteErrors
from primus_search.values.model import Model

LEAST = 0.5 * float(np.exp(-SUGGESTED))
"""Weight over the first one's below which a stack takes no part: half that of the suggested stack's equals."""

NEAREST = 0.3
"""Deviation of a rate around the expected one: what moves numbers far for little is left. With 0.1 and less, numbers
reach rates at which slopes no longer hold; of 0.15, 0.2 and 0.3 this leaves the publisher whom one run moves most
nearest to where first contact had it (7.9, 7.1, 6.9 %, 6.3 before), 2026-11-30."""

SAME_SITE = 0.12
"""Standard deviation of log(measured / projected) on the cluster of a publisher whose runs are in the fits where the
software is not described: 86 such runs, 2026-11-23."""

NORMAL = 1.645
"""95th percentile of a normal distribution: the mixture's components are normal ones with the 90 % band of the site's
Student's t."""


def by_prior(hypotheses: Sequence[Hypothesis]) -> tuple[list[int], Floats]:
    """The hypotheses that take part before any run is known, by their places, and their weights."""
    weights = np.exp([one.log_prior for one in hypotheses])
    kept = np.flatnonzero(weights >= LEAST * weights.max())
    return kept.tolist(), np.asarray(weights[kept] / weights[kept].sum())


def deviation(site: SiteErrors | None, model: Model, exposed: Exposed = NOTHING) -> float:
    """Standard deviation of the logarithm of a rate of software that no file describes; exposed: of one candidate."""
    return SAME_SITE if site is None else float(site_half_width(site, model, exposed, is_named=False)[0]) / NORMAL


def started(
    hypotheses: Sequence[Hypothesis],
    lines: Sequence[Lines],
    references: Sequence[Reference],
    shift: float,
    known: str | None,
    runs: int,
) -> tuple[Hypothesis, ...]:
    """The hypotheses with their numbers where first contact has the rows of all references; lines: over these rows.

    shift: logarithm of expected over projected rates of software with a file. known: the stack that runs are of. runs:
    how many there are, of whose number the root divides what numbers are moved by: after five the median error of 12
    publishers is 5.2 % so, by lines, 5.3 % with all of it or over the number, 2026-11-29.
    """
    kept, weights = by_prior(hypotheses)
    means = np.array([lines[k].rates for k in kept])
    deviations = [
        deviation(one.job.cluster.site and one.job.cluster.site.of(one.job.stack), one.job.model)
        for one in references
        for _ in range(len(one.table))
    ]
    variances = np.broadcast_to(np.square(deviations), means.shape)
    expected = Mixture(weights=weights, means=means, variances=variances).quantile(0.5)
    own = next((line.rates for one, line in zip(hypotheses, lines, strict=True) if one.name == known), expected - shift)
    is_own = [one.job.stack.name == known and not one.job.stack.is_assumed for one in references]
    expected = np.where(np.repeat(is_own, [len(one.table) for one in references]), own + shift, expected)
    share, spread = max(runs, 1) ** -0.5, np.full(len(expected), NEAREST**2)
    moves = [
        regress(one.covariance, line.slopes, share * (expected - shift - line.rates), spread)[0]
        for one, line in zip(hypotheses, lines, strict=True)
    ]
    return tuple(
        replace(one, stack=at(one.stack, coordinates(one.stack) + move))
        for one, move in zip(hypotheses, moves, strict=True)
    )
