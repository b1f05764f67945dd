"""Worker processes that die while nobody waits for them."""

import multiprocessing
import os
import signal
from pathlib import Path

from primus_search.declare import load_space
from primus_search.search.engine import Processes
from primus_search.search.evaluate import Funnel
from primus_search.search.plan import plan_tasks
from primus_search.search.shortlist import Shortlist
from tests.end_to_end.kills import TASK_ROWS, write_space


def test_workers_lost_between_two_findings_are_replaced(tmp_path: Path) -> None:
    """The pool is found broken when the next task is sent, not while one is waited for."""
    funnel = Funnel(load_space(write_space(tmp_path)), 10)
    tasks = plan_tasks(funnel, TASK_ROWS)[:12]
    engine = Processes(funnel, 2)
    try:
        findings = engine.map(tasks, lambda _: Shortlist.empty(10).cut)
        done = [next(findings)[0].number]
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGKILL)
            worker.join()
        done += [task.number for task, _ in findings]
    finally:
        engine.close()
    assert sorted(done) == sorted(task.number for task in tasks)
