"""Many short jobs on one rank, each in a forked child: a process start is paid once, a failure is kept to its job.

A fresh interpreter with torch takes seconds to start, a fork of one milliseconds. The rank imports and warms what all
jobs need, forks a child for every job and waits for it, at most the job's time limit; the child joins its peers of the
other ranks in a group of its own, answers through a pipe and is gone, with all the memory it held. Nothing that runs
threads may live in the forking process: it touches no collective, no GPU, and computes on one thread only.
"""

import multiprocessing
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from primus_search.measure.device.device_info import CPU, resident_bytes
from primus_search.measure.processes.isolate import ProcessVerdict, die_with_parent, ending, load, outcome_of

_FORK = multiprocessing.get_context("fork")


def run_jobs(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The outcome of every job, in order: {"verdict", "value", "cause", "wall_s"}.

    Payload: jobs ({"function", "payload", "limit_s"}), warm (a function called once before the first job), threads; and
    what `run_ranks` adds. Every job's payload gains rank, ranks, threads, a meeting of its own and `resident_bytes`,
    what this process holds: a child of it holds as much in truth, but is charged only for the pages it touches.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    if all(job["payload"].get("device", CPU) == CPU for job in payload["jobs"]):
        prefer()
    load(payload["warm"])()
    own = {name: payload[name] for name in ("rank", "ranks", "threads")} | {"resident_bytes": resident_bytes()}
    outcomes = []
    for number, job in enumerate(payload["jobs"]):
        inner = job["payload"] | own | {"meeting": f"{payload['meeting']}-{number}"}
        outcomes.append(_forked(job["function"], inner, job["limit_s"]))
    return outcomes


def prefer() -> None:
    """Ask to run before other work, round robin, as this process and its forks may; else measure all the same.

    Real time (sched(7)) rather than a nice value: a rank that a collective wakes must not wait for others' time slices.
    """
    if hasattr(os, "sched_setscheduler"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _forked(function: str, payload: dict[str, Any], limit_s: float) -> dict[str, Any]:
    started = time.perf_counter()
    reader, writer = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_answer, args=(function, payload, writer, os.getpid()))
    child.start()
    writer.close()
    outcome = {"verdict": ProcessVerdict.HANG.value, "value": None, "cause": f"no result within {limit_s:.0f} s"}
    try:
        if reader.poll(limit_s):
            outcome = reader.recv()
    except EOFError:
        child.join()
        verdict, cause = ending(child.exitcode or 0)
        outcome |= {"verdict": verdict.value, "cause": cause}
    finally:
        reader.close()
        child.kill()
        child.join()
    return outcome | {"wall_s": time.perf_counter() - started}


def _answer(function: str, payload: Mapping[str, Any], writer: "Connection[Any, Any]", parent: int) -> None:
    """The child's whole life; it never returns into the parent's code."""
    try:
        die_with_parent(parent)
        torch.set_num_threads(payload["threads"])
        writer.send(outcome_of(function, payload))
    finally:
        os._exit(1)
