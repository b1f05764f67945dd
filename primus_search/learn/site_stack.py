"""A site's own stack: the one hypothesis that stands for the posterior, with the posterior's numbers and bands.

A search projects millions of candidates, so the mixture is replaced by the hypothesis whose rates lie nearest to the
mixture's over the site's runs and their neighbours; the mixture stays in the error bands. Written are NAME.yaml, which
any command takes as a stack, and NAME.runs.parquet, the runs it rests on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from primus_search.candidates import Floats
from primus_search.cost.confidence.uncertainty import MEMORY
from primus_search.cost.memory.fit import DEVIATIONS_TO_END
from primus_search.learn.hypotheses import Hypothesis, shipped_hypotheses
from primus_search.learn.posterior import (
    MEMORY_ERROR,
    MEMORY_FACTOR,
    Posterior,
    RateMixture,
    Reference,
    lines_of,
    peak_errors,
    update,
)
from primus_search.learn.probes import references
from primus_search.learn.site_numbers import NUMBERS, at, coordinates
from primus_search.measured_run import MeasuredRun
from primus_search.stack import GROUP_OF, ErrorBand, Stack, number_of, with_numbers
from primus_search.units import to_base, yaml_keys

NEAR = 0.05
"""Difference of log-rates at which the nearness of a hypothesis to the mixture trades for its probability."""

LOW, HIGH = 0.05, 0.95
"""Ends of the 90 % band."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteStack:
    """What was learned: the stack, the hypothesis it stands on, the posterior behind it, the runs."""

    stack: Stack
    chosen: Hypothesis
    posterior: Posterior
    mixture: RateMixture
    runs: tuple[MeasuredRun, ...]

    @property
    def leading(self) -> list[tuple[str, float]]:
        """The hypotheses that weigh most, with their probabilities."""
        order = np.argsort(-self.posterior.weights)[:5]
        return [(self.posterior.hypotheses[i].name, float(self.posterior.weights[i])) for i in order]


def learn_stack(
    name: str,
    runs: Sequence[MeasuredRun],
    *,
    framework: str | None = None,
    base: str | None = None,
    without: Sequence[str] = (),
    around: Sequence[Reference] = (),
) -> SiteStack:
    """The stack of a site from its runs, possibly none.

    base: only this stack's habits are considered. without: stacks that take no part. around: configurations, beside
    the runs and their neighbours, over which the stack stands for the mixture; needed where there are no runs.
    """
    hypotheses = shipped_hypotheses(framework, without)
    if base is not None:
        hypotheses = tuple(h for h in hypotheses if h.stack.name == base)
    posterior = update(hypotheses, runs)
    everywhere = [*references(runs), *around]
    posterior = posterior.leading()
    lines = lines_of(posterior.hypotheses, everywhere)
    mixture = posterior.rates(lines)
    distances = ((mixture.means - mixture.mean) ** 2).mean(axis=1)
    nearest = int(np.argmin(distances / NEAR**2 - 2.0 * np.log(posterior.weights)))
    chosen = posterior.hypotheses[nearest]
    stack = at(chosen.stack, coordinates(chosen.stack) + posterior.moved[nearest])
    stack, memory = _with_peaks(stack, runs)
    is_moe = np.concatenate([np.full(len(one.table), one.job.model.is_moe) for one in everywhere])
    bands = _bands(mixture, mixture.means[nearest], is_moe, len(runs))
    stack = replace(stack, name=name, errors=bands | memory, is_assumed=False)
    return SiteStack(stack=stack, chosen=chosen, posterior=posterior, mixture=mixture, runs=tuple(runs))


def _bands(mixture: RateMixture, centre: Floats, is_moe: Any, runs: int) -> dict[str, ErrorBand]:
    """Measured over projected rates by family: the mixture's quantiles over the stack's own rates, geometric means."""
    low, high = mixture.quantile(LOW) - centre, mixture.quantile(HIGH) - centre
    found = {}
    for family, rows in (("dense", ~is_moe), ("moe", is_moe)):
        if rows.any():
            ends = np.exp([low[rows].mean(), high[rows].mean()])
            found[family] = ErrorBand(low=float(ends[0]), high=float(ends[1]), runs=float(runs))
    return found


def _with_peaks(stack: Stack, runs: Sequence[MeasuredRun]) -> tuple[Stack, dict[str, ErrorBand]]:
    """The stack with what its peaks lie above the projection as fixed bytes, and the band of its peaks.

    Peaks below the projection move the band alone: no part of the memory is known to be too large.
    """
    errors = peak_errors(stack, runs)
    if not len(errors):
        return stack, {}
    trust = MEMORY_FACTOR**2 / (MEMORY_FACTOR**2 + MEMORY_ERROR**2 / len(errors))
    factor = trust * float(np.mean(errors))
    spread = float(np.hypot(MEMORY_ERROR, MEMORY_FACTOR * np.sqrt(1.0 - trust)))
    if factor > 0.0:
        peaks = [run.measured.peak_bytes for run in runs if run.measured.peak_bytes > 0.0]
        extra = float(np.mean(peaks)) * (1.0 - float(np.exp(-factor)))
        stack = with_numbers(stack, {"fixed_bytes": float(number_of(stack, "fixed_bytes")) + extra})
        factor = 0.0
    ends = np.exp(factor + np.array([-1.0, 1.0]) * DEVIATIONS_TO_END * spread)
    stack = with_numbers(stack, {"peaks_seen": float(len(errors))})
    return stack, {MEMORY: ErrorBand(low=float(ends[0]), high=float(ends[1]), runs=float(len(errors)))}


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "peaks_seen"):
        key, value = _as_written(field, float(number_of(site.stack, field)))
        groups.setdefault(GROUP_OF[field], {})[key] = {"value": value, "source": source}
    ends = ("low", "high", "runs")
    errors = {
        key: {end: {"value": round(float(band.__getattribute__(end)), 4), "source": source} for end in ends}
        for key, band in site.stack.errors.items()
    }
    weights = "; ".join(f"{name} {weight:.2f}" for name, weight in site.leading)
    head = f"# Software of a site, {source}.\n# Probabilities of the hypotheses: {weights}.\n"
    data = {"name": site.stack.name, "extends": site.chosen.stack.name, **groups, "errors": errors}
    return head + "".join(_block(key, value) for key, value in data.items())


def _as_written(field: str, value: float) -> tuple[str, float]:
    """The YAML key of a number, with the unit in which it is 1 to 1000 where it has one, and its value in it."""
    key = field
    for one in yaml_keys(field):
        scaled = value / to_base(one, 1.0)[1] if one != field else value
        if 1.0 <= abs(scaled) < 1000.0:
            key = one
            break
    factor = to_base(key, 1.0)[1] if key != field else 1.0
    return key, float(f"{value / factor:.6g}")


def _block(key: str, value: Any, indent: int = 0) -> str:
    """A key of a YAML file; mappings of mappings as blocks, all else in the flow style that JSON is."""
    lead = "  " * indent
    is_block = isinstance(value, Mapping) and "value" not in value
    if not is_block:
        return f"{lead}{key}: {json.dumps(value, ensure_ascii=False)}\n"
    return f"{lead}{key}:\n" + "".join(_block(str(k), v, indent + 1) for k, v in value.items())
