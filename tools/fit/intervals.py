"""How far projections of runs that no fit has seen lie from what was measured: the error bands of a stack's file.

A band holds nine of ten left-out runs of its stack and regime (dense or MoE, architecture, precision). Left out are,
in turn, a run's source and model together, its whole model and its whole source (`HONEST`): what somebody plans is
mostly a new model or a new cluster, not one more row of a known table. A few runs say little about their own tails, so
all runs share one shape, and what a regime has of its own is a scale, the mean |log(measured / projected)|:

    scale(family)  = that of runs left out with their whole stack: nothing is known of the software
    scale(stack)   = (ALIKE scale(family) + n own) / (ALIKE + n),  n: groups of source and model that were seen
    scale(regime)  = (NEAR u scale(stack) + n own) / (NEAR + n),   u: errors of left-out regimes over those of seen ones
    band           = exp(scale x outer 5 % of log(measured / projected) / scale(its regime) over all runs left out)

A regime without runs so has the wider band of a stack's new regime. A stack without runs of a family has none: as
little is known of it as of software that had to be assumed (`assumed.py`).
The outer shares are those of n distinct runs: rank (n + 1) 0.95, half a rank in (split conformal prediction).

Source: Vovk, Gammerman, Shafer 2005, Algorithmic Learning in a Random World; Lei et al. 2018 (doi:10.1080/01621459.
2017.1307116) for the finite-sample shift and for residuals over a scale (locally weighted conformal prediction).
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from primus_search.cost.confidence.uncertainty import ASSUMED, UNKNOWN, UNKNOWN_MEMORY, regime
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.evidence.validate.scores import duplicate_weights, quantile
from primus_search.values.candidates import Bools, Floats, Sharding
from primus_search.values.measured_run import MeasuredRun
from tools.fit.supposed_software import made_with, stack_without_source
from tools.fit.training_parameters import is_informative

HONEST = ("source and model", "model", "source")
"""What is left out, in turn, for an error band."""

FAR, NEW_REGIME = "stack", "stack and regime"
"""What is left out to see how far off unknown software is, and a regime in which a known one was never seen."""

ALIKE, NEAR = 4.0, 8.0
"""Groups of runs that the family counts for beside a stack's own, and the stack beside a regime's own: chosen of 2, 4
and 8 by how evenly bands of left-out runs hold (docs/cost/uncertainty.md)."""

MOST_ERROR = 0.5
"""A run further off than this counts as so far in a mean: it was not understood, and says no more than that."""

OUTSIDE = 0.05
"""Share of runs below a band, and above it."""


Band = tuple[float, float, int]
"""Ends of a band, and how many of its runs are the stack's own."""


def error_bands(cases: Sequence[MeasuredRun], left_out: Mapping[str, Floats]) -> dict[str, dict[str, Band]]:
    """Per stack: the band of every regime it was seen in, and of others of a family that it was seen in."""
    law = _Law(_Sample(cases, left_out), np.ones(len(cases), dtype=bool))
    found: dict[str, dict[str, Band]] = {}
    for name in dict.fromkeys(case.cluster.stack.name for case in cases):
        kinds = [regime_of(case) for case in cases if case.cluster.stack.name == name]
        found[name] = {
            kind: (*law.band(name, kind), kinds.count(kind))
            for kind in sorted({*kinds, *(kind.partition("/")[0] for kind in kinds)})
        }
    return found


def bands_of_others(
    cases: Sequence[MeasuredRun], left_out: Mapping[str, Floats], groups: Sequence[Hashable]
) -> list[tuple[float, float]]:
    """Per run the band of its stack and regime made without its group, which the band then has not seen."""
    sample = _Sample(cases, left_out)
    laws = {group: _Law(sample, np.array([one != group for one in groups])) for group in dict.fromkeys(groups)}
    pairs = zip(cases, groups, strict=True)
    return [laws[group].band(case.cluster.stack.name, regime_of(case)) for case, group in pairs]


def regime_of(case: MeasuredRun) -> str:
    """What a run's error is compared with, beside its stack."""
    return regime(case.model, case.cluster, int(case.candidates.fp8[0]))


class _Sample:
    """log(measured / projected) of every run and every way to leave it out, with what a band is asked by."""

    def __init__(self, cases: Sequence[MeasuredRun], left_out: Mapping[str, Floats]) -> None:
        self.weights = duplicate_weights(case.duplicate_key for case in cases)
        self.logs = -np.stack([np.asarray(left_out[split], np.float64) for split in HONEST])
        self.sizes = np.minimum(np.abs(self.logs), MOST_ERROR).mean(axis=0)
        self.far = np.minimum(np.abs(left_out[FAR]), MOST_ERROR)
        self.new = np.minimum(np.abs(left_out[NEW_REGIME]), MOST_ERROR)
        self.groups = [case.group for case in cases]
        self.stacks = np.array([case.cluster.stack.name for case in cases])
        self.regimes = np.array([regime_of(case) for case in cases])
        self.families = np.array([case.family for case in cases])

    def mean(self, errors: Floats, rows: Bools) -> float:
        """Mean of errors over runs, near-duplicates once."""
        return float((errors * self.weights)[rows].sum() / self.weights[rows].sum())


class _Law:
    """The scale of every stack and regime, and the shape that all share, from some of the runs."""

    def __init__(self, sample: _Sample, offered: Bools) -> None:
        self.sample, self.offered = sample, offered
        self.scale = cache(self._scale)
        if offered.any():
            self.unseen = max(sample.mean(sample.new, offered) / sample.mean(sample.sizes, offered), 1.0)
            pairs = zip(sample.stacks[offered].tolist(), sample.regimes[offered].tolist(), strict=True)
            scales = np.array([self.scale(stack, kind) for stack, kind in pairs])
            weights = sample.weights[offered]
            self.outer = outer(sample.logs[:, offered] / scales, weights, float(weights.sum()))

    def band(self, stack: str, kind: str) -> tuple[float, float]:
        """The band of a regime of a stack, or of a whole family of regimes in which it was never seen."""
        if not self.offered.any():
            return UNKNOWN.low, UNKNOWN.high
        scale = self.scale(stack, kind)
        return float(np.exp(self.outer[0] * scale)), float(np.exp(self.outer[1] * scale))

    def _scale(self, stack: str, kind: str) -> float:
        """Mean |log error| to expect of a regime of a stack."""
        sample = self.sample
        alike = self.offered & (sample.families == kind.partition("/")[0])
        alike = alike if alike.any() else self.offered
        scale = sample.mean(sample.far, alike)
        own = alike & (sample.stacks == stack)
        if not own.any():
            return scale
        scale = self._blend(scale, ALIKE, own) * self.unseen
        same = own & (sample.regimes == kind)
        return self._blend(scale, NEAR, same) if same.any() else scale

    def _blend(self, scale: float, counts: float, rows: Bools) -> float:
        """A scale that is assumed beforehand, like so many groups of runs, with what rows show."""
        groups = len({self.sample.groups[i] for i in np.flatnonzero(rows)})
        seen = min(float(groups), float(self.sample.weights[rows].sum()))
        return (counts * scale + seen * self.sample.mean(self.sample.sizes, rows)) / (counts + seen)


def outer(logs: Floats, weights: Floats, runs: float) -> tuple[float, float]:
    """Outer quantiles of logarithms: a row per way to leave runs out, weights per run, `runs` distinct."""
    used = weights > 0.0
    shared = np.tile(weights[used] / len(logs), len(logs))
    outside = max(OUTSIDE - (0.5 - OUTSIDE) / runs, 0.0)
    low, high = (quantile(logs[:, used].ravel(), shared, share) for share in (outside, 1.0 - outside))
    return min(low, 0.0), max(high, 0.0)


def write_bands(bands: Mapping[str, Mapping[str, Band]], folder: Path, date: str) -> None:
    """Write the `errors:` section of every stack file, in place of an older one; bands of `supposed_software` stay."""
    for name, regimes in bands.items():
        path = folder / "stacks" / f"{name}.yaml"
        text = path.read_text()
        supposed = "".join(re.findall(rf"^  {ASSUMED}\w+/.*\n(?:    .*\n)*", text, flags=re.M))
        text = re.sub(r"^errors:\n(?:  .*\n)*", "", text, flags=re.M).rstrip("\n") + "\n"
        lines = ["errors:", *supposed.splitlines()]
        for kind, (low, high, runs) in regimes.items():
            source = f"runs left out by {', '.join(HONEST)}, {date}"
            if kind.startswith(ASSUMED):
                source = f"runs projected with a stack that is not theirs, {date}"
            elif not runs:
                source = f"as runs left out by {NEW_REGIME}, {date}"
            lines.append(f"  {kind}:")
            for key, value in (("low", round(low, 3)), ("high", round(high, 3)), ("runs", runs)):
                lines.append(f'    {key}: {{value: {value}, source: "{source}"}}')
        path.write_text(text + "\n".join(lines) + "\n")


MEMORY = "memory"

POOLED = 8.0
"""Runs that all runs of a family together count for beside those that a stack was assumed for."""


@dataclass(frozen=True, slots=True)
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
    is_known = np.array([is_informative(case) for case in cases])
    logs = np.stack([np.asarray(left_out[split], np.float64) for split in HONEST])
    guesses = [
        *_guesses([case for case in cases if is_informative(case)], logs[:, is_known]),
        *_guessed([case for case in cases if not is_informative(case)], logs[:, ~is_known]),
    ]
    memory = _memory_band(guesses)
    return {
        name: {ASSUMED + kind: _band([g for g in guesses if g.kind == kind], name) for kind in ("dense", "moe")}
        | {ASSUMED + MEMORY: memory}
        for name in stacks
    }


def _guesses(cases: Sequence[MeasuredRun], left_out: Floats) -> Iterator[_Guess]:
    """Every run as each stack at home where it is might have made it, instead of the one that would be assumed."""
    weights = duplicate_weights(case.duplicate_key for case in cases).tolist()
    common: dict[tuple[str, bool], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case, weight in zip(cases, weights, strict=True):
        common[_habitat(case)][case.cluster.stack.name] += weight
    assumed = [stack_without_source(case) for case in cases]
    wanted = {(i, name) for i, case in enumerate(cases) for name in {*common[_habitat(case)], assumed[i]}}
    known = _projected(cases, sorted(wanted))
    for i, case in enumerate(cases):
        others = {name: n for name, n in common[_habitat(case)].items() if name != assumed[i]}
        for name, count in others.items():
            if (i, name) in known and (i, assumed[i]) in known:
                rate, memory = np.log(known[i, name]) - np.log(known[i, assumed[i]])
                rates, weight = tuple((rate - left_out[:, i]).tolist()), weights[i] * count / sum(others.values())
                yield _Guess(case.family, assumed[i], rates, float(memory), weight)


def _guessed(cases: Sequence[MeasuredRun], left_out: Floats) -> Iterator[_Guess]:
    """Runs whose software nobody named, as measured."""
    weights = duplicate_weights(case.duplicate_key for case in cases).tolist()
    peaks = {id(row.run): row.memory for row in project_runs(cases)[0]}
    for i, case in enumerate(cases):
        peak, rates = peaks.get(id(case)), tuple((-left_out[:, i]).tolist())
        memory = float(np.log(peak[1] / peak[0])) if peak else None
        yield _Guess(case.family, case.cluster.stack.name, rates, memory, weights[i])


def _habitat(case: MeasuredRun) -> tuple[str, bool]:
    """Where a stack is at home: an architecture, and whether weights are sharded."""
    return case.cluster.accelerator.arch, bool(case.candidates.sharding[0] >= Sharding.FSDP2)


def _projected(
    cases: Sequence[MeasuredRun], wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], tuple[float, float]]:
    """Rate and bytes that have to fit, by number of the case and stack; without those that cannot be projected."""
    supposed = [made_with(cases[i], name) for i, name in wanted]
    keys = {id(case): key for case, key in zip(supposed, wanted, strict=True)}
    found = {}
    for row in project_runs(supposed)[0]:
        memory = row.projection.memory
        found[keys[id(row.run)]] = row.predicted, float(memory.allocated[0] + memory.context[0])
    return found


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
    measured = [g for g in guesses if g.memory is not None]
    if not measured:
        return UNKNOWN_MEMORY.low, UNKNOWN_MEMORY.high, 0
    totals: dict[str, float] = defaultdict(float)
    for g in measured:
        totals[g.assumed] += g.weight
    weights = np.array([g.weight / totals[g.assumed] for g in measured])
    runs = sum(totals.values())
    low, high = np.exp(outer(np.array([[g.memory for g in measured]]), weights, runs)).tolist()
    return low, high, round(runs)
