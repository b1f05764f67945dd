"""A site's own stack: the one hypothesis that stands for the posterior, with the posterior's numbers and bands.

A search projects millions of candidates, so one equivalent stack stands for the mixture: the hypothesis whose rates lie
nearest to the mixture's over the site's runs, their neighbours and some usual jobs, with the numbers with which its
rates follow the mixture's means there. What runs say of single models on a device, beyond the software, stays out of
the numbers: it is in the error bands of these models, whose middle is the rate to expect. Written are NAME.yaml, which
any command takes as a stack, and NAME.runs.parquet, the runs it rests on.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from primus_search.base.units import to_base, yaml_keys
from primus_search.cost.confidence.uncertainty import MEMORY, own_regime
from primus_search.declare.model_files import load_model
from primus_search.declare.search_path import FileKind, shipped
from primus_search.runs.learn import posterior as mixtures
from primus_search.runs.learn.hypotheses import NOT_SOFTWARE, NUMBERS, Hypothesis, shipped_hypotheses
from primus_search.runs.learn.logs import table
from primus_search.runs.learn.posterior import Evidence, Mixture, Posterior, Reference, RunGroup
from primus_search.values.candidates import Bools, Candidates, Floats, Recompute, degrees, joined
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import GROUP_OF, ErrorBand, Stack, number_of, with_numbers
from primus_search.values.measured_run import MeasuredRun
from primus_search.values.workload import Workload

FOLLOWED = 3
"""Hypotheses, nearest to the mixture first, whose numbers are moved to follow it; the nearest is taken."""

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

    unexplained  root mean square of log(measured / projected) of the runs themselves; NaN without any
    doubt        that the runs are not of the stack that was named; empty where they may be
    """

    stack: Stack
    chosen: Hypothesis
    posterior: Posterior
    runs: tuple[MeasuredRun, ...]
    unexplained: float
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
        archs = {one.accelerator.arch for one in clusters}
        pointed, models = base or suggested_by(runs, without), {run.model for run in runs}
        hypotheses = shipped_hypotheses(framework, without, archs, suggested=pointed, models=models)
        seen = mixtures.evidence_of(hypotheses, runs)
    posterior = mixtures.update(seen)
    doubt = _doubt(posterior, base) if base is not None and runs else ""
    posterior = posterior if base is None else posterior.of_stack(base)
    everywhere = [*references(runs), *(one for each in clusters[:MOST_DEVICES] for one in usual(each))]
    posterior = posterior.leading()
    lines = mixtures.lines_of([h.stack for h in posterior.hypotheses], everywhere)
    groups = mixtures.groups_of(everywhere)
    rates, software = posterior.rates(lines, groups), posterior.of_software().rates(lines, groups)
    peaks = posterior.peaks(np.array([mixtures.log_peaks(h.stack, everywhere) for h in posterior.hypotheses]))
    distances = software.distances(software.means) + peaks.distances(peaks.means)
    likely = np.argsort(distances - 2.0 * np.log(posterior.weights), kind="stable")[:FOLLOWED].tolist()
    followed = [
        mixtures.following(posterior.hypotheses[i], posterior.moved[i], posterior.covariances[i], everywhere, software)
        for i in likely
    ]
    left = software.distances(np.array([mixtures.log_rates(stack, everywhere) for stack in followed]))
    place = int(np.argmin(left + peaks.distances(peaks.means[likely])))
    nearest = likely[place]
    chosen = posterior.hypotheses[nearest]
    stack = _with_peaks(followed[place], runs)
    own_rates, own_peaks = mixtures.log_rates(stack, everywhere), mixtures.log_peaks(stack, everywhere)
    rated = {i: run for i, run in enumerate(runs) if run.has_rate and not run.ran_out}
    taught = [mixtures.group_of(run.job) for run in rated.values()]
    shift = {one: float((rates.mean - own_rates)[_of_group(groups, one)].mean()) for one in posterior.groups}
    errors = [
        np.log(run.tokens_per_s_per_gpu) - float(own_rates[i]) - shift[one]
        for (i, run), one in zip(rated.items(), taught, strict=True)
    ]
    unexplained = float(np.sqrt(np.mean(np.square(errors)))) if errors else float("nan")
    wide = _widened(unexplained)
    bands: dict[str, ErrorBand] = {}
    for kind, is_moe in (("dense", False), ("moe", True)):
        rows, count = np.array([one.is_moe is is_moe for one in groups]), sum(one.is_moe is is_moe for one in taught)
        bands[kind] = _band(software, own_rates, rows, count, wide)
    for group in posterior.groups:
        rows = _of_group(groups, group)
        bands[own_regime(group.shape, group.device)] = _band(rates, own_rates, rows, taught.count(group), wide)
    bands[MEMORY] = _band(peaks, own_peaks, np.ones(len(groups), np.bool_), len(posterior.peak_errors[nearest]))
    stack = replace(stack, name=name, errors=bands, is_assumed=False)
    return SiteStack(
        stack=stack, chosen=chosen, posterior=posterior, runs=tuple(runs), unexplained=unexplained, doubt=doubt
    )


def _of_group(groups: Sequence[RunGroup], one: RunGroup) -> Bools:
    return np.array([group == one for group in groups])


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
    ratio = unexplained / mixtures.MODEL_ERROR
    return min(ratio, MOST_WIDENED) if ratio > CONTRADICTED else 1.0


def _band(mixture: Mixture, centre: Floats, rows: Bools, runs: int, wide: float = 1.0) -> ErrorBand:
    """Measured over projected: the mixture's quantiles over the stack's own figures, geometric means over rows.

    Over all rows where none of these is known.
    """
    rows = rows if rows.any() else ~rows
    low, high = (float((mixture.quantile(share) - centre)[rows].mean()) for share in (LOW, HIGH))
    extra = 0.5 * (wide - 1.0) * (high - low)
    return ErrorBand(low=float(np.exp(low - extra)), high=float(np.exp(high + extra)), runs=float(runs))


def _with_peaks(stack: Stack, runs: Sequence[MeasuredRun]) -> Stack:
    """The stack with what measured peaks lie above its own: as fixed bytes, as slack of what comes and goes, or as both
    in halves, whichever leaves the peaks nearest.

    Peaks below the projection move the band alone: no part of the memory is known to be too large.
    """
    errors = mixtures.peak_errors(stack, runs)
    errors = errors[~np.isnan(errors)]
    factor, _ = mixtures.peak_factor(errors)
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
    left = [float(np.nansum((mixtures.peak_errors(one, runs) - (np.mean(errors) - factor)) ** 2)) for one in tried]
    return tried[int(np.argmin(left))]


SLACK_PARTS = (0.0, 0.5, 1.0)
"""Parts of missing memory that may be allocator slack; the rest is fixed."""

SLACK_STEP, MOST_SLACK = 0.1, 1.0
"""Step of the difference that says how peaks depend on the slack, and the largest slack that is learned."""


def _slack_of(stack: Stack, runs: Sequence[MeasuredRun], factor: float) -> float:
    """The slack that raises the runs' peaks by a factor (its logarithm) on average; 0 where no peak counts slack."""
    share = float(number_of(stack, "activation_share"))
    more = with_numbers(stack, {"activation_share": share + SLACK_STEP})
    slope = float(np.nanmean(mixtures.peak_errors(stack, runs) - mixtures.peak_errors(more, runs))) / SLACK_STEP
    return min(factor / slope, MOST_SLACK) if slope > 0.0 else 0.0


KEPT = 0.005
"""Relative difference from the hypothesis' number below which the runs said nothing of it."""


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "activation_share", "peaks_seen"):
        value = float(number_of(site.stack, field))
        is_kept = abs(value - float(number_of(site.chosen.stack, field))) <= KEPT * abs(value)
        key, value = _as_written(field, value)
        told = f"as {site.chosen.name}, {date}: own runs do not identify it" if is_kept else source
        groups.setdefault(GROUP_OF[field], {})[key] = {"value": value, "source": told}
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
    head += f"# {site.warning}.\n" if site.warning else ""
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


MOST_JOBS = 3
TENSOR_SIZES = (1, 2, 4, 8)
BATCH_FACTORS = (1, 2)
RECOMPUTES = (Recompute.NONE, Recompute.FULL)


def usual(cluster: Cluster) -> list[Reference]:
    """Usual jobs on the devices of a cluster, those that divide there."""
    found = []
    for one in table("software")["usual"]:
        workload = Workload(seq_length=one["seq_length"], global_batch_size=one["global_batch_size"])
        job = Job(load_model(one["model"]), replace(cluster, num_nodes=one["nodes"]), workload)
        rows = joined([Candidates.from_words(row) for row in one["rows"]])
        whole = degrees(rows, world=job.cluster.world, global_batch_size=job.workload.global_batch_size)
        rows = rows.take(np.flatnonzero(whole.is_whole & (rows.tp <= job.network.gpus_per_node)))
        if len(rows):
            found.append(Reference(job=job, table=rows))
    return found


def references(runs: Sequence[MeasuredRun]) -> list[Reference]:
    """The runs' own configurations, and for some of their jobs legal neighbours in tensor size, batch, recompute."""
    own = [mixtures.reference_of(run) for run in runs]
    jobs = list({(one.job.model, one.job.workload, one.job.cluster.num_nodes): one for one in own}.values())
    return own + [replace(one, table=table) for one in jobs[:MOST_JOBS] for table in _neighbours(one)]


def _neighbours(one: Reference) -> Iterator[Candidates]:
    """One table of the legal neighbours of a run, none where it has none."""
    row, model = one.table.row(0), one.job.model
    tables = []
    for tp, factor, recompute in product(TENSOR_SIZES, BATCH_FACTORS, RECOMPUTES):
        if model.num_kv_heads % tp or tp > one.job.network.gpus_per_node:
            continue
        batch = row["micro_batch_size"] * factor
        changed = row | {"tp": tp, "micro_batch_size": batch, "sequence_parallel": tp > 1}
        changed |= {"recompute": "none" if recompute is Recompute.NONE else "full", "recompute_num_layers": 0}
        table = Candidates.from_words(changed)
        whole = degrees(table, world=one.job.cluster.world, global_batch_size=one.job.workload.global_batch_size)
        if bool(np.all(whole.is_whole)):
            tables.append(table)
    if tables:
        yield joined(tables)
