"""Sampled searches: good where the truth is known, within their budgets, and the same again from a seed."""

import errno
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus_search.base.errors import NothingFits
from primus_search.declare import make_space
from primus_search.exploration.exhaustive.collect import Budget
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import OPEN, Shortlist
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.exploration.sampled.nearest import Nearest
from primus_search.exploration.sampled.samplers import run_sampler
from primus_search.exploration.sampled.screening import ScreenedCluster
from primus_search.space import Enumerator, Space
from primus_search.space.enumerate import INNER, OUTER
from tests.end_to_end.test_search import ranking_of, searched, space_of
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.sampler_truth import hypervolume_share, regret

METHODS = ("tpe", "nsga2", "nsga3", "qmc", "random")
Whole = Callable[[str], tuple[Path, SearchResult]]


def wide_space(**changes: Any) -> Space:
    """85,000 legal candidates of a small model: too many to walk by chance, few enough to walk for the truth."""
    data = {
        "model": "tiny_moe",
        "hardware": "h100",
        "nodes": 4,
        "workload": {"seq_length": 2048, "global_batch_size": 128},
        "space": {"cp": 1, "overlap_grad_reduce": True},
    }
    return make_space(data | changes)


def sampled(space: Space, method: str = "tpe", **budget: Any) -> Space:
    return replace(space, search=replace(space.search, method=method, **budget))


@pytest.fixture(scope="module")
def walked() -> tuple[Funnel, Shortlist]:
    """The wide space and its truth."""
    funnel = Funnel(wide_space(), 1000)
    task = Task(number=0, cluster=0, start=0, stop=funnel.enumerators[0].size)
    return funnel, funnel.evaluate(task, OPEN).shortlist


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An undisturbed search of 70 evaluations by a method, made once, in which no warning is heard."""

    @cache
    def run(method: str) -> tuple[Path, SearchResult]:
        folder = tmp_path_factory.mktemp(method) / "whole"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return folder, searched(sampled(space_of(2), method, budget_evaluations=70), folder, workers=1)

    return run


@pytest.mark.parametrize("whole", TODAY_OR_ALL)
@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_a_sampler_finds_the_best_and_the_frontier_where_the_truth_is_known(
    method: str, whole: bool, walked: tuple[Funnel, Shortlist]
) -> None:
    funnel, truth = walked
    for seed in drawn(method, range(2), 1, whole=whole):
        found = run_sampler(funnel, method, Budget(candidates=250), seed)
        assert found.evaluations <= 250
        assert regret(found.findings[0].shortlist.top, truth.top) <= 0.01
        assert hypervolume_share(found.findings[0].shortlist.frontier, truth.frontier) >= 0.98


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_its_budget_and_repeats_itself(method: str, whole: Whole, tmp_path: Path) -> None:
    folder, first = whole(method)
    searched(sampled(space_of(2), method, budget_evaluations=70), tmp_path / "again", workers=1)
    assert ranking_of(folder) == ranking_of(tmp_path / "again")
    assert (first.method, first.exact, first.is_complete) == (method, False, True)
    projected = next(stage for stage in first.stages if stage.name == "project")
    assert 0 < projected.rows <= 70


def test_a_gaussian_process_keeps_its_budget_and_repeats_itself() -> None:
    """Apart and short: each of its proposals takes seconds."""
    funnel = Funnel(space_of(2), 100)
    runs = [run_sampler(funnel, "gp", Budget(candidates=20), 0) for _ in range(2)]
    assert [run.evaluations for run in runs] == [20, 20]
    first, again = (run.findings[0].shortlist.top for run in runs)
    assert first.indices.tolist() == again.indices.tolist()


def test_no_candidate_is_projected_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = ScreenedCluster.project, list[int]()

    def counted(self: ScreenedCluster, screened: Any) -> None:
        seen.extend(screened.numbers.tolist())
        real(self, screened)

    monkeypatch.setattr(ScreenedCluster, "project", counted)
    found = run_sampler(Funnel(space_of(2), 100), "tpe", Budget(candidates=150), 0)
    assert len(seen) == len(set(seen)) == found.evaluations


@pytest.mark.in_turn
def test_candidates_that_do_not_fit_are_screened_and_never_projected() -> None:
    space = make_space(
        {
            "model": "llama3_70b",
            "hardware": "h100",
            "nodes": 8,
            "workload": {"seq_length": 8192, "global_batch_size": 256},
            "space": {"cp": 1, "schedule": "1f1b", "recompute": ["none", "selective", {"full": "auto"}]},
        }
    )
    found = run_sampler(Funnel(space, 100), "tpe", Budget(candidates=200), 0)
    (findings,) = found.findings
    assert findings.rows["project"] == found.evaluations <= 200
    assert findings.rows["bound"] < findings.rows["memory"]
    room = space.cluster.accelerator.hbm_bytes * (1.0 - space.search.memory_margin)
    assert (findings.shortlist.rows.memory_bytes <= room).all()


@pytest.mark.in_turn
def test_a_space_where_nothing_fits_names_the_nearest_miss() -> None:
    space = make_space(
        {
            "model": "llama3_70b",
            "hardware": "h100",
            "nodes": 4,
            "workload": {"seq_length": 8192, "global_batch_size": 256},
            "space": {"tp": 1, "pp": [1, 2], "recompute": "none", "sharding": "distributed_optimizer"},
        }
    )
    with pytest.raises(NothingFits) as caught:
        run_search(sampled(space, budget_evaluations=50))
    assert "nearest miss: tp=1 pp=2" in str(caught.value)


def test_auto_samples_what_exceeds_the_budget_of_candidates_and_stays_below_it() -> None:
    result = run_search(sampled(space_of(2), "auto", budget_candidates=60), Options(workers=1))
    assert result.method == "tpe" and "exceed the budget of 60" in result.method_reason
    projected = next(stage for stage in result.stages if stage.name == "project")
    assert projected.rows <= 60


def test_a_budget_of_seconds_ends_a_sampled_search_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("primus_search.exploration.sampled.samplers.time.monotonic", lambda: float(next(clock)))
    result = run_search(sampled(space_of(2), budget_seconds=3.0, budget_evaluations=1000), Options(workers=1))
    assert not result.is_complete and len(result.ranking)
    assert result.notes[-1] == "the budget of seconds ran out: these are the best candidates found so far"


@pytest.mark.in_turn
def test_ctrl_c_ends_a_sampled_search_with_the_best_so_far(tmp_path: Path) -> None:
    def interrupts(tick: Any) -> None:
        if tick.rows_done > 40:
            raise KeyboardInterrupt

    space = sampled(space_of(2), "random", budget_evaluations=80)
    result = searched(space, tmp_path / "part", workers=1, progress=interrupts)
    assert not result.is_complete and len(result.ranking)
    assert result.notes[-1] == "interrupted: these are the best candidates found so far"
    searched(space, tmp_path / "part", workers=1, resume=True)
    searched(space, tmp_path / "whole", workers=1)
    assert ranking_of(tmp_path / "part") == ranking_of(tmp_path / "whole")


def test_the_study_in_the_run_folder_tells_every_trial(tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    (tmp_path / "study.log.lock").symlink_to("left behind by a killed run")
    result = searched(sampled(space_of(2), "nsga2", budget_evaluations=90), tmp_path, workers=1)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name="primus-search", storage=storage)
    assert study.metric_names == ["tokens/s/GPU", "memory GB"]
    complete = [
        trial for trial in study.trials if trial.state.name == "COMPLETE" and trial.constraints["missing_GB"] <= 0
    ]
    best = float(result.ranking.expected_rate.max())
    assert max(trial.values[0] for trial in complete) == pytest.approx(best, rel=1e-9)
    assert len(complete) >= 60


@pytest.mark.daily(1)
@pytest.mark.parametrize("fails_at", [0, 40])
def test_a_full_disk_costs_the_study_and_not_the_search(
    fails_at: int, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optuna.storages.journal import JournalFileBackend

    space, real, calls = (
        sampled(space_of(2), "random", budget_evaluations=70),
        JournalFileBackend.append_logs,
        list[int](),
    )

    def append(self: JournalFileBackend, logs: Any) -> None:
        calls.append(1)
        if len(calls) > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, logs)

    undisturbed, _ = whole("random")
    monkeypatch.setattr(JournalFileBackend, "append_logs", append)
    result = searched(space, tmp_path / "full", workers=1)
    assert len(calls) == fails_at + 1
    assert result.is_complete
    assert result.notes[-1] == "study.log could not be written (No space left on device): it lacks what followed"
    assert ranking_of(tmp_path / "full") == ranking_of(undisturbed)


@pytest.mark.in_turn
def test_a_ladder_is_sampled_on_every_cluster() -> None:
    space = sampled(space_of(2, nodes=[2, 4, 8]), "nsga2", budget_evaluations=150)
    result = run_search(space, Options(workers=1))
    exhaustive = run_search(sampled(space, "exhaustive"), Options(workers=1))
    for found, true in zip(result.clusters, exhaustive.clusters, strict=True):
        assert found.ranking.expected_rate.max() >= 0.99 * true.ranking.expected_rate.max()


# --- settling -------------------------------------------------------------------------------------------------------


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(3))
def test_wanted_positions_settle_on_the_nearest_legal_candidate_axis_by_axis(seed: int) -> None:
    enumerator = Enumerator(space_of(seed))
    rng = np.random.default_rng(seed)
    numbers = rng.integers(enumerator.size, size=300)
    nearest = Nearest(enumerator)
    assert (nearest.numbers(nearest.positions(numbers)) == numbers).all()
    wanted = {name: rng.integers(-1, size + 1, size=200) for name, size in enumerator.job.sizes.items()}
    found = nearest.numbers(wanted)
    everything = nearest.positions(np.arange(enumerator.size))
    for row in random.Random(seed).sample(range(200), 40):
        left = np.arange(enumerator.size)
        for name in (*OUTER, *INNER):
            target = min(max(int(wanted[name][row]), 0), enumerator.job.sizes[name] - 1)
            distance = 2 * np.abs(everything[name][left] - target) + (everything[name][left] > target)
            left = left[distance == distance.min()]
        assert found[row] == left[0] and len(left) == 1


def test_time_is_not_read_where_a_search_must_repeat_itself() -> None:
    """Without a budget of seconds the clock must not change what is proposed."""
    space = space_of(2)
    runs = []
    for pause in (0.0, 0.01):
        found = run_sampler(
            Funnel(space, 50), "tpe", Budget(candidates=64), 3, None, lambda tick, p=pause: time.sleep(p)
        )
        runs.append(found.findings[0].shortlist.top.indices.tolist())
    assert runs[0] == runs[1]
