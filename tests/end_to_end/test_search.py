"""The search against brute force over the same model, on every engine, interrupted and continued."""

import csv
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from primus_search.analysis.answer import answered
from primus_search.base.errors import InputError, NothingFits
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.exploration import funnel
from primus_search.exploration.exhaustive import evaluate as evaluation
from primus_search.exploration.exhaustive.bounds_and_steps import MEMORY_READS
from primus_search.exploration.exhaustive.shortlist import PER_GROUP, SLOWEST, without_noise
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.ranking_table import RANKED_ROWS
from primus_search.exploration.result import SearchResult
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.space import Enumerator, Space
from primus_search.space.enumerate import INNER

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
    """Numbers of all fitting rows by step time, and of the frontier of expected rates: one table, no pruning."""
    everything = Enumerator(space).chunk(0, 10**9)
    projector = Projector(space.job, memory_margin=space.search.memory_margin)
    projection = projector.project(everything.candidates)
    step, memory = without_noise(projection.step.total), without_noise(projection.memory.total)
    fitting = [int(i) for i in np.flatnonzero(projection.fits)]
    ranked = sorted(fitting, key=lambda i: (step[i], i))
    frontier: list[int] = []
    expected = without_noise(step / expected_shares(projector, everything.candidates, step))
    for i in sorted(fitting, key=lambda i: (memory[i], expected[i], i)):
        if not frontier or expected[i] < expected[frontier[-1]]:
            frontier.append(i)
    return ranked, frontier


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(6))
def test_pruning_loses_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(seed)
    ranked, frontier = brute_force(space)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 500)
    monkeypatch.setattr(funnel, "LEAST_RANKED", 0)
    result = run_search(space, Options(keep=20, workers=1))
    assert sorted(result.ranking.indices.tolist()) == sorted(ranked[:20])
    rows = list(zip(result.ranking.expected_step_s.tolist(), result.ranking.indices.tolist(), strict=True))
    assert rows[1:] == sorted(rows[1:])
    assert rows[0][0] <= min(rows)[0] / (1.0 - TIE), "the plainest row inside the noise leads"
    assert result.frontier.indices.tolist() == frontier
    assert result.feasible == len(ranked)
    assert result.exact and result.is_complete
    projected = next(stage for stage in result.stages if stage.name == "project")
    assert projected.rows < result.feasible


def test_the_best_of_every_layout_and_precision_are_kept() -> None:
    space = space_of(2)
    everything = Enumerator(space).chunk(0, 10**9)
    projection = Projector(space.job, memory_margin=space.search.memory_margin).project(everything.candidates)
    step, c = without_noise(projection.step.total), everything.candidates
    by_group: dict[tuple[int, ...], list[int]] = {}
    for i in np.flatnonzero(projection.fits).tolist():
        by_group.setdefault((c.fp8[i], c.tp[i], c.pp[i], c.cp[i], c.ep[i], c.etp[i]), []).append(i)
    best = {fp8: min(step[rows].min() for key, rows in by_group.items() if key[0] == fp8) for fp8, *_ in by_group}
    wanted = {
        i
        for key, rows in by_group.items()
        for i in sorted(rows, key=lambda i: (step[i], i))[:PER_GROUP]
        if step[i] <= SLOWEST * best[key[0]]
    }
    found = run_search(space, Options(keep=20, workers=1)).best
    assert set(found.leaders.indices.tolist()) == wanted and len(by_group) > len(best) > 1


def test_memory_ignores_what_the_funnel_thinks_it_ignores() -> None:
    """The memory stage computes once for rows that differ in these axes alone; here they are computed apart."""
    for seed in range(4):
        space = space_of(seed)
        table = Enumerator(space).chunk(0, 3000).candidates
        projector = Projector(space.job)
        usual = projector.memory_bytes(table)
        for name in set(INNER) - MEMORY_READS:
            column = table.columns()[name]
            flipped = ~column if column.dtype == np.bool_ else np.where(column == 0, 1, 0)
            assert (projector.memory_bytes(replace(table, **{name: flipped})) == usual).all()


def test_a_row_costs_the_same_alone_as_in_a_table_up_to_the_order_of_additions() -> None:
    space = space_of(1)
    table = Enumerator(space).chunk(0, 4000).candidates
    projector = Projector(space.job)
    whole = projector.project(table)
    fresh = Projector(space.job)
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
        opened.write(answered(result))
    finally:
        opened.close()
    return result


@pytest.mark.in_turn
def test_any_number_of_processes_and_any_chunk_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = space_of(1)
    searched(space, tmp_path / "one", workers=1)
    monkeypatch.setattr(evaluation, "CHUNK_ROWS", 700)
    monkeypatch.setattr("primus_search.exploration.exhaustive.task_plan.CHUNK_ROWS", 700)
    searched(space, tmp_path / "two", workers=2)
    assert ranking_of(tmp_path / "one") == ranking_of(tmp_path / "two")


@pytest.mark.in_turn
@pytest.mark.slow
def test_ray_gives_the_same_files_as_this_process(tmp_path: Path) -> None:
    space = space_of(1)
    local = searched(space, tmp_path / "local", engine="local", workers=1)
    distributed = searched(space, tmp_path / "ray", engine="ray", workers=2)
    assert (local.engine, distributed.engine) == ("local", "ray")
    assert ranking_of(tmp_path / "local") == ranking_of(tmp_path / "ray")


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


def test_where_no_single_change_suffices_the_closest_is_named_with_what_it_misses() -> None:
    data = {
        "model": "llama3_70b", "hardware": "mi300x", "nodes": 1,
        "workload": {"seq_length": 8192, "global_batch_size": 512},
        "space": {"tp": 8, "pp": 1, "cp": 1, "recompute": "none", "micro_batch_size": 8, "fp8": "none",
                  "sharding": "distributed_optimizer", "optimizer_offload": 0, "offload_modules": "none"},
    }  # fmt: skip
    with pytest.raises(NothingFits) as caught:
        run_search(make_space(data))
    said = str(caught.value).splitlines()[-1]
    found = re.fullmatch(r"what would make it fit: no single change was found; (.*) still misses ([\d.]+) GB", said)
    assert found is not None, said
    changes = dict(part.split("=") for part in re.sub(r"[()]|with ", "", found[1]).replace(" ", ",").split(",") if part)
    data["space"] |= {name: yaml.safe_load(value) for name, value in changes.items()}
    with pytest.raises(NothingFits) as caught:
        run_search(make_space(data))
    assert f"it misses by {found[2]} GB" in str(caught.value)


def test_run_json_and_csv_have_the_keys_that_stay_put(tmp_path: Path) -> None:
    result = searched(space_of(1), tmp_path, workers=1)
    run = json.loads((tmp_path / "run.json").read_text())
    assert set(run) >= {
        "space", "nodes", "engine", "workers", "seed", "exact", "legal", "feasible", "stages", "peak_rss_bytes", "best",
    }  # fmt: skip
    assert [stage["name"] for stage in run["stages"]][:4] == ["enumerate", "memory", "bound", "project"]
    assert all(set(stage) == {"name", "rows", "seconds", "rows_per_s"} for stage in run["stages"])
    with (tmp_path / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:7] == ["tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch_size"]
    assert list(rows[0])[-17:] == [
        "dp", "microbatches", "tokens_per_s", "tokens_per_s_per_gpu", "expected_tokens_per_s_per_gpu",
        "tokens_per_s_per_gpu_low",
        "tokens_per_s_per_gpu_high", "ties_with_best", "step_s", "memory_bytes", "headroom_bytes", "fit_probability",
        "bubble_ratio", "mfu", "memory_verdict", "time_evidence", "memory_evidence",
    ]  # fmt: skip
    speeds = [float(row["expected_tokens_per_s_per_gpu"]) for row in rows]
    listed = min(len(result.ranking), RANKED_ROWS)
    head, behind = speeds[:listed], speeds[listed:]
    assert head[1:] == sorted(head[1:], reverse=True) and behind == sorted(behind, reverse=True)
    assert head[0] >= max(head) * (1.0 - TIE), "the plainest row inside the noise leads"
    assert run["best"]["expected_tokens_per_s_per_gpu"] == speeds[0]
