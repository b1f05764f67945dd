"""Tasks cover every candidate once whatever their size, and begin where a schedule begins when they can."""

import pytest

from primus_search.declare import load_space
from primus_search.search.evaluate import Funnel
from primus_search.search.plan import plan_tasks


@pytest.fixture(scope="module")
def funnel():
    return Funnel(load_space("llama3_8b_mi300x"), 10)


@pytest.mark.parametrize("rows", [1, 997, 4096, 10**9])
def test_every_candidate_is_in_one_task(funnel, rows):
    if rows == 1:
        funnel = Funnel(load_space("tiny_host"), 10)
    tasks = sorted(plan_tasks(funnel, rows), key=lambda task: task.number)
    size = funnel.enumerators[0].size
    assert [task.start for task in tasks] == [0, *(task.stop for task in tasks[:-1])]
    assert tasks[-1].stop == size
    assert all(0 < task.stop - task.start <= 2 * rows for task in tasks)
    assert [task.number for task in tasks] == list(range(len(tasks)))


def test_most_tasks_begin_with_a_cell(funnel):
    starts = set(funnel.enumerators[0].starts.tolist())
    assert all(task.start in starts for task in plan_tasks(funnel, 2048))
