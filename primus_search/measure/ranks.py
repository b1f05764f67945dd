"""Several processes as ranks of one torch.distributed job on this machine, each isolated; used to calibrate links and
to train for real. gloo on CPU, NCCL or RCCL on GPUs."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from primus_search.measure.device import CPU, CUDA
from primus_search.measure.isolate import Outcome, isolated

# Freed memory goes back to the system at once, so that a process's resident size is what it holds; and one thread
# pool per rank, since the ranks share the cores.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}


def run_ranks(
    function: str, payload: dict[str, Any], *, ranks: int, limit_s: float, environment: dict[str, str] | None = None
) -> list[Outcome]:
    """The function's outcome on every rank; its payload gains `rank`, `ranks` and `meeting` (see `join`)."""
    with tempfile.TemporaryDirectory(prefix="primus-search-ranks-") as folder, ThreadPoolExecutor(ranks) as pool:
        meeting = (Path(folder) / "meeting").as_uri()

        def run(rank: int) -> Outcome:
            job = payload | {"rank": rank, "ranks": ranks, "meeting": meeting}
            return isolated(function, job, limit_s=limit_s, environment=CPU_ENVIRONMENT | (environment or {}))

        return list(pool.map(run, range(ranks)))


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


def leave() -> None:
    """Leave it, together."""
    dist.barrier()
    dist.destroy_process_group()
