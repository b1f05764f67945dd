"""What 16 to 1,024 workers would give: a discrete-event simulation from measured task times and driver costs.

    python tests/bench/simulate_cluster.py measure FILE [--space NAME] [--chunks N]   task times into FILE, minutes
    python tests/bench/simulate_cluster.py simulate FILE                              the table, seconds

`measure` evaluates tasks of a space in this process in the order of the search: the first hundred, which find the best
rows, then a sample of the others. Of each it notes processor seconds of the worker (evaluation, pickling of the answer)
and of the driver (reading the answer, merging it, the journal's record, choosing and sending the next task).

`simulate` runs that search on W workers: the driver is one server that handles one answer after the other; a worker has
one task ahead (`most_in_flight`). A space of other size has as many tasks of the sampled kind as its rows need, never
fewer than `task_rows` plans for W workers. Efficiency is the seconds of all tasks over W times the wall seconds; with
start-up it counts Ray (START_S), building the funnel, and planning as well.
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

START_S = 4.2
"""Wall seconds until a private Ray cluster's workers can be asked, quiet machine, 2026-11 (bench_ray.py: 3.9 to 4.5)."""
CALL_S = 0.0008
"""Driver seconds of one call of an actor and of waiting for its answer, Ray 2.60, from 4,000 empty calls, 2026-11."""
FIRST = 100
WORKERS = (1, 16, 64, 256, 1024)
SIZES = {"stress_1e9": 1.152e9, "10^11": 1e11}


def measure(file: Path, name: str, chunks: int, sample: int) -> None:
    """Write the measured seconds of tasks of `chunks` chunks each."""
    from primus_search.declare import load_space
    from primus_search.exploration.engines.task_assignment import Deal
    from primus_search.exploration.exhaustive.collect import _Gathered, silent
    from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS, Funnel
    from primus_search.exploration.exhaustive.task_plan import look, plan_tasks
    from primus_search.exploration.run_folder.journal import Journal

    space = load_space(name)
    start = time.process_time()
    funnel = Funnel(space, 100_000)
    assert len(funnel.walks) == len(funnel.sieves)
    begin_s = time.process_time() - start
    start = time.process_time()
    tasks = plan_tasks(funnel, chunks * CHUNK_ROWS, look(funnel))
    plan_s = time.process_time() - start
    deal, gathered = Deal(tasks), _Gathered(funnel, tasks, silent)
    journal = Journal.start(file.with_suffix(".journal"), {}, chunks * CHUNK_ROWS)
    every = max((len(tasks) - FIRST) // sample, 1)
    found: list[dict[str, float]] = []
    for number in range(len(tasks)):
        clock = [time.process_time()]
        task = deal.take(0)
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
    file.write_text(json.dumps(facts | {"found": found}))
    print(summary(facts | {"found": found}))


def summary(facts: dict[str, Any]) -> str:
    """Medians of the first tasks and of the others."""
    lines = [f"{facts['tasks']:,} tasks; funnel {facts['begin_s']:.1f} s, plan {facts['plan_s']:.1f} s"]
    for title, part in (("first", facts["found"][:FIRST]), ("others", facts["found"][FIRST:])):
        means = {key: float(np.mean([one[key] for one in part])) for key in part[0]}
        lines.append(f"{title:7}" + "  ".join(f"{key} {value:,.4g}" for key, value in means.items()))
    return "\n".join(lines)


def simulate(facts: dict[str, Any], rows: float, workers: int, seed: int = 0) -> dict[str, float]:
    """One search of `rows` candidates on so many workers."""
    from primus_search.exploration.engines.task_assignment import most_in_flight
    from primus_search.exploration.exhaustive.task_plan import task_rows

    rng = np.random.default_rng(seed)
    first, others = facts["found"][:FIRST], facts["found"][FIRST:]
    planned = task_rows(SimpleNamespace(enumerators=[SimpleNamespace(size=int(rows))]), workers)  # type: ignore[arg-type]
    per_row = sum(one["task_s"] for one in others) / sum(one["rows"] for one in others)
    mean_s = per_row * planned
    spread = np.array([one["task_s"] / one["rows"] / per_row for one in others])
    count = max(int(rows // planned), 1)
    seconds = mean_s * rng.choice(spread, count)
    head = np.array([one["task_s"] for one in first])[: max(int(FIRST * facts["mean_rows"] / planned), 1)][:count]
    seconds[: len(head)] = np.maximum(head, seconds[: len(head)])
    cost = np.array([one["choose_s"] + one["merge_s"] + one["journal_s"] for one in others]) + CALL_S
    dear = np.array([one["choose_s"] + one["merge_s"] + one["journal_s"] for one in first]) + CALL_S
    handling = np.concatenate([dear[: len(head)], rng.choice(cost, count)])[:count]
    return run_events(seconds, handling, workers, most_in_flight) | {
        "tasks": count, "task_s": float(seconds.mean()), "start_s": START_S + facts["begin_s"] + facts["plan_s"],
    }  # fmt: skip


def run_events(seconds: np.ndarray, handling: np.ndarray, workers: int, most_in_flight: Any) -> dict[str, float]:
    """Wall seconds of the tasks, and the driver's busy share of them."""
    queues: list[deque[int]] = [deque() for _ in range(workers)]
    answers: list[tuple[float, int, int]] = []  # when, worker, task
    sent = done = 0
    now = busy = 0.0

    def send(worker: int) -> None:
        nonlocal sent
        queues[worker].append(sent)
        if len(queues[worker]) == 1:
            heapq.heappush(answers, (now + seconds[sent], worker, sent))
        sent += 1

    for worker in range(min(workers, len(seconds))):
        send(worker)
    while answers:
        at, worker, task = heapq.heappop(answers)
        queues[worker].popleft()
        if queues[worker]:  # the worker goes on with the task it has ahead
            heapq.heappush(answers, (at + seconds[queues[worker][0]], worker, queues[worker][0]))
        now = max(now, at) + handling[task]
        busy += handling[task]
        done += 1
        while sent < len(seconds) and len(queues[worker]) < most_in_flight(workers, done, len(seconds) - sent):
            send(worker)
    return {"wall_s": now, "driver": busy / now, "efficiency": float(seconds.sum()) / workers / now}


def table(facts: dict[str, Any]) -> str:
    """The simulation of every size and number of workers, as Markdown."""
    facts = facts | {"mean_rows": float(np.mean([one["rows"] for one in facts["found"]]))}
    lines = ["| space | workers | tasks | seconds each | wall | driver busy | efficiency | with start-up |", "|" + "---|" * 8]
    for name, rows in SIZES.items():
        for workers in WORKERS:
            one = simulate(facts, rows, workers)
            whole = one["efficiency"] * one["wall_s"] / (one["wall_s"] + one["start_s"])
            lines.append(
                f"| {name} | {workers:,} | {one['tasks']:,.0f} | {one['task_s']:.2f} s | {one['wall_s']:,.1f} s |"
                f" {one['driver']:.0%} | {one['efficiency']:.0%} | {whole:.0%} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "simulate"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--space", default="stress_1e9")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--sample", type=int, default=100)
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.file, asked.space, asked.chunks, asked.sample)
    else:
        print(table(json.loads(asked.file.read_text())))


if __name__ == "__main__":
    main()
