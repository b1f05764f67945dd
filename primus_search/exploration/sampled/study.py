"""The Optuna study of a sampled search: in memory, and on disk trial by trial for `optuna-dashboard`.

Asking a journal directly would write to disk for each parameter of each trial.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from primus_search.values.knobs import WORDED

MULTI_OBJECTIVE = ("nsga2", "nsga3")
STARTUP = 64
STUDY_NAME = "primus-search"
METRICS = ("tokens/s/GPU", "memory GB")
CONSTRAINT = "missing_GB"

UNORDERED = WORDED | {"cluster"}
"""Axes whose values have no order; the position of a value on any other axis is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """Outcome of a trial: tokens/s/GPU and memory, or, when only its bound is known, the bound (`is_pruned`)."""

    tokens_per_s_per_gpu: float
    memory_GB: float  # noqa: N815 - GB is the unit
    missing_GB: float  # noqa: N815 - GB is the unit
    is_pruned: bool = False


@dataclass
class Studies:
    """The study in memory, and its copy on disk (None without a folder, or when the disk is full).

    A full disk must not end a search that can still end well; `notes` says what was not kept.
    """

    study: optuna.Study
    kept: optuna.Study | None
    parameters: Mapping[str, BaseDistribution]
    is_multi: bool
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, method: str, seed: int, sizes: Mapping[str, int], folder: Path | None) -> "Studies":
        """A new study; one that an earlier run left in the folder is replaced."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        is_multi = method in MULTI_OBJECTIVE
        directions = ["maximize", "minimize"] if is_multi else ["maximize"]
        with _experiments_accepted():
            study = optuna.create_study(directions=directions, sampler=make_sampler(method, seed))
            kept, notes = None, list[str]()
            try:
                kept = _kept(folder, directions) if folder is not None else None
            except OSError as error:
                notes.append(_unkept(error))
        parameters: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(list(range(size)))
            if name in UNORDERED and method != "qmc"  # a low-discrepancy sequence needs an order
            else IntDistribution(0, size - 1)
            for name, size in sizes.items()
        }
        return cls(study, kept, parameters, is_multi, notes)

    def ask(self) -> optuna.Trial:
        """A proposal of the sampler."""
        return self.study.ask(dict(self.parameters))

    def tell(self, trial: optuna.Trial, outcome: TrialOutcome) -> None:
        """What became of a proposal."""
        trial.set_constraint(CONSTRAINT, outcome.missing_GB)
        if outcome.is_pruned and not self.is_multi:
            trial.report(outcome.tokens_per_s_per_gpu, step=0)
        if outcome.is_pruned:
            self._keep(self.study.tell(trial, state=TrialState.PRUNED))
        else:
            self._keep(self.study.tell(trial, self._values(outcome)))

    def add(self, params: Mapping[str, int], outcome: TrialOutcome) -> None:
        """A candidate that was projected without a request."""
        trial = create_trial(
            values=self._values(outcome),
            params=dict(params),
            distributions=dict(self.parameters),
            constraints={CONSTRAINT: outcome.missing_GB},
        )
        self.study.add_trial(trial)
        self._keep(trial)

    def _values(self, outcome: TrialOutcome) -> list[float]:
        return [outcome.tokens_per_s_per_gpu, outcome.memory_GB] if self.is_multi else [outcome.tokens_per_s_per_gpu]

    def _keep(self, trial: FrozenTrial) -> None:
        if self.kept is None:
            return
        try:
            self.kept.add_trial(trial)
        except OSError as error:
            self.kept = None
            self.notes.append(_unkept(error))


def _unkept(error: OSError) -> str:
    return f"study.log could not be written ({error.strerror}): it lacks what followed"


def _kept(folder: Path, directions: list[str]) -> optuna.Study:
    path = folder / "study.log"
    for old in (path, path.with_name("study.log.lock")):  # a killed run may have left its lock; the folder is ours
        old.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(study_name=STUDY_NAME, storage=storage, directions=directions)
    study.set_metric_names(list(METRICS[: len(directions)]))
    return study


def make_sampler(method: str, seed: int) -> optuna.samplers.BaseSampler:
    """The Optuna sampler of a method's name."""
    sampler, options = SAMPLERS[method]
    with _experiments_accepted():
        return sampler(seed=seed, **options)


SAMPLERS: Mapping[str, tuple[Callable[..., optuna.samplers.BaseSampler], Mapping[str, Any]]] = {
    "tpe": (optuna.samplers.TPESampler, {"n_startup_trials": STARTUP, "multivariate": True, "constant_liar": True}),
    "nsga2": (optuna.samplers.NSGAIISampler, {}),
    "nsga3": (optuna.samplers.NSGAIIISampler, {}),
    "gp": (optuna.samplers.GPSampler, {"deterministic_objective": True, "warn_independent_sampling": False}),
    "qmc": (
        optuna.samplers.QMCSampler,
        {"scramble": True, "warn_independent_sampling": False, "warn_asynchronous_seeding": False},
    ),
    "random": (optuna.samplers.RandomSampler, {}),
}
"""Samplers and their options by the name of a method; the schema of a space has no others."""


@contextmanager
def _experiments_accepted() -> Iterator[None]:
    """No warning that an API may change: its version is pinned in constraints.txt, and a test calls every sampler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def keep_trials(
    path: Path, values: Mapping[str, Sequence[str]], trials: Sequence[tuple[Mapping[str, str], float | None, str]]
) -> None:
    """Write the journal of all trials, whole. values: of every axis; trials: candidate, tokens/s/GPU, verdict."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    partial = path.with_name(f".{path.name}.partial")
    for left in (partial, partial.with_name(f"{partial.name}.lock")):  # of a killed run; the folder is ours
        left.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(partial), lock_obj=JournalFileOpenLock(str(partial))))
    study = optuna.create_study(study_name=STUDY_NAME, storage=storage, direction="maximize")
    axes = {name: CategoricalDistribution(list(choices)) for name, choices in values.items()}
    for params, rate, verdict in trials:
        state = TrialState.COMPLETE if rate is not None else TrialState.FAIL
        chosen = {name: params[name] for name in axes}
        attributes = {"verdict": verdict}
        study.add_trial(
            create_trial(state=state, value=rate, params=chosen, distributions=dict(axes), user_attrs=attributes)
        )
    partial.replace(path)
