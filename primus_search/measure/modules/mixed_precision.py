"""Mixed precision as Megatron-Core keeps it: BF16 weights, FP32 main gradients, FP32 masters and moments.

18 bytes per parameter (Narayanan et al. 2021, arXiv:2104.04473): what `alone` trains with, and what the weight gradient
and the optimizer of a BF16 layer are timed with.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

LEARNING_RATE = 1e-4


class MainGradients:
    """FP32 gradients of BF16 weights: backward adds each weight's new gradient to its own and frees it at once."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.weights: list[Tensor] = [weight for module in modules for weight in module.parameters()]
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
