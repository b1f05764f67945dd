"""Errors of a cluster that nobody has seen, from whole publishers left out of every fit.

    log(measured / projected) = shift + site + group + configuration + stack + device + exchange + host

Every run is projected by numbers that its publisher has no part in: refitted to first order where runs of theirs are in
the fits, as shipped elsewhere, by the mixture over all stacks where nobody described the software. The standard
deviation of an error follows from what its row stands on (`cost.confidence.uncertainty.site_half_width`); its parts are
those of largest likelihood of single errors with the tails of a Student's t, around each of the stacks that software
without a file may be, every publisher alike, near-duplicates once. How many of them half a band has is `conformal`:
from strangers' runs, and for software of which nothing but a configuration is known from left-out stack files and from
strangers' software that no file describes, without its words. The shift is of publishers who made neither device
nor software (all but `makers:` of the file); makers have one of their own. How much of the rest site, group and
configuration have follows from pairs of runs of one publisher. The table gives each publisher the band made of the
others. Runs that their table doubts (`q=doubtful`) teach nothing; figures are given without them and with them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from primus_search.base.errors import InputError, Problem
from primus_search.base.positions import places
from primus_search.cost.confidence.fit import FITS, OUT_OF_MEMORY
from primus_search.cost.confidence.uncertainty import Exposed, band, site_half_width
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.validate.score_runs import ScoredRun, project_runs
from primus_search.evidence.validate.scores import duplicate_weights, quantile, score
from primus_search.evidence.validate.undescribed import Undescribed, undescribed_mixtures
from primus_search.files.evidence_files import load_sites
from primus_search.files.source import read
from primus_search.learning.inference.projected_runs import reference_of
from primus_search.learning.inference.shared_errors import group_of
from primus_search.values.candidates import Bools, Floats, Ints
from primus_search.values.machine.stack import SiteErrors
from primus_search.values.measured_run import MeasuredRun
from tools.fit.conformal import conformal_quantile, least_quantile
from tools.fit.supposed_software import copies, made_with, stack_without_source
from tools.fit.training_parameters import is_informative
from tools.fit.training_run import SPLITS, read_cases, shipped_fit

DEGREES = 5.0
"""Of the Student's t: log-likelihoods with 4 and 6 lie within 2 of each other, 2026-11-23."""

PARTS = ("rest", "stack_share", "software", "exchange", "host")
"""Standard deviations that single errors tell; `rest` is what site, group and configuration have together."""

SHARED = ("site", "group", "configuration")
FITTED = ("mean_ratio", *SHARED, *PARTS[1:], "quantile", "quantile_unnamed")

LEAST, MOST = 0.01, 4.0
"""Bounds of the fitted numbers."""

HALF_HEARD = 2.0
"""Distinct runs of a publisher that count half as much as any number of them."""

MOST_DEVIATIONS = 3.0
"""Standard deviations beyond which an error counts no more in shares of variance."""

DOUBTED = "q=doubtful"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A run and log(measured / projected) without its publisher.

    mixture     of software that nobody described
    exposed     shares of its step
    stack_half  half the band of its stack in logarithms
    """

    run: MeasuredRun
    error: float
    mixture: Undescribed | None
    exposed: Exposed
    stack_half: float

    @classmethod
    def of(cls, row: ScoredRun, mixture: Undescribed | None) -> "Seen":
        """A projected run, by the mixture where nobody described its software; no shift of an earlier fit is in it."""
        run, rate = row.run, float(row.projection.tokens_per_s_per_gpu[0])
        if mixture is not None:
            rate = mixture.rate(run.model, load_sites().errors.of(run.cluster.stack)).rate
        usual, exposed = band(run.cluster, run.model, int(run.candidates.fp8[0])), Exposed.of(row.projection.step)
        half = 0.5 * float(np.log(usual.high / usual.low))
        error = float(np.log(run.tokens_per_s_per_gpu / rate))
        return cls(run=run, error=error, mixture=mixture, exposed=exposed, stack_half=half)

    @property
    def publisher(self) -> str:
        return self.run.provenance.publisher

    @property
    def is_doubted(self) -> bool:
        """Whether its table doubts the measurement."""
        return DOUBTED in self.run.provenance.notes

    @property
    def features(self) -> Floats:
        """What each of `PARTS` is times in the standard deviation of an error."""
        named = self.mixture is None
        shares = (float(self.exposed.exchange[0]), float(self.exposed.host[0]))
        return np.array([1.0, self.stack_half if named else 0.0, float(not named), *shares])

    @property
    def held_deviation(self) -> float:
        """Standard deviation of what is not fitted here: the device's rate, its transport."""
        site = load_sites().on(self.run.cluster.fabric, replace(load_sites().errors, exchange=0.0))
        is_new = self.run.family in site.new_families
        return float(np.hypot(site.device * is_new, site.exchange * self.exposed.exchange[0]))

    @property
    def stacks(self) -> Floats:
        """Of each stack that the software may be its probability and its log-rate over the one that the error is of."""
        if self.mixture is None:
            return np.array([[1.0, 0.0]])
        middle = np.log(self.run.tokens_per_s_per_gpu) - self.error
        return np.column_stack([self.mixture.weights, self.mixture.logs - middle])

    def ends(self, errors: SiteErrors) -> tuple[float, float, float]:
        """Logarithms of measured / projected at both ends of the 90 % band, and of what is to be expected."""
        errors = load_sites().on(self.run.cluster.fabric, errors).of(self.run.cluster.stack)
        if self.mixture is not None:
            mixed = self.mixture.rate(self.run.model, errors, self.exposed)
            return float(np.log(mixed.low / mixed.rate)), float(np.log(mixed.high / mixed.rate)), 0.0
        middle = float(np.log(errors.mean_ratio))
        half = float(site_half_width(errors, self.run.model, self.exposed, self.stack_half)[0])
        return middle - half, middle + half, middle

    def least_quantile(self, errors: SiteErrors) -> float:
        """The least quantile whose band holds the run."""

        def holds(quantile: float) -> bool:
            low, high, _ = self.ends(replace(errors, quantile=quantile, quantile_unnamed=quantile))
            return low <= self.error <= high

        return least_quantile(holds)


def rated_runs(fitted: Sequence[MeasuredRun], others: Sequence[Path]) -> dict[tuple[str, int], MeasuredRun]:
    """The fitted runs and the rated ones of other tables, once each, by their places.

    Raises `InputError` for a run without a publisher.
    """
    runs = {run.place: run for run in fitted}
    places = {(Path(table).name, line) for table, line in runs}
    for path in others:
        for run in measured_table(path).runs:
            is_new = (Path(run.place[0]).name, run.place[1]) not in places
            if is_new and run.has_rate and not run.ran_out:
                runs[run.place] = run
    nameless = [run.place for run in runs.values() if not run.provenance.publisher]
    if nameless:
        raise InputError(
            [Problem(f"{table}:{line} @ publisher", "is empty; runs are left out by it") for table, line in nameless]
        )
    return runs


def with_mixtures(runs: Sequence[MeasuredRun]) -> tuple[list[ScoredRun], dict[tuple[str, int], Undescribed]]:
    """Projected runs, and the mixture over stacks of those whose software nobody described, by their places."""
    rows, _ = project_runs(list(runs))
    unknown = [row.run for row in rows if row.run.cluster.stack.is_assumed]
    mixed = undescribed_mixtures([reference_of(run) for run in unknown])
    return rows, dict(zip([run.place for run in unknown], mixed, strict=True))


def seen(trained: Path, others: Sequence[Path]) -> list[Seen]:
    """Every rated run of the tables, once."""
    fitted = read_cases(trained)
    found = shipped_fit(fitted)
    without = dict(zip([run.place for run in fitted], found.left_out(SPLITS["publisher"]), strict=True))
    runs = rated_runs(fitted, others)
    rows, mixtures = with_mixtures(list(runs.values()))
    every = (Seen.of(row, mixtures.get(row.run.place)) for row in rows)
    known = {place: float(-without[place]) for place in without if is_informative(runs[place])}
    return [replace(one, error=known.get(one.run.place, one.error)) for one in every]


def verdicts(tables: Sequence[Path], makers: Sequence[str]) -> str:
    """How many of strangers' configurations that ran out of memory are said to fit, and of those that ran not to."""
    runs = {(Path(run.place[0]).name, run.place[1]): run for path in tables for run in measured_table(path).runs}
    rows, _ = project_runs([run for run in runs.values() if not is_maker(run.provenance.publisher, makers)])
    out, ran = ([row.verdict for row in rows if row.run.ran_out == did] for did in (True, False))
    return f"{out.count(FITS)} of {len(out)} that ran out FITS; {ran.count(OUT_OF_MEMORY)} of {len(ran)} that ran OOM"


TRAINER, WORDLESS = "stack ", "no words: "
"""Before the name of a stack whose runs are projected as if no file described it, and of a publisher whose runs of
software without a file are as if no word said what it was."""


def left_out_trainers(rows: Sequence[Seen], makers: Sequence[str]) -> list[Seen]:
    """Runs as software of which nothing but a configuration is known: those of every stack file, near-duplicates once,
    by the mixture over the others, and strangers' of software without a file. Their publisher says which."""
    groups: dict[str, dict[object, MeasuredRun]] = {}
    for row in rows:
        if row.is_doubted:
            continue
        if row.mixture is None and is_informative(row.run):
            groups.setdefault(TRAINER + row.run.cluster.stack.name, {})[row.run.duplicate_key] = row.run
        if row.mixture is not None and not is_maker(row.publisher, makers):
            groups.setdefault(WORDLESS + row.publisher, {})[row.run.place] = row.run
    found = []
    for name, distinct in sorted(groups.items()):
        supposed = [made_with(run, stack_without_source(run)) for run in distinct.values()]
        projected, _ = project_runs(supposed)
        without = copies(name.removeprefix(TRAINER)) if name.startswith(TRAINER) else ()
        mixtures = undescribed_mixtures([reference_of(one.run) for one in projected], without)
        for one, mixture in zip(projected, mixtures, strict=True):
            provenance = replace(one.run.provenance, publisher=name)
            found.append(Seen.of(replace(one, run=replace(one.run, provenance=provenance)), mixture))
    return found


def by_publisher(rows: Sequence[Seen]) -> dict[str, list[Seen]]:
    """The runs of every publisher."""
    return {name: [rows[i] for i in own] for name, own in sorted(places(row.publisher for row in rows).items())}


def is_maker(publisher: str, makers: Sequence[str]) -> bool:
    """Whether a publisher made the device or the software of its runs."""
    return publisher.startswith(tuple(makers))


def fitted_errors(publishers: Mapping[str, Sequence[Seen]], makers: Sequence[str], start: SiteErrors) -> SiteErrors:
    """Standard deviations of largest likelihood and the shift of publishers who are no makers; the rest stays."""
    each = {name: rows for name, rows in publishers.items() if not name.startswith(WORDLESS)}
    certain = {name: [row for row in rows if not row.is_doubted] for name, rows in each.items()}
    every = [_Distinct.of(rows, is_maker(name, makers)) for name, rows in certain.items() if rows]
    whole = _Distinct(
        **{part.name: np.concatenate([getattr(one, part.name) for one in every]) for part in fields(_Distinct)}
    )
    of, firsts = np.repeat(np.arange(len(whole.errors)), whole.counts), np.cumsum(whole.counts) - whole.counts
    (chances, middles), is_named = whole.stacks.T, whole.features[:, 2] == 0.0
    is_theirs = whole.is_makers & is_named
    by_part = np.column_stack([is_theirs, ~is_theirs, whole.features[:, 1:]])

    def scales(x: Floats) -> Floats:
        """Standard deviation of every error; x: logarithms of makers' rest and of `PARTS`."""
        return np.asarray(np.sqrt(by_part**2 @ np.exp(2.0 * x) + whole.held**2))

    def cost(x: Floats) -> float:
        found = scales(x[2:])
        left = whole.errors - np.where(is_named, np.where(whole.is_makers, x[1], x[0]), 0.0)
        tails = (1.0 + ((left[of] - middles) / found[of]) ** 2 / DEGREES) ** (-0.5 * (DEGREES + 1.0))
        likelihood = np.log(np.add.reduceat(chances * tails, firsts) / found)
        return float(-x[3] - (whole.weights * likelihood).sum())

    first = np.array([0.0, 0.0, *np.full(len(PARTS) + 1, np.log(0.1))])
    bounds = [(-1.0, 1.0)] * 2 + [(np.log(LEAST), np.log(MOST))] * (len(PARTS) + 1)
    x = minimize(cost, first, method="L-BFGS-B", bounds=bounds).x
    rest, *others = np.exp(x[3:]).tolist()
    ends = np.cumsum([len(one.errors) for one in every])[:-1]
    spreads = np.add.reduceat(chances * middles**2, firsts) - np.add.reduceat(chances * middles, firsts) ** 2
    shares = _shares(every, np.split(np.sqrt(scales(x[2:]) ** 2 + spreads), ends))
    return replace(
        start,
        mean_ratio=float(np.exp(x[0])),
        **dict(zip(PARTS[1:], others, strict=True)),
        **{name: rest * float(np.sqrt(share)) for name, share in zip(SHARED, shares, strict=True)},
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Distinct:
    """Of one publisher's runs, near-duplicates as one: mean errors, what each stands on, weights, how many stacks each
    may be of, these one run after the other (`Seen.stacks`), and which runs are of one group."""

    errors: Floats
    held: Floats
    features: Floats
    is_makers: Bools
    weights: Floats
    counts: Ints
    stacks: Floats
    groups: Ints

    @classmethod
    def of(cls, rows: Sequence[Seen], is_makers: bool) -> "_Distinct":
        alike = places(row.run.duplicate_key for row in rows).values()
        firsts = [rows[members[0]] for members in alike]
        groups = [group_of(one.run.job) for one in firsts]
        count, each = len(firsts), [one.stacks for one in firsts]
        return cls(
            errors=np.array([np.mean([rows[i].error for i in members]) for members in alike]),
            held=np.array([one.held_deviation for one in firsts]),
            features=np.array([one.features for one in firsts]),
            is_makers=np.full(count, is_makers),
            weights=np.full(count, 1.0 / (count + HALF_HEARD)),
            counts=np.array([len(stacks) for stacks in each]),
            stacks=np.concatenate(each),
            groups=np.array([groups.index(group) for group in groups]),
        )


def _shares(publishers: Sequence[_Distinct], scales: Sequence[Floats]) -> tuple[float, float, float]:
    """How much of the variance of an error is of site, group and configuration: from products of standardized errors
    of two runs of one publisher, of one group and of two, mean over publishers."""
    total, common, across = [], [], []
    for one, scale in zip(publishers, scales, strict=True):
        left = np.clip(one.errors / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        products, pairs = np.outer(left, left), ~np.eye(len(left), dtype=np.bool_)
        same = one.groups[:, None] == one.groups
        total.append(float(np.mean(left**2)))
        common += [float(products[pairs & same].mean())] if (pairs & same).any() else []
        across += [float(products[~same].mean())] if (~same).any() else []
    in_group = float(np.clip(np.mean(common) / np.mean(total), LEAST, 1.0 - LEAST))
    in_site = float(np.clip(np.mean(across) / np.mean(total), LEAST**2, in_group - LEAST**2))
    return in_site, in_group - in_site, 1.0 - in_group


HEAD = f"{'publisher':<44}{'runs':>5}{'distinct':>9}{'median':>8}{'p90':>8}{'bias':>8}{'inside':>8}{'half':>7}  regime"


def _bare(name: str) -> str:
    return name.removeprefix(WORDLESS)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeftOut:
    """Every publisher's and left-out trainer's runs, and the errors fitted to the others."""

    publishers: Mapping[str, Sequence[Seen]]
    errors: Mapping[str, SiteErrors]
    makers: Sequence[str]

    @classmethod
    def of(cls, rows: Sequence[Seen], makers: Sequence[str]) -> "LeftOut":
        publishers, start = by_publisher(rows), load_sites().errors
        found = {
            name: fitted_errors({other: publishers[other] for other in publishers if other != name}, makers, start)
            for name in publishers
            if not name.startswith(WORDLESS)
        }
        found |= {name: found[_bare(name)] for name in publishers if name.startswith(WORDLESS)}
        apart = cls(publishers=publishers, errors=found, makers=makers)
        return replace(apart, errors={name: apart.calibrated(own, name) for name, own in found.items()})

    def calibrated(self, errors: SiteErrors, name: str = "") -> SiteErrors:
        """Errors with the quantiles that all but one publisher's runs need around the errors made without theirs."""
        named, unnamed = (
            conformal_quantile([self.needed[one] for one in own if _bare(one) != _bare(name)])
            for own in (self.strangers(), self.of_kind("trainer left out", "no words"))
        )
        return replace(errors, quantile=named, quantile_unnamed=unnamed)

    @cached_property
    def needed(self) -> Mapping[str, tuple[Floats, Floats]]:
        """Of every publisher the least quantiles of its runs, and weights."""
        certain = {name: [row for row in rows if not row.is_doubted] for name, rows in self.publishers.items()}
        return {
            name: (
                np.array([row.least_quantile(self.errors[name]) for row in rows]),
                duplicate_weights(row.run.duplicate_key for row in rows),
            )
            for name, rows in certain.items()
            if rows
        }

    def kind(self, name: str) -> str:
        """What a publisher is to the fits."""
        if name.startswith((TRAINER, WORDLESS)):
            return "trainer left out" if name.startswith(TRAINER) else "no words"
        known = "in fits" if name in load_sites().publishers else "first contact"
        return "maker" if is_maker(name, self.makers) else known

    def strangers(self) -> list[str]:
        """Publishers who made neither device nor software."""
        return self.of_kind("in fits", "first contact")

    def of_kind(self, *kinds: str) -> list[str]:
        """Publishers that are one of these to the fits."""
        return [name for name in self.publishers if self.kind(name) in kinds]

    def figures(
        self, names: Sequence[str], belongs: Callable[[Seen], bool] = lambda row: not row.is_doubted
    ) -> dict[str, tuple[float, ...]]:
        """Figures of publishers' rows of one regime, of those who have any."""
        parts = {name: [row for row in self.publishers[name] if belongs(row)] for name in names}
        return {name: _figures(rows, self.errors[name]) for name, rows in parts.items() if rows}

    def by_regime(self) -> dict[str, tuple[int, tuple[float, ...]]]:
        """Strangers with rows of every regime, sums of their runs and distinct ones, means of their figures."""
        certain = {label: lambda row, own=own: own(row) and not row.is_doubted for label, own in REGIMES.items()}
        found = {}
        for label, belongs in {**certain, WITH_DOUBTED: lambda row: True}.items():
            own = np.array(list(self.figures(self.strangers(), belongs).values()))
            if len(own):
                found[label] = len(own), (*own[:, :2].sum(axis=0), *own[:, 2:].mean(axis=0))
        return found


WITH_DOUBTED = "all, doubted runs too"
"""What rows are called of which none is left out."""

REGIMES: Mapping[str, Callable[[Seen], bool]] = {
    "all": lambda row: True,
    "dense": lambda row: not row.run.model.is_moe,
    "experts": lambda row: row.run.model.is_moe,
    "Hopper and older": lambda row: row.run.cluster.accelerator.arch in ("sm80", "sm90"),
    "Blackwell": lambda row: row.run.cluster.accelerator.arch.startswith("sm10"),
    "up to 16 GPUs": lambda row: row.run.cluster.world <= 16,
    "17 to 255 GPUs": lambda row: 16 < row.run.cluster.world < 256,
    "256 GPUs or more": lambda row: row.run.cluster.world >= 256,
    "software with a file": lambda row: row.mixture is None,
    "software without": lambda row: row.mixture is not None,
}
"""What first contact may be: a band must hold in each. Of AMD's devices only makers publish."""


def table(found: LeftOut) -> list[str]:
    """The errors of every publisher with shift and band made of the others, their means, and strangers by regime."""
    figures = found.figures(list(found.publishers))
    kinds = {name: found.kind(name) for name in figures}
    out = [HEAD, *(_line(name, own, kinds[name]) for name, own in figures.items())]
    for kind in dict.fromkeys(kinds.values()):
        values = np.array([own for name, own in figures.items() if kinds[name] == kind])
        out.append(_line(f"mean of {len(values)}: {kind}", tuple(values.mean(axis=0)), ""))
    return [*out, *(_line(f"{count}: {label}", own, "") for label, (count, own) in found.by_regime().items())]


def _figures(rows: Sequence[Seen], errors: SiteErrors) -> tuple[float, ...]:
    """Runs, distinct ones, median, 90th percentile, bias, share inside, half width of the band."""
    weights = duplicate_weights(row.run.duplicate_key for row in rows)
    ends = np.array([row.ends(errors) for row in rows])
    logs = np.array([row.error for row in rows])
    found = score(np.expm1(ends[:, 2] - logs), weights)
    inside = (ends[:, 0] <= logs) & (logs <= ends[:, 1])
    share = float((inside * weights).sum() / weights.sum())
    half = quantile(0.5 * (ends[:, 1] - ends[:, 0]), weights, 0.5)
    return len(rows), weights.sum(), found.median_abs_error, found.p90_abs_error, found.bias, share, half


def _line(name: str, figures: Sequence[float], kind: str) -> str:
    runs, distinct, median, p90, bias, inside, half = figures
    numbers = f"{runs:>5.0f}{distinct:>9.0f}{median:>8.1%}{p90:>8.1%}{bias:>+8.1%}{inside:>8.0%}{half:>7.2f}"
    return f"{name[:43]:<44}{numbers}  {kind}"


def words(path: Path, key: str) -> list[str]:
    return [str(word) for word in read(path).data[key]]
