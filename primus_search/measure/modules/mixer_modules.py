"""Mixers that torch has a kernel for and the fields of plain attention cannot hold, as one rank holds them.

    mixer_module(mixer, hidden, shard, window)      the module of a mixer; MissingKernelError where there is none

Scans, linear attention and sparse attention have fused kernels in frameworks and none in torch: their memory stays
projected, and nothing is timed. `tests/oracle/reference_mixers.py` has them in plain torch and adds them to `MODULES`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from primus_search.measure.modules.attention_modules import MissingKernelError, core_attention, without_kernel
from primus_search.measure.modules.fused_operations import Rope, applied, checkpoint, rms_norm, rotated, scatter
from primus_search.measure.modules.linear import Linear
from primus_search.measure.modules.shard import Shard
from primus_search.values.candidates import Recompute
from primus_search.values.model import Attention, Mixer

MODULES: dict[type[Mixer], Callable[..., nn.Module]] = {}
"""Modules of further mixers, by type."""


class GatedAttentionModule(nn.Module):
    """Attention whose sizes the model's fields do not hold: a gate on the output, shared or reused keys.

    Queries, keys, values and gate are views of the joint projection.
    """

    def __init__(self, mixer: Attention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.mixer, self.ranks, self.seq_length = mixer, shard.sequence_ranks, shard.seq_length
        self.heads, self.kv_heads = shard.share(mixer.num_heads), shard.share(mixer.num_kv_heads)
        self.window = window or mixer.window or mixer.chunk
        self.is_selective = bool(shard.recompute & Recompute.CORE_ATTENTION)
        queries = self.heads * mixer.head_dim
        keys = 0 if mixer.reuses_kv else self.kv_heads * mixer.head_dim
        values = 0 if mixer.reuses_kv or mixer.has_shared_kv else self.kv_heads * mixer.value_dim
        self.widths = [queries, queries if mixer.has_output_gate else 0, keys, values]
        self.qkv = Linear(hidden, sum(self.widths), bias=mixer.has_qkv_bias, ranks=self.ranks, fp8=shard.fp8)
        width, keeps = self.heads * mixer.value_dim, shard.shares_attention_output
        self.out = Linear(width, hidden, bias=mixer.has_output_bias, fp8=shard.fp8, keeps_input=keeps)
        has_norm = mixer.qk_norm != "none"
        self.q_norm = nn.Parameter(torch.ones(mixer.head_dim)) if has_norm else None
        self.k_norm = nn.Parameter(torch.ones(mixer.head_dim)) if has_norm and not mixer.reuses_kv else None
        self.rope = Rope(shard.context_seq, mixer.head_dim)
        if mixer.reuses_kv:  # of an earlier layer, whose own activations they are
            shape = (shard.micro_batch_size, self.kv_heads, shard.context_seq)
            self.register_buffer("keys", torch.randn(*shape, mixer.head_dim), persistent=False)
            self.register_buffer("values", torch.randn(*shape, mixer.value_dim), persistent=False)

    keys: Tensor
    values: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q, gate, k, v = torch.split(self.qkv(x), self.widths, dim=-1)
        q = self._turned(q, self.heads, self.q_norm)
        if self.mixer.reuses_kv:
            keys, values = self.keys, self.values
        else:
            values = per_head(k if self.mixer.has_shared_kv else v, self.kv_heads)
            keys = self._turned(k, self.kv_heads, self.k_norm)
        out = self.attend(x, q, keys, values).transpose(1, 2).flatten(2)
        if self.mixer.has_output_gate:
            out = fused(output_gate, out, gate)
        return scatter(self.out(out), self.ranks)

    def _turned(self, x: Tensor, heads: int, norm: Tensor | None) -> Tensor:
        parts = per_head(x, heads)
        return rotated(parts if norm is None else rms_norm(parts, norm), self.rope.cosine, self.rope.sine)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of queries to keys and values, [batch, heads, seq, dim]."""
        return checkpoint(self._core, q, k, v) if self.is_selective else self._core(q, k, v)

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return core_attention(q, k, v, seq_length=self.seq_length, window=self.window)


def per_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, heads, seq, d], a view."""
    return by_head(x, heads).transpose(1, 2)


def by_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, seq, heads, d], a view."""
    return torch.unflatten(x, -1, (heads, -1))


def has_module(mixer: Mixer) -> bool:
    """Whether a mixer has a torch module."""
    return _has_kernel(mixer) or type(mixer) in MODULES


def _has_kernel(mixer: Mixer) -> bool:
    return isinstance(mixer, Attention) and mixer.indexer is None


def mixer_module(mixer: Mixer, hidden: int, shard: Shard, window: int) -> nn.Module:
    """The module of a mixer that plain attention cannot hold, at the shard's sizes."""
    if not has_module(mixer):
        raise MissingKernelError(f"no torch module of {mixer.name}")
    build: Callable[..., nn.Module] = GatedAttentionModule if _has_kernel(mixer) else MODULES[type(mixer)]
    return build(mixer, hidden, shard, window)


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
        if isinstance(inputs[0], FakeTensor):
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
        if isinstance(inputs[0], FakeTensor):
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


def output_gate(x: Tensor, gate: Tensor) -> Tensor:
    """x times the sigmoid of the gate."""
    return x * torch.sigmoid(gate)
