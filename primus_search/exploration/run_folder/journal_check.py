"""What a journal claims, held against the search that continues it: a record that cannot be true is refused.

A record has a checksum, which says that it was written whole and not by whom. Here its task has to exist, once; its
rows have to lie in that task; its counts have to add up to the task's rows; and some of its rows are projected again.
"""

from collections.abc import Sequence

import numpy as np

from primus_search.exploration.exhaustive.evaluate import Funnel, Task, TaskOrder
from primus_search.exploration.exhaustive.shortlist import without_noise
from primus_search.exploration.run_folder.journal import BadRecord, Done, Journal
from primus_search.values.candidates import Bools, Ints

MOST_TASKS = 1_000_000
PROJECTED_ROWS = 64
"""Rows of a record that are projected again, evenly spread from its fastest to its slowest."""
TOLERANCE = 1e-9
"""Relative difference of a figure that was projected again, beside other rows."""


def refuse_other_lengths(funnel: Funnel, task_rows: int) -> None:
    """Raise BadRecord where a space cut in tasks of that many rows has none or too many."""
    total = sum(enumerator.size for enumerator in funnel.enumerators)
    if not task_rows > 0 or total > MOST_TASKS * task_rows:
        raise BadRecord(f'record 0: "task_rows" {task_rows} is no length of a task')


def refuse_untrue(funnel: Funnel, journal: Journal, tasks: Sequence[Task]) -> None:
    """Raise BadRecord for the first record that these tasks of this search cannot have given."""
    known, seen = {task.number: task for task in tasks}, set[int]()
    for number, done in enumerate(journal.done, start=1):
        what = f"record {number}: task {done.task}"
        if done.task in seen:
            raise BadRecord(f"{what} is recorded twice")
        seen.add(done.task)
        if done.task not in known:
            raise BadRecord(f"{what} is no task of this search")
        problem = _problem(funnel, done, known[done.task])
        if problem:
            raise BadRecord(f"{what} {problem}")


def _problem(funnel: Funnel, done: Done, task: Task) -> str:
    found, rows = done.findings, done.findings.shortlist.rows
    if found.legal + sum(found.removed.values()) != task.stop - task.start or found.feasible > found.legal:
        return "has counts that do not add up to its rows"
    if set(found.removed) - set(funnel.enumerators[task.cluster].reasons):
        return "names rules that this space does not have"
    if len(rows) > found.feasible or not _is_within(funnel.task_orders[task.cluster], task, rows.indices).all():
        return "keeps rows that are not its own"
    if not len(rows):
        return ""
    grouped = found.shortlist.grouped
    lines = funnel.enumerators[task.cluster].lines_at(grouped.rows.indices)
    if not np.array_equal(funnel.grid_costs[task.cluster].groups.of(lines.cells, lines.inner), grouped.group):
        return "keeps rows for a group that is not theirs"
    some = np.unique(np.linspace(0, len(rows) - 1, PROJECTED_ROWS).astype(np.int64))
    rows = rows.take(np.sort(np.argsort(rows.step_s, kind="stable")[some]))
    projection = funnel.fresh_projector(task.cluster).project(funnel.enumerators[task.cluster].rows(rows.indices))
    for claimed, total in ((rows.step_s, projection.step.total), (rows.memory_bytes, projection.memory.total)):
        if not np.allclose(claimed, without_noise(total), rtol=TOLERANCE, atol=0.0):
            return "keeps figures that are not those of its rows"
    return ""


def _is_within(order: TaskOrder, task: Task, numbers: Ints) -> Bools:
    """Whether candidates stand in the task's stretch of the order."""
    filled = np.flatnonzero(np.diff(order.starts))
    by_number = filled[np.argsort(order.first[filled], kind="stable")]
    at = by_number[np.searchsorted(order.first[by_number], numbers, side="right").clip(1) - 1]
    places = order.starts[at] + numbers - order.first[at]
    within: Bools = (places >= task.start) & (places < task.stop) & (places >= 0) & (places < order.starts[at + 1])
    return within
