"""Errors of a cluster that nobody has seen, from whole publishers left out of every fit.

    log(measured / projected) = log(mean_ratio) + site + group + configuration,   each with the tails of a Student's t

Every run is projected by numbers that its publisher has no part in: refitted to first order where runs of theirs are in
the fits, as shipped elsewhere, by the mixture over all stacks where nobody described the software. Standard deviations
are those of largest penalized likelihood, the shift is the mean, over publishers who made neither device nor software
(all but `makers:` of the file); near-duplicates count once. The table gives each publisher the band made of the others.
"""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from primus_search.base.errors import InputError, Problem
from primus_search.cost.confidence.uncertainty import band, site_band
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.evidence.validate.scores import duplicate_weights, quantile, score
from primus_search.evidence.validate.undescribed import Undescribed, undescribed_mixtures
from primus_search.files.evidence_files import load_sites
from primus_search.files.source import read
from primus_search.learning.posterior import group_of, reference_of
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import SiteErrors
from primus_search.values.measured_run import MeasuredRun
from tools.fit.training_parameters import is_informative
from tools.fit.training_run import SPLITS, read_cases, shipped_fit

DEGREES = 5.0
"""Of the Student's t: log-likelihoods with 4 and 6 lie within 2 of each other, 2026-11-23."""

FITTED = ("mean_ratio", "site", "group", "configuration", "moe_factor")
LEAST, STEPS = 1e-3, 3000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A run and log(measured / projected) without its publisher; mixture: of software that nobody described."""

    run: MeasuredRun
    error: float
    mixture: Undescribed | None

    @property
    def publisher(self) -> str:
        return self.run.provenance.publisher

    def ends(self, errors: SiteErrors) -> tuple[float, float, float]:
        """Logarithms of measured / projected at both ends of the 90 % band, and of what is to be expected."""
        if self.mixture is not None:
            mixed = self.mixture.rate(self.run.model, errors)
            return float(np.log(mixed.low / mixed.rate)), float(np.log(mixed.high / mixed.rate)), 0.0
        cluster = replace(self.run.cluster, site=errors)
        found = band(cluster, self.run.model, int(self.run.candidates.fp8[0]))
        held = site_band(cluster, self.run.model, found)
        return float(np.log(held.low)), float(np.log(held.high)), float(np.log(errors.mean_ratio))


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


def seen(trained: Path, others: Sequence[Path]) -> list[Seen]:
    """Every rated run of the tables, once."""
    fitted = read_cases(trained)
    found = shipped_fit(fitted)
    without = dict(zip([run.place for run in fitted], found.left_out(SPLITS["publisher"]), strict=True))
    runs = rated_runs(fitted, others)
    rows, _ = project_runs(list(runs.values()))
    unknown = [row.run for row in rows if row.run.cluster.stack.is_assumed]
    mixed = undescribed_mixtures([reference_of(run) for run in unknown])
    mixtures = dict(zip([run.place for run in unknown], mixed, strict=True))
    seen_rows = []
    for row in rows:
        run, mixture = row.run, mixtures.get(row.run.place)
        measured = run.tokens_per_s_per_gpu
        projected = float(row.projection.tokens_per_s_per_gpu[0])
        error = np.log(measured / projected)
        if run.place in without and is_informative(run):
            error = -without[run.place]
        elif mixture is not None:
            error = np.log(measured / mixture.rate(run.model, load_sites().errors).rate)
        seen_rows.append(Seen(run=run, error=float(error), mixture=mixture))
    return seen_rows


def by_publisher(rows: Sequence[Seen]) -> dict[str, list[Seen]]:
    """The runs of every publisher."""
    found: dict[str, list[Seen]] = {}
    for row in rows:
        found.setdefault(row.publisher, []).append(row)
    return dict(sorted(found.items()))


def is_maker(publisher: str, makers: Sequence[str]) -> bool:
    """Whether a publisher made the device or the software of its runs."""
    return publisher.startswith(tuple(makers))


def fitted_errors(publishers: Sequence[Sequence[Seen]], start: SiteErrors) -> SiteErrors:
    """Standard deviations of largest penalized likelihood, and the mean of the publishers' means as the shift.

    Of few publishers the likelihood of a standard deviation is often largest at 0; a density that rises with it from
    there (Gamma of shape 2, Chung et al., Psychometrika 78, 2013) keeps it away.

    The centre of a Student's t would leave slow sites out of what is to be expected. What is not fitted stays.
    """
    parts = [_distinct(rows) for rows in publishers]

    def cost(x: Floats) -> float:
        likelihood = sum(_log_likelihood(x[0], np.exp(x[1:4]), np.exp(x[4]), *part) for part in parts)
        return -likelihood - float(x[1:4].sum())

    first = np.log([getattr(start, name) for name in FITTED])
    found = minimize(cost, first, method="Nelder-Mead", options={"maxiter": STEPS, "xatol": LEAST, "fatol": LEAST}).x
    values = dict(zip(FITTED, np.exp(found).tolist(), strict=True))
    mean = float(np.mean([errors.mean() for errors, _, _ in parts]))
    return replace(start, **values | {"mean_ratio": float(np.exp(mean))})


def _distinct(rows: Sequence[Seen]) -> tuple[Floats, np.ndarray, np.ndarray]:
    """Mean error of near-duplicates of one publisher, which of them are of one group, and which of experts."""
    alike: dict[object, list[Seen]] = {}
    for row in rows:
        alike.setdefault(row.run.duplicate_key, []).append(row)
    firsts = [members[0].run for members in alike.values()]
    groups = [group_of(run.job) for run in firsts]
    names = list(dict.fromkeys(groups))
    number = np.array([names.index(group) for group in groups])
    errors = np.array([np.mean([row.error for row in members]) for members in alike.values()])
    return errors, number[:, None] == number[None, :], np.array([run.model.is_moe for run in firsts])


def _log_likelihood(
    shift: float, sigmas: Floats, moe_factor: float, errors: Floats, same: np.ndarray, is_moe: np.ndarray
) -> float:
    """Of one publisher's errors: a multivariate Student's t."""
    site, group, configuration = sigmas
    factor = np.where(is_moe, moe_factor, 1.0)
    scale = (site**2 + group**2 * same + configuration**2 * np.eye(len(errors))) * np.outer(factor, factor)
    root = np.linalg.cholesky(scale)
    distance = float((np.linalg.solve(root, errors - shift) ** 2).sum())
    n = len(errors)
    constant = gammaln(0.5 * (DEGREES + n)) - gammaln(0.5 * DEGREES) - 0.5 * n * np.log(DEGREES * np.pi)
    return float(constant - np.log(np.diag(root)).sum() - 0.5 * (DEGREES + n) * np.log1p(distance / DEGREES))


HEAD = f"{'publisher':<44}{'runs':>5}{'distinct':>9}{'median':>8}{'p90':>8}{'bias':>8}{'inside':>8}{'half':>7}  regime"


def table(rows: Sequence[Seen], path: Path) -> list[str]:
    """The errors of every publisher with shift and band made of the others, and their means."""
    sites, makers, known = load_sites(), words(path, "makers"), load_sites().publishers
    publishers = by_publisher(rows)
    figures: dict[str, tuple[float, ...]] = {}
    out = [HEAD]
    for name, own in publishers.items():
        others = [part for other, part in publishers.items() if other != name and not is_maker(other, makers)]
        figures[name] = _figures(own, fitted_errors(others, sites.errors))
        kind = "maker" if is_maker(name, makers) else "in fits" if name in known else "first contact"
        out.append(_line(name, figures[name], kind))
    subsets: dict[str, Callable[[str], bool]] = {
        "not makers": lambda name: not is_maker(name, makers),
        "first contact": lambda name: name not in known,
        "all": lambda name: True,
    }
    for label, belongs in subsets.items():
        values = np.array([figures[name] for name in figures if belongs(name)])
        out.append(_line(f"mean of {len(values)} publishers, {label}", tuple(values.mean(axis=0)), ""))
        many = values[values[:, 0] >= 8.0]
        out.append(f"  lowest share inside of {len(many)} with 8 runs or more: {many[:, 5].min():.0%}")
    return out


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


def write_errors(errors: SiteErrors, rows: Sequence[Seen], path: Path) -> None:
    """Put the fitted numbers into the file of sites, each with what it rests on."""
    makers = words(path, "makers")
    names = [name for name in by_publisher(rows) if not is_maker(name, makers)]
    runs = sum(row.publisher in names for row in rows)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    source = f"fitted {date} to {runs} runs, {len(names)} whole publishers left out: python -m tools.fit first-contact"
    text = path.read_text(encoding="utf-8")
    values: Mapping[str, float] = {name: round(float(getattr(errors, name)), 3) for name in FITTED}
    for name, value in values.items():
        text = re.sub(rf"^  {name}: .*$", f'  {name}: {{value: {value}, source: "{source}"}}', text, flags=re.M)
    path.write_text(text, encoding="utf-8")
