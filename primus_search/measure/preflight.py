"""Is this node healthy enough to choose a configuration? GEMM rate and memory bandwidth against the hardware file.

A sick device (throttled, power-capped, sharing its host) would let the wrong candidate win. The check takes seconds,
runs isolated, and only ever adds words: a measurement below `SICK` of what the hardware file promises is named.
"""

from typing import Any

import torch

from primus_search.cluster import Cluster
from primus_search.cost.gemm import gemm_s
from primus_search.measure.device import CPU, CUDA, on
from primus_search.measure.isolate import Verdict, isolated
from primus_search.measure.timing import measure

SICK = 0.7
LIMIT_S = 120.0
GEMM = {CUDA: (8192, 8192, 8192), CPU: (512, 3072, 512)}
STREAM_BYTES = {CUDA: 1 << 30, CPU: 1 << 26}


def preflight(cluster: Cluster, kind: str) -> tuple[str, ...]:
    """What is wrong with the device of that kind against the cluster's hardware file; empty when it is well."""
    outcome = isolated("primus_search.measure.preflight:examine", {"device": kind}, limit_s=LIMIT_S)
    if outcome.verdict is not Verdict.DONE:
        return (f"preflight: {outcome.verdict.value}: {outcome.cause}",)
    return judge(cluster, kind, outcome.value)


def judge(cluster: Cluster, kind: str, seconds: dict[str, float]) -> tuple[str, ...]:
    """Words for what is slower than the hardware file promises."""
    acc = cluster.accelerator
    m, n, k = GEMM[kind]
    stream_s = 2.0 * STREAM_BYTES[kind] / acc.hbm_bytes_per_s
    promised = {"GEMM": float(gemm_s(acc, m, n, k)), "memory copy": stream_s}
    # A CPU's file states the bandwidth in two-byte elements and at its best kernel: no promise a copy could break.
    checked = ("GEMM",) if kind == CPU else ("GEMM", "memory copy")
    shares = {name: promised[name] / seconds[name] for name in checked}
    return tuple(
        f"preflight: {name} runs at {share:.0%} of what the hardware file says; measured times may mislead"
        for name, share in shares.items()
        if share < SICK
    )


def examine(payload: dict[str, Any]) -> dict[str, float]:
    """Inside the isolated process: seconds of a large GEMM and of a large copy."""
    kind = payload["device"]
    if kind == CPU:
        torch.set_num_threads(1)
    dtype = torch.bfloat16 if kind == CUDA else torch.float32
    m, n, k = GEMM[kind]
    with on(kind):
        x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        source = torch.ones(STREAM_BYTES[kind] // 4)
        target = torch.empty_like(source)
    gemm = measure(lambda: x @ w.t(), device=kind, budget_s=1.0)
    copy = measure(lambda: target.copy_(source), device=kind, budget_s=1.0)
    return {"GEMM": gemm.median_s, "memory copy": copy.median_s}
