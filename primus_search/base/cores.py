"""The cores of this machine: how many, and independent pieces of work spread over them by forked workers.

Workers inherit what they work on, so nothing is sent to them; results come back pickled. Where there is no fork, or the
work is small, or there is one core, the same calls are made here, one after the other: results are the same everywhere.
"""

import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from primus_search.base.guards import interrupts

Result = TypeVar("Result")

OWN_GROUPS, CONTROL_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
MOST_WORKERS = 8
CHUNKS_PER_WORKER = 4
"""Pieces differ in size: a worker comes back for more a few times."""

_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None
"""What workers inherit: a function and its arguments. Set while they are forked, and only then."""


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keeps BLAS of numpy and scipy on one thread inside the block.

    For systems of a few hundred unknowns: with two threads of OpenBLAS a solve of 196 unknowns takes 21 ms where
    another process computes as well, with one 0.7 ms (two cores, 2026-11-22).
    """
    result: AbstractContextManager[Any] = threadpool_limits(limits=1, user_api="blas")
    return result


def spread(function: Callable[[Any], Result], items: Sequence[Any], *, at_least: int) -> list[Result]:
    """`[function(item) for item in items]`; over the cores of the machine from `at_least` items on."""
    global _work
    workers = min(available_cores(), MOST_WORKERS, len(items) // max(at_least // 2, 1))
    if len(items) < at_least or workers < 2 or sys.platform != "linux" or _work is not None:
        return [function(item) for item in items]
    _work = (function, items)
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            chunk = max(len(items) // (workers * CHUNKS_PER_WORKER), 1)
            starts = range(0, len(items), chunk)
            calls = [pool.submit(_call, range(start, min(start + chunk, len(items)))) for start in starts]
            try:
                return [result for some in interrupts.results(calls) for result in some]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except BrokenProcessPool:  # a worker was killed, by want of memory for one: what it does can be done here
        return [function(item) for item in items]
    finally:
        _work = None


def available_cores() -> int:
    """Cores this process may use: of its affinity mask, and of the CPU quota of its control groups, rounded up."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    quotas = [line.split() for line in control_group_values("cpu.max")]  # "quota period" in us, or "max period"
    limits = [math.ceil(int(quota) / int(period)) for quota, period in quotas if quota != "max"]
    return max(min([len(os.sched_getaffinity(0)), *limits]), 1)


def control_group_values(name: str) -> list[str]:
    """Texts of one file of this process' control group (cgroup v2) and of the groups around it; none elsewhere."""
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
        own = next(Path(line.removeprefix("0::/")) for line in lines if line.startswith("0::/"))
        files = [CONTROL_GROUPS / folder / name for folder in dict.fromkeys((own, *own.parents))]
        return [path.read_text(encoding="ascii") for path in files if path.is_file()]
    except (OSError, StopIteration, ValueError):
        return []


def _call(numbers: range) -> list[Any]:
    assert _work is not None
    function, items = _work
    return [function(items[i]) for i in numbers]
