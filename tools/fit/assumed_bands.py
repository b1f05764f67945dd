"""How far off a projection may be whose software had to be assumed: error bands by the stack that was assumed.

Every training run is projected with the stack that would be assumed if nothing but its configuration were known
(`inferred_stack`), and with every stack s that somebody ran on its architecture with its kind of sharding. Had s made
the run, its measured rate would lie from the assumed one as far as

    measured / assumed = projected by s / projected as assumed * measured / projected, left out

with the last factor of the run's own stack; where s is its own stack this is the measurement itself. A stack counts by
the distinct runs it has there, and the assumed one not at all: a right guess is what the other bands are for. Peaks
of memory spread in the same way, without the last factor, which the device's own spread stands for. Runs whose software
really had to be assumed are the same thing measured, and count beside these. All runs of a family count for a few
beside those of the stack assumed, and quantiles are those of split conformal prediction, with the stack as the hidden
column.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.cost.confidence.uncertainty import ASSUMED, UNKNOWN, UNKNOWN_MEMORY
from primus_search.runs.published.convert import made_with, stack_without_source
from primus_search.runs.validate.score import duplicate_weights
from primus_search.runs.validate.score_runs import ScoredRun, project_runs
from primus_search.values.candidates import Floats, Sharding
from primus_search.values.measured_run import MeasuredRun
from tools.fit.intervals import HONEST, Band, outer
from tools.fit.training_parameters import teaches

MEMORY = "memory"

POOLED = 8.0
"""Runs that all runs of a family together count for beside those that a stack was assumed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """One run as another stack might have made it: logs of measured over assumed rate, of needed over assumed memory.

    memory: None where a run that was made with unknown software publishes no peak
    """

    kind: str
    assumed: str
    rates: tuple[float, ...]
    memory: float | None
    weight: float


def assumed_bands(
    cases: Sequence[MeasuredRun], left_out: Mapping[str, Floats], stacks: Sequence[str]
) -> dict[str, dict[str, Band]]:
    """Bands of rates by family and of peaks for every stack, if it is assumed."""
    is_known = np.array([teaches(case) for case in cases])
    logs = np.stack([np.asarray(left_out[split], np.float64) for split in HONEST])
    guesses = _guesses([case for case in cases if teaches(case)], logs[:, is_known])
    guesses += _guessed([case for case in cases if not teaches(case)], logs[:, ~is_known])
    kinds = {kind: [g for g in guesses if g.kind == kind] for kind in ("dense", "moe")}
    memory = _memory_band(guesses)
    return {
        name: {ASSUMED + kind: _band(of_kind, name) for kind, of_kind in kinds.items()} | {ASSUMED + MEMORY: memory}
        for name in stacks
    }


def _guesses(cases: Sequence[MeasuredRun], left_out: Floats) -> list[_Guess]:
    weights = duplicate_weights(case.duplicate_key for case in cases)
    common: dict[tuple[str, bool], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case, weight in zip(cases, weights, strict=True):
        common[_habitat(case)][case.cluster.stack.name] += weight
    assumed = [stack_without_source(case) for case in cases]
    wanted = {(i, name) for i, case in enumerate(cases) for name in {*common[_habitat(case)], assumed[i]}}
    known = _projected(cases, sorted(wanted))
    found = []
    for i, case in enumerate(cases):
        others = {name: n for name, n in common[_habitat(case)].items() if name != assumed[i]}
        for name, count in others.items():
            if (i, name) in known and (i, assumed[i]) in known:
                (rate, memory), (assumed_rate, assumed_memory) = known[i, name], known[i, assumed[i]]
                found.append(
                    _Guess(
                        kind=case.family,
                        assumed=assumed[i],
                        rates=tuple((np.log(rate / assumed_rate) - left_out[:, i]).tolist()),
                        memory=float(np.log(memory / assumed_memory)),
                        weight=float(weights[i]) * count / sum(others.values()),
                    )
                )
    return found


def _guessed(cases: Sequence[MeasuredRun], left_out: Floats) -> list[_Guess]:
    """Runs whose software nobody named, as measured."""
    weights = duplicate_weights(case.duplicate_key for case in cases)
    peaks = {id(row.run): row.memory for row in project_runs(cases)[0]}
    found = []
    for i, case in enumerate(cases):
        peak = peaks.get(id(case))
        found.append(
            _Guess(
                kind=case.family,
                assumed=case.cluster.stack.name,
                rates=tuple((-left_out[:, i]).tolist()),
                memory=float(np.log(peak[1] / peak[0])) if peak else None,
                weight=float(weights[i]),
            )
        )
    return found


def _habitat(case: MeasuredRun) -> tuple[str, bool]:
    """Where a stack is at home: an architecture, and whether weights are sharded."""
    return case.cluster.accelerator.arch, bool(case.candidates.sharding[0] >= Sharding.FSDP2)


def _projected(
    cases: Sequence[MeasuredRun], wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], tuple[float, float]]:
    """Rate and bytes that have to fit, by number of the case and stack; without those that cannot be projected."""
    supposed = [made_with(cases[i], name) for i, name in wanted]
    keys = {id(case): key for case, key in zip(supposed, wanted, strict=True)}
    rows, _ = project_runs(supposed)
    return {keys[id(row.run)]: (row.predicted, _needed(row)) for row in rows}


def _needed(row: ScoredRun) -> float:
    """Bytes that have to fit."""
    memory = row.projection.memory
    return float(memory.allocated[0] + memory.context[0])


def _band(guesses: Sequence[_Guess], stack: str) -> Band:
    """The band of a stack from runs that it was assumed for, and with the weight of `POOLED` runs from all."""
    if not guesses:
        return UNKNOWN.low, UNKNOWN.high, 0
    pool = np.array([g.weight for g in guesses])
    own = np.array([g.weight if g.assumed == stack else 0.0 for g in guesses])
    values = np.array([g.rates for g in guesses]).T
    low, high = np.exp(outer(values, own + pool * POOLED / pool.sum(), float(pool.sum()))).tolist()
    return low, high, round(own.sum())


def _memory_band(guesses: Sequence[_Guess]) -> Band:
    """One band for all stacks, to which each counts alike: some are the leanest of all, so that none needs less."""
    logs = [(g.memory, g) for g in guesses if g.memory is not None]
    if not logs:
        return UNKNOWN_MEMORY.low, UNKNOWN_MEMORY.high, 0
    totals: dict[str, float] = defaultdict(float)
    for _, g in logs:
        totals[g.assumed] += g.weight
    weights = np.array([g.weight / totals[g.assumed] for _, g in logs])
    runs = sum(totals.values())
    low, high = np.exp(outer(np.array([[log for log, _ in logs]]), weights, runs)).tolist()
    return low, high, round(runs)
