"""The whole fit to training runs: read the table, fit, judge every run with its group left out, write."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from primus_search.calibrate.training import Fit, Parameter, fit
from primus_search.calibrate.training_parameters import parameters
from primus_search.calibrate.training_write import error_bands, identified, write_bands, write_parameters
from primus_search.errors import InputError, Problem
from primus_search.validate.cases import Case, Skipped, build_case
from primus_search.validate.rows import read_runs
from primus_search.validate.score import Score, duplicate_weights, score

ITERATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFit:
    """What was fitted to what, and how well: `left_out` is the score of runs whose source and model were not used."""

    cases: tuple[Case, ...]
    parameters: tuple[Parameter, ...]
    fit: Fit
    fitted: Score
    left_out: Score


def fit_training(csv: Path, iterations: int = ITERATIONS) -> TrainingFit:
    """Fit every stack and training rate to the complete runs of a CSV (a few minutes)."""
    cases = []
    for run in read_runs(csv):
        try:
            cases.append(build_case(run))
        except Skipped:  # `validate` names them and says why
            continue
    if not cases:
        raise InputError([Problem(str(csv), "no run that can be projected; `validate` says why")])
    offered = parameters(cases)
    weights = duplicate_weights(case.duplicate_key for case in cases)
    found = fit(cases, offered, weights, [case.group for case in cases], iterations=iterations)
    return TrainingFit(
        cases=tuple(cases),
        parameters=tuple(offered),
        fit=found,
        fitted=score(np.exp(found.residuals) - 1.0, weights),
        left_out=score(np.exp(found.left_out) - 1.0, weights),
    )


def write_training(found: TrainingFit, folder: Path) -> None:
    """Write numbers and error bands into the hardware and stack files of a folder laid out like `hardware/`."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    write_parameters(found.parameters, found.fit, found.cases, folder, today)
    write_bands(error_bands(found.cases, found.fit.left_out), folder, today)


def lines(found: TrainingFit) -> list[str]:
    """The fit in words: scores, then every number with its standard error, or that the runs do not identify it."""
    known = identified(found.parameters, found.fit)
    out = [
        f"{label}: median error {s.median_abs_error:.1%}, 90th percentile {s.p90_abs_error:.1%}, bias {s.bias:+.1%}"
        for label, s in (("fitted", found.fitted), ("left out, source and model at a time", found.left_out))
    ]
    for p in found.parameters:
        value, error = found.fit.values[p.path], found.fit.standard_errors[p.path]
        said = f"{value:.4g} +- {error:.2g}" if p.path in known else f"{p.prior:.4g} (prior; the runs do not say)"
        out.append(f"{p.path:<52} {said}")
    return out
