"""The cores of this machine: how many, and independent pieces of work spread over them by forked workers.

Workers inherit what they work on, so nothing is sent to them; results come back pickled. Where there is no fork, or the
work is small, or there is one core, the same calls are made here, one after the other: results are the same everywhere.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from primus_search.guards.interrupts import restore

Result = TypeVar("Result")

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
    limits: AbstractContextManager[Any] = threadpool_limits(limits=1, user_api="blas")
    return limits


def spread(function: Callable[[Any], Result], items: Sequence[Any], *, at_least: int) -> list[Result]:
    """`[function(item) for item in items]`; over the cores of the machine from `at_least` items on."""
    global _work
    workers = min(available_cores(), MOST_WORKERS, len(items) // max(at_least // 2, 1))
    if len(items) < at_least or workers < 2 or sys.platform != "linux" or _work is not None:
        return [function(item) for item in items]
    _work = (function, items)
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=restore) as pool:
            chunk = max(len(items) // (workers * CHUNKS_PER_WORKER), 1)
            return list(pool.map(_call, range(len(items)), chunksize=chunk))
    except BrokenProcessPool:  # a worker was killed, by want of memory for one: what it does can be done here
        return [function(item) for item in items]
    finally:
        _work = None


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _call(i: int) -> Any:
    assert _work is not None
    function, items = _work
    return function(items[i])
