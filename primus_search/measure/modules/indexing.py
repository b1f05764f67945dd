"""Sparse attention: an indexer that scores all earlier tokens, and attention to the few that it selects."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from primus_search.measure.modules.attention_modules import MissingKernelError, traced_attention
from primus_search.measure.modules.fused_core import fused, lower_scores
from primus_search.measure.modules.fused_operations import gather
from primus_search.measure.modules.linear import Linear
from primus_search.measure.modules.shard import Shard
from primus_search.values.model import Indexer


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
    if isinstance(q, FakeTensor):
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
