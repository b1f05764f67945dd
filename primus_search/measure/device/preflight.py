"""Is this node healthy enough to choose a configuration? Its devices and links against the hardware file.

A sick device (throttled, power-capped, sharing its host) or link (fallen back to fewer lanes) would let the wrong
candidate win. The check takes seconds, runs isolated, and only ever adds words: what runs below `SICK` of what the
hardware file promises is named.

    GEMM, memory copy       one device
    host to device, back    pinned memory; hardware files do not state it: against a PCIe link of the fourth generation
    peer copy               from the first device to the second, where there are two
    all-reduce              of all devices of the node at once: NCCL, RCCL; gloo between the cores of a host
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from primus_search.base.units import GB
from primus_search.cost.laws.collectives import Group, all_reduce_s, send_s
from primus_search.cost.laws.gemm import gemm_s
from primus_search.measure.device.device_info import CPU, CUDA, TORCH_NAMES
from primus_search.measure.device.device_table import link_s
from primus_search.measure.device.timing import measure
from primus_search.measure.device.torch_device import on
from primus_search.measure.isolate import ProcessVerdict, isolated
from primus_search.measure.rank_group import failure_of, join, leave, run_ranks
from primus_search.values.machine.cluster import Cluster

SICK = 0.7
LIMIT_S = 120.0
BUDGET_S = 0.5
OTHERS, OTHERS_GB = "others_bytes", 3.0  # more than the contexts of this process and of the one that asks
GEMM = {CUDA: (8192, 8192, 8192), CPU: (512, 3072, 512)}
STREAM_BYTES = {CUDA: 1 << 30, CPU: 1 << 26}
LINK_BYTES = {CUDA: 1 << 28, CPU: 1 << 22}
HOST_COPIES = ("host to device", "device to host")
HOST_LINK_BYTES_PER_S = 25e9  # of 31.5 GB/s of PCIe 4.0 x16, what pinned copies reach (NVIDIA nvbandwidth, A100)


def preflight(cluster: Cluster, kind: str) -> tuple[str, ...]:
    """What is wrong with devices and links of that kind against the cluster's hardware file; empty when all is well."""
    outcome = isolated(f"{__name__}:examine", {"device": kind}, limit_s=LIMIT_S)
    if outcome.verdict is not ProcessVerdict.DONE:
        return (f"preflight: {outcome.verdict.value}: {outcome.cause}",)
    others = outcome.value.pop(OTHERS, 0.0) / GB
    held = f"preflight: other processes hold {others:.0f} GB of the device; measured times may mislead"
    words = (*shortfalls(cluster, kind, outcome.value), *([held] if others > OTHERS_GB else []))
    ranks = min(torch.cuda.device_count() if kind == CUDA else 2, cluster.network.gpus_per_node)
    if ranks < 2:
        return words
    together = run_ranks(f"{__name__}:examine_together", {"device": kind}, ranks=ranks, limit_s=LIMIT_S)
    failure = failure_of(together)
    if failure is not None:
        return (*words, f"preflight: all-reduce of {ranks}: {failure.verdict.value}: {failure.cause}")
    return (*words, *shortfalls(cluster, kind, {"all-reduce": max(one.value for one in together)}, ranks=ranks))


def shortfalls(cluster: Cluster, kind: str, seconds: dict[str, float], ranks: int = 2) -> tuple[str, ...]:
    """Words for what is slower than promised, of what was measured."""
    promised = promises(cluster, kind, ranks)
    shares = {name: promised[name] / found for name, found in seconds.items() if name in promised}
    return tuple(
        f"preflight: {name} runs at {share:.0%} of what "
        f"{'a PCIe 4.0 link' if name in HOST_COPIES else 'the hardware file'} says; measured times may mislead"
        for name, share in shares.items()
        if share < SICK
    )


def promises(cluster: Cluster, kind: str, ranks: int) -> dict[str, float]:
    """Seconds of every check on a healthy node."""
    acc, network = cluster.accelerator, cluster.network
    m, n, k = GEMM[kind]
    size = float(LINK_BYTES[kind])
    promised = {"GEMM": float(gemm_s(acc, m, n, k))}
    if network.gpus_per_node > 1:
        promised["all-reduce"] = float(all_reduce_s(network, size, Group(ranks, 1)))
    if kind == CPU:  # its file states the bandwidth in two-byte elements and at its best kernel: no promise for a copy
        return promised
    if network.gpus_per_node > 1:
        promised["peer copy"] = float(send_s(network, size, Group(2, 1)))
    promised["memory copy"] = 2.0 * STREAM_BYTES[kind] / acc.hbm_bytes_per_s
    return promised | dict.fromkeys(HOST_COPIES, size / HOST_LINK_BYTES_PER_S)


def examine(payload: dict[str, Any]) -> dict[str, float]:
    """Inside the isolated process: seconds of a large GEMM, of copies inside a device, and of copies to and from it.

    Of a GPU also the bytes of its memory that this process does not hold, its own context's among them.
    """
    kind = payload["device"]
    if kind == CPU:
        torch.set_num_threads(1)
    dtype = torch.bfloat16 if kind == CUDA else torch.float32
    m, n, k = GEMM[kind]
    with on(kind):
        x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        source = torch.ones(STREAM_BYTES[kind] // 4)
        target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {"GEMM": lambda: x @ w.t(), "memory copy": lambda: target.copy_(source)}
    if kind == CUDA:
        calls |= _copies(source[: LINK_BYTES[kind] // 4])
    found = {name: measure(call, device=kind, budget_s=BUDGET_S).median_s for name, call in calls.items()}
    if kind == CUDA:
        free, total = torch.cuda.mem_get_info()
        found[OTHERS] = float(total - free - torch.cuda.memory_reserved())
    return found


def _copies(source: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Copies between this device, the host's pinned memory and the next device."""
    pinned = pinned_like(source)
    device = torch.empty_like(source)
    copies: dict[str, Callable[[], object]] = {
        "host to device": lambda: device.copy_(pinned, non_blocking=True),
        "device to host": lambda: pinned.copy_(device, non_blocking=True),
    }
    if torch.cuda.device_count() > 1:
        peer = torch.empty(source.shape, device=f"{TORCH_NAMES[CUDA]}:1")
        copies["peer copy"] = lambda: peer.copy_(source, non_blocking=True)
    return copies


def pinned_like(source: torch.Tensor) -> torch.Tensor:
    """Memory of the host that the device copies from and to by itself."""
    return torch.empty(source.shape, dtype=source.dtype, pin_memory=True)


def examine_together(payload: dict[str, Any]) -> float:
    """Inside one rank: seconds of an all-reduce of all."""
    kind = payload["device"]
    join(payload, device=kind)
    with on(kind):
        whole = torch.zeros(LINK_BYTES[kind] // 2, dtype=torch.bfloat16)
    seconds = link_s(lambda: dist.all_reduce(whole), kind)
    leave()
    return seconds
