"""The whole fit to training runs: read the tables, fit, judge every run with its group left out, write."""

import datetime
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from primus_search.base.cores import one_blas_thread
from primus_search.base.errors import InputError, Problem
from primus_search.cost.confidence.uncertainty import band
from primus_search.runs.published import measured_table
from primus_search.runs.validate.score_runs import Refitted, duplicate_weights, score
from primus_search.values.candidates import Floats
from primus_search.values.measured_run import MeasuredRun
from tools.fit import intervals
from tools.fit.intervals import FAR, HONEST, NEW_REGIME, bands_of_others, regime_of
from tools.fit.priors import PriorParameter, priors, standard_errors
from tools.fit.supposed_software import WITHOUT_RUNS
from tools.fit.training import FitState, Solved, improve, linearised, start, start_as_shipped
from tools.fit.training_parameters import is_informative, parameters
from tools.fit.training_write import fitted_elsewhere, identified, write_copies, write_means, write_parameters

FREE_STEPS, PINNED_STEPS = 4, 2
"""Gauss-Newton steps with every number free, and with those that the runs do not identify at their family's mean."""


@dataclass(frozen=True, slots=True)
class TrainingFit:
    """What was fitted to what.

    fit_weights  of every run in the fit: near-duplicates count once together, one that is not `is_informative` never
    known        paths of the parameters that the runs identify; the others keep their family's mean
    """

    cases: tuple[MeasuredRun, ...]
    parameters: tuple[PriorParameter, ...]
    fit_weights: Floats
    state: FitState
    known: frozenset[str]

    @property
    def values(self) -> dict[str, float]:
        """Value of every parameter by its path."""
        return {p.path: p.value(v) for p, v in zip(self.parameters, self.state.x, strict=True)}

    @property
    def means(self) -> dict[str, float]:
        """Value of every family's mean."""
        found = {}
        for family, z in zip(self.state.prior.families, self.state.z[len(self.parameters) :], strict=True):
            found[family] = next(p for p in self.parameters if p.family == family).value(z)
        return found

    def standard_errors(self) -> dict[str, float]:
        """Standard error of every parameter in the fit's own coordinates."""
        found, _ = _errors_of(self.state, self.fit_weights)
        return {p.path: float(e) for p, e in zip(self.parameters, found, strict=True)}

    def left_out(self, group: Callable[[MeasuredRun], Hashable]) -> Floats:
        """log(predicted / measured) of every run without the runs of its group, to first order."""
        return self.left_out_by({"": group})[""]

    def left_out_by(self, splits: Mapping[str, Callable[[MeasuredRun], Hashable]]) -> dict[str, Floats]:
        """log(predicted / measured) of every run without the runs of its group, to first order, for each split."""
        solved: Solved = {}
        groups = {name: [group(case) for case in self.cases] for name, group in splits.items()}
        with one_blas_thread():
            return {name: linearised(self.state, self.fit_weights, each, solved) for name, each in groups.items()}


SPLITS: dict[str, Callable[[MeasuredRun], Hashable]] = {
    "source and model": lambda case: case.group,
    "model": lambda case: case.model.name,
    "source": lambda case: case.provenance.source,
    "publisher": lambda case: case.provenance.publisher,
    "stack": lambda case: case.cluster.stack.name,
    "stack and regime": lambda case: (case.cluster.stack.name, regime_of(case)),
}
"""What is left out together. With its publisher a run loses most runs of its stack; a regime is a family, architecture
and precision."""

JUDGED = (*HONEST, FAR, NEW_REGIME)
"""What bands are made of."""


def split_of(name: str) -> Callable[[MeasuredRun], Hashable]:
    """What `--leave-out NAME` leaves out together. Raises InputError for a name that is none of `SPLITS`."""
    if name not in SPLITS:
        raise InputError([Problem("--leave-out", f"'{name}'; one of {', '.join(SPLITS)}")])
    return SPLITS[name]


def read_cases(tables: Path, vendor: str = "") -> tuple[MeasuredRun, ...]:
    """Every complete run of a CSV, or of a list of them, that can be projected; of one vendor's devices if given."""
    cases = tuple(run for run in measured_table(tables).runs if run.has_rate and not run.ran_out)
    cases = tuple(run for run in cases if vendor in ("", run.cluster.accelerator.vendor))
    if not any(is_informative(case) for case in cases):
        raise InputError([Problem(str(tables), "no run that can be projected; `validate` says why")])
    return cases


def fit_training(tables: Path, vendor: str = "") -> TrainingFit:
    """Fit every stack and training rate to the complete runs of a CSV, or of a list of them (about a minute).

    With a vendor to the runs of its devices alone, which moves no number of another vendor's stacks or devices.
    """
    return fit_cases(read_cases(tables, vendor))


def fit_cases(cases: Sequence[MeasuredRun]) -> TrainingFit:
    """Fit all numbers, then hold those that the runs do not identify at their family's mean and fit the rest again."""
    offered, fit_weights = _offered(cases)
    with one_blas_thread():
        state = improve(start(cases, offered), cases, offered, fit_weights, FREE_STEPS)
        known = _known(offered, state, fit_weights)
        pinned = frozenset(p.path for p in offered) - known
        state = improve(state, cases, offered, fit_weights, PINNED_STEPS, pinned)
    return TrainingFit(tuple(cases), tuple(offered), fit_weights, state, known)


def shipped_fit(cases: Sequence[MeasuredRun]) -> TrainingFit:
    """The numbers of the hardware and stack files as if they had just been fitted to these runs (some seconds).

    What it says of runs left out is of first order around these numbers, wherever they are from.
    """
    offered, fit_weights = _offered(cases)
    state = start_as_shipped(cases, offered)
    known = _known(offered, state, fit_weights)
    prior = priors(offered, frozenset(p.path for p in offered) - known)
    return TrainingFit(tuple(cases), tuple(offered), fit_weights, replace(state, prior=prior), known)


def _offered(cases: Sequence[MeasuredRun]) -> tuple[list[PriorParameter], Floats]:
    """What may be fitted, and the weight of each run."""
    informative = [case for case in cases if is_informative(case)]
    fit_weights = np.zeros(len(cases))
    fit_weights[[is_informative(case) for case in cases]] = duplicate_weights(
        case.duplicate_key for case in informative
    )
    return parameters(informative), fit_weights


def _known(offered: Sequence[PriorParameter], state: FitState, fit_weights: Floats) -> frozenset[str]:
    """Paths of what the runs identify."""
    _, apart = _errors_of(state, fit_weights)
    distances = {p.path: float(e) for p, e in zip(offered, apart, strict=True)}
    return frozenset(identified(offered, distances, fitted_elsewhere(offered)))


def _errors_of(state: FitState, weights: Floats) -> tuple[Floats, Floats]:
    """Standard errors of the parameters in the fit's own coordinates, and of their distance from their family mean."""
    return standard_errors(state.prior, state.errors, state.slopes, weights)


def write_training(found: TrainingFit, folder: Path, vendor: str = "") -> None:
    """Write numbers and error bands into the hardware and stack files of a folder laid out like `hardware/`.

    vendor: of a fit to the runs of one; files of stacks without such runs stay as they are.
    """
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    informative = [case for case in found.cases if is_informative(case)]
    write_parameters(found.parameters, found.values, found.standard_errors(), found.known, informative, folder, today)
    write_means(found.means, found.values, found.parameters, folder, today)
    if not vendor:
        write_copies(folder, today)
    left_out = found.left_out_by({split: SPLITS[split] for split in JUDGED})
    known = intervals.error_bands(
        informative, {split: errors[found.fit_weights > 0.0] for split, errors in left_out.items()}
    )
    stacks = [*known, *(name for name in WITHOUT_RUNS if name not in known and not vendor)]
    assumed = intervals.assumed_bands(found.cases, left_out, stacks)
    intervals.write_bands({name: {**known.get(name, {}), **assumed[name]} for name in stacks}, folder, today)


def lines(found: TrainingFit) -> list[str]:
    """The fit in words: scores, then every number with its standard error, or that the runs do not identify it."""
    weights = duplicate_weights(case.duplicate_key for case in found.cases)
    out = []
    left_out = found.left_out_by(SPLITS)
    for label, logs in {"fitted": found.state.errors, **{f"left out by {k}": v for k, v in left_out.items()}}.items():
        s = score(np.exp(logs) - 1.0, weights)
        errors = f"median error {s.median_abs_error:.1%}, 90th percentile {s.p90_abs_error:.1%}"
        out.append(f"{label}: {errors}, bias {s.bias:+.1%}")
    values, errors_of = found.values, found.standard_errors()
    for p in found.parameters:
        said = f"{values[p.path]:.4g} +- {errors_of[p.path]:.2g}"
        if p.path not in found.known:
            said = f"{values[p.path]:.4g} ({'mean of its family' if p.family else 'prior'}; the runs do not say)"
        out.append(f"{p.path:<52} {said}")
    return out


def left_out_rates(cases: Sequence[MeasuredRun], split: str) -> dict[tuple[str, int], Refitted]:
    """Tokens/s/GPU of every complete run with its 90 % interval, by its place, both from the runs of other groups.

    Numbers are fitted again to first order around those in the files; error bands are of the other groups' errors.
    """
    group = split_of(split)
    found = shipped_fit(cases)
    errors = found.left_out_by({split: group} | {name: SPLITS[name] for name in JUDGED})
    rates = np.exp(errors[split]) * np.array([case.tokens_per_s_per_gpu for case in found.cases])
    bands = _bands(found, errors, group)
    return {
        case.place: Refitted(rate=float(rate), low=float(rate) * low, high=float(rate) * high)
        for case, rate, (low, high) in zip(found.cases, rates, bands, strict=True)
    }


def _bands(
    found: TrainingFit, errors: Mapping[str, Floats], group: Callable[[MeasuredRun], Hashable]
) -> list[tuple[float, float]]:
    """The band of every run: made of other groups where its software is known, else the one in its stack's file."""
    informative = found.fit_weights > 0.0
    cases = [case for case, is_in in zip(found.cases, informative, strict=True) if is_in]
    others = bands_of_others(cases, {name: e[informative] for name, e in errors.items()}, [group(c) for c in cases])
    shipped = (band(case.cluster, case.model, int(case.candidates.fp8[0])) for case in found.cases)
    bands = [(one.low, one.high) for one in shipped]
    for place, own in zip(np.flatnonzero(informative).tolist(), others, strict=True):
        bands[place] = own
    return bands
