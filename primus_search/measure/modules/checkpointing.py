"""Recomputation of activations, the two ways frameworks do it.

`checkpoint` keeps a region's inputs and runs it again in backward (`torch.utils.checkpoint`): core attention, an MLP,
a whole layer. `DiscardedOutput` also gives back the memory of a region's OUTPUTS once the operation that reads them
has run, and refills them just before that operation's backward: norms, activations, MLA's up-projections, whose
outputs are all that they hold. It is the mechanism of Megatron-Core's output-discarding checkpoint, 2025.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import set_checkpoint_early_stop


def checkpoint(region: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The region's output, its insides recomputed in backward: all of it, as Megatron's checkpoint does.

    torch would stop once it has the last tensor it needs and save the last GEMM; the frameworks do not.
    """
    with set_checkpoint_early_stop(False):
        y: Tensor = torch_checkpoint(region, *inputs, use_reentrant=False, preserve_rng_state=False)
    return y


class DiscardedOutput:
    """Runs a region and forgets its outputs until backward.

    norm = DiscardedOutput()
    y = norm.run(rms_norm, x, weight)
    out = linear(y)
    norm.discard_until_backward_of(out)     # y's memory is free from here to the backward of `linear`
    """

    _waiting: ClassVar[set[int]] = set()
    """Storages of outputs between `run` and `discard_until_backward_of`."""

    def __init__(self) -> None:
        self._region: Callable[..., Any] | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[Tensor, ...] = ()
        self._again: tuple[Tensor, ...] = ()
        self._leaves: tuple[Tensor, ...] = ()

    def run(self, region: Callable[..., Any], *inputs: Tensor) -> Any:
        """The region's outputs. Activations that need a gradient must be passed here; parameters may be closed over."""
        self._region = region
        outputs = _Discard.apply(self, *inputs)  # type: ignore[no-untyped-call]
        self._outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        self._waiting.update(output.untyped_storage()._cdata for output in self._outputs)
        return outputs

    @classmethod
    def will_discard(cls, x: Tensor) -> bool:
        """Whether a tensor is a region's output whose memory is given back once its readers have run."""
        return x.untyped_storage()._cdata in cls._waiting

    def discard_until_backward_of(self, consumer: Tensor) -> None:
        """Free the outputs' memory now; it is refilled when backward reaches `consumer`, after their last reader."""
        for output in self._outputs:
            self._waiting.discard(output.untyped_storage()._cdata)
            output.untyped_storage().resize_(0)
        if consumer.requires_grad:
            consumer.register_hook(self._refill)  # type: ignore[no-untyped-call]

    def evaluate(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The region once more, as a tuple."""
        assert self._region is not None
        outputs = self._region(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _refill(self, _: Tensor) -> None:
        inputs = tuple(i.detach().requires_grad_(i.requires_grad) for i in self._inputs)
        with torch.enable_grad():
            self._again = self.evaluate(inputs)
        self._leaves = inputs
        for output, again in zip(self._outputs, self._again, strict=True):
            with torch.no_grad():
                output.untyped_storage().resize_(again.untyped_storage().nbytes())
                output.untyped_storage().copy_(again.untyped_storage())
        self._outputs = ()

    def backward(self, grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs through the recomputed region; those of its parameters accumulate on the way."""
        torch.autograd.backward(self._again, grads)
        self._again = ()
        return tuple(leaf.grad for leaf in self._leaves)


class _Discard(Function):
    @staticmethod
    def forward(ctx: Any, owner: DiscardedOutput, *inputs: Tensor) -> Any:
        ctx.owner = owner
        owner._inputs = inputs
        outputs = owner.evaluate(inputs)
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.owner.backward(grads)
