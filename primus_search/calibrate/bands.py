"""How far projections of runs that no fit has seen lie from what was measured: the error bands of a stack's file.

A band holds nine of ten left-out runs of its stack and family (dense, MoE). Left out are, in turn, a run's source and
model together, its whole model and its whole source (`HONEST`): what somebody plans is mostly a new model or a new
cluster, not one more row of a known table. A few runs say little about their own tails, so

    sample = own runs, and with the weight of `POOLED` runs those of all stacks of the family
    shares = outer 5 % of n distinct runs of the family: rank (n + 1) 0.95, half a rank in (split conformal prediction)

Source: Vovk, Gammerman, Shafer 2005, Algorithmic Learning in a Random World; Lei et al. 2018 (doi:10.1080/01621459.
2017.1307116) for the finite-sample shift.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np

from primus_search.candidates import Bools, Floats
from primus_search.cost.uncertainty import ASSUMED, UNKNOWN
from primus_search.validate.cases import Case
from primus_search.validate.score import duplicate_weights, quantile

HONEST = ("source and model", "model", "source")
"""What is left out, in turn, for an error band."""

POOLED = 8.0
"""Runs that all stacks of a family together count for beside a stack's own."""

OUTSIDE = 0.05
"""Share of runs below a band, and above it."""


Band = tuple[float, float, int, tuple[str, ...]]
"""Ends of a band, and how many of its runs are the stack's own, on which architectures."""


def error_bands(cases: Sequence[Case], left_out: Sequence[Floats]) -> dict[str, dict[str, Band]]:
    """Per stack and regime: outer quantiles of measured / projected on left-out runs, and the stack's own runs."""
    sample = _Sample(cases, left_out)
    everyone = np.ones(len(cases), dtype=bool)
    found: dict[str, dict[str, Band]] = {}
    for name in dict.fromkeys(sample.stacks.tolist()):
        found[name] = {}
        for kind in ("dense", "moe"):
            own = [c.cluster.accelerator.arch for c in cases if c.cluster.stack.name == name and regime(c) == kind]
            found[name][kind] = (*sample.band(everyone, name, kind), len(own), tuple(sorted(set(own))))
    return found


def bands_of_others(
    cases: Sequence[Case], left_out: Sequence[Floats], groups: Sequence[Hashable]
) -> list[tuple[float, float]]:
    """Per run the band of its stack and regime made without its group, which the band then has not seen."""
    sample = _Sample(cases, left_out)
    names = list(dict.fromkeys(groups))
    number = np.array([names.index(group) for group in groups])
    known: dict[tuple[int, str, str], tuple[float, float]] = {}
    for key in zip(number.tolist(), sample.stacks.tolist(), sample.regimes.tolist(), strict=True):
        if key not in known:
            group, stack, kind = key
            known[key] = sample.band(number != group, stack, kind)
    return [known[key] for key in zip(number.tolist(), sample.stacks.tolist(), sample.regimes.tolist(), strict=True)]


class _Sample:
    """Measured / projected of every run and every way to leave it out, with what a band is asked by."""

    def __init__(self, cases: Sequence[Case], left_out: Sequence[Floats]) -> None:
        self.ratios = np.exp(-np.stack([np.asarray(logs, np.float64) for logs in left_out]))
        self.weights = duplicate_weights(case.duplicate_key for case in cases)
        self.regimes = np.array([regime(case) for case in cases])
        self.stacks = np.array([case.cluster.stack.name for case in cases])

    def band(self, offered: Bools, stack: str, kind: str) -> tuple[float, float]:
        """The band of a stack and regime from the runs on offer; of all regimes where there is none of this one."""
        alike = offered & (self.regimes == kind)
        alike = alike if alike.any() else offered
        if not alike.any():
            return UNKNOWN.low, UNKNOWN.high
        own = np.where(alike & (self.stacks == stack), self.weights, 0.0)
        pool = np.where(alike, self.weights, 0.0)
        weights = own + pool * POOLED / pool.sum()
        return outer(self.ratios, weights, float(pool.sum()))


def outer(values: Floats, weights: Floats, runs: float) -> tuple[float, float]:
    """Outer quantiles of measured / projected: a row per way to leave runs out, weights per run, `runs` distinct."""
    used = weights > 0.0
    shared = np.tile(weights[used] / len(values), len(values))
    outside = max(OUTSIDE - (0.5 - OUTSIDE) / runs, 0.0)
    low, high = (quantile(values[:, used].ravel(), shared, share) for share in (outside, 1.0 - outside))
    return min(low, 1.0), max(high, 1.0)


def regime(case: Case) -> str:
    """What a run's error is compared with: other dense or other MoE runs."""
    return "moe" if case.model.is_moe else "dense"


def write_bands(bands: Mapping[str, Mapping[str, Band]], folder: Path, date: str) -> None:
    """Write the `errors:` section of every stack file, in place of an older one."""
    for name, regimes in bands.items():
        path = folder / "stacks" / f"{name}.yaml"
        text = re.sub(r"^errors:\n(?:  .*\n)*", "", path.read_text(), flags=re.M).rstrip("\n") + "\n"
        lines = ["errors:"]
        for kind, (low, high, runs, arches) in regimes.items():
            source = f"runs left out by {', '.join(HONEST)}, {date}"
            if kind.startswith(ASSUMED):
                source = f"runs projected with a stack that is not theirs, {date}"
            lines.append(f"  {kind}:")
            for key, value in (("low", round(low, 3)), ("high", round(high, 3)), ("runs", runs)):
                lines.append(f'    {key}: {{value: {value}, source: "{source}"}}')
            if arches:
                lines.append(f'    arches: {{value: [{", ".join(arches)}], source: "{source}"}}')
        path.write_text(text + "\n".join(lines) + "\n")
