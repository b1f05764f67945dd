"""Said probability of fitting against what happened: the table between the marks in docs/memory.md.

A run with a published peak stands for a candidate on any device: it runs on each that is as large as its peak. On a
device as large as its peak it is said to fit with a probability p; on those where p is said or more it ran. So of all
runs a share p should have such a probability of p or less.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from primus_search.cost.confidence.fit import fit_probability
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun
from primus_search.evidence.validate.scores import duplicate_weights
from primus_search.values.candidates import Floats

ROOT = Path(__file__).parents[2]
PAGE, DATA = ROOT / "docs" / "memory.md", ROOT / "tests" / "oracle" / "data"
TABLES = ("measured_memory.csv", "oom_runs.csv", "unseen_runs.csv")
NOT_A_PEAK = {"amd2-007"}
"""Reserved memory of the first iteration, before the optimizer state exists: not the peak (see its notes)."""
START, END = "<!-- reliability: python -m tools.docs memory -->\n", "<!-- end of reliability -->\n"
DECILES = tuple(tenth / 10 for tenth in range(11))


def runs() -> tuple[list[ScoredRun], list[ScoredRun]]:
    """Runs that ran, and configurations that ran out of memory."""
    ran, out = list[ScoredRun](), list[ScoredRun]()
    for found in (validated(DATA / name) for name in TABLES):
        ran += [row for row in (*found.rows, *found.memory_only) if row.run.id not in NOT_A_PEAK]
        out += found.ran_out
    return ran, out


def at_their_peaks(rows: Sequence[ScoredRun]) -> tuple[Floats, Floats]:
    """Probability of fitting of runs with a peak on a device as large as it, and weights that count duplicates once."""
    known = [(row, row.memory) for row in rows if row.memory is not None]
    return np.array([_at(row, *pair) for row, pair in known]), duplicate_weights(r.run.duplicate_key for r, _ in known)


def _at(row: ScoredRun, projected_bytes: float, measured_bytes: float) -> float:
    job, memory = row.run.job, row.projection.memory
    device = replace(job.accelerator, hbm_bytes=float(memory.needed[0]) * measured_bytes / projected_bytes)
    there = replace(job, cluster=replace(job.cluster, accelerator=device))
    return float(fit_probability(there, row.run.candidates, memory)[0])


def share_that_ran(probability: Floats, weights: Floats, said: float) -> float:
    """Share of runs that ran on devices on which they are said to fit with that probability."""
    return float((weights * (probability <= said)).sum() / weights.sum())


def page() -> str:
    """docs/memory.md with its table."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return before + START + table() + END + rest.partition(END)[2]


def table() -> str:
    """Both tables as Markdown."""
    ran, out = runs()
    probability, weights = at_their_peaks(ran)
    said = [*DECILES[1:-1], 0.95, 0.99]
    shares = [share_that_ran(probability, weights, one) for one in said]
    every = [(row.fit_probability, True) for row in ran] + [(row.fit_probability, False) for row in out]
    counts = [[did for p, did in every if low <= p < high or p == high == 1.0] for low, high in pairwise(DECILES)]
    lines = [
        f"Any device, {len(probability)} runs with a peak, {weights.sum():.0f} distinct configurations:\n",
        "| said | " + " | ".join(f"{one:.0%}" for one in said) + " |",
        "|---" * (len(said) + 1) + "|",
        "| ran | " + " | ".join(f"{one:.0%}" for one in shares) + " |\n",
        f"Devices as they are, {len(ran)} runs that ran and {len(out)} that ran out:\n",
        "| said | " + " | ".join(f"{low:.0%}-{high:.0%}" for low, high in pairwise(DECILES)) + " |",
        "|---" * len(DECILES) + "|",
        "| ran | " + " | ".join(f"{sum(one)} of {len(one)}" if one else "-" for one in counts) + " |",
    ]
    return "\n".join(lines) + "\n"
