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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from primus_search.measure.device.device_info import resident_bytes
from primus_search.measure.modules.streams import Sizes, both_passes, stream_seconds
from primus_search.measure.rank_group import exchange, join, leave, there_and_back

GEMMS = ((256, 512, 512), (512, 512, 512), (512, 3072, 512), (512, 512, 1536), (1024, 2048, 1024), (256, 8192, 512))
ATTENTION = ((1, 8, 256, 64), (1, 8, 1024, 64))  # batch, heads, sequence, head dimension
STREAMS = Sizes(rows=2048, hidden=512, vocabulary=8192, optimizer_params=2_000_000)
EXPERTS = (8, 128, 256, 768)  # groups, rows, k, n
MESSAGES = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
PARTS = 8  # weights of a sharded layer
SHARDED_LAYERS, SHARDED_ROWS, SHARDED_REPEATS = 2, 16, 7
EXCHANGED_WIDTH = 256  # numbers of a row that has one routing weight
LEAST_S = 1e-6  # what is left of a difference of two measurements that noise has turned
BURST = (512, 1024, 256)  # product computed before each collective: m, n, k
SWEPT = 1 << 21  # numbers passed over after it; 8 MB, well beyond a core's own caches


def calibrate_rank(payload: dict[str, Any]) -> dict[str, Any]:
    """All figures of one rank; one of `rank_group.run_forked`."""
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
    sample follows a burst of computing, without a barrier, that leaves the message in no core's own cache.
    """
    out: dict[str, list[float]] = {"all_reduce": [], "all_to_all": [], "send": []}
    for size in MESSAGES:
        whole = torch.zeros(size // 4)
        out["all_reduce"].append(_wall(partial(dist.all_reduce, whole)))
        out["all_to_all"].append(_exchange_s(size, ranks))
        out["send"].append(_wall(partial(there_and_back, whole)) / 2)
    sharded = [_sharded_s(size, ranks) for size in MESSAGES]
    return out | {"all_gather": [g for g, _ in sharded], "reduce_scatter": [s for _, s in sharded]}


def _exchange_s(size: int, ranks: int) -> float:
    """An exchange of rows between experts, of the two that a layer makes: one has the rows' routing weights beside."""
    count = ranks * max(1, size // 4 // EXCHANGED_WIDTH // ranks)
    rows, weights = torch.zeros(1, count, size // 4 // count), torch.zeros(1, count, 1)

    def both_ways() -> None:
        exchange(exchange(rows))
        exchange(weights)

    return _wall(both_ways) / 2


class _Products(nn.Module):
    """A layer of `PARTS` square weights."""

    def __init__(self, weights: nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def _sharded_s(size: int, ranks: int) -> tuple[float, float]:
    """What FSDP2 adds to a layer with so many bytes of weights: by a gather, and by a scatter of their gradients.

    Little is computed with the weights, once in layers as they are and once in layers that FSDP2 shards. Forward is
    longer by a gather; backward by another one and a scatter. So hooks, copies between single tensors and messages,
    allocations and the next layer's gather beside this one's backward are part of both, and the accumulation of
    gradients that only whole layers need is not counted twice.
    """
    plain, sharded = _stack(size), _stack(size)
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    passes = [(_passes_s(plain), _passes_s(sharded)) for _ in range(SHARDED_REPEATS)][1:]
    forward_s, backward_s = (
        statistics.median(after[i] - before[i] for before, after in passes) / SHARDED_LAYERS for i in (0, 1)
    )
    return max(forward_s, LEAST_S), max(backward_s - forward_s, LEAST_S)


def _stack(size: int) -> nn.Sequential:
    width = max(1, int((size / 4 / PARTS) ** 0.5))
    scale = width**-0.5
    weights = [[nn.Parameter(torch.randn(width, width) * scale) for _ in range(PARTS)] for _ in range(SHARDED_LAYERS)]
    return nn.Sequential(*(_Products(nn.ParameterList(same)) for same in weights))


def _passes_s(stack: nn.Module) -> tuple[float, float]:
    """Wall seconds of a forward and a backward pass that all ranks begin together."""
    width = next(stack.parameters()).shape[-1]
    x = torch.randn(SHARDED_ROWS, width, requires_grad=True)
    dist.barrier()
    start = time.perf_counter()
    out = stack(x)
    middle = time.perf_counter()
    torch.autograd.backward(out, torch.ones_like(out))
    return middle - start, time.perf_counter() - middle


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
