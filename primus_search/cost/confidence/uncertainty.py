"""How far off a projected rate may be: the band in which nine of ten left-out runs of the same stack and regime lay.

    low = projected * band.low,  high = projected * band.high

Bands come from the stack's YAML (`errors:`), where `primus_search.measure.calibrate` wrote the quantiles of measured
over projected of runs whose source and model took no part in the fit: one per regime (dense or MoE, architecture,
precision) that the stack was seen in, and a wider one per family for other regimes. A stack that had to be assumed, or
that nobody ran on such a model, has the still wider bands of runs projected with a stack that is not theirs. Where a
stack has none, `UNKNOWN` says so honestly. Two candidates whose rates differ by less than the noise between identical
runs are a tie, whatever the ranking says.

Those bands hold for clusters of publishers whose runs are in a fit. On another one (`cluster.site`), before its own
runs, the rate to expect is shifted and its band has the error of the site beside that of the software:

    log(measured / projected) ~ log(mean_ratio) + t(s^2)
    s^2 = site^2 + group^2 + configuration^2 + (stack_share half width of the stack's band)^2
        + (host host's share of the step)^2 + (exchange exposed share)^2 + device^2 where the fits lack the device
    half a 90 % band = quantile s, one quantile where the software is named, one where nothing but a configuration is

Software that nobody named has its mixture over stacks around a component of that width, with `software`^2 for the
stack's. Rows of one ranking share site and group: their ratio has the configuration's error alone (`comparison`).

After own runs of a model on a device the error of a row there is a Gaussian process over configurations, so that a row
near a run has much of what the stack leaves of that run (`run_ratio`):

    log(expected / projected) = log(site_ratio) + sum over runs of log(ratio) * likeness(row, run)
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from primus_search.cost.confidence.switch_evidence import shape_of
from primus_search.cost.parts.mixer_operations import unmeasured_mixers
from primus_search.cost.projection import Projection, Step
from primus_search.values.candidates import Bools, Candidates, Floats, Fp8, Ints, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import ErrorBand, OwnRun, SiteErrors, Stack
from primus_search.values.model import Model

UNKNOWN = ErrorBand(low=0.7, high=1.3, runs=0.0)
"""Band of a regime without runs: the 90th percentile error of the best public tools (docs/dev/fidelity_log.md)."""

TIE = 0.04
"""Relative difference below which two runs cannot be told apart: eight repeats of one job on MI355X spread 3.7 %, the
same MLPerf job 5 % across servers (AMD-AGI/Primus logs; MLPerf Training v5.1)."""


RUN_NOISE = 0.02
"""Relative standard deviation of the rate between identical runs: half of `TIE`."""

MODEL_ERROR, MOE_FACTOR = 0.05, 1.5
"""Standard deviation of log(measured / projected) of one configuration beside what near ones share, with the best
numbers of the software, and how many times as large it is with experts (`learning.inference`)."""


def configuration_error(is_moe: bool) -> float:
    """Standard deviation of what the error of one configuration has of its own, with or without experts."""
    return MODEL_ERROR * (MOE_FACTOR if is_moe else 1.0)


class Knowledge(StrEnum):
    """What is known of the cluster that a projection is for; the reader of a figure is in one of the three."""

    FIRST_CONTACT = "first contact"
    VENDOR = "vendor"
    OWN_RUNS = "own runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Rate to expect, its 90 % interval and the number of runs like it that it rests on, per candidate."""

    expected: Floats
    low: Floats
    high: Floats
    runs: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Shares of a step that depend on a cluster more than on its devices, per candidate.

    host      launches and the stack's fixed time
    exchange  exchanges between devices that no compute hides
    """

    host: Floats
    exchange: Floats

    @classmethod
    def of(cls, step: Step) -> "Exposed":
        """Those of a projected step."""
        exchange = step.tensor_comm + step.context_comm + step.expert_comm + step.shard_comm + step.gradient_comm
        return cls(host=(step.launch + step.overhead) / step.total, exchange=exchange / step.total)

    def take(self, rows: Bools) -> "Exposed":
        """Those of some candidates."""
        return Exposed(host=self.host[rows], exchange=self.exchange[rows])


NOTHING = Exposed(host=np.zeros(1), exchange=np.zeros(1))
"""A step of compute alone."""


UNKNOWN_MEMORY = ErrorBand(low=0.75, high=1.35, runs=0.0)
"""Band of peaks: public tools project 24 to 48 % too little of unmodelled software (docs/dev/fidelity_log.md)."""

MEMORY = "memory"
"""Errors of peaks by a site's own runs (`learn`)."""

ASSUMED = "assumed_"
"""Before the name of a family: errors where this stack was assumed and another one ran."""


PRECISIONS = {Fp8.NONE: "bf16", Fp8.NVFP4: "fp4", Fp8.MXFP4: "fp4"}
"""Precisions that errors are told apart by; what is not named here is fp8."""


def regime(model: Model, cluster: Cluster, fp8: int) -> str:
    """What tells errors apart beside the stack: `moe/sm100/fp8`."""
    return f"{model.family}/{cluster.accelerator.arch}/{PRECISIONS.get(Fp8(fp8), 'fp8')}"


def own_regime(shape: str, device: str) -> str:
    """What the error band of a site's own runs of one model on one device is called."""
    return f"{shape} on {device}"


def band(cluster: Cluster, model: Model, fp8: int) -> ErrorBand:
    """The error band of a candidate's regime on a cluster's stack, or the next wider one that there is.

    A model with mixers whose kernels nobody measured, and a cluster with numbers of the user's own, have the widest of
    all of them, and no runs.
    """
    family, errors = model.family, cluster.stack.errors
    known = () if cluster.stack.is_assumed else (regime(model, cluster, fp8), family)
    names = (own_regime(shape_of(model), cluster.accelerator.name), *known, ASSUMED + family)
    found = supposed_band(cluster, model) or next((errors[name] for name in names if name in errors), UNKNOWN)
    if not unmeasured_mixers(model) and not cluster.is_hypothetical:
        return found
    bands = [UNKNOWN, found, *(errors[name] for name in names if name in errors)]
    device = cluster.accelerator
    low, high = min(b.low for b in bands) * device.spread_low, max(b.high for b in bands) * device.spread_high
    return ErrorBand(low=low, high=high, runs=0.0)


def supposed_band(cluster: Cluster, model: Model) -> ErrorBand | None:
    """Band of the mixture over what assumed software may be, a site's errors included, on a cluster that is not known;
    None elsewhere, and where the stack's file has none for the architecture."""
    if not cluster.stack.is_assumed or knowledge(cluster) is not Knowledge.FIRST_CONTACT:
        return None
    return cluster.stack.errors.get(f"{ASSUMED}{model.family}/{cluster.accelerator.arch}")


def knowledge(cluster: Cluster) -> Knowledge:
    """Whether runs of the cluster were learned from, it is one that the fits have seen, or neither."""
    learned = cluster.stack.errors if MEMORY in cluster.stack.errors else {}
    if any(found.runs > 0.0 for found in learned.values()):
        return Knowledge.OWN_RUNS
    return Knowledge.VENDOR if cluster.site is None else Knowledge.FIRST_CONTACT


def site_ratio(cluster: Cluster, model: Model) -> float:
    """Rate to expect over the projected one: at first contact the shift of sites, of assumed software the middle of
    its mixture; after own runs of such a model the middle of the band that they left, which one stack does not reach in
    every row; 1 elsewhere."""
    known, supposed = knowledge(cluster), supposed_band(cluster, model)
    if supposed is not None:
        return float(np.sqrt(supposed.low * supposed.high))
    if known is Knowledge.OWN_RUNS:
        found = band(cluster, model, Fp8.NONE)
        is_known = not unmeasured_mixers(model) and not cluster.is_hypothetical
        return float(np.sqrt(found.low * found.high)) if is_known else 1.0
    return 1.0 if cluster.site is None or known is Knowledge.VENDOR else cluster.site.mean_ratio


REACH = 2.0
"""Distance (`places_of`) at which the correlation of the errors of two configurations of one model on one device falls
to exp(-1/2): docs/dev/learning_log.md, 2026-11-24."""


def places_of(job: Job, table: Candidates) -> Floats:
    """Where every row lies among configurations of its model: doublings of degrees, micro-batch, devices and sequence
    length, and steps of what is recomputed, sharded and of low precision; (rows, coordinates)."""
    ones = np.ones(len(table))
    sizes = (table.tp, table.pp, table.vpp, table.cp, table.ep, table.micro_batch_size)
    whole = (ones * job.cluster.world, ones * job.workload.seq_length)
    is_full = table.recompute & Recompute.FULL > 0
    steps = (is_full, (table.recompute > 0) & ~is_full, table.fp8 > 0, table.sharding >= Sharding.FSDP2)
    return np.column_stack([*(np.log2(size) for size in (*sizes, *whole)), *steps]).astype(np.float64)


def likeness(rows: Floats, runs: Floats) -> Floats:
    """Correlation of the errors of rows and runs of one model on one device, by their places: (rows, runs)."""
    squares = ((rows[:, None] - runs[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-0.5 * squares / REACH**2))


def _own_runs(cluster: Cluster, model: Model) -> list[OwnRun]:
    mine = own_regime(shape_of(model), cluster.accelerator.name) if cluster.stack.own_runs else ""
    return [run for run in cluster.stack.own_runs.values() if run.regime == mine]


def run_ratio(job: Job, table: Candidates) -> Floats:
    """What own runs of the model near every row say of its rate, over that of all rows of the model (`site_ratio`)."""
    runs = _own_runs(job.cluster, job.model)
    if not runs:
        return np.ones(len(table))
    ratios = np.log([run.ratio for run in runs])
    return np.asarray(np.exp(likeness(places_of(job, table), np.array([run.place for run in runs])) @ ratios))


def most_ratio(cluster: Cluster, model: Model) -> float:
    """A bound of `site_ratio` * `run_ratio` of any row."""
    return site_ratio(cluster, model) * math.prod(max(run.ratio, 1.0) for run in _own_runs(cluster, model))


def site_band(cluster: Cluster, model: Model, found: ErrorBand, exposed: Exposed) -> tuple[Floats, Floats]:
    """Low and high ends of measured / projected per candidate: the band of a stack, and on a site that is not known one
    around the rate to expect there, as wide as all that is not known of site, stack and exposed shares."""
    ones = np.ones(len(exposed.host))
    if cluster.site is None or knowledge(cluster) is not Knowledge.FIRST_CONTACT:
        return found.low * ones, found.high * ones
    site = cluster.site.of(cluster.stack)
    half = 0.5 * math.log(found.high / found.low)
    if supposed_band(cluster, model):
        width = np.hypot(half, site.quantile * _unseen_error(site, model, exposed))
    else:
        width = site_half_width(site, model, exposed, half, is_named=not cluster.stack.is_assumed)
    if unmeasured_mixers(model) or cluster.is_hypothetical:
        width = np.maximum(width, half)
    middle = site_ratio(cluster, model)
    return middle * np.exp(-width), middle * np.exp(width)


def comparison(cluster: Cluster, model: Model) -> float:
    """Half a 90 % band of the ratio of two rows of one ranking, which share the error of site and group: 0.1 = 10 %.

    On a known cluster the noise between two identical runs.
    """
    site = cluster.site
    if site is None:
        return TIE
    low, high = site_band(cluster, model, band(cluster, model, Fp8.NONE), NOTHING)
    share = site.configuration**2 / (site.site**2 + site.group**2 + site.configuration**2)
    return math.expm1(0.5 * math.log(float(high[0] / low[0])) * math.sqrt(2.0 * share))


def site_half_width(
    site: SiteErrors, model: Model, exposed: Exposed = NOTHING, stack_half: float = 0.0, *, is_named: bool = True
) -> Floats:
    """Half a 90 % band in logarithms of the error of one run per candidate.

    stack_half: half the band of the stack, in logarithms, on clusters that the fits have seen. is_named: whether the
    software was named, so that the stack's band and not `software` is its error.
    """
    stack = site.stack_share * stack_half if is_named else site.software
    fixed = math.sqrt(site.site**2 + site.group**2 + site.configuration**2 + stack**2)
    return np.asarray(site.quantile * np.hypot(fixed, _unseen_error(site, model, exposed)))


def _unseen_error(site: SiteErrors, model: Model, exposed: Exposed) -> Floats:
    """Standard deviation of what exposed exchanges, the host and a rate that no run identified add."""
    device = site.device if model.family in site.new_families else 0.0
    shares = np.hypot(site.exchange * exposed.exchange, site.host * exposed.host)
    return np.asarray(np.hypot(device, shares))


def is_doubtful(stack: Stack, model: Model) -> bool:
    """Whether the stack is assumed, neither peaks of it nor runs with such a model were seen, or it was learned."""
    runs = sum(found.runs for regime, found in stack.errors.items() if regime.split("/")[0] == model.family)
    return stack.is_assumed or MEMORY in stack.errors or (runs <= 0.0 and stack.memory.peaks_seen <= 0.0)


NAMED = 0.5
"""Of the doubt about memory of software nobody named, what is left when it is: its file says what it keeps. Fourteen
peaks of such stacks in `unseen_runs_4.csv` are 0.82 to 1.24 of what is projected (docs/memory.md)."""


def memory_error(cluster: Cluster, model: Model) -> ErrorBand | None:
    """Where measured / projected bytes lie on a site that is not known or a stack that is doubtful; None for a stack
    that was named and seen on a cluster that is known."""
    found, site = _stack_memory_error(cluster.stack, model), cluster.site
    if site is None or knowledge(cluster) is not Knowledge.FIRST_CONTACT:
        return found
    found = ErrorBand(low=1.0, high=1.0, runs=0.0) if found is None else found
    return replace(found, low=min(found.low, site.memory_low), high=max(found.high, site.memory_high))


def _stack_memory_error(stack: Stack, model: Model) -> ErrorBand | None:
    if MEMORY in stack.errors:
        return stack.errors[MEMORY]
    if not is_doubtful(stack, model):
        return None
    found = stack.errors.get(ASSUMED + "memory", UNKNOWN_MEMORY)
    return found if stack.is_assumed else replace(found, low=found.low**NAMED, high=found.high**NAMED)


def interval(cluster: Cluster, model: Model, fp8: Ints, rate: Floats, exposed: Exposed) -> Interval:
    """The 90 % interval of a projected rate (tokens/s, tokens/s/GPU, MFU); fp8: the candidates' recipes."""
    values = np.asarray(rate, np.float64)
    codes = np.broadcast_to(fp8, values.shape)
    low, high, runs = np.empty_like(values), np.empty_like(values), np.empty_like(values)
    for code in np.unique(codes).tolist():
        rows, found = codes == code, band(cluster, model, code)
        lowest, highest = site_band(cluster, model, found, exposed.take(rows))
        low[rows], high[rows], runs[rows] = values[rows] * lowest, values[rows] * highest, found.runs
    return Interval(expected=values * site_ratio(cluster, model), low=low, high=high, runs=runs)


def ties_with_best(rate: Floats, among: Bools | bool = True) -> Bools:
    """Which candidates one run each does not separate from the fastest one of those in `among`."""
    values = np.asarray(rate, np.float64)
    mask: Bools = values >= values.max(initial=0.0, where=among) * (1.0 - TIE)
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How far a table of projections may be trusted, per candidate.

    expected         tokens/s/GPU to expect on this cluster
    low, high        90 % interval of tokens/s/GPU
    runs             runs of the stack in its regime, left out of the fit, that the interval rests on
    fits             probability that the candidate runs in device memory
    ties_with_best   it cannot be told from the fastest of the table by running both once
    knowledge        what is known of the cluster
    comparison       half a 90 % band of the ratio of two rows, which share the error of the site (`comparison`)
    """

    expected: Floats
    low: Floats
    high: Floats
    runs: Floats
    fits: Floats
    ties_with_best: Bools
    knowledge: Knowledge
    comparison: float


def confidence(job: Job, table: Candidates, p: Projection, fits: Floats) -> Confidence:
    """What is known of every row beside its figures; `fits`: probability of fitting (`cost.confidence.fit`)."""
    cluster, model, rate = job.cluster, job.model, p.tokens_per_s_per_gpu
    found, near = interval(cluster, model, table.fp8, rate, Exposed.of(p.step)), run_ratio(job, table)
    return Confidence(
        expected=found.expected * near,
        low=found.low * near,
        high=found.high * near,
        runs=found.runs,
        fits=fits,
        ties_with_best=ties_with_best(rate),
        knowledge=knowledge(cluster),
        comparison=comparison(cluster, model),
    )
