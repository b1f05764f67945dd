"""Every task is given to one worker once; groups stay with whoever began them until nothing else is left."""

import random

import pytest

from primus_search.exploration.engines.local_engine import MAX_TRIES, TaskAssignment, most_in_flight
from primus_search.exploration.exhaustive.evaluate import Task


def task(number: int, group: int) -> Task:
    return Task(number=number, cluster=0, start=10 * number, stop=10 * number + 10, group=group)


@pytest.mark.parametrize("seed", range(20))
def test_every_task_is_given_once_whoever_asks_and_whoever_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    tasks = [task(number, draw.randrange(4)) for number in range(30)]
    assignment, done, sent = TaskAssignment(tasks), list[int](), dict[int, list[Task]]()
    while len(assignment):
        worker = draw.randrange(3)
        found = assignment.take(worker)
        assert found is not None
        sent.setdefault(worker, []).append(found)
        if draw.random() < 0.05:
            assignment.put_back(worker, sent.pop(worker), "why")
        elif draw.random() < 0.5:
            done += [one.number for one in sent.pop(worker)]
    assert assignment.take(0) is None
    assert sorted(done + [one.number for some in sent.values() for one in some]) == list(range(30))


def test_one_worker_takes_the_most_promising_first() -> None:
    tasks = [task(number, number % 3) for number in range(9)]
    assignment = TaskAssignment(tasks)
    assert [assignment.take(0) for _ in tasks] == tasks


def test_a_group_is_shared_only_when_no_other_is_left() -> None:
    assignment = TaskAssignment([task(0, 0), task(1, 0), task(2, 1), task(3, 0), task(4, 0), task(5, 1)])
    assert [assignment.take(0), assignment.take(1)] == [task(0, 0), task(2, 1)]
    assert [assignment.take(0), assignment.take(1)] == [task(1, 0), task(5, 1)]
    assert assignment.take(1) == task(3, 0)  # its own is done
    assert assignment.take(0) == task(4, 0)


def test_a_task_that_loses_every_worker_is_named() -> None:
    """And done no more; what its workers were sent beside it is done by others."""
    assignment = TaskAssignment([task(7, 0), task(8, 0)])
    for worker in range(MAX_TRIES):
        found = [assignment.take(worker), assignment.take(worker)]
        both = sorted((one for one in found if one is not None), key=lambda one: one.number)
        assignment.put_back(worker, both, "why")
    assert [str(one) for one in assignment.lost] == ["task 7 (candidates 70..80) lost its worker 8 times; why"]
    assert [assignment.take(0), assignment.take(0)] == [task(8, 0), None]


def test_nobody_is_sent_ahead_what_was_never_pruned_or_what_an_idle_worker_could_do() -> None:
    assert most_in_flight(4, num_done=3, num_waiting=100) == 1
    assert most_in_flight(4, num_done=4, num_waiting=100) == 2
    assert most_in_flight(4, num_done=90, num_waiting=4) == 1
