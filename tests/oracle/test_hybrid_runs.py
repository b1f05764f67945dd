"""Training runs of hybrid models that others measured (data/hybrid_runs.csv), and what a fit leaves of them.

The table is in no fit but one: the share of peak that chunked scans reach is fitted to its runs of one stack. Its error
is that of a model left out, fitted to one model's runs and judged on the other's, and that of runs of other software.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from primus_search.cost.parts.mixer_operations import unmeasured_mixers
from primus_search.cost.project import Projector
from primus_search.evidence.published.convert import measured_table
from primus_search.values.measured_run import MeasuredRun

TABLE = Path(__file__).parent / "data" / "hybrid_runs.csv"
MEDIAN, LEAST_RUNS = 0.12, 15
STACK = "megatron_core_2026"
SHARES = tuple(0.06 * 0.8**step for step in range(4, 12))
"""Shares of peak tried for chunked scans, below the assumed 0.06; larger ones are worse for both models."""


@lru_cache(maxsize=1)
def runs() -> tuple[MeasuredRun, ...]:
    return measured_table(TABLE).runs


@lru_cache(maxsize=4096)
def rate(model: str, gpu: str, row: tuple[object, ...], share: float | None) -> float:
    """Tokens per second and GPU of the first run of that setting; `share` in place of the stack's."""
    run = next(run for run in runs() if setting(run) == (model, gpu, row))
    job = run.job
    if share is not None:
        efficiencies = replace(job.stack.efficiencies, scan_efficiency=share)
        job = replace(job, cluster=replace(job.cluster, stack=replace(job.stack, efficiencies=efficiencies)))
    return float(Projector(job).project(run.candidates).tokens_per_s_per_gpu[0])


def setting(run: MeasuredRun) -> tuple[str, str, tuple[object, ...]]:
    """What two runs share that differ in their release only."""
    return run.model.name, run.hardware, tuple(run.candidates.row(0).values())


def errors(some: list[MeasuredRun], share: float | None = None) -> np.ndarray:
    """Projected over measured rate, less one."""
    return np.array([rate(*setting(run), share) / run.measured.tokens_per_s_per_gpu - 1.0 for run in some])


def of_stack(model: str | None = None) -> list[MeasuredRun]:
    return [run for run in runs() if run.cluster.stack.name == STACK and model in (None, run.model.name)]


def test_the_table_has_enough_runs_of_models_with_unmeasured_mixers_and_their_source() -> None:
    assert len(runs()) >= LEAST_RUNS
    assert len({setting(run) for run in runs()}) >= 10
    for run in runs():
        assert unmeasured_mixers(run.model) and run.provenance.source and run.provenance.notes


def test_a_model_left_out_of_the_fit_of_scans_is_projected_within_what_is_promised() -> None:
    found = []
    models = sorted({run.model.name for run in of_stack()})
    for model in models:
        others = [run for run in of_stack() if run.model.name != model]
        best = min(SHARES, key=lambda share: float(np.median(np.abs(errors(others, share)))))
        found.append(np.abs(errors(of_stack(model), best)))
    assert float(np.median(np.concatenate(found))) <= MEDIAN


def test_runs_of_other_software_and_devices_are_projected_within_what_is_promised() -> None:
    others = [run for run in runs() if run.cluster.stack.name != STACK]
    assert others
    assert float(np.median(np.abs(errors(others)))) <= MEDIAN


def test_shipped_numbers_project_these_runs_within_what_is_promised() -> None:
    assert float(np.median(np.abs(errors(list(runs()))))) <= MEDIAN
