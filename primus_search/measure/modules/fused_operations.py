"""The memory-bound operations of a layer, keeping for backward only what the fused kernels of a framework keep.

Written in eager torch, an RMSNorm or a SwiGLU saves three or four intermediate tensors; the fused kernels that
Megatron-Core, Transformer Engine and Primus-Turbo train with save one. Traced memory is only worth something if the
traced module holds the same tensors, so each operation here is an autograd function with an explicit save list:

    operation        saved for backward (besides parameters)
    rms_norm         its input, one fp32 reciprocal deviation per row
    swiglu           the fused gate|up projection (and the routing weights where it applies them)
    gated, weighted_gelu  their inputs
    split_rope, rotated  nothing: the rotation is inverted
    combine          row numbers of the permutation
    gathered_linear  the sequence shard of its input; the full input is gathered again in backward
    fused_loss       the gradient of the logits, written over the logits
    plain_loss       fp32 softmax of the logits

Source of the save lists: Megatron-Core `fusions/`, Transformer Engine `LayerNormLinear` and Triton cross entropy,
as released in 2025; the same lists as Korthikanti et al. (arXiv:2205.05198) without dropout.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import set_checkpoint_early_stop

EPSILON = 1e-5


class MissingKernelError(RuntimeError):
    """This device has no kernel for the operation; its time cannot be measured here."""


def applied(function: type[Function], *inputs: Any) -> Tensor:
    """The output of an autograd function, whose `apply` has no types."""
    y: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return y


class Trace:
    """While it is open, tensors have shapes alone and no kernel runs."""

    is_open: ClassVar[bool] = False

    def __enter__(self) -> None:
        Trace.is_open = True

    def __exit__(self, *_: object) -> None:
        Trace.is_open = False


def is_shape_only(x: Tensor) -> bool:
    """Whether a tensor belongs to a trace, or is one of torch's fake tensors."""
    return Trace.is_open or isinstance(x, FakeTensor)


class _Transposed(Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Any], *inputs: Tensor) -> Any:
        ctx.back = back
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.back(*grads)
        return None, None, *(found if isinstance(found, tuple) else (found,))


Out = TypeVar("Out")


def keeping_nothing(run: Callable[..., Out], back: Callable[..., Any], *inputs: Tensor) -> Out:
    """What a linear operation returns for its inputs; `back`, its transpose, takes gradients and is all it needs."""
    found: Out = _Transposed.apply(run, back, *inputs)  # type: ignore[no-untyped-call]
    return found


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        deviation = torch.rsqrt(x.float().square().mean(-1, keepdim=True).add_(EPSILON))
        ctx.save_for_backward(x, deviation, weight)
        return (x * deviation.to(x.dtype)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, deviation, weight = ctx.saved_tensors
        grad = grads[0]
        inverse = deviation.to(x.dtype)
        scaled = grad * weight
        projection = (scaled * x).float().mean(-1, keepdim=True) * deviation.square()
        grad_x = scaled.addcmul_(x, projection.to(x.dtype), value=-1.0).mul_(inverse)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * x).mul_(inverse).flatten(0, -2).sum(0)
        return grad_x, grad_weight


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last dimension; Zhang and Sennrich 2019 (arXiv:1910.07467)."""
    return applied(_RmsNorm, x, weight)


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weights: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate_up, weights)
        gate, up = gate_up.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate).mul_(up)
        return y if weights is None else y.mul_(weights.to(y.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of gate|up and of the routing weights in few passes over memory."""
        (gate_up, weights), grad = ctx.saved_tensors, grads[0]
        gate, up = gate_up.chunk(2, dim=-1)
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
        torch.mul(torch.nn.functional.silu(gate), grad, out=grad_up)
        grad_weights = None
        if weights is not None:
            grad_weights = (grad_up * up).sum(-1, keepdim=True).to(weights.dtype)
            each = weights.to(grad.dtype)
            grad_up.mul_(each)
            grad = grad * each
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grad_gate_up, grad_weights


def swiglu(gate_up: Tensor, weights: Tensor | None = None) -> Tensor:
    """silu(gate) * up of a fused [.., 2F] projection, times one routing weight per row where given."""
    return applied(_SwiGlu, gate_up, weights)


class _KeepsInputs(Function):
    @staticmethod
    def forward(ctx: Any, region: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.region = region
        ctx.save_for_backward(*inputs)
        return region(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.region(*leaves)
        return None, *torch.autograd.grad(out, leaves, grads[0])


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x times the sigmoid of the gate, as one kernel."""
    return applied(_KeepsInputs, lambda x, gate: x * torch.sigmoid(gate), x, gate)


def weighted_gelu(x: Tensor, weights: Tensor) -> Tensor:
    """GELU times a weight per row, in one kernel as a gated activation has it."""
    return applied(_KeepsInputs, lambda x, weights: gelu(x) * weights.to(x.dtype), x, weights)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, seq, dim] with tables [seq, dim/2]; a negated sine undoes it.

    Source: Su et al. 2021 (arXiv:2104.09864), halves rotated as in GPT-NeoX.
    """
    first, second = x.chunk(2, dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = out.chunk(2, dim=-1)
    torch.mul(first, cosine, out=left)
    left.addcmul_(second, sine, value=-1.0)
    torch.mul(second, cosine, out=right)
    right.addcmul_(first, sine)
    return out


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`rotate`, keeping nothing for backward."""
    return keeping_nothing(lambda x: rotate(x, cosine, sine), lambda grad: rotate(grad, cosine, -sine), x)


def _heads(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, seq, (A + 2G) d] as queries, keys and values of [batch, heads, seq, d], views."""
    per_head = qkv.view(*qkv.shape[:-1], heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = torch.split(per_head, [heads, kv_heads, kv_heads], dim=1)
    return q, k, v


def split_rope(
    qkv: Tensor, cosine: Tensor, sine: Tensor, heads: int, kv_heads: int, *, keeps_view: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries, rotated keys and values from the fused projection [batch, seq, (heads + 2 kv_heads) d].

    keeps_view: values stay a view of the projection, which keeps all of it alive.
    """

    def split(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = _heads(qkv, heads, kv_heads)
        return rotate(q, cosine, sine), rotate(k, cosine, sine), v if keeps_view else v.contiguous()

    def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [rotate(q, cosine, -sine), rotate(k, cosine, -sine), v]
        return torch.cat([part.transpose(1, 2) for part in parts], dim=2).flatten(2)

    return keeping_nothing(split, joined, qkv)


class _GatheredLinear(Function):
    """A column-parallel linear under sequence parallelism: keeps its shard, gathers again in backward.

    On one device the gather is a repetition of the shard: same shapes, same bytes, no traffic.
    """

    @staticmethod
    def forward(ctx: Any, shard: Tensor, weight: Tensor, ranks: int) -> Tensor:
        ctx.save_for_backward(shard if ctx.needs_input_grad[1] else None, weight)
        ctx.ranks = ranks
        return torch.nn.functional.linear(gather(shard, ranks), weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        shard, weight = ctx.saved_tensors
        grad = grads[0]
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = grad.flatten(0, -2).t() @ gather(shard, ctx.ranks).flatten(0, -2)
        return scatter(grad @ weight, ctx.ranks), grad_weight, None


def gathered_linear(shard: Tensor, weight: Tensor, ranks: int) -> Tensor:
    """x W^T where x is the all-gather of `shard` over `ranks` sequence-parallel ranks, along the sequence."""
    return applied(_GatheredLinear, shard, weight, ranks)


def gather(shard: Tensor, ranks: int) -> Tensor:
    """The shape an all-gather along the sequence returns, on one device."""
    return shard.repeat(1, ranks, *([1] * (shard.dim() - 2))) if ranks > 1 else shard


def scatter(full: Tensor, ranks: int) -> Tensor:
    """The shape a reduce-scatter along the sequence returns, on one device: a copy, so that `full` can go.

    Its backward is the all-gather of the gradient, as the framework's is.
    """
    if ranks == 1:
        return full

    def part(x: Tensor) -> Tensor:
        return x[:, : x.shape[1] // ranks].clone()

    return keeping_nothing(part, lambda grad: gather(grad, ranks), full)


class _Combine(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(order)
        return rows.new_zeros(tokens, rows.shape[1]).index_add_(0, order, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grads[0].index_select(0, order), None, None


def combine(rows: Tensor, order: Tensor, tokens: int) -> Tensor:
    """Sum of the expert rows of each token; keeps row numbers only (torch's own index_add keeps the rows as well)."""
    return applied(_Combine, rows, order, tokens)


class _FusedLoss(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        rows = logits.flatten(0, -2)
        losses = torch.empty(rows.shape[0], dtype=torch.float32, device=rows.device)
        block = max(1, _LOSS_BLOCK_ELEMENTS // rows.shape[1])
        for start in range(0, rows.shape[0], block):
            part, wanted = rows[start : start + block], targets.flatten()[start : start + block, None]
            log_probability = torch.log_softmax(part.float(), dim=-1)
            losses[start : start + block] = -log_probability.gather(1, wanted)[:, 0]
            minus_one = torch.full_like(wanted, -1.0, dtype=torch.float32)
            gradient = log_probability.exp_().scatter_add_(1, wanted, minus_one)
            part.copy_(gradient.mul_(1.0 / rows.shape[0]))
        ctx.save_for_backward(logits)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grads[0]), None


_LOSS_BLOCK_ELEMENTS = 1 << 25  # rows go through fp32 in blocks of at most 128 MiB, as a kernel works row by row


def fused_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy whose backward needs only the logits' own memory: they are overwritten by their gradient."""
    return applied(_FusedLoss, logits, targets)


def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy as frameworks compute it unfused: logits cast to fp32, fp32 softmax kept for backward."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


ROPE_BASE = 10000.0


class Rope(nn.Module):
    """Cosine and sine tables [seq, dim/2], constants shared by all layers of a model."""

    def __init__(self, seq: int, dim: int) -> None:
        super().__init__()
        frequency = ROPE_BASE ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float32), frequency)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    cosine: Tensor
    sine: Tensor


# --- recomputation of activations, the two ways frameworks do it ----------------------------------------------------
#
# `checkpoint` keeps a region's inputs and runs it again in backward (`torch.utils.checkpoint`): core attention, an MLP,
# a whole layer. `DiscardedOutput` also gives back the memory of a region's OUTPUTS once the operation that reads them
# has run, and refills them just before that operation's backward: norms, activations, MLA's up-projections, whose
# outputs are all that they hold. It is the mechanism of Megatron-Core's output-discarding checkpoint, 2025.


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

    _waiting: ClassVar[set[int]] = set()  # storages of outputs between `run` and `discard_until_backward_of`

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
