"""Seconds of one core to build and simulate every schedule, and rows per second of the batched simulator.

    python tests/bench/bench_schedule.py

The project's aims: p = 16, m = 256 within 20 ms, p = 32, m = 512 within 100 ms; 50,000 rows per second at p = 8,
m = 64.
"""

import time

import numpy as np

from primus_search.base.errors import ScheduleError
from primus_search.schedule import Costs, algorithm, build, names, simulate
from tests.support.batch_times import CostColumns, simulate_many

COSTS = {"1,1,1 comm 0": Costs(), "10,14,6 comm 1": Costs(forward=10, backward=14, weight=6, comm=1)}


def once(name: str, p: int, m: int, vpp: int, costs: Costs) -> float:
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        simulate(build(name, stages=p, microbatches=m, virtual_stages=vpp, costs=costs), costs)
        best = min(best, time.process_time() - begin)
    return 1e3 * best


def main() -> None:
    for name in names():
        for vpp in (2, 4) if algorithm(name).virtual_stages is None else (1,):
            cells = []
            for label, costs in COSTS.items():
                for p, m in ((16, 256), (32, 512)):
                    try:
                        cells.append(f"{label} p={p} m={m}: {once(name, p, m, vpp, costs):7.1f} ms")
                    except ScheduleError as refused:
                        cells.append(str(refused))
            print(f"{name:16} v={vpp}  " + "  ".join(cells))
    rng = np.random.default_rng(0)
    for name in ("1f1b", "interleaved", "zb-h1", "zbv", "v-half", "dualpipe", "dualpipev"):
        for m in (64, 512):
            table = build(name, stages=8, microbatches=m, virtual_stages=2 if name == "interleaved" else 1)
            n = table.model_stages
            scale, rows = rng.uniform(0.5, 1.5, (4096, 1)), 4096
            column = np.repeat(scale, n, axis=1)
            column[:, -1] *= 1.3
            columns = CostColumns(forward=column, backward=1.4 * column, weight=0.6 * column, comm=0.05 * scale[:, 0])
            simulate_many(table, columns)
            begin = time.process_time()
            simulate_many(table, columns)
            print(f"simulate_many {name:12} p=8 m={m}: {rows / (time.process_time() - begin):12,.0f} rows/s")


if __name__ == "__main__":
    main()
