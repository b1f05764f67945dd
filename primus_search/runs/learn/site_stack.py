"""A site's own stack: the one hypothesis that stands for the posterior, with the posterior's numbers and bands.

A search projects millions of candidates, so one equivalent stack stands for the mixture: the hypothesis whose rates lie
nearest to the mixture's over the site's runs, their neighbours and some usual jobs, with the numbers with which its
rates follow the mixture's means there. The mixture stays in the error bands. Written are NAME.yaml, which
any command takes as a stack, and NAME.runs.parquet, the runs it rests on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from primus_search.base.units import to_base, yaml_keys
from primus_search.cost.confidence.uncertainty import MEMORY
from primus_search.runs.learn.hypotheses import Hypothesis, shipped_hypotheses
from primus_search.runs.learn.posterior import (
    Evidence,
    Mixture,
    Posterior,
    evidence_of,
    following,
    lines_of,
    log_peaks,
    log_rates,
    peak_errors,
    peak_factor,
    update,
)
from primus_search.runs.learn.probes import references, usual
from primus_search.runs.learn.site_numbers import NUMBERS
from primus_search.values.candidates import Bools, Floats
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import GROUP_OF, ErrorBand, Stack, number_of, with_numbers
from primus_search.values.measured_run import MeasuredRun

FOLLOWED = 3
"""Hypotheses, nearest to the mixture first, whose numbers are moved to follow it; the nearest is taken."""

MOST_DEVICES = 2
"""Kinds of devices of the runs on which usual jobs are compared."""

LOW, HIGH = 0.05, 0.95
"""Ends of the 90 % band."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteStack:
    """What was learned: the stack, the hypothesis it stands on, the posterior behind it, the runs."""

    stack: Stack
    chosen: Hypothesis
    posterior: Posterior
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
    cluster: Cluster | None = None,
    seen: Evidence | None = None,
) -> SiteStack:
    """The stack of a site from its runs, possibly none.

    base: only this stack's habits are considered. without: stacks that take no part. cluster: whose devices the stack
    is for; that of the runs where None, so it is needed where there are no runs. seen: the runs on all hypotheses,
    where that is known already.
    """
    runs = sorted(runs, key=lambda run: run.id)
    clusters = [cluster] if cluster is not None else list({run.hardware: run.cluster for run in runs}.values())
    if not clusters:
        raise ValueError("without runs the cluster must be named")
    if seen is None:
        hypotheses = shipped_hypotheses(framework, without, {one.accelerator.arch for one in clusters})
        if base is not None:
            hypotheses = tuple(h for h in hypotheses if h.stack.name == base)
        seen = evidence_of(hypotheses, runs)
    posterior = update(seen)
    everywhere = [*references(runs), *(one for each in clusters[:MOST_DEVICES] for one in usual(each))]
    posterior = posterior.leading()
    lines = lines_of([h.stack for h in posterior.hypotheses], everywhere)
    rates = posterior.rates(lines)
    peaks = posterior.peaks(np.array([log_peaks(h.stack, everywhere) for h in posterior.hypotheses]))
    distances = rates.distances(rates.means) + peaks.distances(peaks.means)
    likely = np.argsort(distances - 2.0 * np.log(posterior.weights), kind="stable")[:FOLLOWED].tolist()
    followed = [
        following(posterior.hypotheses[i], posterior.moved[i], posterior.covariances[i], everywhere, rates)
        for i in likely
    ]
    left = rates.distances(np.array([log_rates(stack, everywhere) for stack in followed]))
    place = int(np.argmin(left + peaks.distances(peaks.means[likely])))
    nearest = likely[place]
    chosen = posterior.hypotheses[nearest]
    stack = _with_peaks(followed[place], runs)
    is_moe = np.concatenate([np.full(len(one.table), one.job.model.is_moe) for one in everywhere])
    own_rates, own_peaks = log_rates(stack, everywhere), log_peaks(stack, everywhere)
    bands = {
        "dense": _band(rates, own_rates, ~is_moe, len(runs)),
        "moe": _band(rates, own_rates, is_moe, len(runs)),
        MEMORY: _band(peaks, own_peaks, is_moe | ~is_moe, len(posterior.peak_errors[nearest])),
    }
    stack = replace(stack, name=name, errors=bands, is_assumed=False)
    return SiteStack(stack=stack, chosen=chosen, posterior=posterior, runs=tuple(runs))


def _band(mixture: Mixture, centre: Floats, rows: Bools, runs: int) -> ErrorBand:
    """Measured over projected: the mixture's quantiles over the stack's own figures, geometric means over rows.

    Over all rows where none of these is known.
    """
    rows = rows if rows.any() else ~rows
    ends = [float(np.exp((mixture.quantile(share) - centre)[rows].mean())) for share in (LOW, HIGH)]
    return ErrorBand(low=ends[0], high=ends[1], runs=float(runs))


def _with_peaks(stack: Stack, runs: Sequence[MeasuredRun]) -> Stack:
    """The stack with what measured peaks lie above its own as fixed bytes.

    Peaks below the projection move the band alone: no part of the memory is known to be too large.
    """
    errors = peak_errors(stack, runs)
    errors = errors[~np.isnan(errors)]
    numbers = {"peaks_seen": float(len(errors))}
    factor, _ = peak_factor(errors)
    if factor > 0.0:
        peaks = [run.measured.peak_bytes for run in runs if run.measured.peak_bytes > 0.0]
        extra = float(np.mean(peaks)) * (1.0 - float(np.exp(-factor)))
        numbers["fixed_bytes"] = float(number_of(stack, "fixed_bytes")) + extra
    return with_numbers(stack, numbers)


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "peaks_seen"):
        key, value = _as_written(field, float(number_of(site.stack, field)))
        groups.setdefault(GROUP_OF[field], {})[key] = {"value": value, "source": source}
    for field, value in site.chosen.habits.items():
        if field not in [number.field for number in NUMBERS]:
            groups.setdefault(GROUP_OF[field], {})[field] = {"value": value, "source": source}
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
