"""Compile the kernels of a search in several processes before the first search of an installation.

numba compiles a kernel when it is called and keeps the machine code on disk. A search calls its kernels one after the
other, so they would be compiled on one core; here each process evaluates a few candidates with one part of them. What
this leaves out, the search compiles when it comes to it.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from primus_search.base.cores import available_cores
from primus_search.base.guards import interrupts
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.schedule import order_for
from primus_search.space import Enumerator, Space
from primus_search.space.enumerate import GridRows
from primus_search.values.candidates import PipelineOrder

SAMPLE = 256
"""Candidates that are evaluated to compile what they call."""

Say = Callable[[str], None]


def compile_kernels(space: Space, say: Say) -> None:
    """Compile what a search of the space calls, unless kernels are on disk already; `say` receives what happens."""
    if _are_kept():
        return
    has_help = sys.platform == "linux" and available_cores() > 1
    say("compiling kernels (memory, pipelines, schedules), once per installation: about a minute on two cores ...")
    if not has_help:
        return
    began = time.perf_counter()
    funnel = Funnel(space, SAMPLE)
    if not sum(enumerator.size for enumerator in funnel.enumerators):
        return
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_quietly, args=(part, funnel), daemon=True) for part in PARTS]
    for process in processes:
        process.start()
    while at_work := [process.sentinel for process in processes if process.is_alive()]:
        interrupts.wait(at_work)
    say(f"kernels compiled in {time.perf_counter() - began:.0f} s")


def _are_kept() -> bool:
    """Whether the disk holds compiled kernels, where numba looks for them."""
    from primus_search.cost.memory.memory_kernels import worst

    return any(Path(worst.stats.cache_path).glob("memory_kernels.worst*.nbi"))


def _quietly(part: Callable[[Funnel], None], funnel: Funnel) -> None:
    """One part in a process of its own; the search reports whatever is wrong with the space."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    part(funnel)


def _plain(enumerator: Enumerator) -> GridRows:
    """Candidates from all over the space whose order needs no search."""
    lines = enumerator.lines_at(np.linspace(0, enumerator.size - 1, SAMPLE).astype(np.int64))
    return lines.take(enumerator.is_quick[lines.cells])


def _memory(funnel: Funnel) -> None:
    lines = _plain(funnel.enumerators[0])
    funnel.grid_costs[0].memory_bytes(lines.cells, lines.inner)


def _pipelines(funnel: Funnel) -> None:
    costs, lines = funnel.grid_costs[0], _plain(funnel.enumerators[0])
    cells, bundle = costs.bundles.of(np.unique(lines.cells))
    costs.bound_s(cells, bundle, costs.layer_sets.at(cells, bundle))
    costs.pipelines(lines).simulated(np.ones(len(lines), dtype=np.bool_))


def _schedules(funnel: Funnel) -> None:
    """Orders that are searched for, each for the shortest pipeline that the space has."""
    enumerator = funnel.enumerators[0]
    outer = enumerator.blocks[0].values
    for number, algorithm in enumerate(enumerator.job.algorithms):
        cells = np.flatnonzero((outer["schedule"] == number) & (outer["pp"] > 1))
        if algorithm.cost_aware and len(cells):
            cell = cells[np.argmin((outer["pp"] * enumerator.microbatches)[cells])]
            order = PipelineOrder(algorithm.name, int(outer["pp"][cell]), int(outer["vpp"][cell]))
            order_for(order, int(enumerator.microbatches[cell]))


PARTS: tuple[Callable[[Funnel], None], ...] = (_memory, _pipelines, _schedules)
"""What is compiled beside each other, a process for each."""
