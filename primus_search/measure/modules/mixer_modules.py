"""Mixers that torch has a kernel for and the fields of plain attention cannot hold, as one rank holds them.

    mixer_module(mixer, hidden, shard, window)      the module of a mixer; MissingKernelError where there is none

Scans, linear attention and sparse attention have fused kernels in frameworks and none in torch: their memory stays
projected, and nothing is timed. `tests/oracle/reference_mixers.py` has them in plain torch and adds them to `MODULES`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from primus_search.measure.modules.attention_modules import MissingKernelError, core_attention, exchanged
from primus_search.measure.modules.fused_operations import Rope, checkpoint, gated, rms_norm, rotated, scatter
from primus_search.measure.modules.linear import Linear
from primus_search.measure.modules.shard import Shard
from primus_search.values.candidates import Recompute
from primus_search.values.model import Attention, Mixer

MODULES: dict[type[Mixer], Callable[..., nn.Module]] = {}  # modules of further mixers, by type


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
