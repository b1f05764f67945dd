"""Bandwidth-bound operations of a layer as this package's modules run them, the memory law they amount to, and the
optimizer in mixed precision as Megatron-Core keeps it.

The cost model counts the bytes a fused kernel moves; a rate here is those bytes over the seconds of the operation as
torch runs it, several kernels or one. So a projection with this law is of training with these modules.
Mixed precision: BF16 weights, FP32 main gradients, FP32 masters and moments, 18 bytes per parameter (Narayanan et al.
2021, arXiv:2104.04473).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from primus_search.measure.modules.fused_operations import fused_loss, rms_norm, swiglu
from primus_search.measure.modules.shard import COUNTED_BYTES
from primus_search.values.machine.accelerator import MemoryLaw

LEARNING_RATE = 1e-4


class MainGradients:
    """FP32 gradients of trained BF16 weights: backward adds each new gradient to its own and frees it at once."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.weights: list[Tensor] = [one for module in modules for one in module.parameters() if one.requires_grad]
        self.gradients: list[Tensor] = [torch.zeros_like(weight, dtype=torch.float32) for weight in self.weights]
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.register_post_accumulate_grad_hook(_adder(gradient))  # type: ignore[no-untyped-call]


def _adder(main: Tensor) -> Callable[[Tensor], None]:
    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        main.add_(weight.grad)
        weight.grad = None

    return add


class MasterAdamW:
    """AdamW on FP32 masters of a module's weights, from its main gradients."""

    def __init__(self, module: nn.Module) -> None:
        main = MainGradients([module])
        self.weights, self.gradients = main.weights, main.gradients
        self.master_weights: list[Tensor] = [nn.Parameter(weight.detach().float().clone()) for weight in self.weights]
        for master, gradient in zip(self.master_weights, self.gradients, strict=True):
            master.grad = gradient
        self.adamw = torch.optim.AdamW(self.master_weights, lr=LEARNING_RATE, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters, write the weights, zero the gradients."""
        self.adamw.step()
        torch._foreach_copy_(self.weights, self.master_weights)
        torch._foreach_zero_(self.gradients)


def adamw_update(num_params: int) -> Callable[[], None]:
    """What a step does to FP32 parameters once: a fused AdamW update, then zeroing their gradients."""
    weight = nn.Parameter(torch.randn(num_params, dtype=torch.float32))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return update


def master_update(num_params: int) -> Callable[[], None]:
    """What a step does to BF16 parameters with masters once."""
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(num_params, dtype=torch.bfloat16))
    return MasterAdamW(layer).step


SMALL_KERNELS = 10  # launched in a row; few enough that a GPU's cold stopwatch has them all queued when it starts
SHORTEST_S = 1e-9  # of a difference of two timings, which noise can make zero or less

Seconds = Callable[[Callable[[], object]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A stream of `rows` tokens of `hidden` elements; a quarter as many tokens meet `vocabulary` logits."""

    rows: int
    hidden: int
    vocabulary: int
    optimizer_params: int


def stream_seconds(
    sizes: Sizes,
    seconds: Seconds,
    update: Callable[[int], Callable[[], None]] = adamw_update,
    *,
    adds_gradients: bool = True,
) -> dict[str, Any]:
    """Seconds of each operation, forward and backward apart where it has both; `seconds` times one call.

    update          what a step does to that many parameters
    adds_gradients  backward adds to the gradients of the call before; else they are new, as inside a layer
    """
    rows, hidden = sizes.rows, sizes.hidden
    x = torch.randn(rows, hidden, requires_grad=True)
    wide = torch.randn(rows, 2 * hidden, requires_grad=True)
    weight = torch.ones(hidden, requires_grad=True)
    logits, targets = torch.randn(rows // 4, sizes.vocabulary), torch.randint(0, sizes.vocabulary, (rows // 4,))
    order = torch.randperm(rows)
    fresh = () if adds_gradients else (x, wide, weight)
    return {
        "add_s": seconds(lambda: x.detach() + x.detach()),
        "swiglu_s": both_passes(lambda: swiglu(wide), seconds, fresh),
        "norm_s": both_passes(lambda: rms_norm(x, weight), seconds, fresh),
        "loss_s": seconds(lambda: fused_loss(logits.clone(), targets)),
        "permute_s": both_passes(lambda: x.index_select(0, order), seconds, fresh),
        "copy_s": seconds(lambda: logits.clone()),
        "small_kernel_s": _small_kernel_s(seconds),
        "optimizer_s": seconds(update(sizes.optimizer_params)),
    }


def both_passes(
    run: Callable[[], torch.Tensor], seconds: Seconds, fresh: Sequence[torch.Tensor] = ()
) -> dict[str, float]:
    """Forward and backward seconds of a differentiable call; `fresh` are leaves whose gradients it forgets."""
    forward = seconds(run)
    grad = torch.ones_like(run())

    def both() -> None:
        torch.autograd.backward(run(), grad)
        for leaf in fresh:
            leaf.grad = None

    whole = seconds(both)
    return {"forward": forward, "backward": max(whole - forward, SHORTEST_S)}


def _small_kernel_s(seconds: Seconds) -> float:
    x = torch.randn(8)

    def several() -> None:
        for _ in range(SMALL_KERNELS):
            x.add(1.0)

    return seconds(several) / SMALL_KERNELS


def rates(sizes: Sizes, f: dict[str, Any], optimizer_bytes: float) -> dict[str, float]:
    """Counted bytes per second of each kind of stream; `optimizer_bytes` are counted per parameter."""
    elements = sizes.rows * sizes.hidden
    loss_s = max(f["loss_s"] - f["copy_s"], SHORTEST_S)
    moved = 3 * elements + 8 * elements  # of an addition; of a gated activation and its gradient
    return {
        "stream": moved * COUNTED_BYTES / (f["add_s"] + f["swiglu_s"]["forward"] + f["swiglu_s"]["backward"]),
        "norm": 2 * elements * COUNTED_BYTES / f["norm_s"]["forward"],
        "norm_backward": 3 * elements * COUNTED_BYTES / f["norm_s"]["backward"],
        "softmax": 4 * COUNTED_BYTES * (sizes.rows // 4) * sizes.vocabulary / loss_s,
        "permute": 4 * elements * COUNTED_BYTES / (f["permute_s"]["forward"] + f["permute_s"]["backward"]),
        "optimizer": optimizer_bytes * sizes.optimizer_params / f["optimizer_s"],
    }


def memory_law(rate: dict[str, float], bandwidth_bytes_per_s: float, latency_s: float) -> MemoryLaw:
    """The rates as shares of a bandwidth."""
    share = {name: value / bandwidth_bytes_per_s for name, value in rate.items()}
    return MemoryLaw(
        stream_efficiency=share["stream"],
        norm_efficiency=share["norm"],
        norm_backward_efficiency=share["norm_backward"],
        softmax_efficiency=share["softmax"],
        permute_efficiency=share["permute"],
        cast_efficiency=share.get("cast", share["stream"]),
        optimizer_efficiency=share["optimizer"],
        latency_s=latency_s,
    )
