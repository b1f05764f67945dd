"""Posterior over hypotheses and their numbers, given measured runs; a mixture of Gaussians over log-rates.

Inside a hypothesis the log-rate of a run is linear in the numbers' coordinates around its centre,

    y = f + m + J (x - x0) + g + u + e,   x ~ N(x0, S),   g ~ N(0, group error^2),   e ~ N(0, model error^2 + noise^2)

so that the update is closed (Bayesian linear regression). `m` is what first contact expects of software with a file, so
that a run as expected moves nothing. `g` is common to the runs of one model on one device, so that
ten runs of one model do not count as ten of different ones; `u` is a Gaussian process over their configurations, so
that errors of near ones are alike (`cost.confidence.uncertainty.likeness`). Both are coordinates like the numbers, and
what the runs say of them counts where rows of that model and device are projected: the share `heard` of it. Hypotheses
are weighted by their prior and by the marginal likelihood of the runs; each takes part twice, with free numbers and
with one factor alone. Likelihood and errors of runs have the tails of a Student's t: one run that is off must not
decide. Peaks of memory count in the weights through one factor per hypothesis. Without runs the prior's mixture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr

from primus_search.base.cores import one_blas_thread
from primus_search.cost.confidence.switch_evidence import shape_of
from primus_search.cost.confidence.uncertainty import MODEL_ERROR, MOE_FACTOR, likeness, places_of
from primus_search.cost.project import Projector
from primus_search.learning import hypotheses as software
from primus_search.learning.hypotheses import NUMBERS, Hypothesis
from primus_search.values.candidates import Candidates, Floats, Ints, joined
from primus_search.values.job import Job
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, overridden, own_settings

GROUP_ERROR = 0.06
"""Standard deviation of log(measured / projected) with the best numbers of the software of all runs of one model on one
device, beside that of one run (`MODEL_ERROR`); both are `MOE_FACTOR` times as large with experts. 90 % intervals of the
mixture then hold 96, 94 and 95 % of the other runs of 12 publishers after 1, 3 and 5 of their own, 2026-11-24
(docs/dev/learning_log.md)."""

LIKENESS = 0.15
"""Standard deviation of what near configurations of one model on one device share. Either half of twelve publishers
chooses it, with the errors above, among those that still tell one model's factor from another's (log), 2026-11-24."""

TAIL, ROUNDS = 3.0, 4
"""Degrees of freedom of a run's own error, and rounds of re-weighting: a run that no numbers explain counts less."""

DEGREES_OF_FREEDOM = 6.0
"""Of the Student's t in the weights."""

FAR = 0.7
"""Root mean square of log(measured / projected) at which a move to one run counts half; of n runs n times it."""

MEMORY_ERROR, MEMORY_FACTOR = 0.10, 0.15
"""Likewise of peaks: deviation of one peak, and of a factor common to all peaks of a software."""

NEGLIGIBLE = 0.05
"""Weight of a hypothesis over that of the first below which it is left out of projections."""

BISECTIONS = 40

_Of = TypeVar("_Of")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one model on one device, by the model's shape: logs rarely print its name."""

    shape: str
    device: str
    is_moe: bool

    @property
    def spread(self) -> float:
        """Standard deviations of its runs over those of a dense model's."""
        return MOE_FACTOR if self.is_moe else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedRows:
    """Groups of runs or candidates, and their places among configurations: (rows, coordinates)."""

    groups: tuple[RunGroup, ...]
    places: Floats

    @property
    def spreads(self) -> Floats:
        """Standard deviations of every row over those of a dense model's."""
        return np.array([group.spread for group in self.groups])

    def take(self, kept: Sequence[int]) -> "PlacedRows":
        """Some of the rows."""
        return PlacedRows(groups=tuple(self.groups[i] for i in kept), places=self.places[list(kept)])

    def in_common(self, runs: "PlacedRows") -> tuple[Floats, Floats]:
        """Which group of runs every row belongs to, as ones in (rows, groups), and the covariance with every run."""
        groups = tuple(dict.fromkeys(runs.groups))
        members = np.array([[float(row == group) for group in groups] for row in self.groups])
        members = members.reshape(len(self.groups), len(groups))
        own = np.array([[float(run == group) for group in groups] for run in runs.groups]).reshape(
            len(runs.groups), len(groups)
        )
        near = likeness(self.places, runs.places) * (members @ own.T) * np.outer(self.spreads, runs.spreads)
        return members, LIKENESS**2 * near


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Candidates of one job on which hypotheses are compared; `habits`: what the run itself sets in any stack."""

    job: Job
    table: Candidates
    settings: tuple[tuple[str, object], ...] = ()

    def on(self, stack: Stack) -> Job:
        """The job with another stack, the run's own settings on top."""
        cluster = overridden(replace(self.job.cluster, stack=stack), dict(self.settings))
        return replace(self.job, cluster=cluster)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """Of one hypothesis: log-rates of rows at its centre (rows,), and their slopes (rows, numbers)."""

    rates: Floats
    slopes: Floats


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
        weights = np.linalg.solve(_process(self.runs), near.T).T
        return np.concatenate([members, weights], axis=1), _process(rows) - weights @ near.T

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

    @property
    def variance(self) -> Floats:
        """Variance of every row's logarithm."""
        return np.asarray(self.weights @ (self.variances + (self.means - self.mean) ** 2))

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


def lines_of(stacks: Sequence[Stack], references: Sequence[Reference]) -> tuple[Lines, ...]:
    """Lines of every stack over the rows of all references; what differs in numbers alone is projected together."""
    together = _by_job(references)
    places = np.argsort(np.concatenate([places for _, places in together]), kind="stable")
    alike: dict[Stack, list[int]] = {}
    for i, stack in enumerate(stacks):
        alike.setdefault(software.without_numbers(stack), []).append(i)
    lines: dict[int, Lines] = {}
    for members in alike.values():
        jobs = [([one.on(stacks[i]) for i in members], one.table) for one, _ in together]
        found = [software.rates_and_slopes(own[0], [job.stack for job in own], table) for own, table in jobs]
        for place, parts in zip(members, zip(*found, strict=True), strict=True):
            rates, slopes = (np.concatenate(columns)[places] for columns in zip(*parts, strict=True))
            lines[place] = Lines(rates=rates, slopes=slopes)
    return tuple(lines[i] for i in range(len(stacks)))


def _by_job(references: Sequence[Reference]) -> list[tuple[Reference, Ints]]:
    """One reference per job with all rows on it, and the places of these rows among those of all references."""
    ends = np.cumsum([len(one.table) for one in references])
    found: list[tuple[Reference, list[Candidates], list[Ints]]] = []
    for one, end in zip(references, ends.tolist(), strict=True):
        places = np.arange(end - len(one.table), end)
        same = next((entry for entry in found if entry[0].settings == one.settings and entry[0].job == one.job), None)
        if same is None:
            found.append((one, [one.table], [places]))
        else:
            same[1].append(one.table)
            same[2].append(places)
    return [(replace(one, table=joined(tables)), np.concatenate(places)) for one, tables, places in found]


def group_of(job: Job) -> RunGroup:
    """The group of the runs of a job."""
    return RunGroup(shape=shape_of(job.model), device=job.accelerator.name, is_moe=job.model.is_moe)


def rows_of(references: Sequence[Reference]) -> PlacedRows:
    """Groups and places of the rows of all references."""
    places = [places_of(one.job, one.table) for one in references]
    groups = tuple(group_of(one.job) for one in references for _ in range(len(one.table)))
    return PlacedRows(groups=groups, places=np.concatenate(places) if places else np.zeros((0, 1)))


ALIKE = 1e-6
"""Share of a configuration's variance that two runs at one place do not have in common, so that covariances of runs
have an inverse."""


def _process(runs: PlacedRows) -> Floats:
    """Covariance of the errors of the runs' configurations."""
    _, near = runs.in_common(runs)
    return np.asarray(near + np.diag(ALIKE * (LIKENESS * runs.spreads) ** 2))


def log_rates(stack: Stack, references: Sequence[Reference]) -> Floats:
    """log(tokens/s/GPU) of the rows of all references on a stack."""
    return _logs(stack, references, lambda projector, table: projector.project(table).tokens_per_s_per_gpu)


def log_peaks(stack: Stack, references: Sequence[Reference]) -> Floats:
    """Logarithm of the bytes that the driver shows, of the rows of all references on a stack."""
    return _logs(stack, references, lambda projector, table: projector.memory(table).driver)


def _logs(stack: Stack, references: Sequence[Reference], figure: Callable[[Projector, Candidates], Floats]) -> Floats:
    found = np.empty(sum(len(one.table) for one in references))
    for one, places in _by_job(references):
        found[places] = figure(Projector(one.on(stack)), one.table)
    return np.log(found)


def reference_of(run: MeasuredRun) -> Reference:
    """A run's own configuration and habits."""
    return Reference(job=run.job, table=run.candidates, settings=tuple(own_settings(run).items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What every hypothesis projects for measured runs.

    lines   of each hypothesis, over all runs
    peaks   log(measured / projected) of the peaks on each hypothesis, NaN for a run without one: (hypotheses, runs)
    """

    hypotheses: tuple[Hypothesis, ...]
    runs: tuple[MeasuredRun, ...]
    lines: tuple[Lines, ...]
    peaks: Floats

    def take(self, places: Sequence[int]) -> "Evidence":
        """That of some of the runs."""
        rows = np.array(places, np.int64)
        return replace(
            self,
            runs=tuple(self.runs[i] for i in places),
            lines=tuple(Lines(rates=line.rates[rows], slopes=line.slopes[rows]) for line in self.lines),
            peaks=self.peaks[:, rows],
        )


def evidence_of(hypotheses: tuple[Hypothesis, ...], runs: Sequence[MeasuredRun]) -> Evidence:
    """Every run projected on every hypothesis."""
    empty = Lines(rates=np.zeros(0), slopes=np.zeros((0, len(NUMBERS))))
    references = [reference_of(run) for run in runs]
    return Evidence(
        hypotheses=hypotheses,
        runs=tuple(runs),
        lines=lines_of([h.stack for h in hypotheses], references) if runs else (empty,) * len(hypotheses),
        peaks=np.array([peak_errors(h.stack, runs) for h in hypotheses]).reshape(len(hypotheses), len(runs)),
    )


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
    joint = [block_diag(h.covariance, _of_groups(rows), _process(rows)) for h in hypotheses]
    shift = shift_of(rated.runs)
    if rated.runs:
        measured, error = np.log([run.tokens_per_s_per_gpu for run in rated.runs]), own_error(rated.runs)
        with one_blas_thread():
            for i, line in enumerate(rated.lines):
                slopes = np.concatenate([line.slopes, members, np.eye(len(rated.runs))], axis=1)
                residuals = measured - line.rates - shift
                found, joint[i], likelihood = _regress(joint[i], slopes, residuals, error)
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


def own_error(runs: Sequence[MeasuredRun]) -> Floats:
    """Variance of what each run has of its own: of its configuration alone, and noise between its iterations."""
    noise = np.nan_to_num([run.measured.noise for run in runs])
    return np.asarray(noise**2 + np.square([MODEL_ERROR * group_of(run.job).spread for run in runs]))


def heard(runs: Sequence[MeasuredRun], residuals: Floats) -> float:
    """Share of a move to the runs that counts: z / (1 + z), with z the variance that log(measured / projected) of the
    runs shows over that of runs of a cluster that is as expected; less where it is far for so few runs, which is of a
    configuration more often than of the cluster (docs/dev/learning_log.md, 2026-11-29)."""
    usual = own_error(runs) + np.square([GROUP_ERROR * group_of(run.job).spread for run in runs])
    shown = float(np.sum(residuals**2 / usual))
    count = max(len(runs), 1)
    far = float(np.sum(residuals**2)) / count / (FAR * count) ** 2
    return shown / (1.0 + shown) / (1.0 + far)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedErrors:
    """What runs leave of a stack: log(measured / projected) of every group, of every run's configuration, and the rest.

    own     weight of every run in the logarithm of the rate at its own place; `places`: where that is
    """

    groups: Floats
    own: Floats
    places: Floats
    left: Floats


def shared_errors(runs: Sequence[MeasuredRun], errors: Floats, unheard: Floats | float = 0.0) -> SharedErrors:
    """What groups and near configurations have in common of log(measured / projected) of the runs on a stack; unheard:
    part of the errors that teaches nothing (`heard`)."""
    rows = rows_of([reference_of(run) for run in runs])
    members, process = rows.in_common(rows)[0], _process(rows)
    if not runs:
        return SharedErrors(groups=errors, own=errors, places=rows.places, left=errors)
    before, slopes = block_diag(_of_groups(rows), process), np.concatenate([members, np.eye(len(runs))], axis=1)
    found, _, _ = _regress(before, slopes, errors - unheard, own_error(runs))
    groups, near = np.split(found, [members.shape[1]])
    own = np.linalg.solve(process, near) * (LIKENESS * rows.spreads) ** 2
    return SharedErrors(groups=groups, own=own, places=rows.places, left=errors - members @ groups - near)


def _of_groups(rows: PlacedRows) -> Floats:
    """Covariance of the errors of the runs' groups."""
    return np.diag([(GROUP_ERROR * group.spread) ** 2 for group in dict.fromkeys(rows.groups)])


def _regress(before: Floats, slopes: Floats, residuals: Floats, plain: Floats) -> tuple[Floats, Floats, float]:
    """Coordinates and covariance after the runs, and their marginal log-likelihood (Student's t tails).

    before: covariance of the coordinates without the runs. residuals: measured less projected log-rates of the runs.
    plain: variance of each run's own error.
    """
    gain = before @ slopes.T
    prior = slopes @ gain
    error = plain
    for _ in range(ROUNDS):
        left = residuals - prior @ np.linalg.solve(prior + np.diag(error), residuals)
        error = plain * (TAIL + left**2 / plain) / (TAIL + 1.0)
    total = prior + np.diag(error)
    solved = np.linalg.solve(total, np.column_stack([residuals, gain.T]))
    covariance = before - gain @ solved[:, 1:]
    distance, determinant = float(residuals @ solved[:, 0]), np.linalg.slogdet(total)[1]
    return gain @ solved[:, 0], covariance, _log_student(distance, determinant, len(residuals))


def _log_student(distance: float, log_determinant: float, runs: int) -> float:
    nu = DEGREES_OF_FREEDOM
    return float(-0.5 * log_determinant - 0.5 * (nu + runs) * np.log1p(distance / nu))


def _memory_likelihood(errors: Floats) -> float:
    """Log-likelihood of the errors of measured peaks; 0 without any."""
    if not len(errors):
        return 0.0
    total = MEMORY_FACTOR**2 + np.diag(np.full(len(errors), MEMORY_ERROR**2))
    return _log_student(float(errors @ np.linalg.solve(total, errors)), np.linalg.slogdet(total)[1], len(errors))


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
    for one, places in _by_job([reference_of(runs[i]) for i in counted]):
        memory = Projector(one.on(stack)).memory(one.table)
        for row, place in enumerate(places.tolist()):
            measured = runs[counted[place]].measured
            errors[counted[place]] = np.log(measured.peak_bytes / memory.counted(measured.peak_kind)[row])
    return errors
