"""Every speed the project promises, each in a process of its own, beside the plain Python version and the floor.

    python tests/bench/bench_search.py            the rates and the small space; about a minute
    python tests/bench/bench_search.py --large    also the spaces of 7.5 and 30 million, and of a thousand million

Rates are rows per processor second of one process. `cold`: a projector and a costs that have seen no row, orders not in
memory but for one small shape per schedule; the compiled code is loaded before (0.3 to 0.5 s of a process, part of
every search below). `warm`: the same rows again. `one at a time`: a new projector for every single row, its orders in
memory; it asks the same code for one row, so it pays NumPy's price per call, as scalar Python would pay its own.
`floor`: reading every column of the candidates once. Searches are timed from the start of the process; wall time means
something only on an idle machine, so the processor seconds of driver and workers stand beside it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATES = ("mixtral_8x22b_mi355x", "deepseek_v3_2048gpu", "gpt3_175b_4096gpu")
COLD = ("mixtral_8x22b", "llama3.1_405b_h100")
LARGE = ("gpt3_175b_4096gpu", "deepseek_v3_2048gpu", "stress_1e9")
CHUNK, CHUNKS, ALONE = 65_536, 6, 40
GB = 1e9


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def rates(space_name: str) -> None:
    """Rows per second of the stages of one space, over a few chunks from all over it."""
    import numpy as np

    from primus_search.cost.project import Projector
    from primus_search.declare import load_space
    from primus_search.exploration.exhaustive.bounds_and_steps import GridCosts
    from primus_search.schedule import warm_up as load_compiled_schedules
    from primus_search.space import Enumerator

    space = load_space(space_name)
    enumerator = Enumerator(space)

    def projector() -> Projector:
        return Projector(space.job)

    starts = np.linspace(0, enumerator.size - CHUNK, CHUNKS).astype(int).tolist()
    spread_out = enumerator.table(
        enumerator.lines_at(np.linspace(0, enumerator.size - 1, 4 * ALONE * ALONE).astype(int))
    )
    load_compiled_schedules()
    for schedule in np.unique(spread_out.schedule).tolist():
        one = np.flatnonzero(spread_out.schedule == schedule)
        warm_up = spread_out.take(one[[spread_out.pp[one].argmin(), (spread_out.pp[one] == 1).argmin()]])
        projector().project(warm_up)
    cold, costs = projector(), GridCosts(enumerator, projector())
    spent = dict.fromkeys(("memory cold", "memory warm", "cold", "warm", "floor"), 0.0)
    for start in starts:
        lines = enumerator.lines(start, start + CHUNK)
        c = enumerator.table(lines)
        cell = int(np.searchsorted(enumerator.starts, start, side="right")) - 1
        last = int(np.searchsorted(enumerator.starts, start + CHUNK, side="left"))
        rows = int(enumerator.starts[last] - enumerator.starts[cell])

        def legal_and_fits(cell: int = cell, last: int = last) -> None:
            cells, bundle = costs.bundles.of(np.arange(cell, last))
            costs.missing_bytes(costs.memory_bytes(cells, costs.bundles.example[bundle]))

        spent["memory cold"] += seconds(legal_and_fits) * CHUNK / rows
        spent["memory warm"] += seconds(legal_and_fits) * CHUNK / rows
        spent["cold"] += seconds(lambda c=c: cold.project(c))
        spent["warm"] += seconds(lambda c=c: cold.project(c))
        spent["floor"] += seconds(lambda c=c: [column.sum() for column in c.columns().values()])
    per_s = {name: CHUNKS * CHUNK / max(one, 1e-9) for name, one in spent.items()}
    some = enumerator.table(enumerator.lines_at(np.linspace(0, enumerator.size - 1, ALONE).astype(int)))
    singles = [some.take(slice(i, i + 1)) for i in range(len(some))]
    alone = seconds(lambda: [projector().project(one) for one in singles]) if singles else 0.0
    alone = min(alone, seconds(lambda: [projector().project(one) for one in singles]))
    one = len(singles) / alone
    print(
        f"{space_name:24} {enumerator.size:>13,} {per_s['memory cold'] / 1e6:8.2f} {per_s['memory warm'] / 1e6:8.2f}"
        f" {per_s['cold'] / 1e6:8.3f} {per_s['warm'] / 1e6:8.3f} {one:8.0f} {per_s['cold'] / one:9,.0f}"
        f" {per_s['warm'] / one:9,.0f} {per_s['floor'] / 1e6:8.1f}"
    )


def search(space_name: str, workers: int, orders: Path) -> None:
    """One run of the command from the start of its process; orders on disk in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "primus_search", "run", space_name, "--bench", "off", "--out", f"{folder}/run"]
        started, before = time.monotonic(), children_s()
        with subprocess.Popen(
            [*command, "--workers", str(workers)],
            cwd=ROOT,
            env=os.environ | {"XDG_CACHE_HOME": str(orders), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as child:
            assert child.stdout is not None
            child.stdout.read(1)
            ranked_s, ranked_wall_s = so_far_s(child.pid), time.monotonic() - started
            child.stdout.read()
        wall_s, cpu_s = time.monotonic() - started, children_s() - before
        run = json.loads((Path(folder) / "run" / "run.json").read_text())
    stages = "  ".join(f"{s['name']} {s['seconds']:.1f}" for s in run["stages"])
    print(
        f"{space_name:20} {run['legal']:>13,} {run['workers']} workers; ranking after {ranked_wall_s:.1f} s wall,"
        f" {ranked_s:.1f} s processor; all files {wall_s:.1f}, {cpu_s:.1f};"
        f" {run['peak_rss_bytes'] / GB:.2f} GB; {stages}",
        flush=True,
    )


def so_far_s(process: int) -> float:
    """Processor seconds of a running process and of its children that have ended (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_up() -> None:
    """The help text, best of five."""
    best = min(seconds_of_child([sys.executable, "-m", "primus_search", "--help"]) for _ in range(5))
    print(f"--help: {best:.2f} s processor")


def seconds_of_child(command: list[str]) -> float:
    before = children_s()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return children_s() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--rates", default="", help="the rates of one space, in this process")
    asked = parser.parse_args()
    if asked.rates:
        rates(asked.rates)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    start_up()
    print(
        f"{'space':24} {'legal':>13} {'memory':>8} {'warm':>8} {'project':>8} {'warm':>8} {'single':>8} {'over it':>9}"
        f" {'warm':>9} {'floor':>8}\n{'':38} {'M/s':>8} {'M/s':>8} {'M/s':>8} {'M/s':>8} {'rows/s':>8} {'times':>9}"
        f" {'times':>9} {'M/s':>8}",
        flush=True,
    )
    for name in RATES:
        subprocess.run([sys.executable, __file__, "--rates", name], cwd=ROOT, check=True)
    for name in COLD:
        with tempfile.TemporaryDirectory() as orders:
            for _ in range(2):
                search(name, 0, Path(orders))
    for name in LARGE if asked.large else ():
        with tempfile.TemporaryDirectory() as orders:
            search(name, 2, Path(orders))


if __name__ == "__main__":
    main()
