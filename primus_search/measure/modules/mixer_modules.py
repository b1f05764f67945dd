"""Mixers other than plain attention as one rank holds them: projections, convolution, core, norm and gate.

Each module keeps for backward what Megatron-Core keeps with the kernels of mamba and flash-linear-attention: the joint
projection whole, because convolutions and gates read views of it; the inputs of the core (`fused_core`) and what the
core adds; the core's output and the input of the output projection.

    mixer_module(mixer, hidden, shard, window)      the module of a mixer; MissingKernelError where there is none
    sparse attention on a device is dense attention under a mask, and is only right, not fast
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from primus_search.measure.modules import scans
from primus_search.measure.modules.attention_modules import MissingKernelError, core_attention
from primus_search.measure.modules.checkpointing import checkpoint
from primus_search.measure.modules.fused_core import fused, lower_scores
from primus_search.measure.modules.fused_operations import gather, rms_norm, rotated, scatter
from primus_search.measure.modules.indexing import IndexedSelection, selected_attention
from primus_search.measure.modules.linear import Linear
from primus_search.measure.modules.rotary import Rope
from primus_search.measure.modules.shard import Shard
from primus_search.values.candidates import Recompute
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentMixer,
    LightningAttention,
    Mamba2,
    Mixer,
    ShortConvolution,
)
from primus_search.values.model.mixer import attended_tokens

BF16_BYTES = 2


class Mamba2Module(nn.Module):
    """Joint projection, one kernel for convolution, scan and gate, norm, projection out."""

    def __init__(self, mixer: Mamba2, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.heads, self.groups = shard.share(mixer.num_heads), shard.share(mixer.num_groups)
        self.mixer, self.ranks = mixer, shard.sequence_ranks
        self.inner = self.heads * mixer.head_dim
        channels = self.inner + 2 * self.groups * mixer.state_dim
        width = self.inner + channels + self.heads
        self.input = Linear(hidden, width, bias=mixer.has_bias, ranks=self.ranks, fp8=shard.fp8)
        self.output = Linear(self.inner, hidden, bias=mixer.has_bias, fp8=shard.fp8)
        self.convolution = nn.Parameter(torch.randn(channels, 1, mixer.conv_kernel) * mixer.conv_kernel**-0.5)
        self.step_bias, self.decay_log = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.zeros(self.heads))
        self.skip, self.norm = nn.Parameter(torch.ones(self.heads)), nn.Parameter(torch.ones(self.inner))

    def forward(self, x: Tensor) -> Tensor:
        joint = self.input(x)
        y = fused(
            scans.mamba2,
            joint,
            self.convolution,
            self.step_bias,
            self.decay_log,
            self.skip,
            kept_bytes=joint.shape[0] * joint.shape[1] * self.inner * joint.element_size(),  # y before its gate
            heads=self.heads,
            head_dim=self.mixer.head_dim,
            groups=self.groups,
            state=self.mixer.state_dim,
            chunk=self.mixer.chunk,
        )
        return scatter(self.output(rms_norm(y, self.norm)), self.ranks)


class GatedDeltaNetModule(nn.Module):
    """Queries, keys and values convolved; queries and keys normalised and repeated for every value head."""

    def __init__(self, mixer: GatedDeltaNet, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.key_heads, self.heads = shard.share(mixer.num_key_heads), shard.share(mixer.num_value_heads)
        self.mixer, self.ranks = mixer, shard.sequence_ranks
        self.keys, self.values = self.key_heads * mixer.key_dim, self.heads * mixer.value_dim
        channels = 2 * self.keys + self.values
        self.widths = [channels, self.values, self.heads, self.heads]
        self.input = Linear(hidden, sum(self.widths), ranks=self.ranks, fp8=shard.fp8)
        self.output = Linear(self.values, hidden, fp8=shard.fp8)
        self.convolution = nn.Parameter(torch.randn(channels, 1, mixer.conv_kernel) * mixer.conv_kernel**-0.5)
        self.decay_log, self.norm = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.ones(mixer.value_dim))

    def forward(self, x: Tensor) -> Tensor:
        mixed, gate, beta, step = torch.split(self.input(x), self.widths, dim=-1)
        convolved = fused(scans.short_convolution, mixed, self.convolution)
        turned, v = torch.split(convolved, [2 * self.keys, self.values], dim=-1)
        del convolved
        turned = fused(scans.unit_length, torch.unflatten(turned.contiguous(), -1, (2, self.key_heads, -1)))
        q, k = (part.repeat_interleave(self.heads // self.key_heads, dim=2) for part in turned.unbind(2))
        out = fused(
            scans.gated_delta_net,
            q.contiguous(),
            k.contiguous(),
            _by_head(v.contiguous(), self.heads),
            step.contiguous(),
            beta.contiguous(),
            self.decay_log,
            kept_bytes=_chunk_bytes(q, self.heads, self.mixer.chunk, squares=1),
            chunk=self.mixer.chunk,
        )
        gated = fused(scans.gated_norm, out, _by_head(gate.contiguous(), self.heads), self.norm)
        return scatter(self.output(gated.flatten(2)), self.ranks)


def _chunk_bytes(q: Tensor, heads: int, chunk: int, squares: int) -> float:
    """Bytes of what kernels of the delta rule save per row: squares of a chunk, and the summed decay in FP32."""
    rows = q.shape[0] * q.shape[1] * heads
    return rows * (squares * min(chunk, q.shape[1]) * BF16_BYTES + 4)


class KimiDeltaModule(nn.Module):
    """Queries, keys and values with a convolution each, a low-rank decay per channel, a full or low-rank gate."""

    def __init__(self, mixer: KimiDeltaAttention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.heads, self.mixer, self.ranks = shard.share(mixer.num_heads), mixer, shard.sequence_ranks
        value_dim, ranks, fp8 = mixer.value_dim or mixer.head_dim, self.ranks, shard.fp8
        self.keys, self.values = self.heads * mixer.head_dim, self.heads * value_dim
        self.widths = [self.keys, self.keys, self.values, self.heads, 0 if mixer.gate_rank else self.values]
        self.input = Linear(hidden, sum(self.widths), ranks=ranks, fp8=fp8)
        self.decay_down = Linear(hidden, mixer.decay_rank, fp8=fp8)
        self.decay_up = Linear(mixer.decay_rank, self.keys, ranks=ranks, fp8=fp8)
        self.gate_down = Linear(hidden, mixer.gate_rank, fp8=fp8) if mixer.gate_rank else None
        bias = mixer.has_gate_bias
        self.gate_up = (
            Linear(mixer.gate_rank, self.values, bias=bias, ranks=ranks, fp8=fp8) if mixer.gate_rank else None
        )
        self.output = Linear(self.values, hidden, fp8=fp8)
        self.convolutions = nn.ParameterList(
            torch.randn(width, 1, mixer.conv_kernel) * mixer.conv_kernel**-0.5 for width in self.widths[:3]
        )
        self.decay_log, self.norm = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.ones(value_dim))

    def forward(self, x: Tensor) -> Tensor:
        *parts, beta, gate = torch.split(self.input(x), self.widths, dim=-1)
        q, k, v = (
            _by_head(fused(scans.short_convolution, part, weight), self.heads)
            for part, weight in zip(parts, self.convolutions, strict=True)
        )
        out = fused(
            scans.kimi_delta,
            q,
            k,
            v,
            _by_head(self.decay_up(self.decay_down(x)), self.heads),
            beta.contiguous(),
            self.decay_log,
            kept_bytes=_chunk_bytes(q, self.heads, self.mixer.chunk, squares=2),
            chunk=self.mixer.chunk,
        )
        if self.gate_down is not None and self.gate_up is not None:
            gate = self.gate_up(self.gate_down(x))
        gated = fused(scans.gated_norm, out, _by_head(gate, self.heads), self.norm)
        return scatter(self.output(gated.flatten(2)), self.ranks)


class LightningModule(nn.Module):
    """Joint projection with the gate, SiLU, linear attention with a fixed decay, norm and gate."""

    def __init__(self, mixer: LightningAttention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.heads, self.mixer, self.ranks = shard.share(mixer.num_heads), mixer, shard.sequence_ranks
        self.inner = self.heads * mixer.head_dim
        self.input = Linear(hidden, 4 * self.inner, ranks=self.ranks, fp8=shard.fp8)
        self.output = Linear(self.inner, hidden, fp8=shard.fp8)
        self.norm = nn.Parameter(torch.ones(self.inner))

    def forward(self, x: Tensor) -> Tensor:
        mixed, gate = torch.split(self.input(x), [3 * self.inner, self.inner], dim=-1)
        sizes = {"heads": self.heads, "head_dim": self.mixer.head_dim}
        activated = fused(_silu, mixed)
        out = fused(scans.lightning, activated, chunk=self.mixer.block, **sizes)
        return scatter(self.output(fused(scans.gated_norm, out, gate, self.norm)), self.ranks)


def _silu(x: Tensor) -> Tensor:
    return nn.functional.silu(x).contiguous()


class ShortConvolutionModule(nn.Module):
    """Two gates around a depthwise convolution."""

    def __init__(self, mixer: ShortConvolution, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.inner, self.ranks = shard.share(hidden), shard.sequence_ranks
        self.input = Linear(hidden, 3 * self.inner, bias=mixer.has_bias, ranks=self.ranks, fp8=shard.fp8)
        self.output = Linear(self.inner, hidden, bias=mixer.has_bias, fp8=shard.fp8)
        self.convolution = nn.Parameter(torch.randn(self.inner, 1, mixer.kernel) * mixer.kernel**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        before, after, inner = self.input(x).chunk(3, dim=-1)
        convolved = fused(scans.short_convolution, before * inner, self.convolution, activated=0)
        return scatter(self.output(after * convolved), self.ranks)


class GatedAttentionModule(nn.Module):
    """Attention whose sizes the model's fields cannot say: a gate on the output, shared or reused keys, an indexer.

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
        self.selection = IndexedSelection(mixer.indexer, hidden, shard) if mixer.indexer else None
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
            values = _per_head(k if self.mixer.has_shared_kv else v, self.kv_heads)
            keys = self._turned(k, self.kv_heads, self.k_norm)
        selected = self.selection(x, x) if self.selection else None
        out = checkpoint(self._core, q, keys, values) if self.is_selective else self._core(q, keys, values, selected)
        out = out.transpose(1, 2).flatten(2)
        if self.mixer.has_output_gate:
            out = fused(scans.output_gate, out, gate)
        return scatter(self.out(out), self.ranks)

    def _turned(self, x: Tensor, heads: int, norm: Tensor | None) -> Tensor:
        per_head = _per_head(x, heads)
        return rotated(per_head if norm is None else rms_norm(per_head, norm), self.rope.cosine, self.rope.sine)

    def _core(self, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None = None) -> Tensor:
        if self.mixer.indexer is not None:
            reads = attended_tokens(self.seq_length, self.mixer.indexer.top_k)
            block = self.mixer.indexer.block
            return selected_attention(q, k, v, selected, reads=reads, seq_length=self.seq_length, block=block)
        return core_attention(q, k, v, seq_length=self.seq_length, window=self.window)


def _per_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, heads, seq, d], a view."""
    return _by_head(x, heads).transpose(1, 2)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[batch, seq, heads d] as [batch, seq, heads, d], a view."""
    return torch.unflatten(x, -1, (heads, -1))


class SparseLatentModule(nn.Module):
    """MLA with an indexer in its absorbed form: queries in the latent space, one key/value head for all of them.

    Source: Megatron-Core 0.20 experimental_attention_variant (absorbed MLA, DSA); DeepSeek-V3.2 (arXiv:2512.02556).
    """

    def __init__(self, mixer: LatentMixer, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        a, self.heads, self.ranks = mixer.latent, shard.share(mixer.num_heads), shard.sequence_ranks
        self.sizes, self.indexer, self.seq_length = a, mixer.indexer, shard.seq_length
        fp8, ranks = shard.fp8, self.ranks
        self.q_down = Linear(hidden, a.q_lora_rank, fp8=fp8) if a.q_lora_rank else None
        self.q_norm = nn.Parameter(torch.ones(a.q_lora_rank)) if a.q_lora_rank else None
        self.q_up = Linear(a.q_lora_rank or hidden, self.heads * a.qk_head_dim, ranks=ranks, fp8=fp8)
        self.kv_down = Linear(hidden, a.kv_lora_rank + a.qk_rope_head_dim, fp8=fp8)
        self.kv_norm = nn.Parameter(torch.ones(a.kv_lora_rank))
        scale = a.kv_lora_rank**-0.5
        self.key_up = nn.Parameter(torch.randn(self.heads, a.qk_nope_head_dim, a.kv_lora_rank) * scale)
        self.value_up = nn.Parameter(torch.randn(self.heads, a.kv_lora_rank, a.v_head_dim) * scale)
        self.gate = Linear(hidden, self.heads * a.v_head_dim, ranks=ranks, fp8=fp8) if mixer.has_output_gate else None
        self.out = Linear(self.heads * a.v_head_dim, hidden, fp8=fp8)
        self.rope = Rope(shard.context_seq, a.qk_rope_head_dim)
        self.selection = IndexedSelection(mixer.indexer, hidden, shard) if mixer.indexer else None

    def forward(self, x: Tensor) -> Tensor:
        a, tables = self.sizes, (self.rope.cosine, self.rope.sine)
        latent = x if self.q_down is None or self.q_norm is None else rms_norm(self.q_down(x), self.q_norm)
        queries = _per_head(self.q_up(latent), self.heads)
        nope, rope = torch.split(queries, [a.qk_nope_head_dim, a.qk_rope_head_dim], dim=-1)
        q = torch.cat([nope @ self.key_up, rotated(rope, *tables)], dim=-1)
        keys, k_rope = torch.split(self.kv_down(x), [a.kv_lora_rank, a.qk_rope_head_dim], dim=-1)
        keys, k_rope = gather(rms_norm(keys, self.kv_norm), self.ranks), gather(k_rope, self.ranks)
        kv = torch.cat([keys[:, None], rotated(k_rope[:, None], *tables)], dim=-1)
        selected = self.selection(x, latent) if self.selection else None
        assert self.indexer is not None
        reads = attended_tokens(self.seq_length, self.indexer.top_k)
        values = kv[..., : a.kv_lora_rank]
        latents = selected_attention(q, kv, values, selected, reads=reads, seq_length=self.seq_length)
        mixed = (latents @ self.value_up).transpose(1, 2).flatten(2)
        if self.gate is not None:
            mixed = fused(scans.output_gate, mixed, self.gate(x))
        return scatter(self.out(mixed), self.ranks)


class CompressedAttentionModule(nn.Module):
    """Attention of DeepSeek-V4: one key/value head, a window, compressed blocks before it. Traced only."""

    def __init__(self, mixer: CompressedAttention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__()
        self.mixer, self.heads, self.ranks = mixer, shard.share(mixer.num_heads), shard.sequence_ranks
        self.seq_length, self.groups = shard.seq_length, shard.share(mixer.o_groups)
        fp8, ranks = shard.fp8, self.ranks
        self.q_down = Linear(hidden, mixer.q_lora_rank, fp8=fp8)
        self.q_norm = nn.Parameter(torch.ones(mixer.q_lora_rank))
        self.q_up = Linear(mixer.q_lora_rank, self.heads * mixer.head_dim, ranks=ranks, fp8=fp8)
        self.kv = Linear(hidden, mixer.head_dim, fp8=fp8)
        self.kv_norm = nn.Parameter(torch.ones(mixer.head_dim))
        self.compressor = Linear(hidden, 2 * mixer.compressor_width, fp8=fp8) if mixer.ratio else None
        wide = self.heads * mixer.head_dim // self.groups
        self.o_down = nn.Parameter(torch.randn(self.groups, wide, mixer.o_lora_rank) * wide**-0.5)
        self.o_up = Linear(self.groups * mixer.o_lora_rank, hidden, fp8=fp8)
        self.rope = Rope(shard.context_seq, mixer.head_dim)
        inner = mixer.index_heads * mixer.index_dim
        self.index_keys = Linear(hidden, 4 * mixer.index_dim + mixer.index_heads, fp8=fp8) if mixer.is_indexed else None
        self.index_queries = Linear(mixer.q_lora_rank, inner, fp8=fp8) if mixer.is_indexed else None

    def forward(self, x: Tensor) -> Tensor:
        mixer, tables = self.mixer, (self.rope.cosine, self.rope.sine)
        latent = rms_norm(self.q_down(x), self.q_norm)
        q = rotated(_per_head(self.q_up(latent), self.heads), *tables)
        kv = rotated(gather(rms_norm(self.kv(x), self.kv_norm), self.ranks)[:, None], *tables)
        reads = attended_tokens(self.seq_length, mixer.window) + mixer.entries(self.seq_length)
        beside = []
        if self.compressor is not None:
            width = mixer.compressor_width
            entries = fused(_pooled, gather(self.compressor(x), self.ranks), ratio=mixer.ratio, width=width)
            beside.append(entries[:, None, :, : mixer.head_dim])
        if self.index_keys is not None and self.index_queries is not None:
            beside.append(self._scores(latent, x))
        mixed = selected_attention(q, kv, kv, None, *beside, reads=reads, seq_length=self.seq_length)
        grouped = _per_head(mixed.transpose(1, 2).flatten(2), self.groups)
        return scatter(self.o_up((grouped @ self.o_down).transpose(1, 2).flatten(2)), self.ranks)

    def _scores(self, latent: Tensor, x: Tensor) -> Tensor:
        """Scores of the compressed entries, which select what attention reads."""
        assert self.index_keys is not None and self.index_queries is not None
        mixer = self.mixer
        keys = gather(self.index_keys(x), self.ranks)
        queries = gather(self.index_queries(latent), self.ranks)
        sizes = {"ratio": mixer.ratio, "heads": mixer.index_heads, "width": mixer.index_dim}
        return fused(_compressed_scores, queries, keys, **sizes)


def _pooled(joint: Tensor, *, ratio: int, width: int) -> Tensor:
    """One entry per `ratio` tokens: their keys weighted by a softmax of their gates."""
    keys, gates = torch.split(torch.unflatten(joint, 1, (-1, ratio)), [width, width], dim=-1)
    return (keys * torch.softmax(gates, dim=2)).sum(2)


def _compressed_scores(queries: Tensor, keys: Tensor, *, ratio: int, heads: int, width: int) -> Tensor:
    """Best score over heads of each query for the entries before it; one number per token stands for the selection."""
    entries = torch.unflatten(keys[..., :width], 1, (-1, ratio)).mean(2)
    blocks = torch.unflatten(torch.unflatten(queries, -1, (heads, width)), 1, (-1, ratio))
    each = blocks.permute(0, 2, 3, 1, 4)
    found = lower_scores(each, entries[:, None, None].expand(*each.shape[:3], *entries.shape[1:]))
    return torch.relu(found).sum(2).amax(-1).flatten(1)


_MODULES: dict[type, Callable[..., nn.Module]] = {
    Mamba2: Mamba2Module,
    GatedDeltaNet: GatedDeltaNetModule,
    KimiDeltaAttention: KimiDeltaModule,
    LightningAttention: LightningModule,
    ShortConvolution: ShortConvolutionModule,
    Attention: GatedAttentionModule,
    LatentMixer: SparseLatentModule,
    CompressedAttention: CompressedAttentionModule,
}


def has_module(mixer: Mixer) -> bool:
    """Whether a mixer has a torch module here."""
    if isinstance(mixer, LatentMixer):
        return mixer.indexer is not None
    return type(mixer) in _MODULES


def mixer_module(mixer: Mixer, hidden: int, shard: Shard, window: int) -> nn.Module:
    """The module of a mixer that plain attention cannot say, at the shard's sizes."""
    if not has_module(mixer):
        raise MissingKernelError(f"no torch module of {mixer.name}")
    return _MODULES[type(mixer)](mixer, hidden, shard, window)


def is_reference(mixer: Mixer | None) -> bool:
    """Whether the module computes in plain torch what frameworks have a fused kernel for: right, and much slower."""
    if isinstance(mixer, Attention | LatentMixer):
        return mixer.indexer is not None
    return type(mixer) in _MODULES
