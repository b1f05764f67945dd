"""What Ray costs and gains on one machine: the same space in this process, on one Ray worker, and on several.

    python tests/bench/bench_ray.py [--workers 2] [--set KEY=VALUE] [SPACE]

Without a space: 165 million candidates, the thousand million without activation offloading, which takes one worker
well over 20 seconds.

Per engine: wall seconds of the search, processor seconds of its busiest worker, of all its workers and of the driver.
On a machine that does something else as well, wall seconds say little; the busiest worker's processor seconds are what
the search would take at least on cores of its own, and their ratio is the speed-up that Ray leaves room for.
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from primus_search.declare import load_space
from primus_search.exploration.engines import ray_engine
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.space import Space

SPACE, OVERRIDES = "stress_1e9", ("space.offload_layers=0",)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds: wall of starting Ray and of the search, processor of the driver and of each worker."""

    start_s: float
    wall_s: float
    driver_s: float
    workers_s: tuple[float, ...]
    result: SearchResult


class Watched(ray_engine.RayCluster):
    """An engine that notes what its workers took before they end."""

    workers_s: tuple[float, ...] = ()

    def close(self) -> None:
        Watched.workers_s = tuple(sorted(ray_worker_seconds(), reverse=True)[: self.workers])
        super().close()


def on_ray(space: Space, workers: int) -> Spent:
    """One search on a private cluster of this many workers."""
    began = time.perf_counter()
    ray_engine.start(workers)
    ready, driver = time.perf_counter(), time.process_time()
    result = run_search(space, Options(engine="ray", workers=workers))
    spent = Spent(
        start_s=ready - began,
        wall_s=time.perf_counter() - ready,
        driver_s=time.process_time() - driver,
        workers_s=Watched.workers_s,
        result=result,
    )
    ray.shutdown()
    return spent


def here(space: Space) -> Spent:
    """One search in this process, which is its own worker."""
    began, processor = time.perf_counter(), time.process_time()
    result = run_search(space, Options(engine="local", workers=1))
    spent_s = time.process_time() - processor
    return Spent(start_s=0.0, wall_s=time.perf_counter() - began, driver_s=0.0, workers_s=(spent_s,), result=result)


def ray_worker_seconds() -> list[float]:
    """Processor seconds of the worker processes of this process's cluster."""
    mine = {os.getpid()}
    table = {int(entry.name): _stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    for _ in range(3):  # driver -> raylet -> worker
        mine |= {number for number, (_, parent, _) in table.items() if parent in mine}
    return [
        seconds
        for number, (name, _, seconds) in table.items()
        if number in mine and name.startswith(("ray::IDLE", "ray::Worker"))
    ]


def _stat(entry: Path) -> tuple[str, int, float]:
    try:
        name = (entry / "cmdline").read_text().replace("\0", " ")
        words = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return "", -1, 0.0
    return name, int(words[1]), (int(words[11]) + int(words[12])) / TICKS_PER_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", nargs="?", default="")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    chosen = OVERRIDES if not asked.space else ()
    space = load_space(asked.space or SPACE, overrides=[*chosen, *asked.set, 'benchmark.device="off"'])
    ray_engine.RayCluster = Watched  # type: ignore[misc]
    run_search(load_space("tiny_host"), Options(workers=1))  # compiles
    print(
        f"{'engine':16s} {'start':>7s} {'wall s':>8s} {'driver':>8s} {'busiest':>8s} {'workers':>8s}"
        f"  load {os.getloadavg()[0]:.1f}"
    )
    kinds = {"this process": here(space), "Ray, 1 worker": on_ray(space, 1)}
    kinds[f"Ray, {asked.workers} workers"] = on_ray(space, asked.workers)
    for name, spent in kinds.items():
        print(
            f"{name:16s} {spent.start_s:7.1f} {spent.wall_s:8.1f} {spent.driver_s:8.1f} {max(spent.workers_s):8.1f}"
            f" {sum(spent.workers_s):8.1f}"
        )
    answers = [spent.result.ranking.indices.tolist() for spent in kinds.values()]
    assert answers[0] == answers[1] == answers[2]
    one, several = (max(spent.workers_s) for spent in list(kinds.values())[1:])
    print(f"speed-up by the busiest worker's processor seconds: {one / several:.2f}")


if __name__ == "__main__":
    main()
