"""One transformer layer as one device holds it: real torch modules at the candidate's true shard shapes.

Tensor parallelism divides the heads and the N or K of projections, sequence parallelism the tokens of norms and
residuals, context parallelism the sequence, expert parallelism the experts. Collectives are stand-ins of the right
shape (see `fused.gather`), so a module costs what the rank computes and holds, and its communication is added by the
cost model. Activations travel as [batch, seq, hidden].
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from primus_search.measure.modules import fused_operations as ops
from primus_search.measure.modules.adapters import adapt
from primus_search.measure.modules.attention_modules import CoreAttention, mixer_module
from primus_search.measure.modules.experts import ExpertMlp
from primus_search.measure.modules.products import Linear
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import holds_plain_attention
from primus_search.values.candidates import Recompute
from primus_search.values.model import LatentMixer, LayerKind, Model, NoFeedForward, NoMixer


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, width: int, kind: str = "rmsnorm") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return ops.rms_norm(x, self.weight)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


class GroupedQueryAttention(CoreAttention):
    """Attention with one fused Q|K|V projection; multi-head and multi-query are its ends."""

    def __init__(self, model: Model, shard: Shard, window: int) -> None:
        super().__init__(shard, window, exchanges_heads=shard.exchanges_heads)
        self.heads, self.kv_heads = shard.share(model.num_heads), shard.share(model.num_kv_heads)
        width, bias, fp8 = model.head_dim, model.has_linear_bias or model.has_qkv_bias, shard.fp8
        joined, keeps = (self.heads + 2 * self.kv_heads) * width, shard.shares_attention_output
        self.qkv = Linear(model.hidden, joined, bias=bias, ranks=self.ranks, fp8=fp8)
        self.out = Linear(self.heads * width, model.hidden, bias=model.has_linear_bias, fp8=fp8, keeps_input=keeps)
        self.q_norm = Norm(width) if model.has_qk_norm else None
        self.k_norm = Norm(width) if model.has_qk_norm else None
        self.rope = ops.Rope(shard.context_seq, width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.scatter(self.out(self.mixed(*self._split(self.qkv(x)))), self.ranks)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cosine, sine = self.rope.cosine, self.rope.sine
        if self.q_norm is None or self.k_norm is None:
            return ops.split_rope(qkv, cosine, sine, self.heads, self.kv_heads, keeps_view=self.keeps_view)
        per_head = qkv.view(*qkv.shape[:-1], self.heads + 2 * self.kv_heads, -1)
        q, k, v = torch.split(per_head, [self.heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = self.q_norm(q.contiguous()), self.k_norm(k.contiguous())
        joined = torch.cat([q, k, v], dim=2).flatten(2)
        return ops.split_rope(joined, cosine, sine, self.heads, self.kv_heads, keeps_view=self.keeps_view)


class LatentAttentionModule(CoreAttention):
    """Multi-head latent attention in its training form: latents projected up to per-head queries, keys, values.

    The small down-projections are not divided by tensor parallelism (each rank holds all of them), as in Megatron-Core.
    """

    def __init__(self, model: Model, shard: Shard, window: int, *, has_gate: bool = False) -> None:
        super().__init__(shard, window, exchanges_heads=shard.exchanges_heads)
        assert model.latent is not None
        m, hidden = model.latent, model.hidden
        self.sizes, self.heads = m, shard.share(model.num_heads)
        self.discards = bool(shard.recompute & Recompute.MLA_UP_PROJ)
        whole, split = partial(Linear, fp8=shard.fp8), partial(Linear, fp8=shard.fp8, ranks=self.ranks)
        v_width, rank = self.heads * m.v_head_dim, m.q_lora_rank
        self.q_down = whole(hidden, rank) if rank else None
        self.q_norm = Norm(rank) if rank else None
        self.q_up = split(rank or hidden, self.heads * m.qk_head_dim)
        self.kv_down = whole(hidden, m.kv_lora_rank + m.qk_rope_head_dim)
        self.kv_norm = Norm(m.kv_lora_rank)
        self.kv_up = split(m.kv_lora_rank, self.heads * m.qk_nope_head_dim + v_width)
        self.gate = split(hidden, v_width) if has_gate else None
        self.out = whole(v_width, hidden, keeps_input=shard.shares_attention_output)
        self.rope = ops.Rope(shard.context_seq, m.qk_rope_head_dim)

    def _down(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries' latent (or x itself), keys' and values' latent, and the shared rotary key."""
        q_latent = x if self.q_down is None else self.q_down(x)
        kv_latent, k_rope = self.kv_down(x).split([self.sizes.kv_lora_rank, self.sizes.qk_rope_head_dim], dim=-1)
        return q_latent, kv_latent.contiguous(), k_rope.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        latents = self._down(x)
        if self.discards:
            owner = ops.DiscardedOutput()
            core = self.core(*owner.run(self._up, *latents))
            owner.discard_until_backward_of(core)
            mixed = core.transpose(1, 2).flatten(2)
        else:
            mixed = self.mixed(*self._up(*latents))
        if self.gate is not None:
            mixed = ops.gated(mixed, self.gate(x))
        return ops.scatter(self.out(mixed), self.ranks)

    def _up(self, q_latent: Tensor, kv_latent: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q_up(q_latent if self.q_norm is None else self.q_norm(q_latent))
        kv = self.kv_up(self.kv_norm(kv_latent))
        rope = ops.gather(k_rope, self.ranks)
        return ops.keeping_nothing(self._split, self._joined, q, kv, rope)

    def _split(self, q: Tensor, kv: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, rotary parts rotated and joined in one pass, as the fused kernels do."""
        nope, tables = self.sizes.qk_nope_head_dim, (self.rope.cosine, self.rope.sine)
        q, kv = (torch.unflatten(part, -1, (self.heads, -1)).transpose(1, 2) for part in (q, kv))
        q_out = torch.empty_like(q, memory_format=torch.contiguous_format)
        k_out = torch.empty_like(q_out)
        q_out[..., :nope].copy_(q[..., :nope])
        q_out[..., nope:].copy_(ops.rotate(q[..., nope:], *tables))
        k_out[..., :nope].copy_(kv[..., :nope])
        k_out[..., nope:].copy_(ops.rotate(k_rope.unsqueeze(1), *tables))
        values = kv[..., nope:]
        return q_out, k_out, values if self.keeps_view else values.contiguous()

    def _joined(self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`_split` of gradients, backwards: their rotary parts rotated back."""
        nope, cosine, sine = self.sizes.qk_nope_head_dim, self.rope.cosine, self.rope.sine
        q = torch.cat([grad_q[..., :nope], ops.rotate(grad_q[..., nope:], cosine, -sine)], dim=-1)
        kv = torch.cat([grad_k[..., :nope], grad_v], dim=-1)
        k_rope = ops.rotate(grad_k[..., nope:].sum(1, keepdim=True), cosine, -sine).squeeze(1)
        return q.transpose(1, 2).flatten(2), kv.transpose(1, 2).flatten(2), k_rope


class MlpModule(nn.Module):
    """Gate|up, activation, down; or up, GELU, down. Also all shared experts of an MoE layer as one."""

    def __init__(self, model: Model, shard: Shard, ffn_hidden: int) -> None:
        super().__init__()
        local = shard.share(ffn_hidden)
        self.is_gated, self.ranks = model.is_gated, shard.sequence_ranks
        bias = model.has_linear_bias
        width = local * (2 if model.is_gated else 1)
        self.up = Linear(model.hidden, width, bias=bias, ranks=self.ranks, fp8=shard.fp8)
        self.down = Linear(local, model.hidden, bias=bias, fp8=shard.fp8)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        return ops.scatter(self.down(ops.swiglu(wide) if self.is_gated else F.gelu(wide)), self.ranks)


def _mixer(model: Model, shard: Shard, kind: LayerKind) -> nn.Module | None:
    """The module of the layer's mixer; None where it has none."""
    if isinstance(kind.mixer, NoMixer):
        return None
    if kind.mixer is not None and not holds_plain_attention(kind):
        return mixer_module(kind.mixer, model.hidden, shard, kind.window)
    view = model.layer_view(kind)
    window = kind.window if view is model else view.windows[0]
    if not view.latent:
        return GroupedQueryAttention(view, shard, window)
    has_gate = isinstance(kind.mixer, LatentMixer) and kind.mixer.has_output_gate
    return LatentAttentionModule(view, shard, window, has_gate=has_gate)


class Layer(nn.Module):
    """Norm, mixer, residual, norm, MLP or experts, residual, where the layer has them; recomputed as the shard says."""

    def __init__(self, model: Model, shard: Shard, kind: LayerKind) -> None:
        super().__init__()
        self.recompute = shard.recompute
        self.attention = _mixer(model, shard, kind)
        self.mlp: MlpModule | None = None
        self.experts: ExpertMlp | None = None
        self.shared: MlpModule | None = None
        self.shared_gate: Linear | None = None
        if isinstance(kind.feed_forward, NoFeedForward):
            pass
        elif kind.is_moe:
            self.experts = ExpertMlp(model, shard)
            beside = model.beside_experts_hidden
            self.shared = MlpModule(model, shard, beside) if beside else None
            has_gate = beside and model.moe is not None and model.moe.has_shared_gate
            self.shared_gate = Linear(model.hidden, 1) if has_gate else None
        else:
            self.mlp = MlpModule(model, shard, model.ffn_hidden_of(kind))
        has_mixer, has_mlp = self.attention is not None, self.mlp is not None or self.experts is not None
        sandwich = model.num_norms > 2

        def norm(is_there: bool) -> Norm | None:
            return Norm(model.hidden, model.norm) if is_there else None

        self.norm1, self.norm2 = norm(has_mixer), norm(has_mlp)
        self.norm3, self.norm4 = norm(has_mixer and sandwich), norm(has_mlp and sandwich)
        if model.adapters is not None:
            adapt(self, model, shard, kind)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute & Recompute.FULL:
            return ops.checkpoint(self._whole, x)
        return self._whole(x)

    def _whole(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            mixed = self._attention(x)
            x = x + (mixed if self.norm3 is None else self.norm3(mixed))
        if self.norm2 is None:
            return x
        is_again = bool(self.recompute & Recompute.MLP) and self.mlp is not None
        out = ops.checkpoint(self._feed_forward, x) if is_again else self._feed_forward(x)
        return x + (out if self.norm4 is None else self.norm4(out))

    def _attention(self, x: Tensor) -> Tensor:
        assert self.attention is not None and self.norm1 is not None
        return self._behind_norm(self.norm1, self.attention, x)

    def _feed_forward(self, h: Tensor) -> Tensor:
        assert self.norm2 is not None
        return self._behind_norm(self.norm2, self._mlp, h)

    def _behind_norm(self, norm: Norm, block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The block on the norm's output, which recompute of norms discards."""
        if not self.recompute & Recompute.LAYERNORM:
            return block(norm(x))
        owner = ops.DiscardedOutput()
        y = owner.run(norm, x)
        out = block(y)
        owner.discard_until_backward_of(out)
        return out

    def _mlp(self, y: Tensor) -> Tensor:
        if self.mlp is not None:
            result: Tensor = self.mlp(y)
            return result
        return ops.checkpoint(self._moe, y) if self.recompute & Recompute.MOE else self._moe(y)

    def _moe(self, y: Tensor) -> Tensor:
        assert self.experts is not None
        routed: Tensor = self.experts(y)
        if self.shared is None:
            return routed
        is_again = bool(self.recompute & Recompute.SHARED_EXPERTS)
        shared = ops.checkpoint(self.shared, y) if is_again else self.shared(y)
        return routed + (shared if self.shared_gate is None else ops.gated(shared, self.shared_gate(y)))


class Embedding(nn.Module):
    """Token embedding, vocabulary rows dealt to tensor-parallel ranks; a learned position table where there is one."""

    def __init__(self, model: Model, shard: Shard) -> None:
        super().__init__()
        self.rows = shard.share(model.vocab_size)
        self.weight = nn.Parameter(torch.randn(self.rows, model.hidden) * model.hidden**-0.5)
        positions = shard.context_seq if model.learned_positions else 0
        self.positions = nn.Parameter(torch.zeros(positions, model.hidden)) if positions else None
        self.ranks = shard.sequence_ranks
        self.requires_grad_(model.adapters is None)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.weight)
        return ops.scatter(x if self.positions is None else x + self.positions, self.ranks)


class OutputHead(nn.Module):
    """Final norm, output projection onto this rank's share of the vocabulary, cross entropy."""

    def __init__(self, model: Model, shard: Shard) -> None:
        super().__init__()
        self.rows = shard.share(model.vocab_size)
        self.norm = Norm(model.hidden, model.norm)
        self.out = Linear(model.hidden, self.rows, ranks=shard.sequence_ranks)
        self.is_fused = shard.has_fused_loss
        self.requires_grad_(model.adapters is None)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.out(self.norm(x))
        return ops.fused_loss(logits, targets) if self.is_fused else ops.plain_loss(logits, targets)
