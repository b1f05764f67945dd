"""Full projections per second: memory, bound and exact step of chunks of a real space, cold and warm.

    python tests/bench/bench_project.py [SPACE [NODES]]

Times are CPU seconds of this process. Cold: a new Projector sees the chunk for the first time, compiled code loaded.
Warm: the same Projector sees a chunk whose keys it knows. One row: `project` of a single candidate, cold.
"""

import sys
import time
from collections.abc import Callable

from primus_search.cost.project import Projector
from primus_search.declare.space_file import load_space
from primus_search.space import Enumerator

CHUNK = 65_536
CHUNKS = 3


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(space_name: str, nodes: int) -> None:
    space = load_space(space_name, nodes=nodes)
    enumerator = Enumerator(space)

    def projector() -> Projector:
        return Projector(space.job)

    starts = [i * max(enumerator.size // CHUNKS, 1) for i in range(CHUNKS)]
    tables = [enumerator.chunk(start, start + CHUNK).candidates for start in starts]
    projector().project(tables[0].take(slice(0, 256)))
    print(f"{space_name}, {nodes} nodes: {enumerator.size:,} legal candidates, chunks of {CHUNK:,}")
    print(
        f"{'rows':>8} {'memory/s':>12} {'bound/s':>12} {'step cold/s':>12} {'step warm/s':>12} {'project warm/s':>15}"
    )
    for table in tables:
        p, rows = projector(), len(table)
        figures = [
            seconds(lambda p=p, t=table: p.memory(t)),
            seconds(lambda p=p, t=table: p.bound(t)),
            seconds(lambda p=p, t=table: p.step(t)),
            seconds(lambda p=p, t=table: p.step(t)),
            seconds(lambda p=p, t=table: p.project(t)),
        ]
        print(f"{rows:>8,} " + " ".join(f"{rows / max(s, 1e-9):>12,.0f}" for s in figures))
    one = tables[0].take(slice(0, 1))
    print(f"one row, cold: {1e3 * min(seconds(lambda: projector().project(one)) for _ in range(20)):.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "mixtral_8x22b_mi355x", int(sys.argv[2]) if len(sys.argv) > 2 else 32)
