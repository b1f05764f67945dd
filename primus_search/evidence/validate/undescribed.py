"""Rates of runs of undescribed software: the prior mixture over every shipped stack, never one guessed stack.

Each of `learning.inference.hypotheses` that could train on the device projects the run with what its record says of
kernels and switches; its weight is its prior, as in `learn`. Around each lies the error of a site. The rate to expect
is the median of the mixture, its band the mixture's 5th and 95th percentile. 251 runs of nine publishers, mean over
these: 11.3 % in the median, 32.9 % at the 90th percentile, 2026-11-24.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from primus_search.base.positions import places
from primus_search.cost.confidence.uncertainty import NOTHING, Exposed
from primus_search.evidence.validate.score_runs import Refitted, ScoredRun, Validation
from primus_search.learning.inference.first_contact import by_prior, deviation
from primus_search.learning.inference.hypotheses import shipped_hypotheses
from primus_search.learning.inference.posterior import Mixture
from primus_search.learning.inference.projected_runs import Reference, log_rates, reference_of
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import SiteErrors
from primus_search.values.model import Model

NAMED = 3
"""Stacks that are named."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Undescribed:
    """What the stacks that a run's software may be project for it: probabilities, log-rates and names."""

    weights: Floats
    logs: Floats
    names: tuple[str, ...]

    def rate(self, model: Model, site: SiteErrors | None, exposed: Exposed = NOTHING) -> Refitted:
        """Median and 90 % interval of the mixture with the errors of a site, or of a cluster that is known; exposed: of
        the one candidate."""
        logs, variance = self.logs[:, None], deviation(site, model, exposed) ** 2
        mixture = Mixture(weights=self.weights, means=logs, variances=np.full(logs.shape, variance))
        low, rate, high = (float(np.exp(mixture.quantile(share)[0])) for share in (0.05, 0.5, 0.95))
        return Refitted(rate=rate, low=low, high=high)

    def __str__(self) -> str:
        total: dict[str, float] = {}
        for name, weight in zip(self.names, self.weights.tolist(), strict=True):
            total[name] = total.get(name, 0.0) + weight
        first = sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:NAMED]
        named = ", ".join(f"{name} {weight:.2f}" for name, weight in first)
        return f"software is not described: median over stacks, most likely {named}"


def undescribed_mixtures(rows: Sequence[Reference], without: Sequence[str] = ()) -> list[Undescribed]:
    """What the software of every row may be, in their order; words and configuration point to its job's stack. without:
    stacks that take no part."""
    keys = [(one.job.accelerator.arch, one.job.model, one.job.stack.name) for one in rows]
    found: dict[int, Undescribed] = {}
    for (arch, model, suggested), members in places(keys).items():
        every = shipped_hypotheses(without=without, archs={arch}, suggested=suggested, models={model})
        kept, shares = by_prior(every)
        logs = np.array([log_rates(every[k].stack, [rows[i] for i in members]) for k in kept])
        names = tuple(every[k].stack.name for k in kept)
        for column, i in enumerate(members):
            found[i] = Undescribed(weights=shares, logs=logs[:, column], names=names)
    return [found[i] for i in range(len(rows))]


def with_undescribed(outcome: Validation) -> Validation:
    """The runs whose software is not described at the rates of the mixture, with its weights beside what is assumed."""
    rows = [row for row in outcome.rows if row.run.cluster.stack.is_assumed]
    found = undescribed_mixtures([reference_of(row.run) for row in rows])
    by_place = {row.run.place: str(one) for row, one in zip(rows, found, strict=True)}
    rates = {
        row.run.place: one.rate(row.run.model, site and site.of(row.run.cluster.stack), Exposed.of(row.projection.step))
        for row, one in zip(rows, found, strict=True)
        for site in (row.run.cluster.site,)
    }

    def each(every: Sequence[ScoredRun]) -> Iterator[ScoredRun]:
        for row in every:
            what = (by_place[row.run.place],) if row.run.place in by_place else ()
            yield replace(row, run=replace(row.run, assumed=(*row.run.assumed, *what)))

    parts: dict[str, Any] = {name: tuple(each(getattr(outcome, name))) for name in ("rows", "memory_only", "ran_out")}
    return replace(outcome, **parts).with_rates(rates)
