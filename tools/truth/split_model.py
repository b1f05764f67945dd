"""A small GPT or MoE that really trains over torch.distributed, from the same layers that are traced and timed.

The layers in `layers.py` stand in for their collectives by shape; here the collectives are real:
tensor parallelism (identity and all-reduce around attention and MLP, vocabulary-parallel embedding and loss),
expert parallelism (all-to-all of permuted rows), context and sequence parallelism are left out.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.autograd import Function

from primus_search.measure.modules.fused_operations import applied
from primus_search.measure.modules.layers import Embedding, Layer, OutputHead
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import exchange
from primus_search.values.model import Model


class _CopyToRanks(Function):
    """Identity forward, sum over the ranks backward: what enters a column-parallel linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)
        return grad


class _SumOverRanks(Function):
    """Sum over the ranks forward, identity backward: what leaves a row-parallel linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def copy_to_ranks(x: Tensor) -> Tensor:
    return applied(_CopyToRanks, x)


def sum_over_ranks(x: Tensor) -> Tensor:
    return applied(_SumOverRanks, x)


class _VocabularyLoss(Function):
    """Cross entropy of logits whose vocabulary is dealt to the ranks; overwrites them by their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, rank: int) -> Tensor:
        rows, wanted = logits.flatten(0, -2), targets.flatten()
        largest = rows.amax(dim=-1, keepdim=True)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        local = wanted - rank * rows.shape[1]
        is_mine = (local >= 0) & (local < rows.shape[1])
        index = local.clamp(0, rows.shape[1] - 1)[:, None]
        picked = torch.where(is_mine, rows.gather(1, index)[:, 0] - largest[:, 0], 0.0)
        rows.sub_(largest).exp_()
        total = rows.sum(dim=-1, keepdim=True)
        both = torch.stack([total[:, 0], picked])
        dist.all_reduce(both)
        rows.div_(both[0][:, None])
        rows.scatter_add_(1, index, -is_mine.to(rows.dtype)[:, None])
        rows.mul_(1.0 / rows.shape[0])
        ctx.save_for_backward(logits)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grads[0]), None, None


class ModelPart(nn.Module):
    """A run of layers, with the embedding before and the head and loss behind where they belong to it.

    Takes token numbers or hidden states; returns hidden states, or the loss where it holds the head.
    """

    def __init__(
        self, model: Model, shard: Shard, layers: range, *, rank: int, has_embedding: bool, has_head: bool
    ) -> None:
        super().__init__()
        self.rank, self.tp, self.is_fused = rank, shard.tp, shard.has_fused_loss
        self.embedding = Embedding(model, shard) if has_embedding else None
        self.layers = nn.ModuleList(Layer(model, shard, model.layers[i]) for i in layers)
        self.head = OutputHead(model, shard) if has_head else None
        for layer in self.layers:
            _connect(layer, shard)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            x = self._embed(x)
        for layer in self.layers:
            x = layer(x)
        if self.head is None or targets is None:
            return x
        if self.tp == 1:
            loss: Tensor = self.head(x, targets)
            return loss
        logits = self.head.out(copy_to_ranks(self.head.norm(x)))
        return applied(_VocabularyLoss, logits, targets, self.rank)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None
        if self.tp == 1:
            whole: Tensor = self.embedding(tokens)
            return whole
        local = tokens - self.rank * self.embedding.rows
        is_mine = (local >= 0) & (local < self.embedding.rows)
        rows = F.embedding(local.clamp(0, self.embedding.rows - 1), self.embedding.weight)
        return sum_over_ranks(rows * is_mine[..., None])


def _connect(layer: nn.Module, shard: Shard) -> None:
    """Real collectives around the modules that are divided over ranks."""
    assert isinstance(layer, Layer)
    if shard.tp > 1:
        for module in (layer.attention, layer.mlp):
            if module is not None:
                module.register_forward_pre_hook(lambda _, inputs: (copy_to_ranks(inputs[0]),))
                module.register_forward_hook(lambda _, __, out: sum_over_ranks(out))
    if shard.ep > 1 and layer.experts is not None:
        layer.experts.exchange = exchange
