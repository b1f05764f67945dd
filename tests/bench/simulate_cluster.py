"""What 16 to 1,024 workers would give: a discrete-event simulation from measured task times and driver costs.

    python tests/bench/simulate_cluster.py measure FILE [--space NAME] [--chunks N]   task times into FILE, minutes
    python tests/bench/simulate_cluster.py simulate FILE                              the table, seconds

`measure` evaluates the tasks of a space in this process in the order of a search, after the first hundred a sample.
Of each it notes processor seconds of the worker (evaluation, pickling of the answer) and of the driver (choosing and
sending the task, reading and merging the answer, the journal's record).

`simulate` runs a search on W workers with the tasks that `task_rows` plans, each a mean of as many measured ones as it
is long: the driver is one server that handles one answer after the other, a worker has one task ahead
(`most_in_flight`). A task that is sent when n answers were merged costs as much more than the usual one as the n-th
measured one, for worker and driver. Efficiency: seconds on one worker over W times the wall seconds; with start-up,
those of Ray (START_S), of the funnel, plan and seeds count as well.
"""

import argparse
import heapq
import json
import pickle
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

START_S = 4.2
"""Wall seconds until a private Ray cluster's workers answer, quiet machine, 2026-11-21 (bench_ray.py: 3.9 and 4.5)."""
FIRST = 100
WORKERS = (16, 64, 256, 1024)
SIZES = (2.02e8, 1.152e9, 1e10, 1e11)
"""Candidates: `stress_1e9` as Megatron can start it and over any framework, and larger spaces like it."""
DRIVER = ("choose_s", "merge_s", "journal_s")
Floats = NDArray[np.float64]


def measure(file: Path, name: str, chunks: int, sample: int) -> None:
    """Write the measured seconds of tasks of `chunks` chunks each."""
    from primus_search.declare import load_space
    from primus_search.exploration.engines.local_engine import TaskAssignment
    from primus_search.exploration.exhaustive.collect import _Gathered, silent
    from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS, Funnel
    from primus_search.exploration.exhaustive.task_plan import SEEDED_WORKERS, plan_tasks, promising_places, seeds
    from primus_search.exploration.run_folder.journal import Journal

    space = load_space(name)
    start = time.process_time()
    funnel = Funnel(space, 100_000)
    assert len(funnel.task_orders) == len(funnel.grid_costs)
    begin_s = time.process_time() - start
    start = time.process_time()
    tasks = plan_tasks(funnel, chunks * CHUNK_ROWS, promising_places(funnel))
    plan_s = time.process_time() - start
    start = time.process_time()
    known = seeds(funnel, SEEDED_WORKERS)
    seed_s = time.process_time() - start
    assignment, gathered = TaskAssignment(tasks), _Gathered(funnel, tasks, silent, known)
    journal = Journal.start(file.with_suffix(".journal"), {}, chunks * CHUNK_ROWS)
    every = max((len(tasks) - FIRST) // sample, 1)
    found: list[dict[str, float]] = []
    for number in range(len(tasks)):
        clock = [time.process_time()]
        task = assignment.take(0)
        assert task is not None
        if number >= FIRST and number % every:
            continue
        sent = pickle.dumps((task, gathered.cut_of(task.cluster)))
        clock.append(time.process_time())
        answer = pickle.dumps(funnel.evaluate(*pickle.loads(sent)))
        clock.append(time.process_time())
        findings = pickle.loads(answer)
        gathered.add(task.number, findings)
        clock.append(time.process_time())
        journal.add(task.number, findings)
        clock.append(time.process_time())
        choose_s, task_s, merge_s, journal_s = np.diff(clock).tolist()
        sizes = {"rows": task.stop - task.start, "sent_bytes": len(sent), "answer_bytes": len(answer)}
        found.append({"choose_s": choose_s, "task_s": task_s, "merge_s": merge_s, "journal_s": journal_s} | sizes)
    facts = {"space": name, "chunks": chunks, "tasks": len(tasks), "begin_s": begin_s, "plan_s": plan_s}
    facts |= {"seed_s": seed_s}
    file.write_text(json.dumps(facts | {"found": found}))
    print(summary(facts | {"found": found}))


def summary(facts: dict[str, Any]) -> str:
    """Medians of the first tasks and of the others."""
    start_up = ", ".join(f"{name} {facts[f'{name}_s']:.1f} s" for name in ("begin", "plan", "seed"))
    lines = [f"{facts['tasks']:,} tasks; {start_up}"]
    for title, part in (("first", facts["found"][:FIRST]), ("others", facts["found"][FIRST:])):
        means = {key: float(np.mean([one[key] for one in part])) for key in part[0]}
        lines.append(f"{title:7}" + "  ".join(f"{key} {value:,.4g}" for key, value in means.items()))
    return "\n".join(lines)


def simulate(facts: dict[str, Any], rows: float, workers: int, call_s: float) -> dict[str, float]:
    """One search of `rows` candidates; `call_s`: driver seconds of one Ray call."""
    from primus_search.exploration.exhaustive.task_plan import task_rows

    rng = np.random.default_rng(0)
    early, others = facts["found"][:FIRST], facts["found"][FIRST:]
    planned = task_rows(SimpleNamespace(enumerators=[SimpleNamespace(size=int(rows))]), workers)  # type: ignore[arg-type]
    per_row = sum(one["task_s"] for one in others) / sum(one["rows"] for one in others)
    spread = np.array([one["task_s"] / one["rows"] for one in others])
    count = max(round(rows / planned), 1)
    pieces = max(round(planned / np.mean([one["rows"] for one in others])), 1)
    seconds = planned * rng.choice(spread, (count, pieces)).mean(axis=1)
    handling = rng.choice([sum(one[name] for name in DRIVER) for one in others], count) + call_s
    more_s = np.array([max(one["task_s"] - per_row * one["rows"], 0.0) for one in early])
    more_handling = np.array([sum(one[name] for name in DRIVER) + call_s for one in early])
    found = run_events(seconds, handling, workers, more_s, more_handling)
    wall_s, start_s = found["wall_s"], START_S + facts["begin_s"] + facts["plan_s"] + facts["seed_s"]
    alone_s = float(seconds.sum() + more_s[:count].sum())
    return found | {
        "tasks": count,
        "task_s": float(seconds.mean()),
        "efficiency": alone_s / workers / wall_s,
        "whole": alone_s / workers / (wall_s + start_s),
    }


def run_events(
    seconds: Floats, handling: Floats, workers: int, more_s: Floats, more_handling: Floats
) -> dict[str, float]:
    """Wall seconds of the tasks, and the driver's busy share of them.

    more_s, more_handling: of a task sent after so many answers, beside its own seconds and in place of its handling.
    """
    from primus_search.exploration.engines.local_engine import most_in_flight

    queues: list[deque[int]] = [deque() for _ in range(workers)]
    answers: list[tuple[float, int]] = []  # when, from which worker
    handling, seconds = handling.copy(), seconds.copy()
    sent = done = 0
    now = busy = 0.0

    def send(worker: int) -> None:
        nonlocal sent
        if done < len(more_s):
            seconds[sent] += more_s[done]
            handling[sent] = more_handling[done]
        queues[worker].append(sent)
        if len(queues[worker]) == 1:
            heapq.heappush(answers, (now + seconds[sent], worker))
        sent += 1

    for worker in range(min(workers, len(seconds))):
        send(worker)
    while answers:
        at, worker = heapq.heappop(answers)
        task = queues[worker].popleft()
        if queues[worker]:  # the worker goes on with the task it has ahead
            heapq.heappush(answers, (at + seconds[queues[worker][0]], worker))
        now = max(now, at) + handling[task]
        busy += handling[task]
        done += 1
        while sent < len(seconds) and len(queues[worker]) < most_in_flight(workers, done, len(seconds) - sent):
            send(worker)
    return {"wall_s": now, "driver": busy / now}


def table(facts: dict[str, Any], call_s: float) -> str:
    """The simulation of every size and number of workers, as Markdown."""
    head = ("candidates", "workers", "tasks", "each", "wall", "driver busy", "efficiency", "with start-up")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for rows in SIZES:
        for workers in WORKERS:
            one = simulate(facts, rows, workers, call_s)
            lines.append(
                f"| {rows:.3g} | {workers:,} | {one['tasks']:,.0f} | {one['task_s']:.2f} s | {one['wall_s']:,.1f} s |"
                f" {one['driver']:.0%} | {one['efficiency']:.0%} | {one['whole']:.0%} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "simulate"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--space", default="stress_1e9")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--call-s", type=float, default=0.001, help="driver seconds of one Ray call, see bench_ray.py")
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.file, asked.space, asked.chunks, asked.sample)
    else:
        print(table(json.loads(asked.file.read_text()), asked.call_s))


if __name__ == "__main__":
    main()
