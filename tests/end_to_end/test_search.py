"""The search against brute force over the same model, on every engine, interrupted and continued."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.errors import InputError, NothingFits
from primus_search.search import Options, RunFolder, SearchResult, run_search
from primus_search.search import evaluate as evaluation
from primus_search.search.evaluate import MEMORY_IGNORES, Funnel, Task
from primus_search.search.shortlist import OPEN, without_noise
from primus_search.space import Enumerator, Space

SMALL = {"sync_free_stage": [0, 1], "loss_fusion": True, "etp": 1, "cp": [1, 2], "micro_batch_size": [1, 2]}


def space_of(seed: int = 0, **changes: Any) -> Space:
    rng = random.Random(seed)
    axes = SMALL | {"tp": rng.choice(["auto", [1, 2], [2, 4]]), "pp": rng.choice([[1, 2], [2, 4], [1, 4]])}
    axes |= {"schedule": rng.choice([["1f1b", "interleaved"], ["1f1b", "zb-h1"], ["interleaved", "1f1b"]])}
    data = {
        "model": rng.choice(["tiny", "tiny_moe"]),
        "hardware": rng.choice(["mi355x", "h100"]),
        "nodes": 2,
        "workload": {"seq_length": 1024, "global_batch_size": 64},
        "space": axes,
    }
    return make_space(data | changes)


def brute_force(space: Space) -> tuple[list[int], list[int]]:
    """Numbers of all fitting rows by step time, and of the frontier by memory: one table, no pruning."""
    everything = Enumerator(space).chunk(0, 10**9)
    projector = Projector(space.model, space.cluster, space.workload, memory_margin=space.search.memory_margin)
    projection = projector.project(everything.candidates)
    step, memory = without_noise(projection.step.total), without_noise(projection.memory.total)
    fitting = [int(i) for i in np.flatnonzero(projection.fits)]
    ranked = sorted(fitting, key=lambda i: (step[i], i))
    frontier: list[int] = []
    for i in sorted(fitting, key=lambda i: (memory[i], step[i], i)):
        if not frontier or step[i] < step[frontier[-1]]:
            frontier.append(i)
    return ranked, frontier


@pytest.mark.parametrize("seed", range(6))
def test_pruning_loses_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(seed)
    ranked, frontier = brute_force(space)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    result = run_search(space, Options(keep=20, workers=1))
    assert result.ranking.indices.tolist() == ranked[:20]
    assert result.frontier.indices.tolist() == frontier
    assert result.feasible == len(ranked)
    assert result.exact and result.is_complete
    projected = next(stage for stage in result.stages if stage.name == "project")
    assert projected.rows < result.feasible


def test_memory_ignores_what_the_funnel_thinks_it_ignores() -> None:
    """The memory stage computes once for rows that differ in these axes alone; here they are computed apart."""
    for seed in range(4):
        space = space_of(seed)
        table = Enumerator(space).chunk(0, 3000).candidates
        projector = Projector(space.model, space.cluster, space.workload)
        usual = projector.memory_bytes(table)
        for name in MEMORY_IGNORES:
            column = table.columns()[name]
            flipped = ~column if column.dtype == np.bool_ else np.where(column == 0, 1, 0)
            assert (projector.memory_bytes(replace(table, **{name: flipped})) == usual).all()


def test_a_row_costs_the_same_alone_as_in_a_table_up_to_the_order_of_additions() -> None:
    space = space_of(1)
    table = Enumerator(space).chunk(0, 4000).candidates
    projector = Projector(space.model, space.cluster, space.workload)
    whole = projector.project(table)
    fresh = Projector(space.model, space.cluster, space.workload)
    for i in random.Random(0).sample(range(len(table)), 25):
        alone = fresh.project(table.take(slice(i, i + 1)))
        assert alone.step.total[0] == pytest.approx(whole.step.total[i], rel=1e-13)
        assert alone.memory.total[0] == pytest.approx(whole.memory.total[i], rel=1e-13)


def ranking_of(folder: Path) -> bytes:
    return (folder / "ranking.csv").read_bytes() + (folder / "pareto.csv").read_bytes()


def searched(space: Space, folder: Path, **options: Any) -> SearchResult:
    opened = RunFolder.open(folder, resume=options.get("resume", False))
    try:
        result = run_search(space, Options(folder=opened, keep=options.pop("keep", 200), **options))
        opened.write(result)
    finally:
        opened.close()
    return result


def test_any_number_of_processes_and_any_chunk_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = space_of(1)
    searched(space, tmp_path / "one", workers=1)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 700)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 700)
    searched(space, tmp_path / "two", workers=2)
    assert ranking_of(tmp_path / "one") == ranking_of(tmp_path / "two")


@pytest.mark.slow
def test_ray_gives_the_same_files_as_this_process(tmp_path: Path) -> None:
    space = space_of(1)
    local = searched(space, tmp_path / "local", engine="local", workers=1)
    distributed = searched(space, tmp_path / "ray", engine="ray", workers=2)
    assert (local.engine, distributed.engine) == ("local", "ray")
    assert ranking_of(tmp_path / "local") == ranking_of(tmp_path / "ray")


def test_a_run_that_stopped_half_way_continues_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = space_of(1)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    searched(space, tmp_path / "whole", workers=1)
    real, calls = Funnel.evaluate, []

    def stops_after_three(self: Funnel, task: Task, cut: Any) -> Any:
        calls.append(task.number)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, task, cut)

    monkeypatch.setattr(Funnel, "evaluate", stops_after_three)
    cut_short = searched(space, tmp_path / "part", workers=1)
    assert not cut_short.is_complete and not cut_short.exact
    assert cut_short.notes == ("interrupted: these are the best candidates found so far",)
    again: list[int] = []
    monkeypatch.setattr(Funnel, "evaluate", lambda self, task, cut: again.append(task.number) or real(self, task, cut))
    result = searched(space, tmp_path / "part", workers=1, resume=True)
    assert result.exact
    assert not set(again) & set(calls[:3])
    assert ranking_of(tmp_path / "whole") == ranking_of(tmp_path / "part")
    assert not (tmp_path / "part" / "journal.bin").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "another search"])
def test_a_damaged_journal_costs_time_and_never_the_answer(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = space_of(1)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    searched(space, tmp_path / "whole", workers=1)
    limited = replace(space, search=replace(space.search, method="exhaustive", budget_candidates=1500))
    searched(limited if damage == "another search" else space, tmp_path / "part", workers=1)
    journal = tmp_path / "part" / "journal.bin"
    if damage != "another search":
        folder = RunFolder.open(tmp_path / "part", resume=False)
        opened, _ = folder.journal(Funnel(space, 200), resume=False)
        funnel = Funnel(space, 200)
        for number in range(3):
            opened.add(number, funnel.evaluate(Task(number=number, cluster=0, start=0, stop=500), OPEN))
        opened.close()
        folder.close()
        content = bytearray(journal.read_bytes())
        if damage == "truncate":
            journal.write_bytes(content[:-100])
        else:
            content[len(content) // 2] ^= 0xFF
            journal.write_bytes(content)
        journal_tasks = _true_tasks(space, tmp_path)
        assert journal_tasks < 3
        journal.unlink()
    searched(space, tmp_path / "part", workers=1, resume=True)
    assert ranking_of(tmp_path / "whole") == ranking_of(tmp_path / "part")


def _true_tasks(space: Space, tmp_path: Path) -> int:
    folder = RunFolder.open(tmp_path / "part", resume=True)
    opened, known = folder.journal(Funnel(space, 200), resume=True)
    opened.close()
    folder.close()
    return len(known)


def test_two_runs_in_one_folder_refuse_each_other(tmp_path: Path) -> None:
    first = RunFolder.open(tmp_path / "run", resume=False)
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path / "run", resume=False)
    assert str(caught.value) == (
        f"--out {tmp_path}/run: another run is writing here; wait for it or choose another folder"
    )
    first.close()
    RunFolder.open(tmp_path / "run", resume=False).close()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path, resume=False)
    assert "holds other files (thesis.tex)" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_space_names_the_rules_that_emptied_it() -> None:
    space = space_of(1, space={"tp": 8, "pp": 16, "schedule": "1f1b"}, nodes=16)
    with pytest.raises(InputError) as caught:
        run_search(space)
    assert "no legal candidate among" in str(caught.value)
    assert "stages_have_layers removed" in str(caught.value)


def test_when_nothing_fits_the_nearest_miss_is_named_with_its_remedy() -> None:
    data = {
        "model": "llama3_70b",
        "hardware": "h100",
        "nodes": 4,
        "workload": {"seq_length": 8192, "global_batch_size": 256},
        "space": {
            "tp": 1,
            "pp": [1, 2],
            "recompute": "none",
            "micro_batch_size": 1,
            "sharding": "distributed_optimizer",
        },
    }
    with pytest.raises(NothingFits) as caught:
        run_search(make_space(data))
    message = str(caught.value)
    assert "legal candidates fits" in message and "nearest miss: tp=1 pp=2" in message
    assert "it misses by" in message and "what would make it fit:" in message


def test_run_json_and_csv_have_the_keys_that_stay_put(tmp_path: Path) -> None:
    searched(space_of(1), tmp_path, workers=1)
    run = json.loads((tmp_path / "run.json").read_text())
    assert set(run) >= {
        "space", "nodes", "engine", "workers", "seed", "exact", "legal", "feasible", "stages", "peak_rss_bytes", "best",
    }  # fmt: skip
    assert [stage["name"] for stage in run["stages"]][:4] == ["enumerate", "memory", "bound", "project"]
    assert all(set(stage) == {"name", "rows", "seconds", "rows_per_s"} for stage in run["stages"])
    with (tmp_path / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:7] == ["tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch_size"]
    assert list(rows[0])[-15:] == [
        "dp", "microbatches", "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_gpu_low",
        "tokens_per_s_per_gpu_high", "ties_with_best", "step_s", "memory_bytes", "headroom_bytes", "fit_probability",
        "bubble_ratio", "mfu", "time_evidence", "memory_evidence",
    ]  # fmt: skip
    speeds = [float(row["tokens_per_s"]) for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert run["best"]["tokens_per_s"] == speeds[0]


def test_a_budget_of_candidates_stops_early_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    space = space_of(1)
    limited = replace(space, search=replace(space.search, method="exhaustive", budget_candidates=1500))
    result = run_search(limited, Options(workers=1))
    assert not result.exact and 1500 <= result.legal <= 2000
    assert result.notes == ("the budget ran out: these are the best candidates found so far",)


DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_search as t
from primus_search.search import evaluate as evaluation, plan
evaluation.CHUNK_ROWS = plan.CHUNK_ROWS = 500
real = evaluation.Funnel.evaluate
def slow(self, task, cut):
    time.sleep(0.15)
    return real(self, task, cut)
evaluation.Funnel.evaluate = slow
t.searched(t.space_of(1), Path(sys.argv[1]), workers=2, resume="--resume" in sys.argv)
"""


@pytest.mark.slow
def test_a_killed_driver_loses_at_most_what_was_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    searched(space_of(1), tmp_path / "whole", workers=1)
    driver = DRIVER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", driver, str(tmp_path / "part")]
    process = subprocess.Popen(command, start_new_session=True)
    journal = tmp_path / "part" / "journal.bin"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.stat().st_size > 20_000):
        time.sleep(0.05)
    process.kill()
    process.wait()
    known = _true_tasks(space_of(1), tmp_path)
    assert known > 0
    _wait_until_gone(process.pid)
    subprocess.run([*command, "--resume"], check=True, timeout=120)
    assert ranking_of(tmp_path / "whole") == ranking_of(tmp_path / "part")


def _wait_until_gone(session: int, seconds: float = 20.0) -> None:
    """Worker processes of a killed driver must end by themselves."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not _processes_of(session):
            return
        time.sleep(0.1)
    raise AssertionError(f"orphans: {_processes_of(session)}")


def _processes_of(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def test_a_killed_worker_process_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr("primus_search.search.plan.CHUNK_ROWS", 500)
    space = space_of(1)
    searched(space, tmp_path / "whole", workers=1)
    real, marker, driver = Funnel.evaluate, tmp_path / "died", os.getpid()

    def dies_once(self: Funnel, task: Task, cut: Any) -> Any:
        if os.getpid() != driver and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, task, cut)

    monkeypatch.setattr(Funnel, "evaluate", dies_once)
    result = searched(space, tmp_path / "part", workers=2)
    assert marker.exists() and result.exact
    assert ranking_of(tmp_path / "whole") == ranking_of(tmp_path / "part")
