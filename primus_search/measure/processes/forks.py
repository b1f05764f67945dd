"""Many short jobs on one rank, each in a forked child: a process start is paid once, a failure is kept to its job.

A fresh interpreter with torch takes seconds to start, a fork of one milliseconds. The rank imports and warms what all
jobs need, forks a child for every job and waits for it, at most the job's time limit; the child joins its peers of the
other ranks in a group of its own, answers through a pipe and is gone, with all the memory it held. Nothing that runs
threads may live in the forking process: it touches no collective, no GPU, and computes on one thread only.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from primus_search.measure.device.device_info import CPU, resident_bytes
from primus_search.measure.processes.isolate import PR_SET_PDEATHSIG, ProcessVerdict, ending, load, outcome_of

_CHUNK = 1 << 16


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
    if not hasattr(os, "sched_setscheduler"):
        return
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return


def _forked(function: str, payload: dict[str, Any], limit_s: float) -> dict[str, Any]:
    started = time.perf_counter()
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(function, payload, writer, parent)
    os.close(writer)
    try:
        text = _read(reader, started + limit_s)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if text is None:
        outcome = {"verdict": ProcessVerdict.HANG.value, "value": None, "cause": f"no result within {limit_s:.0f} s"}
    elif not text:
        verdict, cause = ending(os.waitstatus_to_exitcode(status))
        outcome = {"verdict": verdict.value, "value": None, "cause": cause}
    else:
        outcome = json.loads(text)
    return outcome | {"wall_s": time.perf_counter() - started}


def _read(reader: int, deadline: float) -> bytes | None:
    """All the child says until it closes the pipe; None at the deadline."""
    parts: list[bytes] = []
    while (left := deadline - time.perf_counter()) > 0:
        if not select.select([reader], [], [], left)[0]:
            continue
        part = os.read(reader, _CHUNK)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def _answer(function: str, payload: Mapping[str, Any], writer: int, parent: int) -> None:
    """The child's whole life; it never returns into the parent's code."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            torch.set_num_threads(payload["threads"])
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(outcome_of(function, payload)).encode())
            code = 0
    finally:
        os._exit(code)
