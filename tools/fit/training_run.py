"""The whole fit to training runs: read the tables, fit, judge every run with its group left out, write.

Put numbers fitted to training runs into stack and hardware files, each with its provenance, and touch nothing else.

Files are edited as text so that comments and everybody else's lines stay as they are. A number that the runs do not
identify is written with the mean of its family (or its prior) and says so.
"""

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from primus_search.base.cores import one_blas_thread
from primus_search.base.errors import InputError, Problem
from primus_search.cost.confidence.uncertainty import band
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.validate.score_runs import Refitted
from primus_search.evidence.validate.scores import duplicate_weights, score
from primus_search.files.search_path import FileKind, names
from primus_search.files.source import parse, read
from primus_search.measure.calibrate.hardware_edits import SECTION, leaves
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import GROUP_OF
from primus_search.values.measured_run import MeasuredRun
from tools.docs.generated import count_fitted
from tools.fit import intervals
from tools.fit.intervals import FAR, HONEST, NEW_REGIME, bands_of_others, regime_of
from tools.fit.supposed_software import WITHOUT_RUNS
from tools.fit.training import FitState, Solved, improve, linearised, start, start_as_shipped, touches
from tools.fit.training_parameters import (
    IDENTIFIED,
    MAX_FITTED,
    TRAINING_RATE,
    PriorParameter,
    is_informative,
    parameters,
    priors,
    rate_family,
    yaml_key,
)

Owner = tuple[str, str]
"""`stack` or `hardware`, and the name."""


def identified(parameters: Sequence[PriorParameter], apart: Floats) -> frozenset[str]:
    """Paths of what the runs identify, the best known first, at most `MAX_FITTED` per owner with what is `taken`.

    `apart` is the standard error of each parameter's distance from its family's mean.
    """
    taken, by_owner = fitted_elsewhere(parameters), defaultdict[Owner, list[tuple[float, str]]](list)
    for p, error in zip(parameters, apart.tolist(), strict=True):
        by_owner[p.owner, p.name].append((error / p.sigma, p.path))
    best = ((owner, sorted(f for f in found if f[0] < IDENTIFIED)) for owner, found in by_owner.items())
    return frozenset(path for owner, found in best for _, path in found[: max(MAX_FITTED - taken.get(owner, 0), 0)])


def fitted_elsewhere(parameters: Sequence[PriorParameter]) -> dict[Owner, int]:
    """How many numbers of each stack and accelerator were fitted to something else: kernels, memory peaks."""
    keys: dict[Owner, set[str]] = defaultdict(set)
    for p in parameters:
        keys[p.owner, p.name].add(yaml_key(p.field)[0])
    texts = {
        (owner, parse(text, "").data["name"]): text
        for owner, kind in (("stack", FileKind.STACK), ("hardware", FileKind.HARDWARE))
        for text in (path.read_text(encoding="utf-8") for path in names(kind).values())
    }
    return {owner: count_fitted(texts[owner], frozenset(own)) for owner, own in keys.items() if owner in texts}


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
    def informative(self) -> list[MeasuredRun]:
        """Runs that the fit learned from."""
        return [case for case in self.cases if is_informative(case)]

    @property
    def values(self) -> dict[str, float]:
        """Value of every parameter by its path."""
        return {p.path: p.value(v) for p, v in zip(self.parameters, self.state.x, strict=True)}

    @property
    def means(self) -> dict[str, float]:
        """Value of every family's mean."""
        members = {p.family: p for p in self.parameters}
        means = zip(self.state.prior.families, self.state.z[len(self.parameters) :], strict=True)
        return {family: members[family].value(z) for family, z in means}

    def standard_errors(self) -> dict[str, float]:
        """Standard error of every parameter in the fit's own coordinates."""
        found, _ = self.state.standard_errors(self.fit_weights)
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


def fit_cases(cases: Sequence[MeasuredRun]) -> TrainingFit:
    """All numbers fitted to runs, then those that these do not identify held at their family's mean and the rest again.

    It takes about a minute, and moves no number of a vendor without runs.
    """
    offered, fit_weights = _offered(cases)
    with one_blas_thread():
        state = improve(start(cases, offered), cases, offered, fit_weights, FREE_STEPS)
        known = identified(offered, state.standard_errors(fit_weights)[1])
        pinned = frozenset(p.path for p in offered) - known
        state = improve(state, cases, offered, fit_weights, PINNED_STEPS, pinned)
    return TrainingFit(tuple(cases), tuple(offered), fit_weights, state, known)


def shipped_fit(cases: Sequence[MeasuredRun]) -> TrainingFit:
    """The numbers of the hardware and stack files as if they had just been fitted to these runs (some seconds).

    What it says of runs left out is of first order around these numbers, wherever they are from.
    """
    offered, fit_weights = _offered(cases)
    state = start_as_shipped(cases, offered)
    known = identified(offered, state.standard_errors(fit_weights)[1])
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


def write_parameters(found: TrainingFit, folder: Path, date: str) -> None:
    """Write every parameter into `folder`: stacks/NAME.yaml in its group, training rates under accelerator."""
    files = {read(path).data["name"]: path for path in sorted(folder.glob("*.yaml"))}
    values, errors = found.values, found.standard_errors()
    members = Counter(p.family for p in found.parameters)
    for p in found.parameters:
        runs = sum(touches(p, case) for case in found.informative)
        source = f"prior: {runs} training runs do not identify it"
        if p.family:
            siblings = f"{p.owner} files{p.family.removeprefix(p.field).partition(' of ')[0]}"
            source = f"mean of {members[p.family]} {siblings}, {date}: {runs} training runs do not identify it"
        if p.path in found.known:
            source = f"fitted {date} to {runs} training runs, standard error {errors[p.path]:.2g}"
        is_stack = p.owner == "stack"
        path = folder / "stacks" / f"{p.name}.yaml" if is_stack else files[p.name]
        _put(path, p.field, values[p.path], source, GROUP_OF[p.field] if is_stack else SECTION)


def write_means(found: TrainingFit, folder: Path, date: str) -> None:
    """Training rates of devices without a rate of their own: that of the device their file names (`same die as NAME`,
    `no training runs: as NAME`), else the mean of the vendor's devices."""
    means, values = found.means, found.values
    fitted = {p.name: values[p.path] for p in found.parameters if p.owner == "hardware"}
    for path in sorted(folder.glob("*.yaml")):
        data = read(path).data
        if data["name"] in fitted:
            continue
        told = re.search(rf'{TRAINING_RATE.field}: .*"((?:same die|no training runs:) as (.+?))"', path.read_text())
        family = rate_family(data.get("vendor", ""))
        if told:
            if told[2] in fitted:
                _put(path, TRAINING_RATE.field, fitted[told[2]], told[1], SECTION)
        elif family in means:
            count = sum(p.family == family for p in found.parameters)
            source = f"mean of {count} hardware files, {date}: no training run on this device"
            _put(path, TRAINING_RATE.field, means[family], source, SECTION)


def write_copies(folder: Path, date: str) -> None:
    """Numbers of stacks without runs: those of the stack that a line names (`as NAME`), or the family's mean, as it
    stands in the files of stacks whose runs do not identify it."""
    texts = {path: path.read_text() for path in sorted((folder / "stacks").glob("*.yaml"))}
    numbers = {parse(text, "").data["name"]: {leaf.key: leaf for leaf in leaves(text)} for text in texts.values()}
    means = {key: leaf for own in numbers.values() for key, leaf in own.items() if _MEAN.match(leaf.source)}
    for path, text in texts.items():
        for key, leaf in numbers[parse(text, "").data["name"]].items():
            told = _WITHOUT_RUNS.fullmatch(leaf.source)
            if told and (of := numbers.get(told[2], {}).get(key) if told[2] else means.get(key)):
                source = told[1] if told[2] else of.source.partition(",")[0]
                text = _with_number(text, key, of.value, f"{source}, {date}")
        path.write_text(text)


_MEAN = re.compile(r"mean of \d+ stack files, [-\d]+: ")
"""The source of a number that some stack's runs do not identify."""
_WITHOUT_RUNS = re.compile(r"(as (\w+)|mean of \d+ stack files), \d{4}-\d\d-\d\d")


def _put(path: Path, field: str, value: float, source: str, section: str) -> None:
    """Write the number of a field into a file, in the units of its YAML key."""
    key, factor = yaml_key(field)
    path.write_text(_with_number(path.read_text(), key, str(float(f"{value * factor:.4g}")), source, section))


def _with_number(text: str, key: str, value: str, source: str, section: str = "") -> str:
    """The text with the line of a key of some section replaced; a new one goes to the top of `section`."""
    line = f'  {key}: {{value: {value}, source: "{source}"}}'
    present = re.compile(rf"^  {key}: .*$", re.M)
    if present.search(text):
        return present.sub(lambda _: line, text, count=1)
    head = re.search(rf"^{section}:.*\n", text, re.M) if section else None
    if head is None:
        return f"{text}{section}:\n{line}\n"
    return f"{text[: head.end()]}{line}\n{text[head.end() :]}"


def write_training(found: TrainingFit, folder: Path, vendor: str = "") -> None:
    """Write numbers and error bands into the hardware and stack files of a folder laid out like `hardware/`.

    vendor: of a fit to the runs of one; files of stacks without such runs stay as they are.
    """
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    write_parameters(found, folder, today)
    write_means(found, folder, today)
    if not vendor:
        write_copies(folder, today)
    left_out = found.left_out_by({split: SPLITS[split] for split in JUDGED})
    known = intervals.error_bands(
        found.informative, {split: errors[found.fit_weights > 0.0] for split, errors in left_out.items()}
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
    cases, informative = found.informative, found.fit_weights > 0.0
    others = bands_of_others(cases, {name: e[informative] for name, e in errors.items()}, [group(c) for c in cases])
    shipped = (band(case.cluster, case.model, int(case.candidates.fp8[0])) for case in found.cases)
    bands = [(one.low, one.high) for one in shipped]
    for place, own in zip(np.flatnonzero(informative).tolist(), others, strict=True):
        bands[place] = own
    return bands
