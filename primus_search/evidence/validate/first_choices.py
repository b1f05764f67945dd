"""What the first choice of a search would have cost: runs of one job, each configuration once."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from primus_search.evidence.validate.score_runs import ScoredRun

SMALLEST = 4


def sweeps(rows: Sequence[ScoredRun]) -> list[list[ScoredRun]]:
    """Runs of one job, each configuration once with its fastest run."""
    jobs: dict[tuple[Any, ...], dict[tuple[object, ...], ScoredRun]] = defaultdict(dict)
    for row in rows:
        run = row.run
        found = jobs[run.group, run.gpu, run.cluster.world, run.workload, run.precision]
        before = found.setdefault(run.candidate_key, row)
        if run.tokens_per_s_per_gpu > before.run.tokens_per_s_per_gpu:
            found[run.candidate_key] = row
    return [list(found.values()) for found in jobs.values() if len(found) >= SMALLEST]


def first_choices(found: Sequence[Sequence[ScoredRun]]) -> dict[str, float]:
    """Figures of some sweeps, each sweep counted once; without sweeps, only how many there are.

    A sweep is one source's runs of one job (model, device, number of devices, workload, precision) in at least
    `SMALLEST` configurations; its first choice is the configuration of the highest projected rate.

    bias      projected over measured rate, less 1: of the first choice, and of all runs of its sweep
    regret    what the first choice loses against the fastest measured configuration of its sweep
    coverage  share of measured rates inside the 90 % band of the first choice, and of all runs
    """
    if not found:
        return {"sweeps": 0, "runs": 0}
    chosen = [max(sweep, key=lambda row: row.predicted) for sweep in found]
    fastest = [max(row.run.tokens_per_s_per_gpu for row in sweep) for sweep in found]
    regrets = [1.0 - one.run.tokens_per_s_per_gpu / best for one, best in zip(chosen, fastest, strict=True)]
    return {
        "sweeps": len(found),
        "runs": sum(map(len, found)),
        "bias of the first choice": float(np.mean([row.error for row in chosen])),
        "bias of its sweep": float(np.mean([np.mean([row.error for row in sweep]) for sweep in found])),
        "mean regret": float(np.mean(regrets)),
        "worst regret": max(regrets),
        "first choice in its band": float(np.mean([row.is_inside for row in chosen])),
        "all runs in their bands": float(np.mean([np.mean([row.is_inside for row in sweep]) for sweep in found])),
    }
