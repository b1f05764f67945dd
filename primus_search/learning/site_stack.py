"""A site's own stack: the one hypothesis that stands for the posterior, with the posterior's numbers and bands.

A search projects millions of candidates, so one stack stands for the mixture: the likeliest hypothesis with its
posterior numbers. What the runs leave of it is shared out again: that of a model on a device is in the middle of its
band, that of near configurations in `own_runs` (`cost.confidence.uncertainty.run_ratio`). Both count in the rate to
expect; widths of bands are the mixture's.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from primus_search.cost.confidence.uncertainty import MEMORY, MODEL_ERROR, own_regime
from primus_search.files.search_path import FileKind, shipped
from primus_search.learning.inference.first_contact import started
from primus_search.learning.inference.hypotheses import (
    NOT_SOFTWARE,
    NUMBERS,
    Hypothesis,
    at,
    coordinates,
    shipped_hypotheses,
)
from primus_search.learning.inference.posterior import Mixture, Posterior, peak_factor, shift_of, update
from primus_search.learning.inference.projected_runs import (
    Lines,
    Reference,
    evidence_of,
    lines_of,
    log_peaks,
    log_rates,
    peak_errors,
)
from primus_search.learning.inference.shared_errors import (
    RunGroup,
    SharedErrors,
    group_of,
    heard,
    rows_of,
    shared_errors,
)
from primus_search.learning.usual_jobs import references, usual
from primus_search.values.candidates import Bools, Floats
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import ErrorBand, OwnRun, Stack, number_of, with_numbers
from primus_search.values.measured_run import MeasuredRun

MOST_DEVICES = 2
"""Kinds of devices of the runs on which usual jobs are compared."""

CONTRADICTED, MOST_WIDENED = 1.5, 3.0
"""What a posterior leaves of its own runs, over the error of a run, from which on it contradicts them; and the most
times that bands are widened then. Bands hold 93 instead of 90 % of the other runs of thirteen publishers after five
of their own, 2026-11-23."""

LOW, HIGH = 0.05, 0.95
"""Ends of the 90 % band."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteStack:
    """What was learned: the stack, the hypothesis it stands on, the posterior behind it, the runs.

    parts        what moved the rates of the runs from those of the hypothesis' file: mean logarithms by cause
    unexplained  root mean square of log(measured / projected) of the runs themselves; NaN without any
    doubt        that the runs are not of the stack that was named; empty where they may be
    """

    stack: Stack
    chosen: Hypothesis
    posterior: Posterior
    runs: tuple[MeasuredRun, ...]
    unexplained: float
    parts: Mapping[str, float] = field(default_factory=dict)
    doubt: str = ""

    @property
    def warning(self) -> str:
        """Why the bands are wider than the posterior says, else why the named stack is doubted; empty where the stack
        explains its own runs."""
        if _widened(self.unexplained) == 1.0:
            return self.doubt
        return (
            f"the stack projects its own runs {np.expm1(self.unexplained):.0%} off: they contradict each other or what "
            f"their logs say, so bands are {_widened(self.unexplained):.1f} times as wide"
        )

    @property
    def learned(self) -> str:
        """What the runs taught, in words; empty without any."""
        return ", ".join(f"{name} {math.expm1(part):+.1%}" for name, part in self.parts.items())

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
) -> SiteStack:
    """The stack of a site from its runs, possibly none.

    base: only this stack's habits are considered. without: stacks that take no part. cluster: whose devices the stack
    is for; that of the runs where None, so it is needed where there are no runs.
    """
    runs = sorted(runs, key=lambda run: run.id)
    clusters = [cluster] if cluster is not None else list({run.hardware: run.cluster for run in runs}.values())
    if not clusters:
        raise ValueError("without runs the cluster must be named")
    varied = variant_settings(runs)
    settings = tuple((f"stack.{field}", value) for field, value in varied.items())
    everywhere = references(runs)
    everywhere += [replace(one, settings=settings) for each in clusters[:MOST_DEVICES] for one in usual(each)]
    archs = {one.accelerator.arch for one in clusters}
    pointed, models = base or suggested_by(runs, without), {run.model for run in runs}
    hypotheses = shipped_hypotheses(framework, without, archs, suggested=pointed, models=models)
    if base is None:
        lines = lines_of([h.stack for h in hypotheses], everywhere)
        rated_runs = [run for run in runs if run.has_rate]
        hypotheses = started(hypotheses, lines, everywhere, shift_of(rated_runs), pointed, len(rated_runs))
    posterior = update(evidence_of(hypotheses, runs))
    doubt = _doubt(posterior, base) if base is not None and runs else ""
    posterior = posterior if base is None else posterior.of_stack(base)
    posterior = posterior.leading()
    lines = lines_of([h.stack for h in posterior.hypotheses], everywhere)
    likely = int(np.argmax(posterior.weights))
    chosen = posterior.hypotheses[likely].varied(varied)
    stack = _with_peaks(at(chosen.stack, coordinates(chosen.stack) + posterior.moved[likely]), runs)
    own_rates = log_rates(stack, everywhere)
    rated = {i: run for i, run in enumerate(runs) if run.has_rate and not run.ran_out}
    taught = [group_of(run.job) for run in rated.values()]
    measured = np.log([run.tokens_per_s_per_gpu for run in rated.values()])
    expected = posterior.shift + lines[likely].rates[list(rated)]
    unheard = (1.0 - heard(list(rated.values()), measured - expected)) * (measured - expected)
    shared = shared_errors(list(rated.values()), measured - posterior.shift - own_rates[list(rated)], unheard)
    unexplained = float(np.sqrt(np.mean(np.square(shared.left)))) if rated else float("nan")
    parts = _parts(lines[likely].slopes[list(rated)], posterior, likely, shared) if rated else {}
    wide = _widened(unexplained)
    bands = _bands(posterior, lines, everywhere, stack, own_rates, shared.groups.tolist(), taught, wide)
    own_runs = {
        run.id: OwnRun(regime=own_regime(group.shape, group.device), place=tuple(place), ratio=ratio)
        for run, group, place, ratio in zip(
            rated.values(), taught, shared.places.tolist(), np.exp(shared.own).tolist(), strict=True
        )
    }
    stack = replace(stack, name=name, errors=bands, own_runs=own_runs, is_assumed=False, varied=varied)
    return SiteStack(
        stack=stack,
        chosen=chosen,
        posterior=posterior,
        runs=tuple(runs),
        unexplained=unexplained,
        parts=parts,
        doubt=doubt,
    )


def _bands(
    posterior: Posterior,
    lines: Sequence[Lines],
    everywhere: Sequence[Reference],
    stack: Stack,
    own_rates: Floats,
    errors: Sequence[float],
    taught: Sequence[RunGroup],
    wide: float,
) -> dict[str, ErrorBand]:
    """Error bands of the stack by family, by model and device of the runs, and of memory; geometric means over usual
    jobs.

    own_rates  of the stack everywhere   errors  what the groups of runs have in common   taught  group of every run
    """
    rows, bands = rows_of(everywhere), dict[str, ErrorBand]()
    first = lines[int(np.argmax(posterior.weights))].rates
    groups = rows.groups
    rates, software = posterior.rates(lines, rows), posterior.of_software().rates(lines, rows)
    peaks = posterior.peaks(np.array([log_peaks(h.stack, everywhere) for h in posterior.hypotheses]))
    for kind, is_moe in (("dense", False), ("moe", True)):
        members = np.array([one.is_moe is is_moe for one in groups])
        count = sum(one.is_moe is is_moe for one in taught)
        untold = members * (is_moe not in posterior.families)
        back = float((first - own_rates) @ untold) / max(untold.sum(), 1)
        bands[kind] = _around(math.exp(posterior.shift + back), _band(software, own_rates, members, count, wide))
    for group, error in zip(posterior.groups, errors, strict=True):
        members = np.array([one == group for one in groups])
        found = _band(rates, own_rates, members, taught.count(group), wide)
        bands[own_regime(group.shape, group.device)] = _around(math.exp(posterior.shift + error), found)
    peaks_seen = len(posterior.peak_errors[int(np.argmax(posterior.weights))])
    bands[MEMORY] = _band(peaks, log_peaks(stack, everywhere), np.ones(len(groups), np.bool_), peaks_seen)
    return bands


HOST = ("host_launch_s", "host_moe_s", "host_sync_s", "pass_s", "step_s")
KERNELS = ("gemm_efficiency", "attention_efficiency", "memory_efficiency", "fp8_efficiency", "grouped_gemm_efficiency")


def _parts(slopes: Floats, posterior: Posterior, likely: int, shared: SharedErrors) -> dict[str, float]:
    """Mean logarithms of what moves the runs' rates from a hypothesis' file, by cause; slopes: (runs, numbers)."""
    effects = (slopes * posterior.moved[likely]).mean(axis=0)
    by_field = {number.field: float(effect) for number, effect in zip(NUMBERS, effects, strict=True)}
    host, kernels = (sum(by_field.pop(name) for name in names) for names in (HOST, KERNELS))
    return {
        "any new cluster": posterior.shift,
        "kernels": kernels,
        "exchange and stragglers": sum(by_field.values()),
        "host": host,
        "these models on this device": float(shared.groups.mean()),
    }


def variant_settings(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """What the variants of all runs have otherwise than their stacks' files."""
    each = [run.cluster.stack.varied.items() for run in runs]
    return {field: value for field, value in (each[0] if each else ()) if all((field, value) in one for one in each)}


DOUBTED = 0.05
"""Probability after the runs below which a stack that was named is doubted; it has most of it before them."""


def _doubt(posterior: Posterior, named: str) -> str:
    """What the runs say against a named stack, and which one they point to; empty where they do not."""
    probability = posterior.probability(named)
    if probability >= DOUBTED:
        return ""
    likely = posterior.hypotheses[int(np.argmax(posterior.weights))].stack.name
    return f"the runs are hardly of {named} (probability {probability:.1%}), more likely of software like {likely}"


def suggested_by(runs: Sequence[MeasuredRun], without: Sequence[str] = ()) -> str | None:
    """The stack that most records of runs without a named launcher point to, where it may take part."""
    named = Counter(run.cluster.stack.name for run in runs if run.framework is None)
    found = max(sorted(named), key=named.__getitem__, default=None)
    return found if found in set(shipped(FileKind.STACK)) - {*without, *NOT_SOFTWARE} else None


def _widened(unexplained: float) -> float:
    """How many times as wide bands are as the posterior says, by what it leaves of its own runs."""
    ratio = unexplained / MODEL_ERROR
    return min(ratio, MOST_WIDENED) if ratio > CONTRADICTED else 1.0


def _band(mixture: Mixture, centre: Floats, rows: Bools, runs: int, wide: float = 1.0) -> ErrorBand:
    """Measured over projected: the mixture's quantiles over the stack's own figures, geometric means over rows.

    Over all rows where none of these is known.
    """
    rows = rows if rows.any() else ~rows
    low, high = (float((mixture.quantile(share) - centre)[rows].mean()) for share in (LOW, HIGH))
    extra = 0.5 * (wide - 1.0) * (high - low)
    return ErrorBand(low=float(np.exp(low - extra)), high=float(np.exp(high + extra)), runs=float(runs))


def _around(middle: float, found: ErrorBand) -> ErrorBand:
    """A band of the same width around another ratio."""
    half = math.sqrt(found.high / found.low)
    return replace(found, low=middle / half, high=middle * half)


def _with_peaks(stack: Stack, runs: Sequence[MeasuredRun]) -> Stack:
    """The stack with what measured peaks lie above its own: as fixed bytes, as slack of what comes and goes, or as both
    in halves, whichever leaves the peaks nearest.

    Peaks below the projection move the band alone: no part of the memory is known to be too large.
    """
    errors = peak_errors(stack, runs)
    errors = errors[~np.isnan(errors)]
    factor, _ = peak_factor(errors)
    stack = with_numbers(stack, {"peaks_seen": float(len(errors))})
    if factor <= 0.0:
        return stack
    peaks = [run.measured.peak_bytes for run in runs if run.measured.peak_bytes > 0.0]
    extra = float(np.mean(peaks)) * (1.0 - float(np.exp(-factor)))
    slack = _slack_of(stack, runs, factor)
    fixed, share = float(number_of(stack, "fixed_bytes")), float(number_of(stack, "activation_share"))
    tried = [
        with_numbers(stack, {"fixed_bytes": fixed + (1.0 - part) * extra, "activation_share": share + part * slack})
        for part in (SLACK_PARTS if slack > 0.0 else SLACK_PARTS[:1])
    ]
    left = [float(np.nansum((peak_errors(one, runs) - (np.mean(errors) - factor)) ** 2)) for one in tried]
    return tried[int(np.argmin(left))]


SLACK_PARTS = (0.0, 0.5, 1.0)
"""Parts of missing memory that may be allocator slack; the rest is fixed."""

SLACK_STEP, MOST_SLACK = 0.1, 1.0
"""Step of the difference that says how peaks depend on the slack, and the largest slack that is learned."""


def _slack_of(stack: Stack, runs: Sequence[MeasuredRun], factor: float) -> float:
    """The slack that raises the runs' peaks by a factor (its logarithm) on average; 0 where no peak counts slack."""
    share = float(number_of(stack, "activation_share"))
    more = with_numbers(stack, {"activation_share": share + SLACK_STEP})
    slope = float(np.nanmean(peak_errors(stack, runs) - peak_errors(more, runs))) / SLACK_STEP
    return min(factor / slope, MOST_SLACK) if slope > 0.0 else 0.0
