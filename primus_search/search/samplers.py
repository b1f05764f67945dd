"""Search by sampling with Optuna where the space is beyond the budget of an exhaustive walk.

Each axis with more than one value is a parameter: the position of the value on its axis. Positions are settled to the
nearest legal candidate (`space.nearest`), so every trial is legal and conditional axes need no special care. Memory is
a constraint: a candidate that does not fit is told as infeasible, with the bytes it lacks, and is never projected.
Trials are asked and told in batches. A quarter of each batch comes from the sampler, as long as asking it is cheap (the
models behind TPE, GP and NSGA grow dearer with every trial they remember; then it is drawn at random); the rest are
neighbours of the best rows and of the frontier so far, one step along one axis. All are trials of the same study.

The study lives in the run folder (`study.log`, Optuna's journal format): `optuna-dashboard study.log` opens it.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from primus_search.search.collect import Collected, Progress, Tick
from primus_search.search.evaluate import Funnel
from primus_search.search.findings import Findings
from primus_search.search.sampler_check import Sampled, check_sampler
from primus_search.search.seeds import seeds
from primus_search.space.nearest import nearest_legal, positions
from primus_search.units import GB

BATCH = 32
DEFAULT_EVALUATIONS = 2000
OWN_SHARE = 0.25
"""Share of a batch that the sampler itself proposes."""

OWN_TRIALS = 256
"""Proposals the sampler's model makes; later ones are drawn at random, which keeps 2,000 trials under a minute."""

MOST_ASKS = 4  # times the evaluations: a sampler that repeats itself on a small space must still end
ELITE = 16
"""Best rows whose neighbours are tried; the frontier's are tried as well."""

CLUSTER = "cluster"
MULTI_OBJECTIVE = ("nsga2", "nsga3")
STARTUP = 64


def sample(funnel: Funnel, method: str, folder: Path | None, resume: bool, progress: Progress) -> Collected:
    """Findings of a sampled search, and how good this sampler is on a part of the space whose optimum is known."""
    settings = funnel.space.search
    evaluations = settings.budget_candidates or DEFAULT_EVALUATIONS
    sampled = run_sampler(funnel, method, evaluations, settings.seed, folder, resume, progress)
    best = sampled.best
    checked = check_sampler(funnel, best, method, settings.seed, run_sampler) if best is not None else None
    note = f"sampled: {sampled.evaluations:,} of {sampled.legal:,} legal candidates were evaluated"
    return Collected(findings=sampled.findings, is_complete=True, notes=(note,), sampler_check=checked)


def run_sampler(
    funnel: Funnel,
    method: str,
    evaluations: int,
    seed: int,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Sampled:
    """Ask, evaluate and tell until `evaluations` different candidates were looked at or none are left."""
    run = _Run(funnel, method, seed, folder, resume)
    asks = 0
    while len(run.seen) < min(evaluations, run.legal) and asks < MOST_ASKS * evaluations:
        asks += run.batch(min(BATCH, evaluations - len(run.seen)))
        if progress is not None:
            progress(run.tick(evaluations))
    return Sampled(findings=tuple(run.findings), evaluations=len(run.seen), legal=run.legal, best=run.best())


@dataclass(slots=True)
class _Outcome:
    """What is known of one candidate; step_s is infinite where it does not fit."""

    step_s: float
    memory_bytes: float
    missing_bytes: float


NOWHERE = _Outcome(math.inf, 1e15, 1e15)
"""What is told of a trial that no legal candidate answers: slow, and a petabyte too large."""


@dataclass
class _Run:
    """One study and all it has seen."""

    funnel: Funnel
    method: str
    seed: int
    folder: Path | None
    resume: bool
    seen: dict[tuple[int, int], _Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        space = self.funnel.space
        self.legal = sum(enumerator.size for enumerator in self.funnel.enumerators)
        self.findings = [Findings.none(self.funnel.keep) for _ in self.funnel.enumerators]
        self.parameters: dict[str, IntDistribution] = {
            axis.name: IntDistribution(0, len(axis.values) - 1) for axis in space.axes if len(axis.values) > 1
        }
        if len(space.clusters) > 1:
            self.parameters[CLUSTER] = IntDistribution(0, len(space.clusters) - 1)
        self.study, self.kept = _studies(self.method, self.seed, self.folder, self.resume)
        self.rng = np.random.default_rng(self.seed)
        self.asked: set[tuple[int, int]] = set()
        self.exhausted: set[tuple[int, int]] = set()  # every neighbour was asked for
        self.own_trials, self.queued = 0, 0
        self._queue_seeds()

    def _queue_seeds(self) -> None:
        for wanted in seeds(self.funnel.space):
            for cluster in range(len(self.funnel.enumerators)):
                if self._located(wanted | {CLUSTER: cluster}) not in self.asked:
                    self._queue(wanted | {CLUSTER: cluster})

    def _queue(self, wanted: dict[str, int]) -> None:
        """Put a candidate before the sampler's own."""
        key = self._located(wanted)
        if key is not None:
            self.asked.add(key)
            self.queued += 1
            self.study.enqueue_trial({name: wanted[name] for name in self.parameters if name in wanted})

    def _located(self, wanted: dict[str, int]) -> tuple[int, int] | None:
        cluster = wanted.get(CLUSTER, 0)
        enumerator = self.funnel.enumerators[cluster]
        return (cluster, nearest_legal(enumerator, wanted)) if enumerator.size else None

    # --- one batch -------------------------------------------------------------------------------------------------

    def batch(self, size: int) -> int:
        """Ask for `size` trials, evaluate what is new together, tell all; the number of trials asked."""
        own = math.ceil(OWN_SHARE * size) if self.own_trials < OWN_TRIALS else 0
        self.own_trials += own
        for neighbour in self._neighbours(size - own):
            self._queue(neighbour)
        while self.queued < size - own:
            self._queue({name: int(self.rng.integers(d.high + 1)) for name, d in self.parameters.items()})
        trials = [self.study.ask(self.parameters) for _ in range(size)]
        self.queued = max(self.queued - size, 0)
        keys = [self._located(dict(trial.params)) for trial in trials]
        self._evaluate([key for key in dict.fromkeys(keys) if key is not None and key not in self.seen])
        for trial, key in zip(trials, keys, strict=True):
            self._tell(trial, key)
        return size

    def _evaluate(self, keys: Sequence[tuple[int, int]]) -> None:
        for cluster in range(len(self.funnel.enumerators)):
            numbers = np.array([number for owner, number in keys if owner == cluster], dtype=np.int64)
            if len(numbers):
                self._evaluate_on(cluster, numbers)

    def _evaluate_on(self, cluster: int, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        looked_at = self.funnel.look_at(cluster, numbers)
        for number, step_s, memory, missing in looked_at.per_row:
            self.seen[(cluster, number)] = _Outcome(step_s, memory, missing)
            self.asked.add((cluster, number))
        self.findings[cluster] = self.findings[cluster].plus(looked_at.findings)

    def _tell(self, trial: optuna.Trial, key: tuple[int, int] | None) -> None:
        outcome = self.seen.get(key, NOWHERE) if key is not None else NOWHERE
        trial.set_constraint("missing_GB", outcome.missing_bytes / GB)
        speed = self._speed(key[0], outcome.step_s) if key is not None else 0.0
        values = [speed, outcome.memory_bytes / GB]
        done = self.study.tell(trial, values if self.method in MULTI_OBJECTIVE else values[0])
        if self.kept is not None:
            self.kept.add_trial(done)

    def _speed(self, cluster: int, step_s: float) -> float:
        """Tokens per second and GPU; 0 for a candidate that was not projected."""
        space = self.funnel.space
        return space.workload.tokens_per_step / step_s / space.clusters[cluster].cluster.world

    # --- neighbours ------------------------------------------------------------------------------------------------

    def _neighbours(self, most: int) -> Iterator[dict[str, int]]:
        """Wanted positions one step from the best rows and from the frontier, not asked for yet."""
        found = 0
        for key in self._elite():
            if key in self.exhausted:
                continue
            for wanted in self._steps(*key):
                if found == most:
                    return
                if self._located(wanted) not in self.asked:
                    found += 1
                    yield wanted
            self.exhausted.add(key)

    def _steps(self, cluster: int, number: int) -> Iterator[dict[str, int]]:
        """One step up or down along each axis, in random order."""
        here = positions(self.funnel.enumerators[cluster], number) | {CLUSTER: cluster}
        steps = [(name, step) for name in self.parameters for step in (-1, 1)]
        for at in self.rng.permutation(len(steps)):
            name, step = steps[int(at)]
            if 0 <= here[name] + step <= self.parameters[name].high:
                yield here | {name: here[name] + step}

    def _elite(self) -> Iterator[tuple[int, int]]:
        """The best rows and the frontier, in turns."""
        for cluster, found in enumerate(self.findings):
            top = found.shortlist.top.indices[:ELITE].tolist()
            front = self.rng.permutation(found.shortlist.frontier.indices).tolist()
            for one, other in zip_longest(top, front):
                yield from ((cluster, number) for number in (one, other) if number is not None)

    def best(self) -> tuple[int, int] | None:
        """Cluster and number of the fastest row by tokens per second and GPU."""
        heads = [
            (-self._speed(cluster, float(found.shortlist.top.step_s[0])), cluster, int(found.shortlist.top.indices[0]))
            for cluster, found in enumerate(self.findings)
            if len(found.shortlist.top)
        ]
        return min(heads)[1:] if heads else None

    def tick(self, evaluations: int) -> Tick:
        steps = [float(f.shortlist.top.step_s[0]) for f in self.findings if len(f.shortlist.top)]
        return Tick(
            rows_done=len(self.seen),
            rows_total=min(evaluations, self.legal),
            legal=len(self.seen),
            feasible=sum(f.feasible for f in self.findings),
            projected=sum(f.rows.get("project", 0) for f in self.findings),
            best_step_s=min(steps, default=0.0),
        )


def _studies(method: str, seed: int, folder: Path | None, resume: bool) -> tuple[optuna.Study, optuna.Study | None]:
    """The study that is asked, in memory, and its copy on disk; an earlier one is taken in when resuming.

    Asking a journal directly would write to disk for each parameter of each trial.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = ["maximize", "minimize"] if method in MULTI_OBJECTIVE else ["maximize"]
    study = optuna.create_study(directions=directions, sampler=make_sampler(method, seed))
    names = ["tokens/s/GPU", "memory GB"][: len(directions)]
    study.set_metric_names(names)
    if folder is None:
        return study, None
    path = folder / "study.log"
    if not resume:
        path.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path)))
    kept = optuna.create_study(study_name="primus-search", storage=storage, directions=directions, load_if_exists=True)
    kept.set_metric_names(names)
    study.add_trials([trial for trial in kept.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE])
    return study, kept


def make_sampler(method: str, seed: int) -> optuna.samplers.BaseSampler:
    """The Optuna sampler of a method's name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match method:
            case "tpe":
                return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, warn_independent_sampling=False)
            case "nsga2":
                return optuna.samplers.NSGAIISampler(seed=seed)
            case "nsga3":
                return optuna.samplers.NSGAIIISampler(seed=seed)
            case "gp":
                return optuna.samplers.GPSampler(
                    seed=seed, deterministic_objective=True, warn_independent_sampling=False
                )
            case "qmc":
                return optuna.samplers.QMCSampler(
                    seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
                )
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
    raise ValueError(f"no sampler is called {method!r}")
