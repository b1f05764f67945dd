"""What each rank of the host calibration measures: kernels while all cores work, then the links between them.

Every figure is in seconds for a stated amount of work; `host.py` turns them into the laws of the cost model.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom

from primus_search.measure.device import resident_bytes
from primus_search.measure.ranks import join, leave
from primus_search.measure.streams import Sizes, both_passes, stream_seconds

GEMMS = ((256, 512, 512), (512, 512, 512), (512, 3072, 512), (512, 512, 1536), (1024, 2048, 1024), (256, 8192, 512))
ATTENTION = ((1, 8, 256, 64), (1, 8, 1024, 64))  # batch, heads, sequence, head dimension
STREAMS = Sizes(rows=2048, hidden=512, vocabulary=8192, optimizer_params=2_000_000)
EXPERTS = (8, 128, 256, 768)  # groups, rows, k, n
MESSAGES = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
PARTS = 8  # tensors that a sharded layer's weights are gathered for
BURST = (512, 1024, 256)  # product computed before each collective: m, n, k
SWEPT = 1 << 21  # numbers passed over after it; 8 MB, well beyond a core's own caches


def calibrate_rank(payload: dict[str, Any]) -> dict[str, Any]:
    """All figures of one rank; one of `forks.run_jobs`."""
    torch.manual_seed(payload["rank"])
    entered = resident_bytes()
    join(payload)
    baseline = payload["resident_bytes"] + resident_bytes() - entered
    figures: dict[str, Any] = {"gemm_s": [_gemm(*shape) for shape in GEMMS]}
    figures["attention_s"] = [_attention(*shape) for shape in ATTENTION]
    figures |= stream_seconds(STREAMS, _seconds)
    figures["experts_s"] = _experts()
    figures["links"] = _links(payload["ranks"]) if payload["ranks"] > 1 else {}
    figures["baseline_bytes"] = baseline
    leave()
    return figures


def _seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """Lower quartile of CPU seconds, or of wall seconds where they are smaller: what the call takes undisturbed."""
    run()
    samples = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        samples.append(min(time.perf_counter() - wall, time.process_time() - cpu))
    return statistics.quantiles(samples, n=4)[0]


def _gemm(m: int, n: int, k: int) -> dict[str, float]:
    x, w, g = torch.randn(m, k), torch.randn(n, k), torch.randn(m, n)
    forward = _seconds(lambda: x @ w.t())
    return {"forward": forward, "input_grad": _seconds(lambda: g @ w), "weight_grad": _seconds(lambda: g.t() @ x)}


def _attention(batch: int, heads: int, seq: int, dim: int) -> dict[str, float]:
    q, k, v = (torch.randn(batch, heads, seq, dim, requires_grad=True) for _ in range(3))
    return both_passes(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), _seconds)


def _experts() -> dict[str, float]:
    groups, rows, k, n = EXPERTS
    x, w = torch.randn(groups, rows, k), torch.randn(groups, k, n)
    return {"forward": _seconds(lambda: torch.bmm(x, w))}


def _links(ranks: int) -> dict[str, list[float]]:
    """Seconds of each collective at each message size, as training uses it.

    In training no collective finds its ranks side by side: each comes from computing, and the early one waits. So every
    sample follows a burst of computing, without a barrier, that leaves the message in no core's own cache. A gather of
    sharded weights and a scatter of their gradients include the copies between single tensors and the message that
    FSDP2 makes (torch/distributed/fsdp/_fully_shard).
    """
    out: dict[str, list[float]] = {name: [] for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")}
    out["send"] = []
    for size in MESSAGES:
        whole = torch.zeros(size // 4)
        part, other = torch.zeros(size // 4 // ranks), torch.empty_like(whole)
        out["all_reduce"].append(_wall(partial(dist.all_reduce, whole)))
        out["all_gather"].append(_wall(partial(_gather, part, other.chunk(PARTS), ranks)))
        out["reduce_scatter"].append(_wall(partial(_scatter, whole.chunk(PARTS), part)))
        out["all_to_all"].append(_wall(partial(dist.all_to_all_single, other, whole)))
        out["send"].append(_wall(partial(_ring_send, whole)) / 2)
    return out


def _gather(part: torch.Tensor, weights: tuple[torch.Tensor, ...], ranks: int) -> None:
    gathered = torch.empty(ranks * part.numel())
    dist.all_gather_into_tensor(gathered, part.clone())
    for target, source in zip(weights, gathered.chunk(PARTS), strict=True):
        target.copy_(source)


def _scatter(gradients: tuple[torch.Tensor, ...], part: torch.Tensor) -> None:
    sent, received = torch.cat(gradients), torch.empty_like(part)
    dist.reduce_scatter_tensor(received, sent)
    part.add_(received.div_(2.0))


def _ring_send(tensor: torch.Tensor) -> None:
    """There and back between ranks 0 and 1."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def _wall(run: Callable[[], object], repeats: int = 11) -> float:
    m, n, k = BURST
    x, w, swept = torch.randn(m, k), torch.randn(n, k), torch.zeros(SWEPT)
    samples = []
    dist.barrier()
    for _ in range(repeats):
        torch.matmul(x, w.t())
        swept.add_(1.0)
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])
