"""Search by sampling with Optuna where the space is beyond the budget of an exhaustive walk.

Each axis with more than one value is a parameter: the position of the value on its axis. Positions are settled to the
nearest legal candidate (`nearest.Nearest`), so every trial is legal and conditional axes need no special care.

Trials come in batches. A quarter of a batch is asked of the sampler, as long as asking is cheap (the models behind TPE,
GP and NSGA grow dearer with every trial they remember). For the rest a few thousand proposals are made around the best
rows and the frontier (`moves`) and screened: what lacks memory, or what by its admissible bound cannot enter the best
rows or the frontier, is not projected. The most promising by bound, corrected by how far the bound of the row they came
from was off, become trials. What is counted as an evaluation is a projection; a candidate is projected once.

Memory is a constraint of the study (`missing_GB`): what the sampler proposes and does not fit is told as infeasible,
and what its bound rules out as pruned, with the bound as its report.

A search repeats itself exactly from its seed. The study is kept in the run folder (`study.log`, Optuna's journal
format): `optuna-dashboard study.log` opens it.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.guards.interrupts import Interrupted, check, signal_of
from primus_search.base.units import GB
from primus_search.exploration.exhaustive.collect import Budget, Collected, Progress, Tick, leaders, silent
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.exhaustive.shortlist import rival_s
from primus_search.exploration.sampled.nearest import Nearest
from primus_search.exploration.sampled.screening import Screened, ScreenedCluster
from primus_search.exploration.sampled.study import Studies, TrialOutcome
from primus_search.space import AXES, ClusterChoice
from primus_search.values.candidates import Columns, Floats, Ints
from primus_search.values.knobs import KNOB, KNOBS

SHORT_AXIS = 12
"""Values of an axis that are all tried; of a longer one, those 1, 2, 4, 8, ... positions away."""

MOST_CHANGED = 3
"""Axes changed at once: a better pipeline often needs another micro-batch and another recomputation with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals(Columns):
    """Rows of positions (one column per axis), and the row of the elite each came from (-1: none).

    What is proposed need not be legal: it is settled to the nearest candidate that is.
    """

    positions: Ints
    parents: Ints


class Moves:
    """The axes of a space with more than one value, by name, and what may be tried along them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.names = tuple(sizes)
        self._sizes = np.array(list(sizes.values()), dtype=np.int64)
        steps = [(axis, offset) for axis, size in enumerate(self._sizes) for offset in _offsets(int(size))]
        self._axis, self._offset = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))

    def single(self, elite: Ints) -> Proposals:
        """Every row of the elite with one axis changed."""
        parents = np.repeat(np.arange(len(elite)), len(self._axis))
        positions = np.repeat(elite, len(self._axis), axis=0)
        axis, offset = np.tile(self._axis, len(elite)), np.tile(self._offset, len(elite))
        changed = positions[np.arange(len(positions)), axis] + offset
        inside = (changed >= 0) & (changed < self._sizes[axis])
        positions[np.arange(len(positions)), axis] = changed
        return Proposals(positions=positions, parents=parents).take(inside)

    def several(self, elite: Ints, count: int, rng: np.random.Generator) -> Proposals:
        """Rows of the elite with two or three axes changed at random."""
        parents = rng.integers(len(elite), size=count)
        num_changed = rng.integers(2, MOST_CHANGED + 1, size=count)
        rank = np.argsort(rng.random((count, len(self._sizes))), axis=1)
        drawn = rng.integers(self._sizes, size=(count, len(self._sizes)))
        return Proposals(positions=np.where(rank < num_changed[:, None], drawn, elite[parents]), parents=parents)

    def anywhere(self, count: int, rng: np.random.Generator) -> Proposals:
        """Rows from the whole grid."""
        drawn = rng.integers(self._sizes, size=(count, len(self._sizes)))
        return Proposals(positions=drawn, parents=np.full(count, -1))


def _offsets(size: int) -> list[int]:
    if size <= SHORT_AXIS:
        return [offset for offset in range(1 - size, size) if offset]
    powers = [1 << bit for bit in range(size.bit_length()) if 1 << bit < size]
    return [*powers, *(-power for power in powers)]


BATCH = 32
DEFAULT_EVALUATIONS = 2000
OWN_SHARE = 0.25
"""Share of a batch that the sampler itself proposes."""

OWN_TRIALS = 256
"""Proposals the sampler's model makes; later ones come from the moves, which keeps 2,000 trials within seconds."""

GP_TRIALS, GP_PER_BATCH = 12, 1
"""A Gaussian process takes 1-10 processor seconds per proposal over 16 axes, and more while others are pending."""

ELITE = 16
"""Best rows around which is searched, and as many of the frontier, drawn anew for each batch."""

SEVERAL, ANYWHERE = 1024, 256
"""Proposals per batch that change several axes of the elite, and that come from anywhere."""

SPREAD = 8192
"""Candidates of the whole space that are screened where none of the first batch fits."""

STALE = 12
"""Batches in a row without a candidate that may matter, after which a search has converged."""

CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Collected):
    """What a sampler found.

    evaluations  candidates projected, each once     legal  of the whole space
    """

    evaluations: int
    legal: int


def sample(funnel: Funnel, method: str, folder: Path | None, progress: Progress) -> Collected:
    """Findings of a sampled search."""
    settings = funnel.space.search
    budget = Budget(candidates=evaluations_of(funnel), seconds=settings.budget_seconds)
    sampled = run_sampler(funnel, method, budget, settings.seed, folder, progress)
    note = f"sampled: {sampled.evaluations:,} of {sampled.legal:,} legal candidates were projected"
    return replace(sampled, notes=(note, *sampled.notes))


def evaluations_of(funnel: Funnel) -> int:
    """Projections a sampled search of this space may make."""
    settings = funnel.space.search
    evaluations = settings.budget_evaluations or DEFAULT_EVALUATIONS
    return min(evaluations, settings.budget_candidates or evaluations)


def run_sampler(
    funnel: Funnel, method: str, budget: Budget, seed: int, folder: Path | None = None, progress: Progress = silent
) -> Sampled:
    """Ask, screen, project and tell until the budget is spent, the search has converged or the user stops it."""
    run = _Run(funnel, method, seed, folder)
    started, stale, notes, interrupted_by = time.monotonic(), 0, list[str](), 0
    most = min(budget.candidates, run.legal)
    try:
        while run.evaluations < most and stale < STALE:
            check()
            if budget.seconds and time.monotonic() - started >= budget.seconds:
                notes.append("the budget of seconds ran out: these are the best candidates found so far")
                break
            before = run.evaluations
            run.batch(min(BATCH, most - before))
            if not run.evaluations and not stale:
                run.look_for_a_fit()
            stale = 0 if run.evaluations > before else stale + 1
            progress(run.tick(most))
    except (KeyboardInterrupt, Interrupted) as stop:
        interrupted_by = signal_of(stop)
        notes.append("interrupted: these are the best candidates found so far")
    return Sampled(
        findings=tuple(screen.findings() for screen in run.screens),
        evaluations=run.evaluations,
        legal=run.legal,
        is_complete=not notes,
        notes=(*notes, *run.notes),
        interrupted_by=interrupted_by,
    )


NOWHERE = TrialOutcome(tokens_per_s_per_gpu=0.0, memory_GB=1e6, missing_GB=1e6)
"""What is told of a proposal that no legal candidate answers: slow, and a petabyte too large."""


class _Run:
    """One study and all it has seen."""

    def __init__(self, funnel: Funnel, method: str, seed: int, folder: Path | None) -> None:
        self.funnel, enumerators = funnel, funnel.enumerators
        self.legal = sum(enumerator.size for enumerator in enumerators)
        self.screens = [ScreenedCluster(funnel, cluster, ELITE) for cluster in range(len(enumerators))]
        self._nearest = [Nearest(enumerator) if enumerator.size else None for enumerator in enumerators]
        # Positions on the axes of each cluster; one beyond the end of a shorter axis stands for its last value.
        sizes = {name: max(one.job.sizes[name] for one in enumerators) for name in AXES}
        sizes = {name: size for name, size in sizes.items() if size > 1}
        if len(enumerators) > 1:
            sizes[CLUSTER] = len(enumerators)
        self._moves = Moves(sizes)
        self._studies = Studies.open(method, seed, sizes, folder)
        self._rng = np.random.default_rng(seed)
        self._own_left, self._own_per_batch = (GP_TRIALS, GP_PER_BATCH) if method == "gp" else (OWN_TRIALS, BATCH)
        self._ruled_out = [set[int]() for _ in enumerators]
        self._first: list[Proposals] = [self._seeds()]

    @property
    def evaluations(self) -> int:
        """Candidates projected so far, each counted once."""
        return sum(len(screen.step_s) for screen in self.screens)

    @property
    def screened(self) -> int:
        """Candidates whose memory and bound were computed."""
        return sum(len(screen.seen) for screen in self.screens)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be kept."""
        return tuple(self._studies.notes)

    def _seeds(self) -> Proposals:
        """What an engineer would try first, on every cluster."""
        wanted = [
            [cluster if name == CLUSTER else one[name] for name in self._moves.names]
            for several in zip_longest(*map(seeds, self.funnel.space.clusters))
            for cluster, one in enumerate(several)
            if one is not None
        ]
        return Proposals(positions=np.array(wanted, dtype=np.int64), parents=np.full(len(wanted), -1))

    # --- one batch -------------------------------------------------------------------------------------------------

    def batch(self, size: int) -> None:
        """Project at most `size` candidates: some of the sampler's, and the most promising around the elite."""
        before = self.evaluations
        if self._own_left:
            self._ask_sampler(min(math.ceil(OWN_SHARE * size), self._own_per_batch, self._own_left))
        positions, off = self._proposals()
        groups = list(self._settled(positions))
        for place, (cluster, rows, numbers) in enumerate(groups):
            left = size - (self.evaluations - before)
            self._take_up(cluster, numbers, off[rows], -(-left // (len(groups) - place)))

    def look_for_a_fit(self) -> None:
        """Screen candidates of the whole space, evenly spread, and propose those that fit."""
        for cluster, enumerator in enumerate(self.funnel.enumerators):
            count = min(SPREAD // len(self.screens), enumerator.size)
            numbers = (self._rng.random(count) + np.arange(count)) * (enumerator.size / max(count, 1))
            screened = self.screens[cluster].screen(np.unique(numbers.astype(np.int64)))
            fitting = self._positions(cluster, screened.numbers[screened.missing_bytes <= 0.0])
            self._first.append(Proposals(positions=fitting, parents=np.full(len(fitting), -1)))

    def _ask_sampler(self, count: int) -> None:
        """Project what the sampler proposes and may matter, and tell it what became of each proposal."""
        self._own_left -= count
        trials = [self._studies.ask() for _ in range(count)]
        wanted = [[trial.params[name] for name in self._moves.names] for trial in trials]
        outcomes = [NOWHERE] * count
        for cluster, rows, numbers in self._settled(np.array(wanted, dtype=np.int64)):
            screen = self.screens[cluster]
            screened = screen.screen(np.unique(numbers))
            screen.project(screened.take(screen.may_matter(screened) & ~screen.is_projected(screened.numbers)))
            place = {number: at for at, number in enumerate(screened.numbers.tolist())}
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                if number in place:
                    outcomes[row] = self._outcome(cluster, screened, place[number])
        for trial, outcome in zip(trials, outcomes, strict=True):
            self._studies.tell(trial, outcome)

    def _take_up(self, cluster: int, numbers: Ints, off: Floats, most: int) -> None:
        """Project the most promising of these candidates on one cluster, at most `most`.

        `off`: by what factor the step of the row each came from is longer than its bound.
        """
        screen, ruled_out = self.screens[cluster], self._ruled_out[cluster]
        numbers, first = np.unique(numbers, return_index=True)
        is_new = ~screen.is_projected(numbers) & np.array(
            [n not in ruled_out for n in numbers.tolist()], dtype=np.bool_
        )
        screened = screen.screen(numbers[is_new])
        ruled_out.update(np.setdiff1d(numbers[is_new], screened.numbers).tolist())
        off = off[first][np.isin(numbers, screened.numbers)]
        matters = screen.may_matter(screened)
        ruled_out.update(screened.numbers[~matters].tolist())
        screened, off = screened.take(matters), off[matters]
        chosen = screened.take(_most_promising(screen, screened, off, most))
        screen.project(chosen)
        rows = self._positions(cluster, chosen.numbers).tolist()
        for at, row in enumerate(rows):
            self._studies.add(dict(zip(self._moves.names, row, strict=True)), self._outcome(cluster, chosen, at))

    def _outcome(self, cluster: int, screened: Screened, at: int) -> TrialOutcome:
        """What is known of a screened candidate; by its bound where it was not projected."""
        screen, number = self.screens[cluster], int(screened.numbers[at])
        step_s = screen.step_s.get(number, float(screened.bound_s[at]))
        return TrialOutcome(
            tokens_per_s_per_gpu=self._speed(cluster, step_s),
            memory_GB=float(screened.memory_bytes[at]) / GB,
            missing_GB=float(screened.missing_bytes[at]) / GB,
            is_pruned=number not in screen.step_s and math.isfinite(step_s),
        )

    # --- proposals -------------------------------------------------------------------------------------------------

    def _proposals(self) -> tuple[Ints, Floats]:
        """Positions around the elite of every cluster and from anywhere, and how far off their origin's bound was."""
        rows, off = [np.zeros((0, len(self._moves.names)), dtype=np.int64)], [np.zeros(0)]
        for cluster, screen in enumerate(self.screens):
            elite = self._elite(screen)
            rows.append(self._positions(cluster, elite))
            off.append(np.array([screen.step_s[n] / screen.bound_s[n] for n in elite.tolist()]))
        elite, factors = np.concatenate(rows), np.concatenate(off)
        parts, self._first = [*self._first, self._moves.anywhere(ANYWHERE, self._rng)], []
        if len(elite):
            parts += [self._moves.single(elite), self._moves.several(elite, SEVERAL, self._rng)]
        proposals = parts[0].joined(*parts[1:])
        usual = float(np.median(factors)) if len(factors) else 1.0
        return proposals.positions, np.append(factors, usual)[proposals.parents]

    def _elite(self, screen: ScreenedCluster) -> Ints:
        """Numbers of the best rows, and of some of the frontier."""
        front = self._rng.permutation(screen.elite.frontier.indices)[:ELITE]
        return np.union1d(screen.elite.top.indices, front)

    def _positions(self, cluster: int, numbers: Ints) -> Ints:
        """Positions of candidates on the axes that the moves know, one row each."""
        nearest = self._nearest[cluster]
        if nearest is None or not len(numbers):
            return np.zeros((0, len(self._moves.names)), dtype=np.int64)
        columns = nearest.positions(numbers) | {CLUSTER: np.full(len(numbers), cluster)}
        return np.stack([columns[name] for name in self._moves.names], axis=1)

    def _settled(self, positions: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """The legal candidates nearest to rows of positions: cluster, rows, numbers; clusters in random order."""
        columns = dict(zip(self._moves.names, positions.T, strict=True))
        clusters = columns.pop(CLUSTER, np.zeros(len(positions), dtype=np.int64))
        for cluster in self._rng.permutation(np.unique(clusters)).tolist():
            rows, nearest = np.flatnonzero(clusters == cluster), self._nearest[cluster]
            if nearest is not None:
                yield cluster, rows, nearest.numbers({name: column[rows] for name, column in columns.items()})

    # --- what was found --------------------------------------------------------------------------------------------

    def _speed(self, cluster: int, step_s: float) -> float:
        """Tokens per second and GPU; 0 for a candidate that does not fit."""
        space = self.funnel.space
        return space.workload.tokens_per_step / step_s / space.clusters[cluster].cluster.world

    def tick(self, most: int) -> Tick:
        """Where the search stands."""
        tops = [screen.elite.top for screen in self.screens]
        return Tick(
            rows_done=self.evaluations,
            rows_total=most,
            legal=self.screened,
            feasible=self.evaluations,
            projected=self.evaluations,
            leaders=partial(leaders, self.funnel, tops),
        )


def _most_promising(screen: ScreenedCluster, screened: Screened, off: Floats, most: int) -> Ints:
    """Which of some candidates to project: half by the step they promise, half by what they promise the frontier.

    The step is foretold by the bound times the factor by which the bound of the row they came from was off.
    """
    foretold_s = screened.bound_s * off
    fast = np.argsort(foretold_s, kind="stable")
    gains = np.argsort(foretold_s / rival_s(screen.elite.frontier, screened.memory_bytes), kind="stable")
    both = np.stack([fast, gains], axis=1).reshape(-1)
    return np.sort(both[np.sort(np.unique(both, return_index=True)[1])][:most])


TRIED = tuple(knob.name for knob in sorted(KNOBS, key=lambda knob: knob.tried) if knob.tried)


def seeds(choice: ClusterChoice) -> Iterator[dict[str, int]]:
    """Wanted positions on the axes of a cluster, best guess first."""
    base = {axis.name: _position(axis.values, KNOB[axis.name].guess) for axis in choice.axes}
    base["ep"] = len(choice.axis("ep").values) - 1
    for pp in range(len(choice.axis("pp").values)):
        yield base | {"pp": pp}
        for name in TRIED:
            for position in range(len(choice.axis(name).values)):
                if position != base[name]:
                    yield base | {"pp": pp, name: position}


def _position(values: tuple[Any, ...], wanted: Any) -> int:
    return values.index(wanted) if wanted in values else 0
