"""Host time of eager operations on sharded tensors (DTensor) over plain ones: `host.sharded_launch_factor`.

A Llama layer of few elements, forward and backward, so that a core does little but dispatch; sharded as torchtitan does
it (models/llama3/parallelize.py) over eight ranks of a fake process group, whose collectives return at once.

    python tests/bench/sharded_launches.py
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS, TOKENS, HEADS, HIDDEN, LAYERS, REPEATS = 8, 16, 8, 128, 4, 15


class Attention(nn.Module):
    """Projections, rotation in FP32, causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.angles = torch.rand(TOKENS, 1, HIDDEN // HEADS // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(1, tokens, hidden) as it came."""
        q, k, v = (one(x).view(1, TOKENS, -1, HIDDEN // HEADS) for one in (self.q, self.k, self.v))
        heads = [one.transpose(1, 2) for one in (self.turned(q), self.turned(k), v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(mixed.transpose(1, 2).contiguous().view(1, TOKENS, -1))

    def turned(self, x: Tensor) -> Tensor:
        """Rotary embedding."""
        first, second = x.float().chunk(2, -1)
        cos, sin = self.angles.cos(), self.angles.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).type_as(x)


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """(1, tokens, hidden) as it came."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and MLP behind norms."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.mlp = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        """(1, tokens, hidden) as it came."""
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


def plan() -> Mapping[str, Any]:
    """Tensor and sequence parallelism of a layer."""
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    split = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    split |= {f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
    joined = dict.fromkeys(
        ("attention.o", "mlp.down"), RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    )
    norms = dict.fromkeys(("before", "between"), SequenceParallel(use_local_output=False))
    return {"attention": gathered, "mlp": gathered, **split, **joined, **norms}


def layer_s(layers: list[Layer], x: Tensor) -> float:
    """Processor seconds of a layer, forward and backward, the least of some repeats."""
    found = []
    for _ in range(REPEATS):
        start, y = time.process_time(), x.detach().requires_grad_()
        for layer in layers:
            y = layer(y)
        (y.to_local() if isinstance(y, DTensor) else y).sum().backward()
        found.append((time.process_time() - start) / len(layers))
    return min(found)


def main() -> None:
    """Print both times and their ratio."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    plain = layer_s([Layer() for _ in range(LAYERS)], torch.randn(1, TOKENS, HIDDEN))
    own = DTensor.from_local(torch.randn(1, TOKENS // RANKS, HIDDEN), mesh, [Shard(1)])
    sharded = layer_s([parallelize_module(Layer(), mesh, plan()) for _ in range(LAYERS)], own)
    print(f"{1e3 * plain:.2f} ms a layer, {1e3 * sharded:.2f} ms sharded over {RANKS}: {sharded / plain:.1f} times")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
