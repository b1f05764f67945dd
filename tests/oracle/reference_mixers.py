"""Mixers with a fused kernel in frameworks and none in torch, in plain torch: right, and much slower.

What they keep for backward is what Megatron-Core keeps with the kernels of mamba and flash-linear-attention: the joint
projection whole, because convolutions and gates read views of it; the inputs of the core (`fused_core`) and what the
core adds; the core's output and the input of the output projection. Projected activations are compared with theirs.

    with known(): trace_layer(model, shard, kind)     layers with these mixers are built
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from primus_search.measure.modules.attention_modules import (
    GatedAttentionModule,
    by_head,
    per_head,
    traced_attention,
)
from primus_search.measure.modules.fused_operations import (
    MissingKernelError,
    Rope,
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
from primus_search.measure.modules.supported_models import MODULES
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Indexer,
    KimiDeltaAttention,
    LatentMixer,
    LightningAttention,
    Mamba2,
    ShortConvolution,
)
from primus_search.values.model.mixer import attended_tokens
from tests.oracle import reference_scans
from tests.oracle.fused_kernel import fused
from tests.oracle.reference_scans import lower_scores

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
            reference_scans.mamba2,
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
        convolved = fused(reference_scans.short_convolution, mixed, self.convolution)
        turned, v = torch.split(convolved, [2 * self.keys, self.values], dim=-1)
        del convolved
        turned = fused(reference_scans.unit_length, torch.unflatten(turned.contiguous(), -1, (2, self.key_heads, -1)))
        q, k = (part.repeat_interleave(self.heads // self.key_heads, dim=2) for part in turned.unbind(2))
        out = fused(
            reference_scans.gated_delta_net,
            q.contiguous(),
            k.contiguous(),
            by_head(v.contiguous(), self.heads),
            step.contiguous(),
            beta.contiguous(),
            self.decay_log,
            kept_bytes=_chunk_bytes(q, self.heads, self.mixer.chunk, squares=1),
            chunk=self.mixer.chunk,
        )
        gated = fused(reference_scans.gated_norm, out, by_head(gate.contiguous(), self.heads), self.norm)
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
            by_head(fused(reference_scans.short_convolution, part, weight), self.heads)
            for part, weight in zip(parts, self.convolutions, strict=True)
        )
        out = fused(
            reference_scans.kimi_delta,
            q,
            k,
            v,
            by_head(self.decay_up(self.decay_down(x)), self.heads),
            beta.contiguous(),
            self.decay_log,
            kept_bytes=_chunk_bytes(q, self.heads, self.mixer.chunk, squares=2),
            chunk=self.mixer.chunk,
        )
        if self.gate_down is not None and self.gate_up is not None:
            gate = self.gate_up(self.gate_down(x))
        gated = fused(reference_scans.gated_norm, out, by_head(gate, self.heads), self.norm)
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
        out = fused(reference_scans.lightning, activated, chunk=self.mixer.block, **sizes)
        return scatter(self.output(fused(reference_scans.gated_norm, out, gate, self.norm)), self.ranks)


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
        convolved = fused(reference_scans.short_convolution, before * inner, self.convolution, activated=0)
        return scatter(self.output(after * convolved), self.ranks)


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
        queries = per_head(self.q_up(latent), self.heads)
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
            mixed = gated(mixed, self.gate(x))
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
        q = rotated(rms_norm(per_head(self.q_up(latent), self.heads), torch.ones(mixer.head_dim)), *tables)
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
        grouped = per_head(mixed.transpose(1, 2).flatten(2), self.groups)
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


class IndexedAttentionModule(GatedAttentionModule):
    """Attention to the blocks of keys that an indexer selects."""

    def __init__(self, mixer: Attention, hidden: int, shard: Shard, window: int) -> None:
        super().__init__(mixer, hidden, shard, window)
        assert mixer.indexer is not None
        self.selection = IndexedSelection(mixer.indexer, hidden, shard)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        selected = self.selection(x, x)
        out = checkpoint(self._read, q, k, v) if self.is_selective else self._read(q, k, v, selected)
        return out.transpose(1, 2).flatten(2)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None = None) -> Tensor:
        reads, block = attended_tokens(self.seq_length, self.mixer.indexer.top_k), self.mixer.indexer.block
        return selected_attention(q, k, v, selected, reads=reads, seq_length=self.seq_length, block=block)


class IndexedSelection(nn.Module):
    """Numbers of the selected blocks of every token, [batch, seq, top_k / block], as FP32; the indexer's own product.

    A layer that reuses an earlier selection returns none. Replicated over tensor-parallel ranks.
    """

    def __init__(self, indexer: Indexer, hidden: int, shard: Shard) -> None:
        super().__init__()
        self.indexer, self.ranks = indexer, shard.sequence_ranks
        self.blocks = max(1, min(indexer.top_k, shard.context_seq) // indexer.block)
        if indexer.has_own:
            width = indexer.num_heads * indexer.head_dim
            weights = indexer.num_heads if indexer.has_weights else 0
            self.queries = Linear(indexer.query_rank or hidden, width, fp8=shard.fp8)
            self.keys = Linear(hidden, indexer.head_dim + weights, fp8=shard.fp8)

    def forward(self, x: Tensor, latent: Tensor) -> Tensor | None:
        if not self.indexer.has_own:
            return None
        queries, keys = gather(self.queries(latent), self.ranks), gather(self.keys(x), self.ranks)
        sizes = {"heads": self.indexer.num_heads, "width": self.indexer.head_dim}
        return fused(_selection, queries, keys, blocks=self.blocks, block=self.indexer.block, **sizes)


def _selection(queries: Tensor, keys: Tensor, *, heads: int, width: int, blocks: int, block: int) -> Tensor:
    """The best blocks by a weighted sum over heads of ReLU(query key), as DeepSeek-V3.2 (arXiv:2512.02556) section 2.1.

    Differentiable in the scores, so that backward has the products of the indexer's own loss.
    """
    each = torch.unflatten(queries, -1, (heads, width)).transpose(1, 2)
    key, weight = keys[..., :width], keys[..., width:]
    scores = torch.relu(lower_scores(each, key[:, None].expand(-1, heads, -1, -1)))
    if weight.shape[-1]:
        scores = scores * weight.mT[..., None]
    total = scores.sum(1)
    above = torch.ones(total.shape[-2:], dtype=torch.bool, device=total.device).triu(1)
    total = total.masked_fill(above, float("-inf"))
    missing = -total.shape[-1] % block
    padded = F.pad(total, (0, missing), value=float("-inf"))
    best = torch.unflatten(padded, -1, (-1, block)).amax(-1).topk(blocks, dim=-1)
    own = torch.where(best.values.isfinite(), best.values, 0.0).float()
    chosen: Tensor = best.indices.float() + (own - own.detach())
    return chosen


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    selected: Tensor | None,
    *beside: Tensor,
    reads: float,
    seq_length: int,
    block: int = 1,
) -> Tensor:
    """Attention of [batch, heads, seq, dim] queries to `reads` keys each, on average.

    Keeps queries, keys, values, the selection, `beside` (compressed entries), output and log-sum of every row. On a
    device dense attention under the selection's mask, which computes the same and not as fast.
    """
    extra = [tensor for tensor in (selected, *beside) if tensor is not None]
    if is_shape_only(q):
        return traced_attention(q, k, v, reads, *extra)
    if selected is None or beside or q.shape[2] != seq_length:
        raise MissingKernelError("torch has no attention to compressed entries, reused selections or sequence shards")
    chosen = selected.detach().long().repeat_interleave(block, dim=-1) * block
    chosen = (chosen + torch.arange(chosen.shape[-1], device=q.device) % block).clamp_(max=seq_length - 1)
    mask = torch.zeros(q.shape[0], 1, seq_length, seq_length, dtype=torch.bool, device=q.device)
    mask = mask.scatter_(-1, chosen[:, None], True).tril_()
    mask |= torch.eye(seq_length, dtype=torch.bool, device=q.device)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out + 0.0 * selected.sum().to(out.dtype)  # so that the indexer runs backward


REFERENCES: dict[type, Callable[..., nn.Module]] = {
    Mamba2: Mamba2Module,
    GatedDeltaNet: GatedDeltaNetModule,
    KimiDeltaAttention: KimiDeltaModule,
    LightningAttention: LightningModule,
    ShortConvolution: ShortConvolutionModule,
    Attention: IndexedAttentionModule,
    LatentMixer: SparseLatentModule,
    CompressedAttention: CompressedAttentionModule,
}


@contextmanager
def known() -> Iterator[None]:
    """Layers can be built with every mixer of this file."""
    MODULES.update(REFERENCES)
    try:
        yield
    finally:
        MODULES.clear()
