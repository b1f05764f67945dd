"""Several processes as ranks of one torch.distributed job on this machine, each isolated; used to calibrate links and
to train for real. gloo on CPU, NCCL or RCCL on GPUs."""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from primus_search.base.guards import interrupts
from primus_search.measure import isolate
from primus_search.measure.device.device_info import CPU, CUDA, LARGEST_MMAP_THRESHOLD, resident_bytes
from primus_search.measure.modules.fused_operations import keeping_nothing

START_S = 90.0  # what a process may take before its first job: interpreter, torch

# Freed memory is kept for the next allocation, as a GPU's caching allocator does: a step that faults its pages in
# again is slower and noisier. And one thread pool per rank, since the ranks share the cores.
FREED_FROM_BYTES = 1 << 30
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a GPU makes no context, which no fork would survive
    "MALLOC_MMAP_THRESHOLD_": str(LARGEST_MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(FREED_FROM_BYTES),
}


def run_ranks(function: str, payload: dict[str, Any], *, ranks: int, limit_s: float) -> list[isolate.ProcessOutcome]:
    """The function's outcome on every rank; its payload gains `rank`, `ranks` and `meeting` (see `join`)."""
    with tempfile.TemporaryDirectory(prefix="primus-search-ranks-") as folder, ThreadPoolExecutor(ranks) as pool:
        meeting = (Path(folder) / "meeting").as_uri()

        def run(rank: int) -> isolate.ProcessOutcome:
            job = payload | {"rank": rank, "ranks": ranks, "meeting": meeting}
            return isolate.isolated(function, job, limit_s=limit_s, environment=CPU_ENVIRONMENT)

        return interrupts.results([pool.submit(run, rank) for rank in range(ranks)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One of many functions for all ranks to run one after another, each in a fork; see `run_forked`."""

    function: str
    payload: dict[str, Any]
    limit_s: float


def run_jobs(jobs: Sequence[RankJob], *, ranks: int, threads: int, warm: str) -> list[list[isolate.ProcessOutcome]]:
    """Every job's outcome on every rank. `warm` names a function that each rank calls once, before its forks.

    A fresh interpreter with torch takes seconds to start, a fork of one milliseconds: each rank forks a child for every
    job and waits for it, at most the job's time limit; the child joins its peers of the other ranks in a group of its
    own, answers through a pipe and ends. The forking process touches no collective and no GPU, and has one thread.
    """
    payload = {"jobs": [asdict(job) for job in jobs], "threads": threads, "warm": warm}
    limit_s = START_S + sum(job.limit_s for job in jobs)
    by_rank = run_ranks("primus_search.measure.rank_group:run_forked", payload, ranks=ranks, limit_s=limit_s)
    if any(outcome.verdict is not isolate.ProcessVerdict.DONE for outcome in by_rank):
        return [by_rank] * len(jobs)
    return [
        [isolate.ProcessOutcome.of_json(one) for one in same]
        for same in zip(*(outcome.value for outcome in by_rank), strict=True)
    ]


def failure_of(outcomes: Sequence[isolate.ProcessOutcome]) -> isolate.ProcessOutcome | None:
    """What went wrong on the ranks of one job: a cause rather than a peer's wait for it; None where all is well."""
    failed = [outcome for outcome in outcomes if outcome.verdict is not isolate.ProcessVerdict.DONE]
    return min(failed, key=lambda outcome: outcome.verdict is isolate.ProcessVerdict.HANG) if failed else None


def join(payload: dict[str, Any], *, device: str = CPU, limit_s: float = 60.0) -> None:
    """Enter the job `run_ranks` started."""
    if device == CUDA:
        torch.cuda.set_device(payload["rank"])
    dist.init_process_group(
        "nccl" if device == CUDA else "gloo",
        init_method=payload["meeting"],
        rank=payload["rank"],
        world_size=payload["ranks"],
        timeout=timedelta(seconds=limit_s),
    )


def there_and_back(tensor: torch.Tensor) -> None:
    """A message from rank 0 to rank 1 and back; the others go on."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    rows = x.contiguous().flatten(0, 1)
    out = torch.empty_like(rows)
    dist.all_to_all_single(out, rows)
    return out.view(x.shape)


def exchange(x: torch.Tensor) -> torch.Tensor:
    """All-to-all of equal parts of the first dimension, both ways."""
    return keeping_nothing(_all_to_all, _all_to_all, x)


def leave() -> None:
    """Leave it, together."""
    dist.barrier()
    dist.destroy_process_group()


_FORK = multiprocessing.get_context("fork")


def run_forked(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The outcome of every job, in order: {"verdict", "value", "cause"}.

    Payload: jobs ({"function", "payload", "limit_s"}), warm (a function called once before the first job), threads; and
    what `run_ranks` adds. Every job's payload gains rank, ranks, threads, a meeting of its own and `resident_bytes`,
    what this process holds: a child of it holds as much in truth, but is charged only for the pages it touches.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    if all(job["payload"].get("device", CPU) == CPU for job in payload["jobs"]):
        prefer()
    isolate.load(payload["warm"])()
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
    reader, writer = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_answer, args=(function, payload, writer, os.getpid()))
    child.start()
    writer.close()
    hang = isolate.ProcessVerdict.HANG.value
    outcome = {"verdict": hang, "value": None, "cause": f"no result within {limit_s:.0f} s"}
    try:
        if reader.poll(limit_s):
            outcome = reader.recv()
    except EOFError:
        child.join()
        verdict, cause = isolate.ending(child.exitcode or 0)
        outcome |= {"verdict": verdict.value, "cause": cause}
    finally:
        reader.close()
        child.kill()
        child.join()
    return outcome


def _answer(function: str, payload: Mapping[str, Any], writer: "Connection[Any, Any]", parent: int) -> None:
    """The child's whole life; it never returns into the parent's code."""
    try:
        isolate.die_with_parent(parent)
        torch.set_num_threads(payload["threads"])
        writer.send(isolate.outcome_of(function, payload))
    finally:
        os._exit(1)
