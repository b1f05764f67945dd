"""Peak memory with the numbers that were fitted to peaks fitted again without a row's source and model.

Two numbers stand on peaks of runs: the device context of MI355X under Primus, and what Megatron-DeepSpeed holds beyond
what is counted. Each is a constant, so leaving runs out moves a projection by the difference of two constants.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun
from primus_search.evidence.validate.scores import duplicate_weights, score

DATA = Path(__file__).parent / "data"
# Reserved memory of the first iteration, before the optimizer state exists: not the peak (see its notes).
NOT_A_PEAK = {"amd2-007"}

FITTED: tuple[Callable[[ScoredRun], bool], ...] = (
    lambda row: row.run.cluster.accelerator.name == "MI355X" and row.run.measured.peak_kind == "driver",
    lambda row: row.run.cluster.stack.name == "megatron_deepspeed",
)


def rows_with_a_peak() -> list[ScoredRun]:
    found: list[ScoredRun] = []
    for name in ("measured_memory.csv", "oom_runs.csv"):
        outcome = validated(DATA / name)
        found += [row for row in (*outcome.rows, *outcome.memory_only) if row.memory is not None]
    return [row for row in found if row.run.id not in NOT_A_PEAK]


def shift_bytes(projected: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> float:
    """What added to every projection makes the sum of relative errors least."""
    candidates = measured - projected
    total = [float((weights * np.abs((projected + shift) / measured - 1.0)).sum()) for shift in candidates]
    return float(candidates[int(np.argmin(total))])


def test_peaks_of_runs_whose_source_and_model_took_no_part_in_a_fit() -> None:
    rows = rows_with_a_peak()
    projected, measured = np.array([row.memory for row in rows if row.memory is not None]).T
    weights = duplicate_weights(row.run.duplicate_key for row in rows)
    groups = [row.run.group for row in rows]
    left_out = projected.copy()
    for belongs in FITTED:
        mine = np.array([belongs(row) for row in rows])
        assert mine.sum() >= 10
        for group in {groups[i] for i in np.flatnonzero(mine)}:
            out = mine & np.array([other == group for other in groups])
            rest = mine & ~out
            left_out[out] += shift_bytes(projected[rest], measured[rest], weights[rest])
    found = score(left_out / measured - 1.0, weights)
    assert found.rows >= 95
    assert found.median_abs_error <= 0.04
    assert found.p90_abs_error <= 0.10
    assert abs(found.bias) <= 0.03
