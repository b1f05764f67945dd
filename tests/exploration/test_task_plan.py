"""Tasks cover every candidate once whatever their size, and begin where a schedule begins when they can."""

from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest

from primus_search.declare import load_space
from primus_search.exploration.exhaustive import evaluate, task_plan
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.exhaustive.shortlist import OPEN
from primus_search.exploration.exhaustive.task_plan import plan_tasks, promising_places, seeds
from primus_search.exploration.findings import Findings


@pytest.fixture(scope="module")
def funnel():
    return Funnel(load_space("llama3_8b_mi300x"), 10)


@pytest.mark.parametrize("rows", [1, 997, 4096, 10**9])
def test_every_candidate_is_in_one_task(funnel, rows):
    if rows == 1:
        funnel = Funnel(load_space("tiny_host"), 10)
    tasks = sorted(plan_tasks(funnel, rows, promising_places(funnel)), key=lambda task: task.number)
    size = funnel.enumerators[0].size
    assert [task.start for task in tasks] == [0, *(task.stop for task in tasks[:-1])]
    assert tasks[-1].stop == size
    assert all(0 < task.stop - task.start <= 2 * rows for task in tasks)
    assert [task.number for task in tasks] == list(range(len(tasks)))


def test_most_tasks_begin_with_a_cell(funnel):
    starts = set(funnel.task_orders[0].starts.tolist())
    assert all(task.start in starts for task in plan_tasks(funnel, 2048, promising_places(funnel)))


def test_a_large_space_is_walked_so_that_tasks_share_neither_layers_nor_orders(monkeypatch):
    monkeypatch.setattr(evaluate, "SMALL_ROWS", 0)
    funnel = Funnel(load_space("llama3_8b_mi300x"), 10)
    enumerator, found = funnel.enumerators[0], funnel.task_orders[0]
    assert sorted(found.cells.tolist()) == list(range(len(enumerator.starts) - 1))
    layers, _ = enumerator.outer_numbers(evaluate.CELL_READS)
    assert np.count_nonzero(np.diff(layers[found.cells])) == len(set(layers.tolist())) - 1
    ratio = enumerator.microbatches / enumerator.blocks[0].values["pp"]
    assert (np.diff(ratio[found.cells]) >= 0).all()
    everything = found.numbers(np.arange(enumerator.size))
    assert np.array_equal(np.sort(everything), np.arange(enumerator.size))


def test_a_large_space_begins_where_the_best_is(monkeypatch):
    monkeypatch.setattr(evaluate, "SMALL_ROWS", 0)
    funnel = Funnel(load_space("llama3_8b_mi300x"), 10)
    tasks = plan_tasks(funnel, 2048, promising_places(funnel))
    best = [funnel.evaluate(task, OPEN).shortlist.top.step_s[:1].min(initial=np.inf) for task in tasks]
    assert min(best) in best[: len(tasks) // 4]
    assert sorted(task.number for task in tasks) == list(range(len(tasks)))


@pytest.mark.parametrize("workers", [1, 2, 256, 1024])
def test_the_driver_merges_a_bounded_number_of_answers(workers):
    for size in (1e6, 1e9, 1e11):
        space = SimpleNamespace(enumerators=[SimpleNamespace(size=int(size))])
        rows = task_plan.task_rows(space, workers)
        assert rows % task_plan.CHUNK_ROWS == 0
        assert size / rows <= task_plan.MOST_TASKS or size < 1e10
        most = min(task_plan.MOST_TASKS, max(workers, size / (task_plan.ROWS_PER_ANSWER * workers)))
        assert rows <= max(task_plan.MAX_TASK_ROWS, 2 * size / most)
        assert size / rows <= max(1.1 * most, 1.0)


def test_seeds_are_rows_of_the_space_and_prune_what_they_exclude(monkeypatch):
    monkeypatch.setattr(evaluate, "SMALL_ROWS", 0)
    monkeypatch.setattr(task_plan, "SEED_BEST", 16)
    funnel = Funnel(load_space("llama3_8b_mi300x"), 10)
    assert len(seeds(funnel, task_plan.SEEDED_WORKERS - 1)[0].top) == 0
    (seed,) = seeds(funnel, task_plan.SEEDED_WORKERS)
    tasks = plan_tasks(funnel, 4096, promising_places(funnel))
    plain = [funnel.evaluate(task, OPEN) for task in tasks]
    pruned = [funnel.evaluate(task, seed.cut) for task in tasks]
    whole = reduce(Findings.plus, plain).shortlist
    assert rows_as_list(reduce(Findings.plus, pruned).shortlist) == rows_as_list(whole)
    assert sum(one.rows["project"] for one in pruned) < 0.5 * sum(one.rows["project"] for one in plain)
    every = reduce(Findings.plus, [funnel.evaluate(task, OPEN) for task in tasks[: len(tasks) // 2]]).shortlist
    assert rows_as_list(every.united(seed).united(whole)) == rows_as_list(whole)


def rows_as_list(shortlist):
    rows, group = shortlist.rows_and_groups
    return [column.tolist() for column in (shortlist.top.indices, rows.indices, rows.step_s, rows.memory_bytes, group)]
