"""One kernel that torch lacks, for reference modules: it keeps its inputs and computes again in backward."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from primus_search.measure.modules.fused_operations import applied, is_shape_only
from tests.support.attention_kernel import without_kernel

Computation = Callable[..., Tensor]
Options = tuple[tuple[str, int], ...]


def fused(computation: Computation, *inputs: Tensor, kept_bytes: float = 0.0, **options: int) -> Tensor:
    """computation(*inputs, **options) as one kernel, which keeps its inputs and `kept_bytes` more for backward."""
    words: Options = tuple(sorted(options.items()))
    return applied(_Fused, computation, words, round(kept_bytes), *inputs)


class _Fused(Function):
    @staticmethod
    def forward(ctx: Any, computation: Computation, options: Options, kept_bytes: int, *inputs: Tensor) -> Tensor:
        ctx.computation, ctx.options, ctx.flops = computation, options, 0
        if is_shape_only(inputs[0]):
            shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
            shape, dtype, ctx.flops = _traced(computation, options, shapes)
            out = torch.ops.primus_search.fused_core(list(inputs), list(shape), ctx.flops).to(dtype)
        else:
            out = computation(*inputs, **dict(options))
        ctx.save_for_backward(*inputs, inputs[0].new_empty(kept_bytes, dtype=torch.uint8))
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors[:-1]
        if is_shape_only(inputs[0]):
            found = torch.ops.primus_search.fused_core_backward(grads[0], list(inputs), ctx.flops)
            return None, None, None, *found
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
        with torch.enable_grad():
            out = ctx.computation(*leaves, **dict(ctx.options))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        made = iter(torch.autograd.grad(out, wanted, grads[0], allow_unused=True))
        return None, None, None, *(next(made) if leaf.requires_grad else None for leaf in leaves)


@lru_cache(maxsize=1024)
def _traced(
    computation: Computation, options: Options, shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]
) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Shape and type of the output, and FLOPs that torch counts over the computation on the meta device."""
    with _disable_current_modes(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
        out = computation(*inputs, **dict(options))
    return tuple(out.shape), out.dtype, counter.get_total_flops()


without_kernel(
    "fused_core(Tensor[] inputs, int[] shape, int flops) -> Tensor",
    fake=lambda inputs, shape, flops: inputs[0].new_empty(shape),
    flops=lambda inputs, shape, flops, **_: flops,
)
# FLOPs twice the forward's: two gradients of every product; what kernels compute again is no model FLOP.
without_kernel(
    "fused_core_backward(Tensor grad, Tensor[] inputs, int flops) -> Tensor[]",
    fake=lambda grad, inputs, flops: [torch.empty_like(tensor) for tensor in inputs],
    flops=lambda grad, inputs, flops, **_: 2 * flops,
)
