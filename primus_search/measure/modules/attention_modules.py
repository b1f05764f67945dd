"""The score and value product of attention, on a device or under a trace.

On a device torch's own `scaled_dot_product_attention` picks the kernel (cuDNN, flash, memory-efficient, CPU flash).
In a trace a function without kernel stands in for it, which keeps what flash attention keeps: queries,
keys, values, output and one fp32 log-sum per query and head (Dao 2023, arXiv:2307.08691).

Mixers that torch has a kernel for and the fields of plain attention cannot hold, as one rank holds them.

    mixer_module(mixer, hidden, shard, window)      the module of a mixer; MissingKernelError where there is none

Scans, linear attention and sparse attention have fused kernels in frameworks and none in torch: their memory stays
projected, and nothing is timed. `tests/oracle/reference_mixers.py` has them in plain torch and adds them to `MODULES`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.autograd import Function

from primus_search.measure.modules.fused_operations import (
    MissingKernelError,
    Rope,
    applied,
    checkpoint,
    gated,
    gather,
    is_shape_only,
    rms_norm,
    rotated,
    scatter,
)
from primus_search.measure.modules.products import Linear
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import MODULES, has_kernel, has_module
from primus_search.values.candidates import Recompute
from primus_search.values.model import Attention, Mixer
from primus_search.values.model.mixer import attended_tokens


def core_attention(q: Tensor, k: Tensor, v: Tensor, *, seq_length: int, window: int) -> Tensor:
    """Causal attention of [batch, heads, seq, dim] tensors, grouped key/value heads allowed; same shape out as q x v.

    seq_length is the whole sequence. Where q holds only a context-parallel share of it, each query meets S/2 keys on
    average whatever the rank (zigzag split), so one device times it as full attention over S/2 gathered keys.
    """
    if is_shape_only(q):
        return traced_attention(q, k, v, attended_tokens(seq_length, window))
    ranks = seq_length // q.shape[2]
    if 0 < window < seq_length:
        if q.device.type == "cpu" or ranks > 1 or v.shape[-1] != q.shape[-1]:
            raise MissingKernelError(f"no windowed attention kernel in torch for {q.device.type} (window {window})")
        return _windowed(q, k, v, window)
    if ranks > 1:
        k, v = (gather(part.transpose(1, 2), ranks)[:, : seq_length // 2].transpose(1, 2) for part in (k, v))
    is_grouped, v_dim = q.shape[1] != k.shape[1], v.shape[-1]
    if v_dim != q.shape[-1] and not _takes_two_dims(q, k, v, is_grouped):
        v = F.pad(v, (0, q.shape[-1] - v_dim))  # flash attention wants one head dimension
    out = F.scaled_dot_product_attention(q, k, v, is_causal=ranks == 1, enable_gqa=is_grouped)
    return out[..., :v_dim]


def _takes_two_dims(q: Tensor, k: Tensor, v: Tensor, is_grouped: bool) -> bool:
    """Whether a fast kernel takes values of another head dimension than queries: cuDNN's on NVIDIA may.

    torch's memory-efficient kernel does too, but is slower than flash attention on padded values.
    """
    if q.device.type == "cpu" or torch.version.hip is not None:
        return False
    params = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, is_grouped)
    return torch.backends.cuda.can_use_cudnn_attention(params)


def _windowed(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention of every query to the `window` keys before it, its own included: flash attention's kernel.

    torch has it for sequences packed one after another (`torch.nn.attention.varlen`).
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise MissingKernelError(f"torch {torch.__version__} has no windowed attention") from error
    batch, heads, seq, dim = q.shape
    ends = torch.arange(0, (batch + 1) * seq, seq, dtype=torch.int32, device=q.device)
    query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    sight, is_grouped = (window - 1, 0), heads != k.shape[1]
    try:
        out = varlen_attn(query, key, value, ends, ends, seq, seq, window_size=sight, enable_gqa=is_grouped)
    except TypeError as error:  # an older torch, whose packed attention knows neither windows nor groups
        raise MissingKernelError(f"torch {torch.__version__} has no windowed attention: {error}") from error
    assert isinstance(out, Tensor)
    return out.view(batch, seq, heads, dim).transpose(1, 2)


def exchanged(out: Tensor) -> Tensor:
    """What an all-to-all of heads for tokens returns, on one device: a copy, for the kernel keeps what it wrote."""
    return out.transpose(1, 2).clone().transpose(1, 2)


def traced_attention(q: Tensor, k: Tensor, v: Tensor, reads: float, *beside: Tensor) -> Tensor:
    """Attention without a kernel of queries to `reads` keys each, on average; `beside` is kept for backward as well."""
    return applied(_TracedAttention, q, k, v, reads, *beside)


def forward_kernel(q: Tensor, k: Tensor, v: Tensor, reads: float) -> tuple[Tensor, Tensor]:
    """What stands for a kernel in a trace: its output and log-sums. Tests count the FLOPs of `reads` keys a query."""
    # Kernels write [batch, seq, heads, dim], which the output projection then reads without a copy.
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def backward_kernel(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, reads: float) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values in a trace."""
    return tuple(map(torch.empty_like, (q, k, v)))


class _TracedAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, reads: float, *beside: Tensor) -> Tensor:
        out, log_sum = forward_kernel(q, k, v, reads)
        ctx.save_for_backward(q, k, v, out, log_sum, *beside)
        ctx.reads = reads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, *beside = ctx.saved_tensors
        return (*backward_kernel(grads[0], q, k, v, ctx.reads), None, *map(torch.empty_like, beside))


class CoreAttention(nn.Module):
    """What all attention modules have: the core, recomputed in backward where the shard says so."""

    def __init__(self, shard: Shard, window: int, *, exchanges_heads: bool = False) -> None:
        super().__init__()
        self.ranks, self.seq_length, self.window = shard.sequence_ranks, shard.seq_length, window
        self.is_selective = bool(shard.recompute & Recompute.CORE_ATTENTION)
        self.keeps_view, self.exchanges_heads = shard.keeps_value_view, exchanges_heads

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of queries to keys and values, [batch, heads, seq, dim]."""
        out = core_attention(q, k, v, seq_length=self.seq_length, window=self.window)
        return exchanged(out) if self.exchanges_heads else out

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The core's output as [batch, seq, heads dim]."""
        out = checkpoint(self.core, q, k, v) if self.is_selective else self.core(q, k, v)
        return out.transpose(1, 2).flatten(2)


class GatedAttentionModule(CoreAttention):
    """Attention whose sizes the model's fields do not hold: a gate on the output, shared or reused keys.

    Queries, keys, values and gate are views of the joint projection.
    """

    def __init__(self, mixer: Attention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__(shard, window or mixer.window or mixer.chunk)
        self.mixer = mixer
        self.heads, self.kv_heads = shard.share(mixer.num_heads), shard.share(mixer.num_kv_heads)
        queries = self.heads * mixer.head_dim
        keys = 0 if mixer.reuses_kv else self.kv_heads * mixer.head_dim
        values = 0 if mixer.reuses_kv or mixer.has_shared_kv else self.kv_heads * mixer.value_dim
        self.widths = [queries, shard.share(mixer.gate_out), keys, values]
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
        out = self.attend(x, q, keys, values)
        if self.mixer.is_gated_by_head:
            gate = gate.repeat_interleave(self.mixer.value_dim, dim=-1)
        return scatter(self.out(gated(out, gate) if self.mixer.has_output_gate else out), self.ranks)

    def _turned(self, x: Tensor, heads: int, norm: Tensor | None) -> Tensor:
        parts = per_head(x, heads)
        return rotated(parts if norm is None else rms_norm(parts, norm), self.rope.cosine, self.rope.sine)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of queries to keys and values of [batch, heads, seq, dim], joined for the projection."""
        return self.mixed(q, k, v)


def per_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, heads, seq, d], a view."""
    return by_head(x, heads).transpose(1, 2)


def by_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, seq, heads, d], a view."""
    return torch.unflatten(x, -1, (heads, -1))


def mixer_module(mixer: Mixer, hidden: int, shard: Shard, window: int) -> nn.Module:
    """The module of a mixer that plain attention cannot hold, at the shard's sizes."""
    if not has_module(mixer):
        raise MissingKernelError(f"no torch module of {mixer.name}")
    build: Callable[..., nn.Module] = GatedAttentionModule if has_kernel(mixer) else MODULES[type(mixer)]
    return build(mixer, hidden, shard, window)
