"""Errors after a cluster's own runs: of every publisher, k runs are learned from and the others are projected.

Publishers of whom the fits saw nothing, or less than they did not see. A stack is of one software: of each draw of k
runs those whose records point to one stack file go through `learn_stack` together, and what is left of that software is
projected by the stack that it returns, as `validate --stack` does. Beside it the same runs at first contact, before the
draw, and one factor: the median of measured over projected of the same runs, on the stack that their words point to. No
stack file is left out.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from primus_search.base.cores import spread
from primus_search.base.positions import places
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.evidence.validate.scores import Score, duplicate_weights, score
from primus_search.files.evidence_files import load_sites
from primus_search.learning.inference.projected_runs import log_rates, reference_of
from primus_search.learning.inference.shared_errors import group_of
from primus_search.learning.site_stack import learn_stack
from primus_search.values.candidates import Floats
from primus_search.values.measured_run import MeasuredRun, on_stack
from tools.fit.first_contact import DOUBTED, rated_runs, with_mixtures
from tools.fit.training_parameters import is_informative
from tools.fit.training_run import read_cases

TAUGHT = (1, 3, 5)
SINGLES = 3
"""Draws of single runs for each draw of more: what one run says depends most on which it is."""

FEWEST, MOST = 6, 48
"""Runs of a publisher from which on it counts, and most of them that are used, drawn at random."""

FEWEST_LEFT = 3


def unseen(trained: Path, others: Sequence[Path]) -> dict[str, list[MeasuredRun]]:
    """Rated runs that no fit saw and no table doubts, by publisher, in the order of their names."""
    fitted = read_cases(trained)
    taught = {run.place for run in fitted if is_informative(run)}
    runs = [run for run in rated_runs(fitted, others).values() if DOUBTED not in run.provenance.notes]
    rng = np.random.default_rng(0)
    kept = {}
    for name, members in sorted(places(run.provenance.publisher for run in runs).items()):
        own = [runs[i] for i in members if runs[i].place not in taught]
        if len(own) >= FEWEST and 2 * len(own) > len(members):
            kept[name] = [own[i] for i in np.sort(rng.permutation(len(own))[:MOST]).tolist()]
    return kept


def errors_after(runs: Sequence[MeasuredRun], draws: int, *, is_mixed: bool = False) -> dict[int, tuple[float, ...]]:
    """By number of runs learned from, of the others over random draws: median error before, median and 90th percentile
    after, share inside their bands, median and 90th percentile of one factor, median after of models on devices that a
    run was of, NaN where there is none. is_mixed: one software."""
    rng = np.random.default_rng(1)
    plain = np.array([log_rates(run.cluster.stack, [reference_of(run)])[0] for run in runs])
    before = _before(runs)
    software = np.array(["" if is_mixed else run.cluster.stack.name for run in runs])
    found: dict[int, tuple[float, ...]] = {}
    order = rng.permutation(len(runs))
    for k in TAUGHT:
        parts: list[Floats] = []
        count = draws * (SINGLES if k == 1 else 1)
        for draw in range(min(count, len(runs)) if len(runs) - k >= FEWEST_LEFT else 0):
            drawn = np.isin(np.arange(len(runs)), np.take(order, np.arange(k) + draw * k, mode="wrap"))
            for name in dict.fromkeys(software[drawn].tolist()):
                taught, left = ((np.flatnonzero((software == name) & part)).tolist() for part in (drawn, ~drawn))
                if left:
                    parts.append(np.vstack([before[left], _errors(runs, plain, taught, left)]))
        if parts:
            first, own, by_factor, within, is_told, weights = np.concatenate(parts, axis=1)
            known, learned, alone = (score(errors, weights) for errors in (first, own, by_factor))
            inside, told = float((within * weights).sum() / weights.sum()), is_told > 0.0
            of_told = score(own[told], weights[told]).median_abs_error if told.any() else float("nan")
            found[k] = (known.median_abs_error, *_ends(learned), inside, *_ends(alone), of_told)
    return found


def _before(runs: Sequence[MeasuredRun]) -> Floats:
    """Relative error of every run at first contact."""
    rows, mixtures = with_mixtures(runs)
    site, errors = load_sites().errors, dict[tuple[str, int], float]()
    for row in rows:
        mixture, projected = mixtures.get(row.run.place), float(row.projection.tokens_per_s_per_gpu[0])
        rate = (
            mixture.rate(row.run.model, site.of(row.run.cluster.stack)).rate if mixture else site.mean_ratio * projected
        )
        errors[row.run.place] = rate / row.run.tokens_per_s_per_gpu - 1.0
    return np.array([errors[run.place] for run in runs])


def _errors(runs: Sequence[MeasuredRun], plain: Floats, taught: Sequence[int], left: Sequence[int]) -> Floats:
    """Of the runs that are left: errors after learning and by one factor, whether inside the band and of a model on a
    device that was learned from, weights."""
    lessons, others = ([runs[i] for i in part] for part in (taught, left))
    site = learn_stack("site", lessons)
    rows, _ = project_runs([on_stack(run, site.stack) for run in others])
    above = np.log([run.tokens_per_s_per_gpu for run in runs]) - plain
    factor = np.expm1(np.median(above[taught]) - above[left])
    weights = duplicate_weights(run.duplicate_key for run in others)
    is_told = [group_of(run.job) in site.posterior.groups for run in others]
    return np.array([[row.error for row in rows], factor, [row.is_inside for row in rows], is_told, weights])


def _ends(found: Score) -> tuple[float, float]:
    return found.median_abs_error, found.p90_abs_error


def lines(trained: Path, others: Sequence[Path], draws: int, *, is_mixed: bool = False) -> list[str]:
    """One line per publisher and number of runs, and the means over publishers."""
    by_publisher = unseen(trained, others)
    found = spread(lambda one: errors_after(one, draws, is_mixed=is_mixed), list(by_publisher.values()), at_least=2)
    head = "before | learned: median, 90th percentile, inside | one factor | models told"
    out = [f"{'publisher':<44}{'runs':>5}{'k':>4}   {head}"]
    for (name, runs), own in zip(by_publisher.items(), found, strict=True):
        out += [_line(name, len(runs), k, figures) for k, figures in own.items()]
    for k in TAUGHT:
        every = np.array([own[k] for own in found if k in own])
        out.append(_line("mean over publishers", len(every), k, np.nanmean(every, axis=0).tolist()))
    return out


def _line(name: str, count: int, k: int, figures: Sequence[float]) -> str:
    before, median, p90, inside, factor_median, factor_p90, told = figures
    own = f"{before:6.1%} |{median:6.1%}{p90:8.1%}{inside:6.0%}"
    return f"{name[:43]:<44}{count:>5}{k:>4}   {own} |{factor_median:7.1%}{factor_p90:8.1%} |{told:6.1%}"
