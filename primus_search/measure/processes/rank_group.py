"""Several processes as ranks of one torch.distributed job on this machine, each isolated; used to calibrate links and
to train for real. gloo on CPU, NCCL or RCCL on GPUs."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from primus_search.base.guards import interrupts
from primus_search.measure.device.device_info import CPU, CUDA, LARGEST_MMAP_THRESHOLD
from primus_search.measure.processes.isolate import ProcessOutcome, ProcessVerdict, isolated

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


def run_ranks(function: str, payload: dict[str, Any], *, ranks: int, limit_s: float) -> list[ProcessOutcome]:
    """The function's outcome on every rank; its payload gains `rank`, `ranks` and `meeting` (see `join`)."""
    with tempfile.TemporaryDirectory(prefix="primus-search-ranks-") as folder, ThreadPoolExecutor(ranks) as pool:
        meeting = (Path(folder) / "meeting").as_uri()

        def run(rank: int) -> ProcessOutcome:
            job = payload | {"rank": rank, "ranks": ranks, "meeting": meeting}
            return isolated(function, job, limit_s=limit_s, environment=CPU_ENVIRONMENT)

        return interrupts.results([pool.submit(run, rank) for rank in range(ranks)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One of many functions for all ranks to run one after another, each in a fork; see `forks`."""

    function: str
    payload: dict[str, Any]
    limit_s: float


def run_jobs(jobs: Sequence[RankJob], *, ranks: int, threads: int, warm: str) -> list[list[ProcessOutcome]]:
    """Every job's outcome on every rank. `warm` names a function that each rank calls once, before its forks."""
    payload = {"jobs": [asdict(job) for job in jobs], "threads": threads, "warm": warm}
    limit_s = START_S + sum(job.limit_s for job in jobs)
    by_rank = run_ranks("primus_search.measure.processes.forks:run_jobs", payload, ranks=ranks, limit_s=limit_s)
    if any(outcome.verdict is not ProcessVerdict.DONE for outcome in by_rank):
        return [by_rank] * len(jobs)
    return [
        [ProcessOutcome.of_json(one) for one in same]
        for same in zip(*(outcome.value for outcome in by_rank), strict=True)
    ]


def failure_of(outcomes: Sequence[ProcessOutcome]) -> ProcessOutcome | None:
    """What went wrong on the ranks of one job: a cause rather than a peer's wait for it; None where all is well."""
    failed = [outcome for outcome in outcomes if outcome.verdict is not ProcessVerdict.DONE]
    return min(failed, key=lambda outcome: outcome.verdict is ProcessVerdict.HANG) if failed else None


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


def leave() -> None:
    """Leave it, together."""
    dist.barrier()
    dist.destroy_process_group()
