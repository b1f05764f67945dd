"""Rows per second of memory: rejection, all parts, and the plain one-at-a-time form of the same model.

    python -m tests.bench.bench_memory [spaces/mixtral_8x22b_mi355x.yaml]

Processor seconds, best of several chunks of 65,536 rows, after the keys of a chunk are known and while they are not.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from primus_search.cost.memory import MemoryTable, project_memory
from primus_search.declare import load_space
from primus_search.search.evaluate import MEMORY_READS
from primus_search.space import Enumerator

CHUNK, CHUNKS, ALONE = 65536, 12, 20


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main(path: str = "spaces/mixtral_8x22b_mi355x.yaml") -> None:
    space = load_space(path)
    choice = space.clusters[0]
    enumerator = Enumerator(space, choice)
    table = MemoryTable(space.model, choice.cluster, space.workload)
    starts = np.linspace(0, max(enumerator.size - CHUNK, 0), CHUNKS).astype(int).tolist()
    names = ("new keys", "rejection", "rejection, distinct", "all parts", "floor: read columns once")
    best = dict.fromkeys(names, float("inf"))
    rows = 0
    for start in starts:
        lines = enumerator.lines(start, start + CHUNK)
        c = enumerator.table(lines)
        rows = len(c)
        distinct, number = enumerator.distinct(lines, MEMORY_READS)
        few = enumerator.table(distinct)
        calls: dict[str, Callable[[], object]] = {
            "new keys": lambda few=few: table.total(few),
            "rejection": lambda c=c: table.total(c),
            "rejection, distinct": lambda lines=lines, few=few, number=number: (
                enumerator.distinct(lines, MEMORY_READS), table.total(few)[number],
            ),
            "all parts": lambda c=c: table.memory(c),
            "floor: read columns once": lambda c=c: [column.sum() for column in c.columns().values()],
        }  # fmt: skip
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call))
    one_by_one = enumerator.table(enumerator.lines(0, ALONE))
    alone = seconds(lambda: [
        project_memory(space.model, choice.cluster, space.workload, one_by_one.take(slice(i, i + 1)))
        for i in range(ALONE)
    ])  # fmt: skip
    print(f"{space.name}: {enumerator.size:,} legal rows, chunks of {rows:,}")
    for name, spent in best.items():
        print(f"  {name:28} {rows / max(spent, 1e-9) / 1e6:8.2f} M rows/s")
    print(f"  {'one at a time':28} {ALONE / alone:8.0f} rows/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
